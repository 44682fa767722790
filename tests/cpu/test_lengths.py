"""Lengths of vectors whose squares overflow or underflow, and what that costs others: nothing, as a pass that no row needs is left out."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.cpu.rows.program import row_program
from darner.codegen.elements.collapse import collapsed
from darner.graph import dtypes
from darner.testing import tolerance

MOST_KEPT = 128 << 10
"""Bytes of a row's values that are kept, on a processor with 1 MiB next to a core."""

SCALES = {
    "f32": (1.0, 1e19, 1e30, 1e-19, 1e-30),
    "bf16": (1.0, 1e19, 1e30, 1e-19, 1e-30),
    "f16": (1.0, 1e3, 1e-3, 1e-5),
    "f64": (1.0, 1e160, 1e300, 1e-160, 1e-300),
}
FUNCTIONS = {
    "norm": lambda x, y: x.norm(-1),
    "norm of all": lambda x, y: x.norm(),
    "std": lambda x, y: x.std(-1, True, correction=1),
    "l2_normalize": lambda x, y: x.l2_normalize(eps=0.0),
    "cosine_similarity": lambda x, y: x.cosine_similarity(y, eps=0.0),
}


def exact(name, x, y):
    """The same in f64, of numbers that are scaled to where nothing goes wrong."""
    size, other = np.abs(x).max(), np.abs(y).max()
    x, y = x / size, y / other
    if name == "norm":
        return np.sqrt((x * x).sum(-1)) * size
    if name == "norm of all":
        return np.sqrt((x * x).sum()) * size
    if name == "std":
        return x.std(-1, keepdims=True, ddof=1) * size
    unit = [v / np.sqrt((v * v).sum(-1, keepdims=True)) for v in (x, y)]
    return unit[0] if name == "l2_normalize" else (unit[0] * unit[1]).sum(-1)


