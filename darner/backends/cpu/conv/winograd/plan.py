"""Winograd's form of 3x3 convolutions with stride 1: when it is used, and how it is cut.

The result is made in squares of ``side x side`` pixels. Such a square needs ``(side + 2)^2`` products for each pair of channels instead of ``9 * side^2``:
the square of the source is taken to its values at ``points``, weights likewise, these are multiplied and summed over channels (one product of matrices for each
pair of points), and the sums are taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from .....codegen.ir.types import STORAGE_BYTES
from .....graph.integers import ceil_div, round_up
from .....graph.node import Node
from .....lower.specs import sizes
from ...contract.tile import Tile
from ...emit.non_temporal import LINE
from ...runtime.jit import Machine
from ..plan import tile_cycles, tiles_of

SIDES = (4, 2)
"""Of the squares that there are transforms for."""
WAYS = (False, True)
"""Whether all threads transform the source together before they share the products out."""
KERNEL = 3
MOST_SQUARES = 64
"""Squares of a line that are transformed at a time."""
SOURCE_BYTES = 640 << 10
"""Of the cache next to a core: what the transformed source of a block may take."""
ROWS = (16, 32, 64, 96)
"""Squares that a block may have: with few there is more to share out, with many each weight is used more often."""
ENOUGH = 8
"""Pieces of work that are left for threads to share."""
MANY_UNITS = 16
"""Pieces of work for each thread that make their shares as good as even."""
MOST_THREADS = 16
"""Threads that forms are chosen for, at most."""
GROUP_BYTES = 384 << 10
"""Of the cache next to a core: sums of some vectors of channels that are finished together."""
SHARED_BYTES = 16 << 20
"""The most that the transformed source of all images may take together."""
MOST_BYTES = 48 << 20
"""The most that transformed weights may take, and the sums of all splits of their gradient."""
WEIGHTS_BYTES = 1 << 20
"""Of the cache next to a core: what transformed weights may take, or both operands of a block of their gradient."""
MOST_SPLITS = ENOUGH
"""Sums of the gradient towards the weight that are kept apart, for threads to share."""
BYTES_A_CYCLE = 12.0
"""Transformed weights that do not fit that cache, beside the products they are used for."""
FAR = 0.4
"""Cycles for each byte of a transformed source that does not fit that cache, or is read by other threads."""
TRANSFORM = {4: 400.0, 2: 150.0}
"""Cycles that a vector of channels of one square needs on its way in, or out."""
WEIGHT = {4: 300.0, 2: 150.0}
"""Cycles that the kernels of a vector of channels with one other need."""
WORTH = 0.8
"""The share of the direct form's time below which this one is taken."""
DIRECT = 0.75
"""The share of the peak that the direct form reaches."""


