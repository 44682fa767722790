"""What NumPy and PyTorch compute for quantised tensors; products of codes in integers of 64 bits."""

import numpy as np
import torch


def rounded(x, rounding):
    x = x.numpy()
    return np.round(x) if rounding == "even" else np.sign(x) * np.floor(np.abs(x) + 0.5)


def cut(codes, low=-128, high=127):
    return np.clip(codes, low, high).astype(np.int8)


def along(values, rank, axis):
    return np.asarray(values).reshape(-1, *(1,) * (rank - axis % rank - 1))


def quantize(x, scale, zero_point=0, *, rounding="even"):
    return cut(rounded(x / scale, rounding) + zero_point)


def quantize_per_channel(x, axis, scales, zero_points, *, rounding="even"):
    scale, point = (along(values, x.ndim, axis) for values in (scales, zero_points))
    return cut(rounded(x / torch.from_numpy(scale), rounding) + point)


def dequantize(q, scale, zero_point=0):
    return (q.numpy().astype(np.int64) - zero_point) * np.float32(scale).astype(np.float64)


def dequantize_per_channel(q, axis, scales, zero_points):
    point = along(zero_points, q.ndim, axis)
    scale = along(np.float32(scales), q.ndim, axis).astype(np.float64)
    return (q.numpy().astype(np.int64) - point) * scale


def fake_quantize(x, scale, zero_point=(0,), axis=None, *, bits=8):
    ends = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    scale, point = np.atleast_1d(scale), np.atleast_1d(zero_point)
    if axis is None:
        return torch.fake_quantize_per_tensor_affine(
            x.float(), float(scale[0]), int(point[0]), *ends
        ).double()
    points = np.broadcast_to(point, scale.shape).astype(np.int32)
    scales = torch.tensor(scale, dtype=torch.float32)
    return torch.fake_quantize_per_channel_affine(
        x.float(), scales, torch.from_numpy(points), axis % x.ndim, *ends
    ).double()


def requantised(sums, mult, out_zp):
    return cut(np.round(sums.astype(np.float32) * np.float32(mult)) + out_zp)


def q_matmul(x, w, bias, x_zp=0, w_zp=0, out_zp=0, mult=1.0):
    sums = (x.numpy().astype(np.int64) - x_zp) @ (w.numpy().astype(np.int64) - w_zp)
    return requantised(sums if bias is None else sums + bias.numpy(), mult, out_zp)


def q_conv2d(
    x,
    w,
    bias,
    kernel_size,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    x_zp=0,
    w_zp=0,
    out_zp=0,
    mult=1.0,
):
    assert tuple(w.shape[2:]) == tuple(kernel_size)
    pairs = np.broadcast_to(
        np.array(padding).reshape(-1, 1) if np.ndim(padding) == 1 else padding, (2, 2)
    )
    padded = torch.nn.functional.pad(x.double() - x_zp, (*pairs[1], *pairs[0]))
    if len(x) == 0:
        sums = np.zeros((0, len(w), *padded.shape[2:]))
    else:
        sums = torch.nn.functional.conv2d(
            padded, w.double() - w_zp, None, stride, 0, dilation, groups
        ).numpy()
    sums = sums if bias is None else sums + bias.numpy().reshape(-1, 1, 1)
    return requantised(sums, np.reshape(mult, (-1, 1, 1)), out_zp)


ROWS = {
    function.__name__: function
    for function in (
        quantize,
        quantize_per_channel,
        dequantize,
        dequantize_per_channel,
        fake_quantize,
        q_matmul,
        q_conv2d,
    )
}
