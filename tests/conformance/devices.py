"""What every device is tried with: all samples of every op, their derivatives mid-graph with random cotangents, every element type.

All samples of an op are one graph, so that one program computes them, and specs that they share are compiled once. A device is known by its name alone, as
sessions know it: ``check_on(device, op, dtype)``.
"""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import compile_for, lower_for
from darner.graph.types import TensorType
from darner.testing import assert_close, make_case
from tests import conformance
from tests.conformance.test_derivatives import (
    cotangents,
    gradient_tolerance,
    is_differentiable,
    moving_operands,
    placed_mid_graph,
    tangents,
)
from tests.conformance.test_reference import BUILTIN, UNTESTED_HERE, has_float_operand

FIRST_TIER = 12
"""The first tier, which the quick tests take, is one in so many ops, in f32."""


def programs(every=1, dtypes=("f32", "f64", "f16", "bf16")):
    """What a device is tried with: each op, or one in so many, in each type that it has."""
    return [
        pytest.param(op, dtype, id=f"{op.name}-{dtype}")
        for op in BUILTIN[::every]
        if op.name not in UNTESTED_HERE and op.samples
        for dtype in dtypes
        if dtype == "f32"
        or any(has_float_operand([*s.args, *s.kwargs.values()]) for s in op.samples)
    ]


PROGRAMS = programs(
    FIRST_TIER if conformance.QUICK else 1, conformance.element_types("f32", "f64", "f16", "bf16")
)


def parts_of(op, dtype, tangents_of=None):
    """The graphs of an op's samples, with values for their inputs and the longest sum in each.

    In f32 the derivatives of both kinds are among them, those along a direction of the first ``tangents_of`` samples that have any.
    """
    moved = 0
    for index in conformance.sample_indices(op):
        case = make_case(op, index, dtype)
        yield case.graph, case.arrays, case.length, {}
        if dtype in ("f32", "bf16") and is_differentiable(op, index):
            moving = moving_operands(op, index)
            if moving:
                probe = placed_mid_graph(case, moving)
                graph = darner.vjp(probe.graph, moving)
                weights = cotangents(graph)
                yield graph, {**probe.arrays, **weights}, case.length, weights
                moved += 1
                if dtype == "f32" and (tangents_of is None or moved <= tangents_of):
                    direction = tangents(probe.random(moving, "direction"))
                    graph = darner.jvp(probe.graph, moving)
                    yield graph, {**probe.arrays, **direction}, case.length, direction


def joined(parts):
    """One graph of all, and values for its inputs."""
    graph, arrays = darner.Graph("samples"), {}
    outputs = []
    for number, (part, given, _, _) in enumerate(parts):
        made = {}
        for node in part.nodes:
            if node.op.name == "input":
                name = f"{number}/{node.name}"
                made[node.id] = graph.input(name, node.shape, node.dtype)
                arrays[name] = np.asarray(given[node.name]).astype(node.dtype.numpy)
                continue
            attrs = dict(node.attrs)
            if node.name is not None:
                attrs["name"] = f"{number}/{node.name}"
            operands = [made[i] for i in node.inputs]
            made[node.id] = graph.insert(node.op, operands, node.slots, attrs, type=node.type)
        outputs += [made[node.id] for node in part.outputs]
    graph.set_outputs(outputs)
    return graph, arrays


def run_on(device, graph, arrays, threads=None):
    """The outputs of a graph on a device, whichever it is."""
    program = compile_for(device, lower_for(device, graph), threads)
    give = program.write if program.on_host else program.bind
    try:
        for name, i in program.plan.leaves("input").items():
            give(i, np.asarray(arrays[name]))
        program.run()
        program.sync()
        return [program.read(i) for i in program.plan.outputs]
    finally:
        program.close()


def check_parts(parts, found, dtype):
    """Assert that the outputs of all parts are what the reference gives."""
    found = iter(found)
    for part, given, length, weights in parts:
        typed = {
            name: np.asarray(given[name]).astype(node.dtype.numpy)
            for name, node in part.inputs.items()
        }
        # What is rounded to 16 bits on the way is so in the reference's own types alone.
        narrow = any(node.dtype.is_half for node in part.nodes if isinstance(node.type, TensorType))
        wanted = darner.run(part, typed, float64=dtype == "f32" and not narrow)
        for node, expected in zip(part.outputs, wanted, strict=True):
            actual = next(found)
            assert actual.dtype == node.dtype.numpy
            if not weights or not node.dtype.is_float:
                assert_close(actual, expected, node.dtype, length)
                continue
            assert actual.shape == expected.shape
            expected = expected.astype(np.float64)
            limit = gradient_tolerance(dtype, length, expected, list(weights.values()))
            np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=limit)


def check_on(device, op, dtype, threads=None, tangents_of=None):
    """Assert that a device computes all samples of an op and their derivatives as the reference does."""
    parts = list(parts_of(op, dtype, tangents_of))
    graph, arrays = joined(parts)
    check_parts(parts, run_on(device, graph, arrays, threads), dtype)
