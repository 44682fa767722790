"""What PyTorch computes for attention and its gradients.

Masks are written out key by key, in Python, and key heads are repeated. Rows that see nothing are let see
everything and multiplied by 0 at the end, which keeps PyTorch's own gradients free of NaN.
"""

import math

import torch
from torch.nn.functional import scaled_dot_product_attention


def visible_keys(shape, mask, causal, window, offset):
    batch, _, queries, keys = shape
    starts = [keys - queries] * batch
    if offset is not None:
        starts = [int(n) for n in offset.reshape(-1).expand(batch)]
    seen = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
    for b, start in enumerate(starts):
        for i in range(queries):
            for j in range(keys):
                here = start + i
                if causal and j > here:
                    seen[b, 0, i, j] = False
                if window is not None:
                    first, last = here - window + 1, here if causal else here + window - 1
                    seen[b, 0, i, j] &= first <= j <= last
    return (seen if mask is None else seen & mask).expand(shape)


def attention(
    q,
    k,
    v,
    mask=None,
    bias=None,
    *,
    layout="bhsd",
    causal=False,
    window=None,
    scale=None,
    softcap=None,
    offset=None,
):
    if layout == "bshd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    shape = (*q.shape[:3], k.shape[2])
    seen = visible_keys(shape, mask, causal, window, offset)
    some = seen.any(-1, keepdim=True)
    added = torch.zeros(shape, dtype=q.dtype) if bias is None else bias.expand(shape)
    added = added.masked_fill(~(seen | ~some), -math.inf)
    if softcap is None:
        y = scaled_dot_product_attention(q, k, v, attn_mask=added, scale=scale)
    else:
        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
        scores = softcap * torch.tanh(scores / softcap) + added
        y = torch.einsum("bhij,bhjd->bhid", torch.softmax(scores, -1), v)
    y = torch.where(some, y, 0.0) if shape[3] else torch.zeros(*shape[:3], v.shape[3])
    return y.transpose(1, 2) if layout == "bshd" else y


def attention_backward(q, k, v, dy, mask=None, bias=None, **options):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    if bias is not None:
        bias = bias.clone().requires_grad_()
        leaves.append(bias)
    y = attention(*leaves[:3], mask, bias, **options)
    if not y.requires_grad or not y.numel():  # PyTorch cannot go back from nothing
        return tuple(torch.zeros_like(x) for x in leaves)
    return torch.autograd.grad(y, leaves, dy)


def attention_statistics(
    q,
    k,
    v,
    mask=None,
    bias=None,
    *,
    layout="bhsd",
    causal=False,
    window=None,
    scale=None,
    softcap=None,
    offset=None,
):
    if layout == "bshd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    shape = (*q.shape[:3], k.shape[2])
    if not math.prod(shape):
        return torch.zeros(*q.shape[:2], 2, q.shape[2], dtype=q.dtype)
    seen = visible_keys(shape, mask, causal, window, offset)
    some = seen.any(-1)
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(~(seen | ~some.unsqueeze(-1)), -math.inf)
    top = scores.amax(-1)
    share = 1 / (scores - top.unsqueeze(-1)).exp().sum(-1)
    return torch.where(some.unsqueeze(2), torch.stack([top, share], 2), 0.0)


def cache_update(cache, new, position, axis=0):
    result, rows = cache.clone(), new.shape[axis]
    start = min(max(int(position), 0), cache.shape[axis] - rows)
    result.narrow(axis, start, rows).copy_(new)
    return result


ROWS = {
    "scaled_dot_attention": attention,
    "scaled_dot_attention_backward": attention_backward,
    "attention_statistics": attention_statistics,
    "cache_update": cache_update,
}
