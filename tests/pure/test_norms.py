"""Normalisations: the spellings of a call, values at their limits, and what wrong calls say."""

import numpy as np
import pytest

import darner

RNG = np.random.default_rng(0)


@pytest.fixture
def g():
    return darner.Graph()


def evaluate(build, *arrays):
    """The value of ``build(graph, *nodes)`` on given arrays."""
    g = darner.Graph()
    nodes = [g.input(f"x{i}", array.shape, array.dtype) for i, array in enumerate(arrays)]
    result = build(g, *nodes)
    g.set_outputs(list(result) if isinstance(result, tuple) else [result])
    found = darner.run(g, {f"x{i}": array for i, array in enumerate(arrays)})
    return found if isinstance(result, tuple) else found[0]


def described(node):
    return node.op.name, node.inputs, node.slots, node.attrs, node.type


def same(*nodes):
    return all(described(node) == described(nodes[0]) for node in nodes)


# --------------------------------------------------------------------------- spellings


def test_layer_norm_knows_the_forms_of_both_seeds(g):
    x, w, b = g.input("x", (4, 15, 8)), g.parameter("w", (8,)), g.parameter("b", (8,))
    assert same(
        g.layer_norm(x, weight=w, bias=b, eps=1e-6, axis=-1),
        g.layer_norm(x, w, b, 1e-6),
        g.layer_norm(x, w, b, -1, 1e-6),
        g.layer_norm(x, w, b, -1, 1e-6, (4, 15, 8)),
        g.layer_norm(x, w, b, 2, 1e-6, darner.Shape.new([4, 15, 8])),
        g.layer_norm(x, w, b, np.int64(2), eps=1e-6),
        g.layer_norm(x.id, w.id, b.id, -1, 1e-6),
        x.layer_norm(w, b, 1e-6),
        g.ln(x, w, b, 1e-6),
    )
    assert g.layer_norm(x, w, b, 1e-6).attrs == {"eps": 1e-6, "axis": 2}
    wide = g.parameter("wide", (15, 8))
    assert same(g.layer_norm(x, wide, wide, 1, 1e-5), g.layer_norm(x, wide, wide, axis=1))


def test_rms_norm_knows_the_forms_of_both_seeds(g):
    x, w, b = g.input("x", (3, 8)), g.parameter("w", (8,)), g.parameter("b", (8,))
    assert same(
        g.rms_norm(x, w, eps=1e-6),
        g.rms_norm(x, w, 1e-6),
        g.rms_norm(x, w, None, 1e-6),
        g.rms_norm(x, w, np.float64(1e-6)),
        g.rms_norm(x, w, 1e-6, shape=(3, 8)),
        x.rms_norm(w, 1e-6),
    )
    assert same(
        g.rms_norm(x, w, b, 1e-6),
        g.rms_norm(x, weight=w, bias=b, eps=1e-6, axis=-1),
        g.rms_norm(x.id, w.id, b.id, 1e-6),
        g.rms_norm(x, w, b, -1, 1e-6),
    )
    assert g.rms_norm(x, w).slots == ("x", "weight")
    assert g.rms_norm(x, bias=b).slots == ("x", "bias")


def test_group_norm_takes_flat_tensors_with_their_geometry():
    x = RNG.normal(size=(2, 6, 12)).astype(np.float32)
    w, b = RNG.normal(size=(2, 6)).astype(np.float32)
    whole = evaluate(lambda g, x, w, b: g.group_norm(x, w, b, 3, 1e-4), x, w, b)
    calls = [
        lambda g, x, w, b: g.group_norm(x, w, b, 2, 6, 12, 3, 1e-4),
        lambda g, x, w, b: x.group_norm(
            w, b, batch=2, channels=6, spatial=12, num_groups=3, eps=1e-4
        ),
        lambda g, x, w, b: g.group_norm(x.id, w.id, b.id, 2, 6, 12, 3, 1e-4),
    ]
    for call in calls:
        flat = evaluate(call, x.reshape(-1), w, b)
        assert flat.shape == (144,)
        np.testing.assert_array_equal(flat, whole.reshape(-1))
    gated = evaluate(
        lambda g, x, w, b: g.group_norm_silu(x, w, b, 2, 6, 12, 3, 1e-4), x.reshape(-1), w, b
    )
    np.testing.assert_allclose(gated.reshape(whole.shape), whole / (1 + np.exp(-whole)), rtol=1e-5)


def test_group_norm_needs_no_weight(g):
    x = g.input("x", (2, 6, 4))
    assert same(
        g.group_norm(x, None, None, 3),
        g.group_norm(x, num_groups=3),
        x.group_norm(num_groups=3, eps=1e-5),
        g.group_norm(x=x, num_groups=3),
    )
    w = g.parameter("w", (6,))
    assert same(g.group_norm(x, w, None, 3), g.group_norm(x, w, num_groups=3))
    assert same(g.group_norm(x, None, w, 3), g.group_norm(x, bias=w, num_groups=3))


