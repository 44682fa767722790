"""What integers can be, as far as the graph alone says it: an argmax lies on its axis, whatever the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TypeAlias

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType

Range: TypeAlias = tuple[int, int]
"""The least value and the largest."""


def integer_ranges(graph: Graph) -> list[Range | None]:
    """For each node the range its integers lie in; None where nothing is known, or it has no integers.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (4, 10))
    >>> g.set_outputs([x.argmax(1) + 1])
    >>> integer_ranges(g)[-1]
    (1, 10)
    """
    found: list[Range | None] = []
    for node in graph.nodes:
        found.append(_range(node, [found[i] for i in node.inputs]))
    return found


def _range(node: Node, operands: Sequence[Range | None]) -> Range | None:
    name = node.op.name
    if name == "project":
        # The places of top_k; its values are those of its operand.
        whole = node.operands[0]
        if whole.op.name != "top_k" or int(node.attrs["index"]) != 1:
            return None
        x = whole.operands[0]
        return _axis(x, int(whole.attrs["axis"]))
    if isinstance(node.type, TupleType) or not (node.dtype.is_int or name == "cast"):
        return None
    if name == "constant":
        array = node.attrs["values"].array
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    if name == "iota":
        return _axis(node, int(node.attrs["axis"]))
    if name in ("argmax", "argmin", "argsort"):
        x, axis = node.operands[0], node.attrs["axis"]
        # Without an axis it is a place among all elements.
        return (0, max(int(x.size) - 1, 0)) if axis is None else _axis(x, int(axis))
    known = _known(node, operands)
    if known is None or not node.dtype.is_int:
        return None
    low, high = node.dtype.limits
    # What does not fit wraps around.
    return known if low <= known[0] and known[1] <= high else None


def _known(node: Node, operands: Sequence[Range | None]) -> Range | None:
    name = node.op.name
    if node.op.facts.selects or (name == "cast" and node.operands[0].dtype.is_int):
        return operands[0]
    if node.op.facts.reads_part_of is not None:
        return operands[0]
    if name in ("concat", "where"):
        return _union(operands[1:] if name == "where" else operands)
    if name == "remainder" and operands[1] is not None and operands[1][0] > 0:
        return 0, operands[1][1] - 1
    if name in ("maximum", "minimum"):
        return _clipped(name, operands, node.dtype.limits)
    arithmetic = ARITHMETIC.get(name)
    if arithmetic is None or len(operands) != 2:
        return None
    a, b = operands
    if a is None or b is None:
        return None
    ends = [arithmetic(x, y) for x, y in product(a, b)]
    return min(ends), max(ends)


ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
}


def _axis(node: Node, axis: int) -> Range:
    return 0, max(int(node.shape[axis]) - 1, 0)


def _union(ranges: Sequence[Range | None]) -> Range | None:
    known = [found for found in ranges if found is not None]
    if not known or len(known) < len(ranges):
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _clipped(name: str, operands: Sequence[Range | None], limits: Range) -> Range:
    """Each operand limits one end, whatever the other is."""
    choose = max if name == "maximum" else min
    (a, b), (c, d) = (found or limits for found in operands)
    return choose(a, c), choose(b, d)
