"""The micro-kernel of contractions: a tile of C kept in registers while k runs.

One function per (type, tile, form of A) serves every shape: strides and lengths are arguments. It reads B as a panel
``P[k][width]`` and A in one of two forms: ``rows`` (k is contiguous) or ``columns`` (the rows of a k are contiguous).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    i64,
    ir,
    lane_mask,
    load,
    loop,
    offset,
    prefetch,
    zero,
)
from ....codegen.ir.types import STORAGE_BYTES
from ....graph.errors import ArgumentError
from .prefetch import ask, ask_for_target

UNROLL = 4
"""Terms of a loop's turn, for tiles of ``FULL`` sums or more: code that runs less often is kept short."""
FULL = 12
LONG_TURN = 8
"""The same where a turn asks for what is needed later, and few turns are enough: finding out what takes a tenth of the instructions of a shorter one."""
MOST_PLACES = 8
"""Rows of A that can be read as they lie in a turn of several terms: the addresses of more would need more registers than there are, and
code that loads far ahead to save some of them has sums wait in memory."""
SHAPES = {
    64: ((8, 3), (6, 4), (12, 2)),
    32: ((6, 2), (4, 3), (12, 1)),
    16: ((8, 3), (6, 4), (12, 2)),
}
"""Rows and vectors of the tiles for each width of vectors in bytes."""
AHEAD = 16
"""How many rows ahead B is asked for where it is not packed."""
WORTH = 0.94
"""A tile other than the usual costs compile time: what it must save."""
FEWEST_SUMS = 12
"""Sums that are needed to keep the multipliers busy: each has to wait for the one before, and reading for both."""


class Machine(Protocol):
    """What the template asks of a machine."""

    @property
    def vector_bytes(self) -> int:
        """The width of its vector registers: 64 (AVX-512), 32 (AVX2) or 16 (NEON, SSE)."""

    @property
    def multiplies(self) -> int:
        """Vectors that it multiplies in a cycle."""


@dataclass(frozen=True)
class Tile:
    """A tile of C in registers: ``rows`` by ``vectors`` vectors of ``lanes`` elements.

    >>> Tile(8, 3, 16).width
    48
    """

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Columns of the tile."""
        return self.vectors * self.lanes


def choose_tile(machine: Machine, dtype: str) -> Tile:
    """The tile that fills a machine's registers and leaves room for B's vectors and one of A.

    >>> from types import SimpleNamespace
    >>> choose_tile(SimpleNamespace(vector_bytes=64), "f32")
    Tile(rows=8, vectors=3, lanes=16)
    >>> choose_tile(SimpleNamespace(vector_bytes=32), "f64")
    Tile(rows=6, vectors=2, lanes=4)
    """
    return _tiles(machine, dtype)[0]


def _tiles(machine: Machine, dtype: str) -> list[Tile]:
    """The tiles that fill a machine's registers, the one for most products first."""
    if machine.vector_bytes not in SHAPES:
        raise ArgumentError(
            f"contractions have tiles for vectors of 16, 32 and 64 bytes, not {machine.vector_bytes}"
        )
    lanes = machine.vector_bytes // STORAGE_BYTES[accumulator_of(dtype)]
    return [Tile(rows, vectors, lanes) for rows, vectors in SHAPES[machine.vector_bytes]]


def fit_tile(machine: Machine, dtype: str, m: int, n: int) -> Tile:
    """The tile that leaves the fewest of its registers empty over ``m x n``; the usual one where the gain is small.

    >>> from types import SimpleNamespace
    >>> fit_tile(SimpleNamespace(vector_bytes=64), "f32", 128, 64)
    Tile(rows=6, vectors=4, lanes=16)
    """
    usual, *others = _tiles(machine, dtype)
    best = min(others, key=lambda tile: cost(tile, m, n))
    return best if cost(best, m, n) < WORTH * cost(usual, m, n) else usual


def halves_of_cycles(rows: int, vectors: int) -> int:
    """Half cycles that one term of a tile takes: of multiplications, of reading, or of waiting for sums."""
    return max(rows * vectors, rows + vectors, FEWEST_SUMS)