@dataclass(frozen=True)
class Winograd:
    """How one convolution is computed in Winograd's form.

    The squares of an image are in *lines*: up to ``across`` squares side by side. Lines are numbered by image, then by part of the width,
    then downwards. Some lines together are a block, whose squares are the rows of the products of matrices.

    Attributes:
        side: of a square.
        batch: images.
        channels: of the source, which are summed over.
        out: channels of the result.
        source: height and width of the source.
        result: height and width of the result.
        low: rows and columns of zeros before the source.
        flipped: whether the taps are in reverse order, and the weights [summed, out, 3, 3]: the gradient towards the input.
        across: squares of a line.
        parts: lines side by side.
        lines: of a block.
        shared: whether all threads transform the source together first.
        tile: squares and channels of the result that are kept in registers.
    """

    side: int
    batch: int
    channels: int
    out: int
    source: tuple[int, int]
    result: tuple[int, int]
    low: tuple[int, int]
    flipped: bool
    across: int
    parts: int
    lines: int
    shared: bool
    tile: Tile

    @property
    def ends(self) -> int:
        """Points, and the side of what a square reads."""
        return self.side + KERNEL - 1

    @property
    def points(self) -> int:
        """Pairs of points: products of matrices."""
        return self.ends**2

    @property
    def in_lines(self) -> bool:
        """Whether vectors are whole lines of cache, which can be written past it one by one."""
        return self.tile.lanes * STORAGE_BYTES["f32"] == LINE

    @property
    def down(self) -> int:
        """Lines below each other."""
        return ceil_div(self.result[0], self.side)

    @property
    def all_lines(self) -> int:
        """Lines of all images."""
        return self.batch * self.parts * self.down

    @property
    def blocks(self) -> int:
        """Blocks of lines."""
        return ceil_div(self.all_lines, self.lines)

    @property
    def rows(self) -> int:
        """Rows of a block: its squares, in whole tiles."""
        return _rounded(self.lines * self.across, self.tile.rows)

    @property
    def depth(self) -> int:
        """Channels that are summed over, in whole vectors."""
        return _rounded(self.channels, self.tile.lanes)

    @property
    def panels(self) -> int:
        """Panels of the result's channels, as wide as a tile; the last may be narrower."""
        return ceil_div(self.out, self.tile.width)

    @property
    def last(self) -> Tile:
        """The tile of the last panel."""
        rest = self.out - (self.panels - 1) * self.tile.width
        return Tile(self.tile.rows, ceil_div(rest, self.tile.lanes), self.tile.lanes)

    @property
    def weight_elements(self) -> int:
        """Elements of the transformed weights."""
        width = (self.panels - 1) * self.tile.width + self.last.width
        return self.points * self.channels * width

    @property
    def source_elements(self) -> int:
        """Elements of the transformed source of a block."""
        return self.points * self.rows * self.depth

    @property
    def units(self) -> int:
        """Pieces of work that threads share out."""
        return self.blocks * (self.panels if self.shared else 1)

    @property
    def group(self) -> int:
        """Vectors of the source's channels whose gradients towards the weight are summed and finished together."""
        vectors = self.depth // self.tile.lanes
        each = self.points * self.tile.lanes * self.tile.width * STORAGE_BYTES["f32"]
        return max(1, min(GROUP_BYTES // each, vectors * self.panels // ENOUGH))

    @property
    def groups(self) -> int:
        """How many of these there are."""
        return ceil_div(ceil_div(self.depth, self.tile.lanes), self.group)

    @property
    def splits(self) -> int:
        """Blocks that are summed by themselves, of a gradient towards the weight."""
        each = self.panels * self.points * self.depth * self.tile.width * STORAGE_BYTES["f32"]
        return min(MOST_SPLITS, self.blocks, max(1, MOST_BYTES // each))


def winograd_of(node: Node, machine: Machine, packed: bool = False) -> Winograd | None:
    """How a convolution or a gradient of one is computed in Winograd's form; None where the direct form is as good.

    Args:
        node: the convolution.
        machine: what it runs on.
        packed: whether weights are transformed before, once and for all; forms that share the source do so themselves in any case.
    """
    if not _is_possible(node):
        return None
    threads = max(2, min(MOST_THREADS, machine.cores))
    found: list[tuple[float, Winograd]] = []
    for side, shared in product(SIDES, WAYS):
        if node.op.name == "conv_weight_grad":
            form = _weights_form(node, machine, side, shared)
            if form is not None:
                found.append((_weights_cycles(form, threads), form))
            continue
        for rows in ROWS:
            form = _form(node, machine, side, shared, rows)
            if form is not None:
                found.append((_cycles(form, packed, threads), form))
    if not found:
        return None
    cycles, best = min(found, key=lambda pair: pair[0])
    return best if cycles <= WORTH * _direct_cycles(best, threads) else None


def _is_possible(node: Node) -> bool:
    if node.dtype.name != "f32" or node.rank != 4 or 0 in sizes(node):
        return False
    weights = node if node.op.name == "conv_weight_grad" else node.operands[1]
    if sizes(weights)[2:] != [KERNEL, KERNEL] or int(node.attrs["groups"]) != 1:
        return False
    steps = (*node.attrs["stride"], *node.attrs["dilation"])
    return all(int(step) == 1 for step in steps) and all(
        0 <= int(low) < KERNEL for low, _ in node.attrs["padding"]
    )


@dataclass(frozen=True)
class _Geometry:
    """What the forms of all three ops have in common, with squares of one size."""

    side: int
    batch: int
    channels: int
    out: int
    source: tuple[int, int]
    result: tuple[int, int]
    low: tuple[int, int]
    across: int
    parts: int
    lines: int


def _geometry(node: Node, side: int) -> _Geometry | None:
    first, second = (sizes(operand) for operand in node.operands)
    source, result = first, second if node.op.name == "conv_weight_grad" else sizes(node)
    if min(result[2:]) < side:
        return None
    low = [int(pair[0]) for pair in node.attrs["padding"]]
    if node.op.name == "conv_input_grad":
        low = [KERNEL - 1 - one for one in low]
    total = ceil_div(result[3], side)
    parts = ceil_div(total, MOST_SQUARES)
    return _Geometry(
        side=side,
        batch=source[0],
        channels=source[1],
        out=result[1],
        source=(source[2], source[3]),
        result=(result[2], result[3]),
        low=(low[0], low[1]),
        across=ceil_div(total, parts),
        parts=parts,
        lines=source[0] * parts * ceil_div(result[2], side),
    )


# --------------------------------------------------------------------------- results and gradients towards the input


def _form(node: Node, machine: Machine, side: int, shared: bool, rows: int) -> Winograd | None:
    """The form with squares of one size, in blocks of about ``rows``."""
    found = _geometry(node, side)
    if found is None:
        return None
    squares = found.lines * found.across
    lanes = machine.vector_bytes // STORAGE_BYTES["f32"]
    each = (side + KERNEL - 1) ** 2 * _rounded(found.channels, lanes) * STORAGE_BYTES["f32"]
    if shared and squares * each > SHARED_BYTES:
        return None
    together = max(1, min(found.lines, rows // found.across))
    lines = ceil_div(found.lines, ceil_div(found.lines, together))
    tiles = tiles_of(machine, "f32")
    tile = min(
        tiles,
        key=lambda tile: _tile_cycles(tile, lines * found.across, found.out, 2 if shared else 1),
    )
    settings = vars(found) | {"lines": lines, "shared": shared, "tile": tile}
    form = Winograd(flipped=node.op.name == "conv_input_grad", **settings)
    too_much = not shared and form.weight_elements * STORAGE_BYTES["f32"] > MOST_BYTES
    return None if too_much else form


def _tile_cycles(tile: Tile, rows: int, out: int, sharing: int) -> float:
    """Cycles of one term of a block's sums, for the one of ``sharing`` threads that has most of the panels."""
    whole, rest = divmod(out, tile.width)
    last = ceil_div(rest, tile.lanes)
    cycles = whole * tile_cycles(tile.rows, tile.vectors)
    if sharing > 1:
        cycles = ceil_div(whole + bool(last), sharing) * tile_cycles(tile.rows, tile.vectors)
    elif last:
        cycles += tile_cycles(tile.rows, last)
    return ceil_div(rows, tile.rows) * cycles


def _cycles(form: Winograd, packed: bool, threads: int) -> float:
    """Cycles until all threads are done."""
    lanes, panels = form.tile.lanes, form.panels if form.shared else 1
    width = form.weight_elements / (form.points * form.channels) / panels
    weights = form.channels * width / lanes * WEIGHT[form.side]
    source = form.depth / lanes * form.rows * TRANSFORM[form.side]
    unit = form.points * form.rows * form.channels * width / (2 * lanes)
    unit += width / lanes * form.rows * TRANSFORM[form.side]
    written = form.source_elements * STORAGE_BYTES["f32"]
    if form.shared:
        before = source * form.blocks / threads + 2 * written * form.blocks * FAR / threads
        return before + _makespan(form.units, unit + weights, threads)
    unit += source + (written * FAR / 2 if written > SOURCE_BYTES else 0.0)
    read = form.weight_elements * STORAGE_BYTES["f32"]
    unit += read / (BYTES_A_CYCLE if read > WEIGHTS_BYTES else 4 * BYTES_A_CYCLE)
    before = 0.0
    if not packed:
        before = (weights + (read * FAR if read > WEIGHTS_BYTES else 0.0)) / threads
    return before + _makespan(form.units, unit, threads)


def _makespan(units: int, each: float, threads: int) -> float:
    """Cycles of the thread that has most of some units."""
    return each * (ceil_div(units, threads) if units < MANY_UNITS * threads else units / threads)


def _direct_cycles(form: Winograd, threads: int) -> float:
    """Cycles until all threads are done with the direct form."""
    products = KERNEL**2 * form.batch * prod(form.result) * form.channels * form.out
    return products / (2 * form.tile.lanes * DIRECT * threads)


# --------------------------------------------------------------------------- gradients towards the weight


def _weights_form(node: Node, machine: Machine, side: int, shared: bool) -> Winograd | None:
    """The form of a gradient towards the weight: squares are what is summed over."""
    found = _geometry(node, side)
    if found is None:
        return None
    lanes = machine.vector_bytes // STORAGE_BYTES["f32"]
    # Vectors of the source's channels are rows of tiles.
    rows = min(8, lanes)
    tiles = [Tile(rows, vectors, lanes) for vectors in (3, 2)]
    tile = min(tiles, key=lambda tile: _tile_cycles(tile, rows, found.out, 1))
    each = _rounded(found.channels, lanes) + _rounded(found.out, lanes)
    each *= (side + KERNEL - 1) ** 2 * STORAGE_BYTES["f32"]
    lines = found.lines
    if shared and lines * found.across * each > SHARED_BYTES:
        return None
    if not shared:
        lines = max(1, min(lines, WEIGHTS_BYTES // each // found.across))
        lines = ceil_div(found.lines, ceil_div(found.lines, lines))
    settings = vars(found) | {"lines": lines, "shared": shared, "tile": tile}
    form = Winograd(flipped=False, **settings)
    too_much = not shared and form.weight_elements * STORAGE_BYTES["f32"] > MOST_BYTES
    return None if too_much else form


def _weights_cycles(form: Winograd, threads: int) -> float:
    """Cycles until all threads are done."""
    lanes = form.tile.lanes
    squares = form.lines * form.across
    width = form.weight_elements / (form.points * form.channels)
    products = form.points * squares * form.depth * width / (2 * lanes)
    transforms = (form.depth + width) / lanes * squares * TRANSFORM[form.side]
    kept = form.points * form.depth * width / lanes
    if form.shared:
        units = form.panels * form.groups
        return transforms / threads + _makespan(units, (products + 4 * kept) / units, threads)
    # Sums are read and written again with each block, and those of all splits at the end.
    each = (products + transforms + 2 * kept) * form.blocks / form.splits
    return _makespan(form.splits, each, threads) + 2 * kept * (2 + form.splits) / threads


def _rounded(count: int, step: int) -> int:
    return round_up(count, step)
