"""Forward mode: tangents from what varies to the outputs.

No op needs a rule of its own here. A vjp is linear in its cotangent, so its transpose is the jvp: the vjp is built
once with a stand-in cotangent, pulled back in turn with the tangents as cotangents, and what results is a body that
maps operands, result and tangents to the result's tangent. Bodies are made once for equal questions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ..graph.edit import inline_by_name, without_dead_nodes
from ..graph.errors import ArgumentError, InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Op
from ..graph.types import TensorType, TupleType, Type
from .reverse import (
    apply_rule,
    is_differentiable,
    needed_nodes,
    passes_gradient,
    prepare,
    pull_back,
)

Tangents = dict[int, Any]


def push_forward(graph: Graph, tangents: Tangents, outputs: Sequence[Node]) -> None:
    """Append the tangents of all that ``outputs`` depend on, given those of some, to ``tangents``.

    The graph must be prepared. A node without an entry has tangent zero; to one that has an entry, what its operands
    send is added.
    """
    needed = needed_nodes(graph, outputs)
    for node in graph.nodes:
        if not needed[node.id] or not passes_gradient(node):
            continue
        if any(tangents.get(i) is not None for i in node.inputs):
            with graph.derived_from(node):
                found = tangent_of(node, [tangents.get(i) for i in node.inputs])
                own = tangents.get(node.id)
                if found is not None:
                    tangents[node.id] = found if own is None else own + found


def tangent_of(node: Node, tangents: Sequence[Any]) -> Any:
    """The tangent of one node from those of its operands (None for zero)."""
    if node.op.name == "project":
        return tangents[0][node.attrs["index"]]
    rule = node.op.rules.jvp
    if rule is not None:
        named = node.op.arguments(node.operands, node.slots)
        answer = rule(node.op.arguments(tangents, node.slots), node, **named, **node.attrs)
        if answer is not NotImplemented:
            return answer
    if node.op.rules.vjp is None:
        raise ArgumentError("has no derivative").located(node.op.name, node.label, "", node.source)
    known = tuple(tangent is not None for tangent in tangents)
    values = node.attrs.values()
    signs = tuple(math.copysign(1, value) for value in values if isinstance(value, float))
    types = tuple(operand.type for operand in node.operands)
    body = _jvp_body(node.op, types, node.slots, tuple(node.attrs.items()), known, signs)
    leaves = {f"x{i}": operand for i, operand in enumerate(node.operands)}
    if isinstance(node.type, TupleType):
        for i in range(len(node.type.items)):
            if f"y{i}" in body.inputs:
                leaves[f"y{i}"] = _projected(node, i)
    else:
        leaves["y0"] = node
    leaves.update({f"t{i}": t for i, t in enumerate(tangents) if t is not None})
    results = inline_by_name(node.graph, body, leaves)
    count = len(node.type.items) if isinstance(node.type, TupleType) else 1
    found: list[Node | None] = [None] * count
    for index, value in zip(_indices(body), results, strict=True):
        found[index] = value
    return tuple(found) if isinstance(node.type, TupleType) else found[0]


def _projected(node: Node, index: int) -> Node:
    return node.graph.insert("project", [node], ("source",), {"index": index}, source=node.source)


def _indices(body: Graph) -> list[int]:
    """Which results the outputs of a body are the tangents of."""
    return [int(str(i)) for i in body.name.split(":")[1].split(",") if i]


@lru_cache(maxsize=4096)
def _jvp_body(
    op: Op,
    types: tuple[Type, ...],
    slots: tuple[str, ...],
    attrs: tuple[tuple[str, Any], ...],
    known: tuple[bool, ...],
    signs: tuple[float, ...],
) -> Graph:
    """Operands ``x``, results ``y`` and tangents ``t`` to the tangents of the results."""
    declared, _ = op.infer_type(types, slots, dict(attrs))
    results = declared.items if isinstance(declared, TupleType) else (declared,)
    scratch = Graph("vjp")
    operands = [_leaf(scratch, f"x{i}", type_) for i, type_ in enumerate(types)]
    values = [_leaf(scratch, f"y{i}", type_) for i, type_ in enumerate(results)]
    varying = [i for i, type_ in enumerate(results) if type_.dtype.kind in ("float", "complex")]
    standins = {i: _leaf(scratch, f"u{i}", results[i]) for i in varying}
    if isinstance(declared, TupleType):
        result: Any = tuple(values)
        cotangent: Any = tuple(standins.get(i) for i in range(len(results)))
    else:
        result, cotangent = values[0], standins[0]
    parts = apply_rule(op, operands, slots, dict(attrs), result, cotangent, known)
    tangents = [
        _leaf(scratch, f"t{i}", type_) if known[i] else None for i, type_ in enumerate(types)
    ]
    pairs = [
        (p, t) for p, t in zip(parts, tangents, strict=True) if p is not None and t is not None
    ]
    wrt = [standins[i] for i in varying]
    rebuilt = prepare(scratch, wrt, [part for part, _ in pairs])
    graph = rebuilt.graph
    found = pull_back(
        graph,
        [rebuilt[part] for part, _ in pairs],
        [rebuilt[tangent] for _, tangent in pairs],
        [rebuilt[leaf] for leaf in wrt],
    )
    outputs = [(i, node) for i, node in zip(varying, found, strict=True) if node is not None]
    graph.set_outputs([node for _, node in outputs])
    graph.name = "jvp:" + ",".join(str(i) for i, _ in outputs)
    body = without_unused_leaves(graph)
    if any(name.startswith("u") for name in body.inputs):
        raise InternalError(f"the vjp of '{op.name}' is not linear in its cotangent")
    return body.freeze()


def _leaf(graph: Graph, name: str, type_: Type) -> Node:
    if not isinstance(type_, TensorType):
        raise InternalError("a differentiated operand cannot be a tuple")
    return graph.input(name, type_.shape, type_.dtype)


def without_unused_leaves(graph: Graph) -> Graph:
    """The graph without dead nodes, unused named leaves included."""
    trimmed = without_dead_nodes(graph)
    used = [bool(trimmed.use_count(n)) or trimmed.is_output(n) for n in trimmed.nodes]
    from ..graph.edit import copy_graph

    return copy_graph(trimmed, keep=used)


__all__ = ["is_differentiable", "push_forward", "tangent_of"]
