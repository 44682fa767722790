"""Rotary embeddings as multiplication of complex numbers, which is what a turn is."""

import numpy as np
import torch


def turned(x, turns, interleaved):
    """Pairs of the last axis, as complex numbers, times ``turns``; what has no turn stays."""
    half = turns.shape[-1]
    part, rest = x[..., : 2 * half], x[..., 2 * half :]
    if interleaved:
        pairs = torch.view_as_complex(part.reshape(*part.shape[:-1], half, 2).contiguous())
        part = torch.view_as_real(pairs * turns).flatten(-2)
    else:
        pairs = torch.complex(part[..., :half], part[..., half:]) * turns
        part = torch.cat([pairs.real, pairs.imag], -1)
    return torch.cat([part, rest], -1)


def by_head(x, turns, head_dim, layout, interleaved):
    """``turns`` has a row for each of the sequence; heads share it."""
    if layout == "hsd":
        return turned(x, turns, interleaved)
    heads = x if layout == "shd" else x.unflatten(-1, (-1, head_dim))
    return turned(heads, turns.unsqueeze(-2), interleaved).reshape(x.shape)


def angles(positions, n_rot, theta):
    pairs = torch.arange(n_rot // 2, dtype=torch.float64)
    return torch.as_tensor(positions, dtype=torch.float64)[..., None] * theta ** (
        -2 * pairs / n_rot
    )


def rope_tables(positions, n_rot, theta=10000.0, *, dtype=None):
    found = angles(positions, n_rot, theta)
    return found.cos(), found.sin()


def rope_with_tables(x, cos, sin, *, head_dim=None, n_rot=None, layout="flat", interleaved=False):
    head_dim = head_dim or x.shape[-1]
    half = (n_rot or head_dim) // 2
    turns = torch.complex(cos[..., :half], sin[..., :half])
    return by_head(x, turns, head_dim, layout, interleaved)


def rope(
    x,
    theta=10000.0,
    head_dim=None,
    *,
    n_rot=None,
    offset=0,
    layout="flat",
    interleaved=False,
    inverse=False,
    positions=None,
):
    head_dim = head_dim or x.shape[-1]
    if positions is None:
        positions = torch.arange(x.shape[-3 if layout == "shd" else -2])
    found = angles(positions + offset, n_rot or head_dim, theta) * (-1 if inverse else 1)
    turns = torch.polar(torch.ones_like(found), found)
    return by_head(x, turns, head_dim, layout, interleaved)


def axial_rope2d(x, end_x, end_y, head_dim, num_heads, theta=10000.0, repeat_factor=1):
    result = x.numpy().copy()
    for row in range(x.shape[-2]):
        place = row // repeat_factor
        for head in range(num_heads):
            for pair in range(head_dim // 2):
                quarter = head_dim // 4
                position = place % end_x if pair < quarter else place // end_x
                angle = position * theta ** (-4 * (pair % quarter) / head_dim)
                first = head * head_dim + 2 * pair
                a, b = x[..., row, first].numpy(), x[..., row, first + 1].numpy()
                result[..., row, first] = a * np.cos(angle) - b * np.sin(angle)
                result[..., row, first + 1] = b * np.cos(angle) + a * np.sin(angle)
    return result


ROWS = {
    "rope_tables": rope_tables,
    "rope_with_tables": rope_with_tables,
    "rope": rope,
    "axial_rope2d": axial_rope2d,
}
