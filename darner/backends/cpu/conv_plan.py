"""What a convolution kernel computes, in the one form that the forward pass and both gradients share.

Every one of them reads *patches* of a tensor [batch, channels, *sizes]: for a pixel of a grid and a tap of the kernel, the element at
``pixel * step + offset`` on each axis, or 0 where that lies outside. The gradient towards the input of a strided convolution is several such
problems, one for each phase of the stride: the pixels of a phase are met by the same taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from math import gcd, prod

from ...graph.errors import InternalError
from ...graph.node import Node
from .gemm_ir import STORAGE_BYTES, accumulator_of
from .gemm_tile import Machine, Tile

CONVOLUTIONS = ("conv", "conv_input_grad", "conv_weight_grad")
PANEL_BYTES = 192 << 10
"""Of the cache next to a core: what packed panels may take together."""
MOST_PANELS = 16
"""The most of them: further ones are as good as packed anew."""
ENOUGH = 32
"""Pieces of work that are left for threads to share, however many panels go together."""
LONGEST_BLOCK = 576
"""The most products that one pass over a packed block sums, unless one channel has more."""
MANY_UNITS = 64
"""Pieces of work that make the shares of threads as good as even."""
PACKED, SPACED = 5.0, 6.5
"""Cycles for a piece of a row, of a vector at most, that is packed for one tap of one channel; and for one of elements that lie apart."""
DESCRIBED = 5.0
"""Cycles for writing down what such a piece reads, for all channels."""
FINISHED = 1.5
"""Cycles for a piece of a row on its way to the result."""
SHARED = 60.0
"""Cycles for a line of weights that one thread writes and all read: those that have read it before have to let go of it."""
SCATTERED = 18.0
"""Cycles for such a piece where others come to lie between its pixels."""


@dataclass(frozen=True)
class Taps:
    """What the taps of one axis read in one phase.

    Attributes:
        pixels: how many pixels the phase has.
        start: the first of them, in the result.
        count: how many taps meet them.
        offset: where the first tap reads; each next one ``Patches.deltas`` further.
        kernel: the number of the first tap in the kernel; each next one ``Patches.spacing`` further.
    """

    pixels: int
    start: int
    count: int
    offset: int
    kernel: int


@dataclass(frozen=True)
class Phase:
    """The taps of all axes in one phase."""

    axes: tuple[Taps, ...]

    @property
    def pixels(self) -> int:
        """Pixels of one image."""
        return prod(axis.pixels for axis in self.axes)

    @property
    def taps(self) -> int:
        """Taps that meet each of them."""
        return prod(axis.count for axis in self.axes)


@dataclass(frozen=True)
class Patches:
    """The patches of a tensor [batch, groups * channels, *sizes].

    Attributes:
        channels: of one group.
        steps: between the patches of neighbouring pixels, for each axis.
        deltas: between neighbouring taps of a phase.
        spacing: between their numbers in the kernel.
        kernel: its sizes.
        phases: what pixels there are.
        result: the spatial sizes of what is computed for the pixels.
        strides: between neighbouring pixels of a phase, in the result.
    """

    batch: int
    groups: int
    channels: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    deltas: tuple[int, ...]
    spacing: tuple[int, ...]
    kernel: tuple[int, ...]
    phases: tuple[Phase, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def area(self) -> int:
        """Elements of one channel."""
        return prod(self.sizes)

    @property
    def image(self) -> int:
        """Elements of one image."""
        return self.groups * self.channels * self.area

    @property
    def pixels(self) -> int:
        """Elements of one channel of the result."""
        return prod(self.result)

    @property
    def most_taps(self) -> int:
        """Taps of the phase that has most."""
        return max(phase.taps for phase in self.phases)

    @property
    def most_columns(self) -> int:
        """Pixels of all images in the phase that has most."""
        return self.batch * max(phase.pixels for phase in self.phases)

    @property
    def is_plain(self) -> bool:
        """Whether every pixel reads its own element alone: a product of matrices."""
        return all(size == 1 for size in self.kernel) and not any(
            step > 1 or stride > 1 for step, stride in zip(self.steps, self.strides, strict=True)
        )

    def segments(self, columns: int, lanes: int) -> int:
        """The most pieces of rows, of ``lanes`` pixels at most, that so many neighbouring pixels consist of."""
        most = 0
        for phase in self.phases:
            row = phase.axes[-1].pixels
            most = max(most, -(-columns // row) + 2 + columns // lanes)
        return most


def patches_of(node: Node) -> Patches:
    """The patches that a convolution or one of its gradients reads.

    The gradient towards the weight reads those of the forward pass.
    """
    attrs = node.attrs
    stride, padding, dilation = attrs["stride"], attrs["padding"], attrs["dilation"]
    groups = int(attrs["groups"])
    source = node.operands[0]
    sizes = [int(size) for size in source.shape[2:]]
    backward = node.op.name == "conv_input_grad"
    kernel = [
        int(k) for k in (attrs["kernel"] if "kernel" in attrs else node.operands[1].shape[2:])
    ]
    if node.op.name == "conv_weight_grad":
        result = [int(size) for size in node.operands[1].shape[2:]]
    else:
        result = [int(size) for size in node.shape[2:]]
    axes = []
    for axis, low_high in enumerate(padding):
        settings = int(stride[axis]), int(low_high[0]), int(low_high[1]), int(dilation[axis])
        axes.append((sizes[axis], result[axis], kernel[axis], *settings))
    found = [_axis(backward, *axis) for axis in _merged(axes)]
    return Patches(
        batch=int(source.shape[0]),
        groups=groups,
        channels=int(source.shape[1]) // groups,
        sizes=tuple(axis.size for axis in found),
        steps=tuple(axis.step for axis in found),
        deltas=tuple(axis.delta for axis in found),
        spacing=tuple(axis.spacing for axis in found),
        kernel=tuple(axis.kernel for axis in found),
        phases=tuple(Phase(taps) for taps in product(*(axis.phases for axis in found))),
        result=tuple(axis.result for axis in found),
        strides=tuple(axis.stride for axis in found),
    )


def _merged(axes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Neighbouring axes that a kernel of size 1 goes along one by one, as one axis."""
    found: list[tuple[int, ...]] = []
    for size, result, kernel, stride, low, high, dilation in axes:
        trivial = (kernel, stride, low, high) == (1, 1, 0, 0)
        if trivial and found and found[-1][2:6] == (1, 1, 0, 0):
            merged = found[-1][0] * size
            found[-1] = (merged, merged, 1, 1, 0, 0, 1)
        else:
            found.append((size, result, kernel, stride, low, high, dilation))
    return found


