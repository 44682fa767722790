"""A U-Net with group norm, silu, attention in the middle, upsampling and skips, against PyTorch."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from darner import Graph
from tests.models.compare import assert_same_gradients, random_weights

CHANNELS, GROUPS = 8, 4


def build():
    graph = Graph("unet")
    noisy = graph.input("noisy", (2, 3, 8, 8), "f64")
    noise = graph.input("noise", (2, 3, 8, 8), "f64")
    time = graph.input("time", (2,), "f64")

    def conv(name, x, out, kernel=3, **options):
        w = graph.parameter(f"{name}.weight", (out, x.shape[1], kernel, kernel), "f64")
        b = graph.parameter(f"{name}.bias", (out,), "f64")
        return graph.conv(x, w, padding=kernel // 2, **options) + b.reshape((out, 1, 1))

    def norm(name, x, fused):
        weight = graph.parameter(f"{name}.weight", (x.shape[1],), "f64")
        bias = graph.parameter(f"{name}.bias", (x.shape[1],), "f64")
        if fused:
            return graph.group_norm_silu(x, weight, bias, GROUPS)
        return graph.group_norm(x, weight, bias, GROUPS).silu()

    def block(name, x, out, moment):
        with graph.scope(name):
            y = conv("conv1", norm("norm1", x, True), out)
            w = graph.parameter("time", (CHANNELS, out), "f64")
            y = y + (moment.silu() @ w).reshape((2, out, 1, 1))
            y = conv("conv2", norm("norm2", y, False), out)
            return y + (x if x.shape[1] == out else conv("short", x, out, 1))

    frequencies = np.exp(-np.arange(CHANNELS // 2) / 2)
    angles = time.reshape((2, 1)) * frequencies
    moment = graph.concat([angles.sin(), angles.cos()], 1)
    first = block("down", conv("enter", noisy, CHANNELS), CHANNELS, moment)
    low = block("middle", conv("shrink", first, 2 * CHANNELS, stride=2), 2 * CHANNELS, moment)
    flat = low.reshape((2, 2 * CHANNELS, 16)).transpose((0, 2, 1))
    seen = graph.full_attention(flat, flat, flat, 2, 2, CHANNELS)
    low = low + seen.transpose((0, 2, 1)).reshape(low.shape)
    wide = graph.upsample_2x(low)
    last = block("up", graph.concat([wide, first], 1), CHANNELS, moment)
    smooth = graph.resize_bilinear(last.avg_pool(2), (8, 8))
    graph.set_outputs([graph.mse_loss(conv("leave", last + smooth, 3), noise)])
    return graph


def reference(given, p):
    def conv(name, x, **options):
        w = p[f"{name}.weight"]
        return F.conv2d(x, w, p[f"{name}.bias"], padding=w.shape[-1] // 2, **options)

    def norm(name, x):
        return F.silu(F.group_norm(x, GROUPS, p[f"{name}.weight"], p[f"{name}.bias"], 1e-5))

    def block(name, x, moment):
        y = conv(f"{name}.conv1", norm(f"{name}.norm1", x))
        y = y + (F.silu(moment) @ p[f"{name}.time"])[:, :, None, None]
        y = conv(f"{name}.conv2", norm(f"{name}.norm2", y))
        return y + (conv(f"{name}.short", x) if f"{name}.short.weight" in p else x)

    frequencies = torch.exp(-torch.arange(CHANNELS // 2, dtype=torch.float64) / 2)
    angles = given["time"][:, None] * frequencies
    moment = torch.cat([angles.sin(), angles.cos()], 1)
    first = block("down", conv("enter", given["noisy"]), moment)
    low = block("middle", conv("shrink", first, stride=2), moment)
    heads = low.flatten(2).mT.unflatten(-1, (2, CHANNELS)).transpose(1, 2)
    scores = torch.softmax(heads @ heads.mT / math.sqrt(CHANNELS), -1) @ heads
    low = low + scores.transpose(1, 2).flatten(2).mT.reshape(low.shape)
    wide = F.interpolate(low, scale_factor=2, mode="nearest")
    last = block("up", torch.cat([wide, first], 1), moment)
    smooth = F.interpolate(F.avg_pool2d(last, 2), (8, 8), mode="bilinear")
    return F.mse_loss(conv("leave", last + smooth), given["noise"])


def test_unet():
    graph = build()
    rng = np.random.default_rng(2)
    inputs = {
        "noisy": rng.normal(size=(2, 3, 8, 8)),
        "noise": rng.normal(size=(2, 3, 8, 8)),
        "time": rng.uniform(0, 10, 2),
    }
    weights = random_weights(graph)
    assert_same_gradients(graph, inputs, weights, reference, ["noisy", "time", *weights])
