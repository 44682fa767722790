"""What layers have in common: a name, and parameters made under it.

A layer is a plain dataclass. Calling it adds nodes to the graph of its operand, inside a scope of its name, so that parameters
are called as the layers nest: ``model.layers.0.mlp.up_proj.weight``. Called twice, it uses the same parameters.

    >>> import darner
    >>> from darner import nn
    >>> g = darner.Graph("two layers")
    >>> x = g.input("x", (4, 8))
    >>> with g.scope("encoder"):
    ...     y = nn.Linear("fc1", 8, 16)(x).relu()
    >>> y = nn.Linear("fc2", 16, 2)(y)
    >>> list(g.parameters)
    ['encoder.fc1.weight', 'encoder.fc1.bias', 'fc2.weight', 'fc2.bias']
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ..graph.constructing import Constructed
from ..graph.errors import ArgumentError, DarnerError, ShapeError, caller
from ..graph.graph import Graph
from ..graph.habits.hints import missing
from ..graph.node import Node
from ..graph.types import TensorType


class Layer(metaclass=Constructed):
    """A layer: a dataclass that is called with nodes. Its parameters belong to the graph."""

    _habits: ClassVar[str] = "layer argument"

    if not TYPE_CHECKING:  # a type checker knows the names itself

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            raise missing("layer attribute", f"{type(self).__name__} has no", name, dir(type(self)))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's call by Meganeura's and PyTorch's name: ``forward(x)``, or ``forward(g, x)`` with the graph of ``x`` before it."""
        given = args[1:] if args and isinstance(args[0], Graph) else args
        for x in given if len(given) < len(args) else ():
            if isinstance(x, Node) and x.graph is not args[0]:
                raise ArgumentError(
                    f"{type(self).__name__}.forward: {x} is a node of another graph"
                )
        found: Any = self
        return found(*given, **kwargs)

    def __init_subclass__(cls, **options: Any) -> None:
        """Have calls check that they are of a node, and errors say the user's line."""
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            cls.__call__ = _located(cls.__call__)  # type: ignore[method-assign]


def _located(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if args and not isinstance(args[0], Node):
                raise _no_node(self, args[0])
            return method(self, *args, **kwargs)
        except DarnerError as error:
            if error.source is None:
                error.source = caller()
            raise

    return call


def _no_node(layer: object, given: object) -> ArgumentError:
    name = getattr(layer, "name", "")
    shown = type(layer).__name__ + (f" '{name}'" if name else "")
    return ArgumentError(
        f"{shown} takes a node of a graph, got {type(given).__name__}",
        hint='g.input("x", shape) is a node; a session then runs the graph on arrays',
    )


def scope(graph: Graph, name: str) -> AbstractContextManager[object]:
    """The scope of a layer's name; a layer without one makes its parameters where it stands."""
    return graph.scope(name) if name else nullcontext(graph)


def parameter(
    graph: Graph, name: str, shape: Sequence[int], dtype: Any = "f32", init: str | None = None
) -> Node:
    """The parameter of this name in the current scope, made where there is none yet."""
    known = graph.leaf(str(graph.labelled(name)))
    if known is None:
        return graph.parameter(name, tuple(shape), dtype, init=init)
    wanted = TensorType.new(tuple(shape), dtype)
    if known.op.name != "parameter" or known.type != wanted:
        raise ShapeError(
            f"'{known.name}' is the {known.op.name} {known.type}, where a layer needs the parameter {wanted}"
        )
    return known


def state(
    graph: Graph, name: str, shape: Sequence[int], dtype: Any = "f32", init: float = 0.0
) -> Node:
    """The state of this name in the current scope, made where there is none yet."""
    known = graph.leaf(str(graph.labelled(name)))
    if known is None:
        return graph.state(name, tuple(shape), dtype, init=init)
    wanted = TensorType.new(tuple(shape), dtype)
    if known.op.name != "state" or known.type != wanted:
        raise ShapeError(
            f"'{known.name}' is the {known.op.name} {known.type}, where a layer needs the state {wanted}"
        )
    return known


def check_width(layer: str, x: Node, axis: int, size: int) -> None:
    """Refuse an operand whose width is not the layer's, in the layer's terms."""
    if x.rank < max(axis + 1, -axis) or x.shape[axis] != size:
        order = "the axes are (batch, channels, ...)" if axis == 1 else None
        raise ShapeError(f"{layer} takes {size} on axis {axis}, but x is {x.type}", hint=order)


def positive(layer: object, *fields: str) -> None:
    """Refuse a layer whose sizes are no positive whole numbers."""
    for field in fields:
        size = getattr(layer, field)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"{field} is a positive whole number, got {size!r}")


def within(layer: object, low: float, high: float, *fields: str) -> None:
    """Refuse a layer whose numbers do not lie in ``[low, high]``; NaN does not."""
    for field in fields:
        value = getattr(layer, field)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            raise ArgumentError(f"{field} is a number from {low:g} to {high:g}, got {value!r}")


def check_eps(layer: object) -> None:
    """Refuse an ``eps`` that is negative or not finite."""
    within(layer, 0, 1, "eps")
