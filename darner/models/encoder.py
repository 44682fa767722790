"""The layers of a transformer that normalises before it attends, as the models of images have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..graph.errors import ArgumentError
from ..graph.node import Node
from ..nn.dropout import Dropout
from ..nn.linear import Linear, LinearMaker
from ..nn.norms import LayerNorm


@dataclass(frozen=True)
class LayerNames:
    """How a checkpoint calls the parts of a layer; matrices are those of queries, keys, values, their result, and the two after it."""

    norms: tuple[str, str]
    matrices: tuple[str, str, str, str, str, str]


@dataclass(frozen=True)
class Encoder:
    """``layers`` times: ``x + attention(norm(x))``, then ``x + matrices(norm(x))``.

    Attributes:
        name: of a layer, with ``{}`` where its number stands.
        layers, width, heads, inner: how many layers, and their sizes.
        names: of the parts of a layer.
        init: how each matrix starts, by its name; biases start at 0.
        activation, eps: between the two matrices, and of the norms.
        causal: whether a token sees only those before it.
        bias: whether queries, keys and values have one; the other matrices have.
        dropout, attention_dropout: shares that training leaves out of what is added, and of the weights of attention.
        linear: what makes the matrices.
    """

    name: str
    layers: int
    width: int
    heads: int
    inner: int
    names: LayerNames
    init: Mapping[str, str]
    activation: str = "gelu"
    eps: float = 1e-5
    causal: bool = False
    bias: bool = True
    dropout: float = 0.0
    attention_dropout: float = 0.0
    linear: LinearMaker = Linear

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ArgumentError(
                f"{self.heads} attention heads do not divide the width {self.width} evenly"
            )

    def __call__(self, x: Node) -> Node:
        """``x`` (batch, tokens, width) as the same."""
        for layer in range(self.layers):
            with x.graph.scope(self.name.format(layer)):
                x = self._layer(x)
        return x

    def _layer(self, x: Node) -> Node:
        dropout, (first, second) = Dropout(self.dropout), self.names.norms
        x = x + dropout(self._attended(LayerNorm(first, self.width, self.eps)(x)))
        hidden = self._matrix(4, LayerNorm(second, self.width, self.eps)(x), self.inner)
        hidden = x.graph.activation(self.activation, hidden)
        return x + dropout(self._matrix(5, hidden, self.width))

    def _matrix(self, which: int, x: Node, outputs: int, bias: bool = True) -> Node:
        name = self.names.matrices[which]
        start = self.init[name]
        return self.linear(name, int(x.shape[-1]), outputs, bias=bias, init=start)(x)

    def _attended(self, x: Node) -> Node:
        batch, tokens = x.shape[:2]
        shape = (batch, tokens, self.heads, self.width // self.heads)
        q, k, v = (self._matrix(i, x, self.width, self.bias).reshape(shape) for i in range(3))
        if self.attention_dropout:
            y = self._attended_with_dropout(q, k, v)
        else:
            y = x.graph.scaled_dot_attention(q, k, v, layout="bshd", causal=self.causal)
        return self._matrix(3, y.reshape((batch, tokens, self.width)), self.width)

    def _attended_with_dropout(self, q: Node, k: Node, v: Node) -> Node:
        """Attention written out, as its weights pass through dropout."""
        graph, tokens = q.graph, q.shape[1]
        q, k, v = (x.transpose((0, 2, 1, 3)) for x in (q, k, v))
        scores = (q @ k.transpose((0, 1, 3, 2))) * float(int(q.shape[-1]) ** -0.5)
        if self.causal:
            places = graph.arange(tokens, dtype="i32")
            weights = scores.masked_softmax(places <= places.reshape((tokens, 1)))
        else:
            weights = scores.softmax()
        return (Dropout(self.attention_dropout)(weights) @ v).transpose((0, 2, 1, 3))
