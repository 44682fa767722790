"""Pooling: spellings, gradients, integers, and what it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from tests.pure.spatial_bench import Bench


@pytest.fixture
def bench():
    return Bench()


# --------------------------------------------------------------------------- spellings


def test_every_spelling_of_max_pooling_gives_the_same(bench):
    g = bench.graph
    x = bench.input(2, 3, 7, 6)
    flat = x.reshape((2 * 3 * 7 * 6,))
    found = bench.agree(
        x.max_pool((3, 2), stride=2, padding=1).reshape((-1,)),
        g.max_pool2d(x, (3, 2), 2, 1).reshape((-1,)),
        g.max_pool2d(x.id, [3, 2], stride=(2, 2), padding=((1, 1), (1, 1))).reshape((-1,)),
        g.pool(x, "max", [3, 2], [2, 2], [1, 1]).reshape((-1,)),
        g.pool(x, "Max", [3, 2], [2, 2], [1, 1]).reshape((-1,)),
        g.max_pool_2d(flat, 2, 3, 7, 6, 3, 2, 2, 1),
    )
    wanted = F.max_pool2d(bench.torch(x), (3, 2), 2, 1)
    np.testing.assert_array_equal(found, wanted.numpy().ravel())


def test_every_spelling_of_mean_pooling_gives_the_same(bench):
    g = bench.graph
    x = bench.input(2, 3, 7, 6)
    found = bench.agree(
        x.avg_pool((3, 2), stride=2, padding=1),
        g.avg_pool2d(x, (3, 2), 2, 1),
        g.pool(x, "mean", [3, 2], [2, 2], [1, 1]),
        g.sum_pool(x, (3, 2), stride=2, padding=1) / 6.0,
    )
    wanted = F.avg_pool2d(bench.torch(x), (3, 2), 2, 1)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pooling_by_rank_is_that_of_torch(bench, count):
    x = bench.input(1, 2, *(5, 6, 4)[:count])
    window = (3, 2, 2)[:count]
    for name in (f"max_pool{count}d", f"avg_pool{count}d"):
        (found,) = bench.run(getattr(x, name)(window))
        wanted = getattr(F, name)(bench.torch(x), window)
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)
    name = f"adaptive_avg_pool{count}d"
    (found,) = bench.run(getattr(x, name)(3))
    np.testing.assert_allclose(found, getattr(F, name)(bench.torch(x), 3).numpy(), rtol=1e-12)


def test_stride_is_the_window_unless_given(bench):
    x = bench.input(1, 1, 7, 6)
    assert x.max_pool2d((3, 2)).attrs == x.max_pool2d((3, 2), stride=(3, 2)).attrs
    assert x.max_pool2d((3, 2)).shape == (1, 1, 2, 3)


def test_equal_mean_poolings_settle_to_equal_attributes(bench):
    x = bench.input(1, 1, 5, 6)
    plain = x.avg_pool2d(2)
    assert x.avg_pool2d(2, count_include_pad=False).attrs == plain.attrs
    assert x.avg_pool2d((1, 2), ceil_mode=True).attrs["ceil_mode"] is False
    partial = x.avg_pool2d(2, ceil_mode=True)
    assert partial.attrs["padding"] == ((0, 1), (0, 0))
    assert partial.attrs["count_include_pad"] is False
    assert x.avg_pool2d(3, 2, 1, ceil_mode=True).attrs["ceil_mode"] is True


def test_minimum_product_and_sum_pooling(bench):
    x = bench.input(2, 2, 5, 4)
    least, total, times = bench.run(
        x.min_pool(2, stride=1, padding=1),
        x.pool("sum", 2, 1, 1),
        x.prod_pool(2, stride=1, padding=1),
    )
    image = bench.torch(x)
    np.testing.assert_array_equal(least, -F.max_pool2d(-image, 2, 1, 1).numpy())
    np.testing.assert_allclose(
        total, 4 * F.avg_pool2d(image, 2, 1, 1).numpy(), rtol=1e-12, atol=1e-12
    )
    patches = F.pad(image, (1, 1, 1, 1), value=1.0).unfold(2, 2, 1).unfold(3, 2, 1)
    np.testing.assert_allclose(times, patches.flatten(-2).prod(-1).numpy(), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8", "u32", "bool"])
def test_extremes_of_integers_ignore_the_padding(dtype):
    g = Graph()
    x = g.input("x", (1, 1, 4), dtype)
    g.set_outputs([x.max_pool(2, padding=1), x.min_pool(2, padding=1)])
    kind = x.dtype
    low, high = kind.limits
    values = np.array([[[low, low, high, high]]]).astype(kind.numpy)
    largest, least = darner.run(g, {"x": values})
    assert largest.dtype == least.dtype == kind.numpy
    np.testing.assert_array_equal(largest, np.array([[[low, high, high]]]).astype(kind.numpy))
    np.testing.assert_array_equal(least, np.array([[[low, low, high]]]).astype(kind.numpy))


def test_global_pooling_reduces_every_spatial_axis(bench):
    g = bench.graph
    x = bench.input(2, 3, 4, 5)
    flat = x.reshape((-1,))
    mean = bench.agree(g.global_avg_pool(x), g.global_avg_pool(flat, 2, 3, 20))
    np.testing.assert_allclose(mean, bench.values["v0"].mean((2, 3)), rtol=1e-12, atol=1e-12)
    largest = bench.agree(g.global_max_pool(x), g.global_max_pool(flat, 2, 3, 20))
    np.testing.assert_array_equal(largest, bench.values["v0"].max((2, 3)))
    assert x.global_avg_pool(keepdims=True).shape == (2, 3, 1, 1)
    assert x.global_max_pool(keepdims=True).shape == (2, 3, 1, 1)


# --------------------------------------------------------------------------- gradients


def test_gradient_of_max_pool_goes_to_the_first_maximum():
    g = Graph()
    x, dy = g.input("x", (1, 1, 2, 4), "f64"), g.input("dy", (1, 1, 1, 2), "f64")
    g.set_outputs([g.maxpool2d_backward(x, dy, [2, 2], [2, 2], [0, 0])])
    values = np.array([[[[1.0, 3.0, 5.0, 5.0], [3.0, 0.0, 5.0, 5.0]]]])
    (found,) = darner.run(g, {"x": values, "dy": np.array([[[[7.0, 9.0]]]])})
    np.testing.assert_array_equal(found, [[[[0, 7, 9, 0], [0, 0, 0, 0]]]])


def test_gradient_of_max_pool_is_that_of_torch_with_ties_and_padding():
    g = Graph()
    x, dy = g.input("x", (2, 2, 6, 6), "f64"), g.input("dy", (2, 2, 4, 4), "f64")
    g.set_outputs([g.max_pool_backward(x, dy, 3, stride=2, padding=((2, 1), (1, 2)))])
    rng = np.random.default_rng(3)
    values = {"x": rng.integers(-2, 0, (2, 2, 6, 6)) + 0.0, "dy": rng.normal(size=(2, 2, 4, 4))}
    image = torch.from_numpy(values["x"]).requires_grad_()
    pooled = F.max_pool2d(F.pad(image, (1, 2, 2, 1), value=-np.inf), 3, 2)
    (wanted,) = torch.autograd.grad(pooled, image, torch.from_numpy(values["dy"]))
    np.testing.assert_allclose(darner.run(g, values)[0], wanted.numpy(), rtol=1e-12, atol=1e-12)


@st.composite
def geometries(draw):
    """The shape of x, a window, and attributes under which it fits."""
    window, sizes, stride, padding = [], [], [], []
    for _ in range(draw(st.integers(1, 2))):
        window.append(draw(st.integers(1, 3)))
        stride.append(draw(st.integers(1, 3)))
        padding.append(tuple(draw(st.integers(0, window[-1] - 1)) for _ in range(2)))
        sizes.append(draw(st.integers(window[-1], window[-1] + 4)))
    return (draw(st.integers(0, 2)), 2, *sizes), window, {"stride": stride, "padding": padding}


@settings(max_examples=60, deadline=None)
@given(geometries(), st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_gradient_of_mean_pooling_is_its_transpose(geometry, include, ceil_mode, seed):
    shape, window, attrs = geometry
    attrs = {**attrs, "count_include_pad": include, "ceil_mode": ceil_mode}
    bench = Bench(seed)
    x = bench.input(*shape)
    y = x.avg_pool(window, **attrs)
    dy = bench.input(*y.shape)
    dx = dy.avg_pool_backward(window, sizes=shape[2:], **attrs)
    forward, backward = bench.run((y * dy).sum(), (x * dx).sum())
    np.testing.assert_allclose(backward, forward, rtol=1e-9, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(geometries(), st.booleans(), st.integers(0, 2**31))
def test_gradient_of_max_pooling_conserves_what_comes_in(geometry, ceil_mode, seed):
    shape, window, attrs = geometry
    bench = Bench(seed)
    x = bench.input(*shape)
    y = x.max_pool(window, ceil_mode=ceil_mode, **attrs)
    dy = bench.input(*y.shape)
    dx = x.max_pool_backward(dy, window, ceil_mode=ceil_mode, **attrs)
    # Where elements differ, the pooled value times its gradient is the input times its own.
    outer, inner, total, spread = bench.run((y * dy).sum(), (x * dx).sum(), dy.sum(), dx.sum())
    np.testing.assert_allclose([inner, spread], [outer, total], rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------- sizes and errors


def test_batch_and_space_may_be_symbolic():
    g = Graph()
    x = g.input("x", ("batch", 2, "4*h", "w"))
    assert str(x.max_pool2d(2, (2, 1)).type) == "f32[batch, 2, 2*h, w-1]"
    assert str(x.max_pool2d(3, (2, 1), 1).type) == "f32[batch, 2, 2*h, w]"
    pooled = x.avg_pool2d(3, (2, 1), 1, count_include_pad=False)
    assert str(pooled.type) == "f32[batch, 2, 2*h, w]"
    assert str(x.adaptive_avg_pool((4, 1)).type) == "f32[batch, 2, 4, 1]"
    g.set_outputs([pooled, pooled.global_avg_pool()])
    values = np.random.default_rng(0).normal(size=(2, 2, 8, 5)).astype(np.float32)
    bound = g.bind(h=2, batch=2, w=5)
    found, mean = darner.run(bound, {"x": values})
    wanted = F.avg_pool2d(torch.from_numpy(values), 3, (2, 1), 1, count_include_pad=False)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mean, wanted.numpy().mean((2, 3)), rtol=1e-5, atol=1e-6)


def refused(call, text):
    with pytest.raises(darner.DarnerError) as caught:
        call()
    assert text in str(caught.value)
    assert "test_pool.py" in str(caught.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.max_pool2d(7), "window 7 does not fit size 6 on spatial axis 0"),
        (
            lambda x: x.max_pool2d(2, padding=2),
            "padding 2 on spatial axis 0 must be below the window's reach, 2",
        ),
        (lambda x: x.avg_pool2d(2, padding=-1), "is negative"),
        (lambda x: x.max_pool2d(0), "window (0, 0) must be at least 1"),
        (lambda x: x.max_pool2d((2, 2, 2)), "window has 3 entries for 2 spatial axes"),
        (lambda x: x.max_pool2d(2, stride=0), "stride (0, 0) must be at least 1"),
        (lambda x: x.max_pool1d(2), "x has rank 4, but must be [batch, channels, length]"),
        (
            lambda x: x.reshape((6, -1)).max_pool(2),
            "x has rank 2, but is [batch, channels, spatial...]",
        ),
        (
            lambda x: x.max_pool_backward(x, 2),
            "dy must have the shape of the pooled tensor, (2, 3, 3, 2)",
        ),
        (
            lambda x: x.avg_pool_backward(2, sizes=(6, 5)),
            "dy must have the shape of the pooled tensor, (2, 3, 3, 2)",
        ),
        (lambda x: x.avg_pool_backward(2, sizes=6), "1 sizes for 2 spatial axes"),
        (lambda x: x.adaptive_avg_pool((2, 0)), "sizes (2, 0) must be at least 1"),
        (lambda x: x.adaptive_avg_pool((2, 2, 2)), "sizes has 3 entries for 2 spatial axes"),
        (lambda x: x.pool("median", 2), "no pooling is called 'median'"),
        (lambda x: x.sum_pool(9), "window 9 does not fit size 6 on spatial axis 0"),
        (lambda x: x.global_avg_pool(2, 3), "got 2 arguments after x"),
        (
            lambda x: x.max_pool_2d(2, 3, 7, 6, 2, 2, 2, 0),
            "x has 180 elements, but 2 * 3 * 7 * 6 are 252",
        ),
        (lambda x: x.cast("c64").max_pool(2), "complex"),
    ],
)
def test_wrong_pooling_is_explained(bench, call, text):
    x = bench.graph.input("image", (2, 3, 6, 5))
    refused(lambda: call(x), text)


def test_an_empty_image_cannot_be_averaged():
    g = Graph()
    x = g.input("x", (2, 3, 0))
    refused(lambda: x.adaptive_avg_pool(2), "spatial axis 0 has no elements to average")