def test_fused_residual_norms_are_the_norm_of_the_sum():
    x, r = RNG.normal(size=(2, 3, 5))
    bias, gamma, beta = RNG.normal(size=(3, 5))
    for fused, plain in (
        ("fused_residual_ln", "layer_norm"),
        ("fused_residual_rms_norm", "rms_norm"),
    ):
        found = evaluate(
            lambda g, *a, f=fused: getattr(g, f)(*a, 1e-5, darner.Shape.new([3, 5], "f64")),
            *(x, r, bias, gamma, beta),
        )
        wanted = evaluate(
            lambda g, s, *a, p=plain: getattr(g, p)(s, *a, 1e-5), x + r + bias, gamma, beta
        )
        np.testing.assert_array_equal(found, wanted)


def test_batch_norm_of_inference_undoes_the_statistics_of_training():
    x = RNG.normal(size=(4, 3, 5))
    weight, bias = RNG.normal(size=(2, 3))
    y, mean, var = evaluate(lambda g, *a: g.batch_norm_training(*a), x, weight, bias)
    np.testing.assert_allclose(mean, x.mean((0, 2)))
    np.testing.assert_allclose(var, x.var((0, 2)))
    again = evaluate(lambda g, *a: g.batch_norm(*a), x, mean, var, weight, bias)
    np.testing.assert_allclose(again, y, rtol=1e-12)


def test_symbolic_sizes_are_taken_and_bound(g):
    x = g.input("x", ("batch", "seq", 8))
    image = g.input("image", ("batch", 4, "height", "width"))
    outputs = [
        g.layer_norm(x),
        g.layer_norm(x, axis=1),
        g.rms_norm(x, eps=0.1),
        g.l2_normalize(x, 1),
        g.group_norm(image, num_groups=2),
        g.instance_norm(image),
        g.layer_norm2d(image),
        *g.batch_norm_training(image),
        g.layer_norm_backward_input(x, None, x, 1),
        g.layer_norm_backward_gamma(x, x, ("seq", 8), 1),
        g.group_norm_backward_input(image, None, None, image, 2),
    ]
    g.set_outputs(outputs)
    values = {"x": RNG.normal(size=(2, 3, 8)), "image": RNG.normal(size=(2, 4, 3, 5))}
    values = {name: value.astype(np.float32) for name, value in values.items()}
    small = darner.run(g.bind(batch=2, seq=3, height=3, width=5), values)
    for by_symbol, by_number in zip(darner.run(g, values), small, strict=True):
        np.testing.assert_array_equal(by_symbol, by_number)
    np.testing.assert_allclose(small[0].mean(-1), 0, atol=1e-6)
    np.testing.assert_allclose(small[1].std((1, 2)), 1, rtol=1e-4)


# --------------------------------------------------------------------------- values at limits


def test_norms_of_zeros_are_the_bias():
    x, w, b = (
        np.zeros((3, 4), np.float32),
        np.full(4, 5, np.float32),
        np.arange(4, dtype=np.float32),
    )
    for name in ("layer_norm", "rms_norm"):
        found = evaluate(lambda g, *a, n=name: getattr(g, n)(*a), x, w, b)
        np.testing.assert_array_equal(found, np.broadcast_to(b, (3, 4)))
    zeros = np.zeros((2, 4, 3), np.float32)
    found = evaluate(lambda g, x: g.group_norm(x, num_groups=2), zeros)
    np.testing.assert_array_equal(found, zeros)
    np.testing.assert_array_equal(evaluate(lambda g, x: g.l2_normalize(x), zeros), zeros)


def test_norms_of_constants_see_no_variance():
    x = np.full((2, 4), 7, np.float32)
    np.testing.assert_array_equal(evaluate(lambda g, x: g.layer_norm(x), x), np.zeros((2, 4)))
    np.testing.assert_allclose(evaluate(lambda g, x: g.rms_norm(x), x), np.ones((2, 4)), rtol=1e-6)
    x = np.full((2, 3, 4), 7, np.float32)
    np.testing.assert_array_equal(evaluate(lambda g, x: g.instance_norm(x), x), np.zeros(x.shape))
    y, mean, var = evaluate(lambda g, x: g.batch_norm_training(x), x)
    np.testing.assert_array_equal(y, np.zeros(x.shape))
    np.testing.assert_array_equal(mean, [7, 7, 7])
    np.testing.assert_array_equal(var, [0, 0, 0])


