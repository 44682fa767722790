"""Convolutions, both their gradients and pooling as native code, against the reference in float64."""

from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.conv.depthwise import is_depthwise
from darner.backends.cpu.conv.template import CONV
from darner.backends.cpu.kernels import template_of
from darner.codegen.problems.conv import patches_of
from darner.lower.lower import lower
from darner.lower.roles import whole_ops
from darner.ops.spatial.conv import conv, conv_input_grad, conv_weight_grad
from darner.testing import assert_close
from tests.conformance import examples
from tests.cpu.running import check, compiled, run_program
from tests.zoo import resnet, trained, unet

OPS = ("conv", "conv_input_grad", "conv_weight_grad")


@dataclass(frozen=True)
class Case:
    """A convolution: the shapes of its input and kernel, and what it does with them."""

    batch: int
    channels: int
    sizes: tuple[int, ...]
    out: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @property
    def counts(self):
        return tuple(
            (size + low + high - step * (kernel - 1) - 1) // stride + 1
            for size, kernel, stride, (low, high), step in zip(
                self.sizes, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )

    @property
    def shapes(self):
        """Of the input, the kernel and the result."""
        return {
            "x": (self.batch, self.channels, *self.sizes),
            "w": (self.out, self.channels // self.groups, *self.kernel),
            "y": (self.batch, self.out, *self.counts),
        }

    def node(self, graph, op, dtype):
        """One of the three ops over inputs of this case."""
        attrs = {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }
        leaf = {
            name: (lambda name=name: graph.input(name, self.shapes[name], dtype)) for name in "xwy"
        }
        if op == "conv":
            return conv(leaf["x"](), leaf["w"](), **attrs)
        if op == "conv_input_grad":
            return conv_input_grad(leaf["y"](), leaf["w"](), sizes=self.sizes, **attrs)
        return conv_weight_grad(leaf["x"](), leaf["y"](), kernel=self.kernel, **attrs)

    def terms(self, op):
        """The most products that one element of a result sums."""
        if op == "conv_weight_grad":
            return self.batch * int(np.prod(self.counts))
        return int(np.prod(self.kernel)) * max(self.channels, self.out)


def plain(batch, channels, sizes, out, kernel, stride=1, padding=0, dilation=1, groups=1):
    rank = len(sizes)
    pairs = ((padding, padding),) * rank
    every = [(value,) * rank for value in (kernel, stride, dilation)]
    return Case(batch, channels, sizes, out, every[0], every[1], pairs, every[2], groups)


def inputs_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(tuple(map(int, leaf.shape))).astype(leaf.dtype.numpy)
        for name, leaf in graph.inputs.items()
    }


def results(graph, given, threads=2, cache=None):
    program = compiled(graph, threads=threads, whole=whole_ops(), cache=cache)
    try:
        return run_program(program, given)
    finally:
        program.close()


def assert_right(graph, dtype, length, threads=2):
    """Compare with the reference; returns what native code gave."""
    given = inputs_of(graph)
    found = results(graph, given, threads)
    for a, b in zip(found, darner.run(graph, given, {}, float64=True), strict=True):
        assert_close(a, b, dtype, length)
    return found


def bare(case, op, dtype="f32"):
    graph = Graph()
    graph.set_outputs([case.node(graph, op, dtype)])
    return graph


@st.composite
def cases(draw):
    rank = draw(st.integers(1, 3))
    most = {1: 40, 2: 21, 3: 7}[rank]
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    each, out = draw(st.integers(1, 11)), draw(st.integers(1, 19))
    if draw(st.integers(0, 4)) == 0:
        groups, each, out = draw(st.integers(2, 6)), 1, 1
    sizes, kernel, stride, padding, dilation = [], [], [], [], []
    for _ in range(rank):
        size, taps, step = (
            draw(st.integers(1, most)),
            draw(st.integers(1, 4)),
            draw(st.integers(1, 3)),
        )
        low, high = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        missing = step * (taps - 1) + 1 - size - low - high
        sizes.append(size + max(0, missing))
        kernel.append(taps)
        dilation.append(step)
        stride.append(draw(st.sampled_from((1, 1, 2, 3, 5))))
        padding.append((low, high))
    axes = [tuple(values) for values in (sizes, kernel, stride, padding, dilation)]
    batch = draw(st.integers(1, 3))
    return Case(batch, each * groups, axes[0], out * groups, *axes[1:], groups)


QUICK = settings(
    max_examples=examples(20),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@QUICK
@given(cases(), st.sampled_from(OPS), st.sampled_from((1, 2, 3)))
def test_any_geometry_is_computed_as_the_reference_does(case, op, threads):
    assert_right(bare(case, op), "f32", case.terms(op), threads)


@pytest.mark.slow
@settings(QUICK, max_examples=examples(48))
@given(cases(), st.sampled_from(OPS), st.sampled_from(("f32", "f64", "bf16", "f16")))
def test_any_geometry_in_any_type(case, op, dtype):
    assert_right(bare(case, op, dtype), dtype, case.terms(op))


NAMED = {
    "blocks of channels": plain(1, 70, (9, 7), 21, 3, padding=1),
    "small images share a panel": plain(5, 20, (3, 3), 17, 3, padding=1),
    "one pixel": plain(3, 9, (1, 1), 8, 1),
    "matrix product": plain(2, 19, (9, 11), 23, 1),
    "strided matrix product": plain(2, 9, (9, 11), 13, 1, stride=2),
    "patches": plain(2, 3, (32, 24), 20, 8, stride=8),
    "first layer": plain(2, 3, (33, 31), 16, 7, stride=2, padding=3),
    "depthwise": plain(2, 5, (19, 37), 5, 3, padding=1, groups=5),
    "strided depthwise": plain(2, 5, (19, 38), 5, 3, stride=2, padding=1, groups=5),
    "large depthwise": plain(1, 3, (17, 20), 3, 7, padding=3, groups=3),
    "depthwise, larger still": plain(1, 3, (15, 16), 3, 12, padding=6, groups=3),
    "depthwise to more": plain(2, 4, (9, 9), 8, 3, padding=1, groups=4),
    "grouped": plain(2, 12, (11, 18), 18, 3, padding=1, groups=3),
    "volume": plain(1, 3, (5, 6, 7), 4, 3, stride=2, padding=1),
    "more padding than image": plain(1, 2, (2, 3), 3, 3, padding=5, dilation=2),
    "steps beyond the kernel": plain(2, 3, (13, 14), 4, 2, stride=5),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", NAMED)
def test_results_are_right_and_the_same_bits_for_any_number_of_threads(name, op, tmp_path):
    graph, cache = bare(NAMED[name], op), ObjectCache(tmp_path)
    given = inputs_of(graph)
    one, two, three = (results(graph, given, threads, cache)[0] for threads in (1, 2, 3))
    assert one.tobytes() == two.tobytes() == three.tobytes()
    (wanted,) = darner.run(graph, given, {}, float64=True)
    assert_close(one, wanted, "f32", NAMED[name].terms(op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
@pytest.mark.parametrize("name", ["grouped", "strided depthwise"])
def test_other_types_are_summed_wide_and_rounded_once(name, dtype, op):
    graph = bare(NAMED[name], op, dtype)
    (found,) = assert_right(graph, dtype, NAMED[name].terms(op))
    if dtype in ("bf16", "f16"):
        (exact,) = darner.run(graph, inputs_of(graph), {}, float64=True)
        error = np.abs(found.astype(np.float64) - exact).max() / np.abs(exact).max()
        assert error <= darner.testing.epsilon(dtype)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(("grouped", "depthwise", "strided depthwise", "first layer", "volume"), ("f32",)),
        ("grouped", "bf16"),
        ("first layer", "f16"),
    ],
)
def test_what_follows_element_by_element_is_part_of_the_kernel(name, dtype, op):
    graph = Graph()
    y = NAMED[name].node(graph, op, dtype)
    bias = graph.input("bias", (y.shape[1], *(1,) * (y.rank - 2)), dtype)
    column = graph.input("column", (y.shape[-1],), dtype)
    residual = graph.input("residual", y.shape, dtype)
    shifted = y + bias
    graph.set_outputs([shifted, (shifted * column + residual).relu(), y * 2.0 > residual])
    plan = lower(graph, target="cpu", whole=whole_ops())
    (kernel,) = plan.kernels
    assert template_of(plan.spec(kernel)) is CONV
    given = inputs_of(graph)
    found = results(graph, given)
    wanted = darner.run(graph, given, {}, float64=True)
    length = NAMED[name].terms(op)
    for a, b in zip(found[:2], wanted[:2], strict=True):
        assert_close(a, b, dtype, length)
    # Where both sides are all but equal, rounding decides.
    y = np.asarray(wanted[0]) - given["bias"].astype(float)
    clear = np.abs(y * 2 - given["residual"].astype(float)) > 0.1 * np.abs(y).max()
    assert found[2].dtype == np.bool_
    np.testing.assert_array_equal(found[2][clear], np.asarray(wanted[2])[clear])
    assert clear.any()


def test_nothing_at_all():
    case = plain(0, 3, (5,), 2, 2)
    for op in OPS:
        (found,) = assert_right(bare(case, op), "f32", 1)
        assert not found.any()


def test_infinities_do_not_leak_past_the_end_of_rows():
    case = plain(1, 1, (4, 17), 1, 3, groups=1)
    graph = bare(case, "conv_weight_grad")
    given = inputs_of(graph)
    given["x"][0, 0, 3, 0] = np.inf
    given["y"][...] = 1.0
    (found,) = results(graph, given)
    (wanted,) = darner.run(graph, given, {})
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))


def test_taps_of_a_phase_meet_all_of_its_pixels():
    graph = Graph()
    node = plain(1, 3, (13, 12), 4, 3, stride=2, padding=1).node(graph, "conv_input_grad", "f32")
    patches = patches_of(node)
    assert sum(phase.taps for phase in patches.phases) == 9
    assert sum(phase.pixels for phase in patches.phases) == 13 * 12
    assert not is_depthwise(node)


def test_axes_that_a_kernel_of_one_goes_along_are_one():
    graph = Graph()
    node = plain(2, 3, (4, 5, 6), 4, 1).node(graph, "conv", "f32")
    assert patches_of(node).sizes == (120,)
    assert patches_of(node).is_plain


def test_gradients_of_a_small_network():
    graph = Graph()
    x = graph.input("x", (3, 4, 11, 9))
    y = graph.conv2d(
        x, graph.parameter("w", (6, 4, 3, 3)), bias=graph.parameter("b", (6,)), padding=1
    )
    y = graph.conv2d(y.relu(), graph.parameter("d", (6, 1, 3, 3)), stride=2, padding=1, groups=6)
    y = graph.conv_transpose2d(y, graph.parameter("t", (6, 5, 2, 2)), stride=2)
    y = graph.max_pool2d(y, 3, stride=2, padding=1)
    y = graph.avg_pool2d(y, 2, stride=1)
    graph.set_outputs([(y * y).mean()])
    check(darner.value_and_grad(graph), 3, whole_ops())


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("make", [resnet, unet])
def test_training_steps_of_models(make, threads):
    check(trained(make), threads, whole_ops())


@pytest.mark.slow
def test_training_step_of_a_wider_model():
    check(trained(resnet, batch=3, size=17, channels=24), 2, whole_ops())