def cost(tile: Tile, m: int, n: int) -> float:
    """Cycles that one term of all sums of ``m x n`` takes: of multiplications, of reading, or of waiting for sums."""

    def some(rows: int, vectors: int) -> float:
        # Of tiles that are as quick, the one that reads less.
        cycles = halves_of_cycles(rows, vectors) / 2
        return cycles + 0.05 * (rows + vectors) if rows and vectors else 0.0

    whole, rest = divmod(-(-n // tile.lanes), tile.vectors)
    tiles, left = divmod(m, tile.rows)
    return (
        tiles * whole * some(tile.rows, tile.vectors)
        + tiles * some(tile.rows, rest)
        + whole * some(left, tile.vectors)
        + some(left, rest)
    )


def terms_of_turn(tile: Tile, form: str, pace: int) -> int:
    """Terms of k that a turn of the micro-kernel's loop sums where B is packed: ``pace`` where registers allow it."""
    if form == "rows" and tile.rows > MOST_PLACES and tile.vectors > 1:
        return 1
    return pace if tile.rows * tile.vectors >= FULL else 2


def tile_kernel(
    module: Any,
    tile: Tile,
    panel: str,
    form: str,
    b_form: str = "packed",
    asking: int = 0,
    pace: int = UNROLL,
    distance: int = 0,
) -> Any:
    """The micro-kernel over panels of type ``panel``, emitted once per module.

    Its signature is ``(k, a*, a_stride, b*, out*, out_stride, keep, next*)``. ``out[row * out_stride + column]`` gets
    the sums, added to what stands there when ``keep`` is set. ``a`` has the accumulator type; ``a_stride`` is the
    distance of two rows (form ``rows``) or of two k (form ``columns``). A line of ``next`` is prefetched every
    four k, one after the other; when ``asking`` for a number of streams, ``next`` are instead the words of an ``Asks``, which say what is,
    once in ``pace`` terms. A ``distance`` that is not 0 is known to be ``a_stride``.

    B that is not packed is read as it lies: with a ``b_form`` of ``rows`` two more arguments are the distance of its rows, and
    how many lanes of the last vector exist; ``rows.masked`` heeds that number. ``panel`` is then the type in which B lies.
    With a ``b_form`` of ``placed`` one more argument points to the distances of B's rows from ``b``, a 64-bit number for each k.
    A may lie anywhere too: with the form ``placed`` two more arguments point to the distance of each row from ``a``, and to that of each k from the start of a row.
    """
    types = ir()
    pace = pace if asking else UNROLL
    name = f"darner.tile.{panel}.{tile.rows}x{tile.vectors}x{tile.lanes}.{form}.{b_form}"
    name += f".asking{asking}.{pace}" if asking else ""
    name += f".by{distance}" if distance else ""
    if name in module.globals:
        return module.globals[name]
    word, pointer = types.IntType(64), types.PointerType()
    arguments = [word, pointer, word, pointer, pointer, word, types.IntType(1), pointer]
    arguments += {"packed": [], "placed": [pointer]}.get(b_form, [word, word])
    arguments += [pointer, pointer] if form == "placed" else []
    function = types.Function(module, types.FunctionType(types.VoidType(), arguments), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    _emit_kernel(function, tile, panel, form, b_form, asking, pace, distance)
    return function


def _emit_kernel(
    function: Any,
    tile: Tile,
    panel: str,
    form: str,
    b_form: str,
    asking: int,
    pace: int,
    distance: int,
) -> None:
    types = ir()
    dtype, word = accumulator_of(panel), types.IntType(64)
    k, a, a_stride, b, out, out_stride, keep, following, *more = function.args
    builder = types.IRBuilder(function.append_basic_block("entry"))
    a_stride = i64(distance) if distance else a_stride
    a_terms = more.pop() if form == "placed" else None
    a_rows = more.pop() if form == "placed" else None
    distances = more.pop() if b_form == "placed" else None
    b_stride, valid = more or (i64(tile.width), None)
    mask = lane_mask(builder, valid, tile.lanes) if b_form.endswith(".masked") else None
    places = [
        offset(builder, out, dtype, builder.mul(out_stride, i64(row)), vector * tile.lanes)
        for row in range(tile.rows)
        for vector in range(tile.vectors)
    ]
    fresh = builder.block
    reading = builder.append_basic_block("keep")
    start = builder.append_basic_block("start")
    builder.cbranch(keep, reading, start)
    builder.position_at_end(reading)
    kept = [load(builder, place, dtype, tile.lanes) for place in places]
    builder.branch(start)
    builder.position_at_end(start)
    sums = []
    for value in kept:
        phi = builder.phi(value.type)
        phi.add_incoming(zero(dtype, tile.lanes), fresh)
        phi.add_incoming(value, reading)
        sums.append(phi)

    def number(table: Any, *place: Any) -> Any:
        at = i64(place[0]) if len(place) == 1 else builder.add(place[0], i64(place[1]))
        return builder.load(builder.gep(table, [at], source_etype=word), typ=word)

    lines = []
    if form == "placed":
        lines = [offset(builder, a, dtype, number(a_rows, row)) for row in range(tile.rows)]

    def addresses(index: Any) -> list[Any]:
        if form == "placed":
            return lines
        if form == "columns":
            return [offset(builder, a, dtype, builder.mul(index, a_stride))]
        return [
            offset(builder, a, dtype, builder.mul(a_stride, i64(row)), index)
            for row in range(tile.rows)
        ]

    def steps(index: Any, values: Any, count: int) -> list[Any]:
        """``count`` consecutive k from ``index``."""
        totals = list(values)
        panel_row = offset(builder, b, panel, builder.mul(index, b_stride))
        starts = addresses(index)
        for step in range(count):
            if distances is not None:
                panel_row = offset(builder, b, panel, number(distances, index, step))
            elif step:
                panel_row = offset(builder, panel_row, panel, b_stride)
            columns = [
                load(
                    builder,
                    offset(builder, panel_row, panel, vector * tile.lanes),
                    panel,
                    tile.lanes,
                    mask if vector == tile.vectors - 1 else None,
                )
                for vector in range(tile.vectors)
            ]
            if form == "columns" and step:
                starts = [offset(builder, starts[0], dtype, a_stride)]
            within = number(a_terms, index, step) if form == "placed" else step
            for row in range(tile.rows):
                place = (
                    offset(builder, starts[0], dtype, row)
                    if form == "columns"
                    else offset(builder, starts[row], dtype, within)
                )
                value = broadcast(builder, load(builder, place, dtype, 1), tile.lanes)
                for vector, column in enumerate(columns):
                    at = row * tile.vectors + vector
                    totals[at] = fused_multiply_add(builder, value, column, totals[at], tile.lanes)
        return totals

    turn = terms_of_turn(tile, form, pace)

    def unrolled(index: Any, values: Any) -> list[Any]:
        if asking:
            number = builder.udiv(index, i64(pace))
            ask(builder, following, number, asking)
            if asking == 1:
                row_bytes = tile.width * STORAGE_BYTES[dtype]
                ask_for_target(builder, following, number, tile.rows, row_bytes)
        elif b_form == "packed":
            # 64 bytes for every four k.
            place = builder.mul(index, i64(16))
            prefetch(builder, builder.gep(following, [place], source_etype=types.IntType(8)))
        elif distances is None:
            for term in range(turn):
                later = builder.mul(builder.add(index, i64(term + AHEAD)), b_stride)
                for vector in range(tile.vectors):
                    prefetch(builder, offset(builder, b, panel, later, vector * tile.lanes))
        return steps(index, values, turn)

    whole = builder.and_(k, i64(-turn))
    sums = loop(builder, i64(0), whole, turn, unrolled, sums)
    sums = loop(builder, whole, k, 1, lambda index, values: steps(index, values, 1), sums)
    for value, place in zip(sums, places, strict=True):
        builder.store(value, place, align=STORAGE_BYTES[dtype])
    builder.ret_void()
