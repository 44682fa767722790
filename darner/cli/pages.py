"""The pages that are made from the registry: ``docs/ops.md`` and the table in ``docs/types.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..graph import dtypes
from ..graph.errors import DTypeError
from ..graph.op import Op
from .facts import (
    Item,
    arguments,
    builtin_items,
    by_family,
    has_several_results,
    kind_of,
    supports,
)

OPS_HEADER = """\
# Ops

<!-- Generated from the registry by `python -m darner.cli.generate`; do not edit. -->

Every op is a method of a graph (`g.softmax(x)`), and of a node when it takes one first
(`x.softmax()`). Each call also accepts `label=`, the name that errors and dumps show, and each op
`shape=`, a statement about its result that is checked. A *primitive* is not made of other ops; a
*composite* is a function of others and runs by its *expansion*; a *builder* only adds other ops to
the graph. `darner ops` prints the same facts.

Where an op takes a tensor it takes a node, a number, an array or a list of numbers. An integer beside a
node is a number: `g.maximum(x, 0)`, `g.where(mask, x, 0)`. Only where *every* tensor of a call is an
integer are they ids: `g.add(3, 4)` adds nodes 3 and 4.
"""


def ops_page() -> str:
    """The whole of ``docs/ops.md``."""
    families = by_family(builtin_items())
    lines = [OPS_HEADER, "## Contents", ""]
    for family, items in families.items():
        links = ", ".join(f"[{item.name}](#{item.name})" for item in items)
        lines.append(f"- **[{family}](#{_slug(family)})**: {links}")
    for family, items in families.items():
        lines += ["", f"## Family: {family}"]
        for item in items:
            lines += ["", *_entry(item)]
    return "\n".join(lines) + "\n"


def _slug(family: str) -> str:
    """The anchor that a family's heading gets."""
    return "family-" + family.replace(" ", "-").lower()


def _entry(item: Item) -> Iterator[str]:
    yield f"### {item.name}"
    yield ""
    yield "```python"
    yield item.signature
    yield "```"
    yield ""
    yield from _doc(item.doc)
    yield ""
    if isinstance(item, Op) and item.params:
        rows = [
            [f"`{row.name}`", _words(row.kind, row.accepts), _code(row.default)]
            for row in arguments(item)
        ]
        yield from table(["argument", "is", "default"], rows)
        yield ""
    yield _facts(item)


def _words(kind: str, accepts: str) -> str:
    text = f"{kind}: {accepts}" if accepts else kind
    return text.replace("|", "\\|")


def _code(text: str | None) -> str:
    return "" if text is None else f"`{text}`".replace("|", "\\|")


def _facts(item: Item) -> str:
    kind = kind_of(item)
    if not isinstance(item, Op):
        return f"*{kind.capitalize()}.*"
    parts = [kind.capitalize()]
    can = supports(item)
    parts.append(f"has {', '.join(can)}" if can else "has no rule yet")
    if has_several_results(item):
        parts.append("several results")
    return f"*{'; '.join(parts)}.*"


def _doc(text: str) -> Iterator[str]:
    """Documentation as Markdown: examples and indented blocks are fenced."""
    blocks = text.split("\n\n")
    for i, block in enumerate(blocks):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines) or lines[0].startswith(">>> "):
            yield "```python"
            yield from (line.removeprefix("    ") for line in lines)
            yield ""  # so that the fence is not read as the example's output
            yield "```"
        else:
            yield from lines
        if i + 1 < len(blocks):
            yield ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join(['---'] * len(head))}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


# --------------------------------------------------------------------------- docs/types.md


def types_table() -> str:
    """The element types."""
    rows = [[f"`{kind}`", kind.kind, str(kind.itemsize), f"`{kind.numpy}`"] for kind in dtypes.ALL]
    return "\n".join(table(["name", "kind", "bytes", "NumPy"], rows))


def promotion_table() -> str:
    """The common type of every two element types."""

    def common(a: dtypes.DType, b: dtypes.DType) -> str:
        try:
            return str(dtypes.promote(a, b))
        except DTypeError:
            return "-"

    rows = [[f"**{a}**", *(common(a, b) for b in dtypes.ALL)] for a in dtypes.ALL]
    return "\n".join(table(["", *map(str, dtypes.ALL)], rows))


BLOCKS = {"types": types_table, "promotion": promotion_table}


def fill_blocks(page: str) -> str:
    """A page with each block between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` made anew."""
    for name, make in BLOCKS.items():
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        head, found, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"the page has no block '{name}': expected {begin} and {end}")
        page = f"{head}{begin}\n\n{make()}\n\n{end}{tail}"
    return page
