"""What PyTorch computes for pooling and resampling; their gradients by its autograd."""

import torch
import torch.nn.functional as F

from tests.conformance.rows_conv import around, pairs

MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def split_padding(x, padding, value):
    """PyTorch pads both sides alike: what one side has more is added beforehand."""
    both = pairs(padding, x.ndim - 2)
    if all(low == high for low, high in both):
        return x, tuple(low for low, _ in both)
    return around(x, padding, value), 0


def max_pool(x, window, stride=None, padding=0, dilation=1, ceil_mode=False):
    wide, equal = split_padding(x.double(), padding, -float("inf"))
    answer = MAX[x.ndim - 2](wide, window, stride, equal, dilation, ceil_mode)
    return answer.to(x.dtype)


def max_pool_backward(x, dy, *args, **kwargs):
    leaf = x.double().requires_grad_()
    answer = torch.autograd.grad(max_pool(leaf, *args, **kwargs), leaf, dy.double())[0]
    return answer.to(x.dtype)


def avg_pool(x, window, stride=None, padding=0, count_include_pad=True, ceil_mode=False):
    wide, equal = split_padding(x, padding, 0.0)
    return AVG[x.ndim - 2](wide, window, stride, equal, ceil_mode, count_include_pad)


def avg_pool_backward(dy, window, sizes, **kwargs):
    sizes = (sizes,) if isinstance(sizes, int) else sizes
    x = torch.zeros((*dy.shape[:2], *sizes), dtype=dy.dtype, requires_grad=True)
    return torch.autograd.grad(avg_pool(x, window, **kwargs), x, dy)[0]


def resized(mode):
    """``interpolate`` under a name of ours; PyTorch only has it for floats."""

    def resize(x, sizes=None, factor=None, **kwargs):
        count = x.ndim - 2
        name = mode[count] if isinstance(mode, dict) else mode
        if factor is not None:
            factor = (factor,) * count if isinstance(factor, int) else factor
            sizes = [size * n for size, n in zip(x.shape[2:], factor, strict=True)]
        if x.shape[0] == 0:  # which interpolate refuses
            sizes = (sizes,) * count if isinstance(sizes, int) else sizes
            return x.new_zeros((0, x.shape[1], *sizes))
        return F.interpolate(x.double(), sizes, mode=name, **kwargs).to(x.dtype)

    return resize


ROWS = {
    "max_pool": max_pool,
    "max_pool_backward": max_pool_backward,
    "avg_pool": avg_pool,
    "avg_pool_backward": avg_pool_backward,
    "adaptive_avg_pool": lambda x, sizes: ADAPTIVE[x.ndim - 2](x, sizes),
    "resize_nearest": resized("nearest"),
    "resize_linear": resized({1: "linear", 2: "bilinear", 3: "trilinear"}),
}
