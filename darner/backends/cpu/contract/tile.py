"""The micro-kernel of contractions: a tile of C kept in registers while k runs.

One function per (type, tile, form of A) serves every shape: strides and lengths are arguments. It reads B as a panel
``P[k][width]`` and A in one of two forms: ``rows`` (k is contiguous) or ``columns`` (the rows of a k are contiguous).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ....codegen.ir.emit import (
    accumulator_of,
    broadcast,
    fused_multiply_add,
    ir,
    lane_mask,
    load,
    loop,
    offset,
    prefetch,
    zero,
)
from ....codegen.ir.index import i64
from ....codegen.ir.types import STORAGE_BYTES, Builder, Function, Mask, Module, Pointer, Value
from ....graph.errors import ArgumentError
from ....graph.integers import ceil_div
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

    def cycles_of(rows: int, vectors: int) -> float:
        # Of tiles that are as quick, the one that reads less.
        cycles = halves_of_cycles(rows, vectors) / 2
        return cycles + 0.05 * (rows + vectors) if rows and vectors else 0.0

    whole, rest = divmod(ceil_div(n, tile.lanes), tile.vectors)
    tiles, left = divmod(m, tile.rows)
    return (
        tiles * whole * cycles_of(tile.rows, tile.vectors)
        + tiles * cycles_of(tile.rows, rest)
        + whole * cycles_of(left, tile.vectors)
        + cycles_of(left, rest)
    )


def terms_of_turn(tile: Tile, form: str, pace: int) -> int:
    """Terms of k that a turn of the micro-kernel's loop sums where B is packed: ``pace`` where registers allow it."""
    if form == "rows" and tile.rows > MOST_PLACES and tile.vectors > 1:
        return 1
    return pace if tile.rows * tile.vectors >= FULL else 2


