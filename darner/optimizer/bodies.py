"""Loops, optimized: what they carry and read, and their bodies, each different one once."""

from __future__ import annotations

from collections.abc import Callable

from ..graph.graph import Graph
from ..graph.node import Node
from ..transforms.loops.motion import move_products
from ..transforms.loops.parts import Loop, insert, is_loop
from ..transforms.loops.rewrite import Lookup, Results, has_loops, moved, rewrite
from ..transforms.loops.tidy import tidy_loops


def optimize_loops(graph: Graph, optimize: Callable[[Graph], Graph]) -> Graph:
    """The graph with loops that do less, and with optimized bodies.

    Products leave loops first, so that they are optimized with what is around them.
    """
    if not has_loops(graph):
        return graph
    graph = tidy_loops(move_products(tidy_loops(graph)))
    known: dict[Graph, Graph] = {}

    def optimized(body: Graph) -> Graph:
        if body not in known:
            known[body] = optimize(body).freeze()
        return known[body]

    def change(result: Graph, node: Node, lookup: Lookup) -> Results:
        made = Loop.of(node)
        return insert(result, moved(made, lookup).with_body(optimized(made.body)))

    return rewrite(graph, change) if any(map(is_loop, graph.nodes)) else graph
