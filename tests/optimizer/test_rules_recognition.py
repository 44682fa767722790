"""Composites are found in the spellings of their parts, and only there."""

import math

import numpy as np
import pytest

import darner
from darner import Graph
from darner.optimizer.declare import RULES
from tests.optimizer.firing import fired, saturated
from tests.zoo import PIECES, gpt2, llama

FAMILIES = ("activations", "softmax", "norms", "losses")

COMPOSITES = {
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swiglu": "swiglu",
    "relu": "relu",
    "gelu_erf": "gelu",
    "gelu_tanh": "gelu_approx",
    "softmax": "softmax",
    "softmax of the first axis": "softmax",
    "log_softmax": "log_softmax",
    "layer_norm": "layer_norm",
    "rms_norm": "rms_norm",
    "group_norm": "group_norm",
    "batch_norm": "batch_norm",
    "cross_entropy": "cross_entropy_loss",
    "cross_entropy_ignoring": "cross_entropy_loss",
    "squared_error": "mse_loss",
}

NOT_EQUAL = {("cross_entropy_ignoring", 1)}
"""There, labels that name no class add a loss of 0; in the composite they are an error."""

CASES = [
    (piece, variant)
    for piece in COMPOSITES
    for variant in range(PIECES[piece][0])
    if (piece, variant) not in NOT_EQUAL
]


def forms(egraph, node):
    """The e-nodes found equal to a node of the graph."""
    (of_node,) = {
        egraph.classes[i]
        for i, made in enumerate(egraph.nodes)
        if made.rule is None and made.op is not None and made.origin == node.id
    }
    found = [egraph.nodes[i] for i, name in enumerate(egraph.classes) if name == of_node]
    return [made for made in found if made.op is not None]


def places(egraph, *names):
    """How many different values have a form of one of these ops."""
    return len(
        {
            egraph.classes[i]
            for i, made in enumerate(egraph.nodes)
            if made.op is not None and made.op.name in names
        }
    )


# --------------------------------------------------------------------------- pieces and models


@pytest.mark.parametrize(("piece", "variant"), CASES)
def test_a_piece_in_primitives_becomes_its_composite(piece, variant):
    _, in_composites, in_primitives = PIECES[piece]
    graph, wanted = in_primitives(variant), in_composites().outputs[0]
    found = forms(saturated(graph), graph.outputs[0])
    assert COMPOSITES[piece] in [made.op.name for made in found]
    if wanted.op.name == COMPOSITES[piece] and "cross_entropy" not in piece:
        # Not only the op: its attributes too are those that were meant.
        assert wanted.attrs in [made.attrs for made in found if made.op is wanted.op]


def test_losses_of_one_hot_rows_are_found_where_labels_may_name_no_class():
    graph = PIECES["cross_entropy_ignoring"][2](1)
    egraph = saturated(graph)
    assert places(egraph, "cross_entropy_loss") == 1
    assert "cross_entropy_loss" not in [made.op.name for made in forms(egraph, graph.outputs[0])]


@pytest.mark.parametrize("variant", range(4))
def test_a_llama_in_primitives_has_every_composite_of_its_layer(variant):
    egraph = saturated(llama(spelling="primitive", variant=variant))
    assert places(egraph, "rms_norm") >= 3
    assert places(egraph, "swiglu") >= 1
    assert places(egraph, "softmax", "masked_softmax") >= 1
    assert places(egraph, "cross_entropy_loss") >= 1
    assert egraph.limit is None


@pytest.mark.parametrize("variant", range(4))
def test_a_gpt2_in_primitives_has_every_composite_of_its_layer(variant):
    egraph = saturated(gpt2(spelling="primitive", variant=variant))
    assert places(egraph, "layer_norm") >= 3
    assert places(egraph, "gelu_approx") >= 1
    assert places(egraph, "softmax", "masked_softmax") >= 1
    assert places(egraph, "cross_entropy_loss") >= 1
    assert egraph.limit is None


# --------------------------------------------------------------------------- attributes


def test_eps_is_the_number_that_was_written():
    g = Graph("g")
    x = g.input("x", (3, 4))
    g.set_outputs([x * (x.square().mean(-1, keepdims=True) + 1e-6).rsqrt()])
    norms = [made for made in forms(saturated(g), g.outputs[0]) if made.op.name == "rms_norm"]
    assert [made.attrs for made in norms] == [{"eps": 1e-6, "axis": 1}]


