"""Scopes whose values a backward pass computes again instead of keeping them.

A graph records such a scope with ``with graph.remat("block3"):``. What belongs to it is said by the nodes: those made
inside carry the scope's name. ``transforms.remat`` acts on the record; here it is made, read and written.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .attributes import as_text
from .errors import ArgumentError, UnknownNameError, did_you_mean
from .op import OPS

if TYPE_CHECKING:
    from .graph import Graph
    from .node import Node


@dataclass(frozen=True, slots=True)
class RematPolicy:
    """What a scope that is recomputed keeps all the same. By default: nothing but what others read.

    Attributes:
        keep: names of ops whose results are kept, such as ``("matmul",)``.
        larger_than: values of this many bytes or fewer are kept.
    """

    keep: tuple[str, ...] = ()
    larger_than: int = 0

    def __post_init__(self) -> None:
        given: Any = self.keep
        names = (given,) if isinstance(given, str) else tuple(given)
        for name in names:
            if name not in OPS:
                raise UnknownNameError(
                    f"no op is called '{name}'", hint=did_you_mean(str(name), OPS)
                )
        try:
            size = operator.index(self.larger_than)
        except TypeError:
            size = -1
        if size < 0 or isinstance(self.larger_than, bool):
            raise ArgumentError(
                f"larger_than is a number of bytes, not {self.larger_than!r}",
                hint="keep= takes the names of ops",
            )
        object.__setattr__(self, "keep", names)
        object.__setattr__(self, "larger_than", size)

    def to_json(self) -> dict[str, Any]:
        """The parts that differ from the default."""
        document: dict[str, Any] = {}
        if self.keep:
            document["keep"] = list(self.keep)
        if self.larger_than:
            document["larger_than"] = self.larger_than
        return document

    @staticmethod
    def from_json(document: Any) -> RematPolicy:
        """What ``to_json`` wrote."""
        if not isinstance(document, dict) or not document.keys() <= {"keep", "larger_than"}:
            raise ArgumentError(f"expected a policy with keep and larger_than, got {document!r}")
        keep = document.get("keep", [])
        if not isinstance(keep, list) or not all(isinstance(name, str) for name in keep):
            raise ArgumentError(f"keep should be a list of names, not {keep!r}")
        return RematPolicy(**document)


def as_policy(value: Any) -> RematPolicy:
    """A policy from its loose spellings: None, names of ops to keep, or a number of bytes."""
    if value is None:
        return RematPolicy()
    if isinstance(value, RematPolicy):
        return value
    if isinstance(value, str) or (isinstance(value, Iterable) and not isinstance(value, dict)):
        return RematPolicy(keep=value)  # type: ignore[arg-type]  # it settles the form
    return RematPolicy(larger_than=value)


def read_region(graph: Graph, path: Any, document: Any) -> None:
    """Record a scope as a document states it."""
    graph._remat[as_text(path, "a scope", empty=False)] = RematPolicy.from_json(document)


def regions_around(graph: Graph, node: Node) -> tuple[str, ...]:
    """The recorded scopes that a node lies in, the outermost first; leaves lie in none.

    One result of a node with several lies where that node does.
    """
    if not graph._remat:
        return ()
    if node.op.name == "project":
        node = graph.nodes[node.inputs[0]]
    if "leaf" in node.op.traits:
        return ()
    found, path = [], ""
    for part in node.scope.split("."):
        path = f"{path}.{part}" if path else part
        if path in graph._remat:
            found.append(path)
    return tuple(found)


def region_lines(graph: Graph) -> Iterator[tuple[str, RematPolicy, str]]:
    """For each scope with nodes: its name, its policy, and the ids of its nodes as ``%3-%9, %12``.

    A node is listed in the innermost of its scopes only.
    """
    members: dict[str, list[int]] = {path: [] for path in graph._remat}
    if members:
        for node in graph.nodes:
            if around := regions_around(graph, node):
                members[around[-1]].append(node.id)
    for path, ids in members.items():
        if ids:
            yield path, graph._remat[path], ", ".join(_ranges(ids))


def _ranges(ids: list[int]) -> Iterator[str]:
    start = previous = ids[0]
    for i in [*ids[1:], -1]:
        if i != previous + 1:
            yield f"%{start}" if start == previous else f"%{start}-%{previous}"
            start = i
        previous = i
