"""Integers in the methods of a graph: numbers beside a node, ids where every operand is one.

g.maximum(x, 0)      the number 0
g.maximum(3, 4)      nodes 3 and 4
g.maximum(3, 0.5)    refused: 3 could be either
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from .errors import ArgumentError, DarnerError, caller
from .op import Builder, Op, calls, shown_annotation


def is_node(value: Any) -> bool:
    """Whether a value is a node (whose class needs this module)."""
    return isinstance(value, calls().Node)


def with_nodes(
    graph: Any, item: Op | Builder, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with nodes in place of ids.

    An integer beside a node is a number. Integers are ids where every operand of the call is one; beside floats or
    arrays alone either may be meant, and neither is guessed.
    """
    places = _node_parameters(item)
    if args and is_node(args[0]) and 0 in places.positions:
        return args, kwargs  # nearly all calls
    if isinstance(item, Op) and item.rules.spelled_operands is not None:
        places = places.with_positions(item.rules.spelled_operands(args))
    given: list[Any] = []
    for key, many in places.of(args, kwargs):
        value = args[key] if isinstance(key, int) else kwargs[key]
        given.extend(value if _is_list_of_nodes(value, many) else [value])
    try:
        nodes = from_ids(graph, given)
    except DarnerError as error:
        raise error.located(item.name, None, "", caller()) from None
    if nodes is given:
        return args, kwargs
    remaining = iter(nodes)
    resolved, keywords = list(args), dict(kwargs)
    for key, many in places.of(args, kwargs):
        target: Any = resolved if isinstance(key, int) else keywords
        value = target[key]
        if _is_list_of_nodes(value, many):
            target[key] = [next(remaining) for _ in value]
        else:
            target[key] = next(remaining)
    return tuple(resolved), keywords


def from_ids(graph: Any, operands: list[Any]) -> list[Any]:
    """The nodes that the operands of one call are the ids of; the same list where they are not ids."""
    if any(is_node(value) for value in operands):
        return operands
    ids = [value for value in operands if isinstance(value, int) and not isinstance(value, bool)]
    if not ids:
        return operands
    if len(ids) < sum(value is not None for value in operands):
        raise ArgumentError(
            f"no operand is a node, and {ids[0]} may be a number or the id of a node",
            hint=f"write {ids[0]}.0 or g.constant({ids[0]}) for the number, g.node({ids[0]}) for the node",
        )
    return [None if value is None else graph.node(value) for value in operands]


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an op takes nodes, and whether it takes a list of them there."""

    positions: dict[int, bool]
    names: dict[str, bool]
    rest: int | None = None
    """The position from which on all are nodes (``*operands``)."""

    def with_positions(self, more: Iterable[int]) -> _Places:
        return replace(self, positions={**self.positions, **dict.fromkeys(more, False)})

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[tuple[int | str, bool]]:
        """The positions and names of a call's operands."""
        for i in range(len(args)):
            if i in self.positions:
                yield i, self.positions[i]
            elif self.rest is not None and i >= self.rest:
                yield i, True
        for name in kwargs:
            if name in self.names:
                yield name, self.names[name]


@cache
def _node_parameters(item: Op | Builder) -> _Places:
    if isinstance(item, Op):
        params = [(p.name, p.is_operand, p.variadic, p.keyword_only) for p in item.params]
        return _places(params, None)
    found = list(inspect.signature(item.function).parameters.values())[1:]
    params = [
        (
            p.name,
            "Node" in shown_annotation(p) and p.kind is not inspect.Parameter.VAR_POSITIONAL,
            "list[Node]" in shown_annotation(p),
            p.kind is inspect.Parameter.KEYWORD_ONLY,
        )
        for p in found
    ]
    rest = [
        i
        for i, p in enumerate(found)
        if p.kind is inspect.Parameter.VAR_POSITIONAL and "Node" in shown_annotation(p)
    ]
    return _places(params, rest[0] if rest else None)


def _places(params: list[tuple[str, bool, bool, bool]], rest: int | None) -> _Places:
    names = {name: many for name, takes, many, _ in params if takes}
    # A keyword-only parameter has no position: it may stand behind any number of others.
    positions = {
        i: many for i, (_, takes, many, keyword) in enumerate(params) if takes and not keyword
    }
    return _Places(positions, names, rest)


def _is_list_of_nodes(value: Any, many: bool) -> bool:
    """Whether a list holds operands; other lists are data."""
    return isinstance(value, list | tuple) and (many or any(is_node(entry) for entry in value))
