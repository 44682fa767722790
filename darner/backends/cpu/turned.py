"""Maps that read an operand across: transposed copies, and what is computed of them element by element.

Where neighbours of the result are not neighbours of an operand, but those of another axis are, square blocks of the operand are read along that axis and
turned in registers. Blocks are gone through along the operand's lines, a strip at a time. What the map is made of is
emitted by ``Elements``, for a row of a block at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.strided import strided
from .elements import Elements
from .every_few import MOST_APART
from .gemm_ir import minimum
from .gemm_pack import transpose
from .jit import Machine
from .maps import SMALL
from .places import Lanes, Number, Places, as_value
from .registers import Registers
from .streaming import either
from .template import Code, Scratch, Template, sizes

TILE = 64
"""Blocks that are read one after the other along the operand's neighbours: memory is quickest at that."""
STRIPS = 8
"""Strips that give each of some threads rows of their own."""
LEAST = 4
"""Elements along both axes of a block that make turning it cheaper than to read them one by one."""
FEW = 2
"""Operations of a map that are written out for every row of a block."""
PAST = 16 << 20
"""Bytes to move from which on results go past the cache: sooner than elsewhere, as few of a line's elements are written at a time."""
_SAME = ("stop_gradient", "recompute_barrier")


@dataclass(frozen=True, eq=False)
class View:
    """A value that a map reads: where its elements lie, along each of the map's axes.

    Attributes:
        node: in the body.
        leaf: the input that it views.
        offset: of its first element.
        strides: along the map's axes.
    """

    node: Node
    leaf: Node
    offset: int
    strides: tuple[int, ...]

    @property
    def stored(self) -> DType:
        """The element type as it is moved."""
        return dtypes.u8 if self.leaf.dtype.kind == "bool" else self.leaf.dtype


