"""Codes of 8 bits: laws, edges, errors, and what PyTorch computes; every op also has rows in ``tests/conformance``."""

import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, DTypeError, Graph, ShapeError

CODES = np.arange(-128, 128, dtype=np.int8)


def run(build, **arrays):
    graph = Graph("quantised")
    nodes = {name: graph.input(name, a.shape, a.dtype) for name, a in arrays.items()}
    graph.set_outputs([build(graph, **nodes)])
    return darner.run(graph, arrays)[0]


def on_cpu(build, **arrays):
    graph = Graph("quantised")
    nodes = {name: graph.input(name, a.shape, a.dtype) for name, a in arrays.items()}
    graph.set_outputs([build(graph, **nodes)])
    with darner.build_inference_session(graph, device="cpu") as session:
        return session.run(arrays)["output0"]


@pytest.mark.parametrize("scale", [1e-30, 3e-12, 0.1, 1 / 3, 1.0, 7e9, 1e30])
@pytest.mark.parametrize("point", [-128, 0, 5, 127])
def test_quantize_after_dequantize_gives_every_code_back(scale, point):
    found = run(lambda g, q: g.quantize(g.dequantize(q, scale, point), scale, point), q=CODES)
    np.testing.assert_array_equal(found, CODES)


def test_the_same_holds_in_a_session_and_by_channel():
    scales = np.geomspace(1e-30, 1e30, 7).tolist()
    points = [0, 1, -2, 127, -128, 64, -64]
    codes = np.stack([CODES] * 7, axis=1)

    def there_and_back(g, q):
        wide = g.dequantize_per_channel(q, 1, scales, points)
        return g.quantize_per_channel(wide, 1, scales, points)

    np.testing.assert_array_equal(on_cpu(there_and_back, q=codes), codes)


def test_nan_is_the_zero_point_and_infinities_saturate():
    x = np.array([np.nan, np.inf, -np.inf, 0.0, 1e30, -1e30], np.float32)
    wanted = [3, 127, -128, 3, 127, -128]
    for where in (run, on_cpu):
        assert where(lambda g, x: g.quantize(x, 0.1, 3), x=x).tolist() == wanted


def test_halves_go_to_the_even_code_or_away_from_zero():
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49999997, -2.4], np.float32)
    assert run(lambda g, x: x.quantize(1.0, 0), x=x).tolist() == [-2, -2, 0, 0, 2, 2, 0, -2]
    away = run(lambda g, x: x.quantize(1.0, 0, rounding="away"), x=x)
    assert away.tolist() == [-3, -2, -1, 1, 2, 3, 0, -2]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantize_agrees_with_torch():
    x = np.random.default_rng(0).normal(size=(6, 500)).astype(np.float32)
    theirs = torch.quantize_per_tensor(torch.from_numpy(x), 0.03, 7, torch.qint8).int_repr()
    np.testing.assert_array_equal(run(lambda g, x: g.quantize(x, 0.03, 7), x=x), theirs.numpy())
    scales = torch.tensor([0.01, 0.02, 0.5, 0.03, 0.07, 1.0], dtype=torch.float64)
    points = torch.tensor([0, 3, -9, 100, -100, 5])
    theirs = torch.quantize_per_channel(torch.from_numpy(x), scales, points, 0, torch.qint8)
    ours = run(lambda g, x: g.quantize_per_channel(x, 0, scales.tolist(), points.tolist()), x=x)
    np.testing.assert_array_equal(ours, theirs.int_repr().numpy())
    back = run(
        lambda g, q: g.dequantize_per_channel(q, 0, scales.tolist(), points.tolist()), q=ours
    )
    np.testing.assert_allclose(back, theirs.dequantize().numpy(), rtol=1e-6)


