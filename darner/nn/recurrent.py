"""Recurrent layers: RNN, LSTM and GRU, with the parameters of PyTorch's, by its names.

The steps are a loop over one body. What does not wait for the step before, the product of all inputs with their weights, is one product for the whole
sequence.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ..graph.dims import format_shape
from ..graph.errors import ArgumentError, ShapeError
from ..graph.node import Node
from ..transforms.custom_gradient import custom_gradient
from .base import Layer, check_width, parameter, positive, scope

States: TypeAlias = tuple[Node, ...]
"""What a step hands to the next: (batch, width) each; of all layers and directions, (layers * directions, batch, width)."""


@custom_gradient
def in_parts(x: Node, count: int, axis: int) -> tuple[Node, ...]:
    """Equal parts of ``x`` along an axis: the gates of a step.

    The gradient is those of the parts side by side. Derived from slices it would be a sum of as many arrays of the whole size.
    """
    return tuple(x.chunk(count, axis=axis))


@in_parts.vjp
def _(g: Any, out: Any, x: Node, count: int, axis: int) -> Node:
    return x.graph.concat(list(g), axis=axis) if isinstance(g, tuple) else g


@in_parts.jvp
def _(tangent: Node, out: Any, x: Node, count: int, axis: int) -> Any:
    return in_parts.function(tangent, count, axis)


@dataclass(frozen=True)
class Recurrent(Layer):
    """What recurrent layers have in common: layers, directions, and the way through a sequence.

    Parameters start evenly within 1 / sqrt(width) of 0. ``dropout`` is applied between layers.
    """

    name: str
    inputs: int
    width: int
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool = True
    dropout: float = 0.0

    GATES: ClassVar[int]
    """How many times ``width`` the rows of a weight are."""
    BIASES_ADD: ClassVar[bool]
    """Whether a step only ever adds up both biases, so that it can be done for all steps at once."""
    STATES: ClassVar[tuple[str, ...]]
    """Names of what a step hands to the next; the first is also its output."""

    def __post_init__(self) -> None:
        positive(self, "inputs", "width", "num_layers")
        if not 0.0 <= self.dropout < 1.0:
            raise ArgumentError(f"dropout is at least 0 and below 1, got {self.dropout!r}")

    @property
    def directions(self) -> int:
        """1, or 2 where the sequence is read backwards too."""
        return 2 if self.bidirectional else 1

    @abstractmethod
    def step(self, given: Node, states: States, weight: Node, bias: Node | None) -> States:
        """One step: ``given`` (batch, gates * width) is what the input adds."""

    def run(self, x: Node, initial: States | None) -> tuple[Node, States]:
        """Outputs (batch, time, directions * width), and the last states of every layer and direction."""
        graph = x.graph
        with scope(graph, self.name):
            self._check(x, initial)
            last: list[States] = []
            for layer in range(self.num_layers):
                if layer and self.dropout:
                    x = x.dropout(self.dropout)
                read: list[Node] = []
                for suffix in ("", "_reverse")[: self.directions]:
                    start = None if initial is None else tuple(each[len(last)] for each in initial)
                    outputs, states = self._through(x, f"l{layer}{suffix}", start)
                    read.append(outputs)
                    last.append(states)
                x = read[0] if len(read) == 1 else graph.concat(read, axis=2)
            return x, tuple(graph.stack(list(each), axis=0) for each in zip(*last, strict=True))

    def _through(self, x: Node, key: str, states: States | None) -> tuple[Node, States]:
        """One layer in one direction: the outputs in the order of the sequence, and the states at its end."""
        rows, even = self.GATES * self.width, f"uniform({1.0 / math.sqrt(self.width)!r})"

        def made(kind: str, *shape: int) -> Node:
            return parameter(x.graph, f"{kind}_{key}", shape, x.dtype, even)

        weight_ih = made("weight_ih", rows, int(x.shape[-1]))
        weight_hh = made("weight_hh", rows, self.width)
        given, bias_hh = x.transpose((1, 0, 2)) @ weight_ih.T, None
        if self.bias:
            bias_ih, bias_hh = made("bias_ih", rows), made("bias_hh", rows)
            if self.BIASES_ADD:
                bias_ih, bias_hh = bias_ih + bias_hh, None
            given = given + bias_ih
        if states is None:
            start = x.graph.zeros((x.shape[0], self.width), x.dtype)
            states = tuple(start for _ in self.STATES)

        def step(carry: States, part: Node) -> tuple[States, Node]:
            following = self.step(part, carry, weight_hh.T, bias_hh)
            return following, following[0]

        reverse = key.endswith("_reverse")
        states, outputs = x.graph.iterate(step, states, given, reverse=reverse)
        return outputs.transpose((1, 0, 2)), states

    def _check(self, x: Node, initial: States | None) -> None:
        layer = f"{type(self).__name__} '{x.graph.current_scope}'"
        if x.rank != 3 or not isinstance(x.shape[1], int) or x.shape[1] < 1:
            raise ShapeError(
                f"{layer} takes (batch, time, {self.inputs}) with a known number of steps, "
                f"but x is {x.dtype}{format_shape(x.shape)}"
            )
        check_width(layer, x, -1, self.inputs)
        if initial is None:
            return
        wanted = (self.num_layers * self.directions, x.shape[0], self.width)
        if len(initial) != len(self.STATES):
            raise ArgumentError(f"{layer} starts from {' and '.join(self.STATES)}, got {initial!r}")
        for name, state in zip(self.STATES, initial, strict=True):
            if tuple(state.shape) != wanted:
                raise ShapeError(
                    f"{layer} starts from {name} {format_shape(wanted)} "
                    f"(layers * directions, batch, width), but it is {format_shape(state.shape)}"
                )


@dataclass(frozen=True)
class RNN(Recurrent):
    """The recurrent layer of one gate (Elman 1990), as ``torch.nn.RNN`` with ``batch_first``; ``nonlinearity`` is tanh or relu.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("reader")
    >>> y, h = RNN("rnn", inputs=8, width=16)(g.input("x", (4, 10, 8)))
    >>> y.shape, h.shape
    ((4, 10, 16), (1, 4, 16))
    """

    nonlinearity: str = "tanh"

    GATES: ClassVar[int] = 1
    BIASES_ADD: ClassVar[bool] = True
    STATES: ClassVar[tuple[str, ...]] = ("h",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nonlinearity not in ("tanh", "relu"):
            raise ArgumentError(f"nonlinearity is 'tanh' or 'relu', got {self.nonlinearity!r}")

    def __call__(self, x: Node, initial: Node | None = None) -> tuple[Node, Node]:
        """Outputs (batch, time, directions * width) and the last h; without ``initial`` it starts at 0."""
        y, (h,) = self.run(x, None if initial is None else (initial,))
        return y, h

    def step(self, given: Node, states: States, weight: Node, bias: Node | None) -> States:
        """One gate."""
        gate = given + states[0] @ weight
        return (gate.tanh() if self.nonlinearity == "tanh" else gate.relu(),)


@dataclass(frozen=True)
class LSTM(Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), as ``torch.nn.LSTM`` with ``batch_first``.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("reader")
    >>> y, (h, c) = LSTM("lstm", inputs=8, width=16)(g.input("x", (4, 10, 8)))
    >>> y.shape, h.shape, c.shape
    ((4, 10, 16), (1, 4, 16), (1, 4, 16))
    >>> list(g.parameters)
    ['lstm.weight_ih_l0', 'lstm.weight_hh_l0', 'lstm.bias_ih_l0', 'lstm.bias_hh_l0']
    """

    GATES: ClassVar[int] = 4
    BIASES_ADD: ClassVar[bool] = True
    STATES: ClassVar[tuple[str, ...]] = ("h", "c")

    def __call__(
        self, x: Node, initial: tuple[Node, Node] | None = None
    ) -> tuple[Node, tuple[Node, Node]]:
        """Outputs (batch, time, directions * width) and the last (h, c); without ``initial``, both start at 0."""
        y, (h, c) = self.run(x, initial)
        return y, (h, c)

    def step(self, given: Node, states: States, weight: Node, bias: Node | None) -> States:
        """Input, forget, cell and output gates, in this order."""
        h, c = states
        enter, forget, cell, leave = in_parts(given + h @ weight, self.GATES, 1)
        kept = forget.sigmoid() * c + enter.sigmoid() * cell.tanh()
        return leave.sigmoid() * kept.tanh(), kept


