"""Attention with its projections: to itself or to another sequence, with rotary positions and a cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Layer, check_width, positive, scope, state, within
from .linear import Linear, LinearMaker
from .norms import RMSNorm


@dataclass(frozen=True)
class Sequence(Layer):
    """Where the tokens of a call stand: what layers that look along the sequence need to know.

    Attributes:
        limit: positions are below it.
        positions: of each token, (batch, length) or (length,) integers; 0, 1, 2, ... when left out.
        row: where a cache takes the first token, one integer; None where there is no cache.
        mask: which keys are visible, bool that broadcasts to (batch, heads, queries, keys).
    """

    limit: int
    positions: Node | None = None
    row: Node | None = None
    mask: Node | None = None

    @staticmethod
    def cached(graph: Graph, length: int, cache: int, start: Node | None = None) -> Sequence:
        """Tokens that follow those in a cache of ``cache`` rows: the input ``position`` is the row of the first.

        ``start`` (batch,) is the first row that is no padding, for batches of texts that end together.
        """
        if length > cache:
            raise ShapeError(f"{length} tokens do not fit a cache of {cache} rows")
        row = graph.input("position", (1,), "i32")
        rows = row + graph.arange(length, dtype="i32")
        if start is None:
            return Sequence(cache, rows, row)
        begins = start.reshape((start.shape[0], 1))
        visible = graph.arange(cache, dtype="i32").reshape((1, 1, 1, cache)) >= start.reshape(
            (start.shape[0], 1, 1, 1)
        )
        return Sequence(cache, (rows - begins).maximum(0), row, visible)


@dataclass(frozen=True)
class Rope(Layer):
    """Rotary positions for heads of some width.

    Attributes:
        head_dim: the width of a head.
        theta: the wavelengths grow from 2 pi to 2 pi theta.
        n_rot: how many elements of a head turn; all when left out.
        frequencies: angles a position, one for each pair of elements, instead of ``theta``: models made for longer texts.
        factor: of cosines and sines, with ``frequencies``.
        interleaved: whether pairs are neighbours instead of halves.
    """

    head_dim: int
    theta: float = 10000.0
    n_rot: int | None = None
    frequencies: tuple[float, ...] | None = None
    factor: float = 1.0
    interleaved: bool = False

    def __call__(self, x: Node, sequence: Sequence) -> Node:
        """``x`` (batch, length, heads, head_dim) turned by its positions."""
        positions = sequence.positions
        if self.frequencies is None:
            return x.graph.rope(
                x,
                self.theta,
                self.head_dim,
                n_rot=self.n_rot,
                layout="shd",
                interleaved=self.interleaved,
                positions=positions,
            )
        cos, sin = self.tables(x, sequence)
        return x.graph.rope_with_tables(
            x,
            cos,
            sin,
            head_dim=self.head_dim,
            n_rot=2 * len(self.frequencies),
            layout="shd",
            interleaved=self.interleaved,
        )

    def tables(self, x: Node, sequence: Sequence) -> tuple[Node, Node]:
        """Cosines and sines of each token, computed in float64 for every position there can be."""
        angles = np.arange(sequence.limit)[:, None] * np.asarray(self.frequencies, np.float64)
        found = []
        for function in (np.cos, np.sin):
            table = x.graph.literal((self.factor * function(angles)).astype(x.dtype.numpy), x.dtype)
            positions = sequence.positions
            if positions is None:
                found.append(table[: int(x.shape[-3])])
            else:
                found.append(x.graph.embedding(positions, table))
        return found[0], found[1]


@dataclass(frozen=True)
class Attention(Layer):
    """Queries, keys and values by matrices, attention, and a matrix on its result.

    Attributes:
        width: of the tokens; ``memory_width`` is that of what is attended to, where it is not the tokens.
        heads, kv_heads, head_dim: ``kv_heads`` (as many as heads when left out) are shared by neighbouring heads, and
            ``head_dim`` is width / heads when left out.
        bias: of the four matrices, or of queries, keys, values and result.
        names: of the four matrices; two where queries, keys and values are one matrix.
        rope: rotary positions.
        norm: the eps of RMS norms of each head's queries and keys (``q_norm``, ``k_norm``); none when left out.
        shifted: whether those multiply by 1 + weight.
        causal, window, scale, softcap: as of ``scaled_dot_attention``.
        dropout: the share of weights that training leaves out; the weights are then computed whole, which takes more memory.
        stored: of the matrices, as of ``Linear``.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("layer")
    >>> attention = nn.Attention("self_attn", 64, heads=4, kv_heads=2, rope=nn.Rope(16))
    >>> attention(g.input("x", (2, 10, 64))).shape
    (2, 10, 64)
    >>> {name: leaf.shape for name, leaf in g.parameters.items()}["self_attn.k_proj.weight"]
    (32, 64)
    """

    name: str
    width: int
    heads: int
    kv_heads: int | None = None
    head_dim: int | None = None
    bias: bool | tuple[bool, bool, bool, bool] = False
    names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    rope: Rope | None = None
    norm: float | None = None
    shifted: bool = False
    causal: bool = True
    window: int | None = None
    scale: float | None = None
    softcap: float | None = None
    dropout: float = 0.0
    memory_width: int | None = None
    init: str | None = None
    stored: str = "out_in"
    linear: LinearMaker = Linear

    def __post_init__(self) -> None:
        within(self, 0, 1, "dropout")
        positive(self, "width", "heads")
        if self.heads % self.shared:
            raise ArgumentError(f"{self.heads} heads cannot share {self.shared} key heads evenly")
        if self.head_dim is None and self.width % self.heads:
            raise ArgumentError(
                f"{self.heads} heads do not divide the width {self.width}",
                hint="give head_dim",
            )
        if len(self.names) not in (2, 4):
            raise ArgumentError(f"it has 4 names, or 2: {self.names!r}")

    @property
    def shared(self) -> int:
        """How many heads keys and values have."""
        return self.kv_heads or self.heads

    @property
    def size(self) -> int:
        """The width of a head."""
        return self.head_dim or self.width // self.heads

    def __call__(
        self,
        x: Node,
        sequence: Sequence | None = None,
        memory: Node | tuple[Node, Node] | None = None,
        mask: Node | None = None,
        bias: Node | None = None,
    ) -> Node:
        """``x`` (batch, length, width), attending to ``memory`` (batch, keys, memory_width) or to itself.

        ``memory`` may also be the keys and values that ``remembered`` made of it. ``mask`` and ``bias`` broadcast to (batch, heads, queries, keys).
        """
        graph = x.graph
        with scope(graph, self.name):
            check_width(f"Attention '{graph.current_scope}'", x, -1, self.width)
            where = sequence or Sequence(int(x.shape[1]))
            if isinstance(memory, tuple):
                q, (k, v) = self._queries(x), memory
            else:
                q, k, v = self._projected(x, x if memory is None else memory)
            if self.norm is not None:
                q = RMSNorm("q_norm", self.size, self.norm, self.shifted)(q)
                k = RMSNorm("k_norm", self.size, self.norm, self.shifted)(k)
            if self.rope is not None:
                q, k = self.rope(q, where), self.rope(k, where)
            offset = None
            if where.row is not None and memory is None:
                offset = where.row
                k = self._written("key", k, where.limit, offset)
                v = self._written("value", v, where.limit, offset)
            if memory is None and where.mask is not None:
                mask = where.mask if mask is None else mask.logical_and(where.mask)
            causal = self.causal and memory is None
            if self.dropout and offset is None:
                y = self._with_dropout(q, k, v, mask, bias, causal)
            else:
                y = graph.scaled_dot_attention(
                    q,
                    k,
                    v,
                    mask,
                    bias,
                    layout="bshd",
                    causal=causal,
                    window=self.window,
                    scale=self.scale,
                    softcap=self.softcap,
                    offset=offset,
                )
            return self._matrix(-1, self.heads * self.size, self.width)(y.flatten(2))

    def _matrix(self, which: int, inputs: int, outputs: int) -> Linear:
        biases = self.bias if isinstance(self.bias, tuple) else (self.bias,) * 4
        return self.linear(
            self.names[which],
            inputs,
            outputs,
            bias=biases[which],
            stored=self.stored,
            init=self.init,
            init_bias="zeros",
        )

    def remembered(self, memory: Node) -> tuple[Node, Node]:
        """Keys and values of another sequence, each (batch, keys, heads, head_dim)."""
        with scope(memory.graph, self.name):
            return self._keys_and_values(memory)

    def _opened(self, x: Node, heads: int) -> Node:
        return x.reshape((*x.shape[:-1], heads, self.size))

    def _queries(self, x: Node) -> Node:
        inner = self.heads * self.size
        return self._opened(self._matrix(0, self.width, inner)(x), self.heads)

    def _keys_and_values(self, memory: Node) -> tuple[Node, Node]:
        width, outer = self.memory_width or self.width, self.shared * self.size
        keys, values = (self._matrix(which, width, outer)(memory) for which in (1, 2))
        return self._opened(keys, self.shared), self._opened(values, self.shared)

    def _projected(self, x: Node, memory: Node) -> tuple[Node, Node, Node]:
        """Queries, keys and values, each (batch, length, heads, head_dim)."""
        if len(self.names) == 4:
            return self._queries(x), *self._keys_and_values(memory)
        inner, outer = self.heads * self.size, self.shared * self.size
        whole = self._matrix(0, self.width, inner + 2 * outer)(x)
        ends = (0, inner, inner + outer, inner + 2 * outer)
        q, k, v = (whole[..., low:high] for low, high in pairwise(ends))
        return (
            self._opened(q, self.heads),
            self._opened(k, self.shared),
            self._opened(v, self.shared),
        )

    def _with_dropout(
        self, q: Node, k: Node, v: Node, mask: Node | None, bias: Node | None, causal: bool
    ) -> Node:
        """Attention written out, as its weights pass through dropout."""
        graph, shared = q.graph, self.heads // self.shared
        k, v = (x.repeat(shared, axis=2) if shared > 1 else x for x in (k, v))
        q, k, v = (x.transpose((0, 2, 1, 3)) for x in (q, k, v))
        scale = self.size**-0.5 if self.scale is None else self.scale
        scores = (q @ k.transpose((0, 1, 3, 2))) * scale
        if self.softcap is not None:
            scores = self.softcap * (scores / self.softcap).tanh()
        if bias is not None:
            scores = scores + bias
        queries, keys = int(scores.shape[-2]), int(scores.shape[-1])
        ahead = graph.arange(keys, dtype="i32") - (
            graph.arange(queries, dtype="i32").reshape((queries, 1)) + (keys - queries)
        )
        limits = [ahead <= 0] if causal else []
        if self.window is not None:
            limits.append(ahead > -self.window)
            limits += [] if causal else [ahead < self.window]
        for limit in limits:
            mask = limit if mask is None else mask.logical_and(limit)
        weights = scores.softmax() if mask is None else scores.masked_softmax(mask)
        return (weights.dropout(self.dropout) @ v).transpose((0, 2, 1, 3))

    def _written(self, kind: str, new: Node, rows: int, row: Node) -> Node:
        """The cache of this layer with the new rows in it."""
        batch, _, heads, size = (int(axis) for axis in new.shape)
        kept = state(new.graph, f"cache.{kind}", (batch, rows, heads, size), new.dtype)
        return new.graph.cache_write(new, kept, row, axis=1)


MultiHeadAttention = Attention
"""The same: as many key heads as heads, unless told otherwise."""
