"""Derivatives and batches of convolution, pooling and resampling, against PyTorch and by value."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import darner
from darner.testing import assert_close

RNG = np.random.default_rng(11)
CONVOLUTIONS = {"conv", "conv_input_grad", "conv_weight_grad"}


def graph_of(build, dtype="f64", **shapes):
    """A graph of one op between two others, so that nothing it meets is a leaf or an output."""
    graph = darner.Graph()
    nodes = [graph.input(name, shape, dtype) * 1.5 for name, shape in shapes.items()]
    graph.set_outputs([build(graph, *nodes) * 0.5])
    return graph


def assert_gradients(graph, reference, names=None):
    """Compare all gradients with those of a PyTorch function of the same leaves, 1.5 times each."""
    names = list(graph.inputs) if names is None else names
    feeds = {name: RNG.normal(size=node.shape) for name, node in graph.inputs.items()}
    cotangent = RNG.normal(size=graph.outputs[0].shape)
    value, *found = darner.run(darner.vjp(graph, names), {**feeds, "d_output": cotangent})
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in feeds.items()}
    expected = 0.5 * reference(*(1.5 * leaf for leaf in leaves.values()))
    expected.backward(torch.tensor(cotangent))
    assert_close(value, expected.detach(), "f64", 200)
    for gradient, name in zip(found, names, strict=True):
        assert_close(gradient, leaves[name].grad, "f64", 400)


def assert_like_a_loop(graph, chosen, size=3):
    """Compare a batched graph with one run for each of the batch; returns the batched graph."""
    batched = darner.vmap(graph, chosen, size)
    feeds = {name: RNG.normal(size=node.shape) for name, node in batched.inputs.items()}
    found = darner.run(batched, feeds)
    for i in range(size):
        each = {name: array[i] if name in chosen else array for name, array in feeds.items()}
        for a, b in zip(found, darner.run(graph, each), strict=True):
            assert_close(a[i], b, "f64", 200)
    return batched


def names_in(graph):
    return [node.op.name for node in graph.nodes]


# --------------------------------------------------------------------------- convolution


@pytest.mark.parametrize(
    ("x", "w", "options"),
    [
        ((2, 3, 9), (4, 3, 3), {"stride": 2}),
        ((2, 3, 7, 6), (4, 3, 3, 2), {"stride": (2, 1), "padding": (1, 0)}),
        ((1, 4, 6, 7), (6, 2, 2, 3), {"dilation": 2, "groups": 2, "padding": 2}),
        ((2, 3, 5, 5), (6, 1, 3, 3), {"groups": 3}),
        ((1, 2, 4, 3, 5), (3, 2, 2, 2, 2), {"stride": (1, 1, 2)}),
    ],
)
def test_gradients_of_convolution_are_those_of_pytorch(x, w, options):
    count = len(x) - 2
    own = getattr(F, f"conv{count}d")
    graph = graph_of(lambda g, a, b: g.conv(a, b, **options), x=x, w=w)
    assert_gradients(graph, lambda a, b: own(a, b, **options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "output_padding": 1, "padding": 1},
        {"stride": (3, 2), "dilation": (1, 2), "groups": 2},
    ],
)
def test_gradients_of_transposed_convolution_are_those_of_pytorch(options):
    graph = graph_of(
        lambda g, a, b, c: g.conv_transpose2d(a, b, bias=c, **options),
        x=(2, 4, 3, 4),
        w=(4, 3, 3, 2),
        bias=(3 * options.get("groups", 1),),
    )
    assert_gradients(graph, lambda a, b, c: F.conv_transpose2d(a, b, c, **options))


def test_flat_convolution_and_pooling_have_gradients():
    def flat(g, x, kernel):
        y = g.conv2d(x, kernel, 2, 3, 6, 5, 4, 3, 2, 1, 1)
        return g.upsample_2x(g.max_pool_2d(y, 2, 4, 6, 6, 2, 2, 2, 0), 2, 4, 3, 3)

    def reference(x, kernel):
        y = F.conv2d(x.reshape(2, 3, 6, 5), kernel.reshape(4, 3, 3, 2), padding=1)
        return F.interpolate(F.max_pool2d(y, 2), scale_factor=2).flatten()

    assert_gradients(graph_of(flat, x=(180,), kernel=(72,)), reference)


def test_every_derivative_of_convolution_is_a_convolution():
    graph = darner.Graph()
    x, w = graph.input("x", (1, 2, 5, 5), "f64"), graph.input("w", (3, 2, 3, 3), "f64")
    graph.set_outputs([graph.conv(x, w, stride=2, padding=1).square().sum()])
    first = darner.grad(graph, ["x", "w"])
    assert set(names_in(first)) > CONVOLUTIONS
    second = darner.vjp(first, ["x", "w"])
    third = darner.jvp(second, ["x", "w"])
    for derived in (first, second, third):
        assert "windows" not in names_in(derived)
        assert "dot_general" not in names_in(derived)


def test_second_derivatives_of_convolution_are_those_of_pytorch():
    graph = darner.Graph()
    x, w = graph.input("x", (2, 4, 6, 5), "f64"), graph.input("w", (4, 2, 3, 2), "f64")
    options = {"stride": (2, 1), "padding": 1, "groups": 2}
    graph.set_outputs([graph.conv(x, w, **options).tanh().sum()])
    shapes = {name: node.shape for name, node in graph.inputs.items()}
    feeds = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    moves = {name: RNG.normal(size=shape) for name, shape in shapes.items()}
    given = {**feeds, **{f"tangent_{name}": move for name, move in moves.items()}}
    found = darner.run(darner.hvp(graph, ["x", "w"]), given)
    _, expected = torch.autograd.functional.hvp(
        lambda a, b: F.conv2d(a, b, **options).tanh().sum(),
        tuple(map(torch.tensor, feeds.values())),
        tuple(map(torch.tensor, moves.values())),
    )
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b, "f64", 400)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("chosen", [["x"], ["w"], ["x", "w"], ["d_output"], ["x", "d_output"]])
def test_a_batch_of_convolutions_and_gradients_stays_convolutions(chosen, groups):
    build = graph_of(
        lambda g, a, b: g.conv(a, b, stride=2, padding=1, groups=groups),
        x=(2, 4, 6, 5),
        w=(6, 4 // groups, 3, 2),
    )
    graph = darner.vjp(build, ["x", "w"])
    batched = assert_like_a_loop(graph, chosen)
    assert sorted(set(names_in(batched)) & CONVOLUTIONS) == sorted(CONVOLUTIONS)
    assert "dot_general" not in names_in(batched)


def test_images_of_a_batch_join_the_images_of_a_convolution():
    graph = graph_of(lambda g, a, b: g.conv(a, b), x=(2, 3, 5), w=(4, 3, 2))
    (convolution,) = (n for n in darner.vmap(graph, ["x"], 7).nodes if n.op.name == "conv")
    assert convolution.operands[0].shape == (14, 3, 5)
    assert convolution.operands[1].shape == (4, 3, 2)
    (grouped,) = (n for n in darner.vmap(graph, ["x", "w"], 7).nodes if n.op.name == "conv")
    assert grouped.attrs["groups"] == 7


def test_a_batch_of_unknown_size_or_of_none_can_be_convolved():
    graph = graph_of(lambda g, a, b: g.conv(a, b, groups=2), x=(2, 4, 5), w=(6, 2, 2))
    unknown = darner.vmap(graph, ["x", "w"], "many")
    feeds = {"x": RNG.normal(size=(3, 2, 4, 5)), "w": RNG.normal(size=(3, 6, 2, 2))}
    found = darner.run(unknown, feeds)[0]
    expected = darner.run(darner.vmap(graph, ["x", "w"], 3), feeds)[0]
    assert_close(found, expected, "f64", 20)
    none = darner.vmap(graph, ["x", "w"], 0)
    assert none.outputs[0].shape == (0, 2, 6, 4)


def test_gradients_of_each_example_by_a_shared_kernel():
    graph = darner.Graph()
    x, w = graph.input("x", (1, 2, 6, 6), "f64"), graph.input("w", (3, 2, 3, 3), "f64")
    pooled = graph.conv2d(x, w, padding=1).max_pool2d(2)
    graph.set_outputs([pooled.avg_pool2d(3).square().sum()])
    images, kernel = RNG.normal(size=(4, 1, 2, 6, 6)), RNG.normal(size=(3, 2, 3, 3))
    each = darner.vmap(darner.grad(graph, ["w"]), ["x"], 4)
    found = darner.run(each, {"x": images, "w": kernel})[0]
    for image, gradient in zip(images, found, strict=True):
        weight = torch.tensor(kernel, requires_grad=True)
        y = F.max_pool2d(F.conv2d(torch.tensor(image), weight, padding=1), 2)
        F.avg_pool2d(y, 3).square().sum().backward()
        assert_close(gradient, weight.grad, "f64", 100)


# --------------------------------------------------------------------------- maximum


def test_gradient_of_max_pool_goes_to_the_first_maximum():
    graph = darner.Graph()
    x = graph.input("x", (1, 1, 2, 4), "f64")
    graph.set_outputs([graph.max_pool2d(x, 2)])
    feeds = {"x": np.array([[[[1, 5, 3, 3], [5, 5, 3, 3]]]], float)}
    feeds["d_output"] = np.array([[[[10, 20]]]], float)
    gradient = darner.run(darner.vjp(graph, ["x"]), feeds)[1]
    assert np.array_equal(gradient[0, 0], [[0, 10, 20, 0], [0, 0, 0, 0]])


def test_overlapping_windows_add_to_the_maximum_they_share():
    graph = darner.Graph()
    x = graph.input("x", (1, 1, 5), "f64")
    graph.set_outputs([graph.max_pool(x, 3, stride=1, padding=1)])
    feeds = {"x": np.array([[[1, 2, 9, 4, 4]]], float)}
    feeds["d_output"] = np.array([[[1, 10, 100, 1000, 10000]]], float)
    gradient = darner.run(darner.vjp(graph, ["x"]), feeds)[1]
    assert np.array_equal(gradient[0, 0], [0, 1, 1110, 10000, 0])


def test_tangent_of_max_pool_is_that_of_the_first_maximum():
    graph = darner.Graph()
    x = graph.input("x", (1, 1, 4), "f64")
    graph.set_outputs([graph.max_pool(x, 2)])
    feeds = {"x": np.array([[[7, 7, -1, 3]]], float)}
    feeds["tangent_x"] = np.array([[[1, 2, 3, 4]]], float)
    assert np.array_equal(darner.run(darner.jvp(graph, ["x"]), feeds)[1], [[[1, 4]]])


def test_max_pool_backward_is_linear_in_its_gradient_and_flat_in_x():
    graph = darner.Graph()
    x, dy = graph.input("x", (1, 1, 4), "f64"), graph.input("dy", (1, 1, 2), "f64")
    graph.set_outputs([graph.max_pool_backward(x, dy, 2)])
    feeds = {"x": np.array([[[7, 7, -1, 3]]], float), "dy": np.array([[[5, 6]]], float)}
    feeds["d_output"] = np.array([[[1, 2, 3, 4]]], float)
    _, by_x, by_dy = darner.run(darner.vjp(graph, ["x", "dy"]), feeds)
    assert np.array_equal(by_x, np.zeros((1, 1, 4)))
    assert np.array_equal(by_dy, [[[1, 4]]])


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2, "padding": 1},
        {"stride": 1, "dilation": 2},
        {"stride": 2, "ceil_mode": True},
    ],
)
def test_derivatives_of_max_pool_are_those_of_pytorch(options):
    graph = graph_of(lambda g, x: g.max_pool2d(x, 3, **options), x=(2, 3, 8, 7))
    assert_gradients(graph, lambda x: F.max_pool2d(x, 3, **options))
    graph.set_outputs([(graph.outputs[0].exp()).sum()])
    feeds = {"x": RNG.normal(size=(2, 3, 8, 7)), "tangent_x": RNG.normal(size=(2, 3, 8, 7))}
    found = darner.run(darner.hvp(graph, ["x"]), feeds)[0]
    _, expected = torch.autograd.functional.hvp(
        lambda x: (0.5 * F.max_pool2d(1.5 * x, 3, **options)).exp().sum(),
        *map(torch.tensor, feeds.values()),
    )
    assert_close(found, expected, "f64", 60)


@pytest.mark.parametrize("chosen", [["x"], ["d_output"], ["x", "d_output"]])
def test_a_batch_of_max_pools_and_gradients_stays_whole(chosen):
    graph = graph_of(lambda g, x: g.max_pool2d(x, 3, 2, 1), x=(2, 3, 6, 5))
    batched = assert_like_a_loop(darner.vjp(graph, ["x"]), chosen)
    assert {"max_pool", "max_pool_backward"} < set(names_in(batched))
    assert "windows" not in names_in(batched)


def test_gradient_of_min_pool_goes_to_the_first_minimum():
    graph = darner.Graph()
    x = graph.input("x", (1, 1, 4), "f64")
    graph.set_outputs([graph.min_pool(x, 2)])
    feeds = {"x": np.array([[[2, 2, 4, 3]]], float), "d_output": np.array([[[5, 6]]], float)}
    assert np.array_equal(darner.run(darner.vjp(graph, ["x"]), feeds)[1], [[[5, 0, 0, 6]]])


# --------------------------------------------------------------------------- mean


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": 2, "padding": 1, "count_include_pad": False},
        {"stride": 2, "padding": 1, "ceil_mode": True},
        {"stride": 2, "padding": 1, "ceil_mode": True, "count_include_pad": False},
    ],
)
def test_derivatives_of_avg_pool_are_those_of_pytorch(options):
    graph = graph_of(lambda g, x: g.avg_pool2d(x, 3, **options), x=(2, 3, 8, 6))
    assert_gradients(graph, lambda x: F.avg_pool2d(x, 3, **options))
    gradient = darner.vjp(graph, ["x"])
    assert "avg_pool_backward" in names_in(gradient)
    # Linear: differentiating the gradient by its cotangent is pooling again.
    gradient.set_outputs(gradient.outputs[1:])
    again = darner.vjp(gradient, ["d_output"])
    assert names_in(again).count("avg_pool") == 1
    assert "fold" not in names_in(again)
    assert "windows" not in names_in(again)


@pytest.mark.parametrize("sizes", [(4, 3), (3, 2), (5, 4), (11, 1)])
def test_gradient_of_adaptive_avg_pool_is_that_of_pytorch(sizes):
    graph = graph_of(lambda g, x: g.adaptive_avg_pool(x, sizes), x=(2, 3, 8, 6))
    assert_gradients(graph, lambda x: F.adaptive_avg_pool2d(x, sizes))
    assert "adaptive_avg_pool" in names_in(darner.vjp(graph, ["x"]))


@pytest.mark.parametrize("kind", ["global_avg_pool", "global_max_pool"])
def test_gradient_of_pooling_the_whole_image(kind):
    graph = graph_of(lambda g, x: getattr(g, kind)(x), x=(2, 3, 4, 5))
    own = {"global_avg_pool": torch.mean, "global_max_pool": torch.amax}[kind]
    assert_gradients(graph, lambda x: own(x, (2, 3)))


# --------------------------------------------------------------------------- resampling


@pytest.mark.parametrize("sizes", [(6, 10), (7, 5), (2, 3), (9, 4)])
def test_gradient_of_nearest_resampling_is_that_of_pytorch(sizes):
    graph = graph_of(lambda g, x: g.resize_nearest(x, sizes), x=(2, 3, 3, 5))
    assert_gradients(graph, lambda x: F.interpolate(x, sizes, mode="nearest"))


def test_gradient_of_doubling_sums_blocks_without_an_index():
    graph = graph_of(lambda g, x: g.upsample_2x(x), x=(1, 1, 2, 2))
    gradient = darner.vjp(graph, ["x"])
    assert "scatter_add" not in names_in(gradient)
    feeds = {"x": np.zeros((1, 1, 2, 2)), "d_output": np.arange(16.0).reshape(1, 1, 4, 4)}
    expected = 0.75 * np.array([[10, 18], [42, 50]])
    assert np.array_equal(darner.run(gradient, feeds)[1][0, 0], expected)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("sizes", [(6, 10), (7, 5), (2, 3), (1, 9)])
def test_gradient_of_linear_resampling_is_that_of_pytorch(sizes, align_corners):
    graph = graph_of(
        lambda g, x: g.resize_linear(x, sizes, align_corners=align_corners), x=(2, 3, 3, 5)
    )
    assert_gradients(
        graph, lambda x: F.interpolate(x, sizes, mode="bilinear", align_corners=align_corners)
    )
    assert "resize_linear" in names_in(darner.vjp(graph, ["x"]))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: g.resize_linear(x, (9, 4, 7)),
        lambda g, x: g.resize_nearest(x, (9, 4, 7)),
        lambda g, x: g.adaptive_avg_pool(x, (2, 3, 4)),
        lambda g, x: g.avg_pool(x, 2, stride=1, padding=1, count_include_pad=False),
        lambda g, x: g.conv(x, g.constant(np.ones((2, 2, 3, 2, 2)) / 3, dtype=x.dtype)),
    ],
    ids=["linear", "nearest", "adaptive", "mean", "convolution"],
)
def test_gradients_in_narrow_types_round_once(build, dtype):
    graph = darner.Graph()
    x = graph.input("x", (1, 2, 5, 6, 3), dtype)
    graph.set_outputs([build(graph, x)])
    gradient = darner.vjp(graph, ["x"])
    feeds = {
        name: RNG.normal(size=node.shape).astype(node.dtype.numpy)
        for name, node in gradient.inputs.items()
    }
    found = darner.run(gradient, feeds)[1]
    assert found.dtype == feeds["x"].dtype
    assert_close(found, darner.run(gradient, feeds, float64=True)[1], dtype, 60)


@pytest.mark.parametrize(
    ("name", "build"),
    [
        ("avg_pool", lambda g, x: g.avg_pool2d(x, 2, 1)),
        ("adaptive_avg_pool", lambda g, x: g.adaptive_avg_pool(x, (2, 3))),
        ("resize_nearest", lambda g, x: g.resize_nearest(x, (7, 6))),
        ("resize_linear", lambda g, x: g.resize_linear(x, (7, 6))),
    ],
)
def test_a_batch_of_poolings_and_resamplings_stays_whole(name, build):
    graph = darner.vjp(graph_of(build, x=(2, 3, 5, 6)), ["x"])
    batched = assert_like_a_loop(graph, ["x", "d_output"])
    assert names_in(batched).count(name) == 1
    assert_like_a_loop(graph, ["d_output"])
