"""What gradients read of the forward pass instead of computing it again.

Where a graph has a call of an op and its gradient on the same operands, the gradient takes the call's result, and statistics that the
call's kernel writes beside it (``Facts.kept``). Graphs before lowering know nothing of that: derivatives, batches and recomputation treat the
two as any others, and a gradient whose call is not there (in a loop's other half, say) computes all by itself.
"""

from __future__ import annotations

from ..graph.facts import Kept
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import OPS
from ..graph.text.attributes import attribute_text
from .strided import is_tf32, is_view, is_widening

OWN = ("dy", "out", "statistics")
"""Operands of a gradient that the op does not have."""


def keeps_anything(body: Graph) -> bool:
    """Whether a kernel makes or reads what is kept."""
    for node in body.nodes:
        facts = node.op.facts
        if facts.beside is not None or (facts.kept is not None and "statistics" in node.slots):
            return True
    return False


def with_kept(graph: Graph) -> Graph:
    """The graph with gradients that read what the forward pass keeps; equal calls were merged before.

    >>> import darner
    >>> g = darner.Graph()
    >>> q, k, v, dy = (g.input(name, (1, 2, 8, 4)) for name in ("q", "k", "v", "dy"))
    >>> g.set_outputs([g.scaled_dot_attention(q, k, v), *g.scaled_dot_attention_backward(q, k, v, dy)])
    >>> [node.op.name for node in with_kept(g).nodes if node.op.name.startswith("attention")]
    ['attention_statistics']
    """
    calls = {_call(node): node for node in graph.nodes}
    pairs: dict[int, Node] = {}
    for node in graph.nodes:
        kept = node.op.facts.kept
        if kept is None or "out" in node.slots:
            continue
        forward = calls.get(_call(node, kept))
        if forward is not None:
            pairs[node.id] = forward
    return _rewritten(graph, pairs) if pairs else graph


def _call(node: Node, kept: Kept | None = None) -> tuple[object, ...]:
    """What tells calls apart; of a gradient, the call that it is the gradient of."""
    given = list(zip(node.slots, node.inputs, strict=True))
    if kept is None:
        return (node.op.name, tuple(given), attribute_text(node.op, node.attrs))
    own = tuple((slot, id) for slot, id in given if slot not in OWN)
    return (kept.op, own, attribute_text(OPS[kept.op], node.attrs))


def _rewritten(graph: Graph, pairs: dict[int, Node]) -> Graph:
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    besides: dict[int, tuple[Node, Node]] = {}
    for node in graph.nodes:
        if node.id in made:
            continue
        operands = [made[i] for i in node.inputs]
        kept, forward = node.op.facts.kept, pairs.get(node.id)
        if kept is None or forward is None:
            made[node.id] = result.insert_like(node, operands)
            continue
        if forward.id not in made:
            # It reads nothing that the gradient does not.
            made[forward.id] = result.insert_like(forward, [made[i] for i in forward.inputs])
        if forward.id not in besides:
            besides[forward.id] = _beside(result, made[forward.id], kept)
        made[node.id] = result.insert(
            node.op,
            [*operands, *besides[forward.id]],
            (*node.slots, "out", "statistics"),
            node.attrs,
            label=node.label,
            scope=node.scope,
            source=node.source,
        )
    result.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    result.inherit(graph)
    return result


def _beside(result: Graph, forward: Node, kept: Kept) -> tuple[Node, Node]:
    """The result as gradients read it, rounded as the op's own operands are, and what its kernel writes beside it."""
    statistics = result.insert(
        kept.beside,
        list(forward.operands),
        forward.slots,
        forward.attrs,
        scope=forward.scope,
        source=forward.source,
    )
    first = forward.operands[0]
    while is_view(first):
        (first,) = first.operands
    with result.derived_from(forward):
        if is_widening(first):
            return forward.cast(first.operands[0].dtype).cast(forward.dtype), statistics
        if is_tf32(first):
            bits = {name: first.attrs[name] for name in ("exponent_bits", "mantissa_bits")}
            return forward.reduce_precision(**bits), statistics
    return forward, statistics
