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
) -> tuple[int, Work]:
    """How many nodes compute something at every run, and what they are predicted to take together.

    ``counts`` says how often each node counts, others not at all: of equal blocks one stands for all.
    """
    kept = kept_nodes(graph, mode)
    nodes = list(graph.nodes)
    known: dict[tuple[Any, ...], Price] = {}
    active = 0
    seconds = flops = moved = launches = 0.0
    for node in nodes:
        times = 1 if counts is None else counts.get(node.id, 0)
        if not times or kept[node.id] or "leaf" in node.op.traits:
            continue
        active += times * computes(node)
        types = [nodes[i].type for i in node.inputs]
        call = (id(node.op), id(node.attrs), node.slots, *map(id, types))
        price = known.get(call)
        if price is None:
            price = pricer.price(node.op, node.slots, node.attrs, tuple(types), node.type)
            known[call] = price
        seconds += times * price.seconds
        flops += times * price.flops
        moved += times * price.bytes
        launches += times * price.launches
    return active, Work(seconds, flops, moved, launches)
