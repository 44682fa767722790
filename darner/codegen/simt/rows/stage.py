"""One dispatch of a kernel of rows in the making: its reductions, its results, and partial results of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Self

from ....graph import dtypes
from ....graph.errors import InternalError
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...problems.rows import Passes
from ..builder import Memory, Operand, Value
from ..dispatch import Stage
from ..machine import Machine
from .kept import KeptRow
from .layout import AT_ONCE, Layout, row_count
from .merge import Merger, Peers, Reduction, State, words_of
from .online import above_lowest, completed, scaled
from .position import RowPlace, Vector


@dataclass(frozen=True)
class Partials:
    """Where partial results of all rows lie in scratch memory.

    Attributes:
        first: for each reduction, by its node's number, the first word.
        parts: partial results of a row.
        words: all words.
    """

    first: dict[int, int]
    parts: int
    words: int


def partials_of(passes: Passes, parts: int, start: int = 0) -> Partials:
    """Room for the partial results of all passes, from a word on."""
    first = {}
    for node in (node for level in passes.levels for node in level):
        first[node.id] = start
        start += words_of(node) * row_count(passes) * parts
    return Partials(first, parts, start)


class RowStage(RowPlace):
    """A dispatch, with what it reduces and writes.

    Args:
        spec: what the kernel computes.
        machine: for which GPU.
        passes: the reductions.
        layout: how rows are shared out, and which threads have one.
        words: of scratch memory.
        online: whether the first pass is one of two joined.
    """

    def __init__(
        self,
        spec: Spec,
        machine: Machine,
        passes: Passes,
        layout: Layout,
        *,
        words: int,
        online: bool,
    ) -> None:
        super().__init__(spec, machine, passes, layout)
        self.scratch = self.dispatch.scratch(0, words, dtypes.u32) if words else None
        self.online = online
        self.kept: KeptRow | None = None
        self.merger = Merger(self.dispatch)
        self.reductions = {
            node.id: Reduction(self.elements, node)
            for node in (*(node for level in passes.levels for node in level), *passes.columns)
        }
        summed = {node.id for node in passes.columns}
        outputs = list(zip(spec.body.outputs, self.dispatch.results, strict=True))
        self.full = [
            (number, *pair) for number, pair in enumerate(outputs) if self._is_full(pair[0])
        ]
        self.columns = [pair for pair in outputs if pair[0].id in summed]
        self.single = [
            pair for pair in outputs if not self._is_full(pair[0]) and pair[0].id not in summed
        ]

    def with_kept(self, nodes: Sequence[Node] | None) -> Self:
        """Let rows stay in the workgroup's memory, and after each pass these nodes of them."""
        if nodes is not None:
            self.kept = KeptRow(self, nodes, online=self.online)
        return self

    # ------------------------------------------------------------- passes

    def reduce(self, level: int, base: Number = 0, stop: Number | None = None) -> list[State]:
        """The running results of a pass, those of all threads of the row merged."""
        found = [self.reductions[node.id] for node in self.passes.levels[level]]
        self.hoist(level)

        def combine_vectors(vectors: list[Vector], values: list[Operand]) -> Sequence[Operand]:
            states = _unflattened(found, values)
            if self.online and level == 0:
                return _flattened(self._combined_online(found, vectors, states))
            return _flattened(
                [
                    self._combined(one, vectors, None if self.layout.held else state)
                    for one, state in zip(found, states, strict=True)
                ]
            )

        inside = combine_vectors if self.kept is None else self.kept.through(level, combine_vectors)
        stop = self._end(level, base, stop)
        values = self.over_row(inside, _flattened([one.nothing() for one in found]), base, stop)
        return self.merged(found, _unflattened(found, values))

    def _end(self, level: int, base: Number, stop: Number | None) -> Number | None:
        """Where a pass over a row ends: where it begins, if the row does not need it and would be read again."""
        guard = self.passes.guards[level]
        if guard is None or self.layout.held:
            return stop
        whole = self.place([0] * len(self.passes.axes))
        conditions = []
        for i, wanted in guard.conditions:
            node = self.spec.body.nodes[i]
            index = self.row if node.rank == len(self.row) else whole
            condition = self.places.value(self.elements.at(node, index))
            conditions.append(condition if wanted else ~condition)
        end = self.places.value(self.length if stop is None else stop)
        needless = reduce(or_, conditions)
        return self.builder.let(self.builder.choose(needless, self.places.value(base), end))

    def _combined(self, one: Reduction, vectors: Sequence[Vector], before: State | None) -> State:
        (x,) = one.node.operands
        states = []
        for vector in vectors:
            own = []
            for lane, index in enumerate(vector.indices):
                place = self.places.add(vector.start, lane) if one.finds else 0
                own.append(one.of(self.elements.at(x, index), place))
            state = one.merge_all(own)
            states.append(one.only_if(vector.valid, state))
        total = one.merge_all(states)
        return total if before is None else one.merge(before, total)

    def _combined_online(
        self, found: Sequence[Reduction], vectors: Sequence[Vector], before: Sequence[State]
    ) -> list[State]:
        """One more step of the largest element and the sum of powers below it."""
        peak, total = found
        highest = self._combined(peak, vectors, before[0])
        self.elements.give(peak.node, above_lowest(self.builder, highest[0]))
        powers = self._combined(total, vectors, None)
        so_far = scaled(self.builder, before[1][0], before[0][0], highest[0])
        return [highest, total.merge([so_far], powers)]

    def _has_peak(self, found: Sequence[Reduction]) -> bool:
        """Whether the first two of some reductions are those of two joined passes."""
        return self.online and found[0].node is self.passes.levels[0][0]

    def merged_here(
        self, found: Sequence[Reduction], several: Sequence[Sequence[State]]
    ) -> list[State]:
        """Running results that one thread has, merged."""
        if self._has_peak(found):
            highest = found[0].merge_all([states[0] for states in several])
            several = [
                [highest, [scaled(self.builder, total[0], peak[0], highest[0])], *rest]
                for peak, total, *rest in several
            ]
        return [
            one.merge_all([states[slot] for states in several]) for slot, one in enumerate(found)
        ]

    def merged(self, found: Sequence[Reduction], states: Sequence[State]) -> list[State]:
        """Running results of all threads of a row."""
        if not self._has_peak(found):
            return self._over_threads(found, states)
        (highest,) = self._over_threads(found[:1], states[:1])
        (peak,), (total,), *rest = states
        below = [scaled(self.builder, total, peak, highest[0])]
        below, *rest = self._over_threads(found[1:], [below, *rest])
        return [highest, [completed(self.builder, below[0], highest[0])], *rest]

    def _over_threads(self, found: Sequence[Reduction], states: Sequence[State]) -> list[State]:
        layout = self.layout
        peers = Peers(self.member, layout.peers, self.beside, layout.side, layout.adjacent)
        return self.merger.over_threads(found, states, peers)

    def give(self, level: int, states: Sequence[State]) -> None:
        """Let what follows know the results of a pass."""
        for node, state in zip(self.passes.levels[level], states, strict=True):
            self.elements.give(node, self.reductions[node.id].result(state))

    def hoist(self, level: int) -> None:
        """Compute what is one value a row before a loop over its elements, so that it is computed once."""
        if self.layout.held:
            return
        one = tuple(1 if a in self.passes.axes else s for a, s in enumerate(self.passes.space))
        gone = tuple(self.passes.space[axis] for axis in self.others)
        known = ("input", "take_along_axis")
        for node in self.spec.body.nodes:
            plain = node.op.name in known or "elementwise" in node.op.traits
            if not plain or self.passes.level[node.id] > level:
                continue
            if tuple(sizes(node)) == one:
                self.elements.at(node, self.place([0] * len(self.passes.axes)))
            elif tuple(sizes(node)) == gone:
                self.elements.at(node, self.row)

    # ------------------------------------------------------------- results

    def write_single(self, *also: Value) -> None:
        """Write results that have one element a row, where the conditions ``also`` hold."""
        if not self.single:
            return
        with self.builder.if_(self.is_first, self.row_valid, *also):
            for node, memory in self.single:
                whole = self.place([0] * len(self.passes.axes))
                index = self.row if node.rank == len(self.row) else whole
                value = self.elements.at(node, index)
                offset = self.places.offset(index, sizes(node))
                self.registers.store(value, memory, offset, node.dtype)

    @property
    def is_first(self) -> Value | None:
        """Whether this thread is the first of its row; None where each row has one."""
        return None if self.layout.peers == 1 else self.member == 0

    def write_full(self, base: Number = 0, stop: Number | None = None) -> None:
        """Write results that have an element for each of the row's."""
        if not self.full:
            return
        self.hoist(len(self.passes.levels))

        def write_vectors(vectors: list[Vector], _: list[Operand]) -> Sequence[Operand]:
            # All are computed before any is written: a result may lie where an operand does.
            made = [
                [self._to_write(number, node, vector) for number, node, _ in self.full]
                for vector in vectors
            ]
            for vector, values in zip(vectors, made, strict=True):
                with self.builder.if_(vector.valid, self.row_valid):
                    offset = self.places.offset(vector.indices[0], self.passes.space)
                    for (number, node, memory), own in zip(self.full, values, strict=True):
                        if number in self.joined:
                            self._write_joined(own, memory, offset, node)
                        else:
                            self.elements.store_vector(own, memory, offset, node.dtype)
            return []

        last = len(self.passes.levels)
        kept = self.kept
        inside = write_vectors if kept is None else kept.through(last, write_vectors)
        self.over_row(inside, [], base, stop)

    def _to_write(self, number: int, node: Node, vector: Vector) -> Operand:
        """The elements of a result; a word of them where neighbouring threads have the others."""
        values = [self.elements.at(node, index) for index in vector.indices]
        if number not in self.joined:
            return values
        return self.elements.word_of_threads(values[0], node.dtype)

    def _write_joined(self, word: Value, memory: Memory, offset: Number, node: Node) -> None:
        """Write a word that several threads have, by the first of them."""
        share = 4 // node.dtype.itemsize
        with self.builder.if_((self.builder.local & (share - 1)) == 0):
            memory[self.places.value(offset) >> (share.bit_length() - 1)] = word

    # ------------------------------------------------------------- partial results

    def write_partials(
        self, partials: Partials, nodes: Sequence[Node], states: Sequence[State], part: Number
    ) -> None:
        """Write a row's running results of a part."""
        with self.builder.if_(self.is_first, self.row_valid):
            for node, state in zip(nodes, states, strict=True):
                self.write_words(
                    self._partial(partials, node, part), self.reductions[node.id], state
                )

    def _partial(self, partials: Partials, node: Node, part: Number) -> Number:
        words = words_of(node)
        index, shape = [self.row_number, part], [self.rows, partials.parts]
        if not self.across:
            index, shape = index[::-1], shape[::-1]
        offset = self.places.mul(self.places.offset(index, shape), words)
        return self.places.add(offset, partials.first[node.id])

    def _words(self) -> Memory:
        if self.scratch is None:
            raise InternalError("a kernel of rows without scratch memory has partial results")
        return self.scratch

    def write_words(self, at: Number, one: Reduction, state: State) -> None:
        """Write a running result to scratch memory."""
        scratch = self._words()
        for number, word in enumerate(one.to_words(state)):
            scratch[at + number] = word

    def read_words(self, at: Number, one: Reduction) -> State:
        """A running result from scratch memory."""
        scratch = self._words()
        return one.from_words([scratch[at + number] for number in range(one.words)])

    def recall(self, totals: Partials) -> None:
        """Let a row's results be known that were written before."""
        for node in (node for level in self.passes.levels for node in level):
            one = self.reductions[node.id]
            state = self.read_words(self._partial(totals, node, 0), one)
            self.elements.give(node, one.result(state))

    def gather(self, partials: Partials, levels: int) -> list[State]:
        """Merge a row's partial results of the first passes, and let them be known."""
        nodes = [node for level in self.passes.levels[:levels] for node in level]
        if not nodes:
            return []
        found = [self.reductions[node.id] for node in nodes]

        def one_part(part: Number, valid: Value | None) -> list[State]:
            states = []
            for node, one in zip(nodes, found, strict=True):
                state = self.read_words(self._partial(partials, node, part), one)
                states.append(one.only_if(valid, state))
            return states

        states = self.merged(found, self.gathered(found, partials.parts, one_part))
        for node, state in zip(nodes, states, strict=True):
            self.elements.give(node, self.reductions[node.id].result(state))
        return states

    def gathered(
        self,
        found: Sequence[Reduction],
        parts: int,
        one_part: Callable[[Number, Value | None], list[State]],
    ) -> list[State]:
        """What this thread's share of so many parts comes to: every so many of them, as there are threads."""
        b, peers = self.builder, self.layout.peers
        at_once = min(AT_ONCE, ceil_div(parts, peers))
        step = peers * at_once

        def read_part(first: Number, number: int) -> list[State]:
            part = b.let(first + number * peers + self.member)
            if parts % step == 0:
                return one_part(part, None)
            valid = b.let(part < parts, "valid")
            return one_part(b.let(b.min(part, parts - 1)), valid)

        def merge_parts(first: Operand, values: list[Operand]) -> Sequence[Operand]:
            several = [read_part(first, number) for number in range(at_once)]
            return _flattened(self.merged_here(found, [_unflattened(found, values), *several]))

        nothing = _flattened([reduction.nothing() for reduction in found])
        if parts <= step:
            return _unflattened(found, merge_parts(0, nothing))
        return _unflattened(found, self.elements.loop(0, parts, merge_parts, nothing, step=step))

    def finish(self, groups: int) -> Stage:
        """The dispatch."""
        self.merger.declare()
        return self.dispatch.finish(groups)


def _flattened(states: Sequence[State]) -> list[Operand]:
    return [value for state in states for value in state]


def _unflattened(found: Sequence[Reduction], values: Sequence[Operand]) -> list[State]:
    left = list(values)
    return [[left.pop(0) for _ in one.types] for one in found]
