"""What PyTorch computes for convolutions; their gradients by its autograd."""

import torch
import torch.nn.functional as F

CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def pairs(padding, count):
    """Padding as (low, high) for each axis, from any way to write it."""
    if isinstance(padding, int):
        padding = (padding,) * count
    return [(item, item) if isinstance(item, int) else tuple(item) for item in padding]


def around(x, padding, value=0.0):
    """``x`` with padding around its spatial axes; PyTorch counts axes from the last."""
    flat = [n for pair in reversed(pairs(padding, x.ndim - 2)) for n in pair]
    return F.pad(x, flat, value=value)


def conv(x, w, stride=1, padding=0, dilation=1, groups=1):
    convolve = CONV[x.ndim - 2]
    answer = convolve(
        around(x.double(), padding), w.double(), stride=stride, dilation=dilation, groups=groups
    )
    return answer if x.is_floating_point() else answer.to(torch.int32)


def conv_input_grad(dy, w, sizes, groups=1, **attrs):
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    x = torch.zeros((dy.shape[0], w.shape[1] * groups, *sizes), dtype=dy.dtype, requires_grad=True)
    return torch.autograd.grad(conv(x, w, groups=groups, **attrs), x, dy)[0]


def conv_weight_grad(x, dy, kernel, groups=1, **attrs):
    count = x.ndim - 2
    kernel = (kernel,) * count if isinstance(kernel, int) else kernel
    w = torch.zeros((dy.shape[1], x.shape[1] // groups, *kernel), dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(conv(x, w, groups=groups, **attrs), w, dy)[0]


def first(x):
    """[batch, *spatial, channels] as PyTorch has it."""
    return x.movedim(-1, 1)


def conv_last(x, w, **attrs):
    return conv(first(x), first(w), **attrs).movedim(1, -1)


def conv_last_input_grad(dy, w, sizes, **attrs):
    return conv_input_grad(first(dy), first(w), sizes, **attrs).movedim(1, -1)


def conv_last_weight_grad(x, dy, kernel, **attrs):
    return conv_weight_grad(first(x), first(dy), kernel, **attrs)


ROWS = {
    "conv": conv,
    "conv_input_grad": conv_input_grad,
    "conv_weight_grad": conv_weight_grad,
    "conv_last": conv_last,
    "conv_last_input_grad": conv_last_input_grad,
    "conv_last_weight_grad": conv_last_weight_grad,
}
