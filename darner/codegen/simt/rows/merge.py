"""Running results of reductions in a shader: of one thread, merged over threads, and as words of memory.

A running result is one value, or for ``argmax`` and ``argmin`` the best value and its place. Outside of registers all are words of 32 bits, whatever their types: so one array holds them,
and threads that run in step hand them to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ....backends.wgpu.writer import spelled
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.node import Node
from ...ir.index import Number
from ...ir.math import register_type
from ..elements import ShaderElements
from ..shader import Shader

State: TypeAlias = list[Any]
"""The values that a running result consists of."""

NOWHERE = 0xFFFFFFFF
"""The place of no element: behind all others."""
FAN = 8
"""Running results of other threads that a thread merges before all wait again."""
MOST_IN_STEP = 32


class Reduction:
    """One reduction of a body: what its running results are, and how they are merged."""

    def __init__(self, elements: ShaderElements, node: Node) -> None:
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

    def of(self, value: Any, place: Number) -> State:
        """The running result of one element, that stands at a place of its row."""
        if self.finds:
            return [value, self.elements.places.plain(place)]
        return [self.elements.registers.cast(value, self.node.operands[0].dtype, self.types[0])]

    def only_if(self, condition: str, state: State) -> State:
        """The running result, or that of no elements."""
        writer = self.elements.builder
        return [
            writer.let(
                value.type, f"select({writer.text(none)}, {writer.text(value)}, {condition})"
            )
            for value, none in zip(state, self.nothing(), strict=True)
        ]

    def merge(self, a: State, b: State) -> State:
        """Two running results as one."""
        registers, writer, node = self.elements.registers, self.elements.builder, self.node
        if not self.finds:
            return [registers.merge(node.op.name, a[0], b[0], node.dtype)]
        operand = node.operands[0].dtype
        other = registers.beats(node.op.name, b[0], a[0], operand)
        same = writer.not_(registers.beats(node.op.name, a[0], b[0], operand))
        # Of equal ones the first wins.
        before = writer.icmp_unsigned("<", b[1], a[1])
        other = writer.or_(other, writer.and_(same, before))
        return [writer.select(other, *pair) for pair in zip(b, a, strict=True)]

    def merge_all(self, states: Sequence[State]) -> State:
        """Many running results as one: pairs, then pairs of these."""
        while len(states) > 1:
            paired = [self.merge(a, b) for a, b in zip(states[::2], states[1::2], strict=False)]
            states = [*paired, *states[len(states) // 2 * 2 :]]
        return states[0]

    def result(self, state: State) -> Any:
        """What the reduction is."""
        registers, node = self.elements.registers, self.node
        if self.finds:
            return registers.of_index(state[1], node.dtype)
        return registers.reduced(node.op.name, state[0], node.dtype)

    def to_words(self, state: State) -> list[str]:
        """A running result as words: expressions of u32."""
        writer = self.elements.builder
        found: list[str] = []
        for value in state:
            text, kind = writer.text(value), spelled(value.type)
            if kind in ("f64", "u64"):
                whole = writer.name()
                writer.line(f"let {whole} = {f'bitcast<u64>({text})' if kind == 'f64' else text};")
                found += [f"u32({whole} & 0xfffffffflu)", f"u32({whole} >> 32u)"]
            else:
                found.append(
                    {"f32": f"bitcast<u32>({text})", "bool": f"u32({text})"}.get(kind, text)
                )
        return found

    def from_words(self, words: Sequence[str]) -> State:
        """What ``to_words`` gave."""
        writer, left = self.elements.builder, list(words)
        state: State = []
        for dtype in self.types:
            type_ = register_type(dtype)
            kind, first = spelled(type_), left.pop(0)
            if kind in ("f64", "u64"):
                text = f"(u64({first}) | (u64({left.pop(0)}) << 32u))"
                text = f"bitcast<f64>({text})" if kind == "f64" else text
            else:
                text = {"f32": f"bitcast<f32>({first})", "bool": f"{first} != 0u"}.get(kind, first)
            state.append(writer.let(type_, text))
        return state


def words_of(node: Node) -> int:
    """Words of memory that a reduction's running result takes."""
    if node.op.facts.finds:
        return 1 + max(1, node.operands[0].dtype.itemsize // 4)
    return max(1, node.dtype.itemsize // 4)


class Merger:
    """Merges running results over threads of a workgroup.

    It has two arrays of shared memory, used in turn: who is still reading one is waited for before the next but one is written.
    """

    def __init__(self, shader: Shader) -> None:
        self.shader = shader
        self.waits = 0
        self._sizes = [0, 0]

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return 4 * sum(self._sizes)

    def declare(self) -> None:
        """Declare the shared memory, when all is merged."""
        for turn, size in enumerate(self._sizes):
            if size:
                self.shader.shared(f"held{turn}", f"array<u32, {size}>")

    def over_threads(
        self,
        reductions: Sequence[Reduction],
        states: Sequence[State],
        peer: str,
        peers: int,
        other: str,
        others: int,
        *,
        adjacent: bool,
    ) -> list[State]:
        """Merge what ``peers`` threads have; every one of them gets the result.

        Args:
            reductions: what is merged.
            states: what this thread has of each.
            peer: the thread's number among those it is merged with.
            peers: how many these are, a power of two.
            other: the number of its set of peers.
            others: how many sets there are.
            adjacent: whether peers are threads side by side; otherwise threads of different sets are.
        """
        writer, machine = self.shader.writer, self.shader.machine
        in_step = 1
        states = list(states)
        if adjacent and machine.subgroup:
            most = min(peers, machine.subgroups[0], MOST_IN_STEP)
            while 2 * in_step <= most:
                states = [
                    one.merge(state, self._shuffled(one, state, in_step))
                    for one, state in zip(reductions, states, strict=True)
                ]
                in_step *= 2
        left = peers // in_step
        if left == 1:
            return states
        words = sum(one.words for one in reductions)
        turn = self.waits % 2
        start = 0
        number = peer if in_step == 1 else f"({peer} / {in_step}u)"

        def place(entry: str, count: int) -> str:
            at = f"{other} * {count}u + {entry}" if adjacent else f"{entry} * {others}u + {other}"
            return f"held{turn}[{start}u + ({at}) * {words}u"

        def write(entry: str, count: int, values: Sequence[State]) -> None:
            texts = [
                text
                for one, state in zip(reductions, values, strict=True)
                for text in one.to_words(state)
            ]
            at = place(entry, count)
            for word, text in enumerate(texts):
                writer.line(f"{at} + {word}u] = {text};")

        def read(entry: str, count: int) -> list[State]:
            at, word, found = place(entry, count), 0, []
            for one in reductions:
                names = []
                for _ in range(one.words):
                    name = writer.name("w")
                    writer.line(f"let {name} = {at} + {word}u];")
                    names.append(name)
                    word += 1
                found.append(one.from_words(names))
            return found

        def merged(first: str, step: int, count: int) -> list[State]:
            several = [read(f"({first} + {k}u)", count) for k in range(step)]
            return [
                one.merge_all([some[slot] for some in several])
                for slot, one in enumerate(reductions)
            ]

        if in_step == 1:
            write(number, left, states)
        else:
            with writer.block(f"if (({peer} & {in_step - 1}u) == 0u)"):
                write(number, left, states)
        self.shader.barrier()
        while left > FAN:
            fewer = left // FAN
            with writer.block(f"if ({peer} < {fewer}u)"):
                values = merged(f"{peer} * {FAN}u", FAN, left)
                start += left * others * words
                write(peer, fewer, values)
            self.shader.barrier()
            left = fewer
        self._sizes[turn] = max(self._sizes[turn], start + left * others * words)
        self.waits += 1
        return merged("0u", left, left)

    def _shuffled(self, one: Reduction, state: State, by: int) -> State:
        writer = self.shader.writer
        words = []
        for text in one.to_words(state):
            name = writer.name("w")
            writer.line(f"let {name} = subgroupShuffleXor({text}, {by}u);")
            words.append(name)
        return one.from_words(words)
