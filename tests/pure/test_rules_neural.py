"""Derivatives of element-wise ops at their corners, and of activations, softmax, losses and norms by value."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner import Graph
from darner.testing import assert_close

INF = math.inf


def pull(build, arrays, wrt=None, cotangent=None, order=1):
    """The gradients of a graph's output, weighted by a cotangent (or of their sum, differentiated again)."""
    graph = Graph()
    nodes = [graph.input(name, np.shape(a), np.asarray(a).dtype) for name, a in arrays.items()]
    out = build(*nodes)
    if cotangent is not None:
        out = out * graph.constant(np.asarray(cotangent, np.float64))
    graph.set_outputs([out.sum()])
    names = [n.name for n in nodes if n.dtype.is_float] if wrt is None else wrt
    for _ in range(order):
        first = darner.grad(graph, names)
        graph = first.copy()
        total = [node.sum() for node in graph.outputs]
        graph.set_outputs([sum(total[1:], total[0])])
    return darner.run(first.verify(), arrays)


def at(build, *values, order=1):
    """The derivative of a function of one operand at some points."""
    return pull(build, {"x": np.array(values)}, order=order)[0]


def backward_ops(build, shapes, wrt):
    """The names of the ops of a gradient graph, leaves left out."""
    graph = Graph()
    nodes = {name: graph.input(name, shape) for name, shape in shapes.items()}
    graph.set_outputs([build(**nodes)])
    return [n.op.name for n in darner.vjp(graph, wrt).nodes if n.op.family != "leaves"]


# --------------------------------------------------------------------------- powers


@pytest.mark.parametrize(
    ("exponent", "first", "second"),
    [(0.0, 0.0, 0.0), (1.0, 1.0, 0.0), (2.0, 0.0, 2.0), (0.5, INF, -INF), (3.0, 0.0, 0.0)],
)
def test_derivatives_of_powers_at_0(exponent, first, second):
    arrays = {"a": np.array([0.0]), "b": np.array([exponent])}
    assert pull(lambda a, b: a**b, arrays, ["a"])[0] == [first]
    assert pull(lambda a, b: a**b, arrays, ["a"], order=2)[0] == [second]
    assert at(lambda x: x**exponent, 0.0) == [first]


def test_derivative_of_a_power_by_its_exponent_is_0_at_base_0_and_nan_below():
    arrays = {"a": np.array([0.0, 0.0, 2.0, -1.0]), "b": np.array([0.0, 2.0, 3.0, 2.0])}
    found = pull(lambda a, b: a**b, arrays, ["b"])[0]
    np.testing.assert_allclose(found, [0, 0, 8 * math.log(2), math.nan])


def test_mixed_derivative_of_a_power_is_the_same_in_either_order_at_exponent_0():
    graph = Graph()
    a, b = graph.input("a", (), "f64"), graph.input("b", (), "f64")
    graph.set_outputs([a**b])
    point = {"a": np.array(2.5), "b": np.array(0.0)}
    one = darner.run(darner.grad(darner.grad(graph, ["a"]), ["b"]), point)[0]
    other = darner.run(darner.grad(darner.grad(graph, ["b"]), ["a"]), point)[0]
    assert one == other == 1 / 2.5


def test_powers_of_negative_bases_have_derivatives():
    np.testing.assert_array_equal(at(lambda x: x**3, -2.0, -1.0), [12.0, 3.0])


# --------------------------------------------------------------------------- kinks and edges


