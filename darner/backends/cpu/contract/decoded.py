"""Panels of a B that is decoded as they are packed: quantised weights, of which no float is ever in memory.

B has no address. Its elements have the addresses that they would have if it lay in memory from address 0 on, so that whatever cuts a product computes with them as with
others; what packs a panel makes indices of them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import ir, lane_mask, loop, minimum, offset, store
from ....codegen.ir.index import Index, IndexMath, Lanes, i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Function, Module, Pointer, Value
from ....graph.node import Node
from ....lower.specs import sizes
from ..emit.template import Code
from .pack import transpose
from .plan import PanelOf


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
    def summed_last(self) -> bool:
        """Whether the terms of a sum lie side by side."""
        return self.summed == self.node.rank - 1

    def pack(
        self, builder: Builder, panel: PanelOf, span: tuple[Value, Value], target: Pointer
    ) -> None:
        """Call the function that packs the columns of a panel: ``span`` is the address of their first term, and how many terms."""
        leaves = self._leaves()
        function = self._function(builder.module, panel, leaves)
        first = builder.ptrtoint(span[0], i64(0).type)
        first = builder.udiv(first, i64(STORAGE_BYTES["f32"]))
        given = [self.code.operand_of(leaf) for leaf in leaves]
        builder.call(function, [span[1], i64(panel.valid), first, target, *given])

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
        """The function, ``(terms, valid, first, panel*, operands*...)``."""
        types = ir()
        width, lanes = panel.width, panel.lanes
        body = self.code.body.digest()[:16]
        name = f"darner.decode.{body}.{self.node.id}.{self.summed}.{width}.{lanes}"
        found: Function | None = module.globals.get(name)
        if found is not None:
            return found
        word, pointer = types.IntType(64), types.PointerType()
        arguments = [word, word, word, pointer, *[pointer] * len(leaves)]
        kind = types.FunctionType(types.VoidType(), arguments)
        function: Function = types.Function(module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        builder = types.IRBuilder(function.append_basic_block("entry"))
        terms, valid, first, target, *given = function.args
        addresses = {leaf.id: address for leaf, address in zip(leaves, given, strict=True)}
        writing = _Packing(self, builder, panel, addresses)
        writing.emit(terms, valid, first, target)
        builder.ret_void()
        return function


class Ahead(NamedTuple):
    """The element that a panel begins with: which matrix of a batch, its term and its column."""

    batch: tuple[Index, ...]
    term: Index
    column: Index


@dataclass(frozen=True)
class _Packing:
    """A function that packs while it is being written.

    Attributes:
        addresses: of the kernel's inputs that are read, by their ids.
    """

    decoder: Decoder
    builder: Builder
    panel: PanelOf
    addresses: dict[int, Pointer]

    def emit(self, terms: Value, valid: Value, first: Value, target: Pointer) -> None:
        """All terms of the panel: vectors of columns, or transposed blocks where terms lie side by side."""
        indices = IndexMath(self.builder)
        *batch, row, column = indices.split(first, sizes(self.decoder.node))
        if self.decoder.summed_last:
            self._blocks(terms, valid, Ahead(tuple(batch), column, row), target)
        else:
            self._rows(terms, valid, Ahead(tuple(batch), row, column), target)

    def _element(
        self, batch: tuple[Index, ...], term: Index, column: Index, mask: Value | None
    ) -> Value:
        """Decoded elements, where one of the numbers has lanes."""
        code, node = self.decoder.code, self.decoder.node
        some = next(iter(self.addresses.values()))
        operands = [self.addresses.get(leaf.id, some) for leaf in code.spec.inputs]
        elements = Elements(self.builder, code.body, operands, mask, width=code.width)
        last = [column, term] if self.decoder.summed_last else [term, column]
        index = [*batch, *last]
        return elements.indices.spread(elements.at(node, index), self.panel.lanes)

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
                value = self._element(ahead.batch, term, column, mask)
                store(builder, value, offset(builder, line, "f32", at), "f32")

        loop(builder, i64(0), terms, 1, pack_term)

    def _blocks(self, terms: Value, valid: Value, ahead: Ahead, target: Pointer) -> None:
        """As many terms as a vector has lanes at a time, transposed in registers."""
        builder, panel, lanes = self.builder, self.panel, self.panel.lanes
        last = builder.sub(valid, i64(1))

        def block(number: Value, count: Value | None) -> None:
            mask = None if count is None else lane_mask(builder, count, lanes)
            term = Lanes(builder.add(i64(ahead.term), number), lanes, 1, lanes)

            def square(at: Value, _: Sequence[Value]) -> None:
                rows = []
                for lane in range(lanes):
                    # Of columns that are missing, the last is decoded once more.
                    own = builder.add(at, i64(lane))
                    own = minimum(builder, own, last) if panel.valid < panel.width else own
                    column = builder.add(i64(ahead.column), own)
                    rows.append(self._element(ahead.batch, term, column, mask))
                self._store_square(transpose(builder, rows), number, at, target, count)

            loop(builder, i64(0), i64(panel.width), lanes, square)

        whole = builder.and_(terms, i64(-lanes))
        loop(builder, i64(0), whole, lanes, lambda number, _: block(number, None))
        with builder.if_then(builder.icmp_signed("<", whole, terms)):
            block(whole, builder.sub(terms, whole))

    def _store_square(  # many parameters: a square of values, and where it goes
        self,
        columns: Sequence[Value],
        number: Value,
        at: Value,
        target: Pointer,
        count: Value | None,
    ) -> None:
        builder, width = self.builder, self.panel.width
        for lane, value in enumerate(columns):
            line = builder.mul(builder.add(number, i64(lane)), i64(width))
            address = offset(builder, target, "f32", line, at)
            if count is None:
                store(builder, value, address, "f32")
                continue
            with builder.if_then(builder.icmp_signed("<", i64(lane), count)):
                store(builder, value, address, "f32")
