"""Kernels that add up slices by index and go on: ``scatter_add`` with what is element-wise after it, as an embedding's gradient with its optimizer's update.

All places are gone through in order, and the sums of each are made when it is reached: they are never in memory. Where nothing goes to a place they are the
constant 0, in a loop of its own. A *line* is a place, or several where slices are short. Threads claim pieces that move as many bytes each, whatever the
indices are; so a piece may begin and end within a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ....codegen.elements.collapse import collapsed
from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.emit import loop, maximum, minimum
from ....codegen.ir.index import Lanes, as_value
from ....codegen.ir.math import emit
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.plan import Spec, element_wise_after
from ....lower.specs import sizes
from ..emit.non_temporal import either
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import cast, clear_bytes, each, kept_in, load, store, sweep
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
        lambda past: _Emission(code, lines, slices, past).all(),
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
        return -(-self.length // self.block)

    @property
    def lines(self) -> int:
        """Lines along ``size``."""
        return -(-self.size // self.rows)

    @property
    def held_bytes(self) -> int:
        """Bytes of the sums that a thread has at a time."""
        kept = kept_in(self.node.dtype).itemsize
        return -(-min(self.length, HELD) * kept // 64) * 64

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
    """The code that goes through the lines; ``past`` has it write past the cache."""

    def __init__(self, code: Code, lines: _Lines, slices: Slices, past: bool) -> None:
        self.code, self.lines, self.slices, self.past = code, lines, slices, past
        self.builder, self.places = code.builder, code.places
        self.kept = kept_in(lines.node.dtype)
        operands = [*code.operands, None]
        self.elements = Elements.of(code, body=lines.tail, operands=operands)
        self.given = lines.tail.inputs[str(len(code.operands))]
        self.shape = sizes(lines.tail.outputs[0])

    def all(self) -> None:
        """This thread's pieces."""
        lines, code = self.lines, self.code

        def one(piece: Any, pieces: Any) -> None:
            self._piece(*self._ends(piece, pieces))

        if lines.moved <= SMALL:
            self._piece(as_value(0), as_value(lines.outer * lines.lines * lines.blocks))
        elif lines.moved <= LARGE:
            one(code.thread, code.threads)
        else:
            pieces = min(lines.moved // PIECE, MOST_PIECES)
            code.claims.each(pieces, lambda piece: one(piece, as_value(pieces)))

    # ------------------------------------------------------------- where pieces begin

    def _ends(self, piece: Any, pieces: Any) -> tuple[Any, Any]:
        """The block with which a piece begins, and the one with which the next does: the same code twice over, written once."""
        b = self.builder

        def one(number: Any, held: Sequence[Any]) -> Sequence[Any]:
            return [held[1], self._begin(b.add(piece, number), pieces)]

        first, last = loop(b, as_value(0), as_value(2), 1, one, [as_value(0), as_value(0)])
        return first, last

    def _begin(self, piece: Any, pieces: Any) -> Any:
        """The block, of all lines, with which a piece begins: what comes before costs as much as the pieces before."""
        b, lines = self.builder, self.lines
        before = b.udiv(b.mul(piece, as_value(lines.outer * lines.cost)), pieces)
        outer = b.udiv(before, as_value(lines.cost))
        rest = b.urem(before, as_value(lines.cost))
        line = self._most(
            lines.lines - 1, lambda found: b.icmp_unsigned("<=", self._cost(found), rest)
        )
        start = self._cost(line)
        width = b.sub(self._cost(b.add(line, as_value(1))), start)
        block = b.udiv(b.mul(b.sub(rest, start), as_value(lines.blocks)), width)
        block = minimum(b, block, as_value(lines.blocks - 1))
        line = b.add(b.mul(outer, as_value(lines.lines)), line)
        return b.add(b.mul(line, as_value(lines.blocks)), block)

    def _cost(self, line: Any) -> Any:
        """Bytes moved for a column of the lines before one."""
        b, lines = self.builder, self.lines
        cost = b.mul(line, as_value(lines.line_cost))
        return b.add(cost, b.mul(self._before(line), as_value(lines.slice_cost)))

    def _before(self, line: Any) -> Any:
        """How many slices go to the lines before one."""
        b = self.builder
        place = b.mul(line, as_value(self.lines.rows))

        def holds(found: Any) -> Any:
            last = self.slices.place_of(b.sub(found, as_value(1)))
            return b.icmp_unsigned("<", last, place)

        return self._most(self.lines.count, holds)

    def _most(self, limit: int, holds: Callable[[Any], Any]) -> Any:
        """The largest number up to a limit for which something holds: it does for 0, and up to that number."""
        b = self.builder
        if not limit:
            return as_value(0)

        def one(_: Any, held: Sequence[Any]) -> Sequence[Any]:
            found, step = held
            wanted = b.add(found, step)
            more = minimum(b, wanted, as_value(limit))
            good = b.and_(b.icmp_unsigned("<=", wanted, as_value(limit)), holds(more))
            return [b.select(good, more, found), b.lshr(step, as_value(1))]

        steps = limit.bit_length()
        first = [as_value(0), as_value(1 << (steps - 1))]
        found, _ = loop(b, as_value(0), as_value(steps), 1, one, first)
        return found

    # ------------------------------------------------------------- lines

    def _piece(self, start: Any, stop: Any) -> None:
        """The blocks from one to before another, line by line."""
        b, lines = self.builder, self.lines
        blocks = as_value(lines.blocks)
        begin = b.udiv(start, blocks)
        end = b.udiv(b.add(stop, as_value(lines.blocks - 1)), blocks)

        def one(number: Any, held: Sequence[Any]) -> Sequence[Any]:
            outer = b.udiv(number, as_value(lines.lines))
            line = b.urem(number, as_value(lines.lines))
            done = b.mul(number, blocks)
            low = b.mul(maximum(b, b.sub(start, done), as_value(0)), as_value(lines.block))
            high = b.mul(minimum(b, b.sub(stop, done), blocks), as_value(lines.block))
            place = b.mul(line, as_value(lines.rows))
            rows = minimum(b, as_value(lines.rows), b.sub(as_value(lines.size), place))
            high = minimum(b, high, b.mul(rows, as_value(lines.inner)))
            # The slices of a line are behind those of the line before; every outer index has them all again.
            first_line = b.icmp_unsigned("==", line, as_value(0))
            position = b.select(first_line, as_value(0), held[0])
            after = self.slices.until(position, b.add(place, as_value(lines.rows)))
            self._line(outer, place, low, high, position, after)
            return [after]

        loop(b, begin, end, 1, one, [self._before(b.urem(begin, as_value(lines.lines)))])

    def _line(self, outer: Any, place: Any, low: Any, high: Any, begin: Any, end: Any) -> None:
        """The elements of a line from ``low`` to before ``high``, from the slices at positions ``begin`` to before ``end``."""
        b, lines = self.builder, self.lines
        row = b.add(b.mul(outer, as_value(lines.size)), place)
        start = b.mul(row, as_value(lines.inner))
        some = b.icmp_unsigned("<", begin, end)

        def chunk(first: Any, last: Any) -> None:
            with b.if_else(some) as (summed, zero):
                with summed:
                    self._sum(outer, place, first, last, begin, end)
                    self._finish(start, first, last, self.code.own)
                with zero:
                    self._finish(start, first, last, None)

        if lines.length <= HELD:
            chunk(low, high)
            return

        def one(first: Any, _: Sequence[Any]) -> None:
            chunk(first, minimum(b, b.add(first, as_value(HELD)), high))

        loop(b, low, high, HELD, one)

    def _sum(self, outer: Any, place: Any, first: Any, last: Any, begin: Any, end: Any) -> None:
        """Add up the columns of a line from ``first`` to before ``last``, slice by slice in their own order."""
        b, places, lines, kept = self.builder, self.places, self.lines, self.kept
        clear_bytes(b, self.code.own, b.mul(b.sub(last, first), as_value(kept.itemsize)))
        low, high = (first, last) if lines.rows == 1 else (0, lines.inner)

        def one(position: Any) -> None:
            row = b.sub(self.slices.place_of(position), place)
            base = b.sub(b.mul(row, as_value(lines.inner)), first)
            number = self.slices.number_of(position)

            def columns(column: Any, width: int) -> None:
                value = self.slices.take(outer, number, column, width)
                value = cast(b, value, lines.node.dtype, kept)
                at = places.add(base, column)
                total = load(b, self.code.own, at, kept, width)
                total = emit("add", b, [total, value], [kept, kept], kept)
                store(b, total, self.code.own, at, kept)

            sweep(b, low, high, self.slices.lanes, columns)

        each(b, begin, end, one)

    def _finish(self, start: Any, first: Any, last: Any, held: Any) -> None:
        """Write the results of the columns from ``first`` to before ``last`` of a line that begins at ``start``.

        Their sums are at ``held``, or 0 where that is None.
        """
        elements, places, outputs = self.elements, self.places, self.lines.tail.outputs
        dtype, along = self.lines.node.dtype, self.shape[-1]
        if along % self.lines.inner == 0:
            lead = places.split(places.div(start, along), self.shape[:-1])
            before = places.mod(start, along)

        def block(column: Lanes, _: Any) -> Sequence[Any]:
            at = places.add(start, column)
            if along % self.lines.inner == 0:
                index = [*lead, places.add(before, column)]
            else:
                index = places.split(at, self.shape)
            if held is None:
                sums = elements.registers.constant(0, dtype, column.count)
            else:
                at_hand = places.sub(column, first)
                sums = elements.registers.load(held, at_hand, self.kept, elements.mask)
                sums = cast(self.builder, sums, self.kept, dtype)
            elements.give(self.given, sums)
            # All are computed before any is written: a result may lie where an operand does.
            values = [elements.at(output, index) for output in outputs]
            for output, pointer, value in zip(outputs, self.code.results, values, strict=True):
                elements.registers.store(
                    value, pointer, at, output.dtype, elements.mask, past=self.past
                )
            return []

        elements.blocks(first, last, self.lines.lanes, block)


SCATTER_ENDS = Template("scatter_ends", _fits, _emit, _scratch)
