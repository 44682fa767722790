"""Batches of nothing: what takes a batch gives an empty one, on the reference and on the CPU, and so do gradients."""

import numpy as np
import pytest

import darner
from darner import Graph, ShapeError

IMAGES = {
    "unfold": (lambda x: x.unfold((2, 2)), (0, 12, 35)),
    "unfold with all options": (
        lambda x: x.unfold((2, 3), stride=2, padding=1, dilation=1),
        (0, 18, 16),
    ),
    "flattened rows": (lambda x: x.reshape((0, -1)), (0, 144)),
    "flattened images": (lambda x: x.reshape((0, 3, -1)), (0, 3, 48)),
    "all in one": (lambda x: x.reshape((-1,)), (0,)),
    "no rows that are known": (lambda x: x.reshape((-1, 144)), (0, 144)),
    "flatten": (lambda x: x.flatten(1), (0, 144)),
    "max_pool": (lambda x: x.max_pool((2, 2)), (0, 3, 3, 4)),
    "avg_pool": (lambda x: x.avg_pool((2, 2), stride=1), (0, 3, 5, 7)),
    "sum_pool": (lambda x: x.sum_pool((2, 2), stride=1), (0, 3, 5, 7)),
    "min_pool": (lambda x: x.min_pool((3, 3), padding=1), (0, 3, 2, 3)),
    "conv": (lambda x: x.conv2d(x.graph.constant(np.ones((4, 3, 2, 2), "f4"))), (0, 4, 5, 7)),
    "softmax": (lambda x: x.softmax(), (0, 3, 6, 8)),
    "mean of images": (lambda x: x.mean((2, 3)), (0, 3)),
    "norm of images": (lambda x: x.norm((-1, -2)), (0, 3)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_an_empty_batch_gives_an_empty_batch(name):
    make, shape = IMAGES[name]
    g = Graph()
    x = g.parameter("x", (0, 3, 6, 8))
    out = make(x)
    g.set_outputs([out])
    nothing = np.zeros((0, 3, 6, 8), np.float32)
    assert darner.run(g, params={"x": nothing})[0].shape == shape
    with darner.build_inference_session(g) as session:
        assert next(iter(session.run().values())).shape == shape
    g.set_outputs([out.sum()])
    assert darner.run(darner.grad(g), params={"x": nothing})[-1].shape == nothing.shape


def test_what_is_left_of_no_elements_is_what_is_left_of_the_other_sizes():
    g = Graph()
    assert g.input("x", (0, 3, 8)).reshape((4, 0, -1)).shape == (4, 0, 6)
    assert g.input("y", (0, 0, 8)).reshape((0, -1)).shape == (0, 0)
    named = g.input("z", ("batch", 3, 8)).reshape(("batch", -1))
    assert named.shape[1] == 24
    for x, shape in [((2, 3), (0, -1)), ((0, 8), (5, 0, -1)), ((0, 8), (0, 0, -1))]:
        with pytest.raises(ShapeError, match="do not divide into"):
            g.zeros(x).reshape(shape)
