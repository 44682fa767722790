"""Rows of results: from a workgroup's registers by way of shared memory to where they belong, with what the body computes of each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....backends.wgpu.text import Text
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...problems.attention import Described
from ..builder import is_packed
from .operands import Reader
from .tile import Tile


def are_whole(spec: Spec, numbers: Sequence[int]) -> bool:
    """Whether no two threads share a word of these results: rows of 16-bit numbers are written in pairs."""
    outputs = [spec.body.outputs[i] for i in numbers]
    return all(
        not is_packed(node.dtype) or (node.dtype.itemsize == 2 and int(node.shape[-1]) % 2 == 0)
        for node in outputs
    )


def write_sums(
    tile: Tile,
    target: str,
    node: Node,
    numbers: Sequence[int],
    first: str,
    batch: str,
    head: str,
) -> None:
    """Write the sums of a block of rows: the elements of ``node``, of which the results ``numbers`` are made."""
    cut = tile.cut
    width = int(node.shape[-1])
    quads = -(-width // 4)
    across = cut.summed(width)
    vectors = write_vectors(tile, node, numbers)
    slice_ = max(1, min(cut.rows, cut.room // (cut.down * quads)))
    for begin in range(0, cut.rows, slice_):
        rows = range(begin, min(begin + slice_, cut.rows))
        tile.shader.barrier()
        for i in rows:
            for w in range(across):
                column = f"across + {w * cut.across}u"
                place = f"({(i - begin) * cut.down}u + down) * {quads}u + {column}"
                store = f"right[{place}] = {target}_{i}_{w};"
                inside = cut.across * (w + 1) <= quads
                tile.line(store if inside else f"if ({column} < {quads}u) {{ {store} }}")
        tile.shader.barrier()
        write_block(
            tile,
            node,
            numbers,
            len(rows) * cut.down,
            tile.row_count,
            f"{first} + {begin * cut.down}u",
            (batch, head),
            lambda row, column: f"right[{row} * {quads}u + ({column} >> 2u)][{column} & 3u]",
            (lambda row, quad: f"right[{row} * {quads}u + {quad}]") if vectors else None,
        )


def write_rows(reader: Reader, count: int, first: str, vector: Callable[[str, str], str]) -> None:
    """Write ``count`` rows of attention's result; ``vector(row, which)`` has 4 elements. ``batch`` and ``head`` say whose they are."""
    node = reader.attention.node
    numbers = range(len(reader.shader.body.outputs))
    vectors = write_vectors(reader, node, numbers)
    write_block(
        *(reader, node, numbers, count, reader.attention.queries, first, ("batch", "head")),
        lambda row, column: f"{vector(row, f'({column} >> 2u)')}[{column} & 3u]",
        vector if vectors else None,
    )


def write_vectors(reader: Reader, node: Node, numbers: Sequence[int]) -> bool:
    """Whether a result is written 4 elements at a time; it is declared so."""
    outputs = [reader.shader.body.outputs[i] for i in numbers]
    plain = [output.id for output in outputs] == [node.id] and not is_packed(node.dtype)
    if not plain or int(node.shape[-1]) % 4:
        return False
    if reader.shader.results[numbers[0]].vector == 1:
        reader.shader.as_vectors(reader.shader.results[numbers[0]], 4)
    return True


def write_block(
    reader: Reader,
    node: Node,
    numbers: Sequence[int],
    count: int,
    limit: int,
    first: str,
    at: tuple[str, str],
    value: Callable[[str, str], str],
    vector: Callable[[str, str], str] | None,
) -> None:
    """Write ``count`` rows from ``first`` on, before ``limit``, with all threads of a workgroup.

    Args:
        reader: the dispatch.
        node: whose elements these are.
        numbers: of the results that are made of them.
        count: rows.
        limit: rows that exist.
        first: the first of them.
        at: batch and head.
        value: ``value(row, column)``, the element in the type that is computed with; rows count from 0.
        vector: ``vector(row, which)``, 4 of them, where they are written so.
    """
    shader, writer = reader.shader, reader.writer
    packed = any(is_packed(shader.results[i].dtype) for i in numbers)
    together = 2 if packed and are_whole(shader.spec, numbers) else 1
    if vector is not None:
        together = 4
    units = -(-int(node.shape[-1]) // together)
    head = f"for (var e = local; e < {count * units}u; e += {shader.threads}u)"
    with writer.block(head):
        reader.line(f"let own_row = e / {units}u;")
        reader.line(f"let unit = e % {units}u;")
        reader.line(f"let to_row = {first} + own_row;")
        with writer.block(f"if (to_row < {limit}u)"):
            if vector is not None:
                place = _place(reader, node, [*at, "to_row", "unit * 4u"])
                name = shader.results[numbers[0]].name
                reader.line(f"{name}[{place} >> 2u] = {vector('own_row', 'unit')};")
            else:
                _write_unit(reader, node, numbers, at, value, together)


def _index(attention: Described, parts: Sequence[Any]) -> list[Any]:
    """Batch, head, row and column in the order of the layout."""
    batch, head, row, column = parts
    return [batch, head, row, column] if attention.layout == "bhsd" else [batch, row, head, column]


def _place(reader: Reader, node: Node, parts: Sequence[str]) -> str:
    total = "0u"
    for number, size in zip(_index(reader.attention, parts), sizes(node), strict=True):
        total = f"({total} * {size}u + {number})"
    return total


def _write_unit(
    reader: Reader,
    node: Node,
    numbers: Sequence[int],
    at: tuple[str, str],
    value: Callable[[str, str], str],
    together: int,
) -> None:
    """One element of each result, or a pair of neighbours."""
    from llvmlite import ir

    from ...ir.math import register_type

    shader, writer = reader.shader, reader.writer
    elements = shader.elements()
    registers, places = elements.registers, elements.places
    outputs = [shader.body.outputs[i] for i in numbers]
    word = ir.IntType(32)
    made = []
    offsets = []
    for k in range(together):
        column = writer.let_text(word, f"unit * {together}u + {k}u")
        parts = [*(Text(word, text) for text in at), Text(word, "to_row"), column]
        index = _index(reader.attention, parts)
        plain = writer.let_text(register_type(reader.kind), value("own_row", column.text))
        with elements.scope():
            elements.give(node, registers.cast(plain, reader.kind, node.dtype))
            made.append([elements.at(output, index) for output in outputs])
        offsets.append(places.offset(index, sizes(node)))
    for place, (output, number) in enumerate(zip(outputs, numbers, strict=True)):
        memory, values = shader.results[number], [row[place] for row in made]
        if is_packed(output.dtype) and not memory.atomic:
            low, high = (registers.packed(item, output.dtype) for item in values)
            text = places.text(offsets[0])
            writer.line(f"{memory.name}[{text} >> 1u] = {low} | ({high} << 16u);")
            continue
        for offset, item in zip(offsets, values, strict=True):
            registers.store(item, memory, offset, output.dtype)