@pytest.mark.parametrize(
    ("build", "points", "slopes"),
    [
        (lambda x: abs(x), (-2, 0, 3), (-1, 0, 1)),
        (lambda x: x.relu(), (-1, 0, 1), (0, 0, 1)),
        (lambda x: x.relu6(), (0, 1, 6), (0, 1, 0)),
        (lambda x: x.hard_tanh(), (-1, 0, 1), (0, 1, 0)),
        (lambda x: x.hard_sigmoid(), (-3, 0, 3), (0, 1 / 6, 0)),
        (lambda x: x.hard_silu(), (-3, 0, 3), (0, 0.5, 1)),
        (lambda x: x.leaky_relu(0.2), (-1, 0, 1), (0.2, 0.2, 1)),
        (lambda x: x.elu(0.5), (0, 1), (0.5, 1)),
        (lambda x: x.celu(2.0), (0, 1), (1, 1)),
        (lambda x: x.softplus(), (0,), (0.5,)),
        (lambda x: x.log_sigmoid(), (0,), (0.5,)),
        (lambda x: x.softsign(), (0,), (1,)),
        (lambda x: x.clip(-1.0, 2.0), (-2, -1, 0, 2, 3), (0, 1, 1, 1, 0)),
        (lambda x: x.sqrt(), (0, 4), (INF, 0.25)),
        (lambda x: x.rsqrt(), (0,), (-INF,)),
        (lambda x: x.log(), (0, 2), (INF, 0.5)),
        (lambda x: x.log1p(), (-1,), (INF,)),
        (lambda x: x.recip(), (0, 2), (-INF, -0.25)),
        (lambda x: x.asin(), (-1, 0, 1), (INF, 1, INF)),
        (lambda x: x.acos(), (-1, 0, 1), (-INF, -1, -INF)),
        (lambda x: x.atanh(), (-1, 0, 1), (INF, 1, INF)),
        (lambda x: x.acosh(), (1,), (INF,)),
        (lambda x: x.floor() + x.sign() + x.round() + x, (0.3, 2), (1, 1)),
        (lambda x: x.greater(0.5) * x, (0.2, 0.7), (0, 1)),
        (lambda x: x % 2.0, (-1, 1, 2), (1, 1, 1)),
        (lambda x: 5.0 % x, (2, 3), (-2, -1)),
    ],
)
def test_derivative_at_the_corner(build, points, slopes):
    np.testing.assert_allclose(at(build, *map(float, points)), slopes, rtol=1e-14)


def test_derivatives_near_the_end_of_a_domain_keep_their_digits():
    x = 1 - 2.0**-50
    assert at(lambda x: x.asin(), x)[0] == pytest.approx(2.0**24.5, rel=1e-12)
    assert at(lambda x: x.atanh(), x)[0] == pytest.approx(2.0**49, rel=1e-12)
    assert at(lambda x: x.acosh(), 1 + 2.0**-50)[0] == pytest.approx(2.0**24.5, rel=1e-12)


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_ties_go_to_the_first_operand(name):
    arrays = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([1.0, 3.0, 2.0])}
    weights = [5.0, 7.0, 11.0]
    a, b = pull(lambda a, b: getattr(a, name)(b), arrays, cotangent=weights)
    larger = [5.0, 0.0, 11.0] if name == "maximum" else [5.0, 7.0, 0.0]
    np.testing.assert_array_equal(a, larger)
    np.testing.assert_array_equal(b, np.subtract(weights, larger))


