"""Losses: scalars in the middle of a graph, extreme values, labels of every sort, wrong calls."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner import ArgumentError, DTypeError, Graph, RunError, ShapeError

RNG = np.random.default_rng(3)
LOGITS = RNG.normal(size=(6, 4))
CLASSES = np.array([0, 3, 1, 1, 2, 0])


def run(build, *arrays, **options):
    """The result of ``build`` on inputs holding the arrays, each in its own type."""
    graph = Graph("test")
    values = {str(i): np.asarray(array) for i, array in enumerate(arrays)}
    nodes = [graph.input(name, a.shape, a.dtype) for name, a in values.items()]
    graph.set_outputs([build(*nodes)])
    return darner.run(graph, values, **options)[0]


# --------------------------------------------------------------------------- scalars mid-graph


@pytest.mark.parametrize(
    "name", ["mse_loss", "l1_loss", "huber_loss", "smooth_l1_loss", "bce_with_logits_loss"]
)
def test_loss_is_a_true_scalar_that_can_be_used_mid_graph(name):
    a, b = RNG.normal(size=(5, 3)), RNG.uniform(size=(5, 3))
    function = {
        "bce_with_logits_loss": F.binary_cross_entropy_with_logits,
    }.get(name) or getattr(F, name)
    wanted = 3 * function(torch.tensor(a), torch.tensor(b)).item() + 1
    found = run(lambda x, y: getattr(x, name)(y) * 3.0 + 1.0, a, b)
    assert found.shape == (1,)
    np.testing.assert_allclose(found, [wanted], rtol=1e-12)


def test_cross_entropy_of_many_rows_counts_all_of_them_mid_graph():
    soft = RNG.dirichlet(np.ones(4), 6)
    found = run(lambda x, y: x.cross_entropy_loss(y) * 2.0, LOGITS, soft)
    logp = torch.log_softmax(torch.tensor(LOGITS), -1).numpy()
    assert found.shape == (1,)
    np.testing.assert_allclose(found, [2 * -(soft * logp).sum() / 6], rtol=1e-12)


# --------------------------------------------------------------------------- cross-entropy


def test_cross_entropy_takes_weights_of_any_sum():
    weights = RNG.uniform(0, 3, size=(6, 4))
    found = run(lambda x, y: x.cross_entropy_loss(y), LOGITS, weights)
    logp = torch.log_softmax(torch.tensor(LOGITS), -1).numpy()
    np.testing.assert_allclose(found, [-(weights * logp).sum() / 6], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_one_hot_labels_and_class_numbers_agree(dtype):
    one_hot = np.eye(4)[CLASSES]
    dense = run(lambda x, y: x.cross_entropy_loss(y), LOGITS, one_hot)
    numbers = run(lambda x, y: x.cross_entropy_loss(y), LOGITS, CLASSES.astype(dtype))
    np.testing.assert_allclose(dense, numbers, rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignored", [-100, -1, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_class_numbers_have_the_options_of_torch(smoothing, ignored, reduction):
    labels = np.where(np.arange(6) == 4, ignored, CLASSES)
    options = {"label_smoothing": smoothing, "ignore_index": ignored, "reduction": reduction}
    wanted = F.cross_entropy(torch.tensor(LOGITS), torch.tensor(labels), **options)
    found = run(lambda x, y: x.cross_entropy_loss(y, **options), LOGITS, labels)
    np.testing.assert_allclose(found, np.atleast_1d(wanted.numpy()), rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_soft_labels_are_smoothed_as_in_torch(smoothing):
    soft = RNG.dirichlet(np.ones(4), 6)
    wanted = F.cross_entropy(torch.tensor(LOGITS), torch.tensor(soft), label_smoothing=smoothing)
    found = run(lambda x, y: x.cross_entropy_loss(y, label_smoothing=smoothing), LOGITS, soft)
    np.testing.assert_allclose(found, [wanted.item()], rtol=1e-12)


def test_cross_entropy_of_sequences_is_the_mean_over_all_tokens():
    logits, labels = RNG.normal(size=(2, 5, 4)), RNG.integers(0, 4, (2, 5))
    wanted = F.cross_entropy(torch.tensor(logits).reshape(10, 4), torch.tensor(labels).reshape(10))
    found = run(lambda x, y: x.cross_entropy_loss(y), logits, labels)
    np.testing.assert_allclose(found, [wanted.item()], rtol=1e-12)


def test_cross_entropy_of_certain_and_wrong_logits_is_finite():
    logits = np.array([[1000.0, 0.0], [-1000.0, 0.0]], np.float32)
    found = run(lambda x, y: x.cross_entropy_loss(y, reduction="none"), logits, np.array([0, 0]))
    np.testing.assert_array_equal(found, [0, 1000])


def test_mean_over_nothing_is_nan_as_in_torch():
    empty = np.zeros((0, 3))
    assert np.isnan(run(lambda x, y: x.cross_entropy_loss(y), empty, empty))
    assert np.isnan(run(lambda x, y: x.mse_loss(y), empty, empty))
    all_ignored = np.full(6, -100)
    assert np.isnan(run(lambda x, y: x.cross_entropy_loss(y), LOGITS, all_ignored))


@pytest.mark.parametrize("label", [4, -1, 255])
@pytest.mark.parametrize(
    "name", ["cross_entropy_loss", "nll_loss", "softmax_cross_entropy_with_logits"]
)
def test_labels_outside_the_classes_are_an_error_of_the_run(name, label):
    labels = CLASSES.copy()
    labels[2] = label
    with pytest.raises(RunError, match=f"^{name}: .*index {label} is outside 0..3"):
        run(lambda x, y: getattr(x, name)(y), LOGITS, labels)


def test_ignored_labels_may_lie_outside_the_classes():
    labels = np.array([255, 3, 1, 255, 2, 0], np.uint8)
    wanted = F.cross_entropy(torch.tensor(LOGITS), torch.tensor(labels).long(), ignore_index=255)
    found = run(lambda x, y: x.cross_entropy_loss(y, ignore_index=255), LOGITS, labels)
    np.testing.assert_allclose(found, [wanted.item()], rtol=1e-12)


def test_labels_written_as_floats_give_the_loss_of_each_row():
    wanted = F.cross_entropy(torch.tensor(LOGITS), torch.tensor(CLASSES), reduction="none")
    for labels in (CLASSES, CLASSES.astype(np.float32)):
        found = run(lambda x, y: x.softmax_cross_entropy_with_logits(y), LOGITS, labels)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)


def test_backward_of_each_row_agrees_with_finite_differences():
    upstream, step = RNG.normal(size=6), 1e-6
    found = run(lambda x, y, g: x.softmax_cross_entropy_backward(y, g), LOGITS, CLASSES, upstream)

    def total(logits):
        rows = run(lambda x, y: x.softmax_cross_entropy_with_logits(y), logits, CLASSES)
        return (rows * upstream).sum()

    for place in np.ndindex(6, 4):
        moved = np.zeros((6, 4))
        moved[place] = step
        slope = (total(LOGITS + moved) - total(LOGITS - moved)) / (2 * step)
        assert abs(found[place] - slope) < 1e-7


def test_small_labels_do_not_wrap_around_among_many_classes():
    logits = np.zeros((1, 300))
    found = run(
        lambda x, y, g: x.softmax_cross_entropy_backward(y, g),
        logits,
        np.array([3], np.int8),
        np.ones(1),
    )
    assert np.flatnonzero(found < 0).tolist() == [3]


# --------------------------------------------------------------------------- element by element


def test_bce_keeps_probabilities_off_zero_and_one():
    pred, labels = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])
    for dtype in (np.float32, np.float64):
        found = run(
            lambda p, t: p.bce_loss(t, reduction="none"), pred.astype(dtype), labels.astype(dtype)
        )
        np.testing.assert_allclose(found[:2], [-math.log(1e-7)] * 2, rtol=1e-6)
        np.testing.assert_allclose(found[2:], [0, 0], atol=2e-7)


def test_bce_with_logits_of_extreme_logits_is_exact():
    logits = np.array([200.0, -200.0, 200.0, 0.0], np.float32)
    labels = np.array([1.0, 1.0, 0.0, 0.5], np.float32)
    found = run(lambda x, t: x.bce_with_logits_loss(t, reduction="none"), logits, labels)
    np.testing.assert_allclose(found, [0, 200, 200, math.log(2)], rtol=1e-6)


def test_kl_div_of_a_zero_target_adds_nothing():
    found = run(
        lambda x, t: x.kl_div(t, reduction="none"),
        np.log([0.5, 0.5]),
        np.array([0.0, 1.0]),
    )
    np.testing.assert_allclose(found, [0, math.log(2)], rtol=1e-12)


def test_huber_beyond_delta_is_a_line_and_smooth_l1_is_huber_over_beta():
    a, b = np.array([0.0, 0.5, 3.0, -9.0]), np.zeros(4)
    huber = run(lambda x, y: x.huber_loss(y, 2.0, reduction="none"), a, b)
    np.testing.assert_allclose(huber, [0, 0.125, 4, 16])
    smooth = run(lambda x, y: x.smooth_l1_loss(y, 2.0, reduction="none"), a, b)
    np.testing.assert_allclose(smooth, huber / 2)


def test_mixed_types_take_the_wider_one():
    logits = LOGITS.astype(np.float16)
    found = run(lambda x, y: x.cross_entropy_loss(y), logits, np.eye(4, dtype=np.float32)[CLASSES])
    assert found.dtype == np.float32
    found = run(lambda x, y: x.cross_entropy_loss(y), logits, CLASSES)
    assert found.dtype == np.float16
    found = run(lambda x, y: x.mse_loss(y), np.arange(3, dtype=np.int32), np.ones(3, np.float32))
    np.testing.assert_allclose(found, [2 / 3], rtol=1e-6)


def test_cosine_similarity_of_a_zero_vector_is_zero():
    found = run(lambda a, b: a.cosine_similarity(b), np.zeros((1, 3)), np.ones((1, 3)))
    np.testing.assert_array_equal(found, [0])


def test_losses_of_symbolic_sizes_divide_by_the_size_of_the_run():
    graph = Graph("symbolic")
    x, y = graph.input("x", ("batch", 3)), graph.input("y", ("batch", 3))
    labels = graph.input("labels", ("batch",), "i32")
    graph.set_outputs(
        [
            x.mse_loss(y),
            x.cross_entropy_loss(labels, label_smoothing=0.125),
            x.cross_entropy_loss(y),
            x.kl_div(y, reduction="batchmean"),
            x.softmax_cross_entropy_backward(labels, x.softmax_cross_entropy_with_logits(labels)),
        ]
    )
    assert darner.expand(graph).has_dynamic_dims()
    for batch in (1, 4):
        values = {
            "x": RNG.normal(size=(batch, 3)),
            "y": RNG.uniform(size=(batch, 3)),
            "labels": RNG.integers(0, 3, batch),
        }
        x_, y_, labels_ = (torch.tensor(v) for v in values.values())
        wanted = [
            F.mse_loss(x_, y_),
            F.cross_entropy(x_, labels_, label_smoothing=0.125),
            F.cross_entropy(x_, y_),
            F.kl_div(x_, y_, reduction="batchmean"),
        ]
        for which in (graph, darner.expand(graph)):
            found = darner.run(which, values, float64=True)
            for a, b in zip(found, wanted, strict=False):
                np.testing.assert_allclose(a, [b.item()], rtol=1e-12)
            assert found[4].shape == (batch, 3)


# --------------------------------------------------------------------------- wrong calls


class Model:
    def __init__(self):
        self.graph = g = Graph("wrong")
        self.x = g.input("x", (4, 3))
        self.row = g.input("row", (4,))
        self.ids = g.input("ids", (4,), "i32")
        self.more = g.input("more", (5,), "i32")
        self.half = g.input("half", (4,), "bf16")
        self.scalar = g.input("scalar", ())
        self.z = g.input("z", (4, 3), "c64")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda m: m.x.mse_loss(m.row),
            ShapeError,
            r"mse_loss: pred is f32\[4, 3\] but target is f32\[4\]: shapes differ",
        ),
        (
            lambda m: m.x.bce_loss(m.row),
            ShapeError,
            r"bce_loss: pred is f32\[4, 3\] but labels is f32\[4\]: shapes differ",
        ),
        (
            lambda m: m.x.cross_entropy_loss(m.row),
            ShapeError,
            r"logits is f32\[4, 3\] but labels is f32\[4\]: shapes differ; .*integers",
        ),
        (
            lambda m: m.x.cross_entropy_loss(m.more),
            ShapeError,
            r"integer labels must be \(4,\), one for each row of logits",
        ),
        (lambda m: m.x.cross_entropy_loss(m.z), DTypeError, "c64 are not weights"),
        (
            lambda m: m.x.cross_entropy_loss(m.x, ignore_index=2),
            ArgumentError,
            "ignore_index=2 needs class numbers",
        ),
        (
            lambda m: m.x.cross_entropy_loss(m.ids, label_smoothing=1.5),
            ArgumentError,
            "label_smoothing must be in 0..1, got 1.5",
        ),
        (
            lambda m: m.x.cross_entropy_loss(m.ids, reduction="average"),
            ArgumentError,
            "reduction: expected one of 'mean', 'sum', 'none', got 'average'",
        ),
        (lambda m: m.scalar.cross_entropy_loss(m.scalar), ShapeError, "shapes differ"),
        (lambda m: m.x.nll_loss(m.row), DTypeError, "labels must be integers, not f32"),
        (lambda m: m.scalar.nll_loss(m.ids), ShapeError, "needs an axis of classes"),
        (
            lambda m: m.x.softmax_cross_entropy_with_logits(m.half),
            DTypeError,
            "bf16 cannot hold class numbers",
        ),
        (
            lambda m: m.x.softmax_cross_entropy_backward(m.ids, m.x),
            ShapeError,
            r"d_loss must be \(4,\)",
        ),
        (lambda m: m.x.huber_loss(m.x, 0.0), ArgumentError, "delta must be positive, got 0.0"),
        (lambda m: m.x.smooth_l1_loss(m.x, -1.0), ArgumentError, "beta must not be negative"),
        (
            lambda m: m.scalar.kl_div(m.scalar, reduction="batchmean"),
            ShapeError,
            "batchmean needs a first axis",
        ),
        (lambda m: m.x.cosine_similarity(m.row), ShapeError, "3 and 4 on axis -1"),
        (lambda m: m.x.cosine_similarity(m.x, 2), ArgumentError, "axis 2 is outside -2..1"),
        (lambda m: m.x.cosine_similarity(m.x, eps=-1.0), ArgumentError, "eps must not be negative"),
    ],
)
def test_wrong_calls_are_refused(call, error, text):
    model = Model()
    size = len(model.graph)
    with pytest.raises(error, match=text):
        call(model)
    assert len(model.graph) == size