def test_a_division_is_not_replaced_by_a_product():
    # 1 / 0.1 is 10 in f32, but these quotients are not products.
    x = (np.arange(-4000, 4000) / 64 * np.float32(0.1)).astype(np.float32)
    wanted = np.clip(np.round(x / np.float32(0.1)), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(on_cpu(lambda g, x: g.quantize(x, 0.1, 0), x=x), wanted)


def test_large_products_of_codes_are_exact():
    rng = np.random.default_rng(1)
    x = np.full((3, 33_000), 127, np.int8)
    x[1] = -128
    x[2] = rng.integers(-128, 128, 33_000)
    w = np.full((33_000, 2), -128, np.int8)
    w[:, 1] = rng.integers(-128, 128, 33_000)
    bias = np.array([5, -7], np.int32)
    sums = (x.astype(np.int64) + 128) @ (w.astype(np.int64) - 127) + bias
    mult = 100 / np.abs(sums).max()
    wanted = np.clip(np.round(np.float32(sums) * np.float32(mult)) + 1, -128, 127)

    def product(g, x, w, bias):
        return g.q_matmul(x, w, bias, -128, 127, 1, mult, darner.Shape.new([3, 2], "i8"))

    for where in (run, on_cpu):
        np.testing.assert_array_equal(where(product, x=x, w=w, bias=bias), wanted)


def test_a_quantised_product_is_one_kernel_with_its_rounding():
    g = Graph()
    x, w = g.input("x", (8, 32), "i8"), g.input("w", (32, 16), "i8")
    y = g.q_matmul(x, w, g.input("b", (16,), "i32"), 0, 0, 1, 0.01)
    g.set_outputs([y.dequantize(0.5, 1)])
    with darner.build_inference_session(g, device="cpu") as session:
        assert [session.plan().spec(k).kind for k in session.plan().kernels] == ["contract"]


def test_padding_of_a_quantised_convolution_adds_nothing():
    x = np.full((1, 1, 3, 3), 5, np.int8)
    w = np.ones((1, 1, 3, 3), np.int8)

    def convolved(g, x, w):
        return g.q_conv2d(x, w, None, [3, 3], [1, 1], [1, 1], [1, 1], 1, 4, 0, -1, 1.0)

    wanted = np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]]) - 1
    for where in (run, on_cpu):
        np.testing.assert_array_equal(where(convolved, x=x, w=w)[0, 0], wanted)


# --------------------------------------------------------------------------- gradients


def test_a_loss_of_codes_says_what_to_train_with():
    g = Graph()
    w = g.parameter("w", (4,))
    g.set_outputs([w.quantize(0.1, 0).dequantize(0.1, 0).sum()])
    with pytest.raises(ArgumentError, match="no gradient reaches 'w'") as caught:
        darner.grad(g, ["w"])
    assert "fake_quantize passes gradients" in str(caught.value)
    assert caught.value.op == "quantize"


def test_gradient_of_fake_quantize_goes_through_where_nothing_is_cut_off():
    x = np.array([-40.0, -32.1, -31.9, 0.3, 31.6, 31.9, 40.0], np.float32)
    g = Graph()
    node = g.input("x", (7,))
    y = (node * 1.0).fake_quantize(0.25)
    g.set_outputs([y])
    pulled = darner.vjp(g, ["x"])
    weights = np.arange(1, 8, dtype=np.float32)
    name = next(name for name in pulled.inputs if name != "x")
    value, gradient = darner.run(pulled, {"x": x, name: weights})
    assert value.tolist() == [-32.0, -32.0, -32.0, 0.25, 31.5, 31.75, 31.75]
    assert gradient.tolist() == [0, 2, 3, 4, 5, 0, 0]  # as PyTorch: by the rounded code


def test_training_with_fake_quantize_lowers_the_loss():
    rng = np.random.default_rng(0)
    g = Graph()
    x, wanted = g.input("x", (16, 8)), g.input("wanted", (16, 4))
    w = g.parameter("w", (8, 4), init="normal(0.5)")
    g.set_outputs([g.mse_loss(x @ w.fake_quantize(0.125, bits=4), wanted)])
    x_value = rng.normal(size=(16, 8)).astype(np.float32)
    batch = {"x": x_value, "wanted": x_value @ rng.integers(-3, 4, (8, 4)) / 8}
    with darner.build_session(g, optimizer=darner.optim.Adam(0.02), device="cpu") as session:
        losses = [session.run(batch)["output0"].item() for _ in range(100)]
    assert losses[-1] < 0.05 * losses[0]


# --------------------------------------------------------------------------- errors

