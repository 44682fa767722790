"""What gguf and ml_dtypes read in quantised weights, and PyTorch's products with that."""

import ml_dtypes
import numpy as np
import pytest
import torch


def packed(codes, scheme):
    """ggml's blocks, by its own package."""
    gguf = pytest.importorskip("gguf", reason="pip install -r requirements/dev.lock")
    codes = np.ascontiguousarray(codes.numpy())
    kind = gguf.GGMLQuantizationType[scheme.upper()]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    shape = (*codes.shape[:-1], codes.shape[-1] // size * elements)
    if not codes.size:
        return torch.zeros(shape, dtype=torch.float64)
    if scheme == "q8_k":  # which it has no reader for: an f32, and codes of 8 bits
        blocks = codes.reshape(-1, size)
        scale = np.ascontiguousarray(blocks[:, :4]).view("<f4")
        found = (scale * blocks[:, 4:260].view(np.int8)).reshape(shape)
    else:
        found = gguf.quants.dequantize(codes, kind)
    return torch.from_numpy(found.astype(np.float64))


def floats(codes, kind):
    """Bytes as floats of 8 bits, or the halves of bytes as those of 4."""
    return torch.from_numpy(np.ascontiguousarray(codes).view(kind).astype(np.float64))


def nibbles(codes):
    codes = codes.numpy()
    return np.stack([codes & 15, codes >> 4], -1).reshape(*codes.shape[:-1], -1)


def by_blocks(beside, block, rows):
    return beside.repeat_interleave(block, -2)[..., :rows, :].double()


def decoded(codes, scales, offsets, scheme):
    name, _, size = scheme.partition("(")
    if name == "fp8_e4m3":
        return floats(codes.numpy(), ml_dtypes.float8_e4m3fn)
    if name == "fp8_e5m2":
        return floats(codes.numpy(), ml_dtypes.float8_e5m2)
    if name == "nvfp4_block":
        fine = floats(scales.numpy(), ml_dtypes.float8_e4m3fn)
        values = torch.from_numpy(nibbles(codes).view(ml_dtypes.float4_e2m1fn).astype(np.float64))
        return values * by_blocks(fine, 16, codes.shape[-2])
    if scales is None:
        return packed(codes, scheme)
    rows, block = codes.shape[-2], int(size[:-1])
    wide = codes if codes.dtype is torch.int8 else torch.from_numpy(nibbles(codes))
    wide = wide.double()
    if offsets is not None:
        wide = wide - by_blocks(offsets, block, rows)
    return wide * by_blocks(scales, block, rows)


def dequantize_blocks(codes, scales=None, offsets=None, *, scheme, to=None):
    return decoded(codes, scales, offsets, scheme)


def dequant_matmul(x, w_q, scale, zp, scheme):
    x = x.double()
    if w_q.ndim == 1:
        w_q = w_q.reshape(x.shape[-1], -1)
    if scheme == "nvfp4_block":
        return x @ decoded(w_q, scale, None, scheme) * (1 if zp is None else zp)
    if scheme.startswith("fp8"):
        return x @ decoded(w_q, None, None, scheme) * (1 if scale is None else scale)
    if scale is None:
        return x @ packed(w_q, scheme).T
    return x @ decoded(w_q, scale, zp, scheme)


def dequant_matmul_packed(x, packed_w, scheme):
    if packed_w.ndim == 1:
        elements, size = {"q4_0": (32, 18)}[scheme]
        packed_w = packed_w.reshape(-1, x.shape[-1] // elements * size)
    return x.double() @ packed(packed_w, scheme).T


def dequant_matmul_nvfp4(x, w_q, block_scales, global_scale=None):
    return dequant_matmul(x, w_q, block_scales, global_scale, "nvfp4_block")


def dequant_grouped_matmul(x, packed_w, expert, scheme):
    return torch.einsum("...k,...nk->...n", x.double(), packed(packed_w, scheme)[expert.long()])


def dequant_moe_weights(packed_w, scheme):
    return packed(packed_w, scheme).swapaxes(1, 2)


ROWS = {
    function.__name__: function
    for function in (
        dequantize_blocks,
        dequant_matmul,
        dequant_matmul_packed,
        dequant_matmul_nvfp4,
        dequant_grouped_matmul,
        dequant_moe_weights,
    )
}
