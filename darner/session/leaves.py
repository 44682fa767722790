"""The parameters or states of a session as a mapping."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from ..graph.data import Array
from ..graph.errors import ArgumentError

if TYPE_CHECKING:
    from .session import Session


class Leaves(MutableMapping[str, Array]):
    """The parameters or states of a session by name: written through, and read as copies.

    A copy cannot be written to: ``session.parameters()["w"][:] = 0`` is NumPy's error about a read-only array, not a change that is lost.
    """

    def __init__(self, session: Session, kind: str) -> None:
        self._session = session
        self._kind = kind

    def _names(self) -> list[str]:
        with self._session._using(f"{self._kind}s"):
            return list(self._session._values.types(self._kind))

    def __getitem__(self, name: str) -> Array:
        copied = self._session._read_leaf(self._kind, name, None)
        copied.flags.writeable = False
        return copied

    def __setitem__(self, name: str, value: Any) -> None:
        self._session._write_leaves(self._kind, {name: value})

    def __delitem__(self, name: str) -> None:
        raise ArgumentError(f"the {self._kind} '{name}' belongs to the graph: it cannot be removed")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Write several, all or none: every value is checked before the first is written."""
        self._session._write_leaves(self._kind, {**dict(other), **more})

    def __repr__(self) -> str:
        session = self._session
        types = {name: str(type_) for name, type_ in session._values.types(self._kind).items()}
        return f"<{self._kind}s {types}>"
