"""``darner ops``: the ops there are, and all about one of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from ..graph.errors import did_you_mean
from ..graph.op import Op
from . import EXIT_USAGE
from .facts import (
    Item,
    arguments,
    arguments_text,
    builtin_items,
    by_family,
    has_several_results,
    kind_of,
    summary,
    supports,
)
from .options import new_parser
from .streams import say

_COLUMNS = ("op", "arguments", "family", "kind", "supports", "summary")
_WIDEST = 44  # a longer call pushes its own line out, not everyone's


def add_command(commands: Any) -> None:
    """Add ``ops`` to the command line."""
    parser = new_parser(
        commands,
        "ops",
        run,
        help="list the ops, or explain one",
        description="List every op of darner, or explain the one called NAME.",
        example="  darner ops softmax\n  darner ops --family norms",
        epilog="A primitive has a reference of its own; a composite is a function of other ops and runs\n"
        "by its expansion; a builder is a graph method that only adds other ops.",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="explain this op in full")
    parser.add_argument("--family", metavar="FAMILY", help="list only the ops of this family")
    parser.add_argument("--json", action="store_true", help="write JSON, for other programs")


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner ops``."""
    items = builtin_items()
    if options.name is not None and options.family is not None:
        options.parser.error("give either NAME or --family, not both")
    if options.name is not None:
        known = {item.name: item for item in items}
        if options.name not in known:
            return _unknown("op", options.name, known, "'darner ops' lists them")
        item = known[options.name]
        if options.json:
            print(json.dumps(full_record(item), indent=2))
        else:
            print(explanation(item))
        return 0
    if options.family is not None:
        families = by_family(items)
        if options.family not in families:
            return _unknown(
                "family", options.family, families, f"the families are {', '.join(families)}"
            )
        items = families[options.family]
    if options.json:
        print(json.dumps([record(item) for item in items], indent=2))
    elif sys.stdout.isatty():
        _print_table(items)
    else:
        print("\n".join(plain_table(items)))
    return 0


def _unknown(what: str, name: str, known: Any, otherwise: str) -> int:
    hint = did_you_mean(name, known) or otherwise
    say(f"darner ops: no {what} is called '{name}'; {hint}")
    return EXIT_USAGE


# --------------------------------------------------------------------------- one op


def record(item: Item) -> dict[str, Any]:
    """One entry of the JSON list."""
    return {
        "name": item.name,
        "signature": item.signature,
        "family": item.family,
        "kind": kind_of(item),
        "supports": list(supports(item)),
        "summary": summary(item),
    }


def full_record(item: Item) -> dict[str, Any]:
    """Everything about one op, for JSON."""
    rows = arguments(item) if isinstance(item, Op) else []
    table = [
        {"name": row.name, "kind": row.kind, "accepts": row.accepts, "default": row.default}
        for row in rows
    ]
    return {**record(item), "arguments": table, "doc": item.doc}


def explanation(item: Item) -> str:
    """Everything about one op, for people."""
    can = ", ".join(supports(item))
    lines = [item.signature, "", item.doc.replace("``", "`"), ""]
    facts = [("family", item.family), ("kind", kind_of(item)), ("supports", can)]
    if isinstance(item, Op):
        facts.append(("results", "several" if has_several_results(item) else "one"))
        facts.append(("traits", ", ".join(sorted(item.traits))))
    lines += [f"{name:<10}{text}" for name, text in facts if text]
    if isinstance(item, Op) and item.params:
        rows = [
            [row.name, row.kind, "required" if row.default is None else row.default, row.accepts]
            for row in arguments(item)
        ]
        lines += ["", *aligned([["argument", "is", "default", "element types"], *rows])]
    return "\n".join(lines)


# --------------------------------------------------------------------------- the list


def _cells(item: Item) -> list[str]:
    can = " ".join(supports(item)) or "-"
    text = summary(item).replace("``", "")
    return [item.name, arguments_text(item), item.family, kind_of(item), can, text]


def aligned(rows: Sequence[Sequence[str]], widest: int = _WIDEST) -> list[str]:
    """Rows as lines with columns below each other; nothing is cut."""
    widths = [min(max(map(len, column)), widest) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def plain_table(items: Sequence[Item]) -> list[str]:
    """One line an op, for pipes."""
    return aligned([_COLUMNS, *map(_cells, items)])


def _print_table(items: Sequence[Item]) -> None:
    """A table for a terminal, with a section for each family."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("op", overflow="fold", ratio=3)
    table.add_column("kind", no_wrap=True)
    table.add_column("supports", ratio=1)
    table.add_column("summary", ratio=4)
    for family, members in by_family(items).items():
        table.add_row(Text(family, style="bold cyan"))
        for item in members:
            name, call, _, kind, can, text = _cells(item)
            cell = Text.assemble((name, "bold"), (call, "dim"))
            table.add_row(cell, kind, can, Text(text))
        table.add_section()
    console.print(table)
    console.print(f"{len(items)} ops; 'darner ops NAME' explains one")
