"""What PyTorch and NumPy compute for reading, writing and sorting by index."""

import numpy as np
import torch


def gather(table, indices, axis=0):
    return np.take(table.numpy(), indices.numpy(), axis)


def scatter_add(indices, src, size, axis=0):
    axis = axis % (src.ndim - indices.ndim + 1)
    flat = src.reshape(*src.shape[:axis], -1, *src.shape[axis + indices.ndim :])
    if indices.ndim == 0:
        flat = src.unsqueeze(axis)
    result = torch.zeros(*src.shape[:axis], size, *src.shape[axis + indices.ndim :])
    return result.to(src.dtype).index_add(axis, indices.reshape(-1).long(), flat)


def scatter_add_along_axis(indices, src, size, axis=-1):
    shape = list(src.shape)
    shape[axis] = size
    return torch.zeros(shape, dtype=src.dtype).scatter_add(axis, indices.long(), src)


COMBINE = {
    "set": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": np.maximum,
    "min": np.minimum,
}


def scatter(x, indices, src, axis=0, mode="set"):
    result, axis = x.numpy().copy(), axis % x.ndim
    before = (slice(None),) * axis
    for place in np.ndindex(tuple(indices.shape)):
        target = (*before, int(indices[place]))
        result[target] = COMBINE[mode](result[target], src.numpy()[(*before, *place)])
    return result


def block(starts, sizes, whole):
    """Where a block lies once it has been moved inside."""
    first = [min(max(int(s), 0), n - size) for s, size, n in zip(starts, sizes, whole, strict=True)]
    return tuple(slice(a, a + size) for a, size in zip(first, sizes, strict=True))


def dynamic_update_slice(x, update, starts):
    result = x.clone()
    result[block(starts, update.shape, x.shape)] = update
    return result


def argsort(x, axis=-1, descending=False):
    return torch.argsort(x, dim=axis, descending=descending, stable=True).int()


def top_k(x, k, axis=-1):
    values, indices = torch.topk(x, k, axis)
    return values, indices.int()


ROWS = {
    "gather": gather,
    "scatter_add": scatter_add,
    "take_along_axis": lambda x, indices, axis=-1: torch.take_along_dim(x, indices.long(), axis),
    "scatter_add_along_axis": scatter_add_along_axis,
    "dynamic_slice": lambda x, starts, sizes: x[block(starts, sizes, x.shape)],
    "dynamic_update_slice": dynamic_update_slice,
    "sort": lambda x, axis=-1, descending=False: torch.sort(x, axis, descending).values,
    "argsort": argsort,
    "top_k": top_k,
    "embedding": lambda indices, table: torch.nn.functional.embedding(indices.long(), table),
    "scatter": scatter,
    "masked_fill": torch.masked_fill,
}
