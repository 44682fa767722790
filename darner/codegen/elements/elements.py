"""Elements of a kernel's values, as code: every node is computed where it is read.

``Elements.at(node, index)`` emits what a node's element at an index is, from the elements of its operands; where the index has lanes, that many elements at
once. Views are other indices, a reduction or a product of matrices is a loop. What does not depend on the lane is computed once for all lanes, and
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
from ..ir.index import Lanes, Number, Places, as_value, identity, lane_count
from ..ir.math import ROWS
from ..ir.philox import emit_bits
from ..ir.registers import Registers
from .argmax import arg_reduce
from .sums import dot_general, fold, reduce

Index = Sequence[Number]

UNROLLED = 4
"""Vectors of a row up to which there is no loop over them: in short rows it takes as long as what they compute."""


class Kernel(Protocol):
    """A kernel's function while it is being written, as far as its elements ask."""

    @property
    def builder(self) -> Any:
        """Where the code goes."""

    @property
    def body(self) -> Graph:
        """What is computed."""

    @property
    def operands(self) -> Sequence[Any]:
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
        builder: Any,
        body: Graph,
        operands: Sequence[Any],
        mask: Any = None,
        faults: Faults | None = None,
        *,
        width: int,
    ) -> None:
        self.builder = builder
        self.places = Places(builder)
        self.registers = Registers(builder)
        self.width = width
        self.mask = mask
        self.faults = faults
        self.leaves = {leaf.id: (operands[int(name)], leaf) for name, leaf in body.inputs.items()}
        self._known: list[dict[Any, Any]] = [{}]
        self._given: dict[int, Any] = {}
        self._simple: dict[int, bool] = {}
        self._bounds: dict[Any, tuple[Number, int, int]] = {}
        self._pieces: dict[Any, tuple[Number, int, Number]] = {}

    @classmethod
    def of(
        cls,
        code: Kernel,
        mask: Any = None,
        *,
        body: Graph | None = None,
        operands: Sequence[Any] | None = None,
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

    def give(self, node: Node, value: Any) -> None:
        """Say what a node's element is, at whatever index it is asked for from now on."""
        self._given[node.id] = value

    def forget(self, node: Node) -> None:
        """Take back what ``give`` said."""
        self._given.pop(node.id, None)

    def bound(self, number: Number, low: int, high: int) -> None:
        """Say that a number is at least ``low`` and below ``high``."""
        # The number is kept: one that is gone could give its id to another.
        self._bounds[identity(number)] = number, low, high

    def bounds(self, number: Number) -> tuple[int, int] | None:
        """What is known of a number: the least that it is, and what it is below."""
        if isinstance(number, int):
            return number, number + 1
        found = self._bounds.get(identity(number))
        return found and found[1:]

    def piece(self, number: Number, position: int, place: Number) -> None:
        """Say that a number, along the axis of concatenations, is a place in their part at a position."""
        self._pieces[identity(number)] = number, position, place

    def piece_of(self, number: Number) -> tuple[int, Number] | None:
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
        start: Number,
        stop: Number,
        inside: Callable[[Any, list[Any]], Sequence[Any]],
        carried: Sequence[Any] = (),
        step: int = 1,
    ) -> list[Any]:
        """``for i in range(start, stop, step)``; ``inside`` maps the carried values to their next ones."""

        def scoped(index: Any, values: Sequence[Any]) -> Sequence[Any]:
            with self.scope():
                return inside(index, list(values))

        return loop(self.builder, as_value(start), as_value(stop), step, scoped, carried)

    def loops(
        self,
        sizes: Sequence[int],
        inside: Callable[[list[Any], list[Any]], Sequence[Any]],
        carried: Sequence[Any] = (),
    ) -> list[Any]:
        """Loops in loops, over all indices of a shape; an axis of size 1 is no loop."""

        def nest(axis: int, index: list[Any], values: list[Any]) -> Sequence[Any]:
            if axis == len(sizes):
                return inside(index, values)
            if sizes[axis] == 1:
                return nest(axis + 1, [*index, 0], values)
            return self.loop(
                0, sizes[axis], lambda i, held: nest(axis + 1, [*index, i], held), values
            )

        return list(nest(0, [], list(carried)))

    def blocks(
        self,
        start: Number,
        stop: Number,
        count: int,
        inside: Callable[[Lanes, list[Any]], Sequence[Any]],
        carried: Sequence[Any] = (),
        aligned: bool = True,
    ) -> list[Any]:
        """``range(start, stop)`` in vectors of ``count`` lanes, the last under a mask where it is not full.

        ``aligned`` says that ``start`` is a multiple of ``count``. Both ends may be known or not.
        """
        multiple = count if aligned else 1
        values = list(carried)
        known = isinstance(start, int) and isinstance(stop, int)
        ends = (start, stop) if known else (None, None)
        length = self.places.sub(stop, start)
        full = self.places.mul(self.places.div(length, count), count)
        middle = self.places.add(start, full)
        if not known or full:
            if known and full <= UNROLLED * count:
                for at in range(start, start + full, count):
                    with self.scope():
                        values = list(inside(Lanes(at, count, 1, multiple, *ends), values))
            else:
                values = self.loop(
                    start,
                    middle,
                    lambda i, held: inside(Lanes(i, count, 1, multiple, *ends), held),
                    values,
                    step=count,
                )
        if known and full == length:
            return values

        def rest(_: Any, held: list[Any]) -> Sequence[Any]:
            return self._some(Lanes(middle, count, 1, multiple, *ends), stop, inside, held)

        if known:
            with self.scope():
                return list(rest(0, values))
        return self.loop(middle, stop, rest, values, step=count)

    def _some(
        self,
        lanes: Lanes,
        stop: Number,
        inside: Callable[[Lanes, list[Any]], Sequence[Any]],
        held: list[Any],
    ) -> Sequence[Any]:
        """``inside`` for the lanes before ``stop``."""
        before = self.mask
        # Fewer than there are lanes are left, which fits a number as short as an element.
        numbers = lane_numbers(range(lanes.count))
        left = self.builder.trunc(
            as_value(self.places.sub(stop, lanes.start)), numbers.type.element
        )
        left = self.places.spread(left, lanes.count)
        self.mask = self.registers.both(before, self.builder.icmp_signed("<", numbers, left))
        try:
            return inside(lanes, held)
        finally:
            self.mask = before

    def blocks_at_lines(
        self,
        start: Number,
        stop: Number,
        count: int,
        inside: Callable[[Lanes, list[Any]], Sequence[Any]],
        offset: Number,
        line: int,
    ) -> None:
        """``blocks`` whose whole vectors lie at multiples of ``line``, where 0 lies at ``offset``; what comes before them is under a mask."""
        places, b = self.places, self.builder
        over = places.mod(places.add(offset, start), line)
        ahead = places.mod(places.sub(line, over), line)
        first = minimum(b, as_value(places.add(start, ahead)), as_value(stop))

        def head(_: Any, held: list[Any]) -> Sequence[Any]:
            return self._some(Lanes(start, line), first, inside, held)

        self.loop(start, first, head, step=line)
        self.blocks(first, stop, count, inside, aligned=False)

    # ------------------------------------------------------------- elements

    def at(self, node: Node, index: Index) -> Any:
        """The element of a node at an index, or those at its lanes."""
        if node.id in self._given:
            return self._given[node.id]
        key = (node.id, identity(self.mask) if self.mask is not None else None)
        key = (*key, *[identity(number) for number in index])
        for known in reversed(self._known):
            if key in known:
                return known[key][0]
        value = self._element(node, list(index))
        # The index is kept with it: a number that is gone could give its id to another.
        self._known[-1][key] = (value, self.mask, list(index))
        return value

    def _element(self, node: Node, index: list[Number]) -> Any:
        if node.id in self.leaves:
            pointer, leaf = self.leaves[node.id]
            offset = self.places.offset(index, _sizes(leaf))
            return self.registers.load(pointer, offset, leaf.dtype, self.mask)
        emit = _EMITTERS.get(node.op.name)
        if emit is not None:
            return emit(self, node, index)
        if "elementwise" in node.op.traits:
            operands = [self.at(item, self.spread(item, index)) for item in node.operands]
            return self.apply(node, operands)
        raise InternalError(f"there is no code for '{node.op.name}' in a kernel")

    def apply(self, node: Node, operands: Sequence[Any]) -> Any:
        """An element-wise node from the elements of its operands."""
        if can_fail(node):
            self.check_exponent(node, operands[1])
        return self.registers.apply(node, operands)

    def check_exponent(self, node: Node, exponent: Any) -> None:
        """Tell of a negative exponent of a power of integers, where it is not a number that is known."""
        given = node.operands[1]
        if self.faults is not None and given.op.name != "constant":
            index = self.registers.as_index(exponent, given.dtype)
            self.faults.check_exponent(self.builder, node, index, self.mask)

    def spread(self, node: Node, index: Index) -> list[Number]:
        """The index of an operand that is broadcast: axes from the right, sizes of 1 stay at 0."""
        own = index[len(index) - node.rank :] if node.rank else []
        return [0 if size == 1 else i for i, size in zip(own, _sizes(node), strict=True)]

    def integer(self, node: Node, index: Index) -> Any:
        """An element of integers as a number."""
        return self.registers.as_index(self.at(node, index), node.dtype)

    def place(self, node: Node, indices: Node, index: Index, size: int) -> Any:
        """An element of a node's indices as a place on an axis: inside it, and told of where it was not."""
        found = self.integer(indices, index)
        if self.faults is not None:
            self.faults.check_index(self.builder, node, found, size, self.mask)
        return self.places.clamp(found, 0, max(size - 1, 0))

    def random_bits(self, offset: Any, step: Any, seed: int, stream: int) -> Any:
        """The random bits of the elements at these places."""
        count = lane_count(offset)
        step = step if count is None else self.places.spread(step, count)
        return emit_bits(self.builder, offset, step, seed, stream)

    def guarded(self, node: Node, index: Index, inside: Any) -> Any:
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


