"""What PyTorch computes for softmax and its kin."""

import torch


def _masked_softmax(x, mask, axis=-1):
    mask = mask.expand(x.shape)
    if x.numel() == 0:
        return x
    plain = torch.softmax(x.masked_fill(~mask, -torch.inf), axis)
    return plain.masked_fill(~mask.any(axis, keepdim=True), 0.0)


ROWS = {
    "softmax": lambda x, axis=-1: torch.softmax(x, axis),
    "log_softmax": lambda x, axis=-1: torch.log_softmax(x, axis),
    "masked_softmax": _masked_softmax,
    "softmax_backward": lambda y, dy, axis=-1: torch.ops.aten._softmax_backward_data(
        dy, y, axis, torch.float64
    ),
    "log_softmax_backward": lambda y, dy, axis=-1: torch.ops.aten._log_softmax_backward_data(
        dy, y, axis, torch.float64
    ),
}
