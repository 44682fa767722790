"""Kernels that write by index: ``scatter``, ``scatter_add`` and ``scatter_add_along_axis``.

A tensor is seen as [outer, size, inner], the slices of ``src`` as [outer, count, inner]. Slices are sorted by index first, so that all
that go to one row are adjacent, in their own order: each row is written once, and sums of 16-bit floats are kept in f32. Short slices are
taken unsorted. Threads share the columns, or the rows where there are few columns. Indices out of range are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....codegen.ir import sort_keys
from ....codegen.ir.emit import loop
from ....codegen.ir.index import Index, i64, neighbours
from ....codegen.ir.math import emit
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Value, accumulator_type
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
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
    lanes_of,
    moved,
    same_pointer,
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

        def tile(row: Value, first: Index, last: Index) -> None:
            index = code.indices.split(row, lead) if lead else []
            start = code.indices.mul(row, columns)

            def emit_column(column: Index, width: int) -> None:
                value = source.at(index, column, width)
                Registers(b).store(value, result, code.indices.add(start, column), x.dtype)

            sweep(b, first, last, lanes, emit_column)

        tiles(code, prod(lead), columns, 256, tile)
        return
    operand = code.operand_of(x)
    with b.if_then(b.not_(same_pointer(b, operand, result))):
        first, last = code.share(count)
        size = i64(x.dtype.itemsize)
        start = b.mul(first, size)
        length = b.mul(b.sub(last, first), size)
        copy_bytes(b, moved(b, result, start), moved(b, operand, start), length)


def _clear_result(code: Code, node: Node) -> None:
    b, (result,) = code.builder, code.results
    first, last = code.share(prod(sizes(node)))
    size = i64(node.dtype.itemsize)
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

        def emit_unit(number: Value) -> None:
            index = source.integer([], number)
            code.check(self.node, index, self.size)
            outside = b.icmp_unsigned(">=", index, i64(self.size))
            index = b.select(outside, i64(self.size), index)
            sorters.write(b, sort_keys.item(b, index, number, 64), code.shared, number, 64)

        each(b, 0, self.count, emit_unit)
        bytes_ = max(ceil_div(self.size.bit_length(), 8), 1)
        function = sorters.sort_function(code.module, 64, bytes_)
        b.call(function, [code.shared, moved(b, code.shared, 8 * self.count), i64(self.count)])

    def unravelled(self, position: Value) -> Value:
        """The index of a slice in that order."""
        b = self.code.builder
        return b.lshr(sorters.read(b, self.code.shared, position, 64), i64(sort_keys.INDEX_BITS))

    def number_of(self, position: Value) -> Value:
        """The number of a slice in that order."""
        b = self.code.builder
        return sort_keys.number_of(b, sorters.read(b, self.code.shared, position, 64))

    def runs(self, first: Index, last: Index, body: Callable[[Value, Value, Value], None]) -> None:
        """``body(index, begin, end)`` for slices of one index that begin from ``first`` to before ``last``."""
        b = self.code.builder

        def emit_run(position: Value) -> None:
            index = self.unravelled(position)
            before = b.select(b.icmp_signed(">", position, i64(0)), b.sub(position, i64(1)), i64(0))
            begins = b.icmp_signed("!=", self.unravelled(before), index)
            begins = b.or_(begins, b.icmp_signed("==", position, i64(0)))
            begins = b.and_(begins, b.icmp_signed("<", index, i64(self.size)))
            with b.if_then(begins):
                after = b.add(position, i64(1))
                body(index, position, self.until(after, b.add(index, i64(1))))

        each(b, first, last, emit_run)

    def until(self, start: Value, index: Value) -> Value:
        """The first position from ``start`` on whose slice goes to ``index`` or behind it."""
        b = self.code.builder
        before = b.block
        head, test = b.append_basic_block("head"), b.append_basic_block("test")
        after = b.append_basic_block("after")
        b.branch(head)
        b.position_at_end(head)
        at = b.phi(start.type)
        at.add_incoming(start, before)
        b.cbranch(b.icmp_signed("<", at, i64(self.count)), test, after)
        b.position_at_end(test)
        at.add_incoming(b.add(at, i64(1)), test)
        b.cbranch(b.icmp_signed("<", self.unravelled(at), index), head, after)
        b.position_at_end(after)
        return at

    def take(self, outer: Value, number: Value, column: Index, width: int) -> Value:
        """Elements of the slice of that number."""
        indices = self.code.indices
        at = indices.split(outer, self.lead) if self.lead else []
        token = indices.split(number, sizes(self.indices)) if self.indices.rank else []
        return self.source.at([*at, *token], column, width)

    def combine(
        self, outer: Value, index: Value, begin: Value, end: Value, first: Index, last: Index
    ) -> None:
        """Write the columns of one place from all slices that go there."""
        code, b, indices = self.code, self.code.builder, self.code.indices
        dtype, accumulator = self.node.dtype, accumulator_type(self.node.dtype)
        (result,) = code.results
        row = indices.mul(indices.add(indices.mul(outer, self.size), index), self.inner)

        def slice_at(position: Value, column: Index, width: int) -> Value:
            return self.take(outer, self.number_of(position), column, width)

        def columns(column: Index, width: int) -> None:
            offset = indices.add(row, column)
            if self.mode == "set":
                value = slice_at(b.sub(end, i64(1)), column, width)
                Registers(b).store(value, result, offset, dtype)
                return
            if self.fresh:
                total = constant(b, 0, accumulator, width)
            else:
                total = cast(
                    b,
                    Registers(b).load(result, neighbours(offset, width), dtype),
                    dtype,
                    accumulator,
                )

            def combine_slice(position: Value, held: Sequence[Value]) -> Sequence[Value]:
                value = cast(b, slice_at(position, column, width), dtype, accumulator)
                op = COMBINES[self.mode]
                return [emit(op, b, [held[0], value], [accumulator, accumulator], accumulator)]

            (total,) = loop(b, begin, end, 1, combine_slice, [total])
            Registers(b).store(cast(b, total, accumulator, dtype), result, offset, dtype)

        sweep(b, first, last, self.lanes, columns)

    def in_turn(self) -> None:
        """Combine one slice after another, each thread those that go to its own places."""
        code, b, indices = self.code, self.code.builder, self.code.indices
        dtype, (result,) = self.node.dtype, code.results
        low, high = code.share(self.size)
        source = Source(code, self.indices, 0)

        def emit_update(number: Value) -> None:
            index = source.integer([], number)
            code.check(self.node, index, self.size)
            inside = b.and_(b.icmp_signed(">=", index, low), b.icmp_signed("<", index, high))
            with b.if_then(inside):
                each(b, 0, self.outer, lambda outer: row(number, index, outer))

        def row(number: Value, index: Value, outer: Value) -> None:
            start = indices.mul(indices.add(indices.mul(outer, self.size), index), self.inner)

            def columns(column: Index, width: int) -> None:
                value, offset = self.take(outer, number, column, width), indices.add(start, column)
                if self.mode != "set":
                    held = Registers(b).load(result, neighbours(offset, width), dtype)
                    value = emit(COMBINES[self.mode], b, [held, value], [dtype, dtype], dtype)
                Registers(b).store(value, result, offset, dtype)

            sweep(b, 0, self.inner, self.lanes, columns)

        each(b, 0, self.count, emit_update)


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
    if slices.outer * ceil_div(slices.inner, slices.lanes) >= ENOUGH:

        def tile(outer: Value, first: Index, last: Index) -> None:
            slices.runs(
                0,
                slices.count,
                lambda index, begin, end: slices.combine(outer, index, begin, end, first, last),
            )

        tiles(code, slices.outer, slices.inner, slices.lanes, tile)
        return

    def run(index: Value, begin: Value, end: Value) -> None:
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
    if outer * ceil_div(inner, block) >= ENOUGH:
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

    def tile(self, row: Value, first: Index, last: Index, low: Index, high: Index) -> None:
        """The sums of some columns at the places from ``low`` to before ``high``."""
        b, indices = self.code.builder, self.code.indices
        (result,) = self.code.results
        if not self.dtype.is_half:
            start = indices.mul(row, self.size * self.inner)
            self._sum(row, first, last, low, high, (result, start, self.inner, self.dtype))
            return
        block = min(BLOCK, self.inner)

        def part(number: Value) -> None:
            begin = indices.add(first, indices.mul(number, block))
            end = b.add(i64(begin), i64(block))
            end = b.select(b.icmp_signed("<", end, i64(last)), end, i64(last))
            accumulator = accumulator_type(self.dtype)
            start = indices.sub(0, begin)
            self._sum(row, begin, end, low, high, (self.code.own, start, block, accumulator))

            def round_one(address: Value) -> None:
                base = indices.mul(indices.add(indices.mul(row, self.size), address), self.inner)

                def emit_column(column: Value) -> None:
                    at = indices.add(indices.add(indices.mul(address, block), start), column)
                    total = cast(
                        b,
                        Registers(b).load(self.code.own, at, accumulator),
                        accumulator,
                        self.dtype,
                    )
                    Registers(b).store(total, result, indices.add(base, column), self.dtype)

                each(b, begin, end, emit_column)

            each(b, low, high, round_one)

        count = indices.add(indices.sub(last, first), block - 1)
        each(b, 0, indices.div(count, block), part)

    def _sum(
        self,
        row: Value,
        first: Index,
        last: Index,
        low: Index,
        high: Index,
        target: tuple[Pointer, Index, int, DType],
    ) -> None:
        """Zeros, then every element of the columns where it belongs: at ``start + place * stride + column``."""
        b, indices = self.code.builder, self.code.indices
        pointer, start, stride, accumulator = target
        lead = indices.split(row, self.lead) if self.lead else []

        def offset(address: Value, column: Value) -> Index:
            return indices.add(indices.add(start, indices.mul(address, stride)), column)

        def cleared(address: Value) -> None:
            zero = constant(b, 0, accumulator)
            each(
                b,
                first,
                last,
                lambda c: Registers(b).store(zero, pointer, offset(address, c), accumulator),
            )

        def added(number: Value) -> None:
            def emit_column(column: Value) -> None:
                position = self.indices.integer([*lead, number], column)
                self.code.check(self.node, position, self.size)
                inside = b.and_(
                    b.icmp_signed(">=", position, i64(low)),
                    b.icmp_signed("<", position, i64(high)),
                )
                with b.if_then(inside):
                    value = cast(
                        b, self.source.at([*lead, number], column), self.dtype, accumulator
                    )
                    at = offset(position, column)
                    total = emit(
                        "add",
                        b,
                        [Registers(b).load(pointer, at, accumulator), value],
                        [accumulator, accumulator],
                        accumulator,
                    )
                    Registers(b).store(total, pointer, at, accumulator)

            each(b, first, last, emit_column)

        each(b, low, high, cleared)
        each(b, 0, self.count, added)


EMITTERS: dict[str, Callable[[Code, Node], None]] = {
    "scatter": _scatter,
    "scatter_add": _scatter,
    "scatter_add_along_axis": _scatter_add_along_axis,
}

SCATTERS = Template("scatters", _fits, _emit, _scratch)
