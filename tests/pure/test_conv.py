"""Convolution: its spellings, its gradients as transposes, and what it refuses."""

import numpy as np
import pytest
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.graph import dtypes
from tests.pure.spatial_bench import Bench


@pytest.fixture
def bench():
    return Bench()


# --------------------------------------------------------------------------- spellings


def test_every_spelling_of_conv2d_gives_the_same(bench):
    g = bench.graph
    x, w = bench.input(2, 4, 7, 6), bench.input(6, 2, 3, 2)
    found = bench.agree(
        g.conv(x, w, stride=(2, 1), padding=((1, 1), (2, 2)), dilation=(1, 2), groups=2),
        g.conv2d(x, w, stride=(2, 1), padding=(1, 2), dilation=[1, 2], groups=2),
        g.conv2d(x.id, w.id, stride=(2, 1), padding=(1, 2), dilation=[1, 2], groups=2),
        x.conv2d(w, stride=(2, 1), padding=((1, 1), (2, 2)), dilation=(1, 2), groups=2),
        g.conv2d(x, w, [3, 2], [2, 1], [1, 2], [1, 2], 2),
        g.conv2d(x, w, None, (2, 1), (1, 2), (1, 2), 2),
        g.conv2d(x, w, None, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
    )
    wanted = F.conv2d(bench.torch(x), bench.torch(w), None, (2, 1), (1, 2), (1, 2), 2)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


def test_equal_geometry_settles_to_equal_attributes(bench):
    x, w = bench.input(1, 2, 5, 5), bench.input(3, 2, 3, 3)
    nodes = [
        x.conv2d(w, padding=1),
        x.conv2d(w, padding=(1, 1)),
        x.conv2d(w, padding="same"),
        x.conv2d(w, [3, 3], [1, 1], [1, 1], [1, 1], 1),
    ]
    assert all(node.attrs == nodes[0].attrs for node in nodes)
    assert nodes[0].attrs == {
        "stride": (1, 1),
        "padding": ((1, 1), (1, 1)),
        "dilation": (1, 1),
        "groups": 1,
    }


def test_flat_conv2d_is_the_4d_one_flattened(bench):
    g = bench.graph
    x, k = bench.input(2 * 3 * 6 * 5), bench.input(4 * 3 * 3 * 2)
    image, weight = x.reshape((2, 3, 6, 5)), k.reshape((4, 3, 3, 2))
    flat = g.conv2d(x, k, 2, 3, 6, 5, 4, 3, 2, 2, 1)
    assert flat.shape == (2 * 4 * 3 * 3,)
    bench.agree(
        image.conv2d(weight, stride=2, padding=1).reshape((-1,)),
        flat,
        g.conv2d_hw(x, k, 2, 3, 6, 5, 4, 3, 2, 2, 1, 1),
    )
    bench.agree(
        image.conv2d(weight, stride=1, padding=(2, 0)).reshape((-1,)),
        g.conv2d_hw(x, k, 2, 3, 6, 5, 4, 3, 2, 1, 2, 0),
    )


def test_flat_and_listed_gradients_are_those_of_conv(bench):
    g = bench.graph
    x, w, dy = bench.input(2, 3, 6, 5), bench.input(4, 3, 3, 2), bench.input(2, 4, 4, 3)
    attrs = {"stride": (2, 2), "padding": ((2, 2), (1, 1))}
    geometry = (2, 3, 6, 5, 4, 3, 2, 2, 2, 1)
    bench.agree(
        g.conv_input_grad(dy, w, sizes=(6, 5), **attrs).reshape((-1,)),
        g.conv2d_backward_input(dy, w, (2, 3, 6, 5), [3, 2], [2, 2], [2, 1], [1, 1], 1).reshape(
            (-1,)
        ),
        g.conv2d_grad_input(dy.reshape((-1,)), w.reshape((-1,)), *geometry),
    )
    bench.agree(
        g.conv_weight_grad(x, dy, kernel=(3, 2), **attrs).reshape((-1,)),
        g.conv2d_backward_weight(x, dy, (4, 3, 3, 2), [3, 2], [2, 2], [2, 1], [1, 1], 1).reshape(
            (-1,)
        ),
        g.conv2d_grad_weight(dy.reshape((-1,)), x.reshape((-1,)), *geometry),
    )


def test_flat_gradients_take_one_padding_for_both_axes(bench):
    g = bench.graph
    dy, k = bench.input(1 * 2 * 4 * 5), bench.input(2 * 3 * 3 * 3)
    geometry = (1, 3, 4, 5, 2, 3, 3, 1)
    bench.agree(
        g.conv2d_grad_input(dy, k, *geometry, 1), g.conv2d_grad_input(dy, k, *geometry, 1, 1)
    )


@pytest.mark.parametrize("count", [1, 2, 3])
def test_bias_is_added_to_each_output_channel(bench, count):
    x, w, b = bench.input(2, 3, *(4,) * count), bench.input(5, 3, *(2,) * count), bench.input(5)
    build = getattr(bench.graph, f"conv{count}d")
    found = bench.agree(build(x, w, bias=b), build(x, w, b), build(x.id, w.id, bias=b.id))
    wanted = getattr(F, f"conv{count}d")(*map(bench.torch, (x, w, b)))
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize("kernel", [(3, 3), (2, 5), (1, 4)])
def test_padding_by_name_is_that_of_torch(bench, padding, kernel):
    x, w = bench.input(1, 2, 9, 10), bench.input(3, 2, *kernel)
    (found,) = bench.run(x.conv2d(w, padding=padding, dilation=(1, 2)))
    wanted = F.conv2d(bench.torch(x), bench.torch(w), padding=padding, dilation=(1, 2))
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


def test_same_padding_keeps_the_sizes(bench):
    x, w = bench.input(1, 2, 7, 8), bench.input(3, 2, 4, 3)
    assert x.conv2d(w, padding="same", dilation=2).shape == (1, 3, 7, 8)


def test_depthwise_convolution_keeps_channels_apart(bench):
    x, w = bench.input(2, 3, 8), bench.input(3, 1, 3)
    found = bench.run(x.conv1d(w, padding=1, groups=3))[0]
    for channel in range(3):
        values, kernel = bench.values["v0"][:, channel], bench.values["v1"][channel, 0]
        wanted = [np.convolve(row, kernel[::-1], "same") for row in values]
        np.testing.assert_allclose(found[:, channel], wanted, rtol=1e-12, atol=1e-12)


def test_unfold_gives_the_columns_of_torch(bench):
    x = bench.input(2, 3, 6, 5)
    (found,) = bench.run(x.unfold((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)))
    wanted = F.unfold(bench.torch(x), (3, 2), (1, 2), (1, 0), (2, 1))
    np.testing.assert_array_equal(found, wanted.numpy())


# --------------------------------------------------------------------------- transposed convolution


@pytest.mark.parametrize(
    ("count", "attrs"),
    [
        (1, {}),
        (1, {"stride": 3, "padding": 2, "output_padding": 2, "dilation": 2}),
        (2, {"stride": 2, "padding": 1, "output_padding": 1}),
        (2, {"stride": (3, 2), "padding": (0, 1), "output_padding": (2, 0), "groups": 2}),
        (3, {"stride": (1, 2, 1), "padding": (1, 0, 1), "dilation": (1, 1, 2)}),
    ],
)
def test_transposed_convolution_is_that_of_torch(bench, count, attrs):
    sizes, kernel = (4, 3, 5)[:count], (3, 2, 3)[:count]
    x, w = bench.input(2, 4, *sizes), bench.input(4, 3, *kernel)
    name = f"conv_transpose{count}d"
    (found,) = bench.run(getattr(bench.graph, name)(x, w, **attrs))
    wanted = getattr(F, name)(bench.torch(x), bench.torch(w), **attrs)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12, atol=1e-12)


