"""Loops that compute no more than is read of them: ``tidy_loops``.

Transforms write loops without looking at what is wanted of them: a gradient's forward loop computes the results of the first one once more, and a
tangent's loop carries what only the value needs. This pass makes one loop of two that repeat each other, drops carries, constants and stacks that no
result needs, puts small constants into bodies, and takes sums of products out of them.
"""

from __future__ import annotations

from ...graph.graph import Graph
from ...graph.node import Node
from .parts import Loop, insert, is_loop
from .prune import prune_loops
from .repeats import merge_repeats
from .rewrite import Lookup, Results, has_loops, moved, rewrite
from .sums import sums_outside

ROUNDS = 8
"""Passes over a graph: each nesting of loops may need one."""


def tidy_loops(graph: Graph) -> Graph:
    """The graph with loops that compute no more than is read of them; the graph itself where it has none."""
    if not has_loops(graph):
        return graph
    for _ in range(ROUNDS):
        before = graph.digest()
        graph = _bodies_tidied(sums_outside(prune_loops(merge_repeats(graph))))
        if graph.digest() == before:
            break
    return graph


def _bodies_tidied(graph: Graph) -> Graph:
    """The same for loops within bodies."""

    def change(result: Graph, node: Node, lookup: Lookup) -> Results:
        made = moved(Loop.of(node), lookup)
        return insert(result, made.with_body(tidy_loops(made.body)))

    nested = any(has_loops(node.attrs["body"]) for node in graph.nodes if is_loop(node))
    return rewrite(graph, change) if nested else graph


def finished(graph: Graph) -> Graph:
    """What a transform returns: the graph without dead nodes and with tidy loops."""
    return tidy_loops(graph.toposort())
