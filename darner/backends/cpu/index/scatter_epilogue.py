"""``scatter_add`` with an element-wise epilogue, such as an embedding's gradient with its optimizer's update.

All rows are gone through in order, and the sum of each is made when it is reached: sums are never in memory. Rows that no slice goes to have a sum of
0, in a loop of their own. A *line* is a row, or several where slices are short. Threads claim pieces that move equal numbers of bytes, whatever the
indices; so a piece may begin and end within a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ....codegen.elements.collapse import collapsed
from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.emit import loop, maximum, minimum
from ....codegen.ir.index import Index, Lanes, i64, neighbours
from ....codegen.ir.math import emit
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Value, accumulator_type
from ....graph.graph import Graph
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec, element_wise_after
from ....lower.specs import sizes
from ..emit.non_temporal import either
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import cast, clear_bytes, each, sweep
from ..maps.template import lanes_for
from ..runtime.jit import Machine
from .scatter import Slices, order_bytes

OP = "scatter_add"

HELD = 2048
"""Elements of sums that a thread has at a time: they stay in the nearest cache."""

FEWEST_LINES = 64
"""Lines that short slices are put together to, where these have then ``SHORT`` elements."""
SHORT = 256

SMALL = 1 << 16
"""Bytes to move up to which one thread does it all."""
LARGE = 1 << 23
"""Bytes to move from which on threads claim pieces; else each has one."""
PIECE = 1 << 19
"""Bytes of such a piece at least: to find where one begins takes a while."""
MOST_PIECES = 128


def _fits(spec: Spec) -> bool:
    body = spec.body
    found = [node for node in body.nodes if node.op.name == OP]
    if spec.kind != "index" or len(found) != 1 or [node.op.name for node in body.outputs] == [OP]:
        return False
    made = element_wise_after(body, found[0])
    return (
        made is not None
        and all(output.id in made for output in body.outputs)
        and can_emit(body, (OP,))
    )


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    lines = _lines(spec, machine)
    return Scratch(own=lines.held_bytes, shared=order_bytes(lines.node))


def _emit(code: Code) -> None:
    lines = _lines(code.spec, code.machine)
    if not lines.places * lines.inner:
        return
    slices = Slices(code, lines.node)
    if lines.moved <= SMALL:
        with code.alone():
            slices.order()
            _emit_lines(code, lines, slices)
        return
    if lines.count:
        with code.alone():
            slices.order()
        code.barrier()
    _emit_lines(code, lines, slices)


def _emit_lines(code: Code, lines: _Lines, slices: Slices) -> None:
    whole = not (lines.length % lines.lanes or lines.size * lines.inner % lines.lanes)
    written = sum(output.dtype.itemsize for output in code.body.outputs) * prod(sizes(lines.node))
    either(
        code,
        written if whole else 0,
        code.results,
        lambda non_temporal: _Emission(code, lines, slices, non_temporal).all(),
    )


# --------------------------------------------------------------------------- how the result is cut


@dataclass(frozen=True)
class _Lines:
    """The result as lines.

    Attributes:
        node: the sums.
        tail: what is done with them, as a body that has them as its last input.
        outer, size, inner: the result is [outer, size, inner], an index says where along ``size``.
        count: how many indices there are.
        rows: the places of a line.
        lanes: elements that are computed together.
        block: elements of a line from one place to the next where a piece may begin.
        element: bytes that are moved for an element of the result.
    """

    node: Node
    tail: Graph
    outer: int
    size: int
    inner: int
    count: int
    rows: int
    lanes: int
    block: int
    element: int

    @property
    def places(self) -> int:
        """All places."""
        return self.outer * self.size

    @property
    def length(self) -> int:
        """Elements of a line."""
        return self.rows * self.inner

    @property
    def blocks(self) -> int:
        """Blocks of a line."""
        return ceil_div(self.length, self.block)

    @property
    def lines(self) -> int:
        """Lines along ``size``."""
        return ceil_div(self.size, self.rows)

    @property
    def held_bytes(self) -> int:
        """Bytes of the sums that a thread has at a time."""
        accumulator = accumulator_type(self.node.dtype).itemsize
        return round_up(min(self.length, HELD) * accumulator, 64)

    @property
    def line_cost(self) -> int:
        """Bytes moved for a column of a line to which nothing goes."""
        return self.rows * self.element

    @property
    def slice_cost(self) -> int:
        """Bytes moved for a column of a slice."""
        return self.node.dtype.itemsize

    @property
    def cost(self) -> int:
        """Bytes moved for a column of all lines along ``size``."""
        return self.lines * self.line_cost + self.count * self.slice_cost

    @property
    def moved(self) -> int:
        """Bytes moved in all."""
        return self.outer * self.cost * self.inner


def _lines(spec: Spec, machine: Machine) -> _Lines:
    (node,) = (node for node in spec.body.nodes if node.op.name == OP)
    axis, whole = int(node.attrs["axis"]), sizes(node)
    outer, size, inner = prod(whole[:axis]), whole[axis], prod(whole[axis + 1 :])
    tail = collapsed(Spec("map", _tail(spec.body, node))).body
    shape = sizes(tail.outputs[0])
    rows = 1
    # Where an operand differs only along slices, or only from place to place, places are gone through one by one.
    if size * inner and shape[-1] % (size * inner) == 0:
        length = min(max(outer * size * inner // FEWEST_LINES, SHORT), HELD)
        rows = max(1, min(length // inner, size))
    lanes = lanes_for(tail, machine.vector_bytes // 4, rows * inner)
    operands = [leaf for leaf in [*tail.inputs.values()][:-1] if tail.users(leaf)]
    whole_operands = [leaf for leaf in operands if sizes(leaf) == shape]
    return _Lines(
        node,
        tail,
        outer,
        size,
        inner,
        prod(sizes(node.operands[node.slots.index("indices")])),
        rows,
        lanes,
        4 * lanes if rows == 1 else rows * inner,
        sum(item.dtype.itemsize for item in (*whole_operands, *tail.outputs)),
    )


def _tail(body: Graph, node: Node) -> Graph:
    """What is done with the sums: a body whose inputs are those of the kernel, and then the sums."""
    result = Graph("tail")
    made = {
        leaf.id: result.input(name, leaf.shape, leaf.dtype) for name, leaf in body.inputs.items()
    }
    made[node.id] = result.input(str(len(made)), node.shape, node.dtype)
    needed = {output.id for output in body.outputs}
    for item in reversed(body.nodes):
        if item.id in needed and item.id not in made:
            needed.update(item.inputs)
    for item in body.nodes:
        if item.id in needed and item.id not in made:
            made[item.id] = result.insert_like(item, [made[i] for i in item.inputs])
    result.set_outputs([made[output.id] for output in body.outputs])
    return result.freeze()


# --------------------------------------------------------------------------- code


class _Emission:
    """The code that goes through the lines; ``non_temporal`` has it write past the cache."""

    def __init__(self, code: Code, lines: _Lines, slices: Slices, non_temporal: bool) -> None:
        self.code, self.lines, self.slices, self.non_temporal = code, lines, slices, non_temporal
        self.builder, self.indices = code.builder, code.indices
        self.accumulator = accumulator_type(lines.node.dtype)
        operands = [*code.operands, None]
        self.elements = Elements.of(code, body=lines.tail, operands=operands)
        self.given = lines.tail.inputs[str(len(code.operands))]
        self.shape = sizes(lines.tail.outputs[0])

    def all(self) -> None:
        """This thread's pieces."""
        lines, code = self.lines, self.code

        def emit_piece(piece: Value, pieces: Value) -> None:
            self._piece(*self._ends(piece, pieces))

        if lines.moved <= SMALL:
            self._piece(i64(0), i64(lines.outer * lines.lines * lines.blocks))
        elif lines.moved <= LARGE:
            emit_piece(code.thread, code.threads)
        else:
            pieces = min(lines.moved // PIECE, MOST_PIECES)
            code.claims.each(pieces, lambda piece: emit_piece(piece, i64(pieces)))

    # ------------------------------------------------------------- where pieces begin

    def _ends(self, piece: Value, pieces: Value) -> tuple[Value, Value]:
        """The block with which a piece begins, and the one with which the next does: the same code twice over, written once."""
        b = self.builder

        def find_end(number: Value, held: Sequence[Value]) -> Sequence[Value]:
            return [held[1], self._begin(b.add(piece, number), pieces)]

        first, last = loop(b, i64(0), i64(2), 1, find_end, [i64(0), i64(0)])
        return first, last

    def _begin(self, piece: Value, pieces: Value) -> Value:
        """The block, of all lines, with which a piece begins: what comes before costs as much as the pieces before."""
        b, lines = self.builder, self.lines
        before = b.udiv(b.mul(piece, i64(lines.outer * lines.cost)), pieces)
        outer = b.udiv(before, i64(lines.cost))
        rest = b.urem(before, i64(lines.cost))
        line = self._most(
            lines.lines - 1, lambda found: b.icmp_unsigned("<=", self._cost(found), rest)
        )
        start = self._cost(line)
        width = b.sub(self._cost(b.add(line, i64(1))), start)
        block = b.udiv(b.mul(b.sub(rest, start), i64(lines.blocks)), width)
        block = minimum(b, block, i64(lines.blocks - 1))
        line = b.add(b.mul(outer, i64(lines.lines)), line)
        return b.add(b.mul(line, i64(lines.blocks)), block)

    def _cost(self, line: Value) -> Value:
        """Bytes moved for a column of the lines before one."""
        b, lines = self.builder, self.lines
        cost = b.mul(line, i64(lines.line_cost))
        return b.add(cost, b.mul(self._before(line), i64(lines.slice_cost)))

    def _before(self, line: Value) -> Value:
        """How many slices go to the lines before one."""
        b = self.builder
        position = b.mul(line, i64(self.lines.rows))

        def holds(found: Value) -> Value:
            last = self.slices.unravelled(b.sub(found, i64(1)))
            return b.icmp_unsigned("<", last, position)

        return self._most(self.lines.count, holds)

    def _most(self, limit: int, holds: Callable[[Value], Value]) -> Value:
        """The largest number up to a limit for which something holds: it does for 0, and up to that number."""
        b = self.builder
        if not limit:
            return i64(0)

        def halve_range(_: Value, held: Sequence[Value]) -> Sequence[Value]:
            found, step = held
            wanted = b.add(found, step)
            more = minimum(b, wanted, i64(limit))
            good = b.and_(b.icmp_unsigned("<=", wanted, i64(limit)), holds(more))
            return [b.select(good, more, found), b.lshr(step, i64(1))]

        steps = limit.bit_length()
        first = [i64(0), i64(1 << (steps - 1))]
        found, _ = loop(b, i64(0), i64(steps), 1, halve_range, first)
        return found

    # ------------------------------------------------------------- lines

    def _piece(self, start: Value, stop: Value) -> None:
        """The blocks from one to before another, line by line."""
        b, lines = self.builder, self.lines
        blocks = i64(lines.blocks)
        begin = b.udiv(start, blocks)
        end = b.udiv(b.add(stop, i64(lines.blocks - 1)), blocks)

        def emit_line(number: Value, held: Sequence[Value]) -> Sequence[Value]:
            outer = b.udiv(number, i64(lines.lines))
            line = b.urem(number, i64(lines.lines))
            done = b.mul(number, blocks)
            low = b.mul(maximum(b, b.sub(start, done), i64(0)), i64(lines.block))
            high = b.mul(minimum(b, b.sub(stop, done), blocks), i64(lines.block))
            within = b.mul(line, i64(lines.rows))
            rows = minimum(b, i64(lines.rows), b.sub(i64(lines.size), within))
            high = minimum(b, high, b.mul(rows, i64(lines.inner)))
            # The slices of a line are behind those of the line before; every outer index has them all again.
            first_line = b.icmp_unsigned("==", line, i64(0))
            position = b.select(first_line, i64(0), held[0])
            after = self.slices.until(position, b.add(within, i64(lines.rows)))
            self._line(outer, within, low, high, position, after)
            return [after]

        loop(b, begin, end, 1, emit_line, [self._before(b.urem(begin, i64(lines.lines)))])

    def _line(
        self, outer: Value, address: Value, low: Value, high: Value, begin: Value, end: Value
    ) -> None:
        """The elements of a line from ``low`` to before ``high``, from the slices at positions ``begin`` to before ``end``."""
        b, lines = self.builder, self.lines
        row = b.add(b.mul(outer, i64(lines.size)), address)
        start = b.mul(row, i64(lines.inner))
        some = b.icmp_unsigned("<", begin, end)

        def chunk(first: Value, last: Value) -> None:
            with b.if_else(some) as (summed, zero):
                with summed:
                    self._sum(outer, address, first, last, begin, end)
                    self._finish(start, first, last, self.code.own)
                with zero:
                    self._finish(start, first, last, None)

        if lines.length <= HELD:
            chunk(low, high)
            return

        def emit_block(first: Value, _: Sequence[Value]) -> None:
            chunk(first, minimum(b, b.add(first, i64(HELD)), high))

        loop(b, low, high, HELD, emit_block)

    def _sum(
        self, outer: Value, address: Value, first: Value, last: Value, begin: Value, end: Value
    ) -> None:
        """Add up the columns of a line from ``first`` to before ``last``, slice by slice in their own order."""
        b, indices, lines, accumulator = self.builder, self.indices, self.lines, self.accumulator
        clear_bytes(b, self.code.own, b.mul(b.sub(last, first), i64(accumulator.itemsize)))
        low, high = (first, last) if lines.rows == 1 else (0, lines.inner)

        def add_slice(position: Value) -> None:
            row = b.sub(self.slices.unravelled(position), address)
            base = b.sub(b.mul(row, i64(lines.inner)), first)
            number = self.slices.number_of(position)

            def columns(column: Index, width: int) -> None:
                value = self.slices.take(outer, number, column, width)
                value = cast(b, value, lines.node.dtype, accumulator)
                at = indices.add(base, column)
                total = Registers(b).load(self.code.own, neighbours(at, width), accumulator)
                total = emit("add", b, [total, value], [accumulator, accumulator], accumulator)
                Registers(b).store(total, self.code.own, at, accumulator)

            sweep(b, low, high, self.slices.lanes, columns)

        each(b, begin, end, add_slice)

    def _finish(self, start: Value, first: Value, last: Value, held: Pointer | None) -> None:
        """Write the results of the columns from ``first`` to before ``last`` of a line that begins at ``start``.

        Their sums are at ``held``, or 0 where that is None.
        """
        elements, indices, outputs = self.elements, self.indices, self.lines.tail.outputs
        dtype, along = self.lines.node.dtype, self.shape[-1]
        if along % self.lines.inner == 0:
            lead = indices.split(indices.div(start, along), self.shape[:-1])
            before = indices.mod(start, along)

        def block(column: Lanes, _: Sequence[Value]) -> Sequence[Value]:
            at = indices.add(start, column)
            if along % self.lines.inner == 0:
                index = [*lead, indices.add(before, column)]
            else:
                index = indices.split(at, self.shape)
            if held is None:
                sums = elements.registers.constant(0, dtype, column.count)
            else:
                at_hand = indices.sub(column, first)
                sums = elements.registers.load(held, at_hand, self.accumulator, elements.mask)
                sums = cast(self.builder, sums, self.accumulator, dtype)
            elements.give(self.given, sums)
            # All are computed before any is written: a result may lie where an operand does.
            values = [elements.at(output, index) for output in outputs]
            for output, pointer, value in zip(outputs, self.code.results, values, strict=True):
                elements.registers.store(
                    value, pointer, at, output.dtype, elements.mask, non_temporal=self.non_temporal
                )
            return []

        elements.blocks(first, last, self.lines.lanes, block)


SCATTER_ENDS = Template("scatter_ends", _fits, _emit, _scratch)
