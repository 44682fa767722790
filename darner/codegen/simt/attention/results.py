"""Rows of results: from a workgroup's registers by way of shared memory to where they belong, with what the body computes of each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...problems.attention import Described, result_numbers, statistics_number
from ..builder import Operand, Value, is_packed
from .operands import Place, Reader
from .tile import Block, Tile


def are_whole(spec: Spec, numbers: Sequence[int]) -> bool:
    """Whether no two threads share a word of these results: rows of 16-bit numbers are written in pairs."""
    outputs = [spec.body.outputs[i] for i in numbers]
    return all(
        not is_packed(node.dtype) or (node.dtype.itemsize == 2 and int(node.shape[-1]) % 2 == 0)
        for node in outputs
    )


@dataclass(frozen=True)
class RowBlock:
    """Rows that all threads of a workgroup write.

    Attributes:
        node: whose elements these are.
        numbers: of the results that are made of them.
        place: batch, head and the first row.
        count: rows.
        limit: rows that exist.
        element: ``element(row, column)`` in the type that is computed with; rows count from 0.
        vector: ``vector(row, which)``, 4 of them.
    """

    node: Node
    numbers: Sequence[int]
    place: Place
    count: int
    limit: int
    element: Callable[[Value, Value], Value]
    vector: Callable[[Value, Value], Value]


def write_sums(tile: Tile, sums: Block, node: Node, numbers: Sequence[int], place: Place) -> None:
    """Write the sums of a block of rows: the elements of ``node``, of which the results ``numbers`` are made."""
    b, cut, right = tile.builder, tile.cut, tile.right
    quads = ceil_div(int(node.shape[-1]), 4)
    several = max(1, min(cut.rows, cut.room // (cut.down * quads)))

    def element(row: Value, column: Value) -> Value:
        return right[row * quads + (column >> 2), column & 3]

    def vector(row: Value, quad: Value) -> Value:
        return right[row * quads + quad]

    for begin in range(0, cut.rows, several):
        rows = sums[begin : begin + several]
        b.barrier()
        for i, own in enumerate(rows):
            for w, total in enumerate(own):
                column = tile.across + w * cut.across
                with b.if_(None if cut.across * (w + 1) <= quads else column < quads):
                    right[(tile.down + i * cut.down) * quads + column] = total
        b.barrier()
        first = Place(place.batch, place.head, place.first + begin * cut.down)
        count = len(rows) * cut.down
        write_block(tile, RowBlock(node, numbers, first, count, tile.row_count, element, vector))


def write_rows(
    reader: Reader, place: Place, count: int, vector: Callable[[Value, Value], Value]
) -> None:
    """Write ``count`` rows of attention's result; ``vector(row, which)`` has 4 elements."""
    attention = reader.attention
    numbers = result_numbers(reader.dispatch.spec)

    def element(row: Value, column: Value) -> Value:
        four = vector(row, column >> 2)
        return reader.builder.let(four[column & 3])

    rows = RowBlock(attention.node, numbers, place, count, attention.queries, element, vector)
    write_block(reader, rows)


def keeps_statistics(reader: Reader) -> bool:
    """Whether a kernel writes what gradients read of its queries."""
    return statistics_number(reader.dispatch.spec) is not None


def write_statistics(reader: Reader, place: Place, row: Number, top: Operand, total: Value) -> None:
    """Write a query's maximum and 1 over its total, if the kernel is to; its row exists."""
    number = statistics_number(reader.dispatch.spec)
    if number is None:
        return
    attention, b = reader.attention, reader.builder
    result = reader.dispatch.results[number]
    head = (place.batch * attention.heads + place.head) * 2
    at = b.let(head * attention.queries + row, "kept")
    seen = b.let(total > 0.0)
    result[at] = b.choose(seen, top, 0.0)
    result[at + attention.queries] = b.choose(seen, 1.0 / b.choose(seen, total, 1.0), 0.0)


def _in_vectors(reader: Reader, rows: RowBlock) -> bool:
    """Whether a result is written 4 elements at a time; it is declared so."""
    node, numbers = rows.node, rows.numbers
    outputs = [reader.dispatch.body.outputs[i] for i in numbers]
    plain = [output.id for output in outputs] == [node.id] and not is_packed(node.dtype)
    if not plain or int(node.shape[-1]) % 4:
        return False
    result = reader.dispatch.results[numbers[0]]
    if result.vector == 1:
        reader.dispatch.as_vectors(result, 4)
    return True


def write_block(reader: Reader, rows: RowBlock) -> None:
    """Write rows."""
    dispatch, b = reader.dispatch, reader.builder
    vectors = _in_vectors(reader, rows)
    packed = any(is_packed(dispatch.results[i].dtype) for i in rows.numbers)
    together = 2 if packed and are_whole(dispatch.spec, rows.numbers) else 1
    if vectors:
        together = 4
    units = ceil_div(int(rows.node.shape[-1]), together)
    with b.for_(b.local, rows.count * units, dispatch.threads, name="e") as e:
        own_row = b.let(e // units, "own_row")
        unit = b.let(e % units, "unit")
        row = b.let(own_row + rows.place.first, "to_row")
        with b.if_(row < rows.limit):
            if vectors:
                index = _index(reader.attention, rows.place, row, unit * 4)
                offset: Number = 0
                for number, size in zip(index, sizes(rows.node), strict=True):
                    offset = offset * size + number
                result = dispatch.results[rows.numbers[0]]
                result[offset >> 2] = rows.vector(own_row, unit)
            else:
                write_unit(reader, rows, (own_row, row), unit, together)


def _index(attention: Described, place: Place, row: Value, column: Value) -> list[Number]:
    """Batch, head, row and column in the order of the layout."""
    if attention.layout == "bhsd":
        return [place.batch, place.head, row, column]
    return [place.batch, row, place.head, column]


def write_unit(
    reader: Reader, rows: RowBlock, row: tuple[Value, Value], unit: Value, together: int
) -> None:
    """One element of each result, or a pair of neighbours; ``row`` is counted from the first that is written, and from the head's first."""
    dispatch, b, node = reader.dispatch, reader.builder, rows.node
    elements = dispatch.elements()
    registers, places = elements.registers, elements.places
    outputs = [dispatch.body.outputs[i] for i in rows.numbers]
    made: list[list[Value]] = []
    offsets: list[Number] = []
    for k in range(together):
        column = b.let(unit * together + k)
        index = _index(reader.attention, rows.place, row[1], column)
        plain = rows.element(row[0], column)
        with elements.scope():
            elements.give(node, registers.cast(plain, reader.kind, node.dtype))
            made.append([elements.at(output, index) for output in outputs])
        offsets.append(places.offset(index, sizes(node)))
    for slot, (output, number) in enumerate(zip(outputs, rows.numbers, strict=True)):
        memory, values = dispatch.results[number], [own[slot] for own in made]
        if is_packed(output.dtype) and not memory.atomic:
            memory[places.value(offsets[0]) >> 1] = registers.word(values, output.dtype)
            continue
        for offset, item in zip(offsets, values, strict=True):
            registers.store(item, memory, offset, output.dtype)
