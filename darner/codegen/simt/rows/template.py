"""Kernels with reductions: passes over the elements of a row, each row by some threads of a workgroup.

A row is what is reduced to one value: its elements run over the reduced axes, and rows over all others. Reductions that need no other are made in the first pass, those that need them in
the second, and so on; then the results are written. Threads merge what they have in registers, then with those that run in step, then through shared memory.

Where a workgroup has a whole row, that is one dispatch. Where there are few rows and much in each, a row is cut in pieces: every pass is a dispatch, which leaves one partial result for each
piece. Sums over all rows of what the last pass has, such as the gradient of a norm's weight, are made on the way, each workgroup having a run of rows; a dispatch of its own adds up the
runs. The order of a sum depends on shapes and the GPU's limits alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ...elements.collapse import collapsed
from ...elements.elements import can_emit
from ...ir.index import Number
from ...problems.rows import Passes, passes
from ..builder import Operand, Value
from ..dispatch import Stage, Written
from ..machine import Machine, power_above
from ..template import Template
from .kept import kept_of
from .layout import (
    AT_ONCE,
    ENOUGH_GROUPS,
    LONGEST,
    SIDE,
    THREADS,
    Layout,
    kept_layout,
    largest_group,
    layout_for,
    lies_across,
    most_held,
    row_count,
    row_length,
)
from .merge import Peers, Reduction, State, words_of
from .online import joined
from .stage import Partials, RowStage, partials_of

MOST_RUNS = 256
"""Runs of rows whose sums are kept apart: each is written and read once more."""


@lru_cache(maxsize=4096)
def _passes(spec: Spec) -> Passes | None:
    found = passes(spec, places=True)
    if found is None:
        return None
    ends = {output.id for output in spec.body.outputs}
    # Sums over rows are of rows along the last axis, and nothing here reads them.
    alone = lies_across(found) and len(found.axes) == 1
    fits = not found.columns or (alone and all(node.id in ends for node in found.columns))
    return found if fits else None


def _fits(spec: Spec, machine: Machine) -> bool:
    return spec.kind == "rows" and can_emit(spec.body) and _passes(collapsed(spec)) is not None


def _write(spec: Spec, machine: Machine) -> Written:
    spec = collapsed(spec)
    found = _passes(spec)
    if found is None:
        return Written(())
    while True:
        rows = _Rows(spec, machine, found)
        written = rows.written()
        if rows.shared <= machine.shared or machine.threads <= 1:
            return written
        # Fewer threads have less to share.
        machine = machine.with_threads(machine.threads // 2)


class _Rows:
    """The dispatches of one kernel."""

    def __init__(self, spec: Spec, machine: Machine, found: Passes) -> None:
        self.spec = spec
        self.machine = machine
        self.layout = layout_for(spec.body, found, machine)
        online = None if self.layout.held else joined(found)
        self.kept: tuple[Node, ...] | None = None
        layout = None if found.columns else kept_layout(self.layout, found, machine)
        if layout is not None:
            if online is not None:
                self.kept = kept_of(spec.body, online, online=True)
            if self.kept is None:
                self.kept = kept_of(spec.body, found)
                online = online if self.kept is None else None
        self.layout = self.layout if layout is None or self.kept is None else layout
        self.online = online is not None
        self.passes = online or found
        self.length, self.rows = row_length(found), row_count(found)
        self.blocks = ceil_div(self.rows, self.layout.side)
        self.words = 0
        self.shared = 0

    def stage(self, layout: Layout | None = None) -> RowStage:
        """A new dispatch."""
        layout = layout or self.layout
        return RowStage(
            self.spec, self.machine, self.passes, layout, words=self.words, online=self.online
        ).with_kept(self.kept)

    def finished(self, stage: RowStage, groups: int) -> Stage:
        """A dispatch that is all written."""
        self.shared = max(self.shared, stage.merger.nbytes)
        return stage.finish(groups)

    def written(self) -> Written:
        """All of it."""
        if self.layout.pieces > 1:
            stages = self.in_pieces()
        elif self.passes.columns and self.layout.held:
            stages = self.with_columns()
        else:
            stages = self.whole()
        return Written(tuple(stages), 4 * self.words)

    # ------------------------------------------------------------- a workgroup for a row

    def _at_row(self, stage: RowStage, block: Value) -> None:
        side = stage.layout.side
        number = block if side == 1 else block * side + stage.beside
        stage.at_row(number, certain=self.rows % side == 0)

    def whole(self) -> list[Stage]:
        """Every workgroup does all for its rows."""
        totals = self._totals()
        stage = self.stage()
        self._at_row(stage, stage.builder.group)
        for level in range(len(self.passes.levels)):
            states = stage.reduce(level)
            if totals is not None:
                stage.write_partials(totals, self.passes.levels[level], states, 0)
            stage.give(level, states)
        stage.write_single()
        stage.write_full()
        first = self.finished(stage, self.blocks)
        return [first] if totals is None else [first, *self.columns_apart(totals)]

    # ------------------------------------------------------------- pieces of rows

    def in_pieces(self) -> list[Stage]:
        """A dispatch for each pass, and one that writes."""
        levels, layout = len(self.passes.levels), self.layout
        partials = partials_of(self.passes, layout.pieces)
        self.words = partials.words
        totals = self._totals()
        stages = []
        for level in range(levels):
            stage = self.stage()
            ends = self._at_piece(stage)
            stage.gather(partials, level)
            states = stage.reduce(level, *ends)
            stage.write_partials(partials, self.passes.levels[level], states, self.piece)
            stages.append(self.finished(stage, self.blocks * layout.pieces))
        stage = self.stage()
        if stage.full:
            ends = self._at_piece(stage)
            first = [self.piece == 0]
        else:
            self._at_row(stage, stage.builder.group)
            ends, first = (0, None), []
        states = stage.gather(partials, levels)
        if totals is not None:
            nodes = [node for level in self.passes.levels for node in level]
            stage.write_partials(totals, nodes, states, 0)
        stage.write_single(*first)
        stage.write_full(*ends)
        stages.append(self.finished(stage, self.blocks * (layout.pieces if stage.full else 1)))
        return stages if totals is None else [*stages, *self.columns_apart(totals)]

    def _at_piece(self, stage: RowStage) -> tuple[Number, Number | None]:
        """Stand at a row and a piece of it; returns where the piece begins and ends."""
        layout = self.layout
        b = stage.builder
        block, piece = b.group // layout.pieces, b.group % layout.pieces
        if not stage.across:
            block, piece = b.group % self.blocks, b.group // self.blocks
        self.piece = b.let(piece, "piece")
        self._at_row(stage, block)
        base = b.let(self.piece * layout.piece, "base")
        return base, b.let(b.min(base + layout.piece, self.length), "end")

    # ------------------------------------------------------------- sums over rows

    def with_columns(self) -> list[Stage]:
        """Every workgroup has a run of rows, and the sums over them in registers."""
        layout, nodes = self.layout, self.passes.columns
        groups = min(self.blocks, MOST_RUNS)
        each = ceil_div(self.blocks, groups)
        groups = ceil_div(self.blocks, each)
        first = self._column_room(groups)
        stage = self.stage()
        found = [stage.reductions[node.id] for node in nodes]
        b, held = stage.builder, layout.held * layout.vector
        certain = groups * each * layout.side == self.rows

        def one_row(number: Number, values: list[Operand]) -> Sequence[Operand]:
            row = b.group * each + number
            if layout.side > 1:
                row = row * layout.side + stage.beside
            stage.at_row(row, certain=certain)
            for level in range(len(self.passes.levels)):
                stage.give(level, stage.reduce(level))
            stage.write_single()
            following, left = [], list(values)
            for one in found:
                (x,) = one.node.operands
                for vector in stage.held():
                    for index in vector.indices:
                        state = one.of(stage.elements.at(x, index), 0)
                        state = one.only_if(stage.row_valid, state)
                        following += one.merge([left.pop(0)], state)
            stage.write_full()
            if stage.merger.waits:
                # The next row's results are not to be written where some thread still reads this one's.
                b.barrier()
            return following

        stage.hold_shared()
        nothing = [value for one in found for _ in range(held) for value in one.nothing()]
        if each == 1:
            totals = list(one_row(0, nothing))
        else:
            totals = stage.elements.loop(0, each, one_row, nothing)
        for slot, one in enumerate(found):
            own = totals[slot * held : (slot + 1) * held]
            for k in range(layout.held):
                self._write_run(stage, one, k, own[k * layout.vector :], first[slot])
        return [self.finished(stage, groups), *self._added_up(groups, first)]

    def _write_run(
        self, stage: RowStage, one: Reduction, k: int, values: Sequence[Operand], first: int
    ) -> None:
        """What a run of rows comes to, for one vector of a thread: merged over the workgroup's rows, then written."""
        layout = self.layout
        states: list[State] = [[value] for value in values[: layout.vector]]
        states = stage.merger.over_threads(
            [one] * layout.vector,
            states,
            Peers(stage.beside, layout.side, stage.member, layout.peers, adjacent=False),
        )
        stretch = stage.stretches()[k]
        with stage.builder.if_(stage.beside == 0 if layout.side > 1 else None, stretch.valid):
            for lane, state in enumerate(states):
                place = stage.places.add(stretch.start, lane)
                at = self._run_at(one, first, stage.builder.group, place)
                stage.write_words(at, one, state)

    def _column_room(self, runs: int) -> list[int]:
        """Scratch memory for the sums of so many runs; returns the first word of each column sum."""
        first = []
        for node in self.passes.columns:
            first.append(self.words)
            self.words += words_of(node) * runs * self.length
        return first

    def _totals(self) -> Partials | None:
        """Room for what every row's reductions come to, where sums over rows are made by a dispatch of their own."""
        if not self.passes.columns or (self.layout.held and self.layout.pieces == 1):
            return None
        totals = partials_of(self.passes, 1, self.words)
        self.words = totals.words
        self.runs = self._runs()
        self.first = self._column_room(self.runs)
        return totals

    def _beside(self) -> Layout:
        """Threads side by side have different elements of a row, and the same one of different rows otherwise."""
        threads = min(THREADS, largest_group(self.machine))
        side = min(SIDE, threads, power_above(self.length))
        peers = threads // side
        at_once = min(AT_ONCE, most_held(self.spec.body, self.passes))
        return Layout(peers, side, 1, 0, at_once, 1, self.rows, adjacent=False)

    def _runs(self) -> int:
        layout = self._beside()
        step = layout.peers * layout.at_once
        wanted = ceil_div(ENOUGH_GROUPS, ceil_div(self.length, layout.side))
        runs = max(ceil_div(self.rows, step * LONGEST), min(wanted, self.rows // step), 1)
        self.run = ceil_div(self.rows, runs * step) * step
        return ceil_div(self.rows, self.run)

    def columns_apart(self, totals: Partials) -> list[Stage]:
        """Sums over runs of rows, whose own reductions are known."""
        layout = self._beside()
        stage = self.stage(layout)
        blocks = ceil_div(self.length, layout.side)
        b = stage.builder
        column, valid = self._at_column(stage, b.group % blocks)
        run = b.let(b.group // blocks, "run")
        base = b.let(run * self.run, "base")
        stop = b.let(b.min(base + self.run, self.rows), "stop")
        found = [stage.reductions[node.id] for node in self.passes.columns]

        def some_rows(start: Value, values: list[Operand]) -> Sequence[Operand]:
            made: list[list[State]] = [[] for _ in found]
            for k in range(layout.at_once):
                number = start + k * layout.peers + stage.member
                stage.at_row(number, certain=self.rows % (layout.peers * layout.at_once) == 0)
                stage.recall(totals)
                index = stage.place([column])
                for states, one in zip(made, found, strict=True):
                    state = one.of(stage.elements.at(one.node.operands[0], index), 0)
                    states.append(one.only_if(stage.row_valid, state))
            return [
                value
                for one, states, before in zip(found, made, values, strict=True)
                for value in one.merge([before], one.merge_all(states))
            ]

        nothing = [value for one in found for value in one.nothing()]
        step = layout.peers * layout.at_once
        sums = stage.elements.loop(base, stop, some_rows, nothing, step=step)
        states = stage.merged(found, [[value] for value in sums])
        with b.if_(stage.member == 0, valid):
            for one, state, first in zip(found, states, self.first, strict=True):
                at = self._run_at(one, first, run, column)
                stage.write_words(at, one, state)
        return [self.finished(stage, blocks * self.runs), *self._added_up(self.runs, self.first)]

    def _run_at(self, one: Reduction, first: int, run: Number, column: Number) -> Number:
        return first + (run * self.length + column) * one.words

    def _at_column(self, stage: RowStage, block: Value) -> tuple[Value, Value | None]:
        """The column that a thread has, and a condition where it may be behind the last."""
        b, side = stage.builder, stage.layout.side
        column = b.let(block * side + stage.beside, "column")
        if self.length % side == 0:
            return column, None
        return b.let(b.min(column, self.length - 1)), column < self.length

    def _added_up(self, runs: int, first: Sequence[int]) -> list[Stage]:
        """The dispatch that adds up the sums of all runs."""
        layout = self._beside()
        stage = self.stage(layout)
        column, valid = self._at_column(stage, stage.builder.group)
        found = [stage.reductions[node.id] for node in self.passes.columns]

        def one_run(run: Number, inside: Value | None) -> list[State]:
            states = []
            for one, start in zip(found, first, strict=True):
                at = self._run_at(one, start, run, column)
                states.append(one.only_if(inside, stage.read_words(at, one)))
            return states

        states = stage.merged(found, stage.gathered(found, runs, one_run))
        sums = {one.node.id: one.result(state) for one, state in zip(found, states, strict=True)}
        with stage.builder.if_(stage.member == 0, valid):
            for node, memory in stage.columns:
                stage.registers.store(sums[node.id], memory, column, node.dtype)
        return [self.finished(stage, ceil_div(self.length, layout.side))]


ROWS = Template("rows", _fits, _write)
