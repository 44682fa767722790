"""Activations at their limits, gates, kinds by name, and what wrong calls say."""

import math

import numpy as np
import pytest
import torch

import darner
from darner.compat.kinds import Activation, BinaryOp, CompareOp, ReduceOp
from darner.ops.elementwise.activation_gradients import DERIVATIVES
from darner.ops.elementwise.activations import ACTIVATIONS

RLX_ACTIVATIONS = [
    "Gelu",
    "GeluApprox",
    "Silu",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Log",
    "Sqrt",
    "Rsqrt",
    "Neg",
    "Abs",
    "Sin",
    "Cos",
    "Tan",
    "Atan",
    "Round",
]
NO_DERIVATIVE = {"ceil", "floor", "sign", "trunc"}
LARGE = (-1e6, -1000, -50, -1e-30, 0, 1e-30, 50, 1000, 1e6)


def evaluate(build, *arrays):
    """The value of ``build(graph, *nodes)`` on given arrays."""
    g = darner.Graph()
    arrays = [np.asarray(array) for array in arrays]
    nodes = [g.input(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    g.set_outputs([build(g, *nodes)])
    return darner.run(g, {f"x{i}": array for i, array in enumerate(arrays)})[0]


def at(name, *values):
    return evaluate(lambda g, x: getattr(g, name)(x), np.array(values, np.float32))


def slope_at(kind, *values, **options):
    x = np.array(values, np.float32)
    return evaluate(
        lambda g, x, dy: g.activation_backward(kind, x, dy, **options), x, np.ones_like(x)
    )


# --------------------------------------------------------------------------- extreme values


def test_sigmoid_reaches_0_and_1_without_nan():
    np.testing.assert_array_equal(
        at("sigmoid", -1000, 0, 1000, -math.inf, math.inf), [0, 0.5, 1, 0, 1]
    )


def test_softplus_follows_x_far_up_and_vanishes_far_down():
    np.testing.assert_array_equal(
        at("softplus", -1000, 1000, math.inf, -math.inf), [0, 1000, math.inf, 0]
    )
    np.testing.assert_allclose(at("softplus", -30), math.exp(-30), rtol=1e-6)


def test_log_sigmoid_keeps_its_digits_where_sigmoid_rounds():
    np.testing.assert_array_equal(at("log_sigmoid", -1000, 1000), [-1000, 0])
    np.testing.assert_allclose(at("log_sigmoid", 30), -math.exp(-30), rtol=1e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_approx", "silu", "quick_gelu", "mish", "hard_silu"])
def test_gates_of_x_are_0_or_x_far_out(name):
    np.testing.assert_array_equal(at(name, -1000, 1000), [0, 1000])


def test_gelu_at_50_is_exact():
    np.testing.assert_array_equal(at("gelu", -50, 0, 50), [0, 0, 50])


def test_elu_does_not_overflow_above_0():
    for name in ("elu", "selu", "celu"):
        assert np.isfinite(at(name, 1e4, -1e4)).all()
    np.testing.assert_array_equal(at("elu", 1e4, -1e4), [1e4, -1])


@pytest.mark.parametrize("kind", sorted(set(Activation) - {"exp", "tan", "log", "sqrt", "rsqrt"}))
def test_derivatives_are_finite_at_large_values(kind):
    assert np.isfinite(slope_at(kind, *LARGE)).all()


def test_activations_keep_nan():
    for name in ("relu", "relu6", "leaky_relu", "elu", "sigmoid", "gelu", "softplus", "hard_tanh"):
        assert np.isnan(at(name, math.nan)).all(), name


# --------------------------------------------------------------------------- derivatives at kinks


def test_derivative_of_relu_and_abs_at_0_is_0():
    np.testing.assert_array_equal(slope_at("relu", -1, 0, -0.0, 1), [0, 0, 0, 1])
    np.testing.assert_array_equal(slope_at("abs", -2, 0, 3), [-1, 0, 1])
    ones = np.ones(3, np.float32)
    found = evaluate(
        lambda g, x, dy: g.relu_backward(x, dy), np.array([-1, 0, 2], np.float32), ones
    )
    np.testing.assert_array_equal(found, [0, 0, 1])


def test_derivatives_where_piecewise_functions_bend():
    np.testing.assert_array_equal(slope_at("relu6", 0, 6), [0, 0])
    np.testing.assert_array_equal(slope_at("hard_tanh", -1, 1), [0, 0])
    np.testing.assert_array_equal(slope_at("hard_sigmoid", -3, 3), [0, 0])
    np.testing.assert_array_equal(slope_at("hard_silu", -3, 3), [0, 1])
    np.testing.assert_allclose(slope_at("leaky_relu", 0, alpha=0.25), [0.25])


def test_round_is_straight_through():
    dy = np.array([2.0, -3.0], np.float32)
    x = np.array([0.4, 2.5], np.float32)
    found = evaluate(lambda g, x, dy: g.activation_backward(Activation.Round, x, dy), x, dy)
    np.testing.assert_array_equal(found, dy)


def test_derivative_of_relu_does_not_multiply_an_infinite_gradient_by_0():
    x = np.array([-1.0, 1.0], np.float32)
    found = evaluate(lambda g, x, dy: g.relu_backward(x, dy), x, np.full(2, np.inf, np.float32))
    np.testing.assert_array_equal(found, [0, np.inf])


@pytest.mark.parametrize("kind", sorted(set(ACTIVATIONS) & set(DERIVATIVES) - {"round"}))
def test_derivative_matches_central_differences(kind):
    domain = {"acosh": (1.5, 3), "log": (0.5, 3), "log2": (0.5, 3), "log10": (0.5, 3)}
    domain |= dict.fromkeys(("acos", "asin", "atanh", "log1p"), (-0.8, 0.8))
    domain |= dict.fromkeys(("sqrt", "rsqrt", "recip"), (0.5, 3)) | {"tan": (-1.2, 1.2)}
    x = np.linspace(*domain.get(kind, (-2.6, 2.7)), 12)
    step = 1e-5
    high, low = (evaluate(lambda g, x: g.activation(kind, x), x + s) for s in (step, -step))
    exact = evaluate(lambda g, x, dy: g.activation_backward(kind, x, dy), x, np.ones_like(x))
    np.testing.assert_allclose(exact, (high - low) / (2 * step), rtol=2e-6, atol=2e-8)


def test_every_activation_has_a_derivative_but_the_step_functions():
    assert set(ACTIVATIONS) - set(DERIVATIVES) == NO_DERIVATIVE
    assert set(DERIVATIVES) <= set(ACTIVATIONS)


# --------------------------------------------------------------------------- gated units


def test_gate_order_of_swiglu():
    gate, up = np.array([1.0, -2.0]), np.array([3.0, 5.0])
    silu = gate / (1 + np.exp(-gate))
    np.testing.assert_allclose(evaluate(lambda g, a, b: g.swiglu(a, b), gate, up), silu * up)
    both = np.concatenate([gate, up])
    np.testing.assert_allclose(evaluate(lambda g, x: g.swiglu_concat(x), both), silu * up)
    swapped = np.concatenate([up, gate])
    found = evaluate(lambda g, x: g.swiglu_concat(x, gate_first=False), swapped)
    np.testing.assert_allclose(found, silu * up)


def test_gradient_of_swiglu_concat_lies_as_its_operand_does():
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(3, 8)), rng.normal(size=(3, 4))
    for first in (True, False):
        gate, up = (x[:, :4], x[:, 4:]) if first else (x[:, 4:], x[:, :4])
        of_gate = evaluate(lambda g, *a: g.swiglu_grad_gate(*a), dy, gate, up)
        of_up = evaluate(lambda g, *a: g.swiglu_grad_up(*a), dy, gate)
        found = evaluate(lambda g, *a, f=first: g.swiglu_concat_grad(*a, gate_first=f), dy, x)
        halves = (of_gate, of_up) if first else (of_up, of_gate)
        np.testing.assert_array_equal(found, np.concatenate(halves, axis=1))


def test_glu_gates_with_its_second_half_as_pytorch_does():
    x = np.random.default_rng(1).normal(size=(4, 6))
    for axis in (0, 1):
        wanted = torch.nn.functional.glu(torch.from_numpy(x), axis).numpy()
        np.testing.assert_allclose(evaluate(lambda g, x, a=axis: g.glu(x, a), x), wanted)


def test_gated_units_take_symbolic_sizes():
    n = darner.symbol("n")
    g = darner.Graph()
    x = g.input("x", ("batch", 2 * n))
    assert g.swiglu_concat(x).shape == (darner.symbol("batch"), n)
    y = g.swiglu_concat_grad(g.input("dy", ("batch", n)), x)
    assert y.shape == x.shape
    g.set_outputs([g.swiglu_concat(x)])
    values = np.arange(8, dtype=np.float32).reshape(2, 4)
    bound = darner.run(g.bind(batch=2, n=2), {"x": values, "dy": np.zeros((2, 2), np.float32)})[0]
    np.testing.assert_array_equal(bound, evaluate(lambda g, x: g.swiglu_concat(x), values))


# --------------------------------------------------------------------------- kinds


@pytest.mark.parametrize("member", RLX_ACTIVATIONS)
def test_activation_by_enum_name_and_text_is_the_same_node(member):
    g = darner.Graph()
    x = g.input("x", (3,))
    kind = getattr(Activation, member)
    for spelled in (kind, kind.value, member, member.lower()):
        node = g.activation(spelled, x, (3,))
        assert node.op is ACTIVATIONS[kind.value]
        assert node.type == x.type


def test_activation_backward_stores_one_spelling_of_its_kind():
    g = darner.Graph()
    x, dy = g.input("x", (3,)), g.input("dy", (3,))
    for spelled in (Activation.GeluApprox, "GeluApprox", "gelu_approx"):
        assert g.activation_backward(spelled, x, dy).attrs == {"kind": "gelu_approx", "alpha": None}
    assert g.activation_backward("swish", x, dy).attrs["kind"] == "silu"
    assert g.activation_backward("elu", x, dy).attrs["alpha"] == 1.0


def test_members_of_the_kinds_are_darner_names():
    g = darner.Graph()
    a, b = g.input("a", (2,)), g.input("b", (2,))
    for member in BinaryOp:
        assert g.binary(member, a, b).op.name in (member.value, f"{member.value}imum")
    for member in CompareOp:
        assert g.compare(member, a, b).op.name == member.value
    for member in ReduceOp:
        assert getattr(a, member.value)().shape == ()
    assert set(RLX_ACTIVATIONS) <= {member.name for member in Activation}


def test_activations_have_the_operand_type():
    g = darner.Graph()
    assert g.relu(g.input("i", (2,), "i32")).dtype.name == "i32"
    assert g.gelu(g.input("j", (2,), "i32")).dtype.name == "f32"
    assert g.gelu(g.input("h", (2,), "bf16")).dtype.name == "bf16"


def test_node_ids_are_accepted():
    g = darner.Graph()
    x = g.input("x", (4,))
    assert g.activation("relu", x.id).inputs == (x.id,)
    assert g.relu_backward(x.id, x.id).inputs == (x.id, x.id)


# --------------------------------------------------------------------------- errors


def message(call):
    with pytest.raises(darner.DarnerError) as caught:
        call()
    return str(caught.value)


def test_errors_name_the_rule():
    g = darner.Graph()
    x, y = g.input("x", (3, 5)), g.input("y", (3, 4))
    text = message(lambda: g.swiglu(x, y, label="ffn"))
    assert "swiglu 'ffn'" in text
    assert "gate has shape (3, 5) but up has (3, 4)" in text
    assert "test_activations.py" in text
    assert "size 5 on axis 1 does not split into halves" in message(lambda: g.swiglu_concat(x))
    assert "a scalar has no halves" in message(lambda: g.swiglu_concat(g.constant(1.0)))
    assert "size 3 on axis 0 does not split" in message(lambda: g.glu(y, 0))
    assert "x has shape (3, 5) but dy has (3, 4)" in message(lambda: g.relu_backward(x, y))
    assert "x has shape (3, 5) but dy has (3, 4)" in message(
        lambda: g.activation_backward("gelu", x, y)
    )
    assert "the result of swiglu_concat is f32[3, 2]" in message(lambda: g.swiglu_concat_grad(x, y))
    assert "no activation is called 'gelub'" in message(lambda: g.activation("gelub", x))
    assert "'floor' has no derivative but 0" in message(
        lambda: g.activation_backward("floor", x, x)
    )
    assert "'gelu' has no parameter alpha" in message(
        lambda: g.activation_backward("gelu", x, x, alpha=1.0)
    )
    assert "alpha is 0" in message(lambda: g.celu(x, 0.0))
    assert "alpha is 0" in message(lambda: g.activation_backward("celu", x, x, alpha=0.0))
    assert "the result is (3, 5), but (5, 3) was stated" in message(
        lambda: g.activation("relu", x, (5, 3))
    )
    assert "bool has no arithmetic" in message(lambda: g.relu(g.input("b", (2,), "bool")))
