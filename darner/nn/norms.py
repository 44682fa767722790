"""Normalisations with their trained gains and shifts."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.dims import format_shape, product
from ..graph.errors import ArgumentError, ShapeError
from ..graph.node import Node
from .base import Layer, check_eps, check_width, parameter, positive, scope, state, within


@dataclass(frozen=True)
class RMSNorm(Layer):
    """``x`` over the root of its mean square, times ``weight``; ``shifted`` multiplies by 1 + weight instead (Gemma).

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("norm")
    >>> y = nn.RMSNorm("norm", 4, eps=1e-6)(g.input("x", (2, 4)))
    >>> g.parameters["norm.weight"].attrs["init"]
    'ones'
    """

    name: str
    width: int
    eps: float = 1e-5
    shifted: bool = False

    def __post_init__(self) -> None:
        positive(self, "width")
        check_eps(self)

    def __call__(self, x: Node) -> Node:
        """``x`` (..., width) normalised over its last axis."""
        with scope(x.graph, self.name):
            check_width(f"RMSNorm '{x.graph.current_scope}'", x, -1, self.width)
            start = "zeros" if self.shifted else "ones"
            weight = parameter(x.graph, "weight", (self.width,), x.dtype, start)
            return x.rms_norm(weight + 1.0 if self.shifted else weight, self.eps)


@dataclass(frozen=True)
class LayerNorm(Layer):
    """``x`` less its mean, over its deviation, times ``weight``, plus ``bias``."""

    name: str
    width: int
    eps: float = 1e-5
    bias: bool = True

    def __post_init__(self) -> None:
        positive(self, "width")
        check_eps(self)

    def __call__(self, x: Node) -> Node:
        """``x`` (..., width) normalised over its last axis."""
        with scope(x.graph, self.name):
            check_width(f"LayerNorm '{x.graph.current_scope}'", x, -1, self.width)
            weight = parameter(x.graph, "weight", (self.width,), x.dtype, "ones")
            bias = (
                parameter(x.graph, "bias", (self.width,), x.dtype, "zeros") if self.bias else None
            )
            return x.layer_norm(weight, bias, self.eps)


@dataclass(frozen=True)
class GroupNorm(Layer):
    """(batch, channels, ...) normalised over groups of channels."""

    name: str
    groups: int
    channels: int
    eps: float = 1e-5

    def __post_init__(self) -> None:
        positive(self, "groups", "channels")
        check_eps(self)
        if self.channels % self.groups:
            raise ArgumentError(
                f"GroupNorm '{self.name}': {self.groups} groups do not divide {self.channels} channels"
            )

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, channels, ...) normalised."""
        with scope(x.graph, self.name):
            check_width(f"GroupNorm '{x.graph.current_scope}'", x, 1, self.channels)
            weight = parameter(x.graph, "weight", (self.channels,), x.dtype, "ones")
            bias = parameter(x.graph, "bias", (self.channels,), x.dtype, "zeros")
            return x.group_norm(weight, bias, self.groups, self.eps)


@dataclass(frozen=True)
class BatchNorm(Layer):
    """(batch, channels, ...) normalised by the mean and variance of each channel.

    In training these are the batch's own, and ``running_mean`` and ``running_var``, states of the graph, follow them by
    ``momentum``; otherwise they are the running ones. A training and an inference session that share parameters share these too.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("norm")
    >>> y = nn.BatchNorm("bn", 3)(g.input("x", (2, 3, 4, 4)), training=True)
    >>> list(g.states), len(g.updates)
    (['bn.running_mean', 'bn.running_var', 'bn.num_batches_tracked'], 3)
    """

    name: str
    channels: int
    eps: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        positive(self, "channels")
        check_eps(self)
        within(self, 0, 1, "momentum")

    def __call__(self, x: Node, *, training: bool = False) -> Node:
        """``x`` (batch, channels, ...) normalised."""
        graph, sizes = x.graph, (self.channels,)
        with scope(graph, self.name):
            check_width(f"BatchNorm '{graph.current_scope}'", x, 1, self.channels)
            weight = parameter(graph, "weight", sizes, x.dtype, "ones")
            bias = parameter(graph, "bias", sizes, x.dtype, "zeros")
            mean = state(graph, "running_mean", sizes, x.dtype)
            variance = state(graph, "running_var", sizes, x.dtype, 1.0)
            # Inference has no use for it, but passes it on from one checkpoint to the next.
            seen = state(graph, "num_batches_tracked", (), "i64")
            if not training:
                return x.batch_norm(mean, variance, weight, bias, self.eps)
            y, found_mean, found_variance = graph.batch_norm_training(x, weight, bias, self.eps)
            # PyTorch keeps the variance over n - 1, and normalises by that over n.
            elements = _elements(x)
            unbiased = found_variance * (elements / (elements - 1.0))
            for kept, new in ((mean, found_mean), (variance, unbiased)):
                followed = kept + self.momentum * (new.stop_gradient() - kept)
                graph.set_update(kept, followed)
            graph.set_update(seen, seen + 1)
            return y


def _elements(x: Node) -> int:
    """How many elements of ``x`` a channel has."""
    count = product([size for axis, size in enumerate(x.shape) if axis != 1])
    if not isinstance(count, int) or count < 2:
        raise ShapeError(
            f"BatchNorm '{x.graph.current_scope}' trains on at least two elements a channel and a known number of them, "
            f"but x is {x.dtype}{format_shape(x.shape)}"
        )
    return count
