"""What PyTorch and NumPy compute for reductions, arg-reductions and running reductions."""

import warnings

import numpy as np
import torch


def over_axes(function):
    """A NumPy reduction called as darner's are."""
    return lambda x, axes=None, keepdims=False: function(x.numpy(), axis=axes, keepdims=keepdims)


def all_axes(x, axes):
    return tuple(range(x.ndim)) if axes is None else axes


def moment(function):
    def row(x, axes=None, keepdims=False, correction=0):
        if x.ndim == 0:
            return torch.zeros_like(x)
        with warnings.catch_warnings(action="ignore"):  # about too few elements
            return function(x.double(), all_axes(x, axes), correction=correction, keepdim=keepdims)

    return row


def norm(x, axes=None, keepdims=False, order=2):
    return torch.linalg.vector_norm(x.double(), order, axes, keepdims)


def logsumexp(x, axes=None, keepdims=False):
    return x if x.ndim == 0 else torch.logsumexp(x, all_axes(x, axes), keepdims)


def arg(function):
    def row(x, axis=None, keepdims=False):
        return function(x, axis, keepdims).int()

    return row


def cumsum(x, axis=-1, exclusive=False, reverse=False):
    x = x.flip(axis) if reverse else x
    total = torch.cumsum(x, axis)
    total = total - x.to(total.dtype) if exclusive else total
    return total.flip(axis) if reverse else total


def running(function):
    def row(x, axis=-1, reverse=False):
        x = x.flip(axis) if reverse else x
        answer = function(x, axis)
        values = answer if isinstance(answer, torch.Tensor) else answer.values
        return values.flip(axis) if reverse else values

    return row


ROWS = {
    "sum": over_axes(np.sum),
    "prod": over_axes(np.prod),
    "max": lambda x, axes=None, keepdims=False: torch.amax(x, all_axes(x, axes), keepdims),
    "min": lambda x, axes=None, keepdims=False: torch.amin(x, all_axes(x, axes), keepdims),
    "any": over_axes(np.any),
    "all": over_axes(np.all),
    "argmax": arg(torch.argmax),
    "argmin": arg(torch.argmin),
    "cumsum": cumsum,
    "cumprod": running(torch.cumprod),
    "cummax": running(torch.cummax),
    "cummin": running(torch.cummin),
    "mean": lambda x, axes=None, keepdims=False: torch.mean(x.double(), axes, keepdims),
    "var": moment(torch.var),
    "std": moment(torch.std),
    "norm": norm,
    "logsumexp": logsumexp,
}
