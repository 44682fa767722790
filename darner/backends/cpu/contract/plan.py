"""A contraction as sizes and strides, and how it is cut into panels, blocks and scratch memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import Protocol

from ....codegen.ir.emit import accumulator_of
from ....codegen.ir.types import STORAGE_BYTES, Builder, Pointer, Value
from ....graph.errors import ArgumentError
from ....graph.integers import ceil_div, round_up
from ..emit.panels import Panels
from ..model import CpuModel
from ..runtime.jit import Machine
from .columns import Columns
from .decoded_plan import Dots, decoded_dots, decoded_path, in_registers
from .prefetch import EACH
from .tile import LONG_TURN, UNROLL, Tile, choose_tile, fit_tile

Strides = tuple[int, int, int]

# Shares of caches (``CpuModel``).
ROLLING = 9 / 8
"""Of the cache next to a core, what rows of A and two pieces of panels may take where all rows stay in it."""
BLOCK = 3 / 4
"""The same where rows come and go in blocks: another program may have a share of the core."""
HELD = 1 / 2
"""The same for panels that are used with a few rows at a time, or for a B that is read as it lies."""
GROUP = 1 / 2
"""Of a thread's part of the last cache, the panels that are packed before they are used: rows of A are gone through, and packed, once for each group."""
SHARED_GROUP = 1 / 2
"""Of the last cache, the panels that threads pack for each other at a time."""
STREAMED = 4.0
"""Of the cache next to a core; from so much on, what is read where C is written comes from memory, not from a cache."""

# What follows are properties of the code, the same on all processors; parts of sums must not depend on the number of threads.
MOST_SHARED = 256
"""The most panels that threads pack for each other at a time: there is a mark for each."""
LONGEST_BLOCK = 1024
"""The most k that one of several passes over a panel sums."""
LONGEST_PASS = 1536
"""The most k that are summed in one where rows come and go in blocks: sums that never wait are worth fewer rows in each."""
LONGEST_CHUNK = 4096
"""The most columns whose sums are held at a time for a few rows."""
FEW_PANELS = 2
"""Up to this many panels, A is read as it lies where its rows are contiguous: packing it would cost more."""
DIRECT_TILES = 4
"""Up to this many tiles of rows, B is read as it lies where its columns are contiguous."""
NEAR_ROWS = 128
"""The rows of A up to which B is so read where its own rows are whole vectors, at most ``NEAR_BYTES`` apart, and in the cache."""
NEAR_BYTES = 1024
FEWEST_TURNS = 16
"""Long turns that a tile must have: in each, a row is asked for where sums are written."""
FEWEST_SLICES = 4
"""Tiles that a panel must have for the next to be packed between them."""
FEW_TERMS = 64
"""Up to this many terms, writing a sum takes longer than making it."""
FEWEST_STRIPS = 16
"""Tiles of rows from which on threads share out rows of such sums, all batches taken together: each packs all of B."""
FEWEST_HELD = 4
"""Panels of B that must fit the cache for rows of C to be written in long runs."""
FEW_ROWS = 4
"""Up to this many rows, B is read once from where it stands: packing it would cost more than using it."""
MOST_DOT_ROWS = 24
"""The most rows for which dot products are made of columns whose terms are contiguous."""
TERMS_OF_DOT_ROW = 32
"""Terms that sums must have for each row, for that."""