def test_every_spelling_of_transposed_convolution_gives_the_same(bench):
    g = bench.graph
    x, w, b = bench.input(2, 4, 3, 4), bench.input(4, 3, 3, 2), bench.input(6)
    named = {"stride": 2, "padding": (1, 0), "output_padding": 1, "dilation": (1, 2), "groups": 2}
    bench.agree(
        g.conv_transpose2d(x, w, **named),
        x.conv_transpose2d(w, [3, 2], [2, 2], [1, 0], [1, 2], [1, 1], 2),
        g.conv_transpose2d(x, w, None, 2, (1, 0), 1, 2, (1, 2)),
        g.conv_input_grad(
            *(x, w), sizes=(5 + 1, 9 + 1), stride=2, padding=(1, 0), dilation=(1, 2), groups=2
        ),
    )
    bench.agree(
        g.conv_transpose2d(x, w, bias=b, **named),
        g.conv_transpose2d(x, w, b, 2, (1, 0), 1, 2, (1, 2)),
        g.conv_transpose2d(x, w, **named) + b.reshape((6, 1, 1)),
    )


# --------------------------------------------------------------------------- gradients


@st.composite
def geometries(draw):
    """Shapes of x and w, and attributes under which the kernel fits."""
    count = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    channels, outputs = (groups * draw(st.integers(1, 2)) for _ in range(2))
    kernel, sizes, stride, padding, dilation = [], [], [], [], []
    for _ in range(count):
        kernel.append(draw(st.integers(1, 3)))
        dilation.append(draw(st.integers(1, 2)))
        stride.append(draw(st.integers(1, 3)))
        padding.append((draw(st.integers(0, 2)), draw(st.integers(0, 2))))
        least = max(dilation[-1] * (kernel[-1] - 1) + 1 - sum(padding[-1]), 1)
        sizes.append(draw(st.integers(least, least + 3)))
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return (
        (draw(st.integers(0, 2)), channels, *sizes),
        (outputs, channels // groups, *kernel),
        attrs,
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(geometries(), st.integers(0, 2**31))
def test_gradients_are_the_transposes_of_convolution(geometry, seed):
    x_shape, w_shape, attrs = geometry
    bench = Bench(seed)
    x, w = bench.input(*x_shape), bench.input(*w_shape)
    y = x.conv(w, **attrs)
    dy = bench.input(*y.shape)
    dx = dy.conv_input_grad(w, sizes=x_shape[2:], **attrs)
    dw = x.conv_weight_grad(dy, kernel=w_shape[2:], **attrs)
    assert dx.shape == x.shape
    assert dw.shape == w.shape
    forward, *others = bench.run((y * dy).sum(), (x * dx).sum(), (w * dw).sum())
    np.testing.assert_allclose(others, [forward] * 2, rtol=1e-9, atol=1e-9)


# --------------------------------------------------------------------------- sizes


def test_batch_and_space_may_be_symbolic(bench):
    g = Graph()
    x, w = g.input("x", ("batch", 2, "h", "2*v")), g.parameter("w", (4, 1, 3, 3))
    y = x.conv2d(w, padding=1, groups=2)
    assert str(y.type) == "f32[batch, 4, h, 2*v]"
    assert str(x.conv2d(w, stride=(1, 2), padding=1, groups=2).type) == "f32[batch, 4, h, v]"
    up = y.conv_transpose2d(g.parameter("u", (4, 3, 2, 2)), stride=2)
    assert str(up.type) == "f32[batch, 3, 2*h, 4*v]"
    g.set_outputs([up])
    bound = g.bind(batch=2, h=5, v=3)
    assert bound.outputs[0].shape == (2, 3, 10, 12)


def test_a_kernel_that_does_not_fit_is_found_when_sizes_are_bound():
    g = Graph()
    x = g.input("x", (1, 1, 4, "w"))
    g.set_outputs([x.conv2d(g.parameter("k", (1, 1, 3, 3)))])
    assert g.bind(w=3).outputs[0].shape == (1, 1, 2, 1)
    with pytest.raises(darner.ShapeError, match="kernel 3 does not fit size 1 on spatial axis 1"):
        g.bind(w=1)


def test_flops_count_every_product(bench):
    x, w = bench.input(2, 4, 7, 6), bench.input(6, 2, 3, 2)
    attrs = {"stride": 2, "groups": 2}
    y = x.conv(w, **attrs)
    assert y.shape == (2, 6, 3, 3)
    flops = 2 * (2 * 6 * 3 * 3) * 2 * (3 * 2)
    dy = bench.input(*y.shape)
    nodes = [
        y,
        dy.conv_input_grad(w, sizes=(7, 6), **attrs),
        x.conv_weight_grad(dy, kernel=(3, 2), **attrs),
    ]
    assert [darner.cost(node).flops for node in nodes] == [flops] * 3


def test_integer_convolution_sums_in_32_bits():
    g = Graph()
    x, w = g.input("x", (1, 1, 3), "i8"), g.input("w", (1, 1, 3), "i8")
    y = g.conv1d(x, w)
    g.set_outputs([y])
    full = np.full((1, 1, 3), 127, np.int8)
    assert y.dtype is dtypes.i32
    np.testing.assert_array_equal(darner.run(g, {"x": full, "w": full})[0], [[[3 * 127 * 127]]])


# --------------------------------------------------------------------------- errors


def refused(call, text):
    with pytest.raises(darner.DarnerError) as caught:
        call()
    assert text in str(caught.value)
    assert "test_conv.py" in str(caught.value)


@pytest.mark.parametrize(
    ("w_shape", "attrs", "text"),
    [
        ((4, 2, 3, 3), {}, "x has 3 channels, but w takes 2"),
        ((3, 1, 3, 3), {}, "groups=3 makes it depthwise"),
        ((4, 1, 3, 3), {"groups": 3}, "4 output channels do not divide into 3 groups"),
        ((4, 3, 3, 3), {"groups": 2}, "w takes 6 (3 in each of 2 groups)"),
        ((4, 3, 3, 3), {"groups": 0}, "groups=0 must be at least 1"),
        ((4, 3, 8, 3), {}, "kernel 8 does not fit size 6 on spatial axis 0"),
        (
            (4, 3, 3, 9),
            {"padding": ((0, 0), (1, 2))},
            "kernel 9 does not fit size 5 (padded to 8) on spatial axis 1",
        ),
        (
            (4, 3, 3, 3),
            {"dilation": 3},
            "kernel 3 (dilated to 7) does not fit size 6 on spatial axis 0",
        ),
        ((4, 3, 0, 3), {}, "the kernel has size 0"),
        ((4, 3, 3, 3), {"stride": 0}, "stride (0, 0) must be at least 1"),
        ((4, 3, 3, 3), {"dilation": (1, -1)}, "dilation (1, -1) must be at least 1"),
        ((4, 3, 3, 3), {"padding": -1}, "padding ((-1, -1), (-1, -1)) is negative"),
        ((4, 3, 3, 3), {"padding": (1, 1, 1)}, "padding has 3 entries for 2 spatial axes"),
        ((4, 3, 3, 3), {"stride": (1, 1, 1)}, "stride has 3 entries for 2 spatial axes"),
        ((4, 3, 3, 3), {"stride": 1.5}, "stride: expected an integer, got 1.5"),
        ((4, 3, 3, 3), {"padding": "full"}, "padding 'full' is not known"),
        ((4, 3, 3, 3), {"padding": "same", "stride": 2}, "padding 'same' needs stride 1, not 2"),
        (
            (4, 3, 3),
            {},
            "w has rank 3, but must be [out channels, in channels / groups, height, width]",
        ),
    ],
)
def test_conv2d_says_what_is_wrong(bench, w_shape, attrs, text):
    x, w = bench.input(2, 3, 6, 5), bench.input(*w_shape)
    refused(lambda: bench.graph.conv2d(x, w, **attrs), text)


def test_wrong_calls_of_conv2d_are_explained(bench):
    g = bench.graph
    x, w = bench.input(2, 3, 6, 5), bench.input(4, 3, 3, 3)
    refused(lambda: g.conv2d(x, w, [5, 3], [1, 1], [0, 0], [1, 1], 1), "kernel_size is (5, 3), but")
    refused(lambda: g.conv2d(x, w, 3), "1 argument after w: expected (kernel_size, stride,")
    refused(lambda: g.conv2d(x, w, None, 2, stride=2), "argument 'stride' is given twice")
    refused(lambda: g.conv2d(x, w, bias=bench.input(3)), "bias is (3,), but there are 4 output")
    refused(lambda: g.conv2d(x), "missing 1 required positional argument: 'w'")
    refused(lambda: g.conv2d(x, 3.0), "w must be a node, got float")
    refused(lambda: x.conv2d(w, bias=0), "bias is (), but there are 4 output channels")
    refused(lambda: g.conv3d(x, w), "x has rank 4, but must be [batch, channels, depth,")
    refused(
        lambda: g.conv(bench.input(2, 3), w), "x has rank 2, but is [batch, channels, spatial...]"
    )
    refused(lambda: g.conv(x, bench.input(4, 3, 3)), "w has rank 3, x has rank 4")
    flat = bench.input(90)
    refused(
        lambda: g.conv2d(flat, w, 2, 3, 6, 5, 4, 3, 3, 1, 1),
        "x has 90 elements, but 2 * 3 * 6 * 5 are 180",
    )


def test_wrong_gradients_and_transposed_convolutions_are_explained(bench):
    g = bench.graph
    x, w, dy = bench.input(2, 3, 6, 5), bench.input(4, 3, 3, 3), bench.input(2, 4, 4, 3)
    refused(
        lambda: g.conv_input_grad(dy, w, sizes=(7, 5)),
        "dy has size 4 on spatial axis 0, but the kernel has 5 places in size 7",
    )
    refused(lambda: g.conv_input_grad(dy, w, sizes=6), "1 sizes for 2 spatial axes")
    refused(lambda: g.conv_input_grad(x, w, sizes=(6, 5)), "dy has 3 channels, but w gives 4")
    refused(
        lambda: g.conv2d_backward_input(dy, w, (1, 3, 6, 5), [3, 3], [1, 1], [0, 0], [1, 1], 1),
        "the result is (2, 3, 6, 5), but (1, 3, 6, 5) was stated",
    )
    refused(
        lambda: g.conv_weight_grad(x, dy, kernel=(3, 2)), "but the kernel has 4 places in size 5"
    )
    refused(lambda: g.conv_weight_grad(x, dy, kernel=(3, 3, 3)), "kernel has 3 entries for 2")
    refused(
        lambda: g.conv_weight_grad(x, bench.input(1, 4, 4, 3), kernel=3),
        "batch sizes 2 and 1 differ",
    )
    refused(
        lambda: g.conv_transpose2d(x, w),
        "x has 3 channels, but w takes 4; w is [in channels, out channels / groups, kernel...]",
    )
    refused(
        lambda: g.conv_transpose2d(dy, w, stride=2, output_padding=2),
        "output_padding 2 must be below the stride, 2",
    )
    refused(
        lambda: g.conv_transpose2d(dy, w, padding=4),
        "padding (4, 4) leaves nothing of size 6 on spatial axis 0",
    )


def test_failed_calls_leave_the_graph_as_it_was(bench):
    x, w = bench.input(90), bench.input(4, 3, 3, 3)
    before = len(bench.graph)
    with pytest.raises(darner.ShapeError):
        bench.graph.conv2d(x, w, 1, 3, 6, 5, 4, 3, 2, 1, 1)
    assert len(bench.graph) == before
