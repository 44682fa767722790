"""What PyTorch computes for each normalisation, and by its autograd for each derivative."""

import torch
import torch.nn.functional as F

from tests.conformance.rows_activations import gradients


def layer_norm(x, weight=None, bias=None, eps=1e-5, axis=-1):
    shape = x.shape[axis:]
    if 0 in shape:
        return torch.zeros_like(x)  # PyTorch refuses to normalise nothing
    return F.layer_norm(x, shape, weight, bias, eps)


def rms_norm(x, weight=None, bias=None, eps=1e-5, axis=-1):
    if 0 in x.shape[axis:]:
        return torch.zeros_like(x)
    y = F.rms_norm(x, x.shape[axis:], weight, eps)
    return y if bias is None else y + bias


def layer_norm2d(x, weight=None, bias=None, eps=1e-5):
    return layer_norm(x.movedim(1, -1), weight, bias, eps).movedim(-1, 1)


def group_norm(x, weight, bias, num_groups, eps=1e-5):
    if x.numel() == 0:
        return torch.zeros_like(x) + 0 * sum(v.sum() for v in (x, weight, bias) if v is not None)
    return F.group_norm(x, num_groups, weight, bias, eps)


def by_channel(vector, x):
    return vector.reshape(-1, *[1] * (x.ndim - 2))


def instance_norm(x, weight=None, bias=None, eps=1e-5):
    if x.numel() == 0:
        return torch.zeros_like(x)
    return F.instance_norm(x, weight=weight, bias=bias, eps=eps)


def batch_norm(x, mean, var, weight=None, bias=None, eps=1e-5):
    return F.batch_norm(x, mean, var, weight, bias, training=False, eps=eps)


def batch_norm_training(x, weight=None, bias=None, eps=1e-5):
    y = F.batch_norm(x, None, None, weight, bias, training=True, eps=eps) if x.numel() else x
    axes = [i for i in range(x.ndim) if i != 1]
    mean = x.mean(axes)
    return y, mean, (x - by_channel(mean, x)).square().mean(axes)


def l2_normalize(x, axis=-1, eps=1e-12):
    return F.normalize(x, dim=axis, eps=eps)


def residual(norm):
    def row(x, residual, bias, gamma, beta=None, eps=1e-5):
        total = x + residual if bias is None else x + residual + bias
        return norm(total, gamma, beta, eps)

    return row


def features(x, axis, *vectors):
    """Absent weights and biases as what they stand for, so that they have a gradient."""
    ones = torch.ones(x.shape[axis:], dtype=x.dtype)
    return [fill * ones if v is None else v for fill, v in zip((1, 0), vectors, strict=True)]


def channels(x, *vectors):
    ones = torch.ones(x.shape[1], dtype=x.dtype)
    return [fill * ones if v is None else v for fill, v in zip((1, 0), vectors, strict=True)]


def layer_norm_gradient(index):
    def row(x, gamma, dy, axis=-1, eps=1e-5):
        operands = [x, *features(x, axis, gamma, None)]
        return gradients(lambda *v: written_layer_norm(*v, eps, axis), operands, dy)[index]

    return row


def written_layer_norm(x, gamma, beta, eps, axis):
    if x.numel() == 0:
        return x + gamma + beta
    return layer_norm(x, gamma, beta, eps, axis)


def rms_norm_gradient(index):
    def row(x, gamma, beta, dy, axis=-1, eps=1e-5):
        operands = [x, *features(x, axis, gamma, beta)]
        return gradients(lambda *v: rms_norm(*v, eps, axis), operands, dy)[index]

    return row


def group_norm_gradient(index, x, gamma, beta, dy, num_groups, eps=1e-5):
    operands = [x, *channels(x, gamma, beta)]
    return gradients(lambda *v: group_norm(*v, num_groups, eps), operands, dy)[index]


def batch_norm_backward(x, weight, dy, eps=1e-5):
    def function(x, weight, bias):
        if x.numel() == 0:
            return x + by_channel(weight + bias, x)
        return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)

    return gradients(function, [x, *channels(x, weight, None)], dy)


ROWS = {
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "fused_residual_ln": residual(layer_norm),
    "fused_residual_rms_norm": residual(rms_norm),
    "l2_normalize": l2_normalize,
    "layer_norm2d": layer_norm2d,
    "group_norm": group_norm,
    "group_norm_silu": lambda *args, **kwargs: F.silu(group_norm(*args, **kwargs)),
    "instance_norm": instance_norm,
    "batch_norm": batch_norm,
    "batch_norm_training": batch_norm_training,
    "layer_norm_backward_input": layer_norm_gradient(0),
    "layer_norm_backward_gamma": lambda x, dy, gamma_shape=None, axis=-1, eps=1e-5: (
        layer_norm_gradient(1)(x, None, dy, axis, eps)
    ),
    "layer_norm_backward_beta": lambda dy, beta_shape=None, axis=-1: layer_norm_gradient(2)(
        torch.zeros_like(dy), None, dy, axis
    ),
    "rms_norm_backward_input": rms_norm_gradient(0),
    "rms_norm_backward_gamma": rms_norm_gradient(1),
    "rms_norm_backward_beta": rms_norm_gradient(2),
    "group_norm_backward_input": lambda *args, **kwargs: group_norm_gradient(0, *args, **kwargs),
    "group_norm_backward_gamma": lambda x, dy, gamma_shape=None, num_groups=1, eps=1e-5: (
        group_norm_gradient(1, x, None, None, dy, num_groups, eps)
    ),
    "group_norm_backward_beta": lambda x, dy, beta_shape=None, num_groups=1, eps=1e-5: (
        group_norm_gradient(2, x, None, None, dy, num_groups, eps)
    ),
    "batch_norm_backward": batch_norm_backward,
}
