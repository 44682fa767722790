"""What a graph as a whole is predicted to take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..graph.graph import Graph
from ..graph.node import Node
from .declare import Mode
from .price import Price, Pricer
from .report import Work


def computes(node: Node) -> bool:
    """Whether a node computes something: no leaf, no other view of what is there, no stored parameters."""
    if node.op.traits & {"leaf", "view"}:
        return False
    if node.op.name != "concat":
        return True
    return any(operand.op.name != "parameter" for operand in node.operands)


def active_nodes(graph: Graph, mode: Mode) -> int:
    """The number of nodes that compute something at every run."""
    kept = kept_nodes(graph, mode)
    return sum(computes(node) and not kept[node.id] for node in graph.nodes)


def kept_nodes(graph: Graph, mode: Mode) -> list[bool]:
    """For each node whether it is stored rather than computed.

    Side by side, parameters are stored so. In inference all is that is computed from parameters and constants alone.
    """
    stored = [False] * len(graph)
    kept = [False] * len(graph)
    for node in graph.nodes:
        name = node.op.name
        if "leaf" in node.op.traits:
            stored[node.id] = name == "parameter" or (mode == "inference" and name == "constant")
        elif node.inputs and all(stored[i] for i in node.inputs):
            if mode == "train":
                kept[node.id] = name == "concat"
            else:
                kept[node.id] = stored[node.id] = not node.op.traits & {"random", "barrier"}
    return kept


def graph_work(
    graph: Graph, pricer: Pricer, mode: Mode, counts: Mapping[int, int] | None = None
) -> Work:
    """What a graph is predicted to take at every run: the prices of its nodes, kept ones left out.

    ``counts`` says how often each node counts, others not at all: of equal blocks one stands for all.
    """
    kept = kept_nodes(graph, mode)
    nodes = list(graph.nodes)
    known: dict[tuple[Any, ...], Price] = {}
    seconds = flops = moved = launches = 0.0
    for node in nodes:
        times = 1 if counts is None else counts.get(node.id, 0)
        if not times or kept[node.id] or "leaf" in node.op.traits:
            continue
        types = tuple([nodes[i].type for i in node.inputs])
        call = (id(node.op), id(node.attrs), node.slots, *[id(type_) for type_ in types])
        price = known.get(call)
        if price is None:
            price = pricer.price(node.op, node.slots, node.attrs, types, node.type)
            known[call] = price
        seconds += times * price.seconds
        flops += times * price.flops
        moved += times * price.bytes
        launches += times * price.launches
    return Work(seconds, flops, moved, launches)
