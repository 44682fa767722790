"""The elements of a kernel's values as code: every node is computed where it is read.

``Elements.at(node, index)`` emits a node's element at an index, from the elements of its operands; where the index has lanes, that many elements at
once. A view is another index; a reduction or matrix product is a loop. What does not depend on the lane is computed once for all lanes, and
within one block of code an element is computed once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, Self

from ...graph.errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node
from ...lower.specs import sizes as _sizes
from ...ops.faults import can_fail
from ..ir.emit import lane_numbers, loop, minimum
from ..ir.faults import Faults
from ..ir.index import Index, IndexMath, Lanes, i64, identity, lane_count
from ..ir.philox import emit_bits
from ..ir.registers import Registers
from ..ir.types import ElementBuilder, Memory, Value
from .argmax import arg_reduce
from .packed import dequantize_blocks
from .sums import dot_general, fold, reduce

Indices = Sequence[Index]

UNROLLED = 4
"""Vectors of a row up to which there is no loop over them: in short rows it takes as long as what they compute."""


class Kernel(Protocol):
    """A kernel's function while it is being written, as far as its elements ask."""

    @property
    def builder(self) -> ElementBuilder:
        """Where the code goes."""

    @property
    def body(self) -> Graph:
        """What is computed."""

    @property
    def operands(self) -> Sequence[Value]:
        """The addresses of the body's inputs."""

    @property
    def faults(self) -> Faults:
        """Where faults are told of."""

    @property
    def width(self) -> int:
        """Lanes of f32 that a vector of the machine has."""


