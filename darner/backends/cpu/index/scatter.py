"""Kernels that write where an index says: ``scatter``, ``scatter_add`` and ``scatter_add_along_axis``.

A tensor is seen as [outer, size, inner], the slices of ``src`` as [outer, count, inner]. Slices are put in the order of their indices first, so that all
that go to one place stand side by side, in their own order: each place is written once, and sums of 16-bit floats are kept in f32. Short slices are
taken as they come. Threads share the columns, or the places where there are few columns. An index outside is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ....codegen.ir import sort_keys
from ....codegen.ir.emit import loop
from ....codegen.ir.index import Number, as_value
from ....codegen.ir.math import emit
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import (
    Source,
    cast,
    clear_bytes,
    constant,
    copy_bytes,
    each,
    kept_in,
    lanes_of,
    load,
    moved,
    same_pointer,
    store,
    sweep,
    tiles,
)
from ..runtime.jit import Machine
from ..sort import memory as sorters

COMBINES = {"add": "add", "mul": "mul", "max": "larger", "min": "smaller"}
"""The op that each mode of ``scatter`` combines with."""

ENOUGH = 16
"""So many blocks of columns keep all threads busy."""

NARROW = 16
"""Slices of so few elements are taken as they come."""

BLOCK = 16
"""Columns that are summed together where sums need memory of their own."""


def _fits(spec: Spec) -> bool:
    return len(spec.body.outputs) == 1 and spec.body.outputs[0].op.name in EMITTERS


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    (node,) = spec.body.outputs
    if node.op.name == "scatter_add_along_axis":
        if not node.dtype.is_half:
            return Scratch()
        whole, axis = sizes(node), node.attrs["axis"]
        columns = min(BLOCK, prod(whole[axis + 1 :]))
        return Scratch(own=whole[axis] * columns * 4)
    return Scratch() if _is_narrow(node) else Scratch(shared=order_bytes(node))


def _emit(code: Code) -> None:
    (node,) = code.body.outputs
    EMITTERS[node.op.name](code, node)


def _indices(node: Node) -> Node:
    return node.operands[node.slots.index("indices")]


def order_bytes(node: Node) -> int:
    """Bytes of shared memory that ``Slices.order`` needs."""
    return 2 * 8 * prod(sizes(_indices(node)))


def _is_narrow(node: Node) -> bool:
    """Whether a slice has so few elements that to put slices in order costs more than to add them up."""
    slice_size = prod(sizes(node)) // max(sizes(node)[int(node.attrs["axis"])], 1)
    return slice_size <= NARROW and not node.dtype.is_half


# --------------------------------------------------------------------------- what was there before


def prepare_result(code: Code, x: Node) -> None:
    """Give the result the elements of ``x``, unless it lies where ``x`` does."""
    b, (result,) = code.builder, code.results
    count = prod(sizes(x))
    if x.name is None:
        lead = sizes(x)[:-1]
        columns = sizes(x)[-1] if x.rank else 1
        source = Source(code, x, max(x.rank - 1, 0))
        lanes = source.lanes(code.machine.vector_bytes // x.dtype.itemsize)

        def tile(row: Any, first: Number, last: Number) -> None:
            index = code.places.split(row, lead) if lead else []
            start = code.places.mul(row, columns)

            def some(column: Any, width: int) -> None:
                value = source.at(index, column, width)
                store(b, value, result, code.places.add(start, column), x.dtype)

            sweep(b, first, last, lanes, some)

        tiles(code, prod(lead), columns, 256, tile)
        return
    operand = code.operand_of(x)
    with b.if_then(b.not_(same_pointer(b, operand, result))):
        first, last = code.share(count)
        size = as_value(x.dtype.itemsize)
        start = b.mul(first, size)
        length = b.mul(b.sub(last, first), size)
        copy_bytes(b, moved(b, result, start), moved(b, operand, start), length)


def _clear_result(code: Code, node: Node) -> None:
    b, (result,) = code.builder, code.results
    first, last = code.share(prod(sizes(node)))
    size = as_value(node.dtype.itemsize)
    clear_bytes(b, moved(b, result, b.mul(first, size)), b.mul(b.sub(last, first), size))


# --------------------------------------------------------------------------- slices by index


class Slices:
    """The slices of a ``scatter`` or ``scatter_add``, and how they go into the result."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code = code
        self.node = node
        self.mode = node.attrs.get("mode", "add")
        self.fresh = node.op.name == "scatter_add"
        self.indices = _indices(node)
        self.src = node.operands[node.slots.index("src")]
        self.axis = int(node.attrs["axis"])
        whole = sizes(node)
        self.lead, self.size = whole[: self.axis], whole[self.axis]
        self.inner = prod(whole[self.axis + 1 :])
        self.outer = prod(self.lead)
        self.count = prod(sizes(self.indices))
        self.source = Source(code, self.src, self.axis + self.indices.rank)
        self.lanes = self.source.lanes(lanes_of(code.machine, node.dtype))

    def order(self) -> None:
        """Put the slices in the order of their indices; those with none come last, under the index ``size``."""
        code, b = self.code, self.code.builder
        source = Source(code, self.indices, 0)

        def one(number: Any) -> None:
            index = source.integer([], number)
            code.check(self.node, index, self.size)
            outside = b.icmp_unsigned(">=", index, as_value(self.size))
            index = b.select(outside, as_value(self.size), index)
            sorters.write(b, sort_keys.item(b, index, number, 64), code.shared, number, 64)

        each(b, 0, self.count, one)
        bytes_ = max(-(-self.size.bit_length() // 8), 1)
        function = sorters.sort_function(code.module, 64, bytes_)
        b.call(function, [code.shared, moved(b, code.shared, 8 * self.count), as_value(self.count)])

    def place_of(self, position: Any) -> Any:
        """The index of a slice in that order."""
        b = self.code.builder
        return b.lshr(
            sorters.read(b, self.code.shared, position, 64), as_value(sort_keys.INDEX_BITS)
        )

    def number_of(self, position: Any) -> Any:
        """The number of a slice in that order."""
        b = self.code.builder
        return sort_keys.number_of(b, sorters.read(b, self.code.shared, position, 64))

    def runs(self, first: Number, last: Number, inside: Callable[[Any, Any, Any], None]) -> None:
        """``inside(index, begin, end)`` for slices of one index that begin from ``first`` to before ``last``."""
        b = self.code.builder

        def one(position: Any) -> None:
            index = self.place_of(position)
            before = b.select(
                b.icmp_signed(">", position, as_value(0)), b.sub(position, as_value(1)), as_value(0)
            )
            begins = b.icmp_signed("!=", self.place_of(before), index)
            begins = b.or_(begins, b.icmp_signed("==", position, as_value(0)))
            begins = b.and_(begins, b.icmp_signed("<", index, as_value(self.size)))
            with b.if_then(begins):
                after = b.add(position, as_value(1))
                inside(index, position, self.until(after, b.add(index, as_value(1))))

        each(b, first, last, one)

    def until(self, start: Any, index: Any) -> Any:
        """The first position from ``start`` on whose slice goes to ``index`` or behind it."""
        b = self.code.builder
        before = b.block
        head, test = b.append_basic_block("head"), b.append_basic_block("test")
        after = b.append_basic_block("after")
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(start.type)
        at.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", at, as_value(self.count)), test, after)
        b.position_at_end(test)
        at.add_incoming(b.add(at, as_value(1)), test)
        b.cbranch(b.icmp_signed("<", self.place_of(at), index), head, after)
        b.position_at_end(after)
        return at

    def take(self, outer: Any, number: Any, column: Any, width: int) -> Any:
        """Elements of the slice of that number."""
        places = self.code.places
        at = places.split(outer, self.lead) if self.lead else []
        token = places.split(number, sizes(self.indices)) if self.indices.rank else []
        return self.source.at([*at, *token], column, width)

    def combine(
        self, outer: Any, index: Any, begin: Any, end: Any, first: Number, last: Number
    ) -> None:
        """Write the columns of one place from all slices that go there."""
        code, b, places = self.code, self.code.builder, self.code.places
        dtype, kept = self.node.dtype, kept_in(self.node.dtype)
        (result,) = code.results
        row = places.mul(places.add(places.mul(outer, self.size), index), self.inner)

        def slice_at(position: Any, column: Any, width: int) -> Any:
            return self.take(outer, self.number_of(position), column, width)

        def columns(column: Any, width: int) -> None:
            offset = places.add(row, column)
            if self.mode == "set":
                value = slice_at(b.sub(end, as_value(1)), column, width)
                store(b, value, result, offset, dtype)
                return
            if self.fresh:
                total = constant(b, 0, kept, width)
            else:
                total = cast(b, load(b, result, offset, dtype, width), dtype, kept)

            def one(position: Any, held: Sequence[Any]) -> Sequence[Any]:
                value = cast(b, slice_at(position, column, width), dtype, kept)
                op = COMBINES[self.mode]
                return [emit(op, b, [held[0], value], [kept, kept], kept)]

            (total,) = loop(b, begin, end, 1, one, [total])
            store(b, cast(b, total, kept, dtype), result, offset, dtype)

        sweep(b, first, last, self.lanes, columns)

    def in_turn(self) -> None:
        """Combine one slice after another, each thread those that go to its own places."""
        code, b, places = self.code, self.code.builder, self.code.places
        dtype, (result,) = self.node.dtype, code.results
        low, high = code.share(self.size)
        source = Source(code, self.indices, 0)

        def one(number: Any) -> None:
            index = source.integer([], number)
            code.check(self.node, index, self.size)
            inside = b.and_(b.icmp_signed(">=", index, low), b.icmp_signed("<", index, high))
            with b.if_then(inside):
                each(b, 0, self.outer, lambda outer: row(number, index, outer))

        def row(number: Any, index: Any, outer: Any) -> None:
            start = places.mul(places.add(places.mul(outer, self.size), index), self.inner)

            def columns(column: Any, width: int) -> None:
                value, offset = self.take(outer, number, column, width), places.add(start, column)
                if self.mode != "set":
                    held = load(b, result, offset, dtype, width)
                    value = emit(COMBINES[self.mode], b, [held, value], [dtype, dtype], dtype)
                store(b, value, result, offset, dtype)

            sweep(b, 0, self.inner, self.lanes, columns)

        each(b, 0, self.count, one)


def _scatter(code: Code, node: Node) -> None:
    if not prod(sizes(node)):
        return
    slices = Slices(code, node)
    if slices.fresh:
        _clear_result(code, node)
    else:
        prepare_result(code, node.operands[node.slots.index("x")])
    if not slices.count:
        return
    if _is_narrow(node):
        code.barrier()
        slices.in_turn()
        return
    with code.alone():
        slices.order()
    code.barrier()
    if slices.outer * -(-slices.inner // slices.lanes) >= ENOUGH:

        def tile(outer: Any, first: Number, last: Number) -> None:
            slices.runs(
                0,
                slices.count,
                lambda index, begin, end: slices.combine(outer, index, begin, end, first, last),
            )

        tiles(code, slices.outer, slices.inner, slices.lanes, tile)
        return

    def run(index: Any, begin: Any, end: Any) -> None:
        each(
            code.builder,
            0,
            slices.outer,
            lambda outer: slices.combine(outer, index, begin, end, 0, slices.inner),
        )

    slices.runs(*code.share(slices.count), run)


# --------------------------------------------------------------------------- elements by index


def _scatter_add_along_axis(code: Code, node: Node) -> None:
    """Columns are summed one after another, those of 16-bit floats in memory of the thread's own."""
    axis = int(node.attrs["axis"])
    whole = sizes(node)
    outer, size, inner = prod(whole[:axis]), whole[axis], prod(whole[axis + 1 :])
    if not outer * size * inner:
        return
    sums = _Sums(code, node)
    block = min(BLOCK, inner)
    if outer * -(-inner // block) >= ENOUGH:
        tiles(code, outer, inner, block, lambda row, low, high: sums.tile(row, low, high, 0, size))
        return
    first, last = code.share(size)
    each(code.builder, 0, outer, lambda row: sums.tile(row, 0, inner, first, last))


class _Sums:
    """The sums of a ``scatter_add_along_axis``."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code, self.node = code, node
        self.dtype = node.dtype
        self.axis = int(node.attrs["axis"])
        whole = sizes(node)
        self.size, self.inner = whole[self.axis], prod(whole[self.axis + 1 :])
        self.lead = whole[: self.axis]
        indices, src = node.operands
        self.count = sizes(src)[self.axis]
        self.indices = Source(code, indices, self.axis + 1)
        self.source = Source(code, src, self.axis + 1)

    def tile(self, row: Any, first: Number, last: Number, low: Number, high: Number) -> None:
        """The sums of some columns at the places from ``low`` to before ``high``."""
        b, places = self.code.builder, self.code.places
        (result,) = self.code.results
        if not self.dtype.is_half:
            start = places.mul(row, self.size * self.inner)
            self._sum(row, first, last, low, high, (result, start, self.inner, self.dtype))
            return
        block = min(BLOCK, self.inner)

        def part(number: Any) -> None:
            begin = places.add(first, places.mul(number, block))
            end = b.add(as_value(begin), as_value(block))
            end = b.select(b.icmp_signed("<", end, as_value(last)), end, as_value(last))
            kept = kept_in(self.dtype)
            start = places.sub(0, begin)
            self._sum(row, begin, end, low, high, (self.code.own, start, block, kept))

            def round_one(place: Any) -> None:
                base = places.mul(places.add(places.mul(row, self.size), place), self.inner)

                def one(column: Any) -> None:
                    at = places.add(places.add(places.mul(place, block), start), column)
                    total = cast(b, load(b, self.code.own, at, kept), kept, self.dtype)
                    store(b, total, result, places.add(base, column), self.dtype)

                each(b, begin, end, one)

            each(b, low, high, round_one)

        count = places.add(places.sub(last, first), block - 1)
        each(b, 0, places.div(count, block), part)

    def _sum(
        self,
        row: Any,
        first: Number,
        last: Number,
        low: Number,
        high: Number,
        target: tuple[Any, Number, int, DType],
    ) -> None:
        """Zeros, then every element of the columns where it belongs: at ``start + place * stride + column``."""
        b, places = self.code.builder, self.code.places
        pointer, start, stride, kept = target
        lead = places.split(row, self.lead) if self.lead else []

        def offset(place: Any, column: Any) -> Number:
            return places.add(places.add(start, places.mul(place, stride)), column)

        def cleared(place: Any) -> None:
            zero = constant(b, 0, kept)
            each(b, first, last, lambda c: store(b, zero, pointer, offset(place, c), kept))

        def added(number: Any) -> None:
            def one(column: Any) -> None:
                place = self.indices.integer([*lead, number], column)
                self.code.check(self.node, place, self.size)
                inside = b.and_(
                    b.icmp_signed(">=", place, as_value(low)),
                    b.icmp_signed("<", place, as_value(high)),
                )
                with b.if_then(inside):
                    value = cast(b, self.source.at([*lead, number], column), self.dtype, kept)
                    at = offset(place, column)
                    total = emit("add", b, [load(b, pointer, at, kept), value], [kept, kept], kept)
                    store(b, total, pointer, at, kept)

            each(b, first, last, one)

        each(b, low, high, cleared)
        each(b, 0, self.count, added)


EMITTERS: dict[str, Callable[[Code, Node], None]] = {
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_add_along_axis": _scatter_add_along_axis,
}

SCATTERS = Template("scatters", _fits, _emit, _scratch)
