"""What a graph as a whole is predicted to take."""

from __future__ import annotations

from ..graph.graph import Graph
from ..graph.node import Node
from .declare import Mode
from .price import Pricer
from .report import Work


def computes(node: Node) -> bool:
    """Whether a node computes something: no leaf, no other view of what is there, no stored parameters."""
    if node.op.traits & {"leaf", "view"}:
        return False
    if node.op.name != "concat":
        return True
    return any(operand.op.name != "parameter" for operand in node.operands)


def active_nodes(graph: Graph) -> int:
    """The number of nodes that compute something."""
    return sum(map(computes, graph.nodes))


def graph_work(graph: Graph, pricer: Pricer, mode: Mode) -> Work:
    """What a graph is predicted to take: the prices of its nodes, stored values left out."""
    stored = [False] * len(graph)
    seconds = flops = moved = launches = 0.0
    for node in graph.nodes:
        if "leaf" in node.op.traits:
            stored[node.id] = node.op.name == "parameter" or (
                mode == "inference" and node.op.name == "constant"
            )
            continue
        fixed = bool(node.inputs) and all(stored[i] for i in node.inputs)
        if mode == "train":
            free = fixed and node.op.name == "concat"
        else:
            free = fixed and not node.op.traits & {"random", "barrier"}
            stored[node.id] = free
        if free:
            continue
        types = tuple([operand.type for operand in node.operands])
        price = pricer.price(node.op, node.slots, node.attrs, types, node.type)
        seconds += price.seconds
        flops += price.flops
        moved += price.bytes
        launches += price.launches
    return Work(seconds, flops, moved, launches)
