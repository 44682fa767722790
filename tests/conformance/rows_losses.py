"""What PyTorch computes for each loss. It has classes on axis 1, and scalars without axes."""

import torch
import torch.nn.functional as F


def _scalar(function):
    """PyTorch's loss with our shape: [1] for a mean or a sum."""

    def row(*args, **kwargs):
        losses = function(*args, **kwargs)
        return losses if kwargs.get("reduction") == "none" else losses.reshape(1)

    return row


def _classes_second(scores):
    """[..., C] as PyTorch wants it: [N, C, ...], or [C] alone."""
    return scores if scores.ndim == 1 else scores.movedim(-1, 1)


def _kl_div(log_probs, target, *, reduction="mean", **options):
    losses = F.kl_div(log_probs, target, reduction="none", **options)
    if reduction == "batchmean":  # PyTorch warns that the plain mean is not this one
        return losses.sum() / len(losses)
    return {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]


def _nll(log_probs, labels, **options):
    return F.nll_loss(_classes_second(log_probs), labels.long(), **options)


def _cross_entropy(logits, labels, **options):
    if labels.shape == logits.shape:
        return F.cross_entropy(logits, labels.double(), **options)
    return F.cross_entropy(_classes_second(logits), labels.long(), **options)


def _per_row(logits, labels):
    return F.cross_entropy(_classes_second(logits), labels.long(), reduction="none")


def _per_row_backward(logits, labels, d_loss):
    logits = logits.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_per_row(logits, labels), logits, d_loss)
    return gradient


ROWS = {
    "mse_loss": _scalar(F.mse_loss),
    "l1_loss": _scalar(F.l1_loss),
    "huber_loss": _scalar(lambda a, b, **options: F.huber_loss(a, b, **options)),
    "smooth_l1_loss": _scalar(lambda a, b, **options: F.smooth_l1_loss(a, b, **options)),
    "bce_loss": _scalar(F.binary_cross_entropy),
    "bce_with_logits_loss": _scalar(
        lambda logits, labels, **options: F.binary_cross_entropy_with_logits(
            logits, labels.double(), **options
        )
    ),
    "kl_div": _scalar(_kl_div),
    "nll_loss": _scalar(_nll),
    "cross_entropy_loss": _scalar(_cross_entropy),
    "softmax_cross_entropy_with_logits": _per_row,
    "softmax_cross_entropy_backward": _per_row_backward,
    "cosine_similarity": lambda a, b, axis=-1, eps=1e-8: F.cosine_similarity(a, b, axis, eps),
}
