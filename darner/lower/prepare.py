"""A graph as lowering wants it: primitives, and the few composites that have kernels of their own; equal calls once.

Gradients then read what the forward pass keeps for them, on targets whose kernels keep it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.text.attributes import attribute_text
from ..graph.types import TensorType
from ..ops.quantised.stored import restored_node, stored_type
from ..transforms.channels_last import Wanted, with_channels_last
from ..transforms.expand import expand
from .copies import reading_copies
from .kept import with_kept
from .roles import stays_whole, whole_ops

MOST_WRITTEN = 256
"""Bytes of a constant that is part of a loop's body; larger ones are operands."""


def prepare(
    graph: Graph,
    whole: Collection[str] | None = None,
    keeps: bool = False,
    channels_last: Wanted | None = None,
) -> Graph:
    """Write out what has no kernel of its own, and merge what that makes twice.

    ``whole`` names the composites that stay; a backend that has no kernel for one leaves it out. With ``keeps`` gradients read what kernels of the forward
    pass keep (``with_kept``). ``channels_last`` says which convolutions it has better kernels for where channels are last in memory.

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
    written = expand(graph, keep=lambda node: node.op.name in names and stays_whole(node))
    if channels_last is not None:
        written = with_channels_last(
            written, lambda node: _kernel_of_last(node) in names and channels_last(node)
        )
    found = merged(_Bodies().rewritten(written))
    if keeps:
        # What gradients read rounded is rounded already where others read it so.
        found = merged(with_kept(found))
    return reading_copies(found)


def _kernel_of_last(node: Node) -> str:
    """The name of the op that a convolution is with channels last."""
    return node.op.facts.channels_last or node.op.facts.of_channels_last


class _Bodies:
    """Bodies of loops as they are lowered, with numbers for names and without large constants: each made once.

    What two layers call their weights makes no other kernel, and a large constant is an operand like any other, not part of code.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Graph, list[Node]]] = {}

    def rewritten(self, graph: Graph) -> Graph:
        """A graph with such bodies in its loops; the graph itself where it has none."""
        if not any(node.op.facts.role == "loop" for node in graph.nodes):
            return graph
        result = Graph(graph.name)
        made: dict[int, Node] = {}
        for node in graph.nodes:
            operands = [made[i] for i in node.inputs]
            if node.op.facts.role == "loop":
                made[node.id] = self._loop(result, node, operands)
            else:
                made[node.id] = result.insert_like(node, operands)
        result.set_outputs([made[node.id] for node in graph.outputs])
        for leaf, value in graph.updates.items():
            result.set_update(made[leaf.id], made[value.id])
        result.inherit(graph)
        return result

    def _loop(self, result: Graph, node: Node, operands: list[Node]) -> Node:
        first = len(node.slots) - node.slots.count("xs")
        key = id(node.attrs["body"]), first
        if key not in self._known:
            self._known[key] = self._body(node.attrs["body"], first)
        body, constants = self._known[key]
        found = [result.insert_like(constant, []) for constant in constants]
        return result.insert(
            node.op,
            [*operands[:first], *found, *operands[first:]],
            (*node.slots[:first], *["constants"] * len(found), *node.slots[first:]),
            {**node.attrs, "body": body},
            label=node.label,
            scope=node.scope,
            source=node.source,
        )

    def _body(self, body: Graph, first: int) -> tuple[Graph, list[Node]]:
        """A body, and its constants that come as operands after so many others."""
        inner = self.rewritten(body)
        result = Graph("body")
        constants = [
            node
            for node in inner.nodes
            if node.op.name == "constant" and int(node.type.nbytes) > MOST_WRITTEN
        ]
        leaves = list(inner.inputs.values())
        made: dict[int, Node] = {}
        for number, leaf in enumerate((*leaves[:first], *constants, *leaves[first:])):
            made[leaf.id] = result.input(str(number), leaf.shape, leaf.dtype)
        for node in inner.nodes:
            if node.id not in made:
                made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
        result.set_outputs([made[node.id] for node in inner.outputs])
        return result.freeze(), constants


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
