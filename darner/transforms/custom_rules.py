"""Derivatives and batches of ``custom_fn`` and ``custom_fn_tuple``: what their bodies say, or the transpose of it.

The rules stand here rather than beside the ops because they transform the bodies themselves: a ``jvp_body`` is pulled
back where reverse mode has no ``vjp_body``, and every body is taken over a batch. Loading the package adds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypedDict, Unpack

import numpy as np

from ..graph.dims import Dim
from ..graph.edit import copy_graph, inline_by_name
from ..graph.errors import ArgumentError, InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType
from ..ops.custom.bodies import (
    COTANGENT,
    PRIMAL,
    TANGENT,
    float_outputs,
    is_float,
    numbered,
    primal_inputs,
)
from ..ops.custom.functions import custom_fn, custom_fn_tuple
from .batch import vmap
from .reverse import prepare, pull_back


class Bodies(TypedDict):
    """The graphs of a custom function."""

    body: Graph
    vjp_body: Graph | None
    jvp_body: Graph | None


# --------------------------------------------------------------------------- derivatives


@custom_fn.vjp
def _(g: Node, out: Node, inputs: list[Node], **bodies: Unpack[Bodies]) -> Any:
    return {"inputs": _gradients([g], [out], [""], inputs, bodies)}


@custom_fn_tuple.vjp
def _(
    g: tuple[Node | None, ...], out: tuple[Node, ...], inputs: list[Node], **bodies: Unpack[Bodies]
) -> Any:
    return {"inputs": _gradients(g, out, numbered(len(out)), inputs, bodies)}


def _gradients(
    g: Sequence[Node | None],
    out: Sequence[Node],
    ends: Sequence[str],
    inputs: list[Node],
    bodies: Bodies,
) -> list[Node | None]:
    """The vjp_body, or the transpose of the jvp_body, in the graph."""
    graph, vjp_body, jvp_body = inputs[0].graph, bodies["vjp_body"], bodies["jvp_body"]
    if vjp_body is None:
        if jvp_body is None:
            raise InternalError("a custom function without rules has the derivative of its body")
        types, results = ([node._tensor for node in nodes] for nodes in (inputs, out))
        vjp_body = _transposed(jvp_body, tuple(types), tuple(results), tuple(ends))
    given: dict[str, Node] = {}
    for cotangent, value, end in zip(g, out, ends, strict=True):
        given[PRIMAL + end] = value
        if COTANGENT + end in vjp_body.inputs:
            given[COTANGENT + end] = graph.zeros_like(value) if cotangent is None else cotangent
    answers = _applied(graph, vjp_body, inputs, given)
    found: list[Node | None] = [None] * len(inputs)
    for i, number in float_outputs(vjp_body, [node._tensor for node in inputs]):
        if not _is_zero(vjp_body.outputs[number]):
            found[i] = answers[number]
    return found


def _applied(
    graph: Graph, rule: Graph, inputs: Sequence[Node], given: dict[str, Node]
) -> list[Node]:
    """A rule's outputs, from the operands and what stands behind its special names."""
    leaves = {name: given[name] for name in rule.inputs if name in given}
    primal = [name for name in rule.inputs if name not in given]
    return inline_by_name(graph, rule, {**leaves, **dict(zip(primal, inputs, strict=True))})


def _is_zero(node: Node) -> bool:
    """Whether a rule says that an input has no gradient at all."""
    while "view" in node.op.traits:
        node = node.operands[0]
    return node.op.name == "constant" and not np.any(node.attrs["values"].array)


@lru_cache(maxsize=256)
def _transposed(
    jvp_body: Graph,
    types: tuple[TensorType, ...],
    results: tuple[TensorType, ...],
    ends: tuple[str, ...],
) -> Graph:
    """The vjp_body that a jvp_body implies: it is linear in its tangents, so they can be pulled back to."""
    moving = {
        i: jvp_body.inputs[f"{TANGENT}{i}"] for i, type_ in enumerate(types) if is_float(type_)
    }
    outputs = [(i, jvp_body.outputs[number]) for i, number in float_outputs(jvp_body, results)]
    rebuilt = prepare(jvp_body, list(moving.values()), [node for _, node in outputs])
    graph = rebuilt.graph
    found = pull_back(
        graph,
        [rebuilt[node] for _, node in outputs],
        [graph.input(COTANGENT + ends[i], node.shape, node.dtype) for i, node in outputs],
        [rebuilt[leaf] for leaf in moving.values()],
        rebuilt.names,
    )
    gradients = dict(zip(moving, found, strict=True))
    answers = [gradients.get(i) for i in range(len(types))]
    graph.set_outputs(
        [
            graph.zeros(type_.shape, type_.dtype) if answer is None else answer
            for answer, type_ in zip(answers, types, strict=True)
        ]
    )
    graph = graph.toposort()
    for i in range(len(types)):
        leaf = graph.inputs.get(f"{TANGENT}{i}")
        if leaf is not None and (graph.use_count(leaf) or graph.is_output(leaf)):
            raise ArgumentError(
                f"the jvp_body is not linear in '{leaf.name}', so reverse mode cannot use it",
                hint="give a vjp_body",
            )
    tangents = {f"{TANGENT}{i}" for i in range(len(types))}
    return copy_graph(graph, keep=[node.name not in tangents for node in graph.nodes]).freeze()


