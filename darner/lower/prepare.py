"""A graph as lowering wants it: primitives, and the few composites that have kernels of their own; equal calls once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..graph.attribute_text import attribute_text
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.types import TensorType
from ..ops.leaves import restored_node, stored_type
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
    graph = with_stored_parameters(graph)
    return merged(expand(graph, keep=lambda node: node.op.name in names and stays_whole(node)))


def with_stored_parameters(graph: Graph) -> Graph:
    """The graph with its parameters as they lie in memory, and what they are decoded to where they were.

    >>> import darner
    >>> g = darner.Graph("stored")
    >>> g.set_outputs([g.input("x", (4, 32)) @ g.parameter("w", (32, 6), storage="q8")])
    >>> [str(node.type) for node in with_stored_parameters(g).nodes]
    ['f32[4, 32]', 'u8[6, 34]', 'f32[6, 32]', 'f32[32, 6]', 'f32[4, 6]']
    """
    if all(leaf.attrs["storage"] == "dense" for leaf in graph.parameters.values()):
        return graph
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        kept = node.attrs["storage"] if node.op.name == "parameter" else "dense"
        if kept == "dense":
            made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
            continue
        lies = stored_type(TensorType(node.shape, node.dtype), kept)
        attrs = {**node.attrs, "shape": lies.shape, "dtype": lies.dtype}
        attrs |= {"storage": "dense", "init": None}
        leaf = result.insert("parameter", [], (), attrs, scope=node.scope, source=node.source)
        made[node.id] = restored_node(leaf, kept, node.dtype)
    result.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    result.inherit(graph)
    return result


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