class Elements:
    """The elements of a body's nodes in the code that a builder is writing.

    Args:
        builder: where the code goes.
        body: what is computed.
        operands: the addresses of the body's inputs.
        mask: the lanes that exist, of an index that has lanes; None where all do.
        faults: where what a node cannot take is told of; without it, an index outside its axis counts as the nearest inside.
        width: lanes of f32 that a vector of the machine has.
    """

    def __init__(
        self,
        builder: ElementBuilder,
        body: Graph,
        operands: Sequence[Memory],
        mask: Value | None = None,
        faults: Faults | None = None,
        *,
        width: int,
    ) -> None:
        self.builder = builder
        self.indices = IndexMath(builder)
        self.registers = Registers(builder)
        self.width = width
        self.mask = mask
        self.faults = faults
        self.leaves = {leaf.id: (operands[int(name)], leaf) for name, leaf in body.inputs.items()}
        # An element, its mask and its index; GPU templates keep vectors.
        self._known: list[dict[tuple[object, ...], Any]] = [{}]
        self._given: dict[int, Value] = {}
        self._simple: dict[int, bool] = {}
        self._bounds: dict[object, tuple[Index, int, int]] = {}
        self._pieces: dict[object, tuple[Index, int, Index]] = {}

    @classmethod
    def of(
        cls,
        code: Kernel,
        mask: Value | None = None,
        *,
        body: Graph | None = None,
        operands: Sequence[Memory] | None = None,
    ) -> Self:
        """The elements in a kernel's code: of its body, or of a graph made of it that has operands of its own."""
        return cls(
            code.builder,
            code.body if body is None else body,
            code.operands if operands is None else operands,
            mask,
            code.faults,
            width=code.width,
        )

    def give(self, node: Node, value: Value) -> None:
        """Say what a node's element is, at whatever index it is asked for from now on."""
        self._given[node.id] = value

    def forget(self, node: Node) -> None:
        """Take back what ``give`` said."""
        self._given.pop(node.id, None)

    def know(self, node: Node, index: Indices, value: Value) -> None:
        """Say what a node's element at an index is, as long as the block of code goes on."""
        index = self.spread(node, index)
        mask = identity(self.mask) if self.mask is not None else None
        key = (node.id, mask, *[identity(number) for number in index])
        self._known[-1][key] = (value, self.mask, index)

    def bound(self, number: Index, low: int, high: int) -> None:
        """Say that a number is at least ``low`` and below ``high``."""
        # The number is kept: one that is gone could give its id to another.
        self._bounds[identity(number)] = number, low, high

    def bounds(self, number: Index) -> tuple[int, int] | None:
        """What is known of a number: the least that it is, and what it is below."""
        if isinstance(number, int):
            return number, number + 1
        found = self._bounds.get(identity(number))
        return found and found[1:]

    def piece(self, number: Index, position: int, within: Index) -> None:
        """Say that a number, along the axis of concatenations, is a place in their part at a position."""
        self._pieces[identity(number)] = number, position, within

    def piece_of(self, number: Index) -> tuple[int, Index] | None:
        """What ``piece`` said of a number."""
        found = self._pieces.get(identity(number))
        return found and found[1:]

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """A block of code whose values are not known after it."""
        self._known.append({})
        try:
            yield
        finally:
            self._known.pop()

    # ------------------------------------------------------------- loops

    def loop(
        self,
        start: Index,
        stop: Index,
        body: Callable[[Index, list[Value]], Sequence[Value]],
        carried: Sequence[Value] = (),
        step: int = 1,
    ) -> list[Value]:
        """``for i in range(start, stop, step)``; ``body`` maps the carried values to their next ones."""

        def scoped(index: Value, values: Sequence[Value]) -> Sequence[Value]:
            with self.scope():
                return body(index, list(values))

        return loop(self.builder, i64(start), i64(stop), step, scoped, carried)

    def loops(
        self,
        sizes: Sequence[int],
        body: Callable[[list[Index], list[Value]], Sequence[Value]],
        carried: Sequence[Value] = (),
    ) -> list[Value]:
        """Loops in loops, over all indices of a shape; an axis of size 1 is no loop."""

        def nest(axis: int, index: list[Index], values: list[Value]) -> Sequence[Value]:
            if axis == len(sizes):
                return body(index, values)
            if sizes[axis] == 1:
                return nest(axis + 1, [*index, 0], values)
            return self.loop(
                0, sizes[axis], lambda i, held: nest(axis + 1, [*index, i], held), values
            )

        return list(nest(0, [], list(carried)))

    def blocks(
        self,
        start: Index,
        stop: Index,
        count: int,
        body: Callable[[Lanes, list[Value]], Sequence[Value]],
        carried: Sequence[Value] = (),
        aligned: bool = True,
    ) -> list[Value]:
        """``range(start, stop)`` in vectors of ``count`` lanes, the last under a mask where it is not full.

        ``aligned`` says that ``start`` is a multiple of ``count``. Both ends may be known or not.
        """
        multiple = count if aligned else 1
        values = list(carried)
        ends: tuple[int, int] | tuple[None, None] = (None, None)
        if isinstance(start, int) and isinstance(stop, int):
            ends = start, stop
        length = self.indices.sub(stop, start)
        full = self.indices.mul(self.indices.div(length, count), count)
        middle = self.indices.add(start, full)
        known = isinstance(full, int) and isinstance(start, int)
        if not known or full:
            if isinstance(full, int) and isinstance(start, int) and full <= UNROLLED * count:
                for at in range(start, start + full, count):
                    with self.scope():
                        values = list(body(Lanes(at, count, 1, multiple, *ends), values))
            else:
                values = self.loop(
                    start,
                    middle,
                    lambda i, held: body(Lanes(i, count, 1, multiple, *ends), held),
                    values,
                    step=count,
                )
        if known and full == length:
            return values

        def rest(_: Index, held: list[Value]) -> Sequence[Value]:
            return self._masked_block(Lanes(middle, count, 1, multiple, *ends), stop, body, held)

        if known:
            with self.scope():
                return list(rest(0, values))
        return self.loop(middle, stop, rest, values, step=count)

    def _masked_block(
        self,
        lanes: Lanes,
        stop: Index,
        body: Callable[[Lanes, list[Value]], Sequence[Value]],
        held: list[Value],
    ) -> Sequence[Value]:
        """``body`` for the lanes before ``stop``."""
        before = self.mask
        # Fewer than there are lanes are left, which fits a number as short as an element.
        numbers = lane_numbers(range(lanes.count))
        left = self.builder.trunc(i64(self.indices.sub(stop, lanes.start)), numbers.type.element)
        left = self.indices.spread(left, lanes.count)
        self.mask = self.registers.both(before, self.builder.icmp_signed("<", numbers, left))
        try:
            return body(lanes, held)
        finally:
            self.mask = before

    def blocks_at_lines(
        self,
        start: Index,
        stop: Index,
        count: int,
        body: Callable[[Lanes, list[Value]], Sequence[Value]],
        offset: Index,
        line: int,
    ) -> None:
        """``blocks`` whose whole vectors lie at multiples of ``line``, where 0 lies at ``offset``; what comes before them is under a mask."""
        indices, b = self.indices, self.builder
        over = indices.mod(indices.add(offset, start), line)
        ahead = indices.mod(indices.sub(line, over), line)
        first = minimum(b, i64(indices.add(start, ahead)), i64(stop))

        def head(_: object, held: list[Value]) -> Sequence[Value]:
            return self._masked_block(Lanes(start, line), first, body, held)

        self.loop(start, first, head, step=line)
        self.blocks(first, stop, count, body, aligned=False)

    # ------------------------------------------------------------- elements

    def at(self, node: Node, index: Indices) -> Value:
        """The element of a node at an index, or those at its lanes."""
        if node.id in self._given:
            return self._given[node.id]
        mask = identity(self.mask) if self.mask is not None else None
        key = (node.id, mask, *[identity(number) for number in index])
        for known in reversed(self._known):
            if key in known:
                return known[key][0]
        value = self._element(node, list(index))
        # The index is kept with it: a number that is gone could give its id to another.
        self._known[-1][key] = (value, self.mask, list(index))
        return value

    def _element(self, node: Node, index: list[Index]) -> Value:
        if node.id in self.leaves:
            pointer, leaf = self.leaves[node.id]
            offset = self.indices.offset(index, _sizes(leaf))
            return self.registers.load(pointer, offset, leaf.dtype, self.mask)
        emit = _EMITTERS.get(node.op.name)
        if emit is not None:
            return emit(self, node, index)
        if "elementwise" in node.op.traits:
            operands = [self.at(item, self.spread(item, index)) for item in node.operands]
            return self.apply(node, operands)
        raise InternalError(f"there is no code for '{node.op.name}' in a kernel")

    def apply(self, node: Node, operands: Sequence[Value]) -> Value:
        """An element-wise node from the elements of its operands."""
        if can_fail(node):
            self.check_exponent(node, operands[1])
        return self.registers.apply(node, operands)

    def check_exponent(self, node: Node, exponent: Value) -> None:
        """Tell of a negative exponent of a power of integers, where it is not a number that is known."""
        given = node.operands[1]
        if self.faults is not None and given.op.name != "constant":
            index = self.registers.as_index(exponent, given.dtype)
            self.faults.check_exponent(self.builder, node, index, self.mask)

    def spread(self, node: Node, index: Indices) -> list[Index]:
        """The index of an operand that is broadcast: axes from the right, sizes of 1 stay at 0."""
        own = index[len(index) - node.rank :] if node.rank else []
        return [0 if size == 1 else i for i, size in zip(own, _sizes(node), strict=True)]

    def integer(self, node: Node, index: Indices) -> Value:
        """An element of integers as a number."""
        return self.registers.as_index(self.at(node, index), node.dtype)

    def place(self, node: Node, indices: Node, index: Indices, size: int) -> Index:
        """An element of a node's indices as a place on an axis: inside it, and told of where it was not."""
        found = self.integer(indices, index)
        if self.faults is not None:
            self.faults.check_index(self.builder, node, found, size, self.mask)
        return self.indices.clamp(found, 0, max(size - 1, 0))

    def random_bits(self, offset: Value, step: Value, seed: int, stream: int) -> Value:
        """The random bits of the elements at these places."""
        count = lane_count(offset)
        step = step if count is None else self.indices.spread(step, count)
        return emit_bits(self.builder, offset, step, seed, stream)

    def guarded(self, node: Node, index: Indices, inside: Value | None) -> Value:
        """The element where ``inside`` holds; lanes where it does not read nothing, so the index may be outside there."""
        before = self.mask
        self.mask = self.registers.both(before, inside)
        try:
            return self.at(node, index)
        finally:
            self.mask = before

    def is_simple(self, node: Node) -> bool:
        """Whether an index outside of a node is outside of what it reads too, so that a mask keeps it from memory."""
        if node.id not in self._simple:
            plain = "elementwise" in node.op.traits or node.op.name in _SIMPLE
            found = node.id in self.leaves or (
                plain and all(self.is_simple(operand) for operand in node.operands)
            )
            self._simple[node.id] = found and node.id not in self._given
        return self._simple[node.id]


