"""Kernels written element by element: every result in loops over its own shape, the rows shared out among the threads.

What an element is made of is emitted by ``Elements``. Reductions that one value a row has are computed before the row's elements are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ...graph.node import Node
from ...lower.plan import Spec
from .elements import Elements, can_emit
from .places import Places, as_value
from .template import Code, Template

KINDS = ("map", "rows", "contract", "index")


def _fits(spec: Spec) -> bool:
    return spec.kind in KINDS and can_emit(spec.body)


def _emit(code: Code) -> None:
    groups: dict[tuple[int, ...], list[tuple[Node, Any]]] = {}
    for output, place in zip(code.body.outputs, code.results, strict=True):
        shape = tuple(int(size) for size in output.shape)
        groups.setdefault(shape, []).append((output, place))
    for shape, outputs in groups.items():
        if prod(shape):
            elements = Elements(code.builder, code.body, code.operands)
            _emit_results(elements, shape, outputs, code.thread, code.threads)


def _emit_results(
    elements: Elements,
    shape: Sequence[int],
    outputs: Sequence[tuple[Node, Any]],
    thread: Any,
    threads: Any,
) -> None:
    """Loops over the rows of results of one shape, then over the elements of a row."""
    places: Places = elements.places
    rows, columns = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)
    lead = shape[:-1] if len(shape) > 1 else shape
    first = elements.builder.udiv(elements.builder.mul(thread, as_value(rows)), threads)
    after = elements.builder.add(thread, as_value(1))
    last = elements.builder.udiv(elements.builder.mul(after, as_value(rows)), threads)

    def row(number: Any, _: list[Any]) -> Sequence[Any]:
        index = places.split(number, lead)

        def element(column: Any, _: list[Any]) -> Sequence[Any]:
            full = [*index, column] if len(shape) > 1 else index
            # All are computed before any is written: a result may lie where an operand does.
            values = [elements.at(node, full) for node, _ in outputs]
            offset = places.add(places.mul(number, columns), column) if len(shape) > 1 else number
            for (node, pointer), value in zip(outputs, values, strict=True):
                elements.registers.store(value, pointer, offset, node.dtype)
            return []

        for node in _row_values(outputs, shape):
            elements.at(node, _row_index(node, index, len(shape)))
        if len(shape) > 1:
            elements.loop(0, columns, element)
        else:
            element(0, [])
        return []

    elements.loop(first, last, row)


def _row_values(outputs: Sequence[tuple[Node, Any]], shape: Sequence[int]) -> list[Node]:
    """The reductions over the last axis that elements of the results share with their row."""
    if len(shape) < 2:
        return []
    found: dict[int, Node] = {}
    seen: set[int] = set()
    stack = [node for node, _ in outputs]
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.op.name in ("sum", "prod", "max", "min") and _is_of_rows(node, shape):
            found[node.id] = node
        stack += node.operands
    return [found[id] for id in sorted(found)]


def _is_of_rows(node: Node, shape: Sequence[int]) -> bool:
    (x,) = node.operands
    whole = tuple(int(size) for size in x.shape) == tuple(shape)
    return whole and node.attrs["axes"] == (len(shape) - 1,)


def _row_index(node: Node, index: list[Any], rank: int) -> list[Any]:
    return [*index, 0] if node.rank == rank else list(index)


ELEMENTS = Template("elements", _fits, _emit)
