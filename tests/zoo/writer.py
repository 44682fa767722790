"""Layers in either spelling, so that a model of the zoo is written once.

A ``Writer`` adds layers to a graph as composite ops. A ``PrimitiveWriter`` adds the same layers, of the same parameters,
by the functions of ``spellings``.
"""

from typing import Literal

from darner import Graph, Node

from . import spellings

Spelling = Literal["composite", "primitive"]
SPELLINGS: tuple[Spelling, Spelling] = ("composite", "primitive")


def writer(name: str, spelling: Spelling, variant: int = 0, dtype: str = "f32") -> "Writer":
    """A writer into a new graph. ``variant`` picks among the spellings of primitives; composites have one."""
    if spelling not in SPELLINGS:
        raise ValueError(f"a spelling is one of {SPELLINGS}, not {spelling!r}")
    graph = Graph(name)
    if spelling == "composite":
        return Writer(graph, dtype)
    return PrimitiveWriter(graph, dtype, variant)


def _by_head(x: Node, heads: int) -> Node:
    """(length, width), or a batch of that, as (batch, length, heads, width / heads)."""
    batch = x.shape[0] if x.rank == 3 else 1
    return x.reshape((batch, x.shape[-2], heads, x.shape[-1] // heads))


class Writer:
    """Layers as composite ops."""

    def __init__(self, graph: Graph, dtype: str) -> None:
        self.graph, self.dtype = graph, dtype

    def input(self, name: str, shape: tuple[int, ...], dtype: str | None = None) -> Node:
        return self.graph.input(name, shape, dtype or self.dtype)

    def parameter(self, name: str, shape: tuple[int, ...]) -> Node:
        return self.graph.parameter(name, shape, self.dtype)

    # ------------------------------------------------------------- layers with parameters

    def linear(self, name: str, x: Node, out: int, *, bias: bool = True, stored="in_out") -> Node:
        """A linear layer; ``stored`` says how its weight lies: "in_out" or "out_in"."""
        with self.graph.scope(name):
            inner = x.shape[-1]
            shape = (inner, out) if stored == "in_out" else (out, inner)
            weight = self.parameter("weight", shape)
            return self.product(x, weight, self.parameter("bias", (out,)) if bias else None, stored)

    def conv(self, name: str, x: Node, out: int, kernel: int = 3, *, bias=True, **options) -> Node:
        """A convolution of images."""
        with self.graph.scope(name):
            weight = self.parameter("weight", (out, x.shape[1], kernel, kernel))
            added = self.parameter("bias", (out,)) if bias else None
            return self.convolved(x, weight, added, **options)

    def layer_norm(self, name: str, x: Node, eps: float = 1e-5) -> Node:
        with self.graph.scope(name):
            width = (x.shape[-1],)
            return self.layer_normal(
                x, self.parameter("weight", width), self.parameter("bias", width), eps
            )

    def rms_norm(self, name: str, x: Node, eps: float = 1e-5) -> Node:
        with self.graph.scope(name):
            return self.rms_normal(x, self.parameter("weight", (x.shape[-1],)), eps)

    def group_norm(self, name: str, x: Node, groups: int, eps: float = 1e-5) -> Node:
        with self.graph.scope(name):
            channels = (x.shape[1],)
            weight, bias = self.parameter("weight", channels), self.parameter("bias", channels)
            return self.group_normal(x, weight, bias, groups, eps)

    def batch_norm(self, name: str, x: Node, eps: float = 1e-5) -> Node:
        """The form of inference: the statistics are parameters."""
        with self.graph.scope(name):
            names = ("mean", "variance", "weight", "bias")
            return self.batch_normal(x, *(self.parameter(n, (x.shape[1],)) for n in names), eps)

    # ------------------------------------------------------------- what the spellings differ in

    def product(self, x: Node, weight: Node, bias: Node | None, stored="in_out") -> Node:
        y = x @ (weight if stored == "in_out" else weight.T)
        return y if bias is None else y + bias

    def convolved(self, x: Node, weight: Node, bias: Node | None, **options) -> Node:
        return self.graph.conv2d(x, weight, bias=bias, **options)

    def layer_normal(self, x: Node, weight: Node, bias: Node, eps: float) -> Node:
        return x.layer_norm(weight, bias, eps)

    def rms_normal(self, x: Node, weight: Node, eps: float) -> Node:
        return x.rms_norm(weight, eps)

    def group_normal(self, x: Node, weight: Node, bias: Node, groups: int, eps: float) -> Node:
        return x.group_norm(weight, bias, groups, eps)

    def batch_normal(self, x, mean, variance, weight, bias, eps: float) -> Node:
        return x.batch_norm(mean, variance, weight, bias, eps)

    def relu(self, x: Node) -> Node:
        return x.relu()

    def silu(self, x: Node) -> Node:
        return x.silu()

    def gelu_erf(self, x: Node) -> Node:
        return x.gelu()

    def gelu_tanh(self, x: Node) -> Node:
        return x.gelu_approx()

    def swiglu(self, gate: Node, up: Node) -> Node:
        return gate.swiglu(up)

    def embedding(self, indices: Node, table: Node) -> Node:
        return self.graph.embedding(indices, table)

    def attention(
        self,
        q: Node,
        k: Node,
        v: Node,
        heads: int,
        kv_heads: int,
        *,
        causal: bool = False,
        mask: Node | None = None,
        theta: float | None = None,
    ) -> Node:
        """Of (length, heads * head), or with a batch in front; with ``theta``, q and k get rotary positions."""
        head = q.shape[-1] // heads
        if theta is not None:
            q, k = (self.graph.rope(x, theta, head) for x in (q, k))
        opened = [_by_head(x, n) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads))]
        mixed = self.graph.scaled_dot_attention(*opened, mask, layout="bshd", causal=causal)
        return mixed.reshape(q.shape)

    def mean(self, x: Node, axes) -> Node:
        return x.mean(axes)

    def avg_pool(self, x: Node, size: int) -> Node:
        return x.avg_pool(size)

    def max_pool(self, x: Node, size: int) -> Node:
        return x.max_pool(size)

    def upsample(self, x: Node) -> Node:
        return self.graph.upsample_2x(x)

    def dropout(self, x: Node, rate: float) -> Node:
        return x.dropout(rate)

    def cross_entropy(self, logits: Node, labels: Node) -> Node:
        """The mean over rows, as [1]; signed labels of -100 are left out."""
        return logits.cross_entropy_loss(labels)

    def squared_error(self, x: Node, y: Node) -> Node:
        """The mean over elements, as [1]."""
        return self.graph.mse_loss(x, y)


