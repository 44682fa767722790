"""Every declared op and builder, as a method of graphs and nodes.

The methods come from the registry when they are asked for, so an op declared anywhere has them too.
``methods.pyi`` lists darner's own for editors and type checkers; it is generated
(``python -m darner.cli.generate``) and a test compares it with the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from .habits.hints import missing
from .ids import with_nodes
from .op import BUILDERS, OPS, Builder, Op, calls, find


class GraphMethods:
    """Gives a graph its builders. Beside a node an ``int`` is a number; where all operands are, they are ids."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        item = find(name)
        if item is None:
            raise missing("tensor", "Graph has no method or op", name, [*OPS, *BUILDERS])
        return _bound_to_graph(self, item)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *OPS, *BUILDERS})


class NodeMethods:
    """Gives a node the ops that take it first. A number is a number here, never an id."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        item = find(name)
        if item is None or not takes_node_first(item):
            raise missing("tensor", "Node has no attribute or op", name, [*OPS, *BUILDERS])

        def method(*args: Any, **kwargs: Any) -> Any:
            return _call(item, None, (self, *args), kwargs)

        return _described(method, item)

    def __dir__(self) -> Iterable[str]:
        items: list[Op | Builder] = [*OPS.values(), *BUILDERS.values()]
        return sorted({*super().__dir__(), *(i.name for i in items if takes_node_first(i))})


def takes_node_first(item: Op | Builder) -> bool:
    """Whether the op or builder makes sense as a method of a node."""
    if isinstance(item, Builder):
        return item.takes_node
    return bool(item.params) and item.params[0].is_operand and not item.params[0].variadic


def _call(item: Op | Builder, graph: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(item, Op):
        return calls().call(item, graph, args, kwargs)
    return calls().call_builder(item, graph, args, kwargs)


def _described(method: Callable[..., Any], item: Op | Builder) -> Callable[..., Any]:
    method.__name__ = item.name
    method.__doc__ = _documentation(item)
    return method


@cache
def _documentation(item: Op | Builder) -> str:
    return f"{item.signature}\n\n{item.doc}"


def _bound_to_graph(graph: Any, item: Op | Builder) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        return _call(item, graph, *with_nodes(graph, item, args, kwargs))

    return _described(method, item)
