"""Panels of a B that is decoded as they are packed: quantised weights, of which no float is ever in memory.

B has no address. Its elements have the addresses that they would have if it lay in memory from address 0 on, so that whatever cuts a product computes with them as with
others; what packs a panel makes indices of them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import (
    fused_multiply_add,
    ir,
    lane_mask,
    lane_numbers,
    lane_sum,
    load,
    loop,
    minimum,
    offset,
    store,
    zero,
)
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Function, Module, Pointer, Value
from ....graph.node import Node
from ....lower.specs import sizes
from ....ops.quant_scheme import QuantScheme
from ..emit.template import Code
from .columns import Columns
from .dots import contiguous_rows
from .pack import transpose
from .plan import Cut, PanelOf


def no_address(builder: Builder) -> Pointer:
    """Where a B lies that is in no memory."""
    found: Pointer = builder.inttoptr(i64(0), ir().PointerType())
    return found


@dataclass(frozen=True)
class Decoder:
    """How panels of a decoded matrix are packed.

    Attributes:
        code: the kernel.
        node: what is decoded: a matrix, or several.
        summed: which of its axes a product sums over: one of the last two.
    """

    code: Code
    node: Node
    summed: int

    @property
    def run(self) -> int:
        """Terms that lie side by side and have their scales in common."""
        scheme = QuantScheme(self.node.attrs["scheme"])
        return scheme.layout.run if scheme.is_packed else 1

    @property
    def summed_last(self) -> bool:
        """Whether the terms of a sum lie side by side."""
        return self.summed == self.node.rank - 1

    def pack(
        self, builder: Builder, panel: PanelOf, span: tuple[Value, Value], target: Pointer
    ) -> None:
        """Call the function that packs the columns of a panel: ``span`` is the address of their first term, and how many terms."""
        leaves = self._leaves()
        function = self._function(builder.module, panel, leaves)
        given = [self.code.operand_of(leaf) for leaf in leaves]
        builder.call(function, [span[1], i64(panel.valid), span[0], target, *given])

    def sum_dots(self, builder: Builder, plan: Cut, columns: Columns) -> None:
        """The sums of some columns of a few rows: terms are multiplied as they are decoded."""
        addresses = {leaf.id: self.code.operand_of(leaf) for leaf in self._leaves()}
        _Dots(_Elements(self, builder, addresses), plan, columns).emit()

    def _leaves(self) -> list[Node]:
        """The inputs of the kernel that are read for an element."""
        found: dict[int, Node] = {}
        stack = [self.node]
        while stack:
            node = stack.pop()
            if node.op.name == "input":
                found[node.id] = node
            stack += node.operands
        return [found[id] for id in sorted(found)]

    def _function(self, module: Module, panel: PanelOf, leaves: Sequence[Node]) -> Function:
        """The function, ``(terms, valid, first*, panel*, operands*...)``."""
        types = ir()
        width, lanes = panel.width, panel.lanes
        body = self.code.body.digest()[:16]
        name = f"darner.decode.{body}.{self.node.id}.{self.summed}.{width}.{lanes}"
        found: Function | None = module.globals.get(name)
        if found is not None:
            return found
        word, pointer = types.IntType(64), types.PointerType()
        arguments = [word, word, pointer, pointer, *[pointer] * len(leaves)]
        kind = types.FunctionType(types.VoidType(), arguments)
        function: Function = types.Function(module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        builder = types.IRBuilder(function.append_basic_block("entry"))
        terms, valid, first, target, *given = function.args
        addresses = {leaf.id: address for leaf, address in zip(leaves, given, strict=True)}
        elements = _Elements(self, builder, addresses)
        _Packing(elements, panel).emit(terms, valid, first, target)
        builder.ret_void()
        return function


class Ahead(NamedTuple):
    """The element that a panel begins with: which matrix of a batch, its term and its column."""

    batch: tuple[Index, ...]
    term: Index
    column: Index


@dataclass(frozen=True)
class _Elements:
    """Decoded elements in a function that is being written.

    Attributes:
        addresses: of the kernel's inputs that are read, by their ids.
    """

    decoder: Decoder
    builder: Builder
    addresses: dict[int, Pointer]

    def first(self, address: Pointer) -> Ahead:
        """The element that has an address."""
        node = self.decoder.node
        number = self.builder.udiv(
            self.builder.ptrtoint(address, i64(0).type), i64(STORAGE_BYTES["f32"])
        )
        *batch, row, column = IndexMath(self.builder).split(number, sizes(node))
        last = (column, row) if self.decoder.summed_last else (row, column)
        return Ahead(tuple(batch), *last)

    def at(
        self, batch: tuple[Index, ...], term: Index, column: Index, mask: Value | None = None
    ) -> Value:
        """The elements at an index of which one number has lanes."""
        code, node = self.decoder.code, self.decoder.node
        some = next(iter(self.addresses.values()))
        operands = [self.addresses.get(leaf.id, some) for leaf in code.spec.inputs]
        elements = Elements(self.builder, code.body, operands, mask, width=code.width)
        last = [column, term] if self.decoder.summed_last else [term, column]
        lanes = next(number.count for number in last if isinstance(number, Lanes))
        return elements.indices.spread(elements.at(node, [*batch, *last]), lanes)


@dataclass(frozen=True)
class _Packing:
    """A function that packs while it is being written."""

    elements: _Elements
    panel: PanelOf

    @property
    def builder(self) -> Builder:
        """Where the code goes."""
        return self.elements.builder

    def emit(self, terms: Value, valid: Value, first: Value, target: Pointer) -> None:
        """All terms of the panel: vectors of columns, or transposed blocks where terms lie side by side."""
        ahead = self.elements.first(first)
        if self.elements.decoder.summed_last:
            self._blocks(terms, valid, ahead, target)
        else:
            self._rows(terms, valid, ahead, target)

    def _rows(self, terms: Value, valid: Value, ahead: Ahead, target: Pointer) -> None:
        """A term at a time, of all columns: these lie side by side."""
        builder, panel = self.builder, self.panel
        masks = [
            lane_mask(builder, builder.sub(valid, i64(at)), panel.lanes)
            if at + panel.lanes > panel.valid
            else None
            for at in range(0, panel.width, panel.lanes)
        ]

        def pack_term(number: Value, _: Sequence[Value]) -> None:
            term = builder.add(i64(ahead.term), number)
            line = offset(builder, target, "f32", builder.mul(number, i64(panel.width)))
            for mask, at in zip(masks, range(0, panel.width, panel.lanes), strict=True):
                first = builder.add(i64(ahead.column), i64(at))
                column = Lanes(first, panel.lanes, 1, panel.lanes)
                value = self.elements.at(ahead.batch, term, column, mask)
                store(builder, value, offset(builder, line, "f32", at), "f32")

        loop(builder, i64(0), terms, 1, pack_term)

    def _blocks(self, terms: Value, valid: Value, ahead: Ahead, target: Pointer) -> None:
        """As many terms as a vector has lanes at a time, transposed in registers."""
        builder, panel, lanes = self.builder, self.panel, self.panel.lanes
        last = builder.sub(valid, i64(1))
        run = max(lanes, self.elements.decoder.run)

        def block(number: Value, width: int, count: Value | None = None) -> None:
            mask = None if count is None else lane_mask(builder, count, lanes)
            term = Lanes(builder.add(i64(ahead.term), number), width, 1, width)

            def squares(at: Value, _: Sequence[Value]) -> None:
                rows = []
                for lane in range(lanes):
                    # Of columns that are missing, the last is decoded once more.
                    own = builder.add(at, i64(lane))
                    own = minimum(builder, own, last) if panel.valid < panel.width else own
                    column = builder.add(i64(ahead.column), own)
                    rows.append(self.elements.at(ahead.batch, term, column, mask))
                line = offset(builder, target, "f32", builder.mul(number, i64(panel.width)), at)
                for part in range(0, width, lanes):
                    own = [picked(builder, row, part, lanes) for row in rows]
                    place = offset(builder, line, "f32", part * panel.width)
                    self._store_square(transpose(builder, own), place, count)

            loop(builder, i64(0), i64(panel.width), lanes, squares)

        runs = builder.and_(terms, i64(-run))
        loop(builder, i64(0), runs, run, lambda number, _: block(number, run))
        whole = builder.and_(terms, i64(-lanes))
        if run > lanes:
            loop(builder, runs, whole, lanes, lambda number, _: block(number, lanes))
        with builder.if_then(builder.icmp_signed("<", whole, terms)):
            block(whole, lanes, builder.sub(terms, whole))

    def _store_square(self, columns: Sequence[Value], target: Pointer, count: Value | None) -> None:
        """Write a term of each column after the other, or as many as there are."""
        builder = self.builder
        for lane, value in enumerate(columns):
            address = offset(builder, target, "f32", lane * self.panel.width)
            if count is None:
                store(builder, value, address, "f32")
                continue
            with builder.if_then(builder.icmp_signed("<", i64(lane), count)):
                store(builder, value, address, "f32")


@dataclass(frozen=True)
class _Dots:
    """Dot products of a few rows with columns that are decoded term by term."""

    elements: _Elements
    plan: Cut
    columns: Columns

    def emit(self) -> None:
        """All columns, one after the other."""
        builder, columns, plan = self.elements.builder, self.columns, self.plan
        rows = contiguous_rows(builder, plan, columns.a, columns.copy)
        ahead = self.elements.first(columns.b)

        def column(number: Value, _: Sequence[Value]) -> None:
            totals = self._totals(
                ahead._replace(column=builder.add(i64(ahead.column), number)), rows
            )
            corner = offset(builder, columns.sums, "f32", builder.sub(number, columns.first))
            for row, total in enumerate(totals):
                at = offset(builder, corner, "f32", row * plan.chunk)
                builder.store(lane_sum(builder, total), at, align=STORAGE_BYTES["f32"])

        loop(builder, columns.first, columns.stop, 1, column)

    def _totals(self, ahead: Ahead, rows: tuple[Pointer, str, int]) -> Sequence[Value]:
        """The sums of each lane, for each row: of as many terms at a time as have their scales in common."""
        builder, contraction = self.elements.builder, self.plan.contraction
        source, kind, stride = rows
        lanes, run = self.plan.tile.lanes, contraction.decoded

        def add(number: Value, totals: Sequence[Value], width: int) -> list[Value]:
            term = Lanes(builder.add(i64(ahead.term), number), width, 1, width)
            values = self.elements.at(ahead.batch, term, ahead.column)
            following = list(totals)
            for part in range(width // lanes):
                own = picked(builder, values, part * lanes, lanes)
                for row in range(contraction.m):
                    at = offset(builder, source, kind, number, row * stride + part * lanes)
                    factor = load(builder, at, kind, lanes)
                    to = row * (run // lanes) + part
                    following[to] = fused_multiply_add(builder, own, factor, totals[to], lanes)
            return following

        totals: Sequence[Value] = [zero("f32", lanes)] * (contraction.m * (run // lanes))
        whole = contraction.k // run * run
        totals = loop(builder, i64(0), i64(whole), run, lambda i, t: add(i, t, run), totals)
        for begin in range(whole, contraction.k, lanes):
            totals = add(i64(begin), totals, lanes)
        each = run // lanes
        return [
            reduce(builder.fadd, totals[row * each : (row + 1) * each])
            for row in range(contraction.m)
        ]


def picked(builder: Builder, values: Value, first: int, count: int) -> Value:
    """Some neighbouring lanes of a vector."""
    if first == 0 and count == values.type.count:
        return values
    return builder.shuffle_vector(values, values, lane_numbers(range(first, first + count)))
