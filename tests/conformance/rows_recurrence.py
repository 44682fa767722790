"""What a loop computes for recurrences along an axis."""

import torch


def linear_recurrence(a, b, axis=-1, reverse=False):
    order = range(b.shape[axis])
    value = torch.zeros(b.select(axis, 0).shape, dtype=torch.float64) if b.shape[axis] else None
    rows = []
    for i in reversed(order) if reverse else order:
        value = a.select(axis, i) * value + b.select(axis, i)
        rows.append(value)
    if not rows:
        return b
    return torch.stack(rows[::-1] if reverse else rows, axis)


ROWS = {"linear_recurrence": linear_recurrence}