@dataclass(frozen=True)
class Contraction:
    """``C[b, m, n] = sum over k of A[b, m, k] * B[b, k, n]``, with strides in elements.

    Attributes:
        dtype: the storage of A, B and C: f32, f64, bf16 or f16; the 16-bit floats are summed in f32.
        a_strides: the distance of two batches, two rows (m) and two columns (k) of A; 0 repeats.
        b_strides: of two batches, two rows (k) and two columns (n) of B.
        c_strides: of two batches, two rows and two columns of C.
        accumulate: whether the sums are added to what stands in C.
        strided_terms: size, stride in A and stride in B of summed axes that do not follow the others; ``k`` counts them too.
        b_panels: how the transpose of B lies, where that is in panels; ``b_strides`` are those within one.
        c_panels: how C lies, where that is in panels; ``c_strides`` are those within one.
        decoded: of a B that is decoded, how many terms lie side by side in blocks of it, or 1; 0 where it lies in memory as it is.

    >>> Contraction.dense("f32", 2, 3, 4, transpose_b=True).b_strides
    (0, 1, 4)
    """

    dtype: str
    batch: int
    m: int
    n: int
    k: int
    a_strides: Strides
    b_strides: Strides
    c_strides: Strides
    accumulate: bool = False
    strided_terms: tuple[Strides, ...] = ()
    b_panels: Panels | None = None
    c_panels: Panels | None = None
    decoded: int = 0

    def __post_init__(self) -> None:
        accumulator_of(self.dtype)
        if min(self.batch, self.m, self.n, self.k) < 0:
            raise ArgumentError(
                f"a contraction's sizes are at least 0, "
                f"not {self.batch} of {self.m} x {self.n} x {self.k}"
            )
        sizes = (self.batch, self.m, self.n)
        for name, size, stride in zip(("batch", "m", "n"), sizes, self.c_strides, strict=True):
            if size > 1 and stride == 0 and not self.empty:
                raise ArgumentError(
                    f"C has stride 0 along {name}, of {size}: its elements would be written "
                    f"{size} times; sum over {name} instead"
                )

    # many parameters: all but the sizes are options, given by name.
    @classmethod
    def dense(
        cls,
        dtype: str,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        transpose_a: bool = False,
        transpose_b: bool = False,
        accumulate: bool = False,
    ) -> Contraction:
        """A contraction of contiguous matrices, each stored transposed or not."""
        many = int(batch > 1)
        a = (many * m * k, 1, m) if transpose_a else (many * m * k, k, 1)
        b = (many * k * n, 1, k) if transpose_b else (many * k * n, n, 1)
        return cls(dtype, batch, m, n, k, a, b, (many * m * n, n, 1), accumulate)

    @property
    def together(self) -> int:
        """Terms that follow each other: all but for axes that lie apart."""
        return self.k // max(1, prod(size for size, _, _ in self.strided_terms))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return 0 in (self.batch, self.m, self.n)

    def part(self, batch: int, k: int) -> Contraction:
        """The same over ``k`` of its terms, which begin with a whole panel where these lie in panels."""
        panels = self.b_panels
        if panels is not None:
            panels = panels._replace(columns=k, last=panels.last if k % panels.width else 0)
        return replace(self, batch=batch, k=k, b_panels=panels)

    def whole_terms(self, count: int, lanes: int) -> int:
        """Terms that are best packed together, at least ``count``: of whole vectors and blocks, or of whole panels where these lie in panels."""
        grain = max(lanes, self.decoded) if self.b_panels is None else self.b_panels.width
        return round_up(count, grain)


class Decoding(Protocol):
    """Packs panels of a B that is decoded as it is packed."""

    def pack(
        self, builder: Builder, panel: PanelOf, span: tuple[Value, Value], target: Pointer
    ) -> None:
        """Pack the columns of a panel: ``span`` is the address of their first term, and how many terms."""

    def sum_few(self, builder: Builder, plan: Cut, columns: Columns) -> None:
        """The sums of some columns of a few rows."""


@dataclass(frozen=True)
class PanelOf:
    """Columns that are packed together.

    Attributes:
        width: of a panel, a multiple of the lanes.
        valid: how many of them there are.
        lanes: of a vector.
    """

    width: int
    valid: int
    lanes: int


