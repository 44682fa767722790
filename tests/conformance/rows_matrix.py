"""What PyTorch and NumPy compute for matrix products, linear layers and linear algebra."""

import numpy as np
import torch

ACTIVATIONS = {
    None: lambda x: x,
    "gelu": torch.nn.functional.gelu,
    "Silu": torch.nn.functional.silu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "relu": torch.relu,
}


def widened(x):
    """Sums of small integers are i32."""
    return x.int() if x.dtype == torch.int8 else x


def matmul(a, b):
    return torch.matmul(widened(a), widened(b))


def fused_matmul_bias_act(x, weight, bias, activation=None):
    return ACTIVATIONS[activation](torch.nn.functional.linear(x, weight.T, bias))


def fused_matmul(a, b, bias=None, residual=None, form="nn", activation=None):
    left, right = (a.mT if form == "tn" else a), (b.mT if form == "nt" else b)
    product = left @ right if bias is None else left @ right + bias
    result = ACTIVATIONS[activation](product)
    return result if residual is None else result + residual


def lora_matmul(x, w, a, b, scale=1.0):
    return x @ (w + scale * (a @ b))


def grouped_matmul(x, w, expert):
    rows = x.reshape(-1, x.shape[-1]) if x.numel() else x.reshape(expert.numel(), x.shape[-1])
    result = np.zeros((expert.numel(), w.shape[-1]))
    for i, chosen in enumerate(expert.reshape(-1).tolist()):
        result[i] = rows[i].numpy() @ w[chosen].numpy()
    return result.reshape((*expert.shape, w.shape[-1]))


def dense_solve(a, b):
    columns = b if b.ndim == a.ndim else b[..., None]
    return torch.linalg.inv(a).matmul(columns).reshape(b.shape)


ROWS = {
    "matmul": matmul,
    "matmul_at": lambda a, b: matmul(a.mT, b),
    "matmul_bt": lambda a, b: matmul(a, b.mT),
    "fused_matmul_bias_act": fused_matmul_bias_act,
    "fused_matmul": fused_matmul,
    "lora_matmul": lora_matmul,
    "grouped_matmul": grouped_matmul,
    "dense_solve": dense_solve,
    "batched_dense_solve": dense_solve,
    "inverse": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "slogdet": lambda a: tuple(torch.linalg.slogdet(a)),
}