def test_a_broadcast_operand_receives_the_sum_of_its_ties_and_wins():
    arrays = {"a": np.array([[1.0, 2.0], [3.0, 0.0]]), "b": np.array([[1.0]])}
    a, b = pull(lambda a, b: a.maximum(b), arrays, cotangent=[[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(a, [[1.0, 2.0], [3.0, 0.0]])
    np.testing.assert_array_equal(b, [[4.0]])


def test_clip_sends_what_it_cuts_to_the_bound():
    arrays = {"x": np.array([-2.0, -1.0, 0.0, 1.0, 2.0]), "low": np.array(-1.0), "high": np.ones(5)}
    weights = np.arange(1.0, 6.0)
    x, low, high = pull(lambda x, low, high: x.clip(low, high), arrays, cotangent=weights)
    np.testing.assert_array_equal(x, [0, 2, 3, 4, 0])
    assert low == 1
    np.testing.assert_array_equal(high, [0, 0, 0, 0, 5])


def test_where_gives_exact_zeros_to_what_is_not_taken():
    arrays = {
        "c": np.array([True, False]),
        "a": np.array([1.0, math.nan]),
        "b": np.array([INF, 2.0]),
    }
    a, b = pull(lambda c, a, b: c.where(a, b), arrays, cotangent=[INF, 3.0])
    np.testing.assert_array_equal(a, [INF, 0.0])
    np.testing.assert_array_equal(b, [0.0, 3.0])


def test_angle_has_derivative_0_at_the_origin():
    arrays = {"a": np.array([0.0, 3.0]), "b": np.array([0.0, 4.0])}
    a, b = pull(lambda a, b: a.atan2(b), arrays)
    np.testing.assert_allclose(a, [0, 4 / 25])
    np.testing.assert_allclose(b, [0, -3 / 25])


def test_gradient_of_a_cast_comes_back_in_the_operands_type():
    graph = Graph()
    x = graph.input("x", (2,), "f32")
    graph.set_outputs([(x.cast("f64") * 3.0).sum()])
    (found,) = darner.run(darner.grad(graph, ["x"]), {"x": np.ones(2, np.float32)})
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [3.0, 3.0])


# --------------------------------------------------------------------------- activations

SMOOTH = {
    "sigmoid": torch.sigmoid,
    "log_sigmoid": F.logsigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_approx": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "mish": F.mish,
    "tanh": torch.tanh,
    "elu": F.elu,
    "selu": F.selu,
}


@pytest.mark.parametrize("name", SMOOTH)
def test_second_derivatives_of_activations(name):
    points = np.linspace(-3.1, 3.3, 9)
    x = torch.tensor(points, requires_grad=True)
    (first,) = torch.autograd.grad(SMOOTH[name](x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    found = at(lambda x: getattr(x, name)(), *points, order=2)
    np.testing.assert_allclose(found, second.detach().numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", [*SMOOTH, "relu", "relu6", "hard_silu", "softsign", "quick_gelu"])
def test_derivatives_of_activations_are_finite_far_out(name, order):
    assert np.isfinite(at(lambda x: getattr(x, name)(), -1000.0, 1000.0, order=order)).all()


def test_activations_keep_their_fused_derivative():
    assert backward_ops(lambda x: x.gelu(), {"x": (3,)}, ["x"]) == ["gelu", "activation_backward"]
    assert backward_ops(lambda x: x.relu(), {"x": (3,)}, ["x"]) == ["relu", "relu_backward"]
    both = backward_ops(lambda a, b: a.swiglu(b), {"a": (3,), "b": (3,)}, ["a", "b"])
    assert both == ["swiglu", "swiglu_grad_gate", "swiglu_grad_up"]
    only = backward_ops(lambda a, b: a.swiglu(b), {"a": (3,), "b": (3,)}, ["b"])
    assert only == ["swiglu", "swiglu_grad_up"]
    whole = backward_ops(lambda x: x.swiglu_concat(), {"x": (3, 4)}, ["x"])
    assert whole == ["swiglu_concat", "swiglu_concat_grad"]


@pytest.mark.parametrize("name", ["relu", "sigmoid", "silu", "gelu", "mish", "elu", "hard_silu"])
def test_derivatives_of_activations_stay_element_wise(name):
    graph = Graph()
    graph.set_outputs([getattr(graph.input("x", (3, 4)), name)()])
    for first in (darner.vjp(graph, ["x"]), darner.jvp(graph, ["x"])):
        ops = [node.op for node in darner.expand(first).nodes if node.op.family != "leaves"]
        assert all("elementwise" in op.traits for op in ops)


# --------------------------------------------------------------------------- softmax


@pytest.mark.parametrize(
    ("name", "backward"),
    [
        ("softmax", "softmax_backward"),
        ("log_softmax", "log_softmax_backward"),
    ],
)
def test_softmax_keeps_its_fused_derivative(name, backward):
    found = backward_ops(lambda x: getattr(x, name)(0), {"x": (3, 4)}, ["x"])
    assert found == [name, backward]


def test_gradient_of_masked_softmax_is_0_where_masked_and_in_empty_rows():
    arrays = {
        "x": np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
        "mask": np.array([[True, False, True], [False, False, False]]),
    }
    weights = np.array([[1.0, 20.0, 3.0], [4.0, 5.0, 6.0]])
    (found,) = pull(lambda x, mask: x.masked_softmax(mask), arrays, cotangent=weights)
    p = 1 / (1 + math.exp(2.0))
    np.testing.assert_allclose(found, [[-2 * p * (1 - p), 0, 2 * p * (1 - p)], [0, 0, 0]])


def test_gradient_of_log_softmax_is_finite_where_softmax_is_0():
    (found,) = pull(
        lambda x: x.log_softmax(), {"x": np.array([0.0, -800.0, -INF])}, cotangent=[1.0, 1.0, 0.0]
    )
    np.testing.assert_allclose(found, [-1.0, 1.0, 0.0])


def hessian_of(build, x):
    """All second derivatives of one number by its operand."""
    graph = Graph()
    graph.set_outputs([build(graph.input("x", x.shape, "f64"))])
    product = darner.hvp(graph, ["x"])
    units = np.eye(x.size).reshape(x.size, *x.shape)
    return np.stack([darner.run(product, {"x": x, "tangent_x": unit})[0] for unit in units])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda x: x.softmax(0), lambda x: x.softmax(0)),
        (lambda x: x.log_softmax(), lambda x: x.log_softmax(-1)),
        (lambda x: x.layer_norm(), lambda x: F.layer_norm(x, (4,))),
        (lambda x: x.rms_norm(), lambda x: F.rms_norm(x, (4,), eps=1e-5)),
        (lambda x: x.group_norm(num_groups=2), lambda x: F.group_norm(x, 2)),
        (
            lambda x: x.batch_norm_training()[0],
            lambda x: F.batch_norm(x, None, None, training=True),
        ),
        (lambda x: x.swiglu_concat(), lambda x: F.silu(x[:, :2]) * x[:, 2:]),
        (lambda x: x.l2_normalize(), lambda x: F.normalize(x, dim=-1)),
    ],
)
def test_hessian_agrees_with_pytorch(ours, theirs):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(3, 4))
    shape = theirs(torch.tensor(x)).shape
    weights = rng.normal(size=shape)

    def loss(x):
        return (theirs(x) * torch.tensor(weights)).square().sum()

    wanted = torch.autograd.functional.hessian(loss, torch.tensor(x)).reshape(12, 3, 4)
    found = hessian_of(lambda x: (ours(x) * x.graph.constant(weights)).square().sum(), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-7, atol=1e-8)


# --------------------------------------------------------------------------- losses


def torch_gradients(function, *arrays):
    leaves = [torch.tensor(a, requires_grad=True) for a in arrays]
    return [g.numpy() for g in torch.autograd.grad(function(*leaves).sum(), leaves)]


@pytest.mark.parametrize("name", ["l1_loss", "mse_loss", "huber_loss", "smooth_l1_loss"])
def test_losses_of_equal_numbers_have_gradient_0(name):
    same = np.array([1.0, -2.0])
    for gradient in pull(lambda a, b: getattr(a, name)(b), {"a": same, "b": same}):
        np.testing.assert_array_equal(gradient, [0.0, 0.0])


def test_huber_loss_bends_at_delta_without_a_jump():
    arrays = {"a": np.array([-0.5, 0.5, 3.0]), "b": np.zeros(3)}
    found = pull(lambda a, b: a.huber_loss(b, 0.5, reduction="sum"), arrays)[0]
    np.testing.assert_array_equal(found, [-0.5, 0.5, 0.5])


def test_gradient_of_bce_with_logits_at_0_and_far_out():
    arrays = {
        "logits": np.array([0.0, 0.0, 800.0, -800.0]),
        "labels": np.array([0.0, 1.0, 1.0, 1.0]),
    }
    logits, labels = pull(lambda x, y: x.bce_with_logits_loss(y, reduction="sum"), arrays)
    np.testing.assert_array_equal(logits, [0.5, -0.5, 0.0, -1.0])
    np.testing.assert_array_equal(labels, [0.0, 0.0, -800.0, 800.0])


def test_gradient_of_bce_stops_beyond_its_limits():
    arrays = {"p": np.array([0.0, 0.25, 1.0]), "labels": np.array([1.0, 1.0, 0.0])}
    found = pull(lambda p, y: p.bce_loss(y, reduction="sum"), arrays, ["p"])[0]
    np.testing.assert_allclose(found, [0.0, -4.0, 0.0])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_of_cross_entropy_by_class_numbers(smoothing, reduction):
    rng = np.random.default_rng(1)
    logits, labels = rng.normal(size=(5, 4)), np.array([0, 3, 1, 1, 2], np.int32)
    weights = rng.normal(size=5 if reduction == "none" else 1)
    (found,) = pull(
        lambda x, y: x.cross_entropy_loss(
            y, label_smoothing=smoothing, ignore_index=1, reduction=reduction
        ),
        {"x": logits, "y": labels},
        cotangent=weights,
    )
    (wanted,) = torch_gradients(
        lambda x: (
            torch.tensor(weights)
            * F.cross_entropy(
                x,
                torch.tensor(labels).long(),
                label_smoothing=smoothing,
                ignore_index=1,
                reduction=reduction,
            )
        ),
        logits,
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(found[2:4], 0.0)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_gradient_of_cross_entropy_by_weights_of_any_sum(smoothing, reduction):
    rng = np.random.default_rng(2)
    logits, labels = rng.normal(size=(2, 3, 4)), rng.uniform(0, 2, (2, 3, 4))
    cotangent = rng.normal(size=(2, 3) if reduction == "none" else 1)
    found = pull(
        lambda x, y: x.cross_entropy_loss(y, label_smoothing=smoothing, reduction=reduction),
        {"x": logits, "y": labels},
        cotangent=cotangent,
    )

    def theirs(x, y):
        shares = (1 - smoothing) * y + smoothing / 4
        losses = -(shares * x.log_softmax(-1)).sum(-1)
        reduced = {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]
        return reduced * torch.tensor(cotangent)

    for ours, wanted in zip(found, torch_gradients(theirs, logits, labels), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-15)


def test_cross_entropy_of_only_ignored_rows_has_gradient_0():
    arrays = {"x": np.ones((2, 3)), "y": np.array([-100, -100], np.int32)}
    (found,) = pull(lambda x, y: x.cross_entropy_loss(y), arrays)
    np.testing.assert_array_equal(found, np.zeros((2, 3)))


def test_labels_that_cannot_hold_the_ignored_index_all_count():
    arrays = {"x": np.zeros((2, 2)), "y": np.array([0, 1], np.uint8)}
    (found,) = pull(lambda x, y: x.cross_entropy_loss(y), arrays)
    np.testing.assert_array_equal(found, [[-0.25, 0.25], [0.25, -0.25]])


def test_cross_entropy_keeps_its_fused_derivative():
    graph = Graph()
    x, y = graph.input("x", (4, 9)), graph.input("y", (4,), "i32")
    graph.set_outputs([x.cross_entropy_loss(y)])
    names = [node.op.name for node in darner.grad(graph, ["x"]).nodes]
    assert "softmax_cross_entropy_backward" in names
    assert not {"cross_entropy_loss", "log_softmax", "scatter_add_along_axis"} & set(names)


def test_mean_of_more_rows_than_f16_can_count_has_a_gradient():
    rows = 70_000
    arrays = {
        "x": np.zeros((rows, 2), np.float16),
        "y": np.zeros(rows, np.int32),
    }
    graph = Graph()
    x, y = graph.input("x", (rows, 2), "f16"), graph.input("y", (rows,), "i32")
    graph.set_outputs([x.cross_entropy_loss(y) * 1000.0])
    (found,) = darner.run(darner.grad(graph, ["x"]), arrays)
    assert_close(found[:3], np.tile([-500 / rows, 500 / rows], (3, 1)), "f16")


def test_labels_written_as_floats_refuse_a_gradient():
    graph = Graph()
    x, y = graph.input("x", (4, 3)), graph.input("y", (4,))
    graph.set_outputs([x.softmax_cross_entropy_with_logits(y).sum()])
    with pytest.raises(darner.ArgumentError, match="labels that are class numbers"):
        darner.grad(graph, ["y"])
    found = darner.run(darner.grad(graph, ["x"]), {"x": np.zeros((4, 3)), "y": np.arange(4) % 3})
    np.testing.assert_allclose(found[0][0], [-2 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_divergence_has_finite_gradients_where_the_target_is_0():
    arrays = {"x": np.array([-1.0, -2.0]), "t": np.array([0.0, 0.5])}
    x, t = pull(lambda x, t: x.kl_div(t, reduction="sum"), arrays)
    np.testing.assert_allclose(x, [0.0, -0.5])
    np.testing.assert_allclose(t, [1.0, math.log(0.5) + 1 + 2])


def test_cosine_similarity_with_a_vector_of_zeros_has_a_finite_gradient():
    arrays = {"a": np.zeros((1, 3)), "b": np.array([[3.0, 0.0, 4.0]])}
    a, b = pull(lambda a, b: a.cosine_similarity(b, eps=0.1), arrays)
    np.testing.assert_allclose(a, [[6.0, 0.0, 8.0]])
    np.testing.assert_array_equal(b, [[0.0, 0.0, 0.0]])


# --------------------------------------------------------------------------- norms

FUSED = {
    "layer_norm": ["layer_norm_backward_input", "layer_norm_backward_gamma"],
    "rms_norm": ["rms_norm_backward_input", "rms_norm_backward_gamma"],
}


@pytest.mark.parametrize("name", FUSED)
def test_norms_build_only_the_fused_derivatives_that_are_wanted(name):
    of_x, of_weight = FUSED[name]
    shapes = {"x": (3, 4), "w": (4,)}
    for wrt, expected in ((["x"], [of_x]), (["w"], [of_weight]), (["x", "w"], [of_x, of_weight])):
        found = backward_ops(lambda x, w: getattr(x, name)(w), shapes, wrt)
        assert found == [name, *expected]


@pytest.mark.parametrize("name", ["fused_residual_ln", "fused_residual_rms_norm"])
def test_norms_after_a_residual_give_one_gradient_to_both_addends(name):
    shapes = {"x": (3, 4), "r": (3, 4), "b": (4,), "w": (4,)}
    found = backward_ops(lambda x, r, b, w: getattr(x, name)(r, b, w), shapes, [*shapes])
    assert sum("backward_input" in op for op in found) == 1
    rng = np.random.default_rng(3)
    arrays = {key: rng.normal(size=shape) for key, shape in shapes.items()}
    weights = rng.normal(size=(3, 4))
    gradients = pull(lambda x, r, b, w: getattr(x, name)(r, b, w), arrays, cotangent=weights)

    def theirs(x, r, b, w):
        norm = F.layer_norm if name == "fused_residual_ln" else F.rms_norm
        return norm(x + r + b, (4,), w, eps=1e-5) * torch.tensor(weights)

    for ours, wanted in zip(gradients, torch_gradients(theirs, *arrays.values()), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 1, 2)])
def test_gradient_of_batch_norm_comes_through_every_result_that_is_used(used):
    rng = np.random.default_rng(4)
    x, w, b = rng.normal(size=(4, 3, 2)), rng.normal(size=3), rng.normal(size=3)
    weights = [rng.normal(size=shape) for shape in ((4, 3, 2), 3, 3)]

    def ours(x, w, b):
        parts = x.batch_norm_training(w, b)
        terms = [(parts[i] * x.graph.constant(weights[i])).sum() for i in used]
        return sum(terms[1:], terms[0])

    def theirs(x, w, b):
        mean, var = x.mean((0, 2)), x.var((0, 2), correction=0)
        y = F.batch_norm(x, None, None, w, b, training=True) + 0 * w.sum() + 0 * b.sum()
        parts = (y, mean, var)
        return sum((parts[i] * torch.tensor(weights[i])).sum() for i in used) + 0 * y.sum()

    found = pull(ours, {"x": x, "w": w, "b": b})
    for one, wanted in zip(found, torch_gradients(theirs, x, w, b), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-9, atol=1e-11)


def test_length_of_a_zero_vector_has_a_finite_gradient():
    found = at(lambda x: x.l2_normalize(eps=0.5), 0.0, 0.0)
    np.testing.assert_array_equal(found, [2.0, 2.0])


# --------------------------------------------------------------------------- batches

WHOLE = {
    "softmax": (lambda x: x.softmax(0), {"x": (3, 4)}),
    "log_softmax": (lambda x: x.log_softmax(), {"x": (3, 4)}),
    "masked_softmax": (lambda x, m: x.masked_softmax(m.gt(0.0), 0), {"x": (3, 4), "m": (4,)}),
    "softmax_backward": (lambda y, dy: y.softmax_backward(dy, 0), {"y": (3, 4), "dy": (3, 4)}),
    "layer_norm": (
        lambda x, w, b: x.layer_norm(w, b),
        {"x": (3, 4), "w": (4,), "b": (4,)},
    ),
    "rms_norm": (lambda x, w: x.rms_norm(w, axis=0), {"x": (3, 4), "w": (3, 4)}),
    "group_norm": (
        lambda x, w, b: x.group_norm(w, b, 2),
        {"x": (2, 4, 3), "w": (4,), "b": (4,)},
    ),
    "instance_norm": (lambda x, w: x.instance_norm(w), {"x": (2, 4, 3), "w": (4,)}),
    "layer_norm2d": (lambda x, b: x.layer_norm2d(None, b), {"x": (2, 3, 2, 2), "b": (3,)}),
    "layer_norm_backward_input": (
        lambda x, w, dy: x.layer_norm_backward_input(w, dy),
        {"x": (3, 4), "w": (4,), "dy": (3, 4)},
    ),
    "group_norm_backward_input": (
        lambda x, w, dy: x.group_norm_backward_input(w, None, dy, 2),
        {"x": (2, 4, 3), "w": (4,), "dy": (2, 4, 3)},
    ),
    "swiglu": (lambda a, b: a.swiglu(b), {"a": (3, 4), "b": (3, 4)}),
    "activation_backward": (
        lambda x, dy: x.graph.activation_backward("gelu", x, dy),
        {"x": (5,), "dy": (5,)},
    ),
    "l2_normalize": (lambda x: x.l2_normalize(0), {"x": (3, 4)}),
    "glu": (lambda x: x.glu(0), {"x": (4, 3)}),
}


@pytest.mark.parametrize("name", WHOLE)
def test_ops_stay_whole_over_a_batch(name):
    build, shapes = WHOLE[name]
    graph = Graph()
    graph.set_outputs([build(*[graph.input(n, s, "f64") for n, s in shapes.items()])])
    rng = np.random.default_rng(6)
    plain = {n: rng.normal(size=s) for n, s in shapes.items()}
    for chosen in (*([n] for n in shapes), list(shapes)):
        batched = darner.vmap(graph, chosen, 3).verify()
        assert name in [node.op.name for node in batched.nodes]
        many = {n: rng.normal(size=(3, *shapes[n])) for n in chosen}
        (found,) = darner.run(batched, {**plain, **many})
        for i in range(3):
            one = {n: value[i] for n, value in many.items()}
            np.testing.assert_allclose(found[i], darner.run(graph, {**plain, **one})[0], rtol=1e-12)


def test_gradients_of_each_example_from_one_graph():
    graph = Graph()
    x, w = graph.input("x", (3, 4), "f64"), graph.parameter("w", (4,), "f64")
    labels = graph.input("labels", (3,), "i32")
    graph.set_outputs([x.layer_norm(w).cross_entropy_loss(labels)])
    single = darner.grad(graph, ["w"])
    rng = np.random.default_rng(7)
    values = {
        "x": rng.normal(size=(5, 3, 4)),
        "labels": rng.integers(0, 4, (5, 3)).astype(np.int32),
    }
    weight = {"w": rng.normal(size=4)}
    (found,) = darner.run(darner.vmap(single, ["x", "labels"], 5), values, weight)
    for i in range(5):
        one = {name: value[i] for name, value in values.items()}
        np.testing.assert_allclose(found[i], darner.run(single, one, weight)[0], rtol=1e-12)
