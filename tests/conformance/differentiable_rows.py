"""Gradients of the rows of ``rows_*.py``, by PyTorch's autograd.

Most rows are made of PyTorch's functions and can be differentiated as they are. Rows that are themselves gradients
must keep their graph, and a few that are written in NumPy are written in PyTorch here.
"""

from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.conformance.rows_norms import by_channel
from tests.conformance.test_reference import ROWS, to_torch


def over_axes(function):
    """A reduction over several axes, one after another."""

    def row(x, axes=None, keepdims=False):
        axes = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
        for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
            x = function(x, axis, keepdims)
        return x.clone()

    return row


def gather(table, indices, axis=0):
    axis %= table.ndim
    picked = table.index_select(axis, indices.reshape(-1).long())
    return picked.reshape(*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])


COMBINE = {
    "set": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    # Of equal ones the first stays.
    "max": lambda old, new: torch.where(new > old, new, old),
    "min": lambda old, new: torch.where(new < old, new, old),
}


def scatter(x, indices, src, axis=0, mode="set"):
    """Slice by slice, so that every slice knows what it came from."""
    axis %= x.ndim
    slices = list(x.unbind(axis))
    new = src.movedim(tuple(range(axis, axis + indices.ndim)), tuple(range(indices.ndim)))
    flat = new.reshape(-1, *new.shape[indices.ndim :]) if new.numel() else ()
    for index, value in zip(indices.reshape(-1).tolist(), flat, strict=False):
        slices[index] = COMBINE[mode](slices[index], value)
    return torch.stack(slices, axis) if slices else x


def grouped_matmul(x, w, expert):
    return torch.einsum("...i,...io->...o", x, w[expert.long()])


def pad_with(x, padding, mode="reflect"):
    """Which element each place of the padded array shows, found by padding positions."""
    for axis, (low, high) in enumerate(pairs_of(padding, x.ndim)):
        size = x.shape[axis]
        places = torch.arange(-low, size + high)
        if mode == "edge":
            places = places.clamp(0, size - 1)
        elif mode == "wrap":
            places = places % size
        elif mode == "reflect":
            turn = max(2 * (size - 1), 1)
            places = (places % turn).minimum(turn - places % turn).clamp(0, size - 1)
        else:
            places = places % (2 * size)
            places = places.minimum(2 * size - 1 - places)
        x = x.index_select(axis, places)
    return x


def pairs_of(padding, rank):
    if isinstance(padding, int):
        return [(padding, padding)] * rank
    if all(isinstance(item, int) for item in padding):
        return [tuple(padding)] * rank
    return [(item, item) if isinstance(item, int) else tuple(item) for item in padding]


def axial_rope2d(x, end_x, end_y, head_dim, num_heads, theta=10000.0, repeat_factor=1):
    places = torch.arange(x.shape[-2]) // repeat_factor
    quarter = head_dim // 4
    frequencies = theta ** (-4 * torch.arange(quarter, dtype=torch.float64) / head_dim)
    angles = torch.cat(
        [(places % end_x)[:, None] * frequencies, (places // end_x)[:, None] * frequencies], -1
    )
    turns = torch.polar(torch.ones_like(angles), angles)[:, None]
    pairs = torch.view_as_complex(
        x.reshape(*x.shape[:-1], num_heads, head_dim // 2, 2).contiguous()
    )
    return torch.view_as_real(pairs * turns).reshape(x.shape)


def with_weight(row):
    """PyTorch cannot differentiate a norm that has a bias only."""

    def weighted(x, weight, bias, *args, **kwargs):
        weight = torch.ones(x.shape[1], dtype=x.dtype) if weight is None else weight
        return row(x, weight, bias, *args, **kwargs)

    return weighted


def batch_norm(x, mean, var, weight=None, bias=None, eps=1e-5):
    """PyTorch's own takes no gradient by the statistics."""
    mean, var = (by_channel(vector, x) for vector in (mean, var))
    y = (x - mean) / torch.sqrt(var + eps)
    y = y if weight is None else y * by_channel(weight, x)
    return y if bias is None else y + by_channel(bias, x)


def cosine_similarity(a, b, axis=-1, eps=1e-8):
    """PyTorch's own differentiates the lengths even where ``eps`` took their place."""
    a, b = torch.broadcast_tensors(a, b)
    lengths = [torch.linalg.vector_norm(x, dim=axis).clamp_min(eps) for x in (a, b)]
    return (a * b).sum(axis) / (lengths[0] * lengths[1])


IN_TORCH = {
    "group_norm": with_weight(ROWS["group_norm"]),
    "group_norm_silu": with_weight(ROWS["group_norm_silu"]),
    "batch_norm": batch_norm,
    "cosine_similarity": cosine_similarity,
    "sum": over_axes(torch.sum),
    "prod": over_axes(torch.prod),
    "gather": gather,
    "scatter": scatter,
    "slice": lambda x, starts, stops, steps=None: x[
        tuple(map(slice, starts, stops, steps or (1,) * x.ndim))
    ],
    "flip": lambda x, axes=None: x.flip(
        tuple(range(x.ndim)) if axes is None else (axes,) if isinstance(axes, int) else tuple(axes)
    ),
    "grouped_matmul": grouped_matmul,
    "pad_with": pad_with,
    "axial_rope2d": axial_rope2d,
}


@contextmanager
def keeping_graphs():
    """Rows that differentiate copies of their operands stay differentiable by the operands."""
    plain = torch.autograd.grad

    def differentiable(*args, **kwargs):
        return plain(*args, **{"create_graph": True, **kwargs})

    with (
        patch.object(torch.autograd, "grad", differentiable),
        patch.object(torch.Tensor, "detach", lambda self: self),
    ):
        yield


def row_gradients(op, case, moving, cotangents):
    """The gradient of an op's row by each moving operand, in float64.

    ``cotangents`` are those of its float results, in order.
    """
    leaves = {
        id(case.arrays[name]): to_torch(case.arrays[name]).requires_grad_() for name in moving
    }

    def placed(value):
        if isinstance(value, list):
            return [placed(item) for item in value]
        return leaves[id(value)] if id(value) in leaves else to_torch(value)

    row = IN_TORCH.get(op.name, ROWS[op.name])
    with keeping_graphs(), sdpa_kernel(SDPBackend.MATH):  # the others have no second derivative
        answer = row(*map(placed, case.args), **{k: placed(v) for k, v in case.kwargs.items()})
    results = answer if isinstance(answer, tuple | list) else [answer]
    floats = [result for result in results if result.is_floating_point()]
    pairs = [
        (result, torch.from_numpy(cotangent))
        for result, cotangent in zip(floats, cotangents, strict=True)
        if result.requires_grad
    ]
    if not pairs:
        return [torch.zeros_like(leaf).numpy(force=True) for leaf in leaves.values()]
    found = torch.autograd.grad(
        [result for result, _ in pairs],
        list(leaves.values()),
        [cotangent.reshape(result.shape) for result, cotangent in pairs],
        allow_unused=True,
        materialize_grads=True,
    )
    return [gradient.numpy(force=True) for gradient in found]