I8, U8, I32, F32 = ((3, 4), "i8"), ((3, 4), "u8"), ((4,), "i32"), ((3, 4), "f32")
WRONG = [
    ("quantize", [F32], [0.0, 0], ArgumentError, "scale must be a finite f32 above 0, not 0.0"),
    ("quantize", [F32], [1e-60, 0], ArgumentError, "scale must be a finite f32"),
    ("quantize", [F32], [float("nan"), 0], ArgumentError, "scale must be a finite f32"),
    ("quantize", [F32], [0.1, 128], ArgumentError, "zero_point must be in -128..127, not 128"),
    ("quantize_per_channel", [F32], [1, [0.1] * 3, [0] * 4], ShapeError, "3 scales"),
    ("quantize_per_channel", [F32], [1, [0.1] * 4, [0] * 3], ShapeError, "3 zero_points"),
    ("quantize_per_channel", [F32], [1, [0.1] * 3 + [-1], [0] * 4], ArgumentError, "a scale"),
    ("dequantize", [F32], [0.1, 0], DTypeError, "q must be i8 or u8, not f32"),
    ("dequantize", [U8], [0.1, -1], ArgumentError, "must be in 0..255"),
    ("fake_quantize", [F32], [[0.1, 0.2]], ArgumentError, "need an axis"),
    ("fake_quantize", [F32], [0.1, 200], ArgumentError, "a zero point must be in -128..127"),
    ("q_matmul", [F32, ((4, 2), "i8"), ((2,), "i32")], [0, 0, 0, 1.0], DTypeError, "x must be i8"),
    ("q_matmul", [I8, ((5, 2), "i8"), ((2,), "i32")], [0, 0, 0, 1.0], ShapeError, "inner sizes 4"),
    (
        "q_matmul",
        [I8, ((4, 2), "i8"), ((2,), "f32")],
        [0, 0, 0, 1.0],
        DTypeError,
        "bias must be i32",
    ),
    (
        "q_matmul",
        [I8, ((4, 2), "i8"), ((3,), "i32")],
        [0, 0, 0, 1.0],
        ShapeError,
        r"must be \(2,\)",
    ),
    (
        "q_matmul",
        [I8, ((4, 2), "i8"), ((2,), "i32")],
        [0, 0, 0, [1.0] * 3],
        ShapeError,
        "3 numbers",
    ),
    (
        "q_matmul",
        [I8, ((4, 2), "i8"), ((2,), "i32")],
        [0, 0, 0, -1.0],
        ArgumentError,
        "mult must be",
    ),
    ("q_matmul", [I8, ((4, 2), "i8"), ((2,), "i32")], [0, 0, 0, 1.0, (3, 3)], ShapeError, "stated"),
]


@pytest.mark.parametrize(("name", "operands", "rest", "kind", "text"), WRONG)
def test_wrong_calls_say_what_is_wrong(name, operands, rest, kind, text):
    g = Graph()
    nodes = [g.input(f"x{i}", *operand) for i, operand in enumerate(operands)]
    with pytest.raises(kind, match=text) as caught:
        getattr(g, name)(*nodes, *rest, label="here")
    assert caught.value.op == name
    assert "here" in str(caught.value)


def test_kernel_size_is_checked_against_the_weight():
    g = Graph()
    x, w = g.input("x", (1, 2, 5, 5), "i8"), g.input("w", (3, 2, 3, 3), "i8")
    with pytest.raises(ShapeError, match=r"kernel_size is \(2, 2\), but w has \(3, 3\)"):
        g.q_conv2d(x, w, None, (2, 2))
    with pytest.raises(ShapeError, match="x has 2 channels"):
        g.q_conv2d(x, w, None, (3, 3), groups=3)


def test_calls_read_back_from_text_and_json():
    g = Graph()
    x = g.input("x", (2, 3))
    y = x.quantize_per_channel(1, [0.1, 1e-30, 3.0], [0, -1, 2], rounding="away")
    g.set_outputs([y.dequantize(0.1, 3), x.fake_quantize([0.5, 0.25], 1, 0, bits=4)])
    again = Graph.from_json(g.to_json())
    assert again.to_text() == g.to_text() == Graph.from_text(g.to_text()).to_text()
    assert again.nodes[1].attrs["scales"] == (0.1, 1e-30, 3.0)
