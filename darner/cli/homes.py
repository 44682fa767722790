"""``_homes.py``: which modules declare each op and builder, so that they are imported when one is asked for."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from pkgutil import walk_packages
from textwrap import fill
from types import FunctionType

from .. import compat, ops, transforms
from .. import interpreter as interpreter  # adds rules to ops
from ..graph.op import Op, Rule, Rules
from .facts import Item, builtin_items

HEADER = '''\
"""Which module declares each op and builder, and which others add rules to it.

Generated from the registry; do not edit. To bring it up to date: python -m darner.cli.generate
"""

HOMES = {
'''


def homes_text() -> str:
    """The whole of ``_homes.py``."""
    for package in (ops, compat, transforms):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    homes: dict[str, list[str]] = {}
    for item in builtin_items():
        homes.setdefault(" ".join(_modules(item)), []).append(item.name)
    return HEADER + "".join(_row(modules, homes[modules]) for modules in sorted(homes)) + "}\n"


def _row(modules: str, names: list[str]) -> str:
    text = fill(" ".join(sorted(names)), 88)
    lines = text.split("\n")
    if len(lines) == 1:
        return f'    "{modules}": "{text}",\n'
    quoted = [f'"{line} "' for line in lines[:-1]] + [f'"{lines[-1]}"']
    return f'    "{modules}": (\n' + "".join(f"        {line}\n" for line in quoted) + "    ),\n"


def _modules(item: Item) -> list[str]:
    """Where an item is declared, and what else adds rules to it."""
    if not isinstance(item, Op):
        return [_below(item.function)]
    home = _below(item.infer)
    rules = (getattr(item.rules, field.name) for field in fields(Rules))
    added = {_below(rule) for rule in rules if isinstance(rule, FunctionType)}
    return [home, *sorted(added - {home})]


def _below(function: Rule) -> str:
    """The module of a function, without the package."""
    return function.__module__.partition(".")[2]
