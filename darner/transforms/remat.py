"""Values computed again in the backward pass instead of kept for it.

The nodes of a recorded scope (``graph.remat``) form a region. When the backward pass enters it, the values that the
rules of its nodes read are computed anew from what enters the region: its boundary. Boundary values, and what the
region's policy keeps, are all that stays alive between the passes. A clone would be equal to its original and merged
with it by any pass that looks for equal nodes, so one operand of each clone that begins a chain goes through
``recompute_barrier``, which also waits for a cotangent of the region. Regions nest: an inner one begins from the
clones of the one around it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from ..graph.errors import ArgumentError, ShapeError, UnknownNameError, caller, did_you_mean
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.regions import RematPolicy, as_policy, regions_around

Function = TypeVar("Function", bound=Callable[..., Any])
Remat = Mapping[str, Any] | Iterable[str] | str | None


class Recompute:
    """Forward values as the rules of a backward pass over ``graph`` see them.

    ``names`` gives the ops that nodes were before they were written out, for policies to recognise.
    """

    def __init__(self, graph: Graph, names: Mapping[int, str] | None = None) -> None:
        self.graph = graph
        self.forward = len(graph)
        self.names = names or {}
        self._after: dict[str, Node] = {}
        self._clones: dict[tuple[str, int], Node] = {}
        self._barriers: dict[tuple[str, int], Node] = {}
        self._apart: set[int] = set()
        """Clones that a barrier keeps from being merged with their originals."""
        self._around: dict[int, tuple[str, ...]] = {}
        self._kept: dict[tuple[str, int], bool] = {}
        self._ends = {node.id for node in (*graph.outputs, *graph.updates.values())}

    def reading(self, node: Node, cotangent: Any) -> Callable[[Node], Node]:
        """How the rule of ``node`` sees values, now that its cotangent is known."""
        around = self._regions(node)
        if not around:
            return lambda value: value
        known = (
            cotangent
            if isinstance(cotangent, Node)
            else next(c for c in cotangent if c is not None)
        )
        for path in around:
            self._after.setdefault(path, known)
        return lambda value: self._value(around, value)

    def _regions(self, node: Node) -> tuple[str, ...]:
        found = self._around.get(node.id)
        if found is None:
            found = self._around[node.id] = regions_around(self.graph, node)
        return found

    def _value(self, around: tuple[str, ...], node: Node) -> Node:
        """A value as it is seen from inside some regions, the innermost last."""
        while around and not self._is_recomputed(around[-1], node):
            around = around[:-1]
        return self._clone(around, node) if around else node

    def _is_recomputed(self, path: str, node: Node) -> bool:
        if path not in self._regions(node):
            return False
        key = (path, node.id)
        if key not in self._kept:
            self._kept[key] = self._is_read_outside(path, node) or self._is_chosen(path, node)
        return not self._kept[key]

    def _is_read_outside(self, path: str, node: Node) -> bool:
        """Whether a value of a region, or a view of it, is there for others anyway."""
        if node.id in self._ends:
            return True
        for user in self.graph.users(node):
            if user.id >= self.forward:
                continue
            is_view = "view" in user.op.traits and user.op.name != "project"
            if path not in self._regions(user) or (is_view and self._is_read_outside(path, user)):
                return True
        return False

    def _is_chosen(self, path: str, node: Node) -> bool:
        """Whether the region's policy keeps a value."""
        if node.op.name == "project":  # one result of a node stays when the node does
            node = self.graph.nodes[node.inputs[0]]
        policy = self.graph._remat[path]
        if self.names.get(node.id, node.op.name) in policy.keep:
            return True
        try:
            return "view" not in node.op.traits and bool(node.type.nbytes <= policy.larger_than)
        except ShapeError:
            return False  # a size that only binding tells may be large

    def _clone(self, around: tuple[str, ...], node: Node) -> Node:
        """A node computed again, and before it what it needs of its region."""
        path = around[-1]
        if (path, node.id) not in self._clones:
            for item in self._missing(path, node):
                self._clones[path, item.id] = self._cloned(around, item)
        return self._clones[path, node.id]

    def _missing(self, path: str, node: Node) -> list[Node]:
        """The nodes to clone for one of them, in order; no recursion, for regions may be long."""
        found: dict[int, Node] = {}
        waiting = [node]
        while waiting:
            item = waiting.pop()
            if item.id in found or (path, item.id) in self._clones:
                continue
            found[item.id] = item
            waiting += [o for o in item.operands if self._is_recomputed(path, o)]
        return [found[i] for i in sorted(found)]

    def _cloned(self, around: tuple[str, ...], node: Node) -> Node:
        path = around[-1]
        operands = [self._value(around, operand) for operand in node.operands]
        if not any(operand.id in self._apart for operand in operands):
            index = self._to_hold(node, operands)
            if index is not None:
                operands[index] = self._barrier(path, operands[index])
        clone = self.graph.insert(
            node.op, operands, node.slots, node.attrs, scope=node.scope, source=node.source
        )
        if any(operand.id in self._apart for operand in operands):
            self._apart.add(clone.id)
        return clone

    def _to_hold(self, node: Node, operands: list[Node]) -> int | None:
        """The operand to put a barrier before: one that varies; constants and masks may be shared."""
        for index, operand in enumerate(operands):
            if self._varies(operand):
                return index
        return 0 if operands and "random" in node.op.traits else None

    def _varies(self, node: Node) -> bool:
        """Whether a value depends on a leaf of the graph."""
        seen: set[int] = set()
        waiting = [node]
        while waiting:
            item = waiting.pop()
            if item.op.name in LEAVES:
                return True
            if item.id not in seen:
                seen.add(item.id)
                waiting += item.operands
        return False

    def _barrier(self, path: str, value: Node) -> Node:
        key = (path, value.id)
        if key not in self._barriers:
            held = self.graph.insert(
                "recompute_barrier",
                [value, self._after[path]],
                ("x", "after"),
                {},
                source=self.graph.source_of_call(),
            )
            self._barriers[key] = held
            self._apart.add(held.id)
        return self._barriers[key]


