"""How a product is cut for tensor cores: the form of its kernel, its tiles, and the parts of its sums.

Everything that measurements decide stands here. Times are in microseconds, of an NVIDIA H200 where nothing else is said.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from ....codegen.simt.contract.product import Product, part_bytes
from ....graph.integers import ceil_div
from ..machine import Capability, Machine
from .fma import FmaCut, FmaTile
from .mma import MmaCut, MmaTile
from .operands import Layout, layout_of, loose_layout
from .tiles import WgmmaCut, WgmmaTile

FEW = 8
"""Up to so many rows or columns, all that counts is how fast the other operand is read, and tensor cores are of no use."""
SHORT = 16
"""The fewest terms."""

WGMMA_TILES = (
    WgmmaTile(128, 256, 4, 2, cluster=2, slabs=2, registers=(40, 232), full=0.82),
    WgmmaTile(256, 128, 4, 2, cluster=2, slabs=2, registers=(40, 232), full=0.81),
    WgmmaTile(128, 192, 4, 2, cluster=2, slabs=2, registers=(40, 232), full=0.79),
    WgmmaTile(128, 256, 4, 2, slabs=2, registers=(40, 232), full=0.78),
    WgmmaTile(128, 128, 6, 2, full=0.74),
    WgmmaTile(64, 256, 4, 1, slabs=2, full=0.76),
    WgmmaTile(64, 192, 6, 1, slabs=2, full=0.78),
    WgmmaTile(64, 128, 8, 1, slabs=2, full=0.70),
    WgmmaTile(128, 64, 8, 2, full=0.66),
    WgmmaTile(64, 64, 10, 1, full=0.55),
    WgmmaTile(64, 64, 5, 1, blocks=2, full=0.55),
    WgmmaTile(128, 128, 6, 2, cluster=2, full=0.74),
    WgmmaTile(64, 256, 4, 1, cluster=2, slabs=2, full=0.76),
    WgmmaTile(128, 192, 4, 2, slabs=2, registers=(40, 232), full=0.76),
    WgmmaTile(64, 128, 4, 1, blocks=2, full=0.68),
)
"""The tiles of ``wgmma``, with the share of the peak that prototypes reached on an H200."""

MMA_TILES = (
    MmaTile(128, 256, 64, 64, 4, full=0.60),
    MmaTile(128, 256, 64, 64, 3, full=0.59),
    MmaTile(256, 128, 64, 64, 3, full=0.59),
    MmaTile(128, 128, 64, 64, 3, full=0.52),
    MmaTile(128, 64, 64, 32, 4, full=0.42),
    MmaTile(64, 128, 32, 64, 4, full=0.42),
    MmaTile(64, 64, 32, 32, 4, full=0.36),
)
"""The tiles of ``mma.sync``."""

FMA_TILES = (
    FmaTile(128, 128, 3, ahead=8, full=0.78),
    FmaTile(128, 128, 3, ahead=4, full=0.75),
    FmaTile(128, 128, 3, blocks=2, full=0.70),
    FmaTile(128, 64, 4, ahead=4, slices=2, full=0.74),
    FmaTile(64, 64, 4, ahead=4, slices=2, blocks=2, full=0.68),
    FmaTile(64, 128, 4, full=0.69),
    FmaTile(128, 64, 4, full=0.65),
    FmaTile(64, 64, 4, blocks=3, full=0.62),
)
"""The tiles of f32 without tensor cores."""
LEAST_PLAIN = 32
"""The fewest rows, columns and terms of these."""
BUSY = 256
"""Threads of a multiprocessor that multiply f32 as fast as it can."""
LONELY = 0.8
"""The share of that which fewer reach."""
FMA = 128.0
"""Products of f32 that a multiprocessor adds in a cycle."""

LAUNCH = 2.2
"""A launch that does next to nothing, in a graph."""
TILE = 0.35
"""What a tile takes beside its products: the first operands on their way, and its results."""
LATENCY = 0.12
"""A block of terms takes so long at least."""
CLOCK = 1800.0
"""Cycles in a microsecond."""
BYTES = 3_600_000.0
"""That go to or from memory in a microsecond."""
BYTES_OF_FEW = 2_600_000.0
"""The same where a multiprocessor has one warpgroup that reads and writes."""
CACHED = 15_000_000.0
"""Bytes that all multiprocessors read from the L2 cache in a microsecond."""
CUT_LINES = 2.3
"""So many times as long it takes to read rows of 128 bytes that begin within a line of the cache."""
CACHED_BY_ONE = 120_000.0
"""The same of one."""
BYTES_OF_ONE = 45_000.0
"""The same of one multiprocessor, while the others rest."""
PACK = 2.0
"""A launch that packs an operand."""
PACKED = 2_000_000.0
"""Bytes that it reads and writes in a microsecond."""
LOOSE = 0.05
"""So long it takes a thread to bring a piece word by word, where a block of terms or two is all there is."""
LOOSE_PLAIN = 1.4
"""So many times as long products of f32 take whose operands are copied word by word."""
LOOSE_ALWAYS = 0.45
"""The same of 16-bit elements otherwise."""
SINGLE = 0.015
"""What a thread takes for an element that it writes by itself."""
SHARING = (2, 4)
"""Blocks of a cluster that may share the terms of a tile."""
WIDEST_SHARED = 192
"""The most columns of such a tile, for its registers' sake."""
MEETING = 0.8
"""What blocks that run together as a cluster take more than others."""
EXCHANGE = 20_000.0
"""Bytes of sums that a warpgroup adds up in a microsecond."""
LEAST_BLOCKS = 4
"""Blocks of terms that a part of sums has at least."""
MOST_PARTS = 16
MOST_PART_BYTES = 32 << 20
"""What the parts of all sums may take together."""


