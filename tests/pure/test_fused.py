"""Contractions with what stands around them: what they mean, what they refuse, what they cost."""

import numpy as np
import pytest

import darner
from darner import Graph, ShapeError
from darner.graph import dtypes


def image_and_kernel(x_shape, channels, seed=0):
    random = np.random.default_rng(seed)
    x = random.standard_normal(x_shape).astype(np.float32)
    w = random.standard_normal((channels, x_shape[1], 3, 3)).astype(np.float32)
    return {"x": x, "w": w}


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((2, 3, 6, 8), ((0, 0), (0, 0))),
        ((1, 2, 5, 7), ((1, 1), (1, 1))),
        ((1, 1, 3, 3), ((0, 0), (0, 0))),
        ((2, 3, 1, 2), ((1, 1), (0, 2))),
        ((1, 2, 4, 5), ((0, 3), (2, 0))),
    ],
)
def test_winograds_convolution_is_the_convolution(shape, padding):
    g = Graph()
    values = image_and_kernel(shape, 4)
    x, w = g.input("x", shape), g.input("w", values["w"].shape)
    g.set_outputs(
        [x.conv(w, padding=padding), x.winograd_conv(w.winograd_weight(), padding=padding)]
    )
    plain, winograd = darner.run(
        darner.in_float64(g), {k: v.astype("f8") for k, v in values.items()}
    )
    np.testing.assert_allclose(winograd, plain, rtol=1e-12, atol=1e-12)


def test_winograds_convolution_takes_an_image_of_unknown_size():
    g = Graph()
    x, w = g.input("x", (1, 2, "h", "w")), g.input("w", (3, 2, 3, 3))
    g.set_outputs([x.conv(w, padding=1), x.winograd_conv(w.winograd_weight(), padding=1)])
    for height, width in ((4, 5), (7, 6), (1, 1)):
        plain, winograd = darner.run(g, image_and_kernel((1, 2, height, width), 3))
        np.testing.assert_allclose(winograd, plain, rtol=1e-4, atol=1e-4)


def test_winograds_convolution_refuses_what_is_no_transformed_kernel():
    g = Graph()
    x = g.input("x", (1, 2, 5, 5))
    with pytest.raises(ShapeError, match=r"u must be \[4, 4, in, out\]"):
        x.winograd_conv(g.input("w", (3, 2, 3, 3)))
    with pytest.raises(ShapeError, match="x has 2 channels, but u takes 3"):
        x.winograd_conv(g.input("u", (4, 4, 3, 3)))
    with pytest.raises(ShapeError, match=r"w must be \[out, in, 3, 3\]"):
        g.input("v", (3, 2, 1, 1)).winograd_weight()
    with pytest.raises(ShapeError, match="does not fit"):
        g.input("y", (1, 3, 2, 5)).winograd_conv(g.input("t", (4, 4, 3, 3)))


def flops(channels):
    g = Graph()
    x, w = g.input("x", (1, channels, 16, 16)), g.input("w", (channels, channels, 3, 3))
    plain = x.conv(w, padding=1)
    winograd = x.winograd_conv(w.winograd_weight(), padding=1)
    return darner.cost(plain), darner.cost(winograd)


def test_winograds_convolution_costs_fewer_products_and_more_traffic():
    plain, winograd = flops(256)
    assert plain.flops == 2 * 9 * 256 * 256 * 256
    tiles = 8 * 8
    assert winograd.flops == 2 * 16 * tiles * 256 * 256 + 4 * tiles * (32 + 24) * 256
    assert winograd.bytes > plain.bytes
    # With few channels the transforms are most of the work.
    few, few_winograd = flops(2)
    assert few_winograd.flops > few.flops


def test_a_norm_before_a_product_is_counted_again_for_every_tile_of_columns():
    def cost(columns):
        g = Graph()
        x, gamma = g.input("x", (8, 32)), g.input("gamma", (32,))
        return darner.cost(x.norm_matmul(gamma, g.input("w", (32, columns))))

    narrow, wide = cost(64), cost(65)
    product = 2 * 8 * 32
    assert wide.flops - 65 * product == 2 * (narrow.flops - 64 * product)


def test_norm_matmul_refuses_what_is_no_matrix():
    g = Graph()
    x, gamma = g.input("x", (8,)), g.input("gamma", (8,))
    with pytest.raises(ShapeError, match="x must be a matrix"):
        x.norm_matmul(gamma, g.input("w", (8, 3)))
    with pytest.raises(ShapeError, match="w must be a matrix"):
        g.input("y", (2, 8)).norm_matmul(gamma, g.input("v", (2, 8, 3)))
    with pytest.raises(ShapeError, match="features"):
        g.input("z", (2, 7)).norm_matmul(gamma, g.input("u", (7, 3)))


def test_fused_conv_refuses_a_bias_or_a_residual_of_another_shape():
    g = Graph()
    x, w = g.input("x", (1, 2, 5, 5)), g.input("w", (4, 2, 3, 3))
    with pytest.raises(ShapeError, match="4 output channels"):
        x.fused_conv(w, g.input("b", (3,)))
    with pytest.raises(ShapeError, match=r"the convolution's shape"):
        x.fused_conv(w, None, g.input("r", (1, 4, 1, 1)))


def test_fused_conv_counts_the_arithmetic_of_its_convolution():
    g = Graph()
    x, w = g.input("x", (2, 4, 9, 7)), g.input("w", (6, 2, 3, 3))
    options = {"stride": 2, "padding": 1, "groups": 2}
    fused = x.fused_conv(w, g.input("b", (6,)), activation="relu", **options)
    assert darner.cost(fused).flops == darner.cost(x.conv(w, **options)).flops


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_fused_conv_rounds_once(dtype):
    g = Graph()
    x, one = g.input("x", (1, 1, 1), dtype), g.constant([[[1.0]]], dtype=dtype)
    g.set_outputs([x.fused_conv(one, one.reshape((1,)), -one)])
    # x + 1 is 1 in sixteen bits: rounded between its steps, the sum would be 0.
    small = np.full((1, 1, 1), 2.0**-13, dtypes.dtype(dtype).numpy)
    assert darner.run(g, {"x": small})[0].item() == 2.0**-13