@dataclass(frozen=True)
class MicroKernel:
    """A function that multiplies a tile, emitted once per module.

    Its signature is ``(k, a*, a_stride, b*, out*, out_stride, keep, next*)``. ``out[row * out_stride + column]`` gets
    the sums, added to what stands there when ``keep`` is set. ``a`` has the accumulator type; ``a_stride`` is the
    distance of two rows (form ``rows``) or of two k (form ``columns``). A line of ``next`` is prefetched every
    four k, one after the other; when ``asking`` for a number of streams, ``next`` are instead the words of an ``Asks``, which say what is,
    once in ``pace`` terms.

    B that is not packed is read as it lies: with a ``b_form`` of ``rows`` two more arguments are the distance of its rows, and
    how many lanes of the last vector exist; ``rows.masked`` heeds that number. ``panel`` is then the type in which B lies.
    With a ``b_form`` of ``placed`` one more argument points to the distances of B's rows from ``b``, a 64-bit number for each k.
    A may lie anywhere too: with the form ``placed`` two more arguments point to the distance of each row from ``a``, and to that of each k from the start of a row.

    Attributes:
        tile: rows and columns.
        panel: the type of B.
        form: how A lies.
        b_form: how B lies.
        asking: streams that are prefetched.
        pace: terms for each turn of that.
        distance: what ``a_stride`` is known to be; 0 where it is not known.
    """

    tile: Tile
    panel: str
    form: str
    b_form: str = "packed"
    asking: int = 0
    pace: int = UNROLL
    distance: int = 0

    @property
    def name(self) -> str:
        """What the function is called."""
        tile = self.tile
        name = f"darner.tile.{self.panel}.{tile.rows}x{tile.vectors}x{tile.lanes}"
        name += f".{self.form}.{self.b_form}"
        name += f".asking{self.asking}.{self.pace}" if self.asking else ""
        return name + (f".by{self.distance}" if self.distance else "")

    def function(self, module: Module) -> Function:
        """The function in a module."""
        types = ir()
        found: Function | None = module.globals.get(self.name)
        if found is not None:
            return found
        word, pointer = types.IntType(64), types.PointerType()
        arguments = [word, pointer, word, pointer, pointer, word, types.IntType(1), pointer]
        arguments += {"packed": [], "placed": [pointer]}.get(self.b_form, [word, word])
        arguments += [pointer, pointer] if self.form == "placed" else []
        kind = types.FunctionType(types.VoidType(), arguments)
        function: Function = types.Function(module, kind, self.name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        function.attributes.add("nounwind")
        builder = types.IRBuilder(function.append_basic_block("entry"))
        _TileCode(self, builder, _arguments(self, builder, function)).emit()
        return function


@dataclass(frozen=True)
class _Arguments:
    """What a micro-kernel is called with.

    Attributes:
        k: terms.
        a: the first element of A.
        a_stride: the distance of two rows, or two k.
        b: the first element of B.
        out: where the sums go.
        out_stride: the distance of two rows of them.
        keep: whether they are added to what stands there.
        following: what is prefetched.
        b_stride: the distance of two rows of B.
        mask: the lanes of the last vector that exist, where not all may.
        b_rows: distances of B's rows from ``b``, where that is ``placed``.
        a_rows: distances of A's rows from ``a``, likewise.
        a_terms: distances of terms from the start of a row, likewise.
    """

    k: Value
    a: Pointer
    a_stride: Value
    b: Pointer
    out: Pointer
    out_stride: Value
    keep: Value
    following: Pointer
    b_stride: Value
    mask: Mask | None = None
    b_rows: Pointer | None = None
    a_rows: Pointer | None = None
    a_terms: Pointer | None = None


def _arguments(kernel: MicroKernel, builder: Builder, function: Function) -> _Arguments:
    """The arguments of a function by name: which of the last ones there are, the forms say."""
    names = ["k", "a", "a_stride", "b", "out", "out_stride", "keep", "following"]
    names += {"packed": [], "placed": ["b_rows"]}.get(kernel.b_form, ["b_stride", "valid"])
    names += ["a_rows", "a_terms"] if kernel.form == "placed" else []
    given = dict(zip(names, function.args, strict=True))
    if kernel.distance:
        given["a_stride"] = i64(kernel.distance)
    given.setdefault("b_stride", i64(kernel.tile.width))
    valid = given.pop("valid", None)
    if valid is not None and kernel.b_form.endswith(".masked"):
        given["mask"] = lane_mask(builder, valid, kernel.tile.lanes)
    return _Arguments(**given)


class _TileCode:
    """The code of a micro-kernel."""

    def __init__(self, kernel: MicroKernel, builder: Builder, given: _Arguments) -> None:
        self.kernel, self.builder, self.given = kernel, builder, given
        self.tile, self.panel = kernel.tile, kernel.panel
        self.dtype = accumulator_of(kernel.panel)
        self.rows: list[Pointer] = []
        self.turn = terms_of_turn(
            kernel.tile, kernel.form, kernel.pace if kernel.asking else UNROLL
        )

    def emit(self) -> None:
        """Write it."""
        builder, tile, given = self.builder, self.tile, self.given
        targets = [
            offset(
                builder,
                given.out,
                self.dtype,
                builder.mul(given.out_stride, i64(row)),
                vector * tile.lanes,
            )
            for row in range(tile.rows)
            for vector in range(tile.vectors)
        ]
        sums = self._first_sums(targets)
        if given.a_rows is not None:
            self.rows = [
                offset(builder, given.a, self.dtype, self._read(given.a_rows, i64(row)))
                for row in range(tile.rows)
            ]
        whole = builder.and_(given.k, i64(-self.turn))
        sums = loop(builder, i64(0), whole, self.turn, self._unrolled, sums)
        sums = loop(builder, whole, given.k, 1, lambda at, values: self._terms(at, values, 1), sums)
        for value, target in zip(sums, targets, strict=True):
            builder.store(value, target, align=STORAGE_BYTES[self.dtype])
        builder.ret_void()

    def _first_sums(self, targets: Sequence[Pointer]) -> list[Value]:
        """Zeros, or what stands where the sums go."""
        builder, dtype, lanes = self.builder, self.dtype, self.tile.lanes
        fresh = builder.block
        reading = builder.append_basic_block("keep")
        start = builder.append_basic_block("start")
        builder.cbranch(self.given.keep, reading, start)
        builder.position_at_end(reading)
        kept = [load(builder, target, dtype, lanes) for target in targets]
        builder.branch(start)
        builder.position_at_end(start)
        sums: list[Value] = []
        for value in kept:
            phi = builder.phi(value.type)
            phi.add_incoming(zero(dtype, lanes), fresh)
            phi.add_incoming(value, reading)
            sums.append(phi)
        return sums

    def _read(self, table: Pointer, index: Value) -> Value:
        """A 64-bit number of a table."""
        word = i64(0).type
        return self.builder.load(self.builder.gep(table, [index], source_etype=word), typ=word)

    def _starts_of_a(self, index: Value) -> list[Pointer]:
        """Where the rows of A have a term; the one place from which all are read where they are columns."""
        builder, given = self.builder, self.given
        if self.kernel.form == "placed":
            return self.rows
        if self.kernel.form == "columns":
            return [offset(builder, given.a, self.dtype, builder.mul(index, given.a_stride))]
        return [
            offset(builder, given.a, self.dtype, builder.mul(given.a_stride, i64(row)), index)
            for row in range(self.tile.rows)
        ]

    def _terms(self, index: Value, values: Sequence[Value], count: int) -> list[Value]:
        """``count`` consecutive k from ``index``."""
        builder, tile, given = self.builder, self.tile, self.given
        totals = list(values)
        panel_row = offset(builder, given.b, self.panel, builder.mul(index, given.b_stride))
        starts = self._starts_of_a(index)
        for step in range(count):
            if given.b_rows is not None:
                distance = self._read(given.b_rows, builder.add(index, i64(step)))
                panel_row = offset(builder, given.b, self.panel, distance)
            elif step:
                panel_row = offset(builder, panel_row, self.panel, given.b_stride)
            columns = self._columns(panel_row)
            if self.kernel.form == "columns" and step:
                starts = [offset(builder, starts[0], self.dtype, given.a_stride)]
            within: Value | int = step
            if given.a_terms is not None:
                within = self._read(given.a_terms, builder.add(index, i64(step)))
            for row in range(tile.rows):
                if self.kernel.form == "columns":
                    address = offset(builder, starts[0], self.dtype, row)
                else:
                    address = offset(builder, starts[row], self.dtype, within)
                value = broadcast(builder, load(builder, address, self.dtype, 1), tile.lanes)
                for vector, column in enumerate(columns):
                    at = row * tile.vectors + vector
                    totals[at] = fused_multiply_add(builder, value, column, totals[at], tile.lanes)
        return totals

    def _columns(self, panel_row: Pointer) -> list[Value]:
        """The vectors of one row of B."""
        builder, tile = self.builder, self.tile
        return [
            load(
                builder,
                offset(builder, panel_row, self.panel, vector * tile.lanes),
                self.panel,
                tile.lanes,
                self.given.mask if vector == tile.vectors - 1 else None,
            )
            for vector in range(tile.vectors)
        ]

    def _unrolled(self, index: Value, values: Sequence[Value]) -> list[Value]:
        """The terms of a turn, and what it asks for."""
        builder, kernel, given, tile = self.builder, self.kernel, self.given, self.tile
        if kernel.asking:
            number = builder.udiv(index, i64(kernel.pace))
            ask(builder, given.following, number, kernel.asking)
            if kernel.asking == 1:
                row_bytes = tile.width * STORAGE_BYTES[self.dtype]
                ask_for_target(builder, given.following, number, tile.rows, row_bytes)
        elif kernel.b_form == "packed":
            # 64 bytes for every four k.
            distance, byte = builder.mul(index, i64(16)), ir().IntType(8)
            prefetch(builder, builder.gep(given.following, [distance], source_etype=byte))
        elif given.b_rows is None:
            for term in range(self.turn):
                later = builder.mul(builder.add(index, i64(term + AHEAD)), given.b_stride)
                for vector in range(tile.vectors):
                    first = vector * tile.lanes
                    prefetch(builder, offset(builder, given.b, self.panel, later, first))
        return self._terms(index, values, self.turn)
