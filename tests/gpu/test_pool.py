"""Pooling and its gradients on a GPU, against the float64 reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner.backends.base.lowering import compile_for, lower_for
from darner.backends.wgpu.device import opened
from darner.codegen.simt.families import template_of
from darner.codegen.simt.pooling.template import POOLING
from tests.gpu import needs_gpu

pytestmark = needs_gpu

TOLERANCE = {"f32": 1e-6, "f64": 1e-14, "f16": 2e-3, "bf16": 1.6e-2}


def run(graph, arrays):
    """The outputs, of a plan in which pooling is whole."""
    plan = lower_for("gpu", graph)
    pooling = [spec for spec in plan.specs.values() if any("pool" in name for name in spec.ops)]
    assert pooling
    assert all(template_of(spec, opened().machine) is POOLING for spec in pooling)
    program = compile_for("gpu", plan)
    try:
        for name, i in plan.leaves("input").items():
            program.bind(i, np.asarray(arrays[name]))
        program.run()
        program.sync()
        return [np.array(program.read(i)) for i in plan.outputs]
    finally:
        program.close()


def pools(shape, window, dtype="f32", counts=True, **attrs):
    """A graph of both kinds of pooling and their gradients."""
    graph = darner.Graph()
    x = graph.input("x", shape, dtype)
    most = x.max_pool(window, **attrs)
    attrs_of_mean = {**attrs, "count_include_pad": counts}
    attrs_of_mean.pop("dilation", None)
    mean = x.avg_pool(window, **attrs_of_mean)
    dmost, dmean = graph.input("dmost", most.shape, dtype), graph.input("dmean", mean.shape, dtype)
    towards = x.max_pool_backward(dmost, window, **attrs)
    sizes = shape[2:]
    graph.set_outputs(
        [most, mean, towards, dmean.avg_pool_backward(window, sizes=sizes, **attrs_of_mean)]
    )
    return graph


def check(graph, dtype="f32", few=False):
    random = np.random.default_rng(1)
    arrays = {}
    for name, node in graph.inputs.items():
        shape = [int(size) for size in node.shape]
        value = random.integers(0, 3, shape) if few else random.standard_normal(shape)
        arrays[name] = value.astype(node.dtype.numpy)
    wanted = darner.run(graph, arrays, float64=True)
    for found, expected in zip(run(graph, arrays), wanted, strict=True):
        error = np.abs(found.astype(np.float64) - expected).max(initial=0)
        assert error <= TOLERANCE[dtype] * max(np.abs(expected).max(initial=0), 1e-9)


CASES = {
    "side by side": {"shape": (2, 3, 8, 6), "window": 2},
    "over each other": {"shape": (2, 3, 9, 7), "window": 3, "stride": 2, "padding": 1},
    "one axis, far apart": {"shape": (2, 2, 20), "window": 2, "stride": 5},
    "padding does not count": {
        "shape": (1, 2, 6, 7),
        "window": 3,
        "stride": 2,
        "padding": 1,
        "counts": False,
        "ceil_mode": True,
    },
    "a last one that sticks out": {"shape": (1, 2, 5, 6), "window": 2, "ceil_mode": True},
    "dilated": {"shape": (1, 2, 8, 7), "window": 2, "stride": 2, "dilation": (1, 2)},
    "three axes": {"shape": (1, 2, 4, 5, 3), "window": (2, 3, 1), "stride": 1},
    "large windows in loops": {"shape": (1, 2, 12, 11), "window": 7, "stride": 2, "padding": 3},
    "no images": {"shape": (0, 2, 4, 4), "window": 2},
}


@pytest.mark.parametrize("name", CASES)
def test_pooling_and_its_gradients_equal_the_reference(name):
    check(pools(**CASES[name]))


@pytest.mark.parametrize("window", [3, 6])
def test_gradient_of_max_pool_goes_to_the_first_maximum(window):
    check(pools((2, 2, 10, 9), window, stride=1, padding=1), few=True)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16"])
def test_other_floats(dtype):
    check(pools((2, 3, 9, 7), 3, dtype, stride=2, padding=1), dtype)


def test_nan_is_the_largest_and_the_least_beats_padding_as_the_first():
    graph = darner.Graph()
    x, dy = graph.input("x", (1, 1, 2, 8)), graph.input("dy", (1, 1, 3, 5))
    attrs = {"stride": (1, 2), "padding": 1}
    graph.set_outputs([x.max_pool(2, **attrs), x.max_pool_backward(dy, 2, **attrs)])
    values = np.arange(16, dtype=np.float32).reshape(1, 1, 2, 8)
    values[0, 0, 0, 3] = values[0, 0, 1, 4] = np.nan
    values[0, 0, :, 5:] = -np.inf
    arrays = {"x": values, "dy": np.arange(1, 16, dtype=np.float32).reshape(1, 1, 3, 5)}
    for found, wanted in zip(run(graph, arrays), darner.run(graph, arrays), strict=True):
        assert np.array_equal(found, wanted, equal_nan=True)


def test_what_comes_after_is_computed_on_the_way():
    graph = darner.Graph()
    x, y = graph.input("x", (2, 3, 8, 6), "f16"), graph.input("y", (3, 1, 1), "f16")
    pooled = x.max_pool(2)
    graph.set_outputs([(pooled + y).relu(), pooled > 0])
    assert len(lower_for("gpu", graph).kernels) == 1
    random = np.random.default_rng(2)
    arrays = {
        "x": random.standard_normal((2, 3, 8, 6)).astype(np.float16),
        "y": random.standard_normal((3, 1, 1)).astype(np.float16),
    }
    for found, wanted in zip(run(graph, arrays), darner.run(graph, arrays), strict=True):
        assert np.array_equal(found, wanted)


@st.composite
def problems(draw):
    count = draw(st.integers(1, 3))
    window = tuple(draw(st.integers(1, 4)) for _ in range(count))
    sizes = tuple(k + draw(st.integers(1, 6)) for k in window)
    return {
        "shape": (draw(st.integers(1, 3)), draw(st.integers(1, 3)), *sizes),
        "window": window,
        "stride": tuple(draw(st.integers(1, 4)) for _ in range(count)),
        "padding": tuple((draw(st.integers(0, k - 1)),) * 2 for k in window),
        "counts": draw(st.booleans()),
        "ceil_mode": draw(st.booleans()),
    }


@settings(max_examples=8, deadline=None, derandomize=True)
@given(problems())
def test_any_pooling_and_its_gradients_equal_the_reference(problem):
    check(pools(**problem), few=True)