_SIMPLE = ("broadcast_to", "constant", "flip", "iota", "slice", "stop_gradient", "transpose")


# --------------------------------------------------------------------------- what is not element-wise


def _constant(e: Elements, node: Node, index: list[Index]) -> Value:
    return e.registers.constant(node.attrs["values"].array.reshape(-1)[0], node.dtype)


def _iota(e: Elements, node: Node, index: list[Index]) -> Value:
    return e.registers.of_index(index[node.attrs["axis"]], node.dtype)


def _reshape(e: Elements, node: Node, index: list[Index]) -> Value:
    (x,) = node.operands
    return e.at(x, e.indices.reshaped(index, _sizes(node), _sizes(x)))


def _transpose(e: Elements, node: Node, index: list[Index]) -> Value:
    source: list[Index] = [0] * len(index)
    for position, axis in enumerate(node.attrs["perm"]):
        source[axis] = index[position]
    return e.at(node.operands[0], source)


def _broadcast(e: Elements, node: Node, index: list[Index]) -> Value:
    (x,) = node.operands
    return e.at(x, e.spread(x, index))


def _slice(e: Elements, node: Node, index: list[Index]) -> Value:
    p = e.indices
    steps = node.attrs["steps"] or (1,) * len(index)
    moved = [
        p.add(p.mul(i, step), int(start))
        for i, start, step in zip(index, node.attrs["starts"], steps, strict=True)
    ]
    return e.at(node.operands[0], moved)


