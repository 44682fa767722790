"""Convolutions and their gradients on a GPU: every tile, every form, against the float64 reference."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.program import WgpuProgram
from darner.codegen.simt.conv import images as conv_images
from darner.codegen.simt.conv import plan as conv_cut
from darner.codegen.simt.conv.template import CONV
from darner.codegen.simt.families import template_of
from tests.gpu import needs_gpu

pytestmark = needs_gpu

TOLERANCE = {"f32": 2e-5, "f64": 1e-12, "f16": 2e-3, "bf16": 1.6e-2}


def device_like(**changes):
    """The GPU, as if it were another."""
    found = copy.copy(opened())
    found.machine = replace(found.machine, **changes)
    return found


def arrays_for(graph, seed=0):
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal([int(size) for size in node.shape]).astype(node.dtype.numpy)
        for name, node in graph.inputs.items()
    }


def run(graph, arrays, device=None):
    """The outputs, of a plan in which convolutions are whole."""
    device = device or opened()
    plan = lower_for("gpu", graph)
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        if any(name.startswith("conv") for name in spec.ops):
            assert template_of(spec, device.machine) is CONV
    assert not {"fold", "windows"}.intersection(
        name for kernel in plan.kernels for name in plan.spec(kernel).ops
    )
    program = WgpuProgram(plan, device)
    try:
        for name, i in plan.leaves("input").items():
            program.bind(i, arrays[name])
        program.run()
        program.sync()
        return [np.array(program.read(i)) for i in plan.outputs]
    finally:
        program.close()


def check(graph, dtype="f32", device=None):
    arrays = arrays_for(graph)
    wanted = darner.run(graph, arrays, float64=True)
    for found, expected in zip(run(graph, arrays, device), wanted, strict=True):
        error = np.abs(found.astype(np.float64) - expected).max(initial=0)
        assert error <= TOLERANCE[dtype] * max(np.abs(expected).max(initial=0), 1e-9)


def sizes_after(sizes, kernel, stride, padding, dilation):
    each = zip(sizes, kernel, strict=True)
    return tuple((n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in each)


def all_three(
    sizes,
    kernel,
    channels=(5, 6),
    batch=2,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    dtype="f32",
):
    """A graph of a convolution and both its gradients."""
    graph = darner.Graph()
    after = sizes_after(sizes, kernel, stride, padding, dilation)
    x = graph.input("x", (batch, channels[0], *sizes), dtype)
    w = graph.input("w", (channels[1], channels[0] // groups, *kernel), dtype)
    dy = graph.input("dy", (batch, channels[1], *after), dtype)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    forward = x.conv(w, **attrs)
    towards_input = dy.conv_input_grad(w, sizes=sizes, **attrs)
    towards_weight = x.conv_weight_grad(dy, kernel=kernel, **attrs)
    graph.set_outputs([forward, towards_input, towards_weight])
    return graph


CASES = {
    "one axis, dilated, in groups": {
        "sizes": (50,),
        "kernel": (5,),
        "channels": (8, 12),
        "padding": 2,
        "dilation": 2,
        "groups": 2,
    },
    "two axes": {"sizes": (9, 7), "kernel": (3, 3), "padding": 1},
    "three axes": {"sizes": (4, 5, 6), "kernel": (2, 3, 2), "padding": 1, "channels": (3, 4)},
    "strides": {"sizes": (11, 8), "kernel": (3, 2), "stride": 2, "padding": 1},
    "strides beyond the kernel": {"sizes": (9, 10), "kernel": (1, 2), "stride": 3},
    "single pixels": {"sizes": (5, 7), "kernel": (1, 1), "channels": (17, 33)},
    "one pixel of the result": {"sizes": (3, 4), "kernel": (3, 4), "batch": 3},
    "more than a tile": {"sizes": (13, 11), "kernel": (3, 3), "channels": (19, 70), "padding": 1},
    "long sums": {
        "sizes": (3, 3),
        "kernel": (3, 3),
        "channels": (130, 20),
        "padding": 1,
        "batch": 1,
    },
    "single channels": {
        "sizes": (9, 7),
        "kernel": (3, 3),
        "channels": (5, 5),
        "padding": 1,
        "groups": 5,
    },
    "two from each": {
        "sizes": (9, 8),
        "kernel": (3, 3),
        "channels": (3, 6),
        "padding": 1,
        "groups": 3,
        "stride": 2,
    },
    "single channels along one axis": {
        "sizes": (40,),
        "kernel": (7,),
        "channels": (3, 3),
        "padding": 3,
        "groups": 3,
    },
    "single channels of three axes": {
        "sizes": (3, 5, 4),
        "kernel": (2, 3, 3),
        "channels": (3, 3),
        "padding": 1,
        "groups": 3,
    },
    "no images": {"sizes": (6, 5), "kernel": (3, 3), "batch": 0},
}


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_and_its_gradients_equal_the_reference(name):
    check(all_three(**CASES[name]))


@pytest.mark.parametrize(
    ("dtype", "sizes"), [("f64", (5, 7)), ("f16", (5, 7)), ("f16", (6, 8)), ("bf16", (6, 8))]
)
@pytest.mark.parametrize("groups", [1, 6])
def test_other_floats_are_summed_in_full_and_written_in_words_or_alone(dtype, sizes, groups):
    check(all_three(sizes, (3, 3), (6, 6), padding=1, groups=groups, dtype=dtype), dtype)


@pytest.mark.parametrize(("dtype", "sizes"), [("f32", (5, 7)), ("f16", (5, 7)), ("f16", (6, 8))])
@pytest.mark.parametrize("groups", [1, 4])
def test_what_comes_after_is_computed_on_the_way_to_several_results(dtype, sizes, groups):
    graph = darner.Graph()
    x = graph.input("x", (2, 4, *sizes), dtype)
    w = graph.input("w", (4, 4 // groups, 3, 3), dtype)
    bias = graph.input("bias", (4, 1, 1), dtype)
    residual = graph.input("residual", (2, 4, *sizes), dtype)
    sums = x.conv(w, padding=1, groups=groups) + bias
    graph.set_outputs([sums.relu() + residual, sums > 0, sums])
    assert {"conv", "maximum"} <= set(next(iter(lower_for("gpu", graph).specs.values())).ops)
    arrays = arrays_for(graph)
    wanted = darner.run(graph, arrays, float64=True)
    found = run(graph, arrays)
    for place in (0, 2):
        error = np.abs(found[place] - wanted[place]).max()
        assert error <= TOLERANCE[dtype] * np.abs(wanted[place]).max()
    # Where the sum is next to 0, rounding decides.
    clear = np.abs(wanted[2]) > 0.05
    assert clear.mean() > 0.8
    assert np.array_equal(found[1][clear], wanted[1][clear])


TILES = [
    pytest.param(
        tile,
        number % 2 == 1,
        id=f"{tile.rows}x{tile.columns} by {tile.threads}",
        # Compiling a large one takes seconds where the CPU poses as a GPU.
        marks=[pytest.mark.slow] if tile.high * tile.wide > 16 and number != 1 else [],
    )
    for number, tile in enumerate(conv_cut.TILES)
]


@pytest.mark.parametrize(("tile", "packed"), TILES)
def test_every_tile_gives_the_same(tile, packed, monkeypatch):
    monkeypatch.setattr(conv_cut, "TILES", (tile,))
    monkeypatch.setattr(conv_images, "PACKED", 0 if packed else 1 << 62)
    graph = all_three((5, 7), (3, 2), (20, 70), batch=4, padding=1)
    check(graph, device=device_like(kind="DiscreteGPU"))


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [(3, 36), (48, 36)])
def test_sums_in_parts_add_up_and_weights_may_be_packed(stride, channels, monkeypatch):
    monkeypatch.setattr(conv_cut, "DISPATCH", 0)
    monkeypatch.setattr(conv_cut, "LEAST_STEPS", 1)
    monkeypatch.setattr(conv_images, "PACKED", 0)
    check(all_three((9, 8), (3, 3), channels, stride=stride, padding=1))


def test_a_gpu_with_little_shared_memory_has_smaller_tiles():
    less = opened().machine.without(max_compute_workgroup_storage_size=4096)
    device = copy.copy(opened())
    device.machine = less
    check(all_three((9, 7), (3, 3), (20, 40), padding=1), device=device)


def test_what_does_not_exist_is_nothing_beside_infinity():
    graph = darner.Graph()
    x, w = graph.input("x", (1, 3, 5)), graph.input("w", (2, 3, 1))
    graph.set_outputs([x.conv(w)])
    weights = np.ones((2, 3, 1), np.float32)
    weights[0, 0] = np.inf
    (found,) = run(graph, {"x": np.ones((1, 3, 5), np.float32), "w": weights})
    assert np.array_equal(found[0, 0], np.full(5, np.inf))
    assert np.array_equal(found[0, 1], np.full(5, 3.0))


def test_a_gradient_towards_the_weight_is_the_same_each_time():
    graph = darner.Graph()
    x, dy = graph.input("x", (4, 3, 20, 20)), graph.input("dy", (4, 5, 20, 20))
    graph.set_outputs([x.conv_weight_grad(dy, kernel=(3, 3), padding=1)])
    arrays = arrays_for(graph)
    first, second = run(graph, arrays), run(graph, arrays)
    assert np.array_equal(first[0], second[0])


@st.composite
def problems(draw):
    count = draw(st.integers(1, 3))
    kernel = tuple(draw(st.integers(1, 4)) for _ in range(count))
    dilation, padding = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    sizes = tuple(dilation * (k - 1) + 1 + draw(st.integers(0, 6)) for k in kernel)
    channels = tuple(groups * draw(st.integers(1, 7)) for _ in range(2))
    return {
        "sizes": sizes,
        "kernel": kernel,
        "channels": channels,
        "batch": draw(st.integers(1, 3)),
        "stride": draw(st.integers(1, 3)),
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
    }


@settings(max_examples=6, deadline=None, derandomize=True)
@given(problems())
def test_any_convolution_and_its_gradients_equal_the_reference(problem):
    check(all_three(**problem))
