"""A graph with computed values in place of leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..graph.errors import ArgumentError, Calling, ShapeError, UnknownNameError, nearest
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node

Build = Callable[[Graph], Node]


def substitute(graph: Graph, replacements: Mapping[str, Build]) -> Graph:
    """The graph with nodes in place of named leaves, which it then no longer has.

    Each replacement is a function that gets the new graph, with all the leaves that remain, and returns a node of the
    leaf's type. It may add leaves of its own.

    >>> import darner, numpy as np
    >>> g = darner.Graph()
    >>> g.set_outputs([g.input("x", (3,)) + g.input("y", (3,))])
    >>> doubled = darner.substitute(g, {"x": lambda new: new.inputs["y"] * 2.0})
    >>> darner.run(doubled, {"y": np.arange(3.0)})
    [array([0., 3., 6.], dtype=float32)]
    """
    with Calling("substitute"):
        for name in replacements:
            if name not in graph._names:
                hint = nearest(name, graph._names)
                raise UnknownNameError(f"graph '{graph.name}' has no leaf '{name}'", hint=hint)
        result = Graph(graph.name)
        mapped: dict[int, Node] = {}

        def place(node: Node) -> None:
            mapped[node.id] = result.insert_like(node, [mapped[i] for i in node.inputs])

        # Leaves first, so that every replacement can read them.
        for node in graph.nodes:
            if node.op.name in LEAVES and node.name not in replacements:
                place(node)
        for name, build in replacements.items():
            leaf = graph.nodes[graph._names[name]]
            mapped[leaf.id] = _replacement(result, leaf, build)
        for node in graph.nodes:
            if node.id not in mapped:
                place(node)
        result.set_outputs([mapped[node.id] for node in graph.outputs])
        for leaf, value in graph.updates.items():
            if leaf.name in replacements:
                raise ArgumentError(
                    f"'{leaf.name}' has an update: it cannot become a computed value"
                )
            result.set_update(mapped[leaf.id], mapped[value.id])
        result.inherit(graph)
        return result.toposort()


def _replacement(graph: Graph, leaf: Node, build: Build) -> Node:
    if not callable(build):
        raise ArgumentError(
            f"what replaces '{leaf.name}' must be a function of the new graph, got {build!r}"
        )
    node = build(graph)
    if not isinstance(node, Node) or node.graph is not graph:
        raise ArgumentError(f"what replaces '{leaf.name}' must return a node of the graph it gets")
    if node.type != leaf.type:
        raise ShapeError(f"'{leaf.name}' is {leaf.type}, but its replacement is {node.type}")
    return node