def regions(graph: Graph, chosen: Remat) -> dict[str, RematPolicy]:
    """The scopes to recompute: those that the graph records, and those that ``chosen`` names.

    A name may have ``*`` in place of a part: ``"layers.*"`` makes each scope directly inside ``layers`` a region.
    """
    found = dict(graph._remat)
    if chosen is None:
        return found
    if isinstance(chosen, str):
        chosen = [chosen]
    named = chosen if isinstance(chosen, Mapping) else dict.fromkeys(chosen)
    scopes = {node.scope: None for node in graph.nodes if node.scope and node.op.name not in LEAVES}
    for pattern, policy in named.items():
        settled = as_policy(policy)
        matched = _matching(pattern, scopes)
        if not matched:
            raise UnknownNameError(
                f"graph '{graph.name}' has no scope '{pattern}'",
                hint=did_you_mean(pattern, scopes) or "open one: with graph.scope(name):",
            )
        found.update(dict.fromkeys(matched, settled))
    return found


def _matching(pattern: str, scopes: Iterable[str]) -> list[str]:
    """The scopes that a pattern names, each cut to as many parts as it has."""
    wanted = pattern.split(".")
    found: dict[str, None] = {}
    for scope in scopes:
        parts = scope.split(".")[: len(wanted)]
        if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
            found[".".join(parts)] = None
    return list(found)


def remat(function: Function, *, name: str | None = None, policy: Any = None) -> Function:
    """A function of nodes whose values are computed again in the backward pass.

    Every call is a scope of its own, named after the function (or ``name``) and numbered; see ``Graph.remat``.

    >>> import darner
    >>> g = darner.Graph()
    >>> block = darner.remat(lambda x: x.tanh().exp(), name="block")
    >>> g.set_outputs([block(block(g.input("x", (3,)))).sum()])
    >>> [node.op.name for node in darner.grad(g, "x").nodes].count("tanh")
    4
    """
    stem = name or str(getattr(function, "__name__", "remat"))

    @functools.wraps(function)
    def call_in_region(*args: Any, **kwargs: Any) -> Any:
        graph = _graph_of(args, kwargs)
        with graph.remat(_free_name(graph, stem), policy):
            return function(*args, **kwargs)

    return call_in_region  # type: ignore[return-value]


def _graph_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Graph:
    for value in (*args, *kwargs.values()):
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Graph):
                return item
            if isinstance(item, Node):
                return item.graph
    raise ArgumentError("no argument is a node or a graph").located("remat", None, "", caller())


def _free_name(graph: Graph, stem: str) -> str:
    count = 0
    while ".".join([*graph._scopes, f"{stem}_{count}"]) in graph._remat:
        count += 1
    return f"{stem}_{count}"
