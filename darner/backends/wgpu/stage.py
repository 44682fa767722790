"""A dispatch on a GPU: its shader, and what it has bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...codegen.simt.dispatch import Binding
from .access import Access, Line, Ways, Windows


@dataclass(frozen=True)
class Move:
    """What a dispatch has copied to scratch memory, because it cannot have it bound where it lies.

    Attributes:
        binding: what is copied; back too, afterwards, unless it is an operand.
        room: the scratch memory that it is copied to.
    """

    binding: Binding
    room: Binding


@dataclass(frozen=True)
class Listing:
    """A shader without its bindings: lines of text, and accesses whose text depends on these."""

    lines: tuple[Line, ...]

    def memories(self) -> set[str]:
        """The names of all buffers that it reads or writes."""
        return {line.memory for line in self.lines if isinstance(line, Access)}

    def text(self, declared: Sequence[tuple[str, str]], ways: Ways) -> str:
        """The shader, with buffers that have these names and types of items."""
        bound = [
            f"@group(0) @binding({number}) var<storage, read_write> {name}: array<{item}>;"
            for number, (name, item) in enumerate(declared)
        ]
        written = [line.text(ways) if isinstance(line, Access) else line for line in self.lines]
        windows = [way.functions().rstrip() for way in ways.values() if isinstance(way, Windows)]
        return "\n".join([*bound, *filter(None, windows), *written])


@dataclass(frozen=True)
class Stage:
    """A dispatch.

    Attributes:
        text: its shader.
        groups: its workgroups, across and down.
        bindings: what it has bound, in the order of the bindings' numbers.
        copies: an operand and a result, where all it does is to copy the one to the other: it is left out where both are the same memory.
        moves: what is copied to scratch memory before it, and back.
        listing: what the text was made of; None of one that was kept.
        buffers: the names and types of items of what is bound.
    """

    text: str
    groups: tuple[int, int]
    bindings: tuple[Binding, ...]
    copies: tuple[int, int] | None = None
    moves: tuple[Move, ...] = ()
    listing: Listing | None = field(default=None, compare=False, repr=False)
    buffers: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    @staticmethod
    def of(
        listing: Listing,
        bound: Sequence[tuple[str, str, Binding]],
        groups: tuple[int, int],
        copies: tuple[int, int] | None,
    ) -> Stage:
        """A dispatch that has every buffer bound by itself: names, types of items, and what they are."""
        buffers = tuple((name, item) for name, item, _ in bound)
        bindings = tuple(binding for _, _, binding in bound)
        text = listing.text(buffers, {})
        return Stage(text, groups, bindings, copies, (), listing, buffers)

    def bound_anew(
        self,
        bound: Sequence[tuple[str, str, Binding]],
        ways: Ways,
        moves: Sequence[Move],
    ) -> Stage:
        """The same with other bindings."""
        if self.listing is None:
            return self
        text = self.listing.text([(name, item) for name, item, _ in bound], ways)
        bindings = tuple(binding for _, _, binding in bound)
        return replace(self, text=text, bindings=bindings, moves=tuple(moves))
