"""Convolution of images whose channels are their last axis, and its two derivatives.

The same numbers as ``conv`` and its derivatives give, of tensors [batch, *spatial, channels]: what tensor cores read best. Users write ``conv``;
``transforms.channels_last`` writes these for devices whose kernels want them.
"""

from __future__ import annotations

from ...graph.attributes import Ints, Number, Pairs, Sizes
from ...graph.dims import Dim, Shape, product
from ...graph.errors import InternalError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType
from ..samples import ints, sample, spec
from .conv import FAMILY, conv, conv_input_grad, conv_weight_grad
from .windows import PairsOf, fixed_sizes, spatial_axes, window_counts


def channels_last(x: Node) -> Node:
    """[batch, channels, *spatial] as [batch, *spatial, channels]."""
    result: Node = x.transpose((0, *range(2, x.rank), 1))
    return result


def channels_first(x: Node) -> Node:
    """[batch, *spatial, channels] as [batch, channels, *spatial]."""
    result: Node = x.transpose((0, x.rank - 1, *range(1, x.rank - 1)))
    return result


def _first(shape: Shape) -> Shape:
    if len(shape) < 3:
        return shape  # the rule of shapes says how many axes there have to be
    return (shape[0], shape[-1], *shape[1:-1])


def _last(shape: Shape) -> Shape:
    return (shape[0], *shape[2:], shape[1])


def _type_first(x: TensorType) -> TensorType:
    return x.with_shape(_first(x.shape))


def _settled(found: Resolved) -> tuple[TensorType, dict[str, object]]:
    """What a shape rule of one result found."""
    if not isinstance(found.type, TensorType):
        raise InternalError("a convolution has one result")
    return found.type, found.attrs


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, full_rate=True, multiplies=("x", "w")),
    samples=[
        sample(spec(2, 7, 3), spec(4, 3, 3)),
        sample(spec(2, 6, 5, 3), spec(4, 3, 2, 3), stride=(2, 1), padding=1),
        sample(spec(1, 5, 7, 4), spec(6, 2, 3, 2), padding=((0, 2), (1, 0)), dilation=2, groups=2),
        sample(spec(2, 3, 3, 4), spec(2, 1, 1, 4)),
        sample(spec(1, 4, 3, 5, 2), spec(2, 2, 3, 2, 2), stride=(1, 1, 2), padding=1),
        sample(spec(0, 5, 3), spec(2, 2, 3)),
        sample(
            ints(1, 6, 2, low=-9, high=9, dtype="i8"),
            ints(2, 3, 2, low=-9, high=9, dtype="i8"),
            padding=1,
        ),
    ],
)
def conv_last(
    x: Number,
    w: Number,
    *,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Resolved:
    """``conv`` of ``x`` [batch, *spatial, in] with ``w`` [out, *kernel, in / groups]: [batch, *spatial, out]."""
    spatial_axes(x)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    found, settled = _settled(conv.infer(_type_first(x), _type_first(w), **attrs))
    return resolved(found.with_shape(_last(found.shape)), **settled)


@conv_last.expand
def _(x: Node, w: Node, **attrs: object) -> Node:
    return channels_last(conv(channels_first(x), channels_first(w), **attrs))


@conv_last.cost
def _(
    x: TensorType,
    w: TensorType,
    stride: tuple[int, ...],
    padding: PairsOf,
    dilation: tuple[int, ...],
    groups: int,
) -> Dim:
    kernel = fixed_sizes(w.shape[1:-1], "the kernel")
    counts = window_counts(x.shape[1:-1], kernel, stride, padding, dilation, "kernel")
    return 2 * x.shape[0] * product(counts) * w.size


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, full_rate=True, multiplies=("dy", "w")),
    samples=[
        sample(spec(2, 5, 4), spec(4, 3, 3), sizes=(7,)),
        sample(spec(2, 3, 6, 4), spec(4, 3, 2, 3), sizes=(6, 5), stride=(2, 1), padding=1),
        sample(
            spec(1, 5, 4, 6),
            spec(6, 2, 3, 2),
            sizes=(5, 7),
            padding=((0, 2), (1, 0)),
            dilation=2,
            groups=2,
        ),
        sample(spec(2, 3, 3, 2), spec(2, 1, 1, 4), sizes=(3, 3)),
        sample(spec(2, 2, 3, 2), spec(2, 1, 1, 4), sizes=(4, 5), stride=2),
        sample(
            spec(1, 4, 3, 3, 2),
            spec(2, 2, 3, 2, 1),
            sizes=(4, 3, 5),
            stride=(1, 1, 2),
            padding=((1, 0), (1, 1), (0, 1)),
        ),
        sample(spec(0, 4, 2), spec(2, 2, 3), sizes=5),
    ],
)
def conv_last_input_grad(
    dy: Number,
    w: Number,
    *,
    sizes: Sizes,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Resolved:
    """The transpose of ``conv_last`` in its first operand; ``sizes`` are the spatial sizes of ``x``."""
    spatial_axes(dy, "dy")
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    types = _type_first(dy), _type_first(w)
    found, settled = _settled(conv_input_grad.infer(*types, sizes=sizes, **attrs))
    return resolved(found.with_shape(_last(found.shape)), **settled)


@conv_last_input_grad.expand
def _(dy: Node, w: Node, **attrs: object) -> Node:
    return channels_last(conv_input_grad(channels_first(dy), channels_first(w), **attrs))


@conv_last_input_grad.cost
def _(dy: TensorType, w: TensorType, **attrs: object) -> Dim:
    return 2 * dy.shape[0] * product(dy.shape[1:-1]) * w.size


@composite(
    family=FAMILY,
    facts=Facts(role="contract", whole=True, full_rate=True, multiplies=("x", "dy")),
    samples=[
        sample(spec(2, 7, 3), spec(2, 5, 4), kernel=3),
        sample(spec(2, 6, 5, 3), spec(2, 3, 6, 4), kernel=(3, 2), stride=(2, 1), padding=1),
        sample(
            spec(1, 5, 7, 4),
            spec(1, 5, 4, 6),
            kernel=(2, 3),
            padding=((0, 2), (1, 0)),
            dilation=2,
            groups=2,
        ),
        sample(spec(2, 3, 3, 4), spec(2, 3, 3, 2), kernel=1),
        sample(
            spec(1, 4, 3, 5, 1),
            spec(1, 4, 3, 3, 2),
            kernel=(2, 3, 2),
            stride=(1, 1, 2),
            padding=((1, 0), (1, 1), (0, 1)),
        ),
        sample(spec(0, 5, 3), spec(0, 4, 2), kernel=2),
    ],
)
def conv_last_weight_grad(
    x: Number,
    dy: Number,
    *,
    kernel: Ints,
    stride: Ints = (1,),
    padding: Pairs = ((0, 0),),
    dilation: Ints = (1,),
    groups: int = 1,
) -> Resolved:
    """``conv_weight_grad`` of images with channels last: towards a weight [out, in / groups, *kernel], as ``conv`` has it."""
    spatial_axes(x)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return conv_weight_grad.infer(_type_first(x), _type_first(dy), kernel=kernel, **attrs)


@conv_last_weight_grad.expand
def _(x: Node, dy: Node, **attrs: object) -> Node:
    result: Node = conv_weight_grad(channels_first(x), channels_first(dy), **attrs)
    return result


@conv_last_weight_grad.cost
def _(x: TensorType, dy: TensorType, kernel: tuple[int, ...], groups: int, **attrs: object) -> Dim:
    return 2 * dy.size * (x.shape[-1] // groups) * product(kernel)
