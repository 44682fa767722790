"""A small U-Net of diffusion: residual blocks told the time, attention over pixels, down and up again."""

import numpy as np

from darner import Graph

from .writer import Spelling, writer


def unet(
    *,
    spelling: Spelling = "composite",
    variant: int = 0,
    loss: bool = True,
    batch: int = 2,
    size: int = 4,
    channels: int = 4,
    groups: int = 2,
    heads: int = 2,
    dtype: str = "f32",
) -> Graph:
    """The noise in ``noisy`` at each ``time``, or its squared error against ``noise``."""
    w = writer("unet", spelling, variant, dtype)
    graph = w.graph

    def block(name, x, out, moment):
        with graph.scope(name):
            y = w.conv("conv1", w.silu(w.group_norm("norm1", x, groups)), out, padding=1)
            shift = w.linear("time", w.silu(moment), out)
            y = y + shift.reshape((batch, out, 1, 1))
            y = w.conv("conv2", w.silu(w.group_norm("norm2", y, groups)), out, padding=1)
            return y + (x if x.shape[1] == out else w.conv("short", x, out, 1))

    def attended(name, x):
        _, wide, rows, columns = x.shape
        with graph.scope(name):
            h = w.group_norm("norm", x, groups).reshape((batch, wide, rows * columns))
            h = h.transpose((0, 2, 1))
            q, k, v = (w.linear(part, h, wide) for part in ("q", "k", "v"))
            y = w.linear("out", w.attention(q, k, v, heads, heads), wide)
            return x + y.transpose((0, 2, 1)).reshape(x.shape)

    noisy = w.input("noisy", (batch, 3, size, size))
    frequencies = graph.constant(np.exp(-np.arange(channels // 2)), dtype=dtype)
    angles = w.input("time", (batch,)).reshape((batch, 1)) * frequencies
    moment = w.linear("time1", graph.concat([angles.sin(), angles.cos()], 1), channels)
    moment = w.linear("time2", w.silu(moment), channels)
    high = block("down", w.conv("enter", noisy, channels, padding=1), channels, moment)
    low = w.conv("shrink", high, 2 * channels, stride=2, padding=1)
    low = attended("attention", block("middle", low, 2 * channels, moment))
    wide = w.conv("grow", w.upsample(low), channels, padding=1)
    last = block("up", graph.concat([wide, high], 1), channels, moment)
    result = w.conv("leave", w.silu(w.group_norm("norm", last, groups)), 3, padding=1)
    if loss:
        result = w.squared_error(result, w.input("noise", (batch, 3, size, size)))
    graph.set_outputs([result])
    return graph
