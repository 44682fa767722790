"""A graph as lowering wants it: primitives, and the few composites that have kernels of their own; equal calls once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..graph.attribute_text import attribute_text
from ..graph.edit import copy_graph
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..transforms.expand import expand
from .roles import stays_whole, whole_ops


def prepare(graph: Graph, whole: Collection[str] | None = None) -> Graph:
    """Write out what has no kernel of its own, and merge what that makes twice.

    ``whole`` names the composites that stay; a backend that has no kernel for one leaves it out.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (4, 8))
    >>> g.set_outputs([x.softmax(), x.log_softmax()])
    >>> names = [node.op.name for node in prepare(g).nodes]
    >>> names.count("max"), names.count("exp")
    (1, 1)
    """
    names = whole_ops() if whole is None else whole
    written = expand(graph, keep=lambda node: node.op.name in names and stays_whole(node))
    return merged(_with_plain_bodies(written, {}))


def _with_plain_bodies(graph: Graph, known: dict[int, Graph]) -> Graph:
    """The graph with loops whose bodies have numbers for names: what two layers call their weights makes no other kernel."""
    if not any(node.op.facts.role == "loop" for node in graph.nodes):
        return graph

    def attrs(node: Node) -> dict[str, Any]:
        if node.op.facts.role != "loop":
            return node.attrs
        body: Graph = node.attrs["body"]
        if id(body) not in known:
            known[id(body)] = _plain(body, known)
        return {**node.attrs, "body": known[id(body)]}

    return copy_graph(graph, attrs=attrs)


def _plain(body: Graph, known: dict[int, Graph]) -> Graph:
    result = Graph("body")
    inner = _with_plain_bodies(body, known)
    made: dict[int, Node] = {}
    for number, leaf in enumerate(inner.inputs.values()):
        made[leaf.id] = result.input(str(number), leaf.shape, leaf.dtype)
    for node in inner.nodes:
        if node.id not in made:
            made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[node.id] for node in inner.outputs])
    return result.freeze()


def merged(graph: Graph) -> Graph:
    """The graph with equal calls made once, and nothing that is not needed."""
    result = Graph(graph.name)
    known: dict[tuple[Any, ...], Node] = {}
    made: dict[int, Node] = {}
    source = graph.toposort()
    for node in source.nodes:
        operands = [made[i] for i in node.inputs]
        if node.op.name in LEAVES:
            made[node.id] = result.insert_like(node, operands)
            continue
        text = attribute_text(node.op, node.attrs)
        call = (node.op.name, node.slots, text, *[operand.id for operand in operands])
        found = known.get(call)
        if found is None:
            found = known[call] = result.insert_like(node, operands)
        made[node.id] = found
    result.set_outputs([made[node.id] for node in source.outputs])
    for leaf, value in source.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    result.inherit(graph)
    return result