def test_a_norm_over_two_axes_takes_a_weight_of_two_axes():
    g = Graph("g")
    x, weight = g.input("x", (2, 3, 4)), g.parameter("weight", (3, 4))
    g.set_outputs([x * (x.square().mean((1, 2), keepdims=True) + 1e-6).rsqrt() * weight])
    (norm,) = (made for made in forms(saturated(g), g.outputs[0]) if made.op.name == "rms_norm")
    assert norm.attrs["axis"] == 1
    assert norm.slots == ("x", "weight")


def test_labels_that_may_be_the_usual_ignored_number_are_not_left_out():
    """A mean over all rows is not one over the rows whose label is not -100."""
    g = Graph("g")
    scores, labels = g.input("scores", (4, 3)), g.input("labels", (4,), "i32")
    picked = scores.log_softmax().take_along_axis(labels.reshape((4, 1)), -1).reshape((4,))
    g.set_outputs([-picked.mean()])
    losses = [
        made for made in saturated(g).nodes if made.op and made.op.name == "cross_entropy_loss"
    ]
    assert losses
    assert all(made.attrs["ignore_index"] < -(2**31) for made in losses)


# --------------------------------------------------------------------------- what must not fire


def _per_row_norm(g):
    x = g.input("x", (3, 4))
    return x * (x.square().mean(0, keepdims=True) + 1e-5).rsqrt()


def _norm_of_another(g):
    x, y = g.input("x", (3, 4)), g.input("y", (3, 4))
    return x * (y.square().mean(-1, keepdims=True) + 1e-5).rsqrt()


def _negative_eps(g):
    x = g.input("x", (3, 4))
    return x * (x.square().mean(-1, keepdims=True) + -1e-5).rsqrt()


def _eps_by_row(g):
    x = g.input("x", (3, 4))
    return x * (x.square().mean(-1, keepdims=True) + g.constant(np.ones((2, 3, 1)))).rsqrt()


def _weight_by_row(g):
    x = g.input("x", (3, 4))
    return x.rms_norm() * g.input("weight", (3, 1))


def _scalar_weight(g):
    return g.input("x", (3, 4)).layer_norm() * 2.0


def _residual(g):
    x = g.input("x", (3, 4))
    return x.layer_norm() + g.input("y", (3, 4))


def _centred_elsewhere(g):
    x = g.input("x", (3, 4))
    return (x - x.mean(0, keepdims=True)).rms_norm()


def _group_across_samples(g):
    x = g.input("x", (4, 6, 5))
    return x.reshape((2, 6, 10)).layer_norm().reshape(x.shape)


def _group_across_channels(g):
    x = g.input("x", (2, 3, 4))
    return x.reshape((2, 6, 2)).layer_norm().reshape(x.shape)


def _broadcast_gate(g):
    return g.input("gate", (3, 1)).silu() * g.input("up", (3, 4))


def _wide_gate(g):
    return g.input("gate", (3, 4)).silu() * g.input("up", (4,))


def _overlapping_halves(g):
    x = g.input("x", (3, 5))
    return g.slice(x, (0, 0), (3, 3)) * g.slice(x, (0, 2), (3, 5)).sigmoid()


def _halves_changed_over(g):
    x = g.input("x", (3, 4))
    return g.slice(x, (0, 2), (3, 4)) * g.slice(x, (0, 0), (3, 2)).sigmoid()


def _wrong_gelu(g):
    x = g.input("x", (3, 4))
    return (x * ((x * 0.72).erf() + 1.0)) * 0.5


def _wrong_cube(g):
    x = g.input("x", (3, 4))
    inner = (x + x * x.square() * 0.045) * math.sqrt(2 / math.pi)
    return (x * (inner.tanh() + 1.0)) * 0.5


def _softmax_over_two_axes(g):
    x = g.input("x", (3, 4))
    return x.exp() / x.exp().sum((0, 1), keepdims=True)


def _shift_along_the_axis(g):
    return (g.input("x", (3, 4)) - g.input("shift", (4,))).softmax()


def _widening_shift(g):
    return (g.input("x", (4,)) - g.input("shift", (3, 1))).softmax()