def multiplied(capability: Capability, itemsize: int) -> float:
    """Products that a multiprocessor adds in a cycle at its peak, of elements with so many bytes.

    >>> multiplied((9, 0), 2), multiplied((8, 6), 4)
    (2048.0, 256.0)
    """
    half = {
        8: 1024.0 if capability in ((8, 0), (8, 7)) else 512.0,
        9: 2048.0,
        10: 2048.0,
        12: 512.0,
    }
    return half.get(capability[0], 512.0) * 2 / itemsize


Cut = WgmmaCut | MmaCut


def packed_sides(product: Product, *, transposed: bool) -> list[int]:
    """The operands that copies cannot read where they lie, by their numbers; ``transposed`` ones, along rows or columns, they can where that is said."""
    return [side for side in range(2) if layout_of(product, side, transposed=transposed) is None]


def can_be_loose(product: Product, *, transposed: bool) -> bool:
    """Whether operands that would be packed can be read word by word."""
    sides = [] if product.halves else packed_sides(product, transposed=transposed)
    found = (loose_layout(product, side, transposed=transposed) for side in sides)
    return bool(sides) and all(found)


def _packing(product: Product, itemsize: int, *, transposed: bool) -> float:
    """The microseconds that it takes to pack what is packed first."""
    found = 0.0
    for side in packed_sides(product, transposed=transposed):
        elements = product.count * product.k * (product.n if side else product.m)
        found += PACK + 2 * elements * itemsize / PACKED
    return found


def ranked(product: Product, layouts: tuple[Layout, Layout], machine: Machine) -> list[Cut]:
    """The ways to cut a product: what is expected to take the least time first."""
    found: list[Cut] = []
    if machine.arch == "sm_90a" and not machine.emulated and all(x.tiled for x in layouts):
        for tile in WGMMA_TILES:
            pairs = not product.halves or tile.bn % 128 == 0
            if pairs and tile.shared_bytes * tile.blocks <= machine.most_shared:
                found += _wgmma_cuts(product, tile, layouts, machine)
    loose = can_be_loose(product, transposed=layouts[0].dtype.itemsize == 2)
    if not found or loose:
        tiles = [tile for tile in MMA_TILES if tile.shared_bytes <= machine.most_shared]
        if machine.emulated:
            # Compiling takes longer there than running.
            tiles = [tile for tile in tiles if tile.wm * tile.wn <= 1024]
        if product.halves:
            tiles = [tile for tile in tiles if product.n % tile.wn == 0]
        parts = _parts(product, layouts[0].dtype.itemsize)
        kinds = [loose] if found else sorted({False, loose})
        found += [MmaCut(tile, count, kind) for tile in tiles for count in parts for kind in kinds]
    return sorted(found, key=lambda cut: expected(product, layouts, cut, machine))


