"""Copies of a graph in which loops become other loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ...graph.graph import Graph
from ...graph.node import Node
from .parts import Loop, is_loop

Lookup: TypeAlias = Callable[[Node], Node]
Results: TypeAlias = Sequence[Node | None]
Change: TypeAlias = Callable[[Graph, Node, Lookup], Results]
"""A new graph, a loop of the old one, and where old nodes went, to the loop's results; None for those that nobody reads."""


def rewrite(graph: Graph, change: Change, live: Sequence[bool] | None = None) -> Graph:
    """A copy of a graph with other loops."""
    result = Graph(graph.name)
    mapped: dict[int, Node] = {}
    answers: dict[int, Results] = {}
    for node in graph.nodes:
        if live is not None and not live[node.id]:
            continue
        if is_loop(node):
            with result.derived_from(node):
                answers[node.id] = change(result, node, lambda old: mapped[old.id])
        elif node.op.name == "project" and node.inputs[0] in answers:
            found = answers[node.inputs[0]][node.attrs["index"]]
            if found is not None:
                mapped[node.id] = found
        else:
            mapped[node.id] = result.insert_like(node, [mapped[i] for i in node.inputs])
    result.set_outputs([mapped[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(mapped[leaf.id], mapped[value.id])
    result.inherit(graph)
    return result.toposort()


def moved(made: Loop, lookup: Lookup) -> Loop:
    """A loop of the old graph on nodes of the new one."""
    init, constants, xs = (
        tuple(lookup(node) for node in nodes) for nodes in (made.init, made.constants, made.xs)
    )
    return replace(made, init=init, constants=constants, xs=xs)


def has_loops(graph: Graph) -> bool:
    """Whether there is a loop in a graph."""
    return any(is_loop(node) for node in graph.nodes)