def test_gradients_at_zeros_are_finite():
    x, dy = np.zeros((3, 4), np.float32), np.ones((3, 4), np.float32)
    dx = evaluate(lambda g, x, dy: g.rms_norm_backward_input(x, None, None, dy), x, dy)
    np.testing.assert_allclose(dx, np.full((3, 4), 1e-5**-0.5), rtol=1e-6)
    dx = evaluate(lambda g, x, dy: g.layer_norm_backward_input(x, None, dy), x, dy)
    np.testing.assert_array_equal(dx, np.zeros((3, 4)))


def test_variance_of_values_far_from_zero_keeps_its_digits():
    x = (10_000 + np.array([[-1, 0, 1, 2]])).astype(np.float32)
    found = evaluate(lambda g, x: g.layer_norm(x, eps=0.0), x)
    wanted = (x - x.mean()) / x.astype(np.float64).std()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_half_precision_is_computed_in_f32():
    x = np.full((1, 8), 300, np.float16)
    x[0, 0] = 250
    wanted = evaluate(lambda g, x: g.rms_norm(x), x.astype(np.float64))
    found = evaluate(lambda g, x: g.rms_norm(x), x)  # a square of 300 is beyond f16
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


# --------------------------------------------------------------------------- gradients


def difference(function, x, dy, step=1e-6):
    """The gradient of ``sum(function(x) * dy)`` by central differences."""
    gradient = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        moved = [x.copy() for _ in range(2)]
        moved[0][i] += step
        moved[1][i] -= step
        gradient[i] = np.sum((function(moved[0]) - function(moved[1])) * dy) / (2 * step)
    return gradient


def test_gradient_of_rms_norm_is_exact_far_from_unit_scale():
    x, dy, w = 7 * RNG.normal(size=(2, 5)), RNG.normal(size=(2, 5)), RNG.normal(size=5)
    found = evaluate(
        lambda g, x, w, dy: g.rms_norm_backward_input(x, w, None, dy, -1, 1e-5), x, w, dy
    )
    wanted = difference(lambda x: evaluate(lambda g, *a: g.rms_norm(*a, 1e-5), x, w), x, dy)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)


def test_gradient_spellings_of_meganeura_agree_with_those_of_rlx():
    x, dy, w = RNG.normal(size=(3, 5)), RNG.normal(size=(3, 5)), RNG.normal(size=5)

    def both(g, x, dy, w):
        return (
            *(
                g.rms_norm_grad_x(dy, x, w, 1e-3),
                g.rms_norm_backward_input(x, w, None, dy, -1, 1e-3),
            ),
            *(
                g.rms_norm_grad_w(dy, x, w, 1e-3),
                g.rms_norm_backward_gamma(x, w, None, dy, -1, 1e-3),
            ),
            *(g.layer_norm_grad_x(dy, x, w, 1e-3), g.layer_norm_backward_input(x, w, dy, -1, 1e-3)),
            *(
                g.layer_norm_grad_wb(dy, x, w, 1e-3),
                g.layer_norm_backward_gamma(x, dy, (5,), -1, 1e-3),
            ),
        )

    found = evaluate(both, x, dy, w)
    for ours, theirs in zip(found[::2], found[1::2], strict=True):
        assert np.abs(ours).max() > 0
        np.testing.assert_array_equal(ours, theirs)


def test_flat_gradients_of_group_norm_are_those_of_the_whole_tensor():
    x, dy, w = RNG.normal(size=(2, 6, 4)), RNG.normal(size=(2, 6, 4)), RNG.normal(size=6)
    dx, dw, db = evaluate(
        lambda g, x, dy, w: (
            g.group_norm_backward_input(x, w, None, dy, 3, 1e-3),
            g.group_norm_backward_gamma(x, dy, (6,), 3, 1e-3),
            g.group_norm_backward_beta(x, dy, (6,), 3, 1e-3),
        ),
        *(x, dy, w),
    )
    flat_dx, flat_wb = evaluate(
        lambda g, x, dy, w: (
            g.group_norm_grad_input(dy, x, w, 2, 6, 4, 3, 1e-3),
            g.group_norm_grad_weight_bias(dy, x, 6, 4, 3, 1e-3),
        ),
        *(x.reshape(-1), dy.reshape(-1), w),
    )
    np.testing.assert_array_equal(flat_dx, dx.reshape(-1))
    np.testing.assert_array_equal(flat_wb, np.concatenate([dw, db]))
    np.testing.assert_allclose(db, dy.sum((0, 2)))


def test_stated_shapes_of_gradients_may_be_left_out(g):
    x, dy = g.input("x", (2, 3, 4)), g.input("dy", (2, 3, 4))
    assert same(
        g.layer_norm_backward_gamma(x, dy, (3, 4), 1, 1e-5),
        g.layer_norm_backward_gamma(x, dy, darner.Shape.new([3, 4]), 1, 1e-5),
        g.layer_norm_backward_gamma(x, dy, axis=1),
    )
    assert same(
        g.group_norm_backward_gamma(x, dy, (3,), 3, 1e-5),
        g.group_norm_backward_gamma(x, dy, num_groups=3),
    )
    assert g.layer_norm_backward_beta(dy, axis=1).shape == (3, 4)


