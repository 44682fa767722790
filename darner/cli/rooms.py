"""``_rooms.py``: which modules declare each op and builder, so that they are imported when one is asked for."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pkgutil import walk_packages
from textwrap import fill
from types import FunctionType

from .. import compat, ops, transforms
from .. import interpreter as interpreter  # adds rules to ops
from ..graph.op import Op, Rules
from .facts import Item, builtin_items

HEADER = '''\
"""Which modules declare each op and builder: rooms of ``ops``, modules of ``compat``, and whatever adds rules to an op from outside its room.

Generated from the registry; do not edit. To bring it up to date: python -m darner.cli.generate
"""

ROOMS = {
'''


def rooms_text() -> str:
    """The whole of ``_rooms.py``."""
    for package in (ops, compat, transforms):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    rooms: dict[str, list[str]] = {}
    for item in builtin_items():
        rooms.setdefault(" ".join(_modules(item)), []).append(item.name)
    return HEADER + "".join(_row(modules, rooms[modules]) for modules in sorted(rooms)) + "}\n"


def _row(modules: str, names: list[str]) -> str:
    text = fill(" ".join(sorted(names)), 88)
    lines = text.split("\n")
    if len(lines) == 1:
        return f'    "{modules}": "{text}",\n'
    quoted = [f'"{line} "' for line in lines[:-1]] + [f'"{lines[-1]}"']
    return f'    "{modules}": (\n' + "".join(f"        {line}\n" for line in quoted) + "    ),\n"


def _modules(item: Item) -> list[str]:
    """Where an item is declared, and what adds rules to it that its own room does not import."""
    if not isinstance(item, Op):
        return [_room(item.function.__module__)]
    home = _room(item.infer.__module__)
    rules = (getattr(item.rules, field.name) for field in fields(Rules))
    others = {_room(rule.__module__) for rule in rules if isinstance(rule, FunctionType)}
    return [home, *sorted(other for other in others - {home} if not other.startswith("ops"))]


def _room(module: str) -> str:
    """The room of a module of ``ops``; any other as it is."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[0] == "ops" else parts)
