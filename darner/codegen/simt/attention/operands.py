"""The operands of attention in a dispatch: functions that read them, and the numbers that all code of attention is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.math import emit
from ...problems.attention import Described
from ...problems.attention import Operand as Given
from ..builder import Memory, Operand, Simt, Value, is_packed
from ..dispatch import Dispatch
from ..elements import ThreadElements
from ..machine import Machine

ROWS = ("q", "k", "v", "dy", "out")
"""Operands that are rows of numbers; the others are masks and biases."""
FARTHEST = 1 << 29
"""A place beyond any key, and still exact in 32 bits."""
LEAST_EXPONENT = -87.0
"""Below that exponentials of f32 are no normal numbers."""

Function = Callable[..., Value]
"""A function of a dispatch: values to a value."""


@dataclass(frozen=True)
class Place:
    """What a workgroup works on: a head of the batch, its rows from ``first`` on, and one of the parts of the columns."""

    batch: Number
    head: Number
    first: Number
    part: Number = 0


class Reader:
    """A dispatch of an attention in the making, and what reads its operands.

    Attributes:
        kind: the type that is computed with.
        start: the key at which the first query stands, the same for all threads; known, or with a sign.
    """

    start: Number

    def __init__(
        self, spec: Spec, machine: Machine, attention: Described, threads: int, whole: bool = False
    ) -> None:
        self.attention = attention
        self.dispatch = Dispatch(spec, machine, threads=threads, whole=whole)
        self.builder: Simt = self.dispatch.builder
        self.kind: DType = dtypes.dtype(attention.accumulator)
        self._functions: dict[str, Function] = {}
        for name in ROWS:
            item = attention.operands.get(name)
            memory = None if item is None else self._leaf(item)
            if memory is None or memory.vector > 1 or is_packed(memory.dtype):
                continue
            if self._is_aligned(name):
                self.dispatch.as_vectors(memory, 4)

    @property
    def lowest(self) -> Value:
        """Where a maximum begins: -inf less the lowest number is -inf, which less itself would be NaN."""
        return self.builder.constant(float(np.finfo(self.kind.numpy).min), self.kind)

    @property
    def hidden(self) -> Value:
        """The score of a key that is not seen."""
        return self.builder.constant(float("-inf"), self.kind)

    # ------------------------------------------------------------- functions of numbers

    def _function(
        self, name: str, parameter: tuple[DType, int], body: Callable[[Simt, Value], Operand]
    ) -> Function:
        """A function of one argument, written once."""
        if name not in self._functions:
            self._functions[name] = self.builder.function(name, [("x", *parameter)], body)
        return self._functions[name]

    def exp(self, x: Value) -> Value:
        """The exponential of a number that is not above 0, or of each of a vector's; what is too small for a normal number is 0."""

        def body(b: Simt, x: Value) -> Value:
            return b.choose(x < LEAST_EXPONENT, 0.0, b.call("exp", x))

        name = "raised" if x.width == 1 else "four_raised"
        return self._function(name, (self.kind, x.width), body)(x)

    def tanh(self, x: Value) -> Value:
        """The hyperbolic tangent of a number, or of each of a vector's."""

        def body(b: Simt, x: Value) -> Operand:
            return emit("tanh", b, [x], [self.kind], self.kind)

        scalar = self._function("one_tanh", (self.kind, 1), body)
        if x.width == 1:
            return scalar(x)

        def each(b: Simt, x: Value) -> Value:
            return b.vector([scalar(part) for part in x.parts])

        return self._function("four_tanh", (self.kind, x.width), each)(x)

    # ------------------------------------------------------------- operands

    def _leaf(self, item: Given) -> Memory | None:
        """The buffer that an operand lies in, if it is one."""
        for memory, leaf in zip(self.dispatch.operands, self.dispatch.spec.inputs, strict=True):
            if leaf.id == item.base.id:
                return memory
        return None

    def width(self, name: str) -> int:
        """Numbers in a row."""
        attention = self.attention
        return attention.width if name in ("q", "k") else attention.value_width

    def rows(self, name: str) -> int:
        """Rows of a head."""
        return self.attention.keys if name in ("k", "v") else self.attention.queries

    def _is_aligned(self, name: str) -> bool:
        """Whether every row begins and ends with a whole vector of its buffer."""
        item = self.attention.operands[name]
        whole = (item.offset, self.width(name), prod(sizes(item.base)), *item.strides[:3])
        return all(number % 4 == 0 for number in whole) and item.strides[3] == 1

    def number(self, name: str) -> Function:
        """The function that reads a number (or a truth) of an operand at a distance from its buffer's first element."""
        item = self.attention.operands[name]
        base, memory = item.base, self._leaf(item)

        def body(b: Simt, at: Value) -> Operand:
            dispatch = self.dispatch
            elements = ThreadElements(b, dispatch.body, dispatch.operands, dispatch.fault)
            if memory is not None:
                value = elements.registers.load(memory, at, base.dtype)
            else:
                value = elements.at(base, elements.places.split(at, sizes(base)))
            if base.dtype is not dtypes.bool_:
                value = elements.registers.cast(value, base.dtype, self.kind)
            return _tf32(b, value) if item.rounded else value

        return self._function(f"one_{name}", (dtypes.u32, 1), body)

    def four(self, name: str, inside: bool = False) -> Function:
        """The function that reads 4 numbers of a row: 0 where there are none, unless all that are asked for are ``inside``.

        Its arguments: the head's first number, the row, which 4.
        """
        called = f"{'inside' if inside else 'four'}_{name}"
        if called in self._functions:
            return self._functions[called]
        rows, quads = self.rows(name), ceil_div(self.width(name), 4)

        def body(b: Simt, base: Value, row: Value, quad: Value) -> Value:
            at_row, at_quad = row, quad
            if not inside:
                # Read in any case, from what is nearest: a condition would keep reads from being on the way together.
                at_row, at_quad = b.min(row, max(rows, 1) - 1), b.min(quad, quads - 1)
            step = self.attention.operands[name].strides[2]
            found = self._four_at(name, b, b.let(base + at_row * step + at_quad * 4, "at"), quad)
            if self.attention.operands[name].rounded:
                found = _tf32(b, found)
            if inside:
                return found
            return b.choose((row < rows) & (quad < quads), found, 0.0)

        parameters = [(word, dtypes.u32, 1) for word in ("base", "row", "quad")]
        self._functions[called] = self.builder.function(called, parameters, body)
        return self._functions[called]

    def _four_at(self, name: str, b: Simt, at: Value, quad: Value) -> Value:
        """4 numbers from a place on, that is one of a row."""
        memory = self._leaf(self.attention.operands[name])
        if memory is None or not self._is_aligned(name):
            number, width = self.number(name), self.width(name)
            found = b.variable(0, "found", self.kind, width=4)
            found[0] = number(at)
            for lane in range(1, 4):
                with b.if_(quad * 4 + lane < width):
                    found[lane] = number(at + lane)
            return found
        if not is_packed(memory.dtype):
            return b.load(memory, at >> 2)
        words = [b.load(memory, at >> 1), b.load(memory, (at >> 1) + 1)]
        if memory.dtype is dtypes.f16:
            return b.let(b.vector([b.halves(word) for word in words]))
        halves = [half for word in words for half in (word << 16, word & 0xFFFF0000)]
        return b.let(b.of_bits(b.vector(halves), dtypes.f32))

    def head_of(self, name: str, batch: Number, head: Number) -> Number:
        """The distance of a head's first number."""
        item = self.attention.operands[name]
        found: Number = item.offset
        for index, stride in ((batch, item.strides[0]), (head, item.strides[1])):
            if stride:
                found = found + index * stride
        return found

    def stride(self, name: str, axis: int) -> int:
        """The distance of neighbours along an axis."""
        return self.attention.operands[name].strides[axis]

    def write_start(self, batch: Number) -> None:
        """Find ``start``."""
        found = self.start_of(batch)
        if not isinstance(found, int):
            found = self.builder.let(self.uniform(found), "start")
        self.start = found

    def start_of(self, batch: Number) -> Number:
        """The key at which the first query stands, as every thread reads it."""
        attention, b = self.attention, self.builder
        node = attention.offset
        if node is None:
            return attention.keys - attention.queries
        elements = self.dispatch.elements()
        one = node.rank == 0 or int(node.shape[0]) == 1
        index = [] if node.rank == 0 else [0 if one else batch]
        found = elements.places.clamp(elements.integer(node, index), -FARTHEST, FARTHEST)
        signed: Number = b.as_signed(elements.places.value(found))
        return signed

    def uniform(self, value: Value) -> Value:
        """A number that comes from memory and counts as different in every thread: by way of shared memory it is known to be the same."""
        b = self.builder
        shared = b.shared(dtypes.i32, (), "shared_start", signed=True)
        with b.if_(b.local == 0):
            shared[()] = value
        return b.uniform(shared)


def _tf32(b: Simt, x: Value) -> Value:
    """A number, or each of a vector's, rounded to tf32: nearest, ties to even, NaN as it is."""
    bits = b.let(b.bits(b.let(x)))
    kept = (bits + ((bits >> 13) & 1) + 0xFFF) & 0xFFFFE000
    return b.choose((bits << 1) > 0xFF000000, x, b.of_bits(b.let(kept), dtypes.f32))


def share_of(reader: Reader, total: Value) -> Value:
    """1 over a total; 1 where nothing was seen."""
    return 1.0 / reader.builder.choose(total > 0.0, total, 1.0)


def sum_of_four(x: Value) -> Value:
    """The sum of a vector's numbers."""
    return (x.x + x.y) + (x.z + x.w)


def most_of_four(b: Simt, x: Value) -> Value:
    """The largest of them."""
    return b.max(b.max(x.x, x.y), b.max(x.z, x.w))


def unsigned(b: Simt, number: Number) -> Number:
    """A number with a sign that is not below 0 as one without."""
    return number if isinstance(number, int) else b.as_unsigned(number)