def _flip(e: Elements, node: Node, index: list[Index]) -> Value:
    sizes = _sizes(node)
    axes = node.attrs["axes"]
    moved = [e.indices.sub(sizes[k] - 1, i) if k in axes else i for k, i in enumerate(index)]
    return e.at(node.operands[0], moved)


def _windows(e: Elements, node: Node, index: list[Index]) -> Value:
    p, (x,) = e.indices, node.operands
    count = len(node.attrs["window"])
    lead = x.rank - count
    inner = zip(
        index[lead : lead + count],
        index[lead + count :],
        node.attrs["stride"],
        node.attrs["dilation"],
        strict=True,
    )
    moved = [p.add(p.mul(i, stride), p.mul(k, dilation)) for i, k, stride, dilation in inner]
    return e.at(x, [*index[:lead], *moved])


def _same(e: Elements, node: Node, index: list[Index]) -> Value:
    return e.at(node.operands[0], index)


def _pad(e: Elements, node: Node, index: list[Index]) -> Value:
    (x,) = node.operands
    filling = e.registers.constant(node.attrs["value"], node.dtype)
    if not all(_sizes(x)):
        return filling
    inside: Value | None = None
    source = []
    gaps = node.attrs["interior"] or (0,) * len(index)
    bounds = zip(index, node.attrs["padding"], gaps, _sizes(x), _sizes(node), strict=True)
    for i, (low, _), gap, size, whole in bounds:
        moved = e.indices.sub(i, int(low))
        if size == whole and not low and not gap:
            source.append(moved)
            continue
        if isinstance(moved, Lanes) and not gap and moved.is_outside(size):
            return filling
        if isinstance(moved, Lanes) and not gap and moved.is_inside(size):
            source.append(moved)
            continue
        last = (size - 1) * (gap + 1)
        if isinstance(moved, Lanes) and moved.stride == 1 and not gap and e.is_simple(x):
            hits = e.registers.both(
                e.indices.compare(">=", moved, 0), e.indices.compare("<=", moved, last)
            )
            source.append(moved)
        else:
            position = e.indices.clamp(moved, 0, last)
            hits = e.indices.compare("==", moved, position)
            if gap:
                rest = e.indices.mod(position, gap + 1)
                hits = e.registers.both(hits, e.indices.compare("==", rest, 0))
            source.append(e.indices.div(position, gap + 1))
        inside = e.registers.both(inside, hits)
    if inside is None:
        return e.at(x, source)
    masked = inside if lane_count(inside) is not None else None
    return e.registers.choose(inside, e.guarded(x, source, masked), filling)


