"""The oracle for plans: each kernel in NumPy, on one arena of bytes.

Values lie where the plan says, so a plan that puts two of them in one place gives wrong numbers here as on a device.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np

from ...graph.data import Array
from ...graph.errors import DarnerError, caller
from ...graph.graph import LEAVES, Graph
from ...graph.types import TensorType
from ...interpreter import Values, _checked, _leaf
from ...lower.plan import Plan
from ...transforms.expand import in_float64
from ..base.loops import UNWRITTEN, Oracle


def run_plan(
    plan: Plan,
    inputs: Values | None = None,
    params: Values | None = None,
    *,
    state: MutableMapping[str, Any] | None = None,
    float64: bool = False,
) -> list[Array]:
    """Run a plan once and return its outputs, in order; arguments are those of ``darner.run``.

    With ``float64`` every value is as many times as large as the widest needs, and so is the arena.
    """
    try:
        return _run(plan.verify(), inputs or {}, params or {}, state, float64)
    except DarnerError as error:
        raise error.located("run_plan", None, "", caller()) from error.__cause__


def _run(
    plan: Plan,
    inputs: Values,
    params: Values,
    state: MutableMapping[str, Any] | None,
    float64: bool,
) -> list[Array]:
    graph = leaf_graph(plan)
    given = {**_checked(graph, "input", inputs), **_checked(graph, "parameter", params)}
    given.update(_checked(graph, "state", state or {}, partial=True))
    oracle = Oracle(float64)
    if float64:
        graph = in_float64(graph)
    leaves = {str(node.name): _leaf(node, given) for node in graph.nodes}
    values = _buffers(plan, leaves, float64)
    for kernel in plan.kernels:
        try:
            # All are computed before one is written: a result may be a view of an operand it replaces.
            results = oracle.compute(
                plan.spec(kernel), [values[i] for i in kernel.operands], kernel.checks
            )
        except DarnerError as error:
            raise error.located("run_plan", kernel.label, "", kernel.source) from error.__cause__
        for i, result in zip(kernel.results, results, strict=True):
            values[i][...] = result
    outputs = [np.array(values[i]) for i in plan.outputs]
    if state is not None:
        after = {i: np.array(values[source]) for i, source in plan.updates}
        for name, i in plan.leaves("state").items():
            state[name] = leaves[name] if i not in after else after[i]
        for i, value in after.items():
            state[str(plan.buffers[i].name)] = value
    return outputs


def leaf_graph(plan: Plan) -> Graph:
    """The inputs, parameters and states of a plan as a graph of leaves, which says how values are checked."""
    graph = Graph(plan.name)
    for buffer in plan.buffers:
        if buffer.place in LEAVES:
            graph.insert(buffer.place, [], (), buffer.leaf_attrs)
    return graph


def _buffers(plan: Plan, leaves: dict[str, Array], float64: bool) -> list[Array]:
    """An array for each buffer; those of the arena are views of its bytes."""
    oracle = Oracle(float64)
    kinds = [oracle.dtype(buffer) for buffer in plan.buffers]
    factor = oracle.factor(plan)
    arena = np.full(plan.arena_bytes * factor, UNWRITTEN, np.uint8)
    values: list[Array] = []
    for kind, buffer in zip(kinds, plan.buffers, strict=True):
        if buffer.place == "arena":
            start, shape = buffer.range[0] * factor, _sizes(buffer.type)
            stop = start + int(buffer.type.size) * kind.itemsize
            values.append(arena[start:stop].view(kind.numpy).reshape(shape))
        elif buffer.place == "constant":
            values.append(plan.constants[str(buffer.name)].array.astype(kind.numpy))
        else:
            values.append(leaves[str(buffer.name)])
    return values


def _sizes(type_: TensorType) -> tuple[int, ...]:
    return tuple(int(size) for size in type_.shape)
