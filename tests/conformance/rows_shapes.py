"""What PyTorch and NumPy compute for ops that move elements or make them from a rule."""

import numpy as np
import torch


def slice_(x, starts, stops, steps=None):
    steps = steps or (1,) * x.ndim
    return x.numpy()[tuple(map(slice, starts, stops, steps))]


def pad(x, padding, value=0.0, interior=None):
    pairs = np.broadcast_to(padding, (x.ndim, 2)) if np.ndim(padding) < 2 else padding
    for axis, gap in enumerate((interior,) if isinstance(interior, int) else interior or ()):
        between = torch.full_like(x, value)
        joined = torch.stack([x, *[between] * gap], axis + 1).flatten(axis, axis + 1)
        x = joined.narrow(axis, 0, joined.shape[axis] - gap)
    # torch takes the last axis first, and crops where a number is negative.
    flat = [int(n) for pair in reversed(list(pairs)) for n in pair]
    return torch.nn.functional.pad(x, flat, value=value)


def iota(shape, axis=0, dtype="i32"):
    return np.indices(shape)[axis]


def pad_with(x, padding, mode="reflect"):
    return np.pad(x.numpy(), padding, mode)


def one_hot(indices, depth, dtype="f32"):
    rows = np.zeros((*indices.shape, depth))
    for place in np.ndindex(tuple(indices.shape)):
        if 0 <= indices[place] < depth:
            rows[(*place, int(indices[place]))] = 1
    return rows.astype(np.bool_) if dtype == "bool" else rows


ROWS = {
    "reshape": torch.reshape,
    "transpose": lambda x, perm=None: x.permute(perm or tuple(range(x.ndim))[::-1]),
    "broadcast_to": torch.broadcast_to,
    "slice": slice_,
    "pad": pad,
    "concat": lambda inputs, axis=0: torch.cat(inputs, axis),
    "flip": lambda x, axes=None: np.flip(x.numpy(), axes).copy(),
    "iota": iota,
    "pad_with": pad_with,
    "tril": lambda x, k=0: torch.tril(x, k),
    "triu": lambda x, k=0: torch.triu(x, k),
    "one_hot": one_hot,
}
