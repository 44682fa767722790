"""The workloads in JAX: one ``jit`` for the whole step, weights and caches donated.

On a GPU in ``bf16`` attention is cuDNN's; training casts its weights within the step, inference holds them in bf16.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .place import CPU, Place
from .turns import Engine, NotOfferedError
from .workloads import Llama

TYPES = {"bf16": jnp.bfloat16, "f16": jnp.float16}
PRODUCTS = {"f32": "highest", "tf32": "tensorfloat32"}
BETAS, EPSILON = (0.9, 0.999), 1e-8
DECAYS = {"adam": 0.0, "adamw": 0.01}


class JaxOps:
    """Functions of arrays. Images have their channels last; ``caches`` takes what was written."""

    def __init__(self, workload: Any, caches: dict[str, jax.Array]) -> None:
        self.caches = caches
        if isinstance(workload, Llama):
            self.cos, self.sin = (jnp.asarray(table) for table in workload.rotations())
            self.scale = workload.head**-0.5

    @staticmethod
    def _by_head(x: jax.Array, heads: int) -> jax.Array:
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    def _turned(self, x: jax.Array) -> jax.Array:
        first, second = jnp.split(x, 2, -1)
        cos, sin = self.cos.astype(x.dtype), self.sin.astype(x.dtype)
        return x * cos + jnp.concatenate([-second, first], -1) * sin

    def embedding(self, table: jax.Array, indices: jax.Array) -> jax.Array:
        return table[indices]

    def rms_norm(self, x: jax.Array, weight: jax.Array, eps: float) -> jax.Array:
        wide = x.astype(jnp.float32)
        root = jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + eps)
        return (wide * root).astype(x.dtype) * weight

    def swiglu(self, gate: jax.Array, up: jax.Array) -> jax.Array:
        return jax.nn.silu(gate) * up

    def attention(self, q: jax.Array, k: jax.Array, v: jax.Array, sizes: Llama) -> jax.Array:
        q, k = self._turned(self._by_head(q, sizes.heads)), self._by_head(k, sizes.kv_heads)
        if q.dtype in TYPES.values() and jax.default_backend() == "gpu":
            by_row = (x.transpose(0, 2, 1, 3) for x in (q, self._turned(k)))
            values = v.reshape(*v.shape[:2], sizes.kv_heads, -1)
            mixed = jax.nn.dot_product_attention(
                *by_row, values, is_causal=True, implementation="cudnn"
            )
            return mixed.reshape(*mixed.shape[:2], -1)
        visible = jnp.tril(jnp.ones((sizes.sequence, sizes.sequence), bool))
        return self._mixed(q, self._turned(k), self._by_head(v, sizes.kv_heads), visible)

    def cached_attention(
        self, q: jax.Array, k: jax.Array, v: jax.Array, layer: int, sizes: Llama
    ) -> jax.Array:
        new = {"keys": self._turned(self._by_head(k, sizes.kv_heads))}
        new["values"] = self._by_head(v, sizes.kv_heads)
        place = (0, 0, sizes.position, 0)
        for kind, value in new.items():
            name = f"layer{layer}.{kind}"
            self.caches[name] = jax.lax.dynamic_update_slice(self.caches[name], value, place)
        keys, values = (self.caches[f"layer{layer}.{kind}"] for kind in new)
        return self._mixed(self._turned(self._by_head(q, sizes.heads)), keys, values, None)

    @staticmethod
    def _mixed(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array | None) -> jax.Array:
        batch, heads, length, head = q.shape
        grouped = q.reshape(batch, k.shape[1], -1, length, head)
        scores = jnp.einsum("bkgtd,bksd->bkgts", grouped, k) * head**-0.5
        if visible is not None:
            scores = jnp.where(visible, scores, -jnp.inf)
        mixed = jnp.einsum("bkgts,bksd->bkgtd", jax.nn.softmax(scores, -1), v)
        return mixed.reshape(q.shape).transpose(0, 2, 1, 3).reshape(batch, length, heads * head)

    def relu(self, x: jax.Array) -> jax.Array:
        return jax.nn.relu(x)

    def conv(self, x: jax.Array, weight: jax.Array, stride: int) -> jax.Array:
        margin = weight.shape[0] // 2
        return jax.lax.conv_general_dilated(
            x,
            weight,
            (stride, stride),
            [(margin, margin)] * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )

    def max_pool(self, x: jax.Array) -> jax.Array:
        sides = ((0, 0), (1, 1), (1, 1), (0, 0))
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), sides)

    def channels(self, bias: jax.Array) -> jax.Array:
        return bias

    def batch_norm(self, x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
        centered = x - x.mean((0, 1, 2))
        variance = (centered * centered).mean((0, 1, 2))
        return centered * jax.lax.rsqrt(variance + eps) * weight + bias

    def mean_of_images(self, x: jax.Array) -> jax.Array:
        return x.mean((1, 2))

    def cross_entropy(self, logits: jax.Array, labels: jax.Array) -> jax.Array:
        found = jax.nn.log_softmax(logits.astype(jnp.float32))
        return -jnp.take_along_axis(found, labels[..., None], -1).mean()


def array(name: str, value: np.ndarray) -> jax.Array:
    """With channels last where it is an image or its kernel."""
    if value.ndim == 4:
        value = value.transpose((0, 2, 3, 1) if name == "x" else (2, 3, 1, 0))
    return jnp.asarray(value)


def adam(weights: Any, moments: Any, gradients: Any, rate: float, decay: float) -> tuple[Any, Any]:
    """One step; ``moments`` are two trees and the count of steps; ``decay`` is AdamW's, of the weights themselves."""
    each = jax.tree.map
    mean, square, count = moments
    count = count + 1
    mean = each(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, mean, gradients)
    square = each(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, square, gradients)
    first, second = (1 - beta**count for beta in BETAS)

    def updated(w: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
        kept = w * (1 - rate * decay) if decay else w
        return kept - rate * (m / first) / (jnp.sqrt(v / second) + EPSILON)

    return each(updated, weights, mean, square), (mean, square, count)


def _training(workload: Any, weights: Any, inputs: Any, place: Place) -> Engine:
    def loss(weights: Any, inputs: Any) -> jax.Array:
        weights, inputs = (rounded(values, place) for values in (weights, inputs))
        return workload.result(JaxOps(workload, {}), weights.__getitem__, inputs)

    def whole(weights: Any, moments: Any, inputs: Any) -> tuple[Any, Any, jax.Array]:
        found, gradients = jax.value_and_grad(loss)(weights, inputs)
        if workload.optimizer in DECAYS:
            decay = DECAYS[workload.optimizer]
            return *adam(weights, moments, gradients, workload.rate, decay), found
        new = jax.tree.map(lambda w, g: w - workload.rate * g, weights, gradients)
        return new, moments, found

    step = jax.jit(whole, donate_argnums=(0, 1))
    moments: Any = ()
    if workload.optimizer in DECAYS:
        zeros = [jax.tree.map(jnp.zeros_like, weights) for _ in range(2)]
        moments = (*zeros, jnp.zeros((), jnp.float32))
    kept = {"state": (weights, moments)}

    def train() -> float:
        *state, found = step(*kept["state"], inputs)
        kept["state"] = jax.block_until_ready(tuple(state))
        return float(found)

    return Engine(step=train, read=np.array, version=jax.__version__)


def rounded(values: dict[str, jax.Array], place: Place) -> dict[str, jax.Array]:
    """Floats in the type that products have."""
    kind = TYPES.get(place.precision)
    if kind is None:
        return values
    floats = jnp.floating
    return {
        name: value.astype(kind) if jnp.issubdtype(value.dtype, floats) else value
        for name, value in values.items()
    }


def prepare(workload: Any, threads: int, place: Place = CPU) -> Engine:
    """Weights as arrays, and a compiled step. JAX has as many threads as the process may use cores."""
    if place.is_card:
        if workload.trains and place.precision == "f16":
            raise NotOfferedError("there is no loss scaling here")
        jax.config.update("jax_default_matmul_precision", PRODUCTS.get(place.precision))
    weights = {name: array(name, value) for name, value in workload.values()}
    inputs = {name: array(name, value) for name, value in workload.inputs().items()}
    if workload.trains:
        return _training(workload, weights, inputs, place)
    weights, inputs = rounded(weights, place), rounded(inputs, place)

    def whole(weights: Any, caches: Any, inputs: Any) -> tuple[jax.Array, Any]:
        ops = JaxOps(workload, dict(caches))
        return workload.result(ops, weights.__getitem__, inputs), ops.caches

    step = jax.jit(whole, donate_argnums=1)
    caches = {}
    for name, value in workload.caches().items():
        caches[name] = JaxOps._by_head(jnp.asarray(value), workload.kv_heads)
    caches = rounded(caches, place)
    kept = {"caches": caches}

    def infer() -> jax.Array:
        found, kept["caches"] = step(weights, kept["caches"], inputs)
        return jax.block_until_ready(found)

    return Engine(
        step=infer, read=lambda found: np.asarray(found, np.float32), version=jax.__version__
    )
