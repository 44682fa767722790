"""The registry's tables. Ops and builders of darner's own are declared when one of their names is asked for: their room is imported then.

``_rooms.py`` says which modules declare a name; it is generated, and a test compares it with what they declare. A name that it does not have is
looked for in all rooms, so an op that was just written is found too.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TypeVar

from .._rooms import ROOMS

T = TypeVar("T")

_WAITING = {name: modules for modules, names in ROOMS.items() for name in names.split()}
"""The modules that declare each name, and those that add rules to it, as long as they may not be imported."""
_PLACES = {name: place for place, name in enumerate(_WAITING)}


class Table(MutableMapping[str, T]):
    """Records by name.

    Attributes:
        declared: those that are there without an import.
    """

    def __init__(self) -> None:
        self.declared: dict[str, T] = {}
        self._complete = False

    def __getitem__(self, name: str) -> T:
        if name in _WAITING:
            import_rooms_of(name)
        found = self.declared.get(name)
        if found is None:
            import_all_rooms()
            return self.declared[name]
        return found

    def __setitem__(self, name: str, item: T) -> None:
        self.declared[name] = item

    def __delitem__(self, name: str) -> None:
        del self.declared[name]

    def __iter__(self) -> Iterator[str]:
        self._complete_in_order()
        return iter(self.declared)

    def __len__(self) -> int:
        self._complete_in_order()
        return len(self.declared)

    def _complete_in_order(self) -> None:
        """All that darner has, in one order whatever was asked for first, and behind it what others declared."""
        if not self._complete:
            import_all_rooms()
            in_order = sorted(self.declared, key=lambda name: _PLACES.get(name, len(_PLACES)))
            self.declared = {name: self.declared[name] for name in in_order}
            self._complete = True


def import_rooms_of(name: str) -> None:
    """Import what declares a name, if it is one of darner's own."""
    if name in _WAITING:
        _import(_WAITING[name])


def import_all_rooms() -> None:
    """Declare all that darner has."""
    if _WAITING:
        for modules in ROOMS:
            _import(modules)


def _import(modules: str) -> None:
    """Import modules; their names are waited for no more, unless one is just being imported and asks for them itself."""
    imported = [import_module(f"..{module}", __package__) for module in modules.split()]
    if not any(getattr(module.__spec__, "_initializing", False) for module in imported):
        for name in ROOMS[modules].split():
            _WAITING.pop(name, None)
