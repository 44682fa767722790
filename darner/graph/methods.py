"""Every declared op and builder, as a method of graphs and nodes.

The methods come from the registry when they are asked for, so an op declared anywhere has them too.
``methods.pyi`` lists darner's own for editors and type checkers; it is generated
(``python -m darner.cli.generate``) and a test compares it with the registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from .errors import UnknownNameError, caller
from .op import BUILDERS, OPS, Builder, Op, calls, find, shown_annotation, suggest


class GraphMethods:
    """Gives a graph its builders. An ``int`` where a node is expected is a node's id."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        item = None if name.startswith("_") else find(name)
        if item is None:
            hint = suggest(name)
            text = f"Graph has no method or op '{name}'" + (f"; {hint}" if hint else "")
            raise AttributeError(text)
        return _bound_to_graph(self, item)

    def __dir__(self) -> Iterable[str]:
        return sorted({*super().__dir__(), *OPS, *BUILDERS})


class NodeMethods:
    """Gives a node the ops that take it first. A number is a number here, never an id."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        item = None if name.startswith("_") else find(name)
        if item is None or not takes_node_first(item):
            hint = suggest(name)
            text = f"Node has no attribute or op '{name}'" + (f"; {hint}" if hint else "")
            raise AttributeError(text)

        def method(*args: Any, **kwargs: Any) -> Any:
            return _call(item, self.graph, (self, *args), kwargs)

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
    positions, names = _node_parameters(item)

    def method(*args: Any, **kwargs: Any) -> Any:
        resolved = tuple(
            _from_id(graph, item, value, positions[i]) if i in positions else value
            for i, value in enumerate(args)
        )
        keywords = {
            name: _from_id(graph, item, value, names[name]) if name in names else value
            for name, value in kwargs.items()
        }
        return _call(item, graph, resolved, keywords)

    return _described(method, item)


@cache
def _node_parameters(item: Op | Builder) -> tuple[dict[int, bool], dict[str, bool]]:
    """Where the item takes nodes, by position and by name, and whether it takes a list of them."""
    if isinstance(item, Op):
        params = [(p.name, p.is_operand, p.variadic, p.keyword_only) for p in item.params]
    else:
        params = [
            (
                p.name,
                "Node" in shown_annotation(p),
                "list[Node]" in shown_annotation(p),
                p.kind is inspect.Parameter.KEYWORD_ONLY,
            )
            for p in list(inspect.signature(item.function).parameters.values())[1:]
        ]
    names = {name: many for name, takes, many, _ in params if takes}
    # A keyword-only parameter has no position: it may stand behind any number of others.
    positions = {
        i: many for i, (_, takes, many, keyword) in enumerate(params) if takes and not keyword
    }
    return positions, names


def _from_id(graph: Any, item: Op | Builder, value: Any, many: bool) -> Any:
    """The node an id stands for; other values, and lists of numbers that are data, stay."""
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return graph.node(value)
        except UnknownNameError as error:
            raise error.located(item.name, None, "", caller()) from None
    if isinstance(value, list | tuple) and (many or _holds_nodes(value)):
        return [_from_id(graph, item, entry, many=False) for entry in value]
    return value


def _holds_nodes(values: Iterable[Any]) -> bool:
    return any(isinstance(entry, NodeMethods) for entry in values)