def _concat(e: Elements, node: Node, index: list[Index]) -> Value:
    axis, start = node.attrs["axis"], 0
    known = e.piece_of(index[axis])
    if known is not None:
        return e.at(node.operands[known[0]], [*index[:axis], known[1], *index[axis + 1 :]])
    found: Value | None = None
    low, high = e.bounds(index[axis]) or (0, _sizes(node)[axis])
    for part in node.operands:
        size = _sizes(part)[axis]
        if high <= start or start + size <= low:
            start += size
            continue
        moved = list(index)
        position = e.indices.sub(index[axis], start)
        start += size
        if start - size <= low and high <= start:
            moved[axis] = position
            return e.at(part, moved)
        if isinstance(position, Lanes) and position.is_outside(size):
            continue
        if isinstance(position, Lanes) and position.is_inside(size):
            moved[axis] = position
            return e.at(part, moved)
        if isinstance(position, Lanes) and position.stride == 1 and e.is_simple(part):
            moved[axis] = position
            inside = e.registers.both(
                e.indices.compare(">=", position, 0), e.indices.compare("<", position, size)
            )
            value = e.guarded(part, moved, inside)
        else:
            moved[axis] = e.indices.clamp(position, 0, size - 1)
            value = e.at(part, moved)
        if found is None:
            found = value
        else:
            found = e.registers.choose(e.indices.less(index[axis], start - size), found, value)
    if found is None:
        raise InternalError("a concatenation of nothing has no elements")
    return found


def _gather(e: Elements, node: Node, index: list[Index]) -> Value:
    table, indices = node.operands
    axis = node.attrs["axis"]
    place = e.place(node, indices, index[axis : axis + indices.rank], _sizes(table)[axis])
    return e.at(table, [*index[:axis], place, *index[axis + indices.rank :]])


def _take_along_axis(e: Elements, node: Node, index: list[Index]) -> Value:
    x, indices = node.operands
    axis = node.attrs["axis"]
    moved = e.spread(x, index)
    moved[axis] = e.place(node, indices, e.spread(indices, index), _sizes(x)[axis])
    return e.at(x, moved)


def _dynamic_slice(e: Elements, node: Node, index: list[Index]) -> Value:
    x, starts = node.operands
    moved = []
    for axis, (i, size, whole) in enumerate(zip(index, _sizes(node), _sizes(x), strict=True)):
        start = e.indices.clamp(e.integer(starts, [axis]), 0, whole - size)
        moved.append(e.indices.add(start, i))
    return e.at(x, moved)


def _random_bits(e: Elements, node: Node, index: list[Index]) -> Value:
    step = e.indices.plain(0) if not node.inputs else e.integer(node.operands[0], [])
    offset = e.indices.plain(e.indices.offset(index, _sizes(node)))
    return e.random_bits(offset, step, node.attrs["seed"], node.attrs["stream"])


def _dynamic_update_slice(e: Elements, node: Node, index: list[Index]) -> Value:
    x, update, starts = node.operands
    if not all(_sizes(update)):
        return e.at(x, index)
    inside: Value | None = None
    source = []
    for axis, (i, size, whole) in enumerate(zip(index, _sizes(update), _sizes(x), strict=True)):
        start = e.indices.clamp(e.integer(starts, [axis]), 0, whole - size)
        moved = e.indices.sub(i, start)
        position = e.indices.clamp(moved, 0, size - 1)
        inside = e.registers.both(inside, e.indices.compare("==", moved, position))
        source.append(position)
    new, old = e.at(update, source), e.at(x, index)
    return new if inside is None else e.registers.choose(inside, new, old)


Emitter = Callable[[Elements, Node, list[Index]], Value]

_EMITTERS: dict[str, Emitter] = {
    "argmax": arg_reduce,
    "argmin": arg_reduce,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "constant": _constant,
    "dequantize_blocks": dequantize_blocks,
    "dot_general": dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "flip": _flip,
    "fold": fold,
    "gather": _gather,
    "iota": _iota,
    "pad": _pad,
    "random_bits": _random_bits,
    "recompute_barrier": _same,
    "reshape": _reshape,
    "slice": _slice,
    "stop_gradient": _same,
    "take_along_axis": _take_along_axis,
    "transpose": _transpose,
    "windows": _windows,
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all"), reduce),
}


def can_emit(body: Graph, besides: Collection[str] = ()) -> bool:
    """Whether there is code for every node of a body, but those of the ops ``besides``."""
    return all(
        node.op.name in _EMITTERS
        or node.op.rules.emit is not None
        or node.name is not None
        or node.op.name in besides
        for node in body.nodes
    )
