"""A body that is written as a function: nodes of the graph around it become inputs of it.

While a function builds a body, it may read nodes of the graph in which it is written, as a Python function reads variables around it. Each becomes an
input of the body, once; parameters and states that layers declare inside are declared around it.
"""

from __future__ import annotations

from .errors import ArgumentError
from .graph import Graph
from .node import Node


class Body(Graph):
    """A graph under construction inside another, whose nodes it captures."""

    def __init__(self, outer: Graph, name: str) -> None:
        super().__init__(name)
        self._around: Graph | None = outer
        self._scopes = list(outer._scopes)
        self.captured: dict[Node, Node] = {}
        """Nodes of the outer graph, and the inputs that stand for them."""

    def is_inside(self, other: Graph) -> bool:
        """Whether nodes of ``other`` can be read here."""
        return self._around is not None and (self._around is other or self._around.is_inside(other))

    def adopt(self, node: Node) -> Node:
        """What stands here for a node of a graph around this one."""
        if self._around is None or not self.is_inside(node.graph):
            return super().adopt(node)
        near = node if node.graph is self._around else self._around.adopt(node)
        known = self.captured.get(near)
        if known is None or not self._has(known):
            if near.op.name == "constant":
                self.captured[near] = self.insert_like(near, [])
            else:
                with self._without_scopes():
                    name = f"captured{len(self.captured)}"
                    self.captured[near] = self.input(name, near.shape, near.dtype)
        return self.captured[near]

    def leaf(self, name: str) -> Node | None:
        """The parameter or state of a name, which is one of the graph around."""
        found = super().leaf(name)
        if found is None and self._around is not None:
            found = self._around.leaf(name)
        return None if found is None else self.node(found)

    def node(self, id: int | Node) -> Node:
        """The node of an id; a node of a graph around this one is captured."""
        if isinstance(id, Node) and id.graph is not self:
            return self.adopt(id)
        return super().node(id)

    def parameter(self, *args: object, **kwargs: object) -> Node:
        """A parameter of the outermost graph, read here."""
        return self._declared("parameter", args, kwargs)

    def state(self, *args: object, **kwargs: object) -> Node:
        """A state of the outermost graph, read here."""
        return self._declared("state", args, kwargs)

    def _declared(self, kind: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Node:
        if self._around is None:
            raise ArgumentError(f"a {kind} cannot be declared in a body that is finished")
        before, self._around._scopes = self._around._scopes, self._scopes
        try:
            found: Node = getattr(self._around, kind)(*args, **kwargs)
        finally:
            self._around._scopes = before
        return self.adopt(found)

    def _has(self, node: Node) -> bool:
        """Whether a node is still there: a call that failed takes away what it added."""
        return node.id < len(self._nodes) and self._nodes[node.id] is node

    def _without_scopes(self) -> _Scopes:
        return _Scopes(self)

    def close(self) -> None:
        """Capture no more: what is left of it elsewhere is an error there."""
        self._around = None


class _Scopes:
    """Inputs of a body have no scope in their names."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __enter__(self) -> None:
        self.before, self.graph._scopes = self.graph._scopes, []

    def __exit__(self, *rest: object) -> None:
        self.graph._scopes = self.before
