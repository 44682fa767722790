"""Sizes for symbols, as a value of their own that serves several graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .dims import Dim, SymbolicDim, as_dim, symbol
from .errors import ArgumentError

Size = int | str | SymbolicDim
"""A size as a user writes it."""


class DimBinding(Mapping[str, Dim]):
    """What symbols are to be: ``graph.bind(DimBinding(seq=128))``.

    A graph takes from it the symbols that it has and leaves the others, so that one binding serves all graphs of a
    model. A plain mapping is stricter: there a name that the graph has not is an error.

    >>> from darner import Graph
    >>> g = Graph("rows")
    >>> x = g.input("x", ("seq", 4))
    >>> sizes = DimBinding(batch=2).set("seq", 8)
    >>> sizes, str(g.bind(sizes).inputs["x"].type)
    (DimBinding(batch=2, seq=8), 'f32[8, 4]')
    """

    def __init__(self, sizes: Mapping[str, Size] | None = None, **more: Size) -> None:
        if sizes is not None and not isinstance(sizes, Mapping):
            raise ArgumentError(
                f"sizes are given by name, got {type(sizes).__name__}",
                hint="DimBinding(seq=128), or DimBinding.from_pairs([('seq', 128)])",
            )
        self._sizes: dict[str, Dim] = {}
        for name, size in {**(sizes or {}), **more}.items():
            self.set(name, size)

    @classmethod
    def new(cls) -> DimBinding:
        """A binding of no symbol yet."""
        return cls()

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[str | SymbolicDim, Size]]) -> DimBinding:
        """A binding from pairs of symbol and size."""
        found = cls()
        for name, size in pairs:
            found.set(name, size)
        return found

    def set(self, name: str | SymbolicDim, size: Size) -> DimBinding:
        """Bind a symbol, or bind it anew; returns the binding."""
        # A symbol prints as its name; anything else is refused as a name.
        key = str(name) if isinstance(name, SymbolicDim) else name
        symbol(key)
        self._sizes[key] = as_dim(size)
        return self

    def __getitem__(self, name: str | SymbolicDim) -> Dim:
        return self._sizes[str(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def __repr__(self) -> str:
        shown = (f"{name}={size}" for name, size in self._sizes.items())
        return f"DimBinding({', '.join(shown)})"
