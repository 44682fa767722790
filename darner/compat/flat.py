"""Images along one axis, in NCHW order, with their sizes as a row of integers: Meganeura's form.

The row of a convolution is that of the convolution itself in its gradients too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.dims import Dim, as_dim, divide
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import builder
from ..ops.shapes.primitives import concat
from ..ops.spatial.conv import FAMILY as CONVOLUTION
from ..ops.spatial.conv import conv_input_grad, conv_weight_grad
from ..ops.spatial.conv_flat import Geometry, flat_conv2d
from ..ops.spatial.pool import FAMILY as POOLING
from ..ops.spatial.pool import max_pool
from ..ops.spatial.resize import FAMILY as RESAMPLING
from ..ops.spatial.resize import resize_nearest
from ..ops.spatial.windows import flattened, is_size, require_node, spatial_axes, unflattened
from .forms import form

_WINDOW = "kernel_h: int, kernel_w: int, stride: int"
_ROW = f"batch: int, in_channels: int, in_h: int, in_w: int, out_channels: int, {_WINDOW}"
_PADDED = f"{_ROW}, padding: int, padding_w: int | None = None"


# --------------------------------------------------------------------------- convolution


def _conv2d(x: Node, kernel: Node, *row: Any) -> Node:
    return flat_conv2d(x, kernel, row)


def _input_gradient(dy: Node, kernel: Node, *row: Any) -> Node:
    geometry = Geometry.read(row)
    cotangent, weight = geometry.cotangent(dy), geometry.weight(kernel)
    return flattened(conv_input_grad(cotangent, weight, sizes=geometry.sizes, **geometry.attrs))


def _weight_gradient(dy: Node, x: Node, *row: Any) -> Node:
    geometry = Geometry.read(row)
    image, cotangent = geometry.image(x), geometry.cotangent(dy)
    return flattened(conv_weight_grad(image, cotangent, kernel=geometry.kernel, **geometry.attrs))


form(
    f"conv2d_hw(x: Node, kernel: Node, {_ROW}, pad_h: int, pad_w: int)",
    CONVOLUTION,
    _conv2d,
    "Convolution of flat NCHW tensors, rows and columns padded apart; the result is flat.",
)
form(
    f"conv2d_grad_input(dy: Node, kernel: Node, {_PADDED})",
    CONVOLUTION,
    _input_gradient,
    """The gradient of flat ``conv2d`` towards its input, flat; the integers are the same.

    ``padding_w`` is the columns' padding where it differs, as in ``conv2d_hw``.
    """,
)
form(
    f"conv2d_grad_weight(dy: Node, x: Node, {_PADDED})",
    CONVOLUTION,
    _weight_gradient,
    """The gradient of flat ``conv2d`` towards its kernel, flat; the integers are the same.

    ``padding_w`` is the columns' padding where it differs, as in ``conv2d_hw``.
    """,
)


# --------------------------------------------------------------------------- pooling, doubling


def _max_pool(x: Node, *row: Any) -> Node:
    *sizes, kernel_h, kernel_w, stride, padding = row
    image = unflattened(x, tuple(sizes))
    return flattened(max_pool(image, (kernel_h, kernel_w), stride=stride, padding=padding))


form(
    f"max_pool_2d(x: Node, batch: int, channels: int, in_h: int, in_w: int, {_WINDOW}, padding: int)",
    POOLING,
    _max_pool,
    "The largest element of each window of a flat NCHW tensor, flat; see ``max_pool2d``.",
)


def _image(x: Node, geometry: tuple[Any, ...], scale: int = 1) -> Node:
    """[batch, channels, *spatial], from that or from a flat tensor and its sizes (times scale)."""
    if not geometry:
        require_node(x)
        spatial_axes(x)
        return x
    if len(geometry) != 4 or not all(map(is_size, geometry)):
        raise ArgumentError(
            f"got {len(geometry)} arguments after x, expected none, or the sizes of a flat tensor",
            hint="flat: (x, batch, channels, in_h, in_w)",
        )
    batch, channels, in_h, in_w = geometry
    return unflattened(x, (batch, channels, scale * in_h, scale * in_w))


@builder(family=RESAMPLING)
def upsample_2x(graph: Graph, x: Node, *geometry: int) -> Node:
    """Every element twice along each spatial axis: [n, c, h, w] becomes [n, c, 2h, 2w].

    Flat: ``upsample_2x(x, batch, channels, in_h, in_w)``, with a flat result.
    """
    result: Node = resize_nearest(_image(x, geometry), factor=2)
    return flattened(result) if geometry else result


@builder(family=RESAMPLING)
def upsample_2x_grad(graph: Graph, dy: Node, *geometry: int) -> Node:
    """The gradient of ``upsample_2x``: the sum of each block of 2 along every spatial axis.

    Flat: ``upsample_2x_grad(dy, batch, channels, in_h, in_w)`` with the sizes before doubling, as
    in ``upsample_2x``.
    """
    image = _image(dy, geometry, 2)
    halves = []
    for axis, size in enumerate(image.shape[2:]):
        half = divide(size, 2)
        if half is None:
            raise ShapeError(f"size {size} on spatial axis {axis} is odd")
        halves.append(half)
    blocks = image.reshape((*image.shape[:2], *(part for half in halves for part in (half, 2))))
    result: Node = blocks.sum(tuple(range(3, blocks.rank, 2)))
    return flattened(result) if geometry else result


# --------------------------------------------------------------------------- channels of two tensors


@concat.spelling
def _(graph: Graph, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    if not isinstance(inputs, Node):
        return (inputs, *args), kwargs
    names = ("b", "batch", "channels_a", "channels_b", "spatial")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    missing = [name for name in names if name not in given]
    if missing or len(args) > len(names):
        raise ArgumentError(
            "tensors must come in a list: concat([a, b], axis)",
            hint="or flat: concat(a, b, batch, channels_a, channels_b, spatial)",
        )
    batch, ca, cb, spatial = (given[name] for name in names[1:])
    if not isinstance(given["b"], Node):
        raise ArgumentError(f"'b' must be a node, got {type(given['b']).__name__}")
    a = inputs.reshape((batch, ca, spatial))
    b = given["b"].reshape((batch, cb, spatial))
    return concat([a, b], 1).reshape((-1,))


@concat.spelled_operands
def _(args: Sequence[Any]) -> tuple[int, ...]:
    """The second of two flat tensors."""
    return (1,) if args and not isinstance(args[0], list | tuple) else ()


def _channels(x: Node, batch: Dim, channels: Dim, spatial: Dim) -> Node:
    """A flat NCHW tensor with its batch, channels and pixels apart."""
    if x.size != batch * channels * spatial:
        raise ShapeError(
            f"{x.size} elements are not {batch} times {channels} channels of {spatial}"
        )
    return x.reshape((batch, channels, spatial))


@builder(family="shape")
def split_a(
    graph: Graph, x: Node, batch: Any, channels_a: Any, channels_b: Any, spatial: Any
) -> Node:
    """The first ``channels_a`` channels of a flat NCHW tensor of ``channels_a + channels_b``, flat."""
    batch, channels_a, channels_b, spatial = map(as_dim, (batch, channels_a, channels_b, spatial))
    apart = _channels(x, batch, channels_a + channels_b, spatial)
    return apart.narrow(1, 0, channels_a).reshape((batch * channels_a * spatial,))


@builder(family="shape")
def split_b(
    graph: Graph, x: Node, batch: Any, channels_a: Any, channels_b: Any, spatial: Any
) -> Node:
    """The last ``channels_b`` channels of a flat NCHW tensor of ``channels_a + channels_b``, flat."""
    batch, channels_a, channels_b, spatial = map(as_dim, (batch, channels_a, channels_b, spatial))
    apart = _channels(x, batch, channels_a + channels_b, spatial)
    return apart.narrow(1, channels_a, channels_b).reshape((batch * channels_b * spatial,))
