"""Element-wise kernels that read an operand across: transposed copies, and what is computed from them.

Where neighbours of the result are neighbours of an operand along another axis, blocks of the operand are read along that axis and
transposed in registers. All axes of the result behind that one are merged into one, its columns: so a block is square however short the last axis is. Where
there are few columns, rows of the result are shorter than a vector, and operands are interleaved instead, to vectors of whole rows.
Blocks follow the operand's lines, a strip at a time. ``Elements`` emits the code, for a vector at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ....codegen.elements.elements import Elements
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.interleave import MOST_APART, interleaved
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Value
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import row_major, strided
from ..contract.pack import transpose
from ..emit.non_temporal import either
from ..emit.template import Code, Scratch, Template
from ..model import CpuModel
from ..runtime.jit import Machine
from .template import SMALL

TILE = 64
"""Blocks that are read one after the other along the operand's neighbours: memory is quickest at that."""
STRIPS, OF_THREAD = 8, 4
"""Strips that give each thread rows of its own: in all, and for each."""
WIDE = 16
"""Blocks of columns that one thread can write side by side without meeting another in most of their lines."""
LEAST = 4
"""Elements along both axes of a block that make turning it cheaper than to read them one by one."""
FEW = 2
"""Operations of a map that are written out for every row of a block."""
INTERLEAVED = 8
"""The most columns that are interleaved: each vector of the result has lanes of all of them."""
PAST = 1 / 2
"""Of the last cache, what is to move from which on results go past it: sooner than elsewhere, as few of a line's elements are written at a time."""


def _is_same(node: Node) -> bool:
    """Whether a node is its first operand, element by element."""
    return node.op.facts.role == "point" and node.op.facts.selects


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
        axis: the axis along which the transposed operands have their neighbours.
        behind: how many of the last axes are the columns.
        transposed: what is read along that axis.
        plain: what is read along the columns.
    """

    sizes: tuple[int, ...]
    axis: int
    behind: int
    transposed: tuple[View, ...]
    plain: tuple[View, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """The axes that are no side of a block."""
        first = len(self.sizes) - self.behind
        return tuple(axis for axis in range(first) if axis != self.axis)

    @property
    def rows(self) -> int:
        """Elements along the axis of the transposed operands' neighbours."""
        return self.sizes[self.axis]

    @property
    def columns(self) -> int:
        """Elements along the axes behind it."""
        return prod(self.sizes[-self.behind :])

    @property
    def is_interleaved(self) -> bool:
        """Whether rows are shorter than vectors, and lie behind each other in everything that is read plainly."""
        beside = self.axis + self.behind + 1 == len(self.sizes)
        flat = all(_step(view, self.sizes, self.behind + 1) is not None for view in self.plain)
        return self.columns <= INTERLEAVED and beside and flat

    def lanes(self, machine: Machine, outputs: Sequence[Node]) -> int:
        """The side of a block."""
        widest = max(node.dtype.itemsize for node in [*outputs, *(v.leaf for v in self.transposed)])
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
    for position in own[1:]:
        steps, before = [view.strides[position] for view in views], merged[-1]
        if before[1] == [step * shape[position] for step in steps]:
            merged[-1] = before[0] * shape[position], steps
        else:
            merged.append((shape[position], steps))
    lengths = tuple(size for size, _ in merged)
    views = [
        View(view.node, view.leaf, view.offset, tuple(steps[i] for _, steps in merged))
        for i, view in enumerate(views)
    ]
    transposed = tuple(view for view in views if view.strides[-1] not in (0, 1, -1))
    plain = tuple(view for view in views if view not in transposed)
    axes = {_near(view, lengths) for view in transposed}
    axis = axes.pop() if len(axes) == 1 else None
    if axis is None:
        return None
    behind = len(lengths) - 1 - axis
    if any(_step(view, lengths, behind) is None for view in plain):
        behind = 1
    found = Turning(lengths, axis, behind, transposed, plain)
    return found if found.columns >= LEAST or found.is_interleaved else None


def _step(view: View, lengths: Sequence[int], count: int) -> int | None:
    """The distance of neighbours along the last ``count`` axes, gone through as one; None where it is not always the same."""
    step = view.strides[-1]
    for axis in range(len(lengths) - 2, len(lengths) - 1 - count, -1):
        if view.strides[axis] != view.strides[axis + 1] * lengths[axis + 1]:
            return None
    return step


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
        elif "elementwise" in node.op.traits or _is_same(node):
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


def _tile(apart: int, blocks: int, threads: int) -> int:
    """Blocks of a strip: fewer where threads would share rows of the result, whose lines each would take from the other; ``apart`` pieces do not.

    >>> [_tile(1, 55, 2), _tile(1, 1000, 2), _tile(40, 55, 2), _tile(3, 5, 2), _tile(1, 1000, 16)]
    [7, 64, 64, 4, 16]
    """
    wanted = ceil_div(max(STRIPS, OF_THREAD * threads), apart)
    return TILE if wanted == 1 else max(4, min(TILE, ceil_div(blocks, wanted)))


