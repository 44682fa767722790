"""Products with a trained matrix, rows of a trained table, and low-rank changes of a frozen matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

from ..graph.errors import ArgumentError
from ..graph.node import Node
from .base import Layer, check_width, parameter, positive, scope, within


@dataclass(frozen=True)
class Linear(Layer):
    """``x @ weight.T + bias`` over the last axis.

    The weight is stored (outputs, inputs), as PyTorch and HuggingFace do; ``stored="in_out"`` is the other way round, as
    in GPT-2. Unless told otherwise weight and bias start evenly within 1 / sqrt(inputs) of 0.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("line")
    >>> y = nn.Linear("fc", 3, 2)(g.input("x", (5, 3)))
    >>> y.shape, g.parameters["fc.weight"].shape
    ((5, 2), (2, 3))
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = True
    stored: Literal["out_in", "in_out"] = "out_in"
    init: str | None = None
    init_bias: str | None = None

    def __post_init__(self) -> None:
        positive(self, "inputs", "outputs")
        if self.stored not in ("out_in", "in_out"):
            raise ArgumentError(f"stored is 'out_in' or 'in_out', got {self.stored!r}")

    def __call__(self, x: Node) -> Node:
        """``x`` (..., inputs) as (..., outputs)."""
        with scope(x.graph, self.name):
            check_width(f"Linear '{x.graph.current_scope}'", x, -1, self.inputs)
            return self.product(x)

    def product(self, x: Node) -> Node:
        """The nodes of it, in the layer's own scope."""
        even = f"uniform({1.0 / math.sqrt(self.inputs)!r})"
        sizes = (self.outputs, self.inputs)
        sizes = sizes if self.stored == "out_in" else sizes[::-1]
        weight = parameter(x.graph, "weight", sizes, x.dtype, self.init or even)
        y = x @ (weight.T if self.stored == "out_in" else weight)
        if not self.bias:
            return y
        start = self.init_bias or (even if self.init is None else "zeros")
        return y + parameter(x.graph, "bias", (self.outputs,), x.dtype, start)


LinearMaker: TypeAlias = Callable[..., Linear]
"""What blocks make their matrices with: ``Linear``, or ``LoRA(...).linear``."""


@dataclass(frozen=True)
class LoRALinear(Linear):
    """A ``Linear`` with a low-rank change: ``x @ weight.T + bias + alpha / rank * (x @ A.T) @ B.T``.

    A and B are ``lora_A.weight`` (rank, inputs) and ``lora_B.weight`` (outputs, rank). B starts at 0, so that nothing changes at
    first. The weight itself is frozen by the optimizer: ``multipliers=lora.frozen(graph)``.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive(self, "rank")
        within(self, 0, 1, "dropout")

    def product(self, x: Node) -> Node:
        """The nodes of it, in the layer's own scope."""
        graph = x.graph
        narrow = x.dropout(self.dropout) if self.dropout else x
        bound = 1.0 / math.sqrt(self.inputs)
        down = parameter(
            graph, "lora_A.weight", (self.rank, self.inputs), x.dtype, f"uniform({bound!r})"
        )
        up = parameter(graph, "lora_B.weight", (self.outputs, self.rank), x.dtype, "zeros")
        return super().product(x) + (self.alpha / self.rank) * ((narrow @ down.T) @ up.T)


@dataclass(frozen=True)
class LoRA(Layer):
    """Low-rank changes for the matrices whose full names fit one of ``targets``.

    >>> import darner
    >>> from darner import nn
    >>> lora = nn.LoRA(rank=2, targets=("*q_proj",))
    >>> g = darner.Graph("tuned")
    >>> x = g.input("x", (1, 4))
    >>> y = lora.linear("q_proj", 4, 4, bias=False)(x) + lora.linear("k_proj", 4, 4, bias=False)(x)
    >>> list(g.parameters)
    ['q_proj.lora_A.weight', 'q_proj.lora_B.weight', 'q_proj.weight', 'k_proj.weight']
    >>> lora.frozen(g)
    {'q_proj.weight': 0.0, 'k_proj.weight': 0.0}
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("*q_proj", "*v_proj")

    def __post_init__(self) -> None:
        positive(self, "rank")
        within(self, 0, 1, "dropout")

    def linear(
        self, name: str, inputs: int, outputs: int, bias: bool = True, **rest: Any
    ) -> Linear:
        """A ``Linear``, changed where its name fits."""
        plain = Linear(name, inputs, outputs, bias, **rest)
        if not any(fnmatchcase(name, pattern) for pattern in self.targets):
            return plain
        fields = {key: getattr(plain, key) for key in plain.__dataclass_fields__}
        return LoRALinear(**fields, rank=self.rank, alpha=self.alpha, dropout=self.dropout)

    def frozen(self, graph: Any) -> dict[str, float]:
        """The optimizer's ``multipliers`` that leave all parameters as they are but those of the change."""
        names = (name for name in graph.parameters if ".lora_" not in f".{name}")
        return dict.fromkeys(names, 0.0)


@dataclass(frozen=True)
class Embedding(Layer):
    """Rows of a table by integers; ``attend`` uses the same table the other way, as the output of a tied model.

    ``padding`` is a row that looking up does not train, as PyTorch's ``padding_idx``.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("words")
    >>> words = nn.Embedding("wte", 100, 8)
    >>> x = words(g.input("tokens", (2, 5), "i32"))
    >>> x.shape, words.attend(x).shape, list(g.parameters)
    ((2, 5, 8), (2, 5, 100), ['wte.weight'])
    """

    name: str
    count: int
    width: int
    dtype: str = "f32"
    init: str = "normal(1.0)"
    padding: int | None = None

    def __post_init__(self) -> None:
        positive(self, "count", "width")

    def table(self, graph: Any) -> Node:
        """The parameter."""
        with scope(graph, self.name):
            return parameter(graph, "weight", (self.count, self.width), self.dtype, self.init)

    def __call__(self, indices: Node) -> Node:
        """Integers (...) as rows (..., width)."""
        rows = indices.graph.embedding(indices, self.table(indices.graph))
        if self.padding is None:
            return rows
        learns = (indices != self.padding).reshape((*indices.shape, 1))
        return learns.where(rows, rows.stop_gradient())

    def attend(self, x: Node) -> Node:
        """(..., width) as scores (..., count) with every row."""
        return x @ self.table(x.graph).T