def _broadcast_gradient(g):
    y, dy = g.input("y", (3, 4)), g.input("dy", (4,))
    return y * (dy - (y * dy).sum(-1, keepdims=True))


def _broadcast_target(g):
    return (g.input("x", (3, 4)) - g.input("y", (4,))).square().mean()


def _partial_mean(g):
    return (g.input("x", (3, 4)) - g.input("y", (3, 4))).square().mean(0)


def _broadcast_weights(g):
    return (g.input("weights", (4,)) * g.input("x", (3, 4)).log_softmax()).sum(-1)


def _mean_with_ignored(g):
    scores, labels = g.input("scores", (4, 3)), g.input("labels", (4,), "i32")
    return scores.nll_loss(labels, reduction="none").mean()


def _steep_maximum(g):
    x = g.input("x", (3, 4))
    return x.maximum(x * 2.0)


def _whole_numbers(g):
    x = g.input("x", (3, 4), "i32")
    return x.clip(-1, 1)


REFUSED = {
    _per_row_norm: "rms_norm",
    _norm_of_another: "rms_norm",
    _negative_eps: "rms_norm",
    _eps_by_row: "rms_norm",
    _weight_by_row: "rms_norm times a weight",
    _scalar_weight: "layer_norm times a weight",
    _residual: "layer_norm plus a bias",
    _centred_elsewhere: "layer_norm",
    _group_across_samples: "group_norm",
    _group_across_channels: "group_norm",
    _broadcast_gate: "swiglu",
    _wide_gate: "swiglu",
    _overlapping_halves: "glu",
    _halves_changed_over: "glu",
    _wrong_gelu: "gelu",
    _wrong_cube: "gelu_approx",
    _softmax_over_two_axes: "softmax",
    _shift_along_the_axis: "softmax of a shifted operand",
    _widening_shift: "softmax of a shifted operand",
    _broadcast_gradient: "softmax_backward",
    _broadcast_target: "mse_loss",
    _partial_mean: "mse_loss",
    _broadcast_weights: "cross_entropy_loss of weights",
    _mean_with_ignored: "nll_loss, mean",
    _steep_maximum: "leaky_relu by maximum",
    _whole_numbers: "hard_tanh",
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__.strip("_"))
def test_what_only_looks_like_a_composite_stays_what_it_is(make):
    graph = Graph("g")
    graph.set_outputs([make(graph)])
    assert REFUSED[make] in RULES
    assert fired(graph)[REFUSED[make]] == 0


# --------------------------------------------------------------------------- meaning


def test_rules_that_change_a_derivative_at_a_kink_wait_until_after_differentiation():
    def slope_at_zero(make):
        g = Graph("g")
        x = g.parameter("x", (1,))
        g.set_outputs([make(x).sum().reshape((1,))])
        return float(darner.run(darner.grad(g), {}, {"x": np.zeros(1, np.float32)})[0][0])

    assert slope_at_zero(lambda x: x.maximum(0.0)) != slope_at_zero(lambda x: x.relu())
    assert RULES["relu"].late
    zero_first = slope_at_zero(lambda x: x.graph.maximum(x.graph.constant(0.0, dtype="f32"), x))
    assert zero_first == slope_at_zero(lambda x: x.relu())
    assert not RULES["relu, zero first"].late


def test_composites_are_finite_where_their_parts_overflow():
    large = np.array([[-1000.0, 0.0, 1000.0]], np.float32)
    for name in ("sigmoid", "softmax", "softplus", "log_sigmoid", "logsumexp"):
        g = Graph("g")
        g.set_outputs([getattr(g.input("x", large.shape), name)()])
        assert np.isfinite(darner.run(g, {"x": large})[0]).all()


def test_every_rule_of_recognition_keeps_to_one_direction():
    """None makes parts of a composite, except for the variance, which norms are made of."""
    from darner.optimizer.pattern import Term

    names = {name for name, rule in RULES.items() if rule.family in FAMILIES}
    apart = [
        name
        for name in names
        if isinstance(RULES[name].result, Term)
        and RULES[name].pattern.op.is_composite
        and not any(term.op.is_composite for term in _terms(RULES[name].result))
    ]
    assert apart == []


def _terms(pattern):
    from darner.optimizer.pattern import terms

    return list(terms(pattern))
