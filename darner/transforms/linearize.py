"""A graph split at a point: what is computed once, and the linear map that every step from there goes through.

>>> import darner, numpy as np
>>> g = darner.Graph()
>>> x = g.input("x", (2,))
>>> g.set_outputs([x.square()])
>>> primal, linear = darner.linearize(g, "x")
>>> value, *residuals = darner.run(primal, {"x": np.array([1.0, 3.0])})
>>> saved = {f"residual_{i}": residual for i, residual in enumerate(residuals)}
>>> darner.run(linear, {**saved, "tangent_x": np.array([0.5, 0.5])})
[array([1., 3.], dtype=float32)]
"""

from __future__ import annotations

from collections.abc import Iterable

from ..graph.edit import copy_graph
from ..graph.errors import Calling, ShapeError
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from .gradients import Wrt, pushed, select, short_names


def linearize(graph: Graph, wrt: Wrt = None) -> tuple[Graph, Graph]:
    """Two graphs: the primal one gives the outputs and residuals, the linear one tangents from residuals.

    The outputs of the first are those of ``graph``, followed by the values that the second needs. The second has the
    inputs ``residual_0``, ``residual_1``, ... for these, in order, and ``tangent_<name>`` for each of ``wrt``; its
    outputs are the tangents of the float outputs. Together they compute what ``jvp`` does, but the first needs to run
    once only. What is made of constants is not saved, and of a value and its broadcast only the value is.
    """
    with Calling("linearize"):
        chosen = select(graph, wrt)
        full, moved, tangents = pushed(graph, chosen, short_names(chosen))
        names = [str(leaf.name) for leaf in tangents]
        count = len(full.outputs)
        full.set_outputs([*full.outputs, *moved])
        full = full.toposort()
        follows = _reached(full, [full.inputs[name] for name in names])
        split = _Split(full, follows)
        for node in full.nodes:
            if follows[node.id]:
                split.copy(node)
        split.linear.set_outputs([split.take(node) for node in full.outputs[count:]])
        split.linear.inherit(full)
        full.set_outputs([*full.outputs[:count], *split.residuals])
        primal = copy_graph(full, keep=[not after for after in follows])
        return primal.toposort(), split.linear.toposort()


class _Split:
    """The linear graph, while it is made from the nodes that follow the tangents."""

    def __init__(self, full: Graph, follows: list[bool]) -> None:
        self.linear = Graph(full.name)
        self.residuals: list[Node] = []
        self._follows = follows
        sources = [node for node in full.nodes if node.op.name in LEAVES]
        random = [node for node in full.nodes if "random" in node.op.traits]
        self._varies = _reached(full, [*sources, *random])
        self._placed: dict[int, Node] = {}

    def take(self, node: Node) -> Node:
        """A node of the full graph in the linear one: copied, or as a residual."""
        if node.id not in self._placed:
            if self._follows[node.id] or not self._varies[node.id] or _is_cheap_view(node):
                self.copy(node)
            else:
                name = f"residual_{len(self.residuals)}"
                self.residuals.append(node)
                self._placed[node.id] = self.linear.input(name, node.shape, node.dtype)
        return self._placed[node.id]

    def copy(self, node: Node) -> None:
        """Compute a node in the linear graph."""
        self._placed[node.id] = self.linear.insert_like(
            node, [self.take(operand) for operand in node.operands]
        )


def _reached(graph: Graph, starts: Iterable[Node]) -> list[bool]:
    """The nodes that depend on some, themselves included."""
    reached = [False] * len(graph)
    for node in starts:
        reached[node.id] = True
    for node in graph.nodes:
        reached[node.id] = reached[node.id] or any(reached[i] for i in node.inputs)
    return reached


def _is_cheap_view(node: Node) -> bool:
    """Whether a view is of nothing larger, so that saving what it views is as good."""
    if "view" not in node.op.traits or len(node.inputs) != 1 or node.op.name == "project":
        return False
    try:
        return bool(node.operands[0].type.nbytes <= node.type.nbytes)
    except ShapeError:
        return False
