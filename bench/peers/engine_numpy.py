"""The workloads by hand in NumPy, as far as somebody would write them: training of the small network, Llama's inference."""

from typing import Any

import numpy as np

from .place import CPU, Place
from .turns import Engine, NotOfferedError
from .workloads import Gemm, Llama, Mlp


class NumpyOps:
    """Functions of arrays; caches are (batch, kv_heads, sequence, head)."""

    def __init__(self, workload: Llama) -> None:
        self.cos, self.sin = workload.rotations()
        self.caches = {
            name: np.ascontiguousarray(self._by_head(value, workload.kv_heads))
            for name, value in workload.caches().items()
        }

    @staticmethod
    def _by_head(x: np.ndarray, heads: int) -> np.ndarray:
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    def _turned(self, x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, -1)
        return x * self.cos + np.concatenate([-second, first], -1) * self.sin

    def embedding(self, table: np.ndarray, indices: np.ndarray) -> np.ndarray:
        return table[indices]

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(eps)) * weight

    def swiglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return gate / (1 + np.exp(-gate)) * up

    def attention(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, sizes: Llama) -> np.ndarray:
        q, k = self._turned(self._by_head(q, sizes.heads)), self._by_head(k, sizes.kv_heads)
        hidden = np.triu(np.full((sizes.sequence,) * 2, -np.inf, np.float32), 1)
        return self._mixed(q, self._turned(k), self._by_head(v, sizes.kv_heads), hidden)

    def cached_attention(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, layer: int, sizes: Llama
    ) -> np.ndarray:
        keys, values = self.caches[f"layer{layer}.keys"], self.caches[f"layer{layer}.values"]
        last = slice(sizes.position, sizes.position + 1)
        keys[:, :, last] = self._turned(self._by_head(k, sizes.kv_heads))
        values[:, :, last] = self._by_head(v, sizes.kv_heads)
        return self._mixed(self._turned(self._by_head(q, sizes.heads)), keys, values, None)

    @staticmethod
    def _mixed(
        q: np.ndarray, k: np.ndarray, v: np.ndarray, hidden: np.ndarray | None
    ) -> np.ndarray:
        batch, heads, length, head = q.shape
        grouped = q.reshape(batch, k.shape[1], -1, length, head)
        scores = grouped @ k[:, :, None].swapaxes(-1, -2) * np.float32(head**-0.5)
        if hidden is not None:
            scores += hidden
        scores -= scores.max(-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(-1, keepdims=True)
        mixed = (scores @ v[:, :, None]).reshape(q.shape)
        return mixed.transpose(0, 2, 1, 3).reshape(batch, length, heads * head)


def prepare(workload: Any, threads: int, place: Place = CPU) -> Engine:
    """A step over arrays; its threads are those of the BLAS below NumPy."""
    if place != CPU:
        raise NotOfferedError("NumPy multiplies in f32 on processors")
    weights = dict(workload.values())
    inputs = workload.inputs()
    if isinstance(workload, Mlp):
        return Engine(_mlp(workload, weights, inputs), np.array, np.__version__)
    if not isinstance(workload, Llama | Gemm) or workload.trains:
        raise NotOfferedError("nobody would write this by hand")
    ops: Any = NumpyOps(workload) if isinstance(workload, Llama) else None
    return Engine(
        step=lambda: workload.result(ops, weights.__getitem__, inputs),
        read=np.asarray,
        version=np.__version__,
    )


def _mlp(workload: Mlp, weights: dict[str, np.ndarray], inputs: dict[str, np.ndarray]) -> Any:
    x, labels = inputs["x"], inputs["labels"]
    w1, b1, w2, b2 = weights.values()
    hot = np.eye(workload.sizes[2], dtype=np.float32)[labels]
    rate = np.float32(workload.rate)

    def train() -> float:
        hidden = x @ w1
        hidden += b1
        np.maximum(hidden, 0, out=hidden)
        logits = hidden @ w2 + b2
        logits -= logits.max(1, keepdims=True)
        exponentials = np.exp(logits)
        sums = exponentials.sum(1, keepdims=True)
        loss = float((np.log(sums) - (logits * hot).sum(1, keepdims=True)).mean())
        d_logits = (exponentials / sums - hot) / np.float32(len(x))
        d_hidden = d_logits @ w2.T
        d_hidden *= hidden > 0
        w2[...] -= rate * (hidden.T @ d_logits)
        b2[...] -= rate * d_logits.sum(0)
        w1[...] -= rate * (x.T @ d_hidden)
        b1[...] -= rate * d_hidden.sum(0)
        return loss

    return train