@custom_fn.jvp
def _(tangents: dict[str, Any], node: Node, inputs: list[Node], **bodies: Unpack[Bodies]) -> Any:
    if bodies["jvp_body"] is None:
        return NotImplemented
    return _tangents(tangents["inputs"], [node], [""], inputs, bodies["jvp_body"])[0]


@custom_fn_tuple.jvp
def _(tangents: dict[str, Any], node: Node, inputs: list[Node], **bodies: Unpack[Bodies]) -> Any:
    if bodies["jvp_body"] is None:
        return NotImplemented
    count = len(bodies["body"].outputs)
    out = [
        node.graph.insert("project", [node], ("source",), {"index": i}, source=node.source)
        for i in range(count)
    ]
    return tuple(_tangents(tangents["inputs"], out, numbered(count), inputs, bodies["jvp_body"]))


def _tangents(
    tangents: Sequence[Node | None],
    out: Sequence[Node],
    ends: Sequence[str],
    inputs: list[Node],
    jvp_body: Graph,
) -> list[Node | None]:
    """The jvp_body in the graph."""
    graph = inputs[0].graph
    given = {PRIMAL + end: value for end, value in zip(ends, out, strict=True)}
    for i, (tangent, operand) in enumerate(zip(tangents, inputs, strict=True)):
        if f"{TANGENT}{i}" in jvp_body.inputs:
            given[f"{TANGENT}{i}"] = graph.zeros_like(operand) if tangent is None else tangent
    answers = _applied(graph, jvp_body, inputs, given)
    found: list[Node | None] = [None] * len(out)
    for i, number in float_outputs(jvp_body, [node._tensor for node in out]):
        found[i] = answers[number]
    return found


# --------------------------------------------------------------------------- batches


@custom_fn.vmap
def _(size: Dim, batched: dict[str, Any], inputs: list[Node], **bodies: Unpack[Bodies]) -> Node:
    return custom_fn(inputs, *_over_batch(size, batched["inputs"], inputs, [""], bodies))


@custom_fn_tuple.vmap
def _(
    size: Dim, batched: dict[str, Any], inputs: list[Node], **bodies: Unpack[Bodies]
) -> tuple[Node, ...]:
    ends = numbered(len(bodies["body"].outputs))
    over = _over_batch(size, batched["inputs"], inputs, ends, bodies)
    return custom_fn_tuple(inputs, *over)


def _over_batch(
    size: Dim, batched: Sequence[bool], inputs: list[Node], ends: Sequence[str], bodies: Bodies
) -> tuple[Graph, Graph | None, Graph | None]:
    """All bodies over the batch; what the batch shares receives the sum of its gradients."""
    outputs = [f"{stem}{end}" for end in ends for stem in (PRIMAL, COTANGENT)]
    moving = [f"{TANGENT}{i}" for i in range(len(inputs))]

    def over(rule: Graph, special: Sequence[str]) -> Graph:
        primal = [str(leaf.name) for leaf in primal_inputs(rule, special)]
        chosen = [name for name, flag in zip(primal, batched, strict=True) if flag]
        chosen += [name for name in outputs if name in special and name in rule.inputs]
        chosen += [
            name
            for name, flag in zip(moving, batched, strict=True)
            if flag and name in special and name in rule.inputs
        ]
        return vmap(rule, chosen, size)

    new_vjp = new_jvp = None
    if bodies["vjp_body"] is not None:
        new_vjp = over(bodies["vjp_body"], outputs)
        answers = list(new_vjp.outputs)
        for i, number in float_outputs(new_vjp, [node._tensor for node in inputs]):
            if not batched[i]:
                answers[number] = answers[number].sum(0)
        new_vjp.set_outputs(answers)
    if bodies["jvp_body"] is not None:
        new_jvp = over(bodies["jvp_body"], [*outputs, *moving])
    return over(bodies["body"], []), new_vjp, new_jvp