def graph_of(name, shape, kind):
    g = Graph()
    g.set_outputs([FUNCTIONS[name](g.input("x", shape, kind), g.input("y", shape, kind))])
    return g


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", SCALES)
def test_lengths_of_any_size(name, kind):
    rng = np.random.default_rng(0)
    numpy = dtypes.dtype(kind).numpy
    for shape in [(3, 2), (5, 37), (2, 300)]:
        g = graph_of(name, shape, kind)
        with darner.build_inference_session(g) as session:
            for scale in SCALES[kind]:
                x = (rng.uniform(0.5, 2.0, shape) * scale).astype(numpy)
                y = (rng.uniform(-2.0, 2.0, shape) * scale).astype(numpy)
                wanted = exact(name, x.astype(np.float64), y.astype(np.float64))
                close = 8 * tolerance(numpy) if kind in ("f16", "bf16") else tolerance(numpy, 300)
                (found,) = session.run({"x": x, "y": y}).values()
                for value in (found, darner.run(g, {"x": x, "y": y})[0]):
                    np.testing.assert_allclose(
                        value.astype(np.float64),
                        wanted,
                        rtol=close,
                        atol=close * np.abs(wanted).max(),
                    )


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1), (0, 2)])
def test_every_way_that_rows_can_lie(axes):
    rng = np.random.default_rng(1)
    shape = (40, 50, 60)
    # Some rows need the second pass, and others do not.
    x = (rng.normal(size=shape) * 10.0 ** rng.choice([0, 25, -25], (40, 50, 1))).astype(np.float32)
    g = Graph()
    node = g.input("x", shape)
    g.set_outputs([node.norm(axes), node.norm(axes, True) * 2.0, node.l2_normalize(axes)])
    wide = x.astype(np.float64)
    length = np.sqrt((wide * wide).sum(axes, keepdims=True))
    for threads in (1, 3):
        with darner.build_inference_session(g, threads=threads) as session:
            plain, twice, unit = session.run({"x": x}).values()
        np.testing.assert_allclose(plain, length.reshape(plain.shape), rtol=1e-5)
        np.testing.assert_allclose(twice, 2 * length, rtol=1e-5)
        np.testing.assert_allclose(unit, wide / np.maximum(length, 1e-12), rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("scale", [1.0, 1e19, 1e-19, 1e-30])
def test_gradients_at_any_size(scale):
    x, y = np.array([3.0, 4.0]) * scale, np.array([1.0, -2.0]) * scale
    wide = {"x": x, "y": y}

    def gradient(make, kind):
        g = Graph()
        nodes = [g.parameter(name, (2,), kind) for name in "xy"]
        g.set_outputs([make(*nodes)])
        inputs = {name: value.astype(kind.replace("f", "float")) for name, value in wide.items()}
        with darner.build_inference_session(darner.grad(g, ["x"])) as session:
            for name, value in inputs.items():
                session.set_parameter(name, value)
            return list(session.run().values())[-1]

    makes = [
        lambda x, y: x.norm(),
        lambda x, y: (x - y).std(),
        lambda x, y: x.l2_normalize(eps=0.0)[0],
        lambda x, y: x.cosine_similarity(y, eps=0.0),
    ]
    for make in makes:
        np.testing.assert_allclose(gradient(make, "f32"), gradient(make, "f64"), rtol=2e-5)


def test_what_is_shorter_than_eps_counts_as_eps():
    x = np.array([[3e-20, 4e-20], [0.0, 0.0], [3.0, 4.0]], np.float32)
    g = Graph()
    node = g.input("x", x.shape)
    g.set_outputs([node.l2_normalize(), node.l2_normalize(eps=1e-15), node.cosine_similarity(node)])
    with darner.build_inference_session(g) as session:
        plain, smaller, cosine = session.run({"x": x}).values()
    np.testing.assert_allclose(plain, [[3e-8, 4e-8], [0, 0], [0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(smaller, [[3e-5, 4e-5], [0, 0], [0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(cosine, [2.5e-23, 0.0, 1.0], rtol=1e-5)


def test_infinities_and_nan_are_no_lengths():
    x = np.array([[np.inf, 1.0], [np.nan, 1.0], [1e30, np.nan]], np.float32)
    g = Graph()
    g.set_outputs([g.input("x", x.shape).norm(-1)])
    with darner.build_inference_session(g) as session:
        (found,) = session.run({"x": x}).values()
    np.testing.assert_array_equal(found, [np.inf, np.nan, np.nan])


@pytest.mark.parametrize("name", ["norm", "std", "l2_normalize", "cosine_similarity"])
def test_sums_of_multiples_are_made_only_for_rows_that_need_them(name):
    plan = lower_for("cpu", graph_of(name, (64, 256), "f32"))
    (kernel,) = plan.kernels
    program = row_program(collapsed(plan.spec(kernel)), 16, MOST_KEPT)
    assert [guard is None for guard in program.guards] == [True] * (len(program.levels) - 1) + [
        False
    ]
    assert not program.kept


TOGETHER = {
    "two lengths": lambda x, y: [x.norm(-1) + y.norm(-1)],
    "a length and what is divided by it": lambda x, y: [x.norm(-1), x.l2_normalize()],
}


@pytest.mark.parametrize("name", TOGETHER)
def test_lengths_in_one_kernel_share_a_pass_that_few_rows_need(name):
    shape = (64, 48)
    g = Graph()
    g.set_outputs(TOGETHER[name](g.input("x", shape), g.input("y", shape)))
    plan = lower_for("cpu", g)
    (kernel,) = plan.kernels
    guards = row_program(collapsed(plan.spec(kernel)), 16, MOST_KEPT).guards
    assert guards[0] is None
    assert len(guards[1].conditions) == 2
    rng = np.random.default_rng(3)
    # Rows that one length needs it for, rows for the other, for both and for none.
    inputs = {
        leaf: (rng.normal(size=shape) * 10.0 ** rng.choice([0, 25, -25], (64, 1))).astype("f4")
        for leaf in "xy"
    }
    wide = {leaf: value.astype(np.float64) for leaf, value in inputs.items()}
    wanted = darner.run(g, wide, float64=True)
    with darner.build_inference_session(g) as session:
        found = session.run(inputs).values()
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


CHOICES = {
    "a sum or a number": lambda x, peak, axes: (peak > 2.5).where((x * peak).sum(axes, True), 0.0),
    "a number or a sum": lambda x, peak, axes: (peak > 2.5).where(1.0, (x - peak).sum(axes, True)),
    "something made of two": lambda x, peak, axes: (peak > 2.5).where(
        ((x - peak).exp().sum(axes, True).log() + (x * peak).mean(axes, True)) * 2.0, peak
    ),
    "used again for each element": lambda x, peak, axes: (
        x * (peak > 2.5).where((x * peak).sum(axes, True), peak) + peak
    ),
    "by a condition that is not the row's": lambda x, peak, axes: (x > 0.5).where(
        (x - peak).sum(axes, True), x
    ),
    "and not only chosen": lambda x, peak, axes: (
        (peak > 2.5).where((x - peak).sum(axes, True), 0.0) + (x - peak).sum(axes, True)
    ),
    "by two conditions": lambda x, peak, axes: (
        (peak > 2.5).where((x - peak).sum(axes, True), 0.0)
        + (peak > 3.0).where((x - peak).sum(axes, True), 1.0)
    ),
    "always or never": lambda x, peak, axes: (
        (x.graph.constant(np.float32(1.0)) > 0.0)
        .broadcast_to(peak.shape)
        .where((x - peak).sum(axes, True), peak)
    ),
}


@pytest.mark.parametrize("shape", [(40, 33), (3, 70_000), (70_000, 3), (6, 300)])
@pytest.mark.parametrize("name", CHOICES)
def test_sums_that_some_rows_choose(name, shape):
    x = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    g = Graph()
    node = g.input("x", shape)
    outputs = [CHOICES[name](node, node.max(axes, True), axes) for axes in ((0,), (1,))]
    g.set_outputs(outputs)
    wanted = darner.run(g, {"x": x}, float64=True)
    with darner.build_inference_session(g, level=0) as session:
        found = list(session.run({"x": x}).values())
    for one, other in zip(found, wanted, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5 * max(scale, 1.0))
