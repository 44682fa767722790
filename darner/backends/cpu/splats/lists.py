"""The splats of each tile, in the order in which they come.

Threads share the rows of tiles. Each goes through all splats twice: to count those of its tiles, and, when it is known where each list begins, to place them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....codegen.ir.emit import loop, maximum, minimum
from ....codegen.ir.index import i64
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.splats import ListProblem
from ....graph import dtypes
from ....graph.node import Node
from ..emit.template import Code
from ..emit.vectors import Source, clear_bytes, each, element_address, moved


def scratch_bytes(node: Node) -> int:
    """A number for each tile, and one for each picture."""
    problem = ListProblem.of(node)
    return 8 * problem.batch * (problem.tiles + 1)


def emit_lists(code: Code, node: Node) -> None:
    """The code of ``splat_lists``."""
    writer = _Writer(code, node)
    writer.count()
    code.barrier()
    with code.alone():
        writer.place_lists()
    code.barrier()
    writer.fill()


class _Writer:
    """The lists of a batch of pictures in the making."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code, self.node, self.b = code, node, code.builder
        self.problem = ListProblem.of(node)
        bounds, numbers = node.operands
        self.bounds = Source(code, bounds, bounds.rank - 1)
        self.numbers = Source(code, numbers, numbers.rank - 1)
        self.registers = Registers(code.builder)
        self.counts: Pointer = code.shared
        tiles = self.problem.batch * self.problem.tiles
        self.totals = moved(code.builder, code.shared, 8 * tiles)
        (self.result,) = code.results

    def count(self) -> None:
        """How many splats each tile has."""

        def add(tile: Value, number: Callable[[], Value]) -> None:
            found = self.registers.load(self.counts, tile, dtypes.i64)
            more = self.b.add(found, i64(1))
            self.registers.store(more, self.counts, tile, dtypes.i64)

        def row(at: Value) -> None:
            across = self.problem.across
            start = self.b.mul(at, i64(across))
            clear_bytes(self.b, moved(self.b, self.counts, self.b.mul(start, i64(8))), 8 * across)
            self._row(at, add)

        self.code.each(self.problem.batch * self.problem.down, row)

    def place_lists(self) -> None:
        """Where each list begins, in place of its count, and told in the result; too many entries are told of as a fault."""
        b, problem = self.b, self.problem
        room = i64(problem.entries)

        def picture(number: Value) -> None:
            base = b.mul(number, i64(problem.length))

            def tile(k: Value, held: Sequence[Value]) -> Sequence[Value]:
                at = b.add(b.mul(number, i64(problem.tiles)), k)
                count = self.registers.load(self.counts, at, dtypes.i64)
                self.registers.store(held[0], self.counts, at, dtypes.i64)
                end = b.add(held[0], count)
                first = b.add(b.add(base, room), b.mul(k, i64(2)))
                for place, edge in ((first, held[0]), (b.add(first, i64(1)), end)):
                    self._put(minimum(b, edge, room), place)
                return [end]

            (total,) = loop(b, i64(0), i64(problem.tiles), 1, tile, [i64(0)])
            self.registers.store(total, self.totals, number, dtypes.i64)
            too_many = b.icmp_signed(">", total, room)
            self.code.faults.tell_if(b, too_many, self.node, total, problem.entries)

        each(b, 0, problem.batch, picture)

    def fill(self) -> None:
        """The numbers of splats, and -1 behind them."""
        b, problem = self.b, self.problem

        def add(tile: Value, number: Callable[[], Value]) -> None:
            place = self.registers.load(self.counts, tile, dtypes.i64)
            self.registers.store(b.add(place, i64(1)), self.counts, tile, dtypes.i64)
            with b.if_then(b.icmp_signed("<", place, i64(problem.entries))):
                picture = b.udiv(tile, i64(problem.tiles))
                self._put(number(), b.add(b.mul(picture, i64(problem.length)), place))

        self.code.each(problem.batch * problem.down, lambda at: self._row(at, add))

        def rest(picture: Value) -> None:
            total = self.registers.load(self.totals, picture, dtypes.i64)
            used = minimum(b, total, i64(problem.entries))
            first = b.add(b.mul(picture, i64(problem.length)), used)
            count = b.mul(b.sub(i64(problem.entries), used), i64(4))
            clear_bytes(b, element_address(b, self.result, first, dtypes.i32), count, 255)

        self.code.each(problem.batch, rest)

    def _row(self, at: Value, body: Callable[[Value, Callable[[], Value]], None]) -> None:
        """``body(tile, number)`` for each splat of each tile of a row of tiles, splats in their order."""
        b, problem = self.b, self.problem
        picture, row = b.udiv(at, i64(problem.down)), b.urem(at, i64(problem.down))
        lead = self.code.indices.split(picture, problem.lead) if problem.lead else []
        start = b.mul(at, i64(problem.across))

        def splat(n: Value) -> None:
            left, top, right, bottom = (self.bounds.integer([*lead, n], k) for k in range(4))
            above = b.icmp_signed("<=", top, row)
            with b.if_then(b.and_(above, b.icmp_signed("<", row, bottom))):
                first = maximum(b, left, i64(0))
                last = minimum(b, right, i64(problem.across))

                def number() -> Value:
                    return self.numbers.integer(lead, n)

                each(b, first, last, lambda x: body(b.add(start, x), number))

        each(b, 0, problem.splats, splat)

    def _put(self, value: Value, place: Value) -> None:
        from llvmlite import ir

        word = self.b.trunc(value, ir.IntType(32))
        self.registers.store(word, self.result, place, dtypes.i32)
