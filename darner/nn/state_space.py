"""Layers that keep a state of fixed size: Mamba's mixer, with the parameters of HuggingFace's, by its names."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..graph.node import Node
from .base import Layer, check_width, parameter, positive, scope
from .convs import Conv1d
from .linear import Linear


@dataclass(frozen=True)
class Mamba(Layer):
    """Mamba's mixer: a short convolution over the steps before, a selective scan, and a gate.

    Every channel decays at first at the mean of the paces that Mamba begins with, and by steps of about 0.01. What a checkpoint of HuggingFace has for a mixer
    (``backbone.layers.0.mixer.A_log``) is here under the same names.

    Attributes:
        name: of its scope.
        width: of what it takes and gives.
        inner: channels of the scan; twice the width unless told.
        state_size: numbers that each of them remembers.
        kernel_size: steps that the convolution sees, a step's own among them.
        rank: of the product that gives each channel its step; ``width / 16`` unless told.
        bias: whether the first and the last product have one.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("mixer")
    >>> y = nn.Mamba("mixer", 32)(g.input("x", (2, 10, 32)))
    >>> y.shape, g.parameters["mixer.A_log"].shape, g.parameters["mixer.x_proj.weight"].shape
    ((2, 10, 32), (64, 16), (34, 64))
    """

    name: str
    width: int
    inner: int | None = None
    state_size: int = 16
    kernel_size: int = 4
    rank: int | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        positive(self, "width", "state_size", "kernel_size")
        positive(self, *(field for field in ("inner", "rank") if getattr(self, field) is not None))

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, sequence, width) as the same shape; a step sees those before it alone."""
        with scope(x.graph, self.name):
            check_width(f"Mamba '{x.graph.current_scope}'", x, 2, self.width)
            return self._mixed(x)

    def _mixed(self, x: Node) -> Node:
        inner = 2 * self.width if self.inner is None else self.inner
        rank = math.ceil(self.width / 16) if self.rank is None else self.rank
        both = Linear("in_proj", self.width, 2 * inner, bias=self.bias)(x)
        h, gate = both[..., :inner], both[..., inner:]
        before = ((self.kernel_size - 1, 0),)
        conv = Conv1d("conv1d", inner, inner, self.kernel_size, padding=before, groups=inner)
        h = conv(h.transpose((0, 2, 1))).transpose((0, 2, 1)).silu()
        size = self.state_size
        chosen = Linear("x_proj", inner, rank + 2 * size, bias=False)(h)
        b, c = chosen[..., rank : rank + size], chosen[..., rank + size :]
        start = math.log(math.expm1(0.01))
        step = Linear("dt_proj", rank, inner, init_bias=f"constant({start!r})")
        delta = step(chosen[..., :rank]).softplus()
        mean = math.log((size + 1) / 2)
        pace = parameter(x.graph, "A_log", (inner, size), x.dtype, f"constant({mean!r})")
        skip = parameter(x.graph, "D", (inner,), x.dtype, "ones")
        y = x.graph.selective_scan(h, delta, -pace.exp(), b, c) + h * skip
        return Linear("out_proj", inner, self.width, bias=self.bias)(y * gate.silu())
