"""What PyTorch computes for contractions, windows and linear solves."""

import string

import torch


def dot_general(a, b, a_contract, b_contract, a_batch=(), b_batch=()):
    left, right = list(string.ascii_lowercase[: a.ndim]), list(string.ascii_uppercase[: b.ndim])
    for i, j in zip((*a_contract, *a_batch), (*b_contract, *b_batch), strict=True):
        right[j] = left[i]
    batch = [left[i] for i in a_batch]
    rest = [letter for letter in left + right if (left + right).count(letter) == 1]
    equation = f"{''.join(left)},{''.join(right)}->{''.join(batch + rest)}"
    wide = a.dtype if a.is_floating_point() else torch.int32
    return torch.einsum(equation, a.to(wide), b.to(wide))


def per_axis(value, count):
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * count if len(values) == 1 else values


def windows(x, window, stride=1, dilation=1):
    count = len(window)
    lead = x.ndim - count
    steps, gaps = per_axis(stride, count), per_axis(dilation, count)
    for i in range(count):
        reach = gaps[i] * (window[i] - 1) + 1
        if x.shape[lead + i] < reach:
            shape = [*x.shape[: lead + count], *x.shape[lead + count :], window[i]]
            shape[lead + i] = 0
            x = x.new_zeros(shape)
        else:
            x = x.unfold(lead + i, reach, steps[i])[..., :: gaps[i]]
    return x


def fold(x, sizes, stride=1, dilation=1):
    """The gradient of taking windows, by PyTorch's own differentiation."""
    lead = x.shape[: x.ndim - 2 * len(sizes)]
    zeros = torch.zeros(*lead, *sizes, dtype=x.dtype, requires_grad=True)
    taken = windows(zeros, x.shape[x.ndim - len(sizes) :], stride, dilation)
    if taken.numel() == 0:
        return torch.zeros(*lead, *sizes, dtype=x.dtype)
    return torch.autograd.grad(taken, zeros, x)[0]


def solve(a, b):
    return torch.linalg.solve(a, b)


def triangular_solve(a, b, lower=True, unit_diagonal=False):
    return torch.linalg.solve_triangular(a, b, upper=not lower, unitriangular=unit_diagonal)


ROWS = {
    "dot_general": dot_general,
    "windows": windows,
    "fold": fold,
    "solve": solve,
    "triangular_solve": triangular_solve,
}
