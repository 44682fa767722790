"""A B that is decoded as it is used: panels of it are packed, and few rows multiplied with its elements in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.ir.emit import ir, lane_mask, loop, minimum, offset, store
from ....codegen.ir.index import Lanes, i64
from ....codegen.ir.types import Builder, Function, Module, Pointer, Value
from ....graph.node import Node
from .columns import Columns
from .decoded_elements import Ahead, Decoded, DecodedElements, of_block, picked
from .decoded_rows import DecodedDots, DecodedRows
from .decoded_tiles import DecodedTiles
from .pack import transpose
from .plan import Cut, PanelOf


@dataclass(frozen=True)
class Decoder:
    """How a product uses its decoded operand."""

    operand: Decoded

    def pack(
        self, builder: Builder, panel: PanelOf, span: tuple[Value, Value], target: Pointer
    ) -> None:
        """Call the function that packs the columns of a panel: ``span`` is the address of their first term, and how many terms."""
        leaves = self.operand.leaves()
        function = self._function(builder.module, panel, leaves)
        given = [self.operand.code.operand_of(leaf) for leaf in leaves]
        builder.call(function, [span[1], i64(panel.valid), span[0], target, *given])

    def sum_few(self, builder: Builder, plan: Cut, columns: Columns) -> None:
        """The sums of some columns of a few rows: terms are multiplied as they are decoded."""
        leaves = self.operand.leaves()
        addresses = {leaf.id: self.operand.code.operand_of(leaf) for leaf in leaves}
        elements = DecodedElements(self.operand, builder, addresses)
        if plan.path == "registers":
            DecodedTiles(elements, plan, columns).emit()
        elif plan.path == "rows":
            DecodedRows(elements, plan, columns).emit()
        else:
            DecodedDots(elements, plan, columns).emit()

    def _function(self, module: Module, panel: PanelOf, leaves: Sequence[Node]) -> Function:
        """The function, ``(terms, valid, first*, panel*, operands*...)``."""
        types, operand = ir(), self.operand
        body, partial = operand.code.body.digest()[:16], panel.valid < panel.width
        name = (
            f"darner.decode.{body}.{operand.node.id}.{operand.summed}.{panel.width}.{panel.lanes}"
        )
        name += ".partial" if partial else ""
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
        elements = DecodedElements(operand, builder, addresses)
        _Packing(elements, panel).emit(terms, valid, first, target)
        builder.ret_void()
        return function


@dataclass(frozen=True)
class _Packing:
    """A function that packs while it is being written."""

    elements: DecodedElements
    panel: PanelOf

    @property
    def builder(self) -> Builder:
        """Where the code goes."""
        return self.elements.builder

    def emit(self, terms: Value, valid: Value, first: Value, target: Pointer) -> None:
        """All terms of the panel: vectors of columns, or transposed blocks where terms lie side by side."""
        ahead = self.elements.first(first)
        if self.elements.operand.summed_last:
            self._blocks(terms, valid, ahead, target)
        else:
            self._rows(terms, valid, ahead, target)

    def _rows(self, terms: Value, valid: Value, ahead: Ahead, target: Pointer) -> None:
        """Some terms at a time, of all columns: these lie side by side."""
        builder, panel = self.builder, self.panel
        masks = [
            lane_mask(builder, builder.sub(valid, i64(at)), panel.lanes)
            if at + panel.lanes > panel.valid
            else None
            for at in range(0, panel.width, panel.lanes)
        ]

        def pack_terms(number: Value, count: int) -> None:
            own = ahead._replace(term=builder.add(i64(ahead.term), number))
            line = offset(builder, target, "f32", builder.mul(number, i64(panel.width)))
            for mask, at in zip(masks, range(0, panel.width, panel.lanes), strict=True):
                first = builder.add(i64(ahead.column), i64(at))
                column = Lanes(first, panel.lanes, 1, panel.lanes)
                for step, value in enumerate(self.elements.of_rows(own, column, count, mask)):
                    store(
                        builder, value, offset(builder, line, "f32", step * panel.width, at), "f32"
                    )

        # Panels begin with whole vectors of terms.
        together = min(of_block(self.elements.operand.scheme.block), panel.lanes)
        whole = builder.and_(terms, i64(-together))
        loop(builder, i64(0), whole, together, lambda number, _: pack_terms(number, together))
        loop(builder, whole, terms, 1, lambda number, _: pack_terms(number, 1))

    def _blocks(self, terms: Value, valid: Value, ahead: Ahead, target: Pointer) -> None:
        """As many terms as a vector has lanes at a time, transposed in registers."""
        builder, panel, lanes = self.builder, self.panel, self.panel.lanes
        last = builder.sub(valid, i64(1))
        run = max(lanes, self.elements.operand.run)

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
                    rows.append(self.elements.at(Ahead(ahead.batch, term, column), mask))
                line = offset(builder, target, "f32", builder.mul(number, i64(panel.width)), at)
                for part in range(0, width, lanes):
                    square = [picked(builder, row, part, lanes) for row in rows]
                    place = offset(builder, line, "f32", part * panel.width)
                    self._store_square(transpose(builder, square), place, count)

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