def ranked_gathered(
    product: Product, itemsize: int, machine: Machine, read: int | None = None
) -> list[MmaCut]:
    """The ways to cut a product whose tiles are gathered: what is expected to take the least time first; ``read`` are the bytes of its operands, where they are not rows of terms."""
    tiles = [tile for tile in MMA_TILES if tile.shared_bytes <= machine.most_shared]
    if machine.emulated:
        # Compiling takes longer there than running.
        tiles = [tile for tile in tiles if tile.wm * tile.wn <= 1024]
    found = []
    for tile in tiles:
        count = MmaCut(tile).raster(product).tiles
        # Where tiles are few, parts that fill all multiprocessors once or twice.
        filling = [machine.processors * turn // count for turn in (1, 2)] if read else []
        found += [MmaCut(tile, parts) for parts in _parts(product, itemsize, filling)]
    rate = multiplied(machine.capability, itemsize)
    return sorted(
        found, key=lambda cut: _expected(product, cut, rate, itemsize, machine, nbytes=read)
    )


def _wgmma_cuts(
    product: Product, tile: WgmmaTile, layouts: tuple[Layout, Layout], machine: Machine
) -> list[Cut]:
    found: list[Cut] = []
    for parts in _parts(product, layouts[0].dtype.itemsize):
        cut = WgmmaCut(tile, parts, 0)
        tiles = cut.raster(product).tiles
        most = machine.processors * tile.blocks // tile.cluster
        found.append(replace(cut, blocks=min(tiles, most) * tile.cluster))
    if tile.cluster == tile.blocks == 1 and not tile.turns and tile.bn <= WIDEST_SHARED:
        tiles = WgmmaCut(tile, 1, 0).raster(product).tiles
        total = ceil_div(product.k, 128 // layouts[0].dtype.itemsize)
        for sharing in SHARING:
            whole = ceil_div(total, ceil_div(total, sharing)) == sharing
            room = tile.bm * tile.bn * 4 <= tile.slabs_at
            if whole and room and total >= 2 * sharing and tiles * sharing <= machine.processors:
                found.append(WgmmaCut(tile, 1, tiles * sharing, sharing))
    return found


def ranked_mapped(
    product: Product, layouts: tuple[Layout, Layout], machine: Machine, read: int
) -> list[WgmmaCut]:
    """The ways to cut a product whose operands tensor maps bring, of so many bytes: what is expected to take the least time first."""
    itemsize = layouts[0].dtype.itemsize
    found = []
    for tile in WGMMA_TILES:
        if tile.turns or tile.shared_bytes * tile.blocks > machine.most_shared:
            continue
        count = WgmmaCut(tile, 1, 0).raster(product).tiles * tile.cluster
        filling = [machine.processors * tile.blocks * turn // count for turn in (1, 2)]
        for parts in _parts(product, itemsize, filling):
            found.append(WgmmaCut(tile, parts, 0).of(product, machine.processors))
    rate = multiplied(machine.capability, itemsize)
    return sorted(
        found, key=lambda cut: _expected(product, cut, rate, itemsize, machine, nbytes=read)
    )


def ranked_plain(product: Product, machine: Machine, read: int | None = None) -> list[FmaCut]:
    """The ways to cut a product of f32: what is expected to take the least time first; for ``read`` see ``ranked_gathered``."""
    tiles = [tile for tile in FMA_TILES if tile.shared_bytes <= machine.most_shared]
    if machine.emulated:
        tiles = tiles[-1:]
    gathered = read is not None
    kinds = {False, not gathered and can_be_loose(product, transposed=True)}
    ways = itertools.product(tiles, _parts(product, 4), sorted(kinds))
    found = [FmaCut(*way) for way in ways]
    packing = 0.0 if gathered else _packing(product, 4, transposed=True)

    def time(cut: FmaCut) -> float:
        spent = _expected(product, cut, FMA, 4, machine, nbytes=read)
        return spent + (0.0 if cut.loose else packing)

    return sorted(found, key=time)


def _parts(product: Product, itemsize: int, besides: Sequence[int] = ()) -> list[int]:
    """The numbers of parts that sums may be cut into, these ``besides`` among them: no part is empty."""
    if product.halves:
        return [1]
    blocks = ceil_div(product.k, 128 // itemsize)
    found, some = {1}, [2, 4, 8, MOST_PARTS, *besides]
    for parts in some:
        if parts < 2 or blocks // parts < LEAST_BLOCKS:
            continue
        whole = ceil_div(blocks, ceil_div(blocks, parts))
        if whole * part_bytes(product) <= MOST_PART_BYTES:
            found.add(whole)
    return sorted(found)


def expected(product: Product, layouts: tuple[Layout, Layout], cut: Cut, machine: Machine) -> float:
    """The microseconds that a product takes on tensor cores.

    Within a fifth of what was measured on an H200 by prototypes, for 128 x 576 x 576 up to 8192 x 8192 x 8192.
    """
    itemsize = layouts[0].dtype.itemsize
    rate = multiplied(machine.capability, itemsize)
    lines = tuple(CUT_LINES if _cuts_lines(layout) else 1.0 for layout in layouts)
    found = _expected(product, cut, rate, itemsize, machine, lines)
    loose = isinstance(cut, MmaCut) and cut.loose
    return found if loose else found + _packing(product, itemsize, transposed=itemsize == 2)


def _loose(cut: MmaCut, blocks: int) -> float:
    """The microseconds that one of so many blocks of terms takes at least that is brought word by word."""
    tile = cut.tile
    pieces = (tile.bm + tile.bn) * 8 / tile.threads
    return pieces * (LOOSE_ALWAYS if blocks > 2 else LOOSE)


def _cuts_lines(layout: Layout) -> bool:
    """Whether rows of 128 bytes begin within lines of the cache."""
    others = layout.batch + layout.free + layout.summed
    return any(step * layout.dtype.itemsize % 128 for _, step in others if step != 1)


def _expected(  # many parameters: a product, how it is cut, and what of the machine counts
    product: Product,
    cut: Cut | FmaCut,
    rate: float,
    itemsize: int,
    machine: Machine,
    lines: Sequence[float] = (1.0, 1.0),
    nbytes: int | None = None,
) -> float:
    """The microseconds that a product takes where a multiprocessor adds so many products in a cycle, of operands of ``nbytes``."""
    tile = cut.tile
    shared = cut.sharing if isinstance(cut, WgmmaCut) else 1
    blocks = ceil_div(ceil_div(product.k, 128 // itemsize), cut.parts * shared)
    cluster = tile.cluster if isinstance(tile, WgmmaTile) else 1
    tiles = cut.raster(product).tiles * cluster * shared
    together = tile.blocks
    each = ceil_div(tiles, machine.processors * together)
    # Blocks of a multiprocessor share what multiplies; one alone has it to itself.
    sharing = min(together, ceil_div(tiles, machine.processors))
    work = tile.bm * tile.bn * (128 // itemsize) / (rate * tile.full * CLOCK)
    if isinstance(tile, FmaTile) and tile.threads * ceil_div(tiles, machine.processors) < BUSY:
        work /= LONELY
    moved = product.count * product.m * product.n * product.beside / BYTES
    # While a block writes, it does not multiply; others of the multiprocessor do, but all began together.
    beside = tile.bm * tile.bn * (product.beside if cut.parts == 1 else 0)
    groups = tile.groups if isinstance(tile, WgmmaTile) else max(1, tile.threads // 128)
    together_bytes = min(tiles, machine.processors * together) * beside
    rate_of_all = BYTES if groups * sharing > 1 else BYTES_OF_FEW
    write = max(beside * sharing / BYTES_OF_ONE, together_bytes / rate_of_all)
    if not product.taken.in_fours:
        write += tile.bm * tile.bn / (128 * groups) * SINGLE
    if shared > 1:
        write = MEETING + 2 * write / shared + tile.bm * tile.bn * 4 / groups / EXCHANGE
    latency = _loose(cut, blocks) if isinstance(cut, MmaCut) and cut.loose else LATENCY
    if isinstance(cut, FmaCut) and cut.loose:
        work *= LOOSE_PLAIN
    # Operands come from the L2 cache, lines that are cut in two as two.
    brought = (tile.bm * lines[0] + tile.bn / cluster * lines[1]) * 128
    reads = blocks * tiles * brought / min(CACHED, tiles * CACHED_BY_ONE)
    multiply = blocks * max(work * sharing, latency)
    if isinstance(tile, WgmmaTile) and tile.turns:
        # One warpgroup writes while the other multiplies.
        time = each * max(multiply, (TILE + write + multiply) / 2) + TILE + write
    else:
        time = each * (TILE + write + multiply)
    time = max(time, reads)
    if nbytes is None:
        nbytes = product.count * (product.m + product.n) * product.k * itemsize
    read = nbytes / BYTES
    if cluster > 1:
        time += MEETING
    found = LAUNCH + max(time, read + moved)
    if cut.parts > 1:
        found += LAUNCH + 2 * cut.parts * part_bytes(product) / BYTES + moved
    return found
