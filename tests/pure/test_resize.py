"""Resampling: spellings, gradients, and what it refuses."""

import numpy as np
import pytest
import torch.nn.functional as F

import darner
from darner import Graph
from tests.pure.spatial_bench import Bench


@pytest.fixture
def bench():
    return Bench()


def test_every_spelling_of_doubling_gives_the_same(bench):
    g = bench.graph
    x = bench.input(2, 3, 4, 5)
    flat = x.reshape((-1,))
    found = bench.agree(
        g.upsample_2x(x).reshape((-1,)),
        g.resize_nearest(x, factor=2).reshape((-1,)),
        g.resize_nearest(x, (8, 10)).reshape((-1,)),
        g.resize_nearest_2x(x).reshape((-1,)),
        g.upsample_2x(flat, 2, 3, 4, 5),
    )
    wanted = bench.values["v0"].repeat(2, axis=2).repeat(2, axis=3)
    np.testing.assert_array_equal(found, wanted.ravel())


def test_factor_and_sizes_settle_to_the_same(bench):
    x = bench.input(1, 2, 3, 4)
    assert x.resize_nearest(factor=2).attrs == x.resize_nearest((6, 8)).attrs


def test_gradient_of_doubling_adds_up_each_block(bench):
    g = bench.graph
    dy = bench.input(2, 3, 8, 10)
    found = bench.agree(
        g.upsample_2x_grad(dy).reshape((-1,)), g.upsample_2x_grad(dy.reshape((-1,)), 2, 3, 4, 5)
    )
    wanted = bench.values["v0"].reshape(2, 3, 4, 2, 5, 2).sum((3, 5))
    np.testing.assert_allclose(found, wanted.ravel(), rtol=1e-12, atol=1e-12)


def test_gradient_of_doubling_is_its_transpose(bench):
    x, dy = bench.input(1, 2, 3, 2, 4), bench.input(1, 2, 6, 4, 8)
    forward, backward = bench.run((x.upsample_2x() * dy).sum(), (x * dy.upsample_2x_grad()).sum())
    np.testing.assert_allclose(backward, forward, rtol=1e-12)


@pytest.mark.parametrize("align_corners", [False, True])
def test_bilinear_is_that_of_torch(bench, align_corners):
    x = bench.input(1, 2, 5, 4)
    (found,) = bench.run(x.resize_bilinear((7, 9), align_corners))
    wanted = F.interpolate(bench.torch(x), (7, 9), mode="bilinear", align_corners=align_corners)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


def test_nearest_reads_the_element_that_covers_the_start(bench):
    x = bench.input(1, 1, 10)
    (found,) = bench.run(x.resize_nearest(4))
    np.testing.assert_array_equal(found[0, 0], bench.values["v0"][0, 0, [0, 2, 5, 7]])


def test_pixel_shuffle_is_that_of_torch_and_undone(bench):
    x = bench.input(2, 12, 3, 4)
    shuffled, back = bench.run(x.pixel_shuffle(2), x.pixel_shuffle(2).pixel_unshuffle(2))
    np.testing.assert_array_equal(shuffled, F.pixel_shuffle(bench.torch(x), 2).numpy())
    np.testing.assert_array_equal(back, bench.values["v0"])
    y = bench.input(2, 3, 4, 6)
    (unshuffled,) = bench.run(y.pixel_unshuffle(2))
    np.testing.assert_array_equal(unshuffled, F.pixel_unshuffle(bench.torch(y), 2).numpy())


def test_pixel_shuffle_works_along_one_axis_and_three(bench):
    x, y = bench.input(1, 6, 4), bench.input(1, 8, 1, 2, 3)
    along, back = bench.run(x.pixel_shuffle(3), y.pixel_shuffle(2).pixel_unshuffle(2))
    wanted = bench.values["v0"].reshape(1, 2, 3, 4).transpose(0, 1, 3, 2).reshape(1, 2, 12)
    np.testing.assert_array_equal(along, wanted)
    np.testing.assert_array_equal(back, bench.values["v1"])


def test_batch_and_space_may_be_symbolic():
    g = Graph()
    x = g.input("x", ("batch", 4, "h", "w"))
    assert str(x.upsample_2x().type) == "f32[batch, 4, 2*h, 2*w]"
    assert str(x.upsample_2x().upsample_2x_grad().type) == "f32[batch, 4, h, w]"
    assert str(x.pixel_shuffle(2).type) == "f32[batch, 1, 2*h, 2*w]"
    assert str(x.pixel_shuffle(2).pixel_unshuffle(2).type) == "f32[batch, 4, h, w]"
    with pytest.raises(darner.ShapeError, match="from size h to 7 on spatial axis 0: h is not a"):
        x.resize_linear((7, 7))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: x.resize_nearest(), "give either sizes or factor"),
        (lambda x: x.resize_nearest(4, factor=2), "give either sizes or factor"),
        (lambda x: x.resize_nearest((4, 4, 4)), "sizes has 3 entries for 2 spatial axes"),
        (lambda x: x.resize_nearest((4, 0)), "size 0 on spatial axis 1 must be at least 1"),
        (lambda x: x.resize_nearest(factor=0), "factor (0, 0) must be at least 1"),
        (lambda x: x.resize_bilinear((4, 4), align_corners=1), "align_corners"),
        (
            lambda x: x[0].resize_bilinear(4),
            "x has rank 3, but must be [batch, channels, height, width]",
        ),
        (lambda x: x.pixel_shuffle(2), "3 channels do not divide into blocks of 4"),
        (lambda x: x.pixel_unshuffle(2), "size 5 on spatial axis 1 does not divide by 2"),
        (lambda x: x.pixel_shuffle(0), "factor 0 must be at least 1"),
        (lambda x: x.upsample_2x_grad(), "size 5 on spatial axis 1 is odd"),
        (lambda x: x.upsample_2x(2, 3), "got 2 arguments after x"),
        (lambda x: x.upsample_2x(2, 3, 6, 6), "x has 180 elements, but 2 * 3 * 6 * 6 are 216"),
    ],
)
def test_wrong_resampling_is_explained(call, text):
    g = Graph()
    x = g.input("x", (2, 3, 6, 5))
    with pytest.raises(darner.DarnerError) as caught:
        call(x)
    assert text in str(caught.value)
    assert "test_resize.py" in str(caught.value)
