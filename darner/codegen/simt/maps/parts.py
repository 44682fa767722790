"""Maps whose results are concatenations along the last axis, such as rotary position embedding: a thread makes the same elements of all parts, and writes each where it belongs.

Parts often read the same (both halves of a head are made of both), and an element of a concatenation that is asked for by itself computes every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.specs import sizes
from ....ops.faults import can_fail
from ..builder import Value

MOST_PARTS = 4
"""Parts that a thread makes at once, at most."""


@dataclass(frozen=True)
class Parts:
    """A map by the parts of its results.

    Attributes:
        body: its computation with an output for each part of each result, all of one shape.
        count: parts of each result.
        shape: of a part.
    """

    body: Graph
    count: int
    shape: tuple[int, ...]

    def item(self, output: int, unit: Value, together: int) -> Value:
        """Where the unit of a part lies in its result, in units: ``output`` is the number among the body's outputs."""
        units, part = self.shape[-1] // together, output % self.count
        return (unit // units * self.count + part) * units + unit % units


def parts_of(body: Graph, outputs: Sequence[Node], together: int) -> Parts | None:
    """The parts of a map's results, where all of these are concatenations of equally many equal parts, whose rows are whole vectors of so many elements."""
    if any(map(can_fail, body.nodes)) or any(node.dtype.itemsize > 4 for node in outputs):
        return None
    found = [_joined(output) for output in outputs]
    first = found[0]
    if first is None:
        return None
    count, shape = len(first.operands), tuple(sizes(first.operands[0]))
    for node in found:
        if node is None or len(node.operands) != count:
            return None
        if any(tuple(sizes(part)) != shape for part in node.operands):
            return None
    if not 1 < count <= MOST_PARTS or not prod(shape) or shape[-1] % together:
        return None
    joined = [node for node in found if node is not None]
    return Parts(_by_parts(body, outputs, joined), count, shape)


def _joined(output: Node) -> Node | None:
    """The concatenation along its last axis that a result is, but for what is done with each element alone; a reshape leaves elements where they are."""
    node = output
    while node.op.name != "concat":
        if node.op.name != "reshape" and not _is_alone(node):
            return None
        node = node.operands[0]
    return node if node.attrs["axis"] == node.rank - 1 else None


def _is_alone(node: Node) -> bool:
    return "elementwise" in node.op.traits and len(node.operands) == 1


def _by_parts(body: Graph, results: Sequence[Node], joined: Sequence[Node]) -> Graph:
    """The body with outputs that are parts of some results: those of the first, then those of the next."""
    result = Graph(body.name)
    made: dict[int, Node] = {}
    for node in body.nodes:
        made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    outputs = []
    for output, whole in zip(results, joined, strict=True):
        chain, node = [], output
        while node.id != whole.id:
            chain.append(node)
            node = node.operands[0]
        for part in whole.operands:
            end = made[part.id]
            for step in reversed(chain):
                if step.op.name != "reshape":
                    end = result.insert_like(step, [end])
            outputs.append(end)
    result.set_outputs(outputs)
    return result.freeze()