@dataclass(frozen=True)
class Cut:
    """How one contraction is cut for one machine.

    Attributes:
        tile: rows and columns kept in registers.
        panel: the type of the panels of B.
        path: ``tiles``, or for a few rows of a B that is not packed ``rows`` (its columns are contiguous) or ``dots`` (its k are); ``registers`` where
            tiles of sums stay in registers beside a B that is decoded.
        block: k summed in one pass.
        rows: rows of A that are used together.
        group: panels of B that are packed, and used with the same rows, together.
        pack_a: whether blocks of A are packed.
        direct: whether B is read as it lies, not packed.
        rolling: whether all rows of A stay in the cache, and the next piece of B is packed slice by slice, one before each tile that
            uses the piece before.
        blocked: whether A goes through the cache in blocks of rows and k, and B is packed, if it is not, while the first rows use it.
        by_rows: whether threads share out rows instead of panels.
        chunk: columns of C that the paths for a few rows hold at a time.
        streams: arrays as large as C that are read where it is written, if that is most of the traffic.
        runs: whether a few rows of C are written over many columns, before the next few.
        packed: whether B was packed before.
        asks: whether the next rows of B are asked for while a few rows of A meet some.
        model: the processor.
        decoder: what packs a B that is decoded, where code is written.
    """

    contraction: Contraction
    tile: Tile
    panel: str
    path: str
    block: int
    rows: int
    group: int
    pack_a: bool
    by_rows: bool
    chunk: int
    direct: bool = False
    rolling: bool = False
    streams: int = 0
    runs: bool = False
    blocked: bool = False
    packed: bool = False
    asks: bool = True
    model: CpuModel = field(kw_only=True)
    decoder: Decoding | None = field(default=None, kw_only=True)

    @property
    def passes(self) -> int:
        """Blocks of k."""
        return max(1, ceil_div(self.contraction.k, self.block))

    @property
    def pace(self) -> int:
        """Terms of a turn of the loop over k, where B is packed: many where few turns can ask for all that comes next."""
        tile, contraction = self.tile, self.contraction
        tiles = ceil_div(min(self.rows, contraction.m), tile.rows)
        size = STORAGE_BYTES[accumulator_of(contraction.dtype)] * tile.width
        room = self.block // LONG_TURN * EACH
        some = contraction.whole_terms(ceil_div(self.block, tiles), tile.lanes)
        # The lines of a slice that begin and end within what is not wanted are asked for too.
        sliced = some * size * 4 // 3 if self.rolling else 0
        enough = max(sliced, self.block * size // tiles) <= room and not self.streams
        return LONG_TURN if enough and self.block >= FEWEST_TURNS * LONG_TURN else UNROLL

    @property
    def turns(self) -> int:
        """Turns of that loop in which a tile sums up a block."""
        return self.block // self.pace

    @property
    def form(self) -> str:
        """How tiles read A: ``rows`` of contiguous k, or ``columns``."""
        return "rows" if not self.pack_a and self.contraction.a_strides[2] == 1 else "columns"

    @property
    def strips(self) -> bool:
        """Whether rows of C are made in strips where nothing else is done to the sums."""
        return self.runs and self.contraction.k <= FEW_TERMS and not self.contraction.accumulate

    @property
    def stays(self) -> bool:
        """Whether C is soon made and written, and stays in the caches of those cores that wrote the same part of it before."""
        contraction = self.contraction
        elements = contraction.batch * contraction.m * contraction.n
        size = STORAGE_BYTES[accumulator_of(contraction.dtype)]
        return contraction.k <= FEW_TERMS and elements * size <= self.model.of_l2(STREAMED)

    @property
    def full_panels(self) -> int:
        """Panels of the tile's whole width."""
        return self.contraction.n // self.tile.width

    @property
    def panels(self) -> int:
        """All panels, a narrower last one included."""
        return ceil_div(self.contraction.n, self.tile.width)

    @property
    def tiles(self) -> int:
        """Tiles that the rows make, a lower last one included."""
        return ceil_div(self.contraction.m, self.tile.rows)

    @property
    def last(self) -> Tile:
        """The tile of the last panel: as many vectors as its columns need."""
        rest = self.contraction.n % self.tile.width
        return Tile(self.tile.rows, ceil_div(rest, self.tile.lanes), self.tile.lanes)

    @property
    def packed_elements(self) -> int:
        """Elements of one packed B, the padding of its last panel included."""
        width = self.full_panels * self.tile.width + self.last.width
        return width * self.contraction.k

    @property
    def row_length(self) -> int:
        """Elements of a row of A that is copied to be made dot products of: of whole vectors."""
        return round_up(self.contraction.k, self.tile.lanes)

    @property
    def grain(self) -> int:
        """Columns that threads share out at a time where there are a few rows."""
        if self.path == "registers":
            return self.tile.width
        return self.tile.lanes * (1 if self.path == "dots" else 4)

    @property
    def dots(self) -> Dots:
        """The dot products that are made together of a B that is decoded."""
        parts = self.contraction.decoded // self.tile.lanes
        return decoded_dots(self.contraction.m, parts, self.tile)

    @property
    def keeps_panel(self) -> bool:
        """Whether the first rows that meet what is decoded, of a few columns, keep it for those after them."""
        if self.path == "dots" and self.contraction.decoded:
            return self.contraction.m > self.dots.rows
        return self.path == "registers" and self.tiles > 1

    @property
    def shared_group(self) -> int:
        """Panels of B that are packed together where threads do that for each other, one pass at a time."""
        size = STORAGE_BYTES[accumulator_of(self.contraction.dtype)]
        most = self.model.of_last(SHARED_GROUP) // (self.block * size * self.tile.width)
        return _evenly(self.panels, max(1, min(most, MOST_SHARED)))

    @property
    def units(self) -> int:
        """Pieces of work that threads share out."""
        contraction = self.contraction
        if self.path != "tiles":
            return contraction.batch * ceil_div(contraction.n, self.grain)
        return contraction.batch * self.tiles * (1 if self.by_rows else self.panels)

    def scratch_parts(self) -> tuple[int, int, int]:
        """Bytes of one thread's panels of B, block of A, and sums that are not yet in C."""
        contraction = self.contraction
        size = STORAGE_BYTES[accumulator_of(contraction.dtype)]
        if contraction.empty:
            return 0, 0, 0
        if self.path != "tiles":
            a = contraction.m * self.row_length if self.path == "dots" else 0
            b = 0
            if self.keeps_panel:
                dots = self.row_length * self.dots.columns
                b = dots if self.path == "dots" else self.block * self.tile.width
            return _round(b * size), _round(a * size), _round(contraction.m * self.chunk * size)
        b = self.tile.width * (2 * self.block if self.rolling else self.group * contraction.k)
        if self.packed or self.direct:
            b = 0
        a = self.rows * (self.block if self.blocked else contraction.k) if self.pack_a else 0
        sums = self.rows * self.tile.width
        if self.blocked and self.passes > 1:
            sums *= self.group
        return _round(b * size), _round(a * size), _round(sums * size)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory that one thread needs."""
        return sum(self.scratch_parts())


def cut(
    contraction: Contraction, machine: Machine, packed_b: bool = False, streams: int = 0
) -> Cut:
    """Choose panels, blocks and the path of a contraction; ``streams`` arrays like C are read where it is written."""
    storage, accumulator = contraction.dtype, accumulator_of(contraction.dtype)
    m, n, k = contraction.m, contraction.n, contraction.k
    model = CpuModel.of(machine)
    streamed = model.of_l2(STREAMED)
    # What is packed once serves products of any number of rows.
    usual = packed_b or contraction.c_panels is not None
    tile = choose_tile(machine, storage) if usual else fit_tile(machine, storage, m, n)
    size = STORAGE_BYTES[accumulator]
    path, chunk = _path(contraction, tile, packed_b)
    path, block = decoded_path(contraction, tile, model) or path, _block(contraction, tile)
    if path == "registers":
        tile, block, chunk = in_registers(contraction, tile, model)
    panels = max(1, ceil_div(n, tile.width))
    tiles = max(1, ceil_div(m, tile.rows))
    by_rows = (
        path == "tiles" and contraction.batch * panels < 8 and tiles > contraction.batch * panels
    )
    readable = not packed_b and _is_readable(contraction, machine, tile)
    strips = k <= FEW_TERMS and contraction.batch * tiles >= FEWEST_STRIPS
    # Whatever few columns of few terms take to be packed, rows that are written whole give back.
    narrow = strips and panels == 1 and tiles > DIRECT_TILES and contraction.c_panels is None
    direct = readable and not narrow and _reads_directly(contraction, tile, model)
    # Whether the cache holds all rows of A, a piece of a panel, and the next one that is packed meanwhile.
    whole = (m * k + 2 * tile.width * block) * size <= model.of_l2(ROLLING)
    movable = path == "tiles" and min(m, k) > 0 and not (direct or contraction.strided_terms)
    rolling = movable and whole and not packed_b and panels > 1 and tiles >= FEWEST_SLICES
    blocked = movable and not whole
    if path != "tiles" or m * streams < k:
        streams = 0
    held = model.of_l2(HELD) // max(1, k * size * tile.width)
    # Of sums of few terms, writing them is most of the work.
    written = max(streams, int(k <= FEW_TERMS))
    runs = movable and not packed_b and held >= FEWEST_HELD
    runs = runs and (strips or m * n * written * size > streamed)
    if contraction.c_panels is not None:
        runs = False  # the rows of a panel are one run
    many = contraction.batch > 1 or m * n * size <= streamed
    by_rows = by_rows or (runs and strips and many)
    if runs:
        # A few rows of C at a time, over many columns: what is read with them comes in long runs.
        rows, group, rolling, blocked = tile.rows, _evenly(panels, held), False, False
    elif path == "registers":
        rows, group = m, 1
    elif blocked:
        block = k if k <= LONGEST_PASS else block
        rows, group = _blocked_rows(contraction, tile, block, packed_b, model)
    else:
        rows, group = _cached_rows(contraction, tile, whole, model)
    _, down, across = contraction.a_strides
    # Rows that lie side by side are read as they lie where they serve few panels.
    short = runs and k <= FEW_TERMS
    plain = across == 1 or (down == 1 and (short or (panels <= FEW_PANELS and not by_rows)))
    pack_a = not plain or storage != accumulator or bool(contraction.strided_terms)
    # Some terms of many rows, which may lie a power of two apart, would not all stay in the cache.
    pack_a = pack_a or (blocked and block < k)
    return Cut(
        contraction,
        tile,
        storage if packed_b or direct else accumulator,
        path,
        block,
        rows,
        group,
        pack_a,
        by_rows,
        chunk,
        direct,
        rolling,
        streams,
        runs,
        blocked,
        packed_b,
        m > model.foreseen,
        model=model,
    )


def _path(contraction: Contraction, tile: Tile, packed_b: bool) -> tuple[str, int]:
    """The path of a contraction, and the columns of C that the paths for a few rows hold at a time."""
    m, n, k = contraction.m, contraction.n, contraction.k
    path = "tiles"
    chunk = min(LONGEST_CHUNK, round_up(n, tile.lanes))
    few = (
        0 < m <= min(FEW_ROWS, tile.rows)
        and k > 0
        and n > tile.lanes
        and not contraction.strided_terms
        and not contraction.decoded
    )
    if few and not packed_b:
        _, down, across = contraction.b_strides
        path = "rows" if across == 1 else "dots" if down == 1 else "tiles"
    elif not packed_b and _sums_dots(contraction):
        path, chunk = "dots", min(chunk, LONGEST_CHUNK * FEW_ROWS // (m * tile.lanes) * tile.lanes)
    return path, chunk


def _blocked_rows(
    contraction: Contraction, tile: Tile, block: int, packed_b: bool, model: CpuModel
) -> tuple[int, int]:
    """Rows of a block of A, and panels that go past it together, where A does not fit the cache."""
    size, k = STORAGE_BYTES[accumulator_of(contraction.dtype)], contraction.k
    panels = max(1, ceil_div(contraction.n, tile.width))
    rows = _rows_of_block(max(1, ceil_div(contraction.m, tile.rows)), block, tile, size, model)
    most = model.of_own_last(GROUP)
    bound = most // (k * size * tile.width)
    if packed_b:
        bound = panels if block >= k else most // (rows * size * tile.width)
    return rows, _evenly(panels, max(1, bound))


def _cached_rows(
    contraction: Contraction, tile: Tile, whole: bool, model: CpuModel
) -> tuple[int, int]:
    """Rows of A that are used together, which stay in the cache, and panels that are packed for them; ``whole`` where all rows fit."""
    size, k = STORAGE_BYTES[accumulator_of(contraction.dtype)], contraction.k
    tiles = max(1, ceil_div(contraction.m, tile.rows))
    # Most of the cache for rows of A, so that panels stream past them.
    held = max(1, model.of_l2(BLOCK) // max(1, k * size * tile.rows))
    rows = tiles * tile.rows if whole else min(tiles, held) * tile.rows
    # A panel is used as soon as it is packed, by all rows that use it.
    if rows >= contraction.m:
        return rows, 1
    panels = max(1, ceil_div(contraction.n, tile.width))
    most = model.of_own_last(GROUP)
    return rows, min(panels, max(1, most // max(1, k * size * tile.width)))


def _block(contraction: Contraction, tile: Tile) -> int:
    """Terms of a pass: as many in each, in whole vectors where there are several."""
    k = contraction.k
    blocks = max(1, ceil_div(k, LONGEST_BLOCK))
    if blocks == 1:
        return max(1, k)
    return contraction.whole_terms(ceil_div(k, blocks), tile.lanes)


def _evenly(count: int, most: int) -> int:
    """How many of ``count`` things are in a group: at most so many, and about as many in each."""
    return ceil_div(count, ceil_div(count, most))


def _rows_of_block(tiles: int, block: int, tile: Tile, size: int, model: CpuModel) -> int:
    """Rows of A that the cache holds beside two pieces of panels: as many in each block of rows."""
    held_bytes = model.of_l2(BLOCK if block <= LONGEST_BLOCK else ROLLING)
    held = max(1, (held_bytes // (block * size) - 2 * tile.width) // tile.rows)
    blocks = ceil_div(tiles, held)
    return ceil_div(tiles, blocks) * tile.rows


def _sums_dots(contraction: Contraction) -> bool:
    """Whether sums are so long, and rows so few, that adding up lanes costs less than packing columns whose terms are contiguous."""
    if (
        contraction.b_strides[1] != 1
        or contraction.strided_terms
        or contraction.b_panels is not None
        or contraction.decoded
    ):
        return False
    return 0 < contraction.m <= min(MOST_DOT_ROWS, contraction.k // TERMS_OF_DOT_ROW)


def _is_readable(contraction: Contraction, machine: Machine, tile: Tile) -> bool:
    """Whether a tile can read B as it lies."""
    if contraction.b_strides[2] != 1 or contraction.strided_terms or contraction.k == 0:
        return False
    if contraction.decoded:
        return False
    # Machines with narrow vectors have no loads of some lanes.
    return not contraction.n % tile.lanes or machine.vector_bytes >= 32


def _reads_directly(contraction: Contraction, tile: Tile, model: CpuModel) -> bool:
    """Whether B is used too little to be worth packing, or lies as if it were packed."""
    down = contraction.b_strides[1]
    together = contraction.n <= tile.width and abs(down) <= 2 * tile.width
    size = STORAGE_BYTES[contraction.dtype]
    aligned = contraction.n % tile.lanes == down % tile.lanes == 0
    near = aligned and abs(down) * size <= NEAR_BYTES
    held = near and contraction.k * abs(down) * size <= model.of_l2(HELD)
    if contraction.dtype != accumulator_of(contraction.dtype):
        together = held = False  # each use would widen it again
    rows = DIRECT_TILES * tile.rows
    return together or contraction.m <= (max(rows, NEAR_ROWS) if held else rows)


def scratch_bytes(contraction: Contraction, machine: Machine, packed_b: bool = False) -> int:
    """Bytes of scratch memory that each thread of a contraction needs; thread ``t`` uses the ``t``-th part."""
    return cut(contraction, machine, packed_b).scratch_bytes


def packed_elements(contraction: Contraction, machine: Machine) -> int:
    """Elements of storage that B takes when packed, all of its batches together."""
    copies = contraction.batch if contraction.b_strides[0] else min(1, contraction.batch)
    return copies * cut(contraction, machine, True).packed_elements


def _round(count: int) -> int:
    """Whole cache lines."""
    return round_up(count, 64)