@dataclass(frozen=True)
class Turning:
    """How a map that reads across is computed.

    Attributes:
        sizes: of the axes, merged where every value has them side by side; the last is that of the results' neighbours.
        axis: the axis along which the turned operands have their neighbours.
        turned: what is read along that axis.
        plain: what is read along the last one.
    """

    sizes: tuple[int, ...]
    axis: int
    turned: tuple[View, ...]
    plain: tuple[View, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that are no side of a block."""
        return tuple(axis for axis in range(len(self.sizes) - 1) if axis != self.axis)

    def lanes(self, machine: Machine, outputs: Sequence[Node]) -> int:
        """The side of a block."""
        widest = max(node.dtype.itemsize for node in [*outputs, *(v.leaf for v in self.turned)])
        return machine.vector_bytes // max(4, widest)


@lru_cache(maxsize=4096)
def turning(spec: Spec) -> Turning | None:
    """The axes and operands of a map that reads across, or None where it does not, or not only element by element."""
    outputs = spec.body.outputs
    shape = sizes(outputs[0])
    if spec.kind != "map" or prod(shape) * len(spec.body.nodes) <= SMALL:
        return None
    if any(sizes(output) != shape for output in outputs):
        return None
    views = _views(outputs, shape)
    if not views:
        return None
    own = [axis for axis, size in enumerate(shape) if size != 1]
    merged = [(shape[own[0]], [view.strides[own[0]] for view in views])]
    for place in own[1:]:
        steps, before = [view.strides[place] for view in views], merged[-1]
        if before[1] == [step * shape[place] for step in steps]:
            merged[-1] = before[0] * shape[place], steps
        else:
            merged.append((shape[place], steps))
    lengths = tuple(size for size, _ in merged)
    views = [
        View(view.node, view.leaf, view.offset, tuple(steps[i] for _, steps in merged))
        for i, view in enumerate(views)
    ]
    turned = tuple(view for view in views if view.strides[-1] not in (0, 1, -1))
    axes = {_near(view, lengths) for view in turned}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None or lengths[-1] < LEAST:
        return None
    return Turning(lengths, axis, turned, tuple(view for view in views if view not in turned))


def _near(view: View, lengths: Sequence[int]) -> int | None:
    """The axis along which a view's elements lie nearest to each other, where they are near enough to be read together."""
    found = [
        (stride, axis)
        for axis, stride in enumerate(view.strides[:-1])
        if 1 <= stride <= MOST_APART and stride < abs(view.strides[-1]) and lengths[axis] >= LEAST
    ]
    return min(found)[1] if found else None


def _views(outputs: Sequence[Node], shape: Sequence[int]) -> list[View] | None:
    """What a map reads, where all else in it is element-wise."""
    found: dict[int, View] = {}
    stack, seen = list(outputs), set()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.op.name == "constant":
            if node.size != 1:
                return None
        elif "elementwise" in node.op.traits or node.op.name in _SAME:
            stack += node.operands
        else:
            view = strided(node)
            if view is None or view.base.name is None or view.base.dtype.kind == "complex":
                return None
            missing = len(shape) - node.rank
            steps = [
                0 if size == 1 else stride
                for size, stride in zip(sizes(node), view.strides, strict=True)
            ]
            found[node.id] = View(node, view.base, view.offset, (*[0] * missing, *steps))
    return list(found.values())


def _tile(outer: int, blocks: int) -> int:
    """Blocks of a strip: fewer where threads would share rows of the result, whose lines each would take from the other.

    >>> [_tile(1, 55), _tile(1, 1000), _tile(40, 55), _tile(3, 5)]
    [7, 64, 64, 4]
    """
    wanted = -(-STRIPS // outer)
    return TILE if wanted == 1 else max(4, min(TILE, -(-blocks // wanted)))


class _Turned:
    """The code of one kernel."""

    def __init__(self, code: Code, plan: Turning, past: bool) -> None:
        self.code = code
        self.plan = plan
        self.past = past
        self.elements = Elements(
            code.builder, code.body, code.operands, fault=code.fault, width=code.width
        )
        self.places: Places = self.elements.places
        self.registers: Registers = self.elements.registers
        self.lanes = plan.lanes(code.machine, code.body.outputs)
        operations = sum("elementwise" in node.op.traits for node in code.body.nodes)
        plain = all(view.stored is view.leaf.dtype for view in plan.turned)
        self.unrolled = plain and operations <= FEW

    def emit(self) -> None:
        """Strips of blocks, shared out among the threads."""
        plan, places, e = self.plan, self.places, self.elements
        across, along = plan.sizes[plan.axis], plan.sizes[-1]
        outer = [plan.sizes[axis] for axis in plan.others]
        strip = self.lanes * _tile(prod(outer), -(-across // self.lanes))
        counts = [*outer, -(-across // strip), -(-along // self.lanes)]

        def unit(number: Number, _: Any) -> Sequence[Any]:
            *others, row, column = places.split(number, counts)
            rows, columns = places.mul(row, strip), places.mul(column, self.lanes)
            index: list[Number] = [0] * len(plan.sizes)
            for axis, at in zip(plan.others, others, strict=True):
                index[axis] = at

            def block(first: Any, _: Any) -> Sequence[Any]:
                self.block(index, first, columns)
                return []

            stop = places.clamp(places.add(rows, strip), 0, across)
            return e.loop(rows, stop, block, (), self.lanes)

        e.loop(*self.code.share(prod(counts)), unit)

    def block(self, index: list[Number], row: Any, column: Any) -> None:
        """A block that begins at a row (along the turned axis) and a column: whole, or what there is of it."""
        b, plan, places = self.code.builder, self.plan, self.places
        across, along = plan.sizes[plan.axis], plan.sizes[-1]
        at = list(index)
        at[plan.axis], at[-1] = row, column
        if across % self.lanes == 0 and along % self.lanes == 0:
            self.whole(at)
            return
        fits = b.and_(
            places.compare("<=", row, across - self.lanes),
            places.compare("<=", column, along - self.lanes),
        )
        with b.if_else(fits) as (full, partial):
            with full, self.elements.scope():
                self.whole(at)
            with partial, self.elements.scope():
                self.partial(at)

    def offset(self, view: View, index: Sequence[Number]) -> Number:
        """Where a view's element lies."""
        total: Number = view.offset
        for number, stride in zip(index, view.strides, strict=True):
            total = self.places.add(total, self.places.mul(number, stride))
        return total

    def read(
        self, view: View, index: list[Number], mask: Any = None, count: Any = None
    ) -> list[Any]:
        """A block of an operand, turned: a vector for each of its rows; ``count`` of its lines are there."""
        first = self.offset(view, index)
        pointer = self.code.operand_of(view.leaf)
        lines = []
        for lane in range(self.lanes):
            # Another line instead of one that is not: where memory ends, even a load of no lane takes a microsecond.
            line: Number = lane
            if count is not None:
                last = as_value(self.places.sub(count, 1))
                line = minimum(self.code.builder, as_value(lane), last)
            start = self.places.add(first, self.places.mul(line, view.strides[-1]))
            lanes = Lanes(start, self.lanes, view.strides[self.plan.axis])
            lines.append(self.registers.load(pointer, lanes, view.stored, mask))
        return transpose(self.code.builder, lines)

    def whole(self, index: list[Number]) -> None:
        """A block with all its rows and columns."""
        blocks = [self.read(view, index) for view in self.plan.turned]
        if self.unrolled:
            for number in range(self.lanes):
                with self.elements.scope():
                    self.row(index, number, [block[number] for block in blocks])
            return
        self.through_memory(index, blocks, self.lanes)

    def partial(self, index: list[Number]) -> None:
        """A block at an edge."""
        places, plan = self.places, self.plan
        rows = places.sub(plan.sizes[plan.axis], index[plan.axis])
        columns = places.sub(plan.sizes[-1], index[-1])
        there = places.less(Lanes(0, self.lanes), rows)
        blocks = [self.read(view, index, there, columns) for view in plan.turned]
        self.elements.mask = places.less(Lanes(0, self.lanes), columns)
        enough = places.less(rows, self.lanes)
        count = self.registers.choose(enough, rows, as_value(self.lanes))
        self.through_memory(index, blocks, count)
        self.elements.mask = None

    def through_memory(self, index: list[Number], blocks: list[list[Any]], rows: Number) -> None:
        """Write turned blocks down, and go through their rows: the map is emitted once."""
        views = self.plan.turned
        for number, (view, block) in enumerate(zip(views, blocks, strict=True)):
            for i, value in enumerate(block):
                place = Lanes(self.slot(number, view) + i * self.lanes, self.lanes)
                self.registers.store(value, self.code.own, place, view.stored)

        def one(row: Any, _: Any) -> Sequence[Any]:
            values = []
            for number, view in enumerate(views):
                first = self.places.add(self.places.mul(row, self.lanes), self.slot(number, view))
                lanes = Lanes(first, self.lanes)
                values.append(self.registers.load(self.code.own, lanes, view.leaf.dtype))
            self.row(index, row, values)
            return []

        self.elements.loop(0, rows, one)

    def slot(self, number: int, view: View) -> int:
        """Where the turned block of an operand begins in the scratch memory, in its elements."""
        return number * self.lanes * self.lanes * (8 // view.stored.itemsize)

    def row(self, index: list[Number], number: Number, values: Sequence[Any]) -> None:
        """The results of one row of a block."""
        plan, e, places = self.plan, self.elements, self.places
        at = list(index)
        at[plan.axis] = places.add(index[plan.axis], number)
        for view, value in zip(plan.turned, values, strict=True):
            e.give(view.node, value)
        for view in plan.plain:
            first = self.offset(view, at)
            place = Lanes(first, self.lanes, view.strides[-1]) if view.strides[-1] else first
            pointer = self.code.operand_of(view.leaf)
            mask = e.mask if view.strides[-1] else None
            e.give(view.node, self.registers.load(pointer, place, view.leaf.dtype, mask))
        found = [e.at(node, [0] * node.rank) for node in self.code.body.outputs]
        offset = places.offset(at, plan.sizes)
        for node, pointer, value in zip(
            self.code.body.outputs, self.code.results, found, strict=True
        ):
            lanes = Lanes(offset, self.lanes)
            self.registers.store(value, pointer, lanes, node.dtype, e.mask, past=self.past)


def _fits(spec: Spec) -> bool:
    return turning(spec) is not None


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    plan = turning(spec)
    if plan is None:
        return Scratch()
    lanes = plan.lanes(machine, spec.body.outputs)
    return Scratch(own=len(plan.turned) * lanes * lanes * 8)


def _emit(code: Code) -> None:
    plan = turning(code.spec)
    if plan is None:
        return
    outputs = code.body.outputs
    whole = plan.sizes[-1] % plan.lanes(code.machine, outputs) == 0
    nbytes = prod(plan.sizes) * sum(node.dtype.itemsize for node in outputs) if whole else 0
    either(code, nbytes, code.results, lambda past: _Turned(code, plan, past).emit(), PAST)


TURNED = Template("turned", _fits, _emit, _scratch)