def _constant(e: Elements, node: Node, index: list[Number]) -> Any:
    return e.registers.constant(node.attrs["values"].array.reshape(-1)[0], node.dtype)


def _iota(e: Elements, node: Node, index: list[Number]) -> Any:
    return e.registers.of_index(index[node.attrs["axis"]], node.dtype)


def _reshape(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    return e.at(x, e.places.reshaped(index, _sizes(node), _sizes(x)))


def _transpose(e: Elements, node: Node, index: list[Number]) -> Any:
    source: list[Number] = [0] * len(index)
    for place, axis in enumerate(node.attrs["perm"]):
        source[axis] = index[place]
    return e.at(node.operands[0], source)


def _broadcast(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    return e.at(x, e.spread(x, index))


def _slice(e: Elements, node: Node, index: list[Number]) -> Any:
    p = e.places
    steps = node.attrs["steps"] or (1,) * len(index)
    moved = [
        p.add(p.mul(i, step), int(start))
        for i, start, step in zip(index, node.attrs["starts"], steps, strict=True)
    ]
    return e.at(node.operands[0], moved)


def _flip(e: Elements, node: Node, index: list[Number]) -> Any:
    sizes = _sizes(node)
    axes = node.attrs["axes"]
    moved = [e.places.sub(sizes[k] - 1, i) if k in axes else i for k, i in enumerate(index)]
    return e.at(node.operands[0], moved)


def _windows(e: Elements, node: Node, index: list[Number]) -> Any:
    p, (x,) = e.places, node.operands
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


def _same(e: Elements, node: Node, index: list[Number]) -> Any:
    return e.at(node.operands[0], index)


def _pad(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    filling = e.registers.constant(node.attrs["value"], node.dtype)
    if not all(_sizes(x)):
        return filling
    inside: Any = None
    source = []
    gaps = node.attrs["interior"] or (0,) * len(index)
    bounds = zip(index, node.attrs["padding"], gaps, _sizes(x), _sizes(node), strict=True)
    for i, (low, _), gap, size, whole in bounds:
        moved = e.places.sub(i, int(low))
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
                e.places.compare(">=", moved, 0), e.places.compare("<=", moved, last)
            )
            source.append(moved)
        else:
            place = e.places.clamp(moved, 0, last)
            hits = e.places.compare("==", moved, place)
            if gap:
                rest = e.places.mod(place, gap + 1)
                hits = e.registers.both(hits, e.places.compare("==", rest, 0))
            source.append(e.places.div(place, gap + 1))
        inside = e.registers.both(inside, hits)
    if inside is None:
        return e.at(x, source)
    masked = inside if lane_count(inside) is not None else None
    return e.registers.choose(inside, e.guarded(x, source, masked), filling)


def _concat(e: Elements, node: Node, index: list[Number]) -> Any:
    axis, start = node.attrs["axis"], 0
    known = e.piece_of(index[axis])
    if known is not None:
        return e.at(node.operands[known[0]], [*index[:axis], known[1], *index[axis + 1 :]])
    found: Any = None
    low, high = e.bounds(index[axis]) or (0, _sizes(node)[axis])
    for part in node.operands:
        size = _sizes(part)[axis]
        if high <= start or start + size <= low:
            start += size
            continue
        moved = list(index)
        place = e.places.sub(index[axis], start)
        start += size
        if start - size <= low and high <= start:
            moved[axis] = place
            return e.at(part, moved)
        if isinstance(place, Lanes) and place.is_outside(size):
            continue
        if isinstance(place, Lanes) and place.is_inside(size):
            moved[axis] = place
            return e.at(part, moved)
        if isinstance(place, Lanes) and place.stride == 1 and e.is_simple(part):
            moved[axis] = place
            inside = e.registers.both(
                e.places.compare(">=", place, 0), e.places.compare("<", place, size)
            )
            value = e.guarded(part, moved, inside)
        else:
            moved[axis] = e.places.clamp(place, 0, size - 1)
            value = e.at(part, moved)
        if found is None:
            found = value
        else:
            found = e.registers.choose(e.places.less(index[axis], start - size), found, value)
    return found


def _gather(e: Elements, node: Node, index: list[Number]) -> Any:
    table, indices = node.operands
    axis = node.attrs["axis"]
    place = e.place(node, indices, index[axis : axis + indices.rank], _sizes(table)[axis])
    return e.at(table, [*index[:axis], place, *index[axis + indices.rank :]])


def _take_along_axis(e: Elements, node: Node, index: list[Number]) -> Any:
    x, indices = node.operands
    axis = node.attrs["axis"]
    moved = e.spread(x, index)
    moved[axis] = e.place(node, indices, e.spread(indices, index), _sizes(x)[axis])
    return e.at(x, moved)


def _dynamic_slice(e: Elements, node: Node, index: list[Number]) -> Any:
    x, starts = node.operands
    moved = []
    for axis, (i, size, whole) in enumerate(zip(index, _sizes(node), _sizes(x), strict=True)):
        start = e.places.clamp(e.integer(starts, [axis]), 0, whole - size)
        moved.append(e.places.add(start, i))
    return e.at(x, moved)


def _random_bits(e: Elements, node: Node, index: list[Number]) -> Any:
    step = e.places.plain(0) if not node.inputs else e.integer(node.operands[0], [])
    offset = e.places.plain(e.places.offset(index, _sizes(node)))
    return e.random_bits(offset, step, node.attrs["seed"], node.attrs["stream"])


def _dynamic_update_slice(e: Elements, node: Node, index: list[Number]) -> Any:
    x, update, starts = node.operands
    if not all(_sizes(update)):
        return e.at(x, index)
    inside: Any = None
    source = []
    for axis, (i, size, whole) in enumerate(zip(index, _sizes(update), _sizes(x), strict=True)):
        start = e.places.clamp(e.integer(starts, [axis]), 0, whole - size)
        moved = e.places.sub(i, start)
        place = e.places.clamp(moved, 0, size - 1)
        inside = e.registers.both(inside, e.places.compare("==", moved, place))
        source.append(place)
    new, old = e.at(update, source), e.at(x, index)
    return new if inside is None else e.registers.choose(inside, new, old)


Emitter = Callable[[Elements, Node, list[Number]], Any]

_EMITTERS: dict[str, Emitter] = {
    "argmax": arg_reduce,
    "argmin": arg_reduce,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "constant": _constant,
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
        or node.op.name in ROWS
        or node.name is not None
        or node.op.name in besides
        for node in body.nodes
    )
