"""The registry's tables. An op or builder of darner's own is declared when its name is asked for: its module is imported then.

``_homes.py`` says which modules declare a name and which add rules to it; it is generated, and a test compares it with what they do. A name that it does
not have is looked for in all modules, so an op that was just written is found too.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from importlib import import_module
from typing import TypeVar

from .._homes import HOMES

T = TypeVar("T")

_WAITING = {name: modules for modules, names in HOMES.items() for name in names.split()}
"""The modules that declare each name, and those that add rules to it, as long as they may not be imported."""
_PLACES = {name: place for place, name in enumerate(_WAITING)}


class Table(MutableMapping[str, T]):
    """Records by name.

    Attributes:
        declared: those that are there without an import.
    """

    def __init__(self) -> None:
        self.declared: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        import_home(name)
        if name not in self.declared:
            import_all()
        return self.declared[name]

    def __setitem__(self, name: str, item: T) -> None:
        self.declared[name] = item

    def __delitem__(self, name: str) -> None:
        del self.declared[name]

    def __iter__(self) -> Iterator[str]:
        """Darner's own in one order, whatever was asked for first, and behind them what others declared."""
        import_all()
        return iter(sorted(self.declared, key=lambda name: _PLACES.get(name, len(_PLACES))))

    def __len__(self) -> int:
        import_all()
        return len(self.declared)


def import_home(name: str) -> None:
    """Import what declares a name and what adds rules to it, if it is one of darner's own."""
    if name in _WAITING:
        _import(_WAITING[name])


def import_all() -> None:
    """Declare all that darner has."""
    if _WAITING:
        for modules in HOMES:
            _import(modules)


def _import(modules: str) -> None:
    """Import modules; their names are waited for no more, unless one is just being imported and asks for them itself."""
    imported = [import_module(f"..{module}", __package__) for module in modules.split()]
    if not any(getattr(module.__spec__, "_initializing", False) for module in imported):
        for name in HOMES[modules].split():
            _WAITING.pop(name, None)