@dataclass(frozen=True)
class _Axis:
    size: int
    result: int
    kernel: int
    step: int
    delta: int
    spacing: int
    stride: int
    phases: tuple[Taps, ...]


def _axis(
    backward: bool,
    size: int,
    result: int,
    kernel: int,
    stride: int,
    low: int,
    high: int,
    dilation: int,
) -> _Axis:
    if not backward:
        taps = Taps(result, 0, kernel, -low, 0)
        return _Axis(size, result, kernel, stride, dilation, 1, 1, (taps,))
    # The tap k meets pixel y at (y + low - k * dilation) / stride, where that is whole.
    spacing = stride // gcd(stride, dilation)
    phases = []
    for start in range(min(stride, result)):
        met = [k for k in range(kernel) if (start + low - k * dilation) % stride == 0]
        first = met[0] if met else 0
        offset = (start + low - first * dilation) // stride if met else 0
        phases.append(Taps(-(-(result - start) // stride), start, len(met), offset, first))
    delta = -(spacing * dilation // stride)
    return _Axis(size, result, kernel, 1, delta, spacing, stride, tuple(phases))


@dataclass(frozen=True)
class Cut:
    """How the product of a matrix with patches is cut for a machine.

    Attributes:
        tile: rows and columns kept in registers.
        rows: rows of the product, in one group.
        channels: how many are packed together.
        panels: of the tile's width, in the phase that has most.
        parts: how many pieces the rows are cut into, for threads to share.
        height: rows of a piece.
        together: panels that are packed, and used with the same rows, together; more than one only where all channels are packed at a time.
        cycles: that two threads would take.
    """

    tile: Tile
    rows: int
    channels: int
    panels: int
    parts: int
    height: int
    together: int
    cycles: float

    @property
    def sections(self) -> int:
        """Groups of panels."""
        return -(-self.panels // self.together)

    def units(self, patches: Patches) -> int:
        """Pieces of work that threads share out."""
        return len(patches.phases) * patches.groups * self.sections * self.parts


def tiles_of(machine: Machine, dtype: str) -> list[Tile]:
    """The tiles that fill a machine's registers well, of different widths."""
    lanes = machine.vector_bytes // STORAGE_BYTES[accumulator_of(dtype)]
    shapes = ((6, 2), (4, 3)) if machine.vector_bytes == 32 else ((8, 3), (6, 4))
    return [Tile(rows, vectors, lanes) for rows, vectors in shapes]


def tile_cycles(rows: int, vectors: int, rate: int = 2) -> float:
    """Cycles of one product for every element of a tile: ``rate`` can be added at a time, and two be read."""
    return max(rows * vectors / rate, (rows + vectors) / 2, 4)


def shared(cycles: float, units: int) -> float:
    """Cycles until two threads are done that share so many equal pieces of work."""
    return cycles / 2 if units >= MANY_UNITS else cycles / units * -(-units // 2)


def uneven(rows: int, parts: int, height: int) -> float:
    """How much more than its half the first of two threads has that share so many parts of rows, one after the other."""
    return 1.0 if parts % 2 else 2 * min(rows, parts // 2 * height) / rows


def rows_cycles(rows: int, tile: Tile, cycles: Callable[[int, int], float]) -> float:
    """Cycles of one product for every element of some rows of a tile's width; ``cycles`` says those of a tile."""
    full, rest = divmod(rows, tile.rows)
    return full * cycles(tile.rows, tile.vectors) + (cycles(rest, tile.vectors) if rest else 0.0)


def pieces_of(columns: float, row: int, tile: Tile) -> float:
    """Pieces of rows that so many neighbouring pixels consist of, in panels as wide as a tile."""
    return (
        max(columns / row * -(-row // tile.lanes), columns / tile.lanes) + columns / tile.width / 2
    )


def _cycles(patches: Patches, rows: int, tile: Tile, parts: int, rate: int) -> float:
    """Cycles that two threads take with the rows in so many parts: each packs patches by itself."""
    total = 0.0
    work = rows_cycles(rows, tile, partial(tile_cycles, rate=rate))
    packed = SPACED if patches.steps[-1] > 1 else PACKED
    finished = FINISHED if len(patches.phases) == 1 else SCATTERED
    for phase in patches.phases:
        columns = -(-patches.batch * phase.pixels // tile.lanes) * tile.lanes
        pieces = pieces_of(columns, phase.axes[-1].pixels, tile)
        each = columns / tile.width * work + parts * pieces * packed
        total += phase.taps * (patches.channels * each + parts * pieces * DESCRIBED)
        total += rows * pieces * finished
    panels = -(-patches.most_columns // tile.width)
    units = len(patches.phases) * patches.groups * panels * parts
    if units == panels and panels % 2 == 0:
        # One thread has the first half of the panels, and those are whole.
        vectors = -(-patches.most_columns // tile.lanes)
        total *= panels * tile.vectors / vectors
    return shared(patches.groups * total, max(1, units))


def cut(
    patches: Patches,
    rows: int,
    dtype: str,
    machine: Machine,
    copied: Callable[[int, int], float],
) -> Cut:
    """Choose tiles, blocks and pieces: those that two threads would be done with first.

    ``copied(lanes, parts)`` says what copying the weights takes with the rows in so many parts.
    """
    columns = patches.most_columns
    best: Cut | None = None
    for tile in tiles_of(machine, dtype):
        panels = max(1, -(-columns // tile.width))
        tiles = -(-rows // tile.rows)
        for parts in sorted({min(parts, tiles) for parts in (1, 2, 4, 8, 16)}):
            each = -(-tiles // parts)
            parts = -(-tiles // each)
            cycles = _cycles(patches, rows, tile, parts, machine.multiplies)
            cycles *= uneven(rows, parts, each * tile.rows)
            cycles += copied(tile.lanes, parts)
            if best is None or cycles < best.cycles * 0.98:
                best = Cut(tile, rows, 1, panels, parts, each * tile.rows, 1, cycles)
    if best is None:
        raise InternalError(f"no tiles for vectors of {machine.vector_bytes} bytes")
    found = best
    taps = max(1, patches.most_taps)
    blocks = max(1, -(-patches.channels * taps // LONGEST_BLOCK))
    block = -(-patches.channels // min(blocks, patches.channels))
    together = 1
    if block == patches.channels:
        panel = block * taps * found.tile.width * STORAGE_BYTES[accumulator_of(dtype)]
        pieces = len(patches.phases) * patches.groups * found.panels * found.parts
        together = max(1, min(MOST_PANELS, PANEL_BYTES // panel, pieces // ENOUGH))
    return replace(found, channels=block, together=together)
