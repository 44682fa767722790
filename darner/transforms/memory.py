"""How much memory a graph needs when its nodes are computed in their order, from liveness alone.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (100,))
    >>> g.set_outputs([(x.exp() + x).sum()])
    >>> darner.peak_live_bytes(g)
    800

A value lives from its node to the last node that reads it; outputs and updates live to the end. Views share the
storage of what they view. Leaves (inputs, parameters, states, constants) lie outside: ``leaf_bytes`` counts them.
Nothing is computed in place here and nothing is fused, so this bounds what a plan needs from above; it is exact enough
to compare two graphs of the same model.
"""

from __future__ import annotations

from itertools import accumulate

from ..graph.dims import Dim
from ..graph.errors import Calling, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType, TupleType
from .loops.parts import is_loop

Storage = tuple[int, int]
"""A node, and which of its results."""


def live_bytes(graph: Graph) -> list[int]:
    """For each node, the bytes alive while it is computed: its operands, its result, and what waits."""
    with Calling("live_bytes"):
        return _live_bytes(graph)


def peak_live_bytes(graph: Graph) -> int:
    """The most bytes alive at any node."""
    with Calling("peak_live_bytes"):
        return max(_live_bytes(graph), default=0)


def leaf_bytes(graph: Graph) -> int:
    """The bytes of all leaves."""
    with Calling("leaf_bytes"):
        leaves = [node for node in graph.nodes if "leaf" in node.op.traits]
        return sum(_number(node.type.nbytes) for node in leaves)


def _live_bytes(graph: Graph) -> list[int]:
    """Add each storage where it is made, and take it away after its last use."""
    change = [0] * (len(graph) + 1)
    for (made, index), last in _last_uses(graph).items():
        node = graph.nodes[made]
        if "leaf" not in node.op.traits:
            size = _number(_item(node, index).nbytes)
            change[made] += size
            change[last + 1] -= size
    for node in filter(is_loop, graph.nodes):  # besides, what a step of it needs
        inside = max(_live_bytes(node.attrs["body"]), default=0)
        change[node.id] += inside
        change[node.id + 1] -= inside
    return list(accumulate(change))[: len(graph)]


def _last_uses(graph: Graph) -> dict[Storage, int]:
    """For each storage, the id of the last node that reads it; its own when none does."""
    stored: dict[int, list[Storage]] = {}
    last: dict[Storage, int] = {}
    for node in graph.nodes:
        if "view" in node.op.traits:  # it reads nothing: what reads it does
            viewed = stored[node.inputs[0]]
            one = node.op.name == "project"
            stored[node.id] = [viewed[node.attrs["index"]]] if one else viewed
            continue
        for i in node.inputs:
            last.update(dict.fromkeys(stored[i], node.id))
        count = len(node.type.items) if isinstance(node.type, TupleType) else 1
        stored[node.id] = [(node.id, index) for index in range(count)]
        last.update(dict.fromkeys(stored[node.id], node.id))
    for node in (*graph.outputs, *graph.updates.values()):
        last.update(dict.fromkeys(stored[node.id], len(graph) - 1))
    return last


def _item(node: Node, index: int) -> TensorType:
    return node.type.items[index] if isinstance(node.type, TupleType) else node.type


def _number(size: Dim) -> int:
    if not isinstance(size, int):
        raise ShapeError(f"{size} bytes depend on sizes that are not bound", hint="bind them first")
    return size
