"""Running results of reductions: of one thread, merged over threads, and as words of memory.

A running result is one value, or for ``argmax`` and ``argmin`` the best value and its place. Outside of registers all are words of 32 bits, whatever their types: so one array holds them,
and threads that run in step hand them to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.node import Node
from ...ir.index import Number
from ..builder import Operand, Value
from ..dispatch import Dispatch
from ..elements import ThreadElements

State: TypeAlias = list[Operand]
"""The values that a running result consists of."""

NOWHERE = 0xFFFFFFFF
"""The place of no element: behind all others."""
FAN = 8
"""Running results of other threads that a thread merges before all wait again."""
MOST_IN_STEP = 32


class Reduction:
    """One reduction of a body: what its running results are, and how they are merged."""

    def __init__(self, elements: ThreadElements, node: Node) -> None:
        self.elements = elements
        self.node = node
        self.finds = node.op.facts.finds
        operand = node.operands[0].dtype
        kept = elements.registers.kept_in(node.dtype)
        self.types: list[DType] = [operand, dtypes.u32] if self.finds else [kept]

    @property
    def words(self) -> int:
        """Words of memory that a running result takes."""
        return words_of(self.node)

    def nothing(self) -> State:
        """The running result of no elements."""
        registers, node = self.elements.registers, self.node
        if self.finds:
            least = registers.least(node.op.name, node.operands[0].dtype)
            return [least, registers.constant(NOWHERE, dtypes.u32)]
        return [registers.neutral(node.op.name, node.operands[0].dtype, node.dtype)]

    def of(self, value: Operand, place: Number) -> State:
        """The running result of one element, that stands at a place of its row."""
        if self.finds:
            return [value, self.elements.places.plain(place)]
        return [self.elements.registers.cast(value, self.node.operands[0].dtype, self.types[0])]

    def only_if(self, condition: Value | None, state: State) -> State:
        """The running result, or that of no elements; None always holds."""
        if condition is None:
            return state
        select = self.elements.builder.select
        return [
            select(condition, value, none)
            for value, none in zip(state, self.nothing(), strict=True)
        ]

    def merge(self, left: State, right: State) -> State:
        """Two running results as one."""
        registers, b, node = self.elements.registers, self.elements.builder, self.node
        if not self.finds:
            return [registers.merge(node.op.name, left[0], right[0], node.dtype)]
        operand = node.operands[0].dtype
        other = registers.beats(node.op.name, right[0], left[0], operand)
        same = b.not_(registers.beats(node.op.name, left[0], right[0], operand))
        # Of equal ones the first wins.
        before = b.icmp_unsigned("<", right[1], left[1])
        other = b.or_(other, b.and_(same, before))
        return [b.select(other, *pair) for pair in zip(right, left, strict=True)]

    def merge_all(self, states: Sequence[State]) -> State:
        """Many running results as one: pairs, then pairs of these."""
        while len(states) > 1:
            paired = [self.merge(a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
            states = [*paired, *states[len(states) // 2 * 2 :]]
        return states[0]

    def result(self, state: State) -> Operand:
        """What the reduction is."""
        registers, node = self.elements.registers, self.node
        if self.finds:
            return registers.of_index(state[1], node.dtype)
        return registers.reduced(node.op.name, state[0], node.dtype)

    def to_words(self, state: State) -> list[Value]:
        """A running result as words of 32 bits."""
        return [word for value in state for word in self.elements.builder.words(value)]

    def from_words(self, words: Sequence[Value]) -> State:
        """What ``to_words`` gave."""
        state: State = []
        left = list(words)
        for dtype in self.types:
            own = [left.pop(0) for _ in range(max(1, dtype.itemsize // 4))]
            state.append(self.elements.builder.of_words(own, dtype))
        return state


def words_of(node: Node) -> int:
    """Words of memory that a reduction's running result takes."""
    if node.op.facts.finds:
        return 1 + max(1, node.operands[0].dtype.itemsize // 4)
    return max(1, node.dtype.itemsize // 4)


@dataclass(frozen=True)
class Peers:
    """Threads of a workgroup in sets, those of each merged with one another.

    Attributes:
        thread: this thread's number among its peers.
        count: how many these are, a power of two.
        chosen: the number of its set.
        sets: how many sets there are.
        adjacent: whether peers are threads side by side; otherwise threads of different sets are.
    """

    thread: Value
    count: int
    chosen: Value
    sets: int
    adjacent: bool


class Merger:
    """Merges running results over threads of a workgroup.

    It has two arrays of shared memory, used in turn: who is still reading one is waited for before the next but one is written.
    """

    def __init__(self, dispatch: Dispatch) -> None:
        self.dispatch = dispatch
        self.builder = dispatch.builder
        self.waits = 0
        self._held = [self.builder.shared(dtypes.u32, 0, f"held{turn}") for turn in range(2)]
        self._sizes = [0, 0]

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return 4 * sum(self._sizes)

    def declare(self) -> None:
        """Give the shared memory its size, when all is merged."""
        for held, size in zip(self._held, self._sizes, strict=True):
            self.builder.resize(held, size)

    def over_threads(
        self,
        reductions: Sequence[Reduction],
        states: Sequence[State],
        peers: Peers,
    ) -> list[State]:
        """Merge what threads have, ``states`` of each of the ``reductions``; every one of them gets the result."""
        b, machine = self.builder, self.dispatch.machine
        in_step = 1
        states = list(states)
        if peers.adjacent and machine.subgroup:
            most = min(peers.count, machine.subgroups[0], MOST_IN_STEP)
            while 2 * in_step <= most:
                states = [
                    one.merge(state, self._shuffled(one, state, in_step))
                    for one, state in zip(reductions, states, strict=True)
                ]
                in_step *= 2
        left = peers.count // in_step
        if left == 1:
            return states
        words = sum(one.words for one in reductions)
        turn = self.waits % 2
        held, start = self._held[turn], 0

        def place(entry: Number, count: int) -> Number:
            """The first word of an entry, of ``count`` that each set has."""
            chosen, sets = peers.chosen, peers.sets
            at = chosen * count + entry if peers.adjacent else entry * sets + chosen
            return start + at * words

        def write(entry: Number, count: int, values: Sequence[State]) -> None:
            at = place(entry, count)
            texts = [
                word
                for one, state in zip(reductions, values, strict=True)
                for word in one.to_words(state)
            ]
            for number, word in enumerate(texts):
                held[at + number] = word

        def read(entry: Number, count: int) -> list[State]:
            at, found = place(entry, count), []
            number = 0
            for one in reductions:
                found.append(one.from_words([held[at + number + k] for k in range(one.words)]))
                number += one.words
            return found

        def merged(first: Number, step: int, count: int) -> list[State]:
            several = [read(first + k, count) for k in range(step)]
            return [
                one.merge_all([some[slot] for some in several])
                for slot, one in enumerate(reductions)
            ]

        with b.if_(None if in_step == 1 else (peers.thread & (in_step - 1)) == 0):
            write(peers.thread // in_step, left, states)
        b.barrier()
        while left > FAN:
            fewer = left // FAN
            with b.if_(peers.thread < fewer):
                values = merged(peers.thread * FAN, FAN, left)
                start += left * peers.sets * words
                write(peers.thread, fewer, values)
            b.barrier()
            left = fewer
        self._sizes[turn] = max(self._sizes[turn], start + left * peers.sets * words)
        self.waits += 1
        return merged(0, left, left)

    def _shuffled(self, one: Reduction, state: State, by: int) -> State:
        words = one.to_words(state)
        return one.from_words([self.builder.shuffle_xor(word, by) for word in words])
