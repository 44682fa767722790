"""Kernels that write where an index says, or go along an axis in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ...graph.node import Node
from ...lower.plan import Spec
from .elements import Elements
from .places import Number, as_value
from .template import Code, Template

Share = tuple[Any, Any]
"""The number of a thread, and how many there are."""


def _fits(spec: Spec) -> bool:
    """Whether a body is one of these kernels: its only result, in a type that sums are kept in."""
    body = spec.body
    if len(body.outputs) != 1:
        return False
    node = body.outputs[0]
    return node.op.name in EMITTERS and not node.dtype.is_half


def _emit(code: Code) -> None:
    (node,) = code.body.outputs
    elements = Elements(code.builder, code.body, code.operands)
    EMITTERS[node.op.name](elements, node, code.results[0], (code.thread, code.threads))


def _sizes(node: Node) -> list[int]:
    return [int(size) for size in node.shape]


def _columns(e: Elements, count: int, share: Share) -> tuple[Number, Number]:
    """The columns of a thread: each adds up its own, so that none waits for another."""
    thread, threads = share
    b = e.builder
    first = b.udiv(b.mul(thread, as_value(count)), threads)
    last = b.udiv(b.mul(b.add(thread, as_value(1)), as_value(count)), threads)
    return first, last


def _scatter_add(e: Elements, node: Node, pointer: Any, share: Share) -> None:
    indices, src = node.operands
    axis = node.attrs["axis"]

    def place(index: list[Number]) -> tuple[list[Number], Any]:
        at = index[axis : axis + indices.rank]
        return [*index[:axis], 0, *index[axis + indices.rank :]], e.integer(indices, at)

    _add_up(e, node, src, axis, pointer, share, place)


def _scatter_add_along_axis(e: Elements, node: Node, pointer: Any, share: Share) -> None:
    indices, src = node.operands
    axis = node.attrs["axis"]
    _add_up(
        e, node, src, axis, pointer, share, lambda index: (list(index), e.integer(indices, index))
    )


def _add_up(
    e: Elements,
    node: Node,
    src: Node,
    axis: int,
    pointer: Any,
    share: Share,
    place: Callable[[list[Number]], tuple[list[Number], Any]],
) -> None:
    """Zeros, then every element of ``src`` added where it belongs; an index outside is left out."""
    sizes, source = _sizes(node), _sizes(src)
    shared = axis < len(sizes) - 1
    first, last = _columns(e, sizes[-1] if shared else 1, share)

    def cleared(index: list[Any], column: Any) -> None:
        full = [*index, column] if shared else [*index]
        zero = e.registers.constant(0, node.dtype)
        e.registers.store(zero, pointer, e.places.offset(full, sizes), node.dtype)

    def added(index: list[Any], column: Any) -> None:
        full = [*index, column] if shared else [*index]
        target, number = place(full)
        inside = e.builder.and_(e.places.less(-1, number), e.places.less(number, sizes[axis]))
        with e.builder.if_then(inside):
            target[axis] = number
            offset = e.places.offset(target, sizes)
            total = e.registers.load(pointer, offset, node.dtype)
            value = e.at(src, full)
            total = e.registers.combine("sum", total, value, src.dtype, node.dtype)
            e.registers.store(total, pointer, offset, node.dtype)

    def everywhere(shape: list[int], inside: Callable[[list[Any], Any], None]) -> None:
        if not prod(shape):
            return

        def element(column: Any, _: list[Any]) -> Sequence[Any]:
            def one(index: list[Any], _: list[Any]) -> Sequence[Any]:
                inside(index, column)
                return []

            e.loops(shape[:-1] if shared else shape, one)
            return []

        e.loop(first, last, element)

    everywhere(sizes, cleared)
    everywhere(source, added)


def _cumulative(e: Elements, node: Node, pointer: Any, share: Share) -> None:
    (x,) = node.operands
    axis, sizes = node.attrs["axis"], _sizes(x)
    if not prod(sizes):
        return
    name = {"cumsum": "sum", "cumprod": "prod", "cummax": "max", "cummin": "min"}[node.op.name]
    outer = [size for k, size in enumerate(sizes) if k != axis]
    first, last = _columns(e, prod(outer), share)
    length = sizes[axis]

    def row(number: Any, _: list[Any]) -> Sequence[Any]:
        index = e.places.split(number, outer) if outer else []

        def element(i: Any, totals: list[Any]) -> Sequence[Any]:
            at = e.places.sub(length - 1, i) if node.attrs["reverse"] else i
            full = [*index[:axis], at, *index[axis:]]
            value = e.at(x, full)
            total = e.registers.combine(name, totals[0], value, x.dtype, node.dtype)
            shown = totals[0] if node.attrs.get("exclusive") else total
            e.registers.store(shown, pointer, e.places.offset(full, sizes), node.dtype)
            return [total]

        e.loop(0, length, element, [e.registers.neutral(name, x.dtype, node.dtype)])
        return []

    e.loop(first, last, row)


EMITTERS: dict[str, Callable[[Elements, Node, Any, Share], None]] = {
    "cummax": _cumulative,
    "cummin": _cumulative,
    "cumprod": _cumulative,
    "cumsum": _cumulative,
    "scatter_add": _scatter_add,
    "scatter_add_along_axis": _scatter_add_along_axis,
}

SCATTERS = Template("scatters", _fits, _emit)
