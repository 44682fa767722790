"""Read-only lists of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from .node import Node


class NodeList(Sequence[Node]):
    """A read-only view of nodes. Calling it returns it, so that ``g.nodes()`` reads as ``g.nodes``."""

    __slots__ = ("_items",)

    def __init__(self, items: Sequence[Node]) -> None:
        self._items = items

    @overload
    def __getitem__(self, index: int) -> Node: ...
    @overload
    def __getitem__(self, index: slice) -> NodeList: ...
    def __getitem__(self, index: int | slice) -> Node | NodeList:
        return NodeList(self._items[index]) if isinstance(index, slice) else self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._items[:])  # nodes that the loop adds are not visited

    def __contains__(self, value: object) -> bool:
        return any(item is value for item in self._items)

    # Sequence would compare nodes by ==, which builds one.

    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """The position of a node."""
        for i in range(*slice(start, stop).indices(len(self))):
            if self._items[i] is value:
                return i
        raise ValueError(f"{value!r} is not in the list")

    def count(self, value: object) -> int:
        """How often a node is in the list."""
        return sum(item is value for item in self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeList | list | tuple):
            return NotImplemented
        return len(self) == len(other) and all(a is b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __call__(self) -> NodeList:
        """The list itself."""
        return self

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self._items))}]"
