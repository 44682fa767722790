"""What stands between attentions, and whole blocks of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..graph.node import Node
from .activations import activate
from .attention import Attention, Sequence
from .base import Layer, check_width, positive, scope, within
from .linear import Linear, LinearMaker

Part: TypeAlias = Callable[[Node], Node]
"""What a block is made of: a layer, or any function of a node."""


@dataclass(frozen=True)
class SwiGLU(Layer):
    """``down(silu(gate(x)) * up(x))``; with two ``names``, gate and up are the halves of one matrix.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("layer")
    >>> y = nn.SwiGLU("mlp", 8, 24)(g.input("x", (4, 8)))
    >>> list(g.parameters)
    ['mlp.gate_proj.weight', 'mlp.up_proj.weight', 'mlp.down_proj.weight']
    """

    name: str
    width: int
    inner: int
    bias: bool = False
    activation: str = "silu"
    names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    init: str | None = None
    linear: LinearMaker = Linear

    def __post_init__(self) -> None:
        positive(self, "width", "inner")

    def __call__(self, x: Node) -> Node:
        """``x`` (..., width) as (..., width)."""
        graph = x.graph
        with scope(graph, self.name):
            check_width(f"SwiGLU '{graph.current_scope}'", x, -1, self.width)
            if len(self.names) == 2:
                both = self._matrix(0, self.width, 2 * self.inner)(x)
                gate, up = both[..., : self.inner], both[..., self.inner :]
            else:
                gate = self._matrix(0, self.width, self.inner)(x)
                up = self._matrix(1, self.width, self.inner)(x)
            if self.activation in ("silu", "swish"):
                hidden = gate.swiglu(up)
            else:
                hidden = activate(self.activation, gate) * up
            return self._matrix(-1, self.inner, self.width)(hidden)

    def _matrix(self, which: int, inputs: int, outputs: int) -> Linear:
        return self.linear(
            self.names[which], inputs, outputs, bias=self.bias, init=self.init, init_bias="zeros"
        )


@dataclass(frozen=True)
class MLP(Layer):
    """``fc2(activation(fc1(x)))``.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("layer")
    >>> y = nn.MLP("mlp", 8, 32, activation="gelu")(g.input("x", (4, 8)))
    >>> list(g.parameters)
    ['mlp.fc1.weight', 'mlp.fc1.bias', 'mlp.fc2.weight', 'mlp.fc2.bias']
    """

    name: str
    width: int
    inner: int
    activation: str = "gelu"
    bias: bool = True
    outputs: int | None = None
    names: tuple[str, str] = ("fc1", "fc2")
    dropout: float = 0.0
    init: str | None = None
    stored: str = "out_in"
    linear: LinearMaker = Linear

    def __post_init__(self) -> None:
        positive(self, "width", "inner")
        within(self, 0, 1, "dropout")

    def __call__(self, x: Node) -> Node:
        """``x`` (..., width) as (..., outputs)."""
        rest: dict[str, Any] = {"bias": self.bias, "init": self.init, "stored": self.stored}
        with scope(x.graph, self.name):
            check_width(f"MLP '{x.graph.current_scope}'", x, -1, self.width)
            hidden = self.linear(self.names[0], self.width, self.inner, **rest)(x)
            hidden = activate(self.activation, hidden)
            outputs = self.outputs or self.width
            y = self.linear(self.names[1], self.inner, outputs, **rest)(hidden)
            return y.dropout(self.dropout) if self.dropout else y


@dataclass(frozen=True)
class TransformerBlock(Layer):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``.

    ``before`` are the norms in front of attention and mlp, ``after`` those behind them (Gemma), and ``dropout`` is that of
    what is added.

    >>> import darner
    >>> from darner import nn
    >>> block = nn.TransformerBlock(
    ...     "layers.0",
    ...     nn.Attention("self_attn", 64, heads=4, rope=nn.Rope(16)),
    ...     nn.SwiGLU("mlp", 64, 96),
    ...     before=(nn.RMSNorm("input_layernorm", 64), nn.RMSNorm("post_attention_layernorm", 64)),
    ... )
    >>> g = darner.Graph("block")
    >>> block(g.input("x", (1, 5, 64))).shape
    (1, 5, 64)
    """

    name: str
    attention: Attention
    mlp: Part
    before: tuple[Part, Part]
    after: tuple[Part, Part] | None = None
    dropout: float = 0.0

    def __call__(self, x: Node, sequence: Sequence | None = None, mask: Node | None = None) -> Node:
        """``x`` (batch, length, width) as the same."""
        with scope(x.graph, self.name):
            x = x + self._added(0, self.attention(self.before[0](x), sequence, mask=mask))
            return x + self._added(1, self.mlp(self.before[1](x)))

    def _added(self, which: int, y: Node) -> Node:
        y = y if self.after is None else self.after[which](y)
        return y.dropout(self.dropout) if self.dropout else y