# --------------------------------------------------------------------------- errors


def message(call):
    with pytest.raises(darner.DarnerError) as caught:
        call()
    return str(caught.value)


def test_errors_name_the_operand_and_the_rule(g):
    x, w7, w8 = g.input("x", (3, 8)), g.parameter("w7", (7,)), g.parameter("w8", (8,))
    for call in (
        lambda: g.layer_norm(x, w7, label="block.norm"),
        lambda: g.rms_norm(x, w7, 1e-5, label="block.norm"),
    ):
        text = message(call)
        assert "'block.norm'" in text
        assert "weight is f32[7] but x has 8 features" in text
        assert "test_norms.py" in text
    assert "bias is f32[7] but x has 8 features" in message(lambda: g.layer_norm(x, w8, w7))
    assert "weight is f32[8] but the normalised axes of x are (3, 8)" in message(
        lambda: g.layer_norm(x, w8, axis=0)
    )
    assert ": axis 2 is outside -2..1" in message(lambda: g.layer_norm(x, w8, w8, 2, 1e-5))
    assert "does not exist in a scalar" in message(lambda: g.rms_norm(g.constant(1.0)))
    assert "eps is -1e-05" in message(lambda: g.layer_norm(x, eps=-1e-5))
    assert "eps is nan" in message(lambda: g.rms_norm(x, eps=float("nan")))
    assert "complex values" in message(lambda: g.rms_norm(g.input("z", (3,), "c64")))


def test_errors_of_channel_norms(g):
    x, w5, w6 = g.input("x", (2, 6, 4, 4)), g.parameter("w5", (5,)), g.parameter("w6", (6,))
    row = g.input("row", (6,))
    assert "weight is f32[5] but x has 6 channels" in message(lambda: g.group_norm(x, w5, w6, 2))
    assert "6 channels do not divide into 4 groups" in message(lambda: g.group_norm(x, w6, w6, 4))
    assert "num_groups is 0" in message(lambda: g.group_norm(x, w6, w6, 0))
    assert "argument 'num_groups' is missing" in message(lambda: g.group_norm(x, w6, w6))
    assert "x has rank 1, but its axes must be (batch, channels)" in message(
        lambda: g.group_norm(row, w6, w6, 2)
    )
    assert "x has 6 elements, but batch 2 * channels 6 * spatial 4 is 48" in message(
        lambda: g.group_norm(row, w6, w6, 2, 6, 4, 3, 1e-5)
    )
    assert "a flat tensor needs all of" in message(
        lambda: g.group_norm(row, w6, w6, batch=1, channels=6)
    )
    assert "(batch, channels, height, width)" in message(lambda: g.layer_norm2d(row, w6, w6, 1e-5))
    assert "bias is f32[5] but x has 6 channels" in message(lambda: g.layer_norm2d(x, w6, w5, 1e-5))
    assert "x has rank 2" in message(lambda: g.instance_norm(g.input("m", (2, 6))))
    assert "var is f32[5] but x has 6 channels" in message(lambda: g.batch_norm(x, w6, w5))
    assert "nothing to take the mean of" in message(
        lambda: g.batch_norm_training(g.input("none", (0, 3)))
    )


def test_errors_of_fused_norms_and_gradients(g):
    x, y, w = g.input("x", (3, 8)), g.input("y", (3, 7)), g.parameter("w", (7,))
    assert "x has shape (3, 8) but residual has (3, 7)" in message(
        lambda: g.fused_residual_ln(x, y, None, w, w, 1e-5)
    )
    assert "gamma is f32[7] but x has 8 features" in message(
        lambda: g.fused_residual_rms_norm(x, x, None, w, w, 1e-5)
    )
    assert "the result is (3, 8), but (3, 9) was stated" in message(
        lambda: g.fused_residual_ln(x, x, None, None, None, 1e-5, (3, 9))
    )
    assert "x has shape (3, 8) but dy has (3, 7)" in message(
        lambda: g.layer_norm_backward_input(x, None, y)
    )
    assert "gamma_shape is (7,), but by x it is (8,)" in message(
        lambda: g.layer_norm_backward_gamma(x, x, (7,), -1, 1e-5)
    )
    assert "gamma is f32[7] but x has 8 features" in message(
        lambda: g.rms_norm_backward_gamma(x, w, None, x)
    )
    assert "8 channels do not divide into 3 groups" in message(
        lambda: g.group_norm_backward_beta(x, x, (8,), 3)
    )
    assert "x has 24 elements" in message(
        lambda: g.group_norm_grad_weight_bias(x, x, 5, 2, 5, 1e-5)
    )
