"""Rows that are too long for registers and fit in the memory that a workgroup shares: each thread keeps its own elements there from pass to pass.

What is kept after a pass is one value of an element that all later passes can be made of. So a row is read once, and nothing that takes long is computed twice. No thread reads what another
keeps, and none waits.

Softmax keeps the powers that its first pass makes, below the largest element that the thread has met so far (``online``), and that one beside them; the last pass scales them to the largest of
all. The next elements are on their way while powers are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ....graph import dtypes
from ....graph.graph import Graph
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.specs import sizes
from ...problems.rows import Passes
from ..builder import Memory, Operand, Value
from .layout import row_length
from .online import kept_scale
from .position import RowPlace, Vector


def kept_of(body: Graph, passes: Passes, *, online: bool = False) -> tuple[Node, ...] | None:
    """What is kept after each pass; None where some pass leaves nothing that all later ones can be made of. ``online`` says that the first pass is one of two joined."""
    if any(passes.guards):
        return None
    if online and passes.levels[0][1].operands[0].op.name != "exp":
        return None
    found: list[Node] = []
    levels = len(passes.levels)
    for level in range(levels):
        made = _above(_targets(body, passes, [level]), passes, found[-1:])
        later = _targets(body, passes, range(level + 1, levels + 1))
        if online and level == 0:
            # What else is made of the largest element is made of the largest so far.
            power = passes.levels[0][1].operands[0]
            made = {power.id: power}
        usable = [
            number
            for number in sorted(made, reverse=True)
            if made[number].dtype is dtypes.f32 and _is_enough(made[number], later, passes)
        ]
        if not usable or not later:
            return None
        found.append(made[usable[0]])
    return tuple(found)


def _is_enough(node: Node, later: Sequence[Node], passes: Passes) -> bool:
    """Whether nothing else that a row has many elements of is read from memory for what comes later, or made in another way than element by element."""
    others = [other for other in _above(later, passes, [node]).values() if other.id != node.id]
    return all("elementwise" in other.op.traits or other.op.name in FREE for other in others)


def _targets(body: Graph, passes: Passes, levels: Iterable[int]) -> list[Node]:
    """What passes are made for: the operands of their reductions, and after the last the results that rows have many elements of."""
    found: list[Node] = []
    for level in levels:
        if level < len(passes.levels):
            found += [node.operands[0] for node in passes.levels[level]]
        else:
            found += [node for node in body.outputs if tuple(sizes(node)) == passes.space]
    return found


def _above(nodes: Sequence[Node], passes: Passes, known: Sequence[Node]) -> dict[int, Node]:
    """The nodes with an element for each of the row's that some nodes are computed of, by their ids: those that are known too, but not what these are made of."""
    ends = {node.id for node in known}
    found: dict[int, Node] = {}
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if tuple(sizes(node)) == passes.space and node.id not in found:
            found[node.id] = node
            if node.id not in ends:
                stack += node.operands
    return found


FREE = ("iota", "constant", "broadcast_to", "stop_gradient")
"""Ops with many elements of a row that nothing is read for, or one value for each row."""


class KeptRow:
    """The memory of a workgroup's row, and what it holds.

    Args:
        stage: where a thread stands.
        nodes: what is kept after each pass.
        online: whether the first pass is one of two joined.
    """

    def __init__(self, stage: RowPlace, nodes: Sequence[Node], *, online: bool) -> None:
        self.stage = stage
        self.builder, self.elements = stage.builder, stage.elements
        self.nodes = nodes
        self.online = online
        layout, length = stage.layout, row_length(stage.passes)
        self.vector = layout.vector
        count = length // self.vector
        self.memory: Memory = self.builder.shared(dtypes.f32, count, "row", self.vector)
        if online:
            steps = ceil_div(length, layout.step)
            self.peaks: Memory = self.builder.shared(dtypes.f32, (steps, layout.peers), "peaks")

    def through(
        self,
        level: int,
        inside: Callable[[list[Vector], list[Operand]], Sequence[Operand]],
    ) -> Callable[[list[Vector], list[Operand]], Sequence[Operand]]:
        """What a pass does with vectors, with what the pass before has kept, keeping what the next one needs."""
        before = self.nodes[level - 1] if level else None
        after = self.nodes[level] if level < len(self.nodes) else None

        def combine(vectors: list[Vector], values: list[Operand]) -> Sequence[Operand]:
            places = [self.elements.places.value(v.start) for v in vectors]
            slots = [place >> (self.vector.bit_length() - 1) for place in places]
            if before is not None:
                self._recall(before, vectors, slots)
            made = inside(vectors, values)
            if after is not None and after is not before:
                for vector, slot in zip(vectors, slots, strict=True):
                    own = [self.elements.at(after, index) for index in vector.indices]
                    # Threads behind the row's end stand at the last elements, which are another's.
                    with self.builder.if_(vector.valid):
                        self.memory[slot] = own[0] if len(own) == 1 else self.builder.vector(own)
                if self._is_scaled(after):
                    self.peaks[self._step(places[0]), self.stage.member] = made[0]
            return made

        return combine

    def _is_scaled(self, node: Node) -> bool:
        """Whether a value is kept as a power below the largest element that its thread had met."""
        return self.online and node is self.nodes[0]

    def _step(self, place: Value) -> Value:
        """Which step of a thread through its row an element belongs to."""
        return place // self.stage.layout.step

    def _recall(self, node: Node, vectors: Sequence[Vector], slots: Sequence[Value]) -> None:
        """Let what is kept of some vectors be known: all are asked for before any is waited for."""
        b = self.builder
        held = [b.let(self.memory[slot], "kept") for slot in slots]
        factor: Operand = None
        if self._is_scaled(node):
            place = self.elements.places.value(vectors[0].start)
            peak = b.let(self.peaks[self._step(place), self.stage.member], "peak")
            highest = self.elements.at(self.stage.passes.levels[0][0], self.stage.row)
            factor = kept_scale(b, peak, highest)
        for vector, found in zip(vectors, held, strict=True):
            for index, value in zip(vector.indices, found.parts, strict=True):
                known = value if factor is None else b.fmul(value, factor)
                self.elements.know(node, index, known)
