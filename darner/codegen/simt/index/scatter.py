"""Kernels that write where an index says: ``scatter``, ``scatter_add`` and ``scatter_add_along_axis``.

A tensor is seen as [outer, size, inner], the slices of ``src`` as [outer, count, inner]. No order of threads is ever seen in a result. Few slices are looked through by
whoever writes a place, or by each other. Many are put in the order of their indices first, so that all that go to one place stand side by side, in their own order. The sorted slices are
then divided into pieces of equal length: what lies in one piece is combined by one thread for each column, and a place that several pieces have slices of is put
together afterwards. Where every column has indices of its own, and there are many columns, a thread goes along each. An index outside is left out, and told of.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div, round_up
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.math import emit
from ..builder import Memory, Operand, Simt, Value, is_packed
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import GRANULE, Machine
from ..sort.template import Item, Rows, Sort
from ..template import Template
from .update import filled, prepared

NAMES = ("scatter", "scatter_add", "scatter_add_along_axis")
COMBINES = {
    "add": ("sum", "add"),
    "mul": ("prod", "mul"),
    "max": ("max", "larger"),
    "min": ("min", "smaller"),
}
"""What each mode combines: the reduction whose neutral element it begins with, and the op."""
SMALL = 1 << 21
"""Up to so many comparisons every element of the result looks through all indices."""
FEW = 8
"""So few elements of a column are not sorted, and its words are made whole where elements share them."""
UNSORTED = 64
"""Up to so many slices each looks through the indices of the others."""
PIECE = 32
"""Sorted slices that one thread combines."""
AHEAD = 4
"""Slices that are read before the first of them is combined."""
COLUMNS = 4096
"""Columns of their own indices that keep a GPU busy with a thread for each."""

Pair: TypeAlias = tuple[Memory, Memory]


@dataclass(frozen=True)
class Piece:
    """Sorted slices of a row.

    Attributes:
        base: the first of the row.
        first: the first of the piece, counted from there.
        last: what is behind its last.
    """

    base: Value
    first: Value
    last: Value


class _Scatter:
    """What goes where."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        (node,) = spec.body.outputs
        self.spec, self.machine, self.node = spec, machine, node
        self.along = node.op.name == "scatter_add_along_axis"
        self.mode = str(node.attrs.get("mode", "add"))
        self.indices = node.operands[node.slots.index("indices")]
        self.src = node.operands[node.slots.index("src")]
        self.x = node.operands[node.slots.index("x")] if "x" in node.slots else None
        self.axis = int(node.attrs["axis"])
        whole = sizes(node)
        self.lead, self.size, self.tail = (
            whole[: self.axis],
            whole[self.axis],
            whole[self.axis + 1 :],
        )
        self.outer, self.inner = prod(self.lead), prod(self.tail)
        self.count = sizes(self.src)[self.axis] if self.along else prod(sizes(self.indices))
        columns = self.outer * self.inner
        # Where indices are those of whole slices, one row of them is sorted for all columns.
        self.rows, self.columns = (columns, 1) if self.along else (1, columns)
        self.kept = dtypes.f32 if node.dtype.is_half else node.dtype

    # ------------------------------------------------------------- elements

    def _parts(self, elements: ThreadElements, column: Number) -> tuple[list[Number], list[Number]]:
        """The indices of a column along the axes before and after the one that is written along."""
        places = elements.places
        outer, inner = (
            places.div(column, max(self.inner, 1)),
            places.mod(column, max(self.inner, 1)),
        )
        lead = places.split(outer, self.lead) if self.lead else []
        return lead, places.split(inner, self.tail) if self.tail else []

    def index(self, elements: ThreadElements, row: Number, number: Number) -> Value:
        """The place that a slice goes to, as it is given."""
        if self.along:
            lead, tail = self._parts(elements, row)
            at = [*lead, number, *tail]
        else:
            at = elements.places.split(number, sizes(self.indices)) if self.indices.rank else []
        return elements.places.value(elements.integer(self.indices, at))

    def value(
        self, elements: ThreadElements, row: Number, number: Number, column: Number
    ) -> Operand:
        """An element of a slice, in the type that is combined in."""
        lead, tail = self._parts(elements, row if self.along else column)
        token = [number]
        if not self.along:
            token = elements.places.split(number, sizes(self.indices)) if self.indices.rank else []
        found = elements.at(self.src, [*lead, *token, *tail])
        return elements.registers.cast(found, self.src.dtype, self.kept)

    def offset(
        self, elements: ThreadElements, row: Number, place: Number, column: Number
    ) -> Number:
        """Where an element of the result lies."""
        places = elements.places
        flat = row if self.along else column
        outer, inner = places.div(flat, max(self.inner, 1)), places.mod(flat, max(self.inner, 1))
        return places.add(
            places.mul(places.add(places.mul(outer, self.size), place), self.inner), inner
        )

    def neutral(self, elements: ThreadElements) -> Operand:
        """What is combined with nothing."""
        if self.mode == "set":
            return elements.registers.constant(0, self.kept)
        return elements.registers.neutral(COMBINES[self.mode][0], self.kept, self.kept)

    def combined(self, elements: ThreadElements, total: Operand, value: Operand) -> Operand:
        """Two values as one."""
        if self.mode == "set":
            return value
        op = COMBINES[self.mode][1]
        kinds = [self.kept, self.kept]
        return emit(op, elements.builder, [total, value], kinds, self.kept)

    def store(
        self, dispatch: Dispatch, elements: ThreadElements, total: Operand, offset: Number
    ) -> None:
        """Write what slices gave together, with what was there before."""
        registers, (result,) = elements.registers, dispatch.results
        if self.x is not None and self.mode != "set":
            before = registers.load(result, offset, self.node.dtype)
            before = registers.cast(before, self.node.dtype, self.kept)
            total = self.combined(elements, before, total)
        value = registers.cast(total, self.kept, self.node.dtype)
        registers.store(value, result, offset, self.node.dtype)

    # ------------------------------------------------------------- few slices

    def looked_through(self) -> Stage:
        """Every element of the result looks for the slices that go to it."""
        shape = sizes(self.node)

        def value(elements: ThreadElements, at: Value) -> Operand:
            places, registers, b = elements.places, elements.registers, elements.builder
            index = places.split(at, shape)
            lead, place, tail = index[: self.axis], index[self.axis], index[self.axis + 1 :]
            outer = places.offset(lead, self.lead)
            column = places.add(places.mul(outer, self.inner), places.offset(tail, self.tail))
            first = self.neutral(elements)
            if self.x is not None:
                first = registers.cast(elements.at(self.x, index), self.x.dtype, self.kept)
            total = b.variable(first, "total")
            with b.for_(0, self.count, name="number") as number:
                found = self.index(elements, column, number)
                elements.check(self.node, found, self.size)
                with b.if_(found == place):
                    each = self.value(elements, column, number, column)
                    total.set(self.combined(elements, total, each))
            return registers.cast(total, self.kept, self.node.dtype)

        return filled(self.spec, self.machine, 0, value)

    def directly(self) -> Stage:
        """Of all slices that go to one place one writes what they give together: the last where it replaces, the first where it combines all."""
        dispatch, count = Dispatch(self.spec, self.machine), self.count * self.columns
        b, sets = dispatch.builder, self.mode == "set"
        with b.if_(b.thread < count):
            elements = dispatch.elements()
            own, column = elements.places.split(b.thread, (self.count, self.columns))
            number = elements.places.value(own)
            place = self.index(elements, 0, number)
            elements.check(self.node, place, self.size)
            writes = b.variable(place < self.size, "writes")
            others = (number + 1, self.count) if sets else (0, number)
            with b.for_(*others, name="other") as other:
                writes.set(writes & (self.index(elements, 0, other) != place))
            with b.if_(writes):
                total = b.variable(self.value(elements, 0, number, column), "total")
                if not sets:
                    later = b.for_(number + 1, self.count, name="other")
                    with later as other, b.if_(self.index(elements, 0, other) == place):
                        each = self.value(elements, 0, other, column)
                        total.set(self.combined(elements, total, each))
                self.store(dispatch, elements, total, self.offset(elements, 0, place, column))
        return dispatch.finish(ceil_div(count, dispatch.threads))

    # ------------------------------------------------------------- columns with indices of their own

    def by_columns(self) -> Stage:
        """A thread goes along each column."""
        dispatch = Dispatch(self.spec, self.machine)
        b, (result,) = dispatch.builder, dispatch.results
        with b.if_(b.thread < self.rows):
            elements = dispatch.elements()
            with b.for_(0, self.count, name="number") as number:
                place = self.index(elements, b.thread, number)
                elements.check(self.node, place, self.size)
                with b.if_(place < self.size):
                    offset = self.offset(elements, b.thread, place, 0)
                    before = elements.registers.load(result, offset, self.node.dtype)
                    value = self.value(elements, b.thread, number, 0)
                    total = self.combined(elements, before, value)
                    elements.registers.store(total, result, offset, self.node.dtype)
        return dispatch.finish(ceil_div(self.rows, dispatch.threads))

    # ------------------------------------------------------------- slices in order

    def in_order(self) -> tuple[list[Stage], int]:
        """Slices are sorted by their indices, and combined piece by piece."""
        count = self.rows * self.count
        self._keys, self._numbers = 0, round_up(4 * count, GRANULE)

        def key(dispatch: Dispatch, elements: ThreadElements, row: Value, number: Value) -> Value:
            found = self.index(elements, row, number)
            elements.check(self.node, found, self.size)
            b: Simt = dispatch.builder
            return b.let(b.min(found, self.size))

        def finish(dispatch: Dispatch, elements: ThreadElements, item: Item) -> None:
            keys, numbers = self._sorted(dispatch)
            at = item.row * self.count + item.place
            keys[at] = item.key
            numbers[at] = item.number

        start = self._numbers + round_up(4 * count, GRANULE)
        rows = Rows(self.rows, self.count, key, finish, self.count)
        sort = Sort(self.spec, self.machine, rows, start)
        stages = sort.stages()
        if self.mode == "set":
            return [*stages, self._last_of_each()], sort.end
        pieces = ceil_div(self.count, PIECE)
        self._partial = sort.end
        stages.append(self._pieces(pieces))
        end = sort.end
        if pieces > 1:
            stages.append(self._joined(pieces))
            end += 2 * round_up(self._threads(pieces) * self._held.itemsize, GRANULE)
        return stages, end

    def _sorted(self, dispatch: Dispatch) -> Pair:
        """The indices in order, and the slices that they are of."""
        count = self.rows * self.count
        keys = dispatch.scratch(self._keys, count, dtypes.u32)
        return keys, dispatch.scratch(self._numbers, count, dtypes.u32)

    def _threads(self, pieces: int) -> int:
        return self.rows * pieces * self.columns

    @property
    def _held(self) -> DType:
        """The type that parts of a result are kept in."""
        return dtypes.u32 if is_packed(self.kept) else self.kept

    def _heads_and_tails(self, dispatch: Dispatch, pieces: int) -> Pair:
        """For each piece, what its first place gets where pieces before have slices of it too, and what its last gets where later ones have."""
        count, start = self._threads(pieces), self._partial
        heads = dispatch.scratch(start, count, self._held)
        start += round_up(count * self._held.itemsize, GRANULE)
        return heads, dispatch.scratch(start, count, self._held)

    def _split(self, dispatch: Dispatch, per_row: int) -> tuple[Value, Value, Value]:
        """The row, the number in it and the column of a thread; neighbours have neighbouring columns."""
        b = dispatch.builder
        column = b.let(b.thread % self.columns, "column")
        number = b.let(b.thread // self.columns % per_row, "number")
        return b.let(b.thread // (self.columns * per_row), "row"), number, column

    def _last_of_each(self) -> Stage:
        """Of the slices of one place the last is written."""
        dispatch, count = Dispatch(self.spec, self.machine), self.rows * self.count * self.columns
        b = dispatch.builder
        keys, numbers = self._sorted(dispatch)
        with b.if_(b.thread < count):
            elements = dispatch.elements()
            row, at, column = self._split(dispatch, self.count)
            place, following = keys[at], keys[b.min(at + 1, self.count - 1)]
            with b.if_(place < self.size, (at == self.count - 1) | (following != place)):
                value = self.value(elements, row, numbers[at], column)
                self.store(dispatch, elements, value, self.offset(elements, row, place, column))
        return dispatch.finish(ceil_div(count, dispatch.threads))

    def _piece(self, dispatch: Dispatch, row: Value, number: Value) -> Piece:
        """The sorted slices of a piece of a row."""
        b = dispatch.builder
        base = b.let(row * self.count, "base")
        first = b.let(number * PIECE, "first")
        return Piece(base, first, b.let(b.min(first + PIECE, self.count), "last"))

    def _pieces(self, pieces: int) -> Stage:
        """Combine what lies in each piece; a place that lies in one piece only is done then."""
        dispatch = Dispatch(self.spec, self.machine)
        b = dispatch.builder
        keys, numbers = self._sorted(dispatch)
        parts = self._heads_and_tails(dispatch, pieces) if pieces > 1 else None
        elements = dispatch.elements()
        with b.if_(b.thread < self._threads(pieces)):
            row, number, column = self._split(dispatch, pieces)
            piece = self._piece(dispatch, row, number)
            place = b.variable(keys[piece.base + piece.first], "place")
            before = keys[piece.base + b.max(piece.first, 1) - 1]
            begins = b.variable((piece.first == 0) | (before != place), "begins")
            total = b.variable(self.neutral(elements), "total")

            def flush(ends: Value | None) -> None:
                def store() -> None:
                    offset = self.offset(elements, row, place, column)
                    self.store(dispatch, elements, total, offset)

                with b.if_(place < self.size):
                    if parts is None:
                        store()
                        return
                    with b.if_(begins, ends):
                        store()
                    with b.else_():
                        with b.if_(begins):
                            parts[1][b.thread] = self._as_held(elements, total)
                        with b.else_():
                            parts[0][b.thread] = self._as_held(elements, total)

            with b.for_(piece.first, piece.last, AHEAD, name="at") as at:
                several = []
                for k in range(AHEAD):
                    where = b.let(piece.base + b.min(at + k, piece.last - 1))
                    key = keys[where]
                    several.append((key, self.value(elements, row, numbers[where], column)))
                for k, (key, value) in enumerate(several):
                    with b.if_(at + k < piece.last):
                        with b.if_(key != place):
                            flush(None)
                            place.set(key)
                            begins.set(True)
                            total.set(self.neutral(elements))
                        total.set(self.combined(elements, total, value))
            after = keys[piece.base + b.min(piece.last, self.count - 1)]
            flush(b.let((piece.last == self.count) | (after != place), "ends"))
        return dispatch.finish(ceil_div(self._threads(pieces), dispatch.threads))

    def _as_held(self, elements: ThreadElements, value: Value) -> Value:
        return elements.builder.bits(value) if is_packed(self.kept) else value

    def _from_held(self, elements: ThreadElements, held: Value) -> Value:
        return elements.builder.of_bits(held, self.kept) if is_packed(self.kept) else held

    def _joined(self, pieces: int) -> Stage:
        """A place whose slices begin in one piece and end in another gets what all of these have for it."""
        dispatch = Dispatch(self.spec, self.machine)
        b = dispatch.builder
        keys, _ = self._sorted(dispatch)
        heads, tails = self._heads_and_tails(dispatch, pieces)
        elements = dispatch.elements()
        with b.if_(b.thread < self._threads(pieces)):
            row, number, column = self._split(dispatch, pieces)
            own = self._piece(dispatch, row, number)
            place = keys[own.base + own.last - 1]
            before = keys[own.base + b.max(own.first, 1) - 1]
            begins = b.let((own.first == 0) | (before != place), "begins")
            after = keys[own.base + b.min(own.last, self.count - 1)]
            goes_on = b.let((own.last < self.count) & (after == place), "goes_on")
            with b.if_(begins, goes_on, place < self.size):
                total = b.variable(self._from_held(elements, tails[b.thread]), "total")
                piece = b.variable(number + 1, "piece")
                with b.while_(lambda: piece < pieces):
                    at = b.thread + (piece - number) * self.columns
                    value = self._from_held(elements, heads[at])
                    total.set(self.combined(elements, total, value))
                    end = b.let((piece + 1) * PIECE, "end")
                    following = keys[own.base + b.min(end, self.count - 1)]
                    with b.if_((end >= self.count) | (following != place)):
                        b.break_()
                    piece.set(piece + 1)
                offset = self.offset(elements, row, place, column)
                self.store(dispatch, elements, total, offset)
        return dispatch.finish(ceil_div(self._threads(pieces), dispatch.threads))


# --------------------------------------------------------------------------- kernels


def _fits(spec: Spec, machine: Machine) -> bool:
    outputs = spec.body.outputs
    return len(outputs) == 1 and outputs[0].op.name in NAMES


def _write(spec: Spec, machine: Machine) -> Written:
    found = _Scatter(spec, machine)
    elements = prod(sizes(found.node))
    if not elements:
        return Written(())
    start = prepared(spec, machine, found.x)
    if not found.count:
        return Written((start,))
    if found.mode != "set" and elements * found.count <= SMALL:
        return Written((found.looked_through(),))
    if not found.along and found.count <= UNSORTED:
        return Written((start, found.directly()))
    few = found.along and found.count <= FEW
    if found.along and (few or found.rows >= COLUMNS) and not is_packed(found.node.dtype):
        return Written((start, found.by_columns()))
    if few:
        return Written((found.looked_through(),))
    stages, scratch = found.in_order()
    return Written((start, *stages), scratch)


SCATTERS = Template("scatters", _fits, _write)
