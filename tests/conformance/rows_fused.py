"""What PyTorch computes for contractions with what stands around them."""

import torch
import torch.nn.functional as F

from .rows_conv import around, conv
from .rows_matrix import ACTIVATIONS


def norm_matmul(x, gamma, w, eps=1e-5, form="nn"):
    normal = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * gamma
    return normal @ (w.mT if form == "nt" else w)


def fused_conv(x, w, bias=None, residual=None, activation=None, **attrs):
    result = conv(x, w, **attrs)
    if bias is not None:
        result = result + bias.reshape((-1, *(1,) * (x.ndim - 2)))
    result = ACTIVATIONS[activation](result)
    return result if residual is None else result + residual


FROM_KERNEL = [[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]


def winograd_weight(w):
    kernel = torch.tensor(FROM_KERNEL, dtype=w.dtype)
    return torch.einsum("ar,oirs,bs->abio", kernel, w, kernel)


def winograd_conv(x, u, padding=0):
    # Any u, also one that no kernel gives: tile by tile, as the definition says.
    x = around(x, padding)
    batch, _, height, width = x.shape
    result = x.new_zeros((batch, u.shape[3], height - 2, width - 2))
    image = torch.tensor([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], dtype=x.dtype)
    back = torch.tensor([[1, 1, 1, 0], [0, 1, -1, -1]], dtype=x.dtype)
    x = F.pad(x, (0, width % 2, 0, height % 2))
    for i in range(0, height - 2, 2):
        for j in range(0, width - 2, 2):
            tile = image @ x[:, :, i : i + 4, j : j + 4] @ image.T
            product = torch.einsum("ncab,abco->noab", tile, u)
            rows, columns = min(2, height - 2 - i), min(2, width - 2 - j)
            place = back @ product @ back.T
            result[:, :, i : i + rows, j : j + columns] = place[:, :, :rows, :columns]
    return result


ROWS = {
    "norm_matmul": norm_matmul,
    "fused_conv": fused_conv,
    "winograd_weight": winograd_weight,
    "winograd_conv": winograd_conv,
}
