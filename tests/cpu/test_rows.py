"""Reductions and maps by native code: every way that lanes, rows and pieces can lie."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.cpu.rows.template import row_program
from darner.lower.lower import lower
from darner.testing import tolerance
from tests.conformance import examples
from tests.cpu.running import compiled, run_program

MOST_KEPT = 128 << 10
"""Bytes of a row's values that are kept, on a processor with 1 MiB next to a core."""

ROW_KERNELS = {
    "sum": lambda x, axes: x.sum(axes),
    "max, kept": lambda x, axes: x.max(axes, keepdims=True),
    "all": lambda x, axes: (x > -1.0).all(axes),
    "centred": lambda x, axes: x - x.mean(axes, keepdims=True),
    "normalised": lambda x, axes: (
        (x - x.mean(axes, keepdims=True)) / (x.var(axes, keepdims=True) + 1e-3).sqrt()
    ),
    "softmax": lambda x, axes: _softmax(x, axes),
    "several": lambda x, axes: [x.min(axes), x.exp(), x.exp().sum(axes).log(), x.sum(axes) * 2.0],
}


def _softmax(x, axes):
    e = (x - x.max(axes, keepdims=True)).exp()
    return e / e.sum(axes, keepdims=True)


def results(make, array, threads=(1, 2, 3)):
    """What each number of threads gives, and the reference in f64."""
    g = Graph()
    made = make(g.input("x", array.shape, array.dtype))
    g.set_outputs(made if isinstance(made, list) else [made])
    found = []
    for count in threads:
        program = compiled(g, threads=count)
        found.append(run_program(program, {"x": array}))
        program.close()
    return found, darner.run(g, {"x": array}, float64=True)


def check(make, array, threads=(1, 2, 3)):
    found, wanted = results(make, array, threads)
    for outputs in found:
        for a, b, first in zip(outputs, wanted, found[0], strict=True):
            assert a.shape == b.shape
            np.testing.assert_array_equal(a, first)
            close = max(2e-5, tolerance(a.dtype))
            scale = max(1.0, float(np.abs(b.astype(np.float64)).max(initial=0)))
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=close, atol=2e-5 * scale
            )


@pytest.mark.parametrize("name", ROW_KERNELS)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((5, 7), (1,)),
        ((3, 129), (1,)),
        ((129, 37), (0,)),
        ((4, 6, 9), (0, 2)),
        ((4, 6, 35), (1,)),
        ((3, 5, 2, 17), (0, 2, 3)),
        ((70000,), (0,)),
        ((2, 40000), (1,)),
        ((20000, 3), (0,)),
        ((300, 3, 40), (0, 2)),
        ((9, 1001, 7), (1,)),
        ((60, 5003), (0,)),
    ],
)
def test_reductions_of_any_axes_equal_the_reference_on_any_number_of_threads(name, shape, axes):
    rng = np.random.default_rng(len(name))
    array = rng.normal(size=shape).astype(np.float32)
    check(lambda x: ROW_KERNELS[name](x, axes), array)


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_reductions_of_odd_shapes_equal_the_reference(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4)))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    name = data.draw(st.sampled_from(sorted(ROW_KERNELS)))
    array = np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)
    check(lambda x: ROW_KERNELS[name](x, tuple(sorted(axes))), array, threads=(1, 2))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f64", "i32", "u8", "bool"])
def test_reductions_keep_every_type(dtype):
    rng = np.random.default_rng(3)
    g = Graph()
    x = g.input("x", (5, 83), dtype)
    made = [x.max(1), x.min(0), x.any(1)] if dtype == "bool" else [x.max(1), x.sum(0), x.sum()]
    g.set_outputs(made)
    array = rng.integers(0, 2, (5, 83)).astype(x.dtype.numpy)
    program = compiled(g, threads=2)
    found = run_program(program, {"x": array})
    program.close()
    for a, b in zip(found, darner.run(g, {"x": array}), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(
            a.astype(np.float64), b.astype(np.float64), rtol=tolerance(x.dtype, 415)
        )


def _program(make, shape):
    g = Graph()
    g.set_outputs([make(g.input("x", shape))])
    plan = lower(g, target="cpu", whole=())
    return [row_program(spec, 16, MOST_KEPT) for spec in plan.specs.values()]


def test_a_softmax_keeps_its_exponentials_and_passes_over_a_row_three_times():
    (program,) = _program(lambda x: _softmax(x, (1,)), (64, 1000))
    assert [len(level) for level in program.levels] == [1, 1]
    assert [node.op.name for node in program.kept] == ["exp"]
    assert program.pieces == 1


def test_the_sum_of_everything_is_cut_in_pieces_that_do_not_depend_on_threads():
    (program,) = _program(lambda x: (x * x).sum(), (1 << 20,))
    assert program.pieces == 64


def test_a_mean_and_a_variance_of_their_own_axes_share_passes():
    (program,) = _program(lambda x: ROW_KERNELS["several"](x, (1,))[2], (40, 90))
    assert len(program.levels) == 1


@pytest.mark.parametrize("size", [1, 5, 16, 31, 64, 100, 8193, 20000])
def test_maps_of_any_length_equal_the_reference(size):
    array = np.random.default_rng(0).normal(size=(3, size)).astype(np.float32)
    check(lambda x: [x.silu(), x.exp() * x[:1], (x > 0).cast("i8"), x.cast("bf16")], array)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.graph.concat([-x[..., 20:], x[..., :20]], axis=-1),
        lambda x: x.graph.concat([x, x.exp(), x[:, :1]], axis=1),
        lambda x: x.pad([(1, 2), (3, 18)], 0.5),
        lambda x: x.flip(1).reshape((41, 9)).transpose(),
        lambda x: x.reshape((41, 9)) * x.transpose(),
        lambda x: x.pad([(0, 0), (5, 0)]),
    ],
)
def test_views_across_lanes_equal_the_reference(make):
    array = np.random.default_rng(0).normal(size=(9, 41)).astype(np.float32)
    check(make, array)
