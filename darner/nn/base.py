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
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

from ..graph.errors import ArgumentError, DarnerError, ShapeError, caller
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType

Layer = TypeVar("Layer")


@dataclass_transform(frozen_default=True)
def layer(cls: type[Layer]) -> type[Layer]:
    """A frozen dataclass whose mistakes are told in its own terms, with the user's line.

    >>> from darner import nn
    >>> nn.Linear(784, 10)
    Traceback (most recent call last):
    darner.graph.errors.ArgumentError: Linear: a layer's name comes first, got 784; Linear("linear", 784, 10) (...)
    """
    made: Any = dataclass(frozen=True)(cls)
    made.__init__ = _located(made.__init__, _checked_arguments)
    if "__call__" in vars(made):
        made.__call__ = _located(made.__call__, _checked_operand)
    return made


def _located(method: Callable[..., Any], checked: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose errors have the line that called it."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return checked(method, self, *args, **kwargs)
        except DarnerError as error:
            if error.source is None:
                error.source = caller()
            raise

    return call


def _checked_arguments(method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    kind = type(self).__name__
    named = "name" in type(self).__dataclass_fields__
    if named and args and not isinstance(args[0], str):
        shown = [f"{value!r}" for value in args] + [f"{key}={kwargs[key]!r}" for key in kwargs]
        raise ArgumentError(
            f"{kind}: a layer's name comes first, got {args[0]!r}",
            hint=f'{kind}("{kind.lower()}", {", ".join(shown)})',
        )
    try:
        method(self, *args, **kwargs)
    except TypeError:
        signature = inspect.signature(method)
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            taken = ", ".join(
                name if field.default is inspect.Parameter.empty else f"{name}={field.default!r}"
                for name, field in list(signature.parameters.items())[1:]
            )
            raise ArgumentError(f"{kind}: {error}", hint=f"the call is {kind}({taken})") from None
        raise


def _checked_operand(method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    if args and not isinstance(args[0], Node):
        name = getattr(self, "name", "")
        shown = type(self).__name__ + (f" '{name}'" if name else "")
        raise ArgumentError(
            f"{shown} takes a node of a graph, got {type(args[0]).__name__}",
            hint='g.input("x", shape) is a node; a session then runs the graph on arrays',
        )
    return method(self, *args, **kwargs)


def scope(graph: Graph, name: str) -> AbstractContextManager[Any]:
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


def positive(layer: Any, *fields: str) -> None:
    """Refuse a layer whose sizes are no positive whole numbers."""
    for field in fields:
        size = getattr(layer, field)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(
                f"{type(layer).__name__} '{layer.name}': {field} is a positive whole number, got {size!r}"
            )