@dataclass(frozen=True, eq=False)
class _Block:
    """Some rows and columns of the result.

    Attributes:
        index: of the first row, along the axes before the columns.
        column: the first one.
        rows: how many.
        columns: how many.
    """

    index: tuple[Index, ...]
    column: Index
    rows: int
    columns: int


class _Transposed:
    """The code of one kernel."""

    def __init__(self, code: Code, plan: Turning, non_temporal: bool) -> None:
        self.code = code
        self.plan = plan
        self.non_temporal = non_temporal
        self.elements = Elements.of(code)
        self.indices: IndexMath = self.elements.indices
        self.registers: Registers = self.elements.registers
        self.lanes = plan.lanes(code.machine, code.body.outputs)
        operations = sum("elementwise" in node.op.traits for node in code.body.nodes)
        plain = all(view.stored is view.leaf.dtype for view in plan.transposed)
        self.unrolled = plain and operations <= FEW

    def emit(self) -> None:
        """Strips of blocks, shared out among the threads."""
        plan, indices = self.plan, self.indices
        outer = [plan.sizes[axis] for axis in plan.others]
        width = plan.columns if plan.is_interleaved else self.lanes
        apart = prod(outer) * max(1, plan.columns // (WIDE * width))
        threads = CpuModel.of(self.code.machine).threads
        strip = self.lanes * _tile(apart, ceil_div(plan.rows, self.lanes), threads)
        counts = [*outer, ceil_div(plan.rows, strip), ceil_div(plan.columns, width)]
        rest = plan.columns % width

        def unit(number: Index, _: Sequence[Value]) -> Sequence[Value]:
            *others, row, column = indices.split(number, counts)
            first, column = indices.mul(row, strip), indices.mul(column, width)
            index: list[Index] = [0] * (len(plan.sizes) - plan.behind)
            for axis, at in zip(plan.others, others, strict=True):
                index[axis] = at
            if not rest:
                self.strip(index, first, strip, column, width)
            elif plan.columns < width:
                self.strip(index, first, strip, 0, rest)
            else:
                whole = indices.compare("<=", column, plan.columns - width)
                with self.code.builder.if_else(whole) as (full, partial):
                    with full:
                        self.strip(index, first, strip, column, width)
                    with partial:
                        self.strip(index, first, strip, plan.columns - rest, rest)
            return []

        self.elements.loop(*self.code.share(prod(counts)), unit)

    def strip(
        self, index: list[Index], first: Index, count: int, column: Index, columns: int
    ) -> None:
        """Up to ``count`` rows of some columns, a block at a time; where the operands' lines begin is the same for all."""
        plan, indices, e = self.plan, self.indices, self.elements
        starts = []
        for view in plan.transposed:
            split = [
                indices.split(indices.add(column, lane), plan.sizes[-plan.behind :])
                for lane in range(columns)
            ]
            starts.append([self.offset(view, [*index, *along]) for along in split])

        def block(row: Index, rows: int) -> None:
            at = list(index)
            at[plan.axis] = row
            with e.scope():
                self.block(_Block(tuple(at), column, rows, columns), starts)

        def emit_row(row: Index, _: object) -> Sequence[Value]:
            block(row, self.lanes)
            return []

        rest = plan.rows % self.lanes
        if plan.rows > rest:
            stop = indices.clamp(indices.add(first, count), 0, plan.rows - rest)
            e.loop(first, stop, emit_row, (), self.lanes)
        if rest:
            last = indices.compare(">=", i64(indices.add(first, count)), plan.rows)
            with self.code.builder.if_then(last):
                block(plan.rows - rest, rest)

    def offset(self, view: View, index: Sequence[Index]) -> Index:
        """Where a view's element lies."""
        total: Index = view.offset
        for number, stride in zip(index, view.strides, strict=True):
            total = self.indices.add(total, self.indices.mul(number, stride))
        return total

    def block(self, block: _Block, starts: Sequence[Sequence[Index]]) -> None:
        """A block, by vectors of the result: rows, or as many rows as it takes to fill one. The operands' lines begin at ``starts``, where they have row 0."""
        plan, b = self.plan, self.code.builder
        mask = self.first_lanes(block.rows)
        lines = [
            [self.line(view, block, start, mask) for start in own]
            for view, own in zip(plan.transposed, starts, strict=True)
        ]
        if not plan.is_interleaved:
            transposed = [transpose(b, _filled(own)) for own in lines]
            self.vectors(block, transposed, range(block.rows), self.first_lanes(block.columns))
            return
        transposed = [interleaved(b, own) for own in lines]
        whole, rest = divmod(block.rows * block.columns, self.lanes)
        self.vectors(block, transposed, range(whole), None)
        if rest:
            self.vectors(block, transposed, range(whole, whole + 1), self.first_lanes(rest))

    def line(self, view: View, block: _Block, start: Index, mask: Value | None) -> Value:
        """A vector along the axis of an operand's neighbours."""
        step = view.strides[self.plan.axis]
        first = self.indices.add(start, self.indices.mul(block.index[self.plan.axis], step))
        pointer = self.code.operand_of(view.leaf)
        return self.registers.load(pointer, Lanes(first, self.lanes, step), view.stored, mask)

    def first_lanes(self, count: int) -> Value | None:
        """The mask of the first lanes; None for all."""
        from llvmlite import ir

        if count == self.lanes:
            return None
        kind = ir.VectorType(ir.IntType(1), self.lanes)
        return ir.Constant(kind, [int(lane < count) for lane in range(self.lanes)])

    def vectors(
        self,
        block: _Block,
        transposed: Sequence[Sequence[Value]],
        numbers: range,
        mask: Value | None,
    ) -> None:
        """Some vectors of the result: the map is emitted for each, or once where it is long."""
        self.elements.mask = mask
        if self.unrolled or len(numbers) == 1:
            for number in numbers:
                with self.elements.scope():
                    self.vector(block, number, [own[number] for own in transposed])
        elif numbers:
            self.through_memory(block, transposed, numbers)
        self.elements.mask = None

    def through_memory(
        self, block: _Block, transposed: Sequence[Sequence[Value]], numbers: range
    ) -> None:
        """Write vectors down, and go through them."""
        views = self.plan.transposed
        for number, (view, own) in enumerate(zip(views, transposed, strict=True)):
            for i in numbers:
                within = Lanes(self.slot(number, view) + i * self.lanes, self.lanes)
                self.registers.store(own[i], self.code.own, within, view.stored)

        def emit_row(i: Index, _: object) -> Sequence[Value]:
            values = []
            for number, view in enumerate(views):
                first = self.indices.add(self.indices.mul(i, self.lanes), self.slot(number, view))
                lanes = Lanes(first, self.lanes)
                values.append(self.registers.load(self.code.own, lanes, view.leaf.dtype))
            self.vector(block, i, values)
            return []

        self.elements.loop(numbers.start, numbers.stop, emit_row)

    def slot(self, number: int, view: View) -> int:
        """Where the transposed block of an operand begins in the scratch memory, in its elements."""
        return number * _room(self.lanes) // view.stored.itemsize

    def vector(self, block: _Block, number: Index, values: Sequence[Value]) -> None:
        """A vector of the results."""
        plan, e = self.plan, self.elements
        for view, value in zip(plan.transposed, values, strict=True):
            e.give(view.node, value)
        for view in plan.plain:
            position = self.offset_of(block, number, view.offset, view.strides)
            pointer = self.code.operand_of(view.leaf)
            mask = e.mask if view.strides[-1] else None
            e.give(view.node, self.registers.load(pointer, position, view.leaf.dtype, mask))
        found = [e.at(node, [0] * node.rank) for node in self.code.body.outputs]
        position = self.offset_of(block, number, 0, row_major(plan.sizes))
        for node, pointer, value in zip(
            self.code.body.outputs, self.code.results, found, strict=True
        ):
            self.registers.store(
                value, pointer, position, node.dtype, e.mask, non_temporal=self.non_temporal
            )

    def offset_of(self, block: _Block, number: Index, offset: int, strides: Sequence[int]) -> Index:
        """Where the elements of a vector lie in something that is not transposed."""
        indices, step = self.indices, strides[-1]
        total: Index = indices.add(offset, indices.mul(block.column, step))
        for at, stride in zip(block.index, strides, strict=False):
            total = indices.add(total, indices.mul(at, stride))
        apart = self.lanes * step if self.plan.is_interleaved else strides[self.plan.axis]
        total = indices.add(total, indices.mul(number, apart))
        return Lanes(total, self.lanes, step) if step else total


def _room(lanes: int) -> int:
    """Bytes for the vectors of one block of an operand, whatever its type."""
    return max(lanes, INTERLEAVED) * lanes * 8


def _filled(lines: Sequence[Value]) -> list[Value]:
    """As many lines as a square block has."""
    from llvmlite import ir

    kind = lines[0].type
    return [*lines, *[ir.Constant(kind, ir.Undefined)] * (kind.count - len(lines))]


def _fits(spec: Spec) -> bool:
    return turning(spec) is not None


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    plan = turning(spec)
    if plan is None:
        return Scratch()
    lanes = plan.lanes(machine, spec.body.outputs)
    return Scratch(own=len(plan.transposed) * _room(lanes))


def _emit(code: Code) -> None:
    plan = turning(code.spec)
    if plan is None:
        return
    outputs = code.body.outputs
    # Vectors of the result begin at multiples of their size.
    length = plan.rows if plan.is_interleaved else plan.columns
    whole = length % plan.lanes(code.machine, outputs) == 0
    nbytes = prod(plan.sizes) * sum(node.dtype.itemsize for node in outputs) if whole else 0
    either(
        code,
        nbytes,
        code.results,
        lambda non_temporal: _Transposed(code, plan, non_temporal).emit(),
        PAST,
    )


TRANSPOSED = Template("turned", _fits, _emit, _scratch)
