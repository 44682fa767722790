"""Normalisation of images and other (batch, channels, ...) tensors: by channel, group, sample or batch.

Channels are axis 1; weight and bias have one element for each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...graph.attributes import Float
from ...graph.dims import Dim, as_dim, product
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, composite
from ...graph.types import TensorType
from ..elementwise.activations import silu
from ..elementwise.functions import rsqrt
from ..samples import Spec, sample, spec
from .last_axes import FAMILY, affine, from_axis, is_int, require_eps, standardised

# --------------------------------------------------------------------------- rules and pieces


def require_channels(x: TensorType, least: int, **vectors: TensorType | None) -> None:
    """Channels are axis 1; weights and biases have one element for each."""
    if x.rank < least:
        axes = "(batch, channels)" if least == 2 else "(batch, channels, one or more of space)"
        raise ShapeError(f"x has rank {x.rank}, but its axes must be {axes}")
    for name, vector in vectors.items():
        if vector is not None and vector.shape != (x.shape[1],):
            raise ShapeError(f"{name} is {vector} but x has {x.shape[1]} channels")


def require_groups(x: TensorType, num_groups: int) -> None:
    """The channels must divide into groups."""
    if num_groups < 1:
        raise ArgumentError(f"num_groups is {num_groups}, but there must be at least one")
    if x.shape[1] % num_groups:
        raise ShapeError(f"{x.shape[1]} channels do not divide into {num_groups} groups")


def but_channels(x: Node) -> tuple[int, ...]:
    """All axes but axis 1."""
    return (0, *range(2, x.rank))


def along_channels(vector: Node, x: Node) -> Node:
    """One element a channel, with axes of size 1 where x has its spatial ones."""
    return vector.reshape((x.shape[1], *[1] * (x.rank - 2)))


def grouped(x: Node, num_groups: int) -> Node:
    """``x`` with its channels as (groups, channels of a group)."""
    batch, channels, *spatial = x.shape
    return x.reshape((batch, num_groups, channels // num_groups, *spatial))


def affine_channels(x: Node, weight: Node | None, bias: Node | None) -> Node:
    """``x * weight + bias`` with one weight and bias a channel."""
    return affine(
        x,
        None if weight is None else along_channels(weight, x),
        None if bias is None else along_channels(bias, x),
    )


def folded(x: Node) -> Node:
    """A batch of (batch, channels, ...) tensors as one such tensor."""
    outer, inner, *rest = x.shape
    return x.reshape((outer * inner, *rest))


def channels_over_batch(vector: Node, batched: bool, rank: int) -> Node:
    """One element a channel (for each of a batch), to go with a batch of tensors of ``rank``."""
    batch = (vector.shape[0], 1) if batched else ()
    return vector.reshape((*batch, vector.shape[-1], *[1] * (rank - 2)))


def _fold_over_batch(op: Op) -> None:
    """Let a norm of each sample by itself stay whole over a batch; weights that differ along it come after."""

    @op.vmap
    def _(
        size: Dim,
        batched: dict[str, Any],
        x: Node,
        weight: Node | None,
        bias: Node | None,
        **attrs: Any,
    ) -> Node:
        several = batched["x"]
        flat, rank = (folded(x), x.rank - 1) if several else (x, x.rank)
        if not batched["weight"] and not batched["bias"]:
            return op(flat, weight=weight, bias=bias, **attrs).reshape(x.shape)
        y = op(flat, weight=None, bias=None, **attrs)
        scale, shift = (
            node if node is None else channels_over_batch(node, batched[name], rank)
            for name, node in (("weight", weight), ("bias", bias))
        )
        return affine(y.reshape(x.shape) if several else y, scale, shift)


# --------------------------------------------------------------------------- over channels


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 5, 3, 2), spec(5), spec(5), 1e-5),
        sample(spec(1, 7, 1, 2), spec(7)),
        sample(spec(2, 4, 3, 3), None, spec(4), eps=1e-2),
        sample(spec(2, 4, 0, 3), spec(4), spec(4)),
        sample(spec(0, 4, 2, 3)),
    ],
)
def layer_norm2d(
    x: Float, weight: Float | None = None, bias: Float | None = None, eps: float = 1e-5
) -> TensorType:
    """NCHW images normalised over their channels, at every position by itself."""
    require_eps(eps)
    if x.rank != 4:
        raise ShapeError(
            f"x has rank {x.rank}, but its axes must be (batch, channels, height, width)"
        )
    require_channels(x, 4, weight=weight, bias=bias)
    return x


@layer_norm2d.expand
def _(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    return affine_channels(standardised(x, (1,), eps)[0], weight, bias)


_fold_over_batch(layer_norm2d)


_GROUPS = [
    sample(spec(2, 6, 3, 2), spec(6), spec(6), 3),
    sample(spec(2, 4, 5), spec(4), None, 2, 1e-3),
    sample(spec(2, 4, 3, 1), None, spec(4), 1),
    sample(spec(3, 8), None, None, num_groups=2),
    sample(spec(1, 3, 2, 2, 2), spec(3), spec(3), 3),
    sample(spec(0, 4, 3), spec(4), spec(4), 2),
    sample(spec(2, 4, 0), spec(4), spec(4), 2),
]


def flat_sizes(x: Node, batch: Any, channels: Any, spatial: Any) -> tuple[Dim, Dim, Dim]:
    """The geometry of a flat tensor, checked against its number of elements."""
    sizes = (as_dim(batch), as_dim(channels), as_dim(spatial))
    if product(sizes) != x.size:
        raise ShapeError(
            f"x has {x.size} elements, but batch {batch} * channels {channels} * spatial {spatial} is "
            f"{product(sizes)}"
        )
    return sizes


_FLAT = ("x", "weight", "bias", "batch", "channels", "spatial", "num_groups", "eps")


def _group_spelling(op: Op) -> Callable[..., Any]:
    """Weight and bias may be left out; flat tensors come with their geometry as integers."""

    def spelling(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        flat = len(args) > 5 and is_int(args[4]) and is_int(args[5])
        if not flat and not kwargs.keys() & {"batch", "channels", "spatial"}:
            absent = dict.fromkeys(("weight", "bias")[max(len(args) - 1, 0) :])
            return args, {**absent, **kwargs}
        named = {**dict(zip(_FLAT, args, strict=False)), **kwargs}
        missing = [name for name in _FLAT[:-1] if name not in named]
        if missing or len(args) > len(_FLAT):
            raise ArgumentError(
                f"a flat tensor needs all of {', '.join(_FLAT[3:])}",
                hint=f"the call is {op.name}({', '.join(_FLAT)})",
            )
        x = graph.node(named.pop("x"))
        sizes = flat_sizes(x, *(named.pop(name) for name in ("batch", "channels", "spatial")))
        return op(x.reshape(sizes), **named).reshape(x.shape)

    return spelling


def _group_rule(
    x: TensorType, weight: TensorType | None, bias: TensorType | None, num_groups: int, eps: float
) -> TensorType:
    require_eps(eps)
    require_channels(x, 2, weight=weight, bias=bias)
    require_groups(x, num_groups)
    return x


@composite(family=FAMILY, samples=_GROUPS)
def group_norm(
    x: Float, weight: Float | None, bias: Float | None, num_groups: int, eps: float = 1e-5
) -> TensorType:
    """(batch, channels, ...) normalised over each group of channels and all space; affine by channel.

    A flat x is understood too: ``group_norm(x, weight, bias, batch, channels, spatial, num_groups, eps)``.
    """
    return _group_rule(x, weight, bias, num_groups, eps)


group_norm.spelling(_group_spelling(group_norm))


@group_norm.expand
def _(x: Node, weight: Node | None, bias: Node | None, num_groups: int, eps: float) -> Node:
    groups = grouped(x, num_groups)
    y = standardised(groups, from_axis(groups, 2), eps)[0].reshape(x.shape)
    return affine_channels(y, weight, bias)


_fold_over_batch(group_norm)


@composite(family=FAMILY, samples=_GROUPS)
def group_norm_silu(
    x: Float, weight: Float | None, bias: Float | None, num_groups: int, eps: float = 1e-5
) -> TensorType:
    """``silu(group_norm(x, weight, bias, num_groups, eps))``, flat form included."""
    return _group_rule(x, weight, bias, num_groups, eps)


group_norm_silu.spelling(_group_spelling(group_norm_silu))


@group_norm_silu.expand
def _(x: Node, weight: Node | None, bias: Node | None, num_groups: int, eps: float) -> Node:
    return silu(group_norm(x, weight, bias, num_groups, eps))


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 4, 2), spec(3), spec(3)),
        sample(spec(2, 3, 5)),
        sample(spec(1, 2, 3, 1, 2), spec(2), None, 1e-2),
        sample(spec(0, 3, 4), spec(3), spec(3)),
        sample(spec(2, 3, 0), None, spec(3)),
    ],
)
def instance_norm(
    x: Float, weight: Float | None = None, bias: Float | None = None, eps: float = 1e-5
) -> TensorType:
    """(batch, channels, space ...) normalised over space, for each sample and channel by itself."""
    require_eps(eps)
    require_channels(x, 3, weight=weight, bias=bias)
    return x


@instance_norm.expand
def _(x: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    return affine_channels(standardised(x, from_axis(x, 2), eps)[0], weight, bias)


_fold_over_batch(instance_norm)


def _variances(channels: int) -> Spec:
    return spec(channels, low=0.1, high=2.0)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 4, 2), spec(3), _variances(3), spec(3), spec(3)),
        sample(spec(5, 3), spec(3), _variances(3)),
        sample(spec(2, 3, 5), spec(3), _variances(3), None, spec(3), 1e-2),
        sample(spec(0, 3, 5), spec(3), _variances(3), spec(3)),
        sample(spec(2, 1, 5), spec(1), _variances(1), eps=0.0),
    ],
)
def batch_norm(
    x: Float,
    mean: Float,
    var: Float,
    weight: Float | None = None,
    bias: Float | None = None,
    eps: float = 1e-5,
) -> TensorType:
    """(batch, channels, ...) normalised by the given mean and variance of each channel: the form of inference."""
    require_eps(eps)
    require_channels(x, 2, mean=mean, var=var, weight=weight, bias=bias)
    return x


@batch_norm.expand
def _(x: Node, mean: Node, var: Node, weight: Node | None, bias: Node | None, eps: float) -> Node:
    centred = x - along_channels(mean, x)
    return affine_channels(centred * along_channels(rsqrt(var + eps), x), weight, bias)


@composite(
    family=FAMILY,
    samples=[
        sample(spec(2, 3, 4, 2), spec(3), spec(3)),
        sample(spec(5, 3)),
        sample(spec(2, 3, 5), None, spec(3), 1e-2),
        sample(spec(2, 3, 4), spec(3), eps=1e-3),
        sample(spec(3, 0, 2), spec(0), spec(0)),
    ],
)
def batch_norm_training(
    x: Float, weight: Float | None = None, bias: Float | None = None, eps: float = 1e-5
) -> tuple[TensorType, TensorType, TensorType]:
    """(batch, channels, ...) normalised over everything but channels; also gives mean and biased variance.

    The second and third results are for running averages; the number of elements a channel must not be 0.
    """
    require_eps(eps)
    require_channels(x, 2, weight=weight, bias=bias)
    for i, size in enumerate(x.shape):
        if i != 1 and size == 0:
            raise ShapeError(f"axis {i} has size 0, so there is nothing to take the mean of")
    statistics = x.with_shape([x.shape[1]])
    return x, statistics, statistics


@batch_norm_training.expand
def _(x: Node, weight: Node | None, bias: Node | None, eps: float) -> tuple[Node, Node, Node]:
    # As the gradient has it, which then reads these statistics.
    axes, vector = but_channels(x), (x.shape[1],)
    mean = x.mean(axes, True)
    centred = x - mean
    var = centred.square().mean(axes, True)
    y = affine_channels(centred * rsqrt(var + eps), weight, bias)
    return y, mean.reshape(vector), var.reshape(vector)
