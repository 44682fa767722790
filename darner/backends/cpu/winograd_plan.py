"""Winograd's form of 3x3 convolutions with stride 1: when it is used, and how it is cut.

The result is made in squares of ``side x side`` pixels. Such a square needs ``(side + 2)^2`` products for each pair of channels instead of ``9 * side^2``:
the square of the source is taken to its values at ``points``, weights likewise, these are multiplied and summed over channels (one product of matrices for each
pair of points), and the sums are taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...graph.node import Node
from .gemm_ir import STORAGE_BYTES
from .gemm_tile import Machine, Tile, fit_tile
from .template import sizes

SIDES = (4, 2)
"""Of the squares that there are transforms for."""
KERNEL = 3
MOST_SQUARES = 64
"""Squares of a line that are transformed at a time."""
SOURCE_BYTES = 640 << 10
"""Of the cache next to a core: what the transformed source of a block may take."""
FEWEST_ROWS = 24
"""Squares that weights which come from far are used for, at least."""
MOST_ROWS = 96
"""The most squares of a block whose transformed source is shared."""
SHARED_BYTES = 16 << 20
"""The most that the transformed source of all images may take together."""
BYTES_A_CYCLE = 4.0
"""Weights that come from memory, for each core."""
WORTH = 0.85
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
    def down(self) -> int:
        """Lines below each other."""
        return -(-self.result[0] // self.side)

    @property
    def all_lines(self) -> int:
        """Lines of all images."""
        return self.batch * self.parts * self.down

    @property
    def blocks(self) -> int:
        """Blocks of lines."""
        return -(-self.all_lines // self.lines)

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
        return -(-self.out // self.tile.width)

    @property
    def last(self) -> Tile:
        """The tile of the last panel."""
        rest = self.out - (self.panels - 1) * self.tile.width
        return Tile(self.tile.rows, -(-rest // self.tile.lanes), self.tile.lanes)

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


def winograd_of(node: Node, machine: Machine) -> Winograd | None:
    """How a convolution, or its gradient towards the input, is computed in Winograd's form; None where the direct form is as good."""
    found = [_form(node, machine, side) for side in SIDES if _is_possible(node)]
    best = min((form for form in found if form is not None), key=_cycles, default=None)
    if best is None or _cycles(best) > WORTH * _direct_cycles(best):
        return None
    return best


def _is_possible(node: Node) -> bool:
    if node.op.name not in ("conv", "conv_input_grad") or node.dtype.name != "f32":
        return False
    attrs = node.attrs
    if node.rank != 4 or sizes(node.operands[1])[2:] != [KERNEL, KERNEL]:
        return False
    if int(attrs["groups"]) != 1 or 0 in sizes(node):
        return False
    lows = [int(low) for low, _ in attrs["padding"]]
    return all(int(s) == 1 for s in (*attrs["stride"], *attrs["dilation"])) and all(
        0 <= low < KERNEL for low in lows
    )


def _form(node: Node, machine: Machine, side: int) -> Winograd | None:
    """The form with squares of one size."""
    flipped = node.op.name == "conv_input_grad"
    batch, channels, *source = sizes(node.operands[0])
    _, out, *result = sizes(node)
    if min(result) < side:
        return None
    low = [int(pair[0]) for pair in node.attrs["padding"]]
    if flipped:
        low = [KERNEL - 1 - one for one in low]
    total = -(-result[1] // side)
    parts = -(-total // MOST_SQUARES)
    across = -(-total // parts)
    lines = batch * parts * -(-result[0] // side)
    squares = lines * across
    tile = fit_tile(machine, "f32", min(squares, MOST_ROWS), out)
    depth = _rounded(channels, tile.lanes)
    each = (side + KERNEL - 1) ** 2 * depth * STORAGE_BYTES["f32"]
    rows = SOURCE_BYTES // each
    shared = rows < min(FEWEST_ROWS, squares) and squares * each <= SHARED_BYTES
    if shared:
        rows = MOST_ROWS
    rows = max(rows, FEWEST_ROWS)
    together = max(1, min(lines, rows // across))
    blocks = -(-lines // together)
    return Winograd(
        side=side,
        batch=batch,
        channels=channels,
        out=out,
        source=(source[0], source[1]),
        result=(result[0], result[1]),
        low=(low[0], low[1]),
        flipped=flipped,
        across=across,
        parts=parts,
        lines=-(-lines // blocks),
        shared=shared,
        tile=tile,
    )


TRANSFORMS = {4: 300.0, 2: 120.0}
"""Cycles that a vector of channels of one square needs on its way in and out."""


def _cycles(form: Winograd) -> float:
    """Cycles of one core."""
    lanes = form.tile.lanes
    squares = form.blocks * form.rows
    width = form.weight_elements / (form.points * form.channels)
    products = form.points * squares * form.channels * width / (2 * lanes)
    vectors = form.depth / lanes + width / lanes
    weights = form.weight_elements * STORAGE_BYTES["f32"]
    if not form.shared:
        weights *= form.blocks / 4  # some of it is still in the cache
    arriving = max(products, weights / BYTES_A_CYCLE)
    return arriving + vectors * squares * TRANSFORMS[form.side] / 2


def _direct_cycles(form: Winograd) -> float:
    """Cycles of one core for the direct form."""
    products = KERNEL**2 * form.batch * prod(form.result) * form.channels * form.out
    return products / (2 * form.tile.lanes * DIRECT)


def _rounded(count: int, step: int) -> int:
    return -(-count // step) * step