class PrimitiveWriter(Writer):
    """The same layers in primitives."""

    def __init__(self, graph: Graph, dtype: str, variant: int) -> None:
        super().__init__(graph, dtype)
        self.variant = variant

    def product(self, x, weight, bias, stored="in_out"):
        return spellings.linear(x, weight, bias, self.variant, stored=stored)

    def convolved(self, x, weight, bias, **options):
        return spellings.conv(x, weight, bias, self.variant, **options)

    def layer_normal(self, x, weight, bias, eps):
        return spellings.layer_norm(x, weight, bias, eps, self.variant)

    def rms_normal(self, x, weight, eps):
        return spellings.rms_norm(x, weight, eps, self.variant)

    def group_normal(self, x, weight, bias, groups, eps):
        return spellings.group_norm(x, weight, bias, groups, eps, self.variant)

    def batch_normal(self, x, mean, variance, weight, bias, eps):
        return spellings.batch_norm(x, mean, variance, weight, bias, eps, self.variant)

    def relu(self, x):
        return spellings.relu(x, self.variant)

    def silu(self, x):
        return spellings.silu(x, self.variant)

    def gelu_erf(self, x):
        return spellings.gelu_erf(x, self.variant)

    def gelu_tanh(self, x):
        return spellings.gelu_tanh(x, self.variant)

    def swiglu(self, gate, up):
        return spellings.swiglu(gate, up, self.variant)

    def embedding(self, indices, table):
        return self.graph.gather(table, indices)

    def attention(self, q, k, v, heads, kv_heads, *, causal=False, mask=None, theta=None):
        order = (0, 2, 1, 3)
        opened = ((q, heads), (k, kv_heads), (v, kv_heads))
        first, second, third = (_by_head(x, n).transpose(order) for x, n in opened)
        if theta is not None:
            first, second = (spellings.rope(x, theta, self.variant) for x in (first, second))
        mixed = spellings.attention(first, second, third, self.variant, causal=causal, mask=mask)
        return mixed.transpose(order).reshape(q.shape)

    def mean(self, x, axes):
        return spellings.mean(x, axes, self.variant)

    def avg_pool(self, x, size):
        return spellings.avg_pool(x, size, self.variant)

    def max_pool(self, x, size):
        return spellings.max_pool(x, size)

    def upsample(self, x):
        return spellings.upsample(x)

    def dropout(self, x, rate):
        return spellings.dropout(x, rate)

    def cross_entropy(self, logits, labels):
        signed = labels.dtype.limits[0] < 0
        loss = spellings.cross_entropy_ignoring if signed else spellings.cross_entropy
        return loss(logits, labels, self.variant)

    def squared_error(self, x, y):
        return spellings.squared_error(x, y, self.variant)
