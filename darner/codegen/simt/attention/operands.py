"""The operands of attention in a shader: functions that read them, and the numbers that all code of attention is made of."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ....backends.wgpu.text import Text
from ....backends.wgpu.writer import HIDDEN
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.math import emit, register_type
from ...problems.attention import Described, Operand
from ..builder import Memory, is_packed
from ..dispatch import Dispatch
from ..elements import ThreadElements
from ..machine import Machine

ROWS = ("q", "k", "v", "dy")
"""Operands that are rows of numbers; the others are masks and biases."""
FARTHEST = 1 << 29
"""A place beyond any key, and still exact in 32 bits."""


class Reader:
    """A dispatch of an attention in the making: its text, and what reads its operands.

    Attributes:
        number: the type that is computed with, as WGSL calls it; ``vector`` is 4 of them.
    """

    def __init__(
        self, spec: Spec, machine: Machine, attention: Described, threads: int, whole: bool = False
    ) -> None:
        self.attention = attention
        self.shader = Dispatch(spec, machine, threads=threads, whole=whole)
        self.writer = self.shader.builder
        self.kind: DType = dtypes.dtype(attention.accumulator)
        self.number = "f32"
        self.vector = f"vec4<{self.number}>"
        self._declared: set[str] = set()
        for name in ROWS:
            item = attention.operands.get(name)
            memory = None if item is None else self._leaf(item)
            if memory is None or memory.vector > 1 or is_packed(memory.dtype):
                continue
            if self._is_aligned(name):
                self.shader.as_vectors(memory, 4)

    # ------------------------------------------------------------- text

    def line(self, text: str) -> None:
        """Write a line."""
        self.writer.line(text)

    def constant(self, value: float) -> str:
        """A number as WGSL."""
        from llvmlite import ir

        if self.kind is dtypes.f32:
            value = float(np.float32(value))
        return self.writer.text(ir.Constant(register_type(self.kind), value))

    @property
    def lowest(self) -> str:
        """Where a maximum begins: -inf less the lowest number is -inf, which less itself would be NaN."""
        return self.constant(float(np.finfo(self.kind.numpy).min))

    @property
    def hidden(self) -> str:
        """The score of a key that is not seen."""
        return self.constant(float("-inf"))

    def function(
        self, name: str, parameters: str, result: str, inside: Callable[[Any], str]
    ) -> str:
        """Declare a function once; ``inside`` writes it and gives what it returns."""
        if name not in self._declared:
            self._declared.add(name)
            writer = self.writer.child()
            self.writer.declare(HIDDEN, f"var<private> {HIDDEN}: u32;")
            found = inside(writer)
            head = f"fn {name}({parameters}) -> {result} {{"
            self.writer.declare_function(name, head, [*writer.lines, f"  return {found};", "}"])
        return name

    def each_of_four(self, name: str, scalar: str) -> str:
        """A function of vectors from one of numbers."""
        parts = ", ".join(f"{scalar}(x.{axis})" for axis in "xyzw")
        text = f"{self.vector}({parts})"
        return self.function(name, f"x: {self.vector}", self.vector, lambda _: text)

    # ------------------------------------------------------------- functions of numbers

    def exp(self, x: str) -> str:
        """The exponential of a number that is not above 0; what is too small for a normal number is 0."""
        self.function("raised", "x: f32", "f32", lambda _: "select(exp(x), 0.0f, x < -87.0f)")
        return f"raised({x})"

    def exp_of_four(self, x: str) -> str:
        """The same of each of a vector's numbers."""
        text = "select(exp(x), vec4<f32>(), x < vec4<f32>(-87.0f))"
        return f"{self.function('four_raised', 'x: vec4<f32>', 'vec4<f32>', lambda _: text)}({x})"

    def tanh(self, x: str) -> str:
        """The hyperbolic tangent."""
        return f"{self._elementary('tanh')}({x})"

    def tanh_of_four(self, x: str) -> str:
        """The hyperbolic tangent of each of a vector's numbers."""
        return f"{self.each_of_four('four_tanh', self._elementary('tanh'))}({x})"

    def _elementary(self, op: str) -> str:
        def inside(writer: Any) -> str:
            x = Text(register_type(self.kind), "x")
            return writer.text(emit(op, writer, [x], [self.kind], self.kind))

        return self.function(f"one_{op}", f"x: {self.number}", self.number, inside)

    # ------------------------------------------------------------- operands

    def _leaf(self, item: Operand) -> Memory | None:
        """The buffer that an operand lies in, if it is one."""
        for memory, leaf in zip(self.shader.operands, self.shader.spec.inputs, strict=True):
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

    def one(self, name: str) -> str:
        """The function that reads a number (or a truth) of an operand at a distance from its buffer's first element."""
        item = self.attention.operands[name]
        base: Node = item.base
        memory = self._leaf(item)
        boolean = base.dtype is dtypes.bool_

        def inside(writer: Any) -> str:
            from llvmlite import ir

            shader = self.shader
            elements = ThreadElements(writer, shader.body, shader.operands, shader.fault)
            at = Text(ir.IntType(32), "at")
            if memory is not None:
                value = elements.registers.load(memory, at, base.dtype)
            else:
                value = elements.at(base, elements.places.split(at, sizes(base)))
            if not boolean:
                value = elements.registers.cast(value, base.dtype, self.kind)
            return writer.text(value)

        result = "bool" if boolean else self.number
        return self.function(f"one_{name}", "at: u32", result, inside)

    def four(self, name: str, inside: bool = False) -> str:
        """The function that reads 4 numbers of a row: 0 where there are none, unless all that are asked for are ``inside``.

        Its arguments: the head's first number, the row, which 4.
        """
        item, width, rows = self.attention.operands[name], self.width(name), self.rows(name)
        memory, vector, quads = self._leaf(item), self.vector, -(-width // 4)

        def write(writer: Any) -> str:
            at_row, at_quad = "row", "quad"
            if not inside:
                # Read in any case, from what is nearest: a condition would keep reads from being on the way together.
                at_row, at_quad = f"min(row, {max(rows, 1) - 1}u)", f"min(quad, {quads - 1}u)"
            writer.line(f"let at = base + {at_row} * {_word(item.strides[2])}u + {at_quad} * 4u;")
            if memory is None or not self._is_aligned(name):
                one = self.one(name)
                writer.line(f"var found = {vector}();")
                writer.line(f"found.x = {one}(at);")
                for lane, axis in enumerate("yzw", 1):
                    test = f"quad * 4u + {lane}u < {width}u"
                    writer.line(f"if ({test}) {{ found.{axis} = {one}(at + {lane}u); }}")
            elif not is_packed(memory.dtype):
                writer.line(f"let found = {memory.name}[at >> 2u];")
            else:
                writer.line(f"let a = {memory.name}[at >> 1u];")
                writer.line(f"let b = {memory.name}[(at >> 1u) + 1u];")
                writer.line(f"let found = {_halves(memory.dtype)};")
            if inside:
                return "found"
            return f"select({vector}(), found, row < {rows}u && quad < {quads}u)"

        kind = "inside" if inside else "four"
        parameters = "base: u32, row: u32, quad: u32"
        return self.function(f"{kind}_{name}", parameters, vector, write)

    def head_of(self, name: str, batch: str, head: str) -> str:
        """The distance of a head's first number, as text of a u32."""
        item = self.attention.operands[name]
        parts = [f"{_word(item.offset)}u"]
        for index, stride in ((batch, item.strides[0]), (head, item.strides[1])):
            if stride:
                parts.append(f"{index} * {_word(stride)}u")
        return " + ".join(parts)

    def stride(self, name: str, axis: int) -> str:
        """The distance of neighbours along an axis, as text of a u32."""
        return f"{_word(self.attention.operands[name].strides[axis])}u"

    def write_start(self, batch: str) -> None:
        """``start``: the key at which the first query stands, the same for all threads."""
        attention = self.attention
        node = attention.offset
        if node is None:
            self.line(f"let start = {attention.keys - attention.queries}i;")
            return
        from llvmlite import ir

        elements = self.shader.elements()
        one = node.rank == 0 or int(node.shape[0]) == 1
        index = [] if node.rank == 0 else [0 if one else Text(ir.IntType(32), batch)]
        found = elements.places.clamp(elements.integer(node, index), -FARTHEST, FARTHEST)
        # What comes from memory counts as different in every thread: by way of shared memory it is known to be the same.
        shared = self.shader.text_shared("shared_start", "i32")
        with self.writer.block("if (local == 0u)"):
            self.line(f"{shared} = bitcast<i32>({elements.places.text(found)});")
        self.line(f"let start = workgroupUniformLoad(&{shared});")


def share_of(reader: Reader, total: str) -> str:
    """1 over a total; 1 where nothing was seen."""
    zero, one = reader.constant(0.0), reader.constant(1.0)
    return f"({one} / select({one}, {total}, {total} > {zero}))"


def _word(number: int) -> int:
    """A number as one of 32 bits without a sign: sums wrap around."""
    return number % (1 << 32)


def _halves(dtype: DType) -> str:
    """4 numbers of 16 bits in the words a and b."""
    if dtype is dtypes.f16:
        return "vec4<f32>(unpack2x16float(a), unpack2x16float(b))"
    parts = (f"{word} << 16u, {word} & 0xffff0000u" for word in "ab")
    return f"bitcast<vec4<f32>>(vec4<u32>({', '.join(parts)}))"
