"""How a product is cut for tensor cores: the form of its kernel, its tiles, and the parts of its sums.

Everything that measurements decide stands here. Times are in microseconds, of an NVIDIA H200 where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.simt.contract.product import Product, part_bytes
from ....graph.integers import ceil_div
from ..machine import Capability, Machine
from .fma import FmaCut, FmaTile
from .mma import MmaCut, MmaTile
from .operands import Layout
from .wgmma import WgmmaCut, WgmmaTile

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
    FmaTile(128, 128, 3, blocks=2, full=0.80),
    FmaTile(128, 128, 3, ahead=2, full=0.74),
    FmaTile(128, 64, 4, full=0.66),
    FmaTile(64, 128, 4, full=0.66),
    FmaTile(64, 64, 4, blocks=3, full=0.64),
)
"""The tiles of f32 without tensor cores."""
LEAST_PLAIN = 32
"""The fewest rows, columns and terms of these."""
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
BYTES_OF_ONE = 45_000.0
"""The same of one multiprocessor, while the others rest."""
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


def ranked(product: Product, layouts: tuple[Layout, Layout], machine: Machine) -> list[Cut]:
    """The ways to cut a product: what is expected to take the least time first."""
    found: list[Cut] = []
    if machine.arch == "sm_90a" and not machine.emulated and all(x.tiled for x in layouts):
        for tile in WGMMA_TILES:
            if _has_room(tile, layouts, machine):
                found += _wgmma_cuts(product, tile, layouts, machine)
    if not found:
        return [*ranked_gathered(product, layouts[0].dtype.itemsize, machine)]
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
    return sorted(found, key=lambda cut: _expected(product, cut, rate, itemsize, machine, read))


def _has_room(tile: WgmmaTile, layouts: tuple[Layout, Layout], machine: Machine) -> bool:
    """Whether a tile fits: in shared memory, and B's shares in chunks of 64 where one of the operands is contiguous along rows or columns.

    For B that must be so. For A it need not, but with shares of 96 a kernel has waited for ever on an H200, and why is not known.
    """
    share = tile.bn // tile.cluster
    chunks = all(layout.along == "summed" for layout in layouts) or share % 64 == 0
    return chunks and tile.shared_bytes * tile.blocks <= machine.most_shared


def _wgmma_cuts(
    product: Product, tile: WgmmaTile, layouts: tuple[Layout, Layout], machine: Machine
) -> list[Cut]:
    parts = _parts(product, layouts[0].dtype.itemsize)
    return [WgmmaCut(tile, count, 0).of(product, machine.processors) for count in parts]


def ranked_mapped(
    product: Product, layouts: tuple[Layout, Layout], machine: Machine, read: int
) -> list[WgmmaCut]:
    """The ways to cut a product whose operands tensor maps bring, of so many bytes: what is expected to take the least time first."""
    itemsize = layouts[0].dtype.itemsize
    found = []
    for tile in WGMMA_TILES:
        if not _has_room(tile, layouts, machine):
            continue
        count = WgmmaCut(tile, 1, 0).raster(product).tiles * tile.cluster
        filling = [machine.processors * tile.blocks * turn // count for turn in (1, 2)]
        for parts in _parts(product, itemsize, filling):
            found.append(WgmmaCut(tile, parts, 0).of(product, machine.processors))
    rate = multiplied(machine.capability, itemsize)
    return sorted(found, key=lambda cut: _expected(product, cut, rate, itemsize, machine, read))


def ranked_plain(product: Product, machine: Machine, read: int | None = None) -> list[FmaCut]:
    """The ways to cut a product of f32: what is expected to take the least time first; for ``read`` see ``ranked_gathered``."""
    tiles = [tile for tile in FMA_TILES if tile.shared_bytes <= machine.most_shared]
    if machine.emulated:
        tiles = tiles[-1:]
    found = [FmaCut(tile, parts) for tile in tiles for parts in _parts(product, 4)]
    return sorted(found, key=lambda cut: _expected(product, cut, FMA, 4, machine, read))


def _parts(product: Product, itemsize: int, besides: Sequence[int] = ()) -> list[int]:
    """The numbers of parts that sums may be cut into, these ``besides`` among them: no part is empty."""
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
    return _expected(product, cut, multiplied(machine.capability, itemsize), itemsize, machine)


def _expected(  # many parameters: a product, how it is cut, and what of the machine counts
    product: Product,
    cut: Cut | FmaCut,
    rate: float,
    itemsize: int,
    machine: Machine,
    nbytes: int | None = None,
) -> float:
    """The microseconds that a product takes where a multiprocessor adds so many products in a cycle, of operands of ``nbytes``."""
    tile = cut.tile
    blocks = ceil_div(ceil_div(product.k, 128 // itemsize), cut.parts)
    cluster = tile.cluster if isinstance(tile, WgmmaTile) else 1
    tiles = cut.raster(product).tiles * cluster
    together = tile.blocks
    each = ceil_div(tiles, machine.processors * together)
    # Blocks of a multiprocessor share what multiplies; one alone has it to itself.
    sharing = min(together, ceil_div(tiles, machine.processors))
    work = tile.bm * tile.bn * (128 // itemsize) / (rate * tile.full * CLOCK)
    moved = product.count * product.m * product.n * product.beside / BYTES
    # While a block writes, it does not multiply; another of the multiprocessor does.
    write = tile.bm * tile.bn * product.beside / BYTES_OF_ONE if cut.parts == 1 else 0.0
    time = each * (TILE + write * sharing + blocks * max(work * sharing, LATENCY))
    if nbytes is None:
        nbytes = product.count * (product.m + product.n) * product.k * itemsize
    read = nbytes / BYTES
    found = LAUNCH + max(time, read + moved)
    if cut.parts > 1:
        found += LAUNCH + 2 * cut.parts * part_bytes(product) / BYTES + moved
    return found