@dataclass(frozen=True)
class GRU(Recurrent):
    """The gated recurrent unit (Cho et al. 2014), as ``torch.nn.GRU`` with ``batch_first``.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("reader")
    >>> y, h = GRU("gru", inputs=8, width=16, num_layers=2, bidirectional=True)(g.input("x", (4, 10, 8)))
    >>> y.shape, h.shape
    ((4, 10, 32), (4, 4, 16))
    """

    GATES: ClassVar[int] = 3
    BIASES_ADD: ClassVar[bool] = False
    STATES: ClassVar[tuple[str, ...]] = ("h",)

    def __call__(self, x: Node, initial: Node | None = None) -> tuple[Node, Node]:
        """Outputs (batch, time, directions * width) and the last h; without ``initial`` it starts at 0."""
        y, (h,) = self.run(x, None if initial is None else (initial,))
        return y, h

    def step(self, given: Node, states: States, weight: Node, bias: Node | None) -> States:
        """Reset, update and new gates, in this order."""
        (h,) = states
        kept = h @ weight
        if bias is not None:
            kept = kept + bias
        reset, update, new = in_parts(given, self.GATES, 1)
        kept_reset, kept_update, kept_new = in_parts(kept, self.GATES, 1)
        reset, update = (reset + kept_reset).sigmoid(), (update + kept_update).sigmoid()
        new = (new + reset * kept_new).tanh()
        return ((1.0 - update) * new + update * h,)
