"""What loops over steps compute for state spaces, as mambapy and transformers write them; gradients by PyTorch's autograd."""

import torch


def selective_scan(x, delta, a, b, c, state_size=None):
    decay = torch.exp(delta.unsqueeze(-1) * a)
    drive = (delta * x).unsqueeze(-1) * b.unsqueeze(2)
    h = torch.zeros(x.shape[0], x.shape[2], a.shape[1], dtype=x.dtype)
    rows = []
    for t in range(x.shape[1]):
        h = decay[:, t] * h + drive[:, t]
        rows.append((h * c[:, t].unsqueeze(1)).sum(-1))
    return torch.stack(rows, 1) if rows else x * delta


def delta_rule(q, k, v, g, beta, state=None):
    batch, steps, heads, width = q.shape
    matrix = torch.zeros(batch, heads, width, width, dtype=q.dtype) if state is None else state
    rows = []
    for t in range(steps):
        matrix = matrix * g[:, t].exp()[..., None, None]
        known = torch.einsum("bhkv,bhk->bhv", matrix, k[:, t])
        written = (v[:, t] - known) * beta[:, t].unsqueeze(-1)
        matrix = matrix + k[:, t].unsqueeze(-1) * written.unsqueeze(-2)
        rows.append(torch.einsum("bhkv,bhk->bhv", matrix, q[:, t]) / max(width, 1) ** 0.5)
    return torch.stack(rows, 1) if rows else q * v, matrix


def gradients(function, operands, cotangents):
    """Those by all operands, also where something has no elements or does not matter."""
    leaves = [item.double().requires_grad_() for item in operands]
    answers = function(*leaves)
    answers = answers if isinstance(answers, tuple) else (answers,)
    given = [
        torch.zeros_like(answer) if weight is None else weight
        for answer, weight in zip(answers, cotangents, strict=False)
    ]
    found = torch.autograd.grad(answers[: len(given)], leaves, given, allow_unused=True)
    return [
        torch.zeros_like(leaf) if item is None else item
        for leaf, item in zip(leaves, found, strict=True)
    ]


def selective_scan_backward(x, delta, a, b, c, dy, state_size=None):
    return gradients(selective_scan, (x, delta, a, b, c), [dy])


def gated_delta_net_backward(q, k, v, g, beta, dy, state=None, dstate=None, state_size=None):
    operands = (q, k, v, g, beta) if state is None else (q, k, v, g, beta, state)
    return gradients(delta_rule, operands, [dy] if state is None else [dy, dstate])


ROWS = {
    "selective_scan": selective_scan,
    "selective_scan_backward": selective_scan_backward,
    "gated_delta_net": lambda q, k, v, g, beta, state_size=None: delta_rule(q, k, v, g, beta)[0],
    "gated_delta_net_final": lambda q, k, v, g, beta, state, state_size=None: delta_rule(
        q, k, v, g, beta, state
    ),
    "gated_delta_net_backward": gated_delta_net_backward,
}
