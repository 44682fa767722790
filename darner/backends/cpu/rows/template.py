"""Kernels with reductions: a few passes over the elements of a row, each row by one thread.

A row is what is reduced to one value: its elements run over the reduced axes, and rows over all others. Reductions that need no other are made in the
first pass, those that need them in the second, and so on (rows of which no result of a pass is chosen leave it out); the last pass writes the results that have an element for each of the row's. Where
the last axis is reduced, the lanes of a vector are elements of one row, whose sums are added up at the end; where it is not, they are rows side by side.

Where there are few rows and much in each (the sum of everything, at the extreme), a row is cut in pieces of a fixed number. Every pass then leaves one partial result
for each piece, and all threads wait for them before the next. Sums over all rows of what a row's last pass has, such as the gradient of a norm's
weight, are made on the way, for runs of a fixed number of rows. So the order of a sum never depends on how many threads there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import or_

from ....codegen.elements.collapse import collapsed
from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.rows import Guard
from ....graph.dtypes import f32, f64
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.roles import is_sum
from ....lower.specs import sizes
from ..emit.non_temporal import either, partly
from ..emit.template import Code, Scratch, Template
from ..maps.template import SMALL
from ..model import LINE, CpuModel
from ..runtime.jit import Machine
from .columns import ColumnSums, columns_at
from .partials import Partials
from .program import RowProgram, has_rows, most_kept, room, row_program

LEAST_AHEAD = 1.0
"""Of the cache next to a core, an operand whose rows are not there before they are asked for."""
MOST_AHEAD = 1 / 4
"""Of that cache, a row that stays there until it is needed."""

CHAINS = 4
"""Sums of one vector that grow beside each other: an addition takes as many cycles until the next can have its result."""

Inside = Callable[[list[Index], Index, list[Value]], Sequence[Value]]


def _width(machine: Machine) -> int:
    return machine.vector_bytes // 4


def _fits(spec: Spec) -> bool:
    return spec.kind == "rows" and can_emit(spec.body) and has_rows(collapsed(spec))


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    program = row_program(collapsed(spec), _width(machine), most_kept(machine))
    if program is None:
        return Scratch()
    # A vector may begin anywhere in the last of a row, and is read whole.
    kept = program.row_elements + program.lanes
    own = sum(room(kept, node.dtype.itemsize) for node in program.kept)
    if program.pieces == 1:
        return Scratch(own=own, shared=columns_at(program, len(program.columns)))
    partials = sum(len(level) for level in program.levels)
    lanes = 1 if program.across else program.lanes
    # Eight bytes for any type that a running result is kept in.
    return Scratch(shared=partials * program.units * program.pieces * lanes * 8)


class _RowElements(Elements):
    """Elements of rows: those of a row are divided by a value of the row as products with its inverse."""

    space: tuple[int, ...] = ()

    def apply(self, node: Node, operands: Sequence[Value]) -> Value:
        if node.op.name == "div" and node.dtype in (f32, f64):
            a, b = node.operands
            if tuple(sizes(a)) == self.space != tuple(sizes(b)) and b.op.name != "constant":
                return self.registers.by_inverse(*operands)
        return super().apply(node, operands)


class _Rows:
    """The code of one kernel."""

    def __init__(self, code: Code, program: RowProgram, non_temporal: bool) -> None:
        self.code = code
        self.program = program
        self.non_temporal = non_temporal
        self.elements = _RowElements.of(code)
        self.elements.space = program.space
        self.fresh: set[int] = set()
        self.ahead = self._ahead()
        # Passes that few rows need ask for nothing.
        later = [i for i, guard in enumerate(program.guards) if i and guard is None]
        self.asks = [*later, len(program.levels)][0] if program.across else 0
        self.indices = self.elements.indices
        self.registers = self.elements.registers
        self.outputs = list(zip(code.body.outputs, code.results, strict=True))
        self.full = [pair for pair in self.outputs if tuple(sizes(pair[0])) == program.space]
        summed = {node.id for node in program.columns}
        columns = [pair for pair in self.outputs if pair[0].id in summed]
        self.columns = ColumnSums(code, program, self.elements, columns)
        self.single = [
            (node, pointer)
            for node, pointer in self.outputs
            if tuple(sizes(node)) != program.space and node.id not in summed
        ]

    def _ahead(self) -> list[tuple[Pointer, Node]]:
        """Operands whose next row is asked for while the elements of this one are in the cache and computed with.

        The first pass over a row waits for memory, and those after it leave memory idle. Where lanes are rows, each step reads a few lines far from those before: no processor
        foresees the lines beside them.
        """
        program, model = self.program, CpuModel.of(self.code.machine)
        if program.across:
            alone, held = len(program.axes) == 1 and program.pieces == 1, program.space[-1]
        else:
            alone, held = program.space[-1] >= 2 * program.lanes, program.row_elements
        return [
            (self.code.operand_of(leaf), leaf)
            for leaf in self.code.body.inputs.values()
            if alone
            and tuple(sizes(leaf)) == program.space
            and prod(program.space) * leaf.dtype.itemsize >= model.of_l2(LEAST_AHEAD)
            and held * leaf.dtype.itemsize <= model.of_l2(MOST_AHEAD)
        ]

    def prefetch_ahead(self, index: list[Index], level: int) -> None:
        """Ask for the elements below these, in the second pass; for those beside them, in the first, where lanes are rows."""
        program = self.program
        if level != self.asks:
            return
        further = program.space[-1] if program.across else program.lanes
        offset = self.indices.add(self.indices.offset(index, program.space), further)
        for pointer, leaf in self.ahead:
            self.registers.prefetch(pointer, offset, leaf.dtype, program.lanes)

    # ------------------------------------------------------------- where elements are

    def full_index(self, row: Sequence[Index], inner: Sequence[Index]) -> list[Index]:
        """The index of an element: of its row, and within it."""
        result: list[Index] = [0] * len(self.program.space)
        for axis, number in zip(self.program.others, row, strict=True):
            result[axis] = number
        for axis, number in zip(self.program.axes, inner, strict=True):
            result[axis] = number
        return result

    def each_row(self, number: Index, body: Callable[[list[Index]], None]) -> None:
        """Emit ``body`` with the index of a unit's row, or of the rows of its lanes."""
        program, indices = self.program, self.indices
        rows = [program.space[axis] for axis in program.others]
        if program.across:
            body(indices.split(number, rows))
            return
        blocks = ceil_div(rows[-1], program.lanes)
        *lead, block = indices.split(number, [*rows[:-1], blocks])
        start = indices.mul(block, program.lanes)
        lanes = Lanes(start, program.lanes, 1, program.lanes)
        if rows[-1] % program.lanes:
            self.elements.mask = indices.less(lanes, rows[-1])
        body([*lead, lanes])
        self.elements.mask = None

    def each_element(
        self,
        row: Sequence[Index],
        piece: Index,
        body: Inside,
        carried: Sequence[Value] = (),
        line: int = 1,
    ) -> list[Value]:
        """Loops over a piece of a row; ``body(index, position, values)``, the position being that among the row's kept values.

        Where nothing is carried, whole vectors can be those that lie at multiples of ``line``.
        """
        program, indices, e = self.program, self.indices, self.elements
        length = program.space[-1]
        whole = round_up(length, program.lanes)

        def along(
            outer: list[Index], number: Index, values: list[Value], ends: tuple[Index, Index]
        ) -> Sequence[Value]:
            if not program.across:
                at = Lanes(indices.mul(number, program.lanes), program.lanes)
                return body(self.full_index(row, outer), at, values)
            first = indices.mul(number, whole)

            def reduce_lanes(lanes: Lanes, held: list[Value]) -> Sequence[Value]:
                return body(self.full_index(row, [*outer, lanes]), indices.add(first, lanes), held)

            if line > 1 and length % program.lanes:
                begin = indices.offset(self.full_index(row, [*outer, 0]), program.space)
                e.blocks_at_lines(*ends, program.lanes, reduce_lanes, begin, line)
                return []
            return e.blocks(*ends, program.lanes, reduce_lanes, values)

        steps = prod(program.outer)
        if program.pieces > 1 and steps == 1:
            blocks = ceil_div(length, program.lanes)
            start = indices.mul(self._part(piece, blocks), program.lanes)
            stop = indices.mul(self._part(indices.add(piece, 1), blocks), program.lanes)
            return list(
                along(
                    [0] * len(program.outer), 0, list(carried), (start, self._least(stop, length))
                )
            )
        if program.pieces > 1:
            start, stop = self._part(piece, steps), self._part(indices.add(piece, 1), steps)
            return e.loop(
                start,
                stop,
                lambda i, held: along(indices.split(i, program.outer), i, held, (0, length)),
                carried,
            )
        return e.loops(
            program.outer,
            lambda outer, held: along(
                outer, indices.offset(outer, program.outer), held, (0, length)
            ),
            carried,
        )

    def _part(self, piece: Index, count: int) -> Index:
        return self.indices.div(self.indices.mul(piece, count), self.program.pieces)

    def _least(self, a: Index, b: int) -> Index:
        return self.indices.clamp(a, 0, b)

    # ------------------------------------------------------------- passes

    def reduce(self, level: int, row: Sequence[Index], piece: Index = 0) -> list[Value]:
        """The running results of a pass over a piece."""
        program, e = self.program, self.elements
        nodes = program.levels[level]
        firsts = [
            self.registers.neutral(node.op.name, node.operands[0].dtype, node.dtype, program.lanes)
            for node in nodes
        ]

        def add_elements(
            index: list[Index], position: Index, totals: list[Value]
        ) -> Sequence[Value]:
            self._begin(position)
            self.prefetch_ahead(index, level)
            following = []
            for node, total in zip(nodes, totals, strict=True):
                (x,) = node.operands
                value = self.value(x, index, level)
                made = self.registers.combine(node.op.name, total, value, x.dtype, node.dtype)
                if program.across and e.mask is not None:
                    made = self.registers.choose(e.mask, made, total)
                following.append(made)
            return following

        if self._waits(nodes):
            return self._in_chains(row, nodes, add_elements, firsts)
        totals = self.each_element(row, piece, add_elements, firsts)
        if program.across:
            pairs = zip(nodes, totals, strict=True)
            return [self.registers.across(node.op.name, total, node.dtype) for node, total in pairs]
        return totals

    def _needed(self, guard: Guard, row: Sequence[Index]) -> Value:
        """Whether a pass is needed in the row, or in one of those side by side."""
        conditions = []
        for i, wanted in guard.conditions:
            value = self._in_lanes(self.of_row(self.code.body.nodes[i], row))
            condition = Lane(self.code.builder, value)
            conditions.append(condition if wanted else ~condition)
        needed = reduce(or_, conditions)
        if not self.program.across and self.elements.mask is not None:
            needed = needed & needed.of(self.elements.mask)
        return needed.any().value

    def of_row(self, node: Node, row: Sequence[Index]) -> Value:
        """What a row has one of; axes that were reduced and kept have size 1, and stand at 0."""
        whole = node.rank != len(row)
        index = self.full_index(row, [0] * len(self.program.axes)) if whole else list(row)
        return self.elements.at(node, index)

    def one_of(
        self, needed: Value, made: Callable[[], list[Value]], otherwise: list[Value]
    ) -> list[Value]:
        """What code gives that is only run where it is needed, and something else where it is not."""
        b = self.code.builder
        otherwise = [self._in_lanes(value) for value in otherwise]
        before, fresh = b.block, set(self.fresh)
        with b.if_then(needed, likely=False), self.elements.scope():
            values = [self._in_lanes(value) for value in made()]
            after = b.block
        # What the pass kept is not there where it was left out.
        self.fresh = fresh
        found: list[Value] = []
        for value, other in zip(values, otherwise, strict=True):
            phi = b.phi(value.type)
            phi.add_incoming(other, before)
            phi.add_incoming(value, after)
            found.append(phi)
        return found

    def _in_lanes(self, value: Value) -> Value:
        """A value of a row; of rows side by side, one that all have alike in every lane."""
        return value if self.program.across else self.indices.spread(value, self.program.lanes)

    def chosen(self, level: int, guard: Guard, row: Sequence[Index]) -> None:
        """A pass that some rows need, and what is chosen between its results and others."""
        choices = [self.code.body.nodes[i] for i in sorted(guard.choices)]
        otherwise = [self.of_row(guard.otherwise(choice), row) for choice in choices]

        def made() -> list[Value]:
            self.finish(level, self.reduce(level, row))
            return [self.of_row(choice, row) for choice in choices]

        needed = self._needed(guard, row)
        for choice, value in zip(choices, self.one_of(needed, made, otherwise), strict=True):
            self.elements.give(choice, value)

    def partial_results(self, level: int, row: Sequence[Index], piece: Index) -> list[Value]:
        """Those of a pass over a piece; of no elements, where the row does not need the pass."""
        guard = self.program.guards[level]
        if guard is None:
            return self.reduce(level, row, piece)
        lanes = None if self.program.across else self.program.lanes
        nothing = [
            self.registers.neutral(node.op.name, node.operands[0].dtype, node.dtype, lanes)
            for node in self.program.levels[level]
        ]
        return self.one_of(
            self._needed(guard, row), lambda: self.reduce(level, row, piece), nothing
        )

    def _waits(self, nodes: Sequence[Node]) -> bool:
        """Whether a pass would wait for each addition before the next: one vector of rows side by side, many elements in each."""
        program = self.program
        single = program.lanes <= self.code.width and len(nodes) == 1 and program.pieces == 1
        long = len(program.outer) == 1 and program.outer[0] >= 2 * CHAINS
        return not program.across and single and long

    def _in_chains(
        self, row: Sequence[Index], nodes: Sequence[Node], body: Inside, firsts: Sequence[Value]
    ) -> list[Value]:
        """A pass over elements that are every ``CHAINS``-th of a row's, and then over the next of them: sums that need not wait for each other."""
        program, indices, e = self.program, self.indices, self.elements
        whole = program.outer[0] // CHAINS * CHAINS

        def add_rest(number: Index, held: Sequence[Value]) -> list[Value]:
            at = Lanes(indices.mul(number, program.lanes), program.lanes)
            return list(body(self.full_index(row, [number]), at, list(held)))

        def add_to_chains(number: Index, held: list[Value]) -> Sequence[Value]:
            return [
                total
                for chain in range(CHAINS)
                for total in add_rest(indices.add(number, chain), [held[chain]])
            ]

        first, *others = e.loop(0, whole, add_to_chains, list(firsts) * CHAINS, CHAINS)
        for other in others:
            first = self.registers.merge(nodes[0].op.name, first, other, nodes[0].dtype)
        return e.loop(whole, program.outer[0], add_rest, [first])

    def _begin(self, position: Index) -> None:
        """A new block of code: what was kept is not yet in its registers."""
        self.position = position
        self.here: set[int] = set()
        for kept in self.program.kept:
            self.elements.forget(kept)

    def value(self, node: Node, index: list[Index], level: int) -> Value:
        """A node's elements in a pass, what is kept being written or read."""
        e = self.elements
        for kept in self.program.kept:
            if kept.id in self.here or not self._needs(node, kept):
                continue
            self.here.add(kept.id)
            pointer = self.kept_at[kept.id]
            if kept.id in self.ready:
                e.give(kept, self.registers.load(pointer, self.position, kept.dtype))
            else:
                made = e.at(kept, index)
                self.registers.store(made, pointer, self.position, kept.dtype)
                e.give(kept, made)
                self.fresh.add(kept.id)
        return e.at(node, index)

    def _needs(self, node: Node, kept: Node) -> bool:
        stack, seen = [node], set()
        while stack:
            found = stack.pop()
            if found.id == kept.id:
                return True
            if found.id in seen or is_sum(found):
                continue
            seen.add(found.id)
            stack += found.operands
        return False

    def finish(self, level: int, totals: Sequence[Value]) -> None:
        """Make the results of a pass known to what follows."""
        for node, total in zip(self.program.levels[level], totals, strict=True):
            self.elements.give(node, self.registers.reduced(node.op.name, total, node.dtype))

    def write_single(self, row: Sequence[Index]) -> None:
        """Results that have one element a row."""
        for kept in self.program.kept:
            # Those of the last block of the row: another element may be asked for.
            self.elements.forget(kept)
        for node, pointer in self.single:
            index = (
                row if node.rank == len(row) else self.full_index(row, [0] * len(self.program.axes))
            )
            value = self.elements.at(node, index)
            offset = self.indices.offset(index, sizes(node))
            self.registers.store(value, pointer, offset, node.dtype, self.elements.mask)

    def write_full(self, row: Sequence[Index], piece: Index = 0) -> None:
        """Results that have an element for each of the row's."""
        if not self.full and not self.program.columns:
            return
        level = len(self.program.levels)

        def write_elements(index: list[Index], position: Index, _: list[Value]) -> Sequence[Value]:
            self._begin(position)
            self.prefetch_ahead(index, level)
            # All are computed before any is written: a result may lie where an operand does.
            values = [self.value(node, index, level) for node, _ in self.full]
            self.columns.add(index, lambda x: self.value(x, index, level))
            offset = self.indices.offset(index, self.program.space)
            for (node, pointer), value in zip(self.full, values, strict=True):
                self.registers.store(
                    value,
                    pointer,
                    offset,
                    node.dtype,
                    self.elements.mask,
                    non_temporal=self.non_temporal,
                )
            return []

        line = LINE // self.full[0][0].dtype.itemsize if self.non_temporal else 1
        self.each_element(row, piece, write_elements, line=line)

    # ------------------------------------------------------------- the kernel

    def emit(self) -> None:
        """All of it."""
        if self.program.pieces > 1:
            self._emit_in_pieces()
            return
        from llvmlite import ir

        offset = 0
        self.kept_at: dict[int, Value] = {}
        for node in self.program.kept:
            at = [i64(offset)]
            self.kept_at[node.id] = self.code.builder.gep(
                self.code.own, at, source_etype=ir.IntType(8)
            )
            offset += room(self.program.row_elements + self.program.lanes, node.dtype.itemsize)

        def whole(row: list[Index]) -> None:
            self.ready: set[int] = set()
            for level in range(len(self.program.levels)):
                self.fresh = set()
                guard = self.program.guards[level]
                if guard is not None:
                    self.chosen(level, guard, row)
                    continue
                totals = self.reduce(level, row)
                self.ready |= self.fresh
                self.finish(level, totals)
            self.fresh = set()
            self.write_single(row)
            self.write_full(row)

        def unit(number: Index, _: Sequence[Value]) -> Sequence[Value]:
            self.each_row(number, whole)
            return []

        if self.program.columns:
            self._emit_in_chunks(unit)
            return
        if prod(self.program.space) * len(self.code.body.nodes) <= SMALL:
            with self.code.alone():
                self.elements.loop(0, self.program.units, unit)
        else:
            self.elements.loop(*self.code.share(self.program.units), unit)

    # ------------------------------------------------------------- sums over rows

    def _emit_in_chunks(self, unit: Callable[[Index, list[Value]], Sequence[Value]]) -> None:
        """Rows in runs of a fixed number, each with sums of its own; then the sums of all runs."""
        program, indices, e = self.program, self.indices, self.elements
        chunks = program.chunks

        def chunk(number: Index, _: object) -> Sequence[Value]:
            self.columns.begin(number)
            first = indices.div(indices.mul(number, program.units), chunks)
            after = indices.div(indices.mul(indices.add(number, 1), program.units), chunks)
            e.loop(first, after, unit)
            return []

        e.loop(*self.code.share(chunks), chunk)
        self.code.barrier()
        self.columns.write()

    # ------------------------------------------------------------- rows in pieces

    def _emit_in_pieces(self) -> None:
        program, indices, e = self.program, self.indices, self.elements
        partials = Partials(self.code, program, e)
        self.kept_at, self.ready, self.fresh = {}, set(), set()
        # A thread has the same columns of all rows where these have weights in common: the weights' gradients, sums over rows, are shared out so too.
        length = prod(program.space) // program.units
        by_pieces = any(leaf.size == length for leaf in self.code.spec.inputs)
        for level in range(len(program.levels) + 1):
            # What has one element a row is written once.
            once = level == len(program.levels) and not self.full
            pieces = 1 if once else program.pieces

            def unit(
                number: Index, _: object, level: int = level, pieces: int = pieces
            ) -> Sequence[Value]:
                if by_pieces:
                    piece = indices.div(number, program.units)
                    row_number = indices.mod(number, program.units)
                else:
                    row_number = indices.div(number, pieces)
                    piece = indices.mod(number, pieces)

                def emit_row(row: list[Index]) -> None:
                    for earlier in range(level):
                        self.finish(earlier, partials.merged(earlier, row_number))
                    if level < len(program.levels):
                        totals = self.partial_results(level, row, piece)
                        for slot, total in enumerate(totals):
                            partials.store(level, slot, row_number, piece, total)
                        return
                    first = indices.compare("==", piece, 0)
                    with self.code.builder.if_then(first), e.scope():
                        self.write_single(row)
                    self.write_full(row, piece)

                self.each_row(row_number, emit_row)
                return []

            e.loop(*self.code.share(program.units * pieces), unit)
            if level < len(program.levels):
                self.code.barrier()


def _emit(code: Code) -> None:
    code = replace(code, spec=collapsed(code.spec))
    program = row_program(code.spec, code.width, most_kept(code.machine))
    if program is None:
        return
    full = [
        (node, pointer)
        for node, pointer in zip(code.body.outputs, code.results, strict=True)
        if tuple(sizes(node)) == program.space
    ]
    # Only where most vectors of a row are whole.
    ragged = len({node.dtype.itemsize for node, _ in full}) == 1 and not program.columns
    length = program.space[-1]
    whole = length % program.lanes == 0 or (ragged and length >= 4 * program.lanes)
    whole = whole and program.across
    nbytes = prod(program.space) * sum(node.dtype.itemsize for node, _ in full) if whole else 0
    addresses = [pointer for _, pointer in full]
    if program.columns or program.pieces > 1:
        either(
            code, nbytes, addresses, lambda non_temporal: _Rows(code, program, non_temporal).emit()
        )
    else:
        partly(
            code,
            nbytes,
            addresses,
            lambda own, non_temporal: _Rows(own, program, non_temporal).emit(),
        )


ROWS = Template("rows", _fits, _emit, _scratch)
