"""The gradient of a convolution towards its weight: a product of matrices over all pixels of all images.

Its result is small and its sums are long, so these are cut into parts that workgroups sum at the same time; a second dispatch adds the parts up, always in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....graph import dtypes
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.strided import Strided
from ...ir.index import Number
from ...ir.registers import Registers
from ...problems.conv import patches_of
from ..builder import Memory, Value
from ..dispatch import Dispatch, Written
from ..elements import ThreadElements
from ..machine import Machine
from .epilogue import Finish, added_up, split_parts, words_of
from .plan import Products, cut_of
from .tile import Share, Source, Tiles

FAR = 1 << 30
"""Further than any axis is long."""


class Product:
    """What a workgroup computes of [channels of the result, channels and taps] and what of the sums."""

    def __init__(self, e: ThreadElements, tiles: Tiles, main: Node, parts: int, steps: int) -> None:
        self.e, self.tiles = e, tiles
        self.patches = patches = patches_of(main)
        self.taps = prod(patches.kernel)
        self.rows = int(main.shape[0]) // patches.groups
        self.columns = patches.channels * self.taps
        self.length = patches.batch * patches.pixels
        tile, places = tiles.tile, e.places
        across, down = ceil_div(self.columns, tile.columns), ceil_div(self.rows, tile.rows)
        grid = [parts, patches.groups, across, down]
        self.workgroups = prod(grid)
        self.part, self.group, column, row = places.split(e.builder.group, grid)
        self.first_row = places.mul(row, tile.rows)
        self.first_column = places.mul(column, tile.columns)
        self.range = split_parts(e, self.part, parts, steps, ceil_div(self.length, tile.depth))

    def pixel(self, step: Number, depth: Number) -> tuple[list[Number], Value | None]:
        """The image and pixel of a row of a step, and whether there is one (None: always)."""
        places, depths = self.e.places, self.tiles.tile.depth
        k = places.add(places.mul(step, depths), depth)
        exists = None
        if self.length % depths:
            exists = places.compare("<", k, self.length)
        return places.split(k, [self.patches.batch, *self.patches.result]), exists


class GradientRows:
    """Brings gradients into shared memory: neighbouring threads those of neighbouring pixels."""

    def __init__(self, product: Product, memory: Memory, seen: Strided) -> None:
        self.product, self.memory, self.seen, self.e = product, memory, seen, product.e
        self.share = Share(product.tiles, product.tiles.rows, product.tiles.tile.rows, deep=True)

    def fetch(self, step: Value) -> None:
        product, share, places = self.product, self.share, self.e.places
        patches = product.patches
        (image, *pixel), exists = product.pixel(step, share.depths[0])
        first = places.add(places.mul(product.group, product.rows), product.first_row)
        channels = patches.groups * product.rows
        plane = places.add(places.mul(image, channels), first)
        begin = places.add(places.mul(plane, patches.pixels), places.offset(pixel, patches.result))
        begin = places.add(begin, self.seen.offset)
        whole = product.rows % product.tiles.tile.rows == 0
        own = places.add(product.first_row, share.first)
        begin = places.add(begin, places.mul(share.first, patches.pixels))
        for shift, register in zip(share.shifts, share.registers, strict=True):
            row = None if whole else places.compare("<", places.add(own, shift), product.rows)
            at = places.add(begin, shift * patches.pixels)
            inside = self.e.registers.both(exists, row)
            product.tiles.load(self.e, register, Source(self.memory, at, inside))

    def put(self) -> None:
        self.share.put()


class PatchColumns:
    """Brings patches into shared memory: each thread those of one pixel, for several channels and taps."""

    def __init__(self, product: Product, memory: Memory, seen: Strided) -> None:
        self.product, self.memory, self.seen, self.e = product, memory, seen, product.e
        tile, b, places = product.tiles.tile, self.e.builder, self.e.places
        patches = product.patches
        # For each column of the tile how far from a pixel its tap lies, in memory and along each axis.
        self.taps = b.shared(dtypes.u32, tile.columns, "column_taps", width=4)
        with b.for_(b.local, tile.columns, tile.threads) as i:
            column = places.add(product.first_column, i)
            channel, *taps = places.split(column, [patches.channels, *patches.kernel])
            moved = [
                places.mul(tap, delta) for tap, delta in zip(taps, patches.deltas, strict=True)
            ]
            far = places.add(places.mul(channel, patches.area), places.offset(moved, patches.sizes))
            parts = [places.value(part) for part in (far, *moved, *[0] * (3 - len(moved)))]
            # A column that does not exist is outside in every pixel.
            parts[1] = b.choose(places.value(column) < product.columns, parts[1], FAR)
            self.taps[i] = b.vector(parts)
        b.barrier()
        self.guarded = [self._may_be_outside(axis) for axis in range(len(patches.sizes))]
        self.guarded[0] |= product.columns % tile.columns != 0
        self.share = Share(product.tiles, product.tiles.columns, tile.columns, deep=True)

    def _may_be_outside(self, axis: int) -> bool:
        patches = self.product.patches
        taps = patches.phases[0].axes[axis]
        last = (taps.pixels - 1) * patches.steps[axis] + (taps.count - 1) * patches.deltas[axis]
        return taps.offset < 0 or taps.offset + last >= patches.sizes[axis]

    def fetch(self, step: Value) -> None:
        e, product, share, places = self.e, self.product, self.share, self.e.places
        patches = product.patches
        (image, *pixel), exists = product.pixel(step, share.depths[0])
        corner = [
            places.add(places.mul(i, stride), taps.offset)
            for i, stride, taps in zip(pixel, patches.steps, patches.phases[0].axes, strict=True)
        ]
        first = places.mul(product.group, patches.channels * patches.area)
        begin = places.add(places.mul(image, patches.image), first)
        begin = places.add(
            places.add(begin, places.offset(corner, patches.sizes)), self.seen.offset
        )
        for place, register in zip(share.places, share.registers, strict=True):
            taps, inside = self.taps[place], exists
            for axis, size in enumerate(patches.sizes):
                if self.guarded[axis]:
                    own = places.add(corner[axis], taps[axis + 1])
                    hit = e.builder.icmp_unsigned("<", places.plain(own), places.plain(size))
                    inside = e.registers.both(inside, hit)
            at = places.add(begin, taps.x)
            product.tiles.load(e, register, Source(self.memory, at, inside))

    def put(self) -> None:
        self.share.put()


def write(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The kernel of ``conv_weight_grad``."""
    patches = patches_of(main)
    kept = Registers.kept_in(main.dtype)
    rows = int(main.shape[0]) // patches.groups
    columns = patches.channels * prod(patches.kernel)
    length = patches.batch * patches.pixels
    # The columns' taps stand in shared memory too, 16 bytes each.
    cut = cut_of(Products(rows, [columns], length, patches.groups, kept, 1), machine, 16 * 128)
    together = words_of(spec)
    if columns % together:
        together = 1
    dispatch = Dispatch(spec, machine, threads=cut.tile.threads, whole=together > 1)
    tiles = Tiles(dispatch, cut.tile, kept, 1)
    finish = Finish(dispatch, main, cut.parts, 0, together)
    e = finish.elements
    product = Product(e, tiles, main, cut.parts, cut.steps)
    images, gradients = (dispatch.operand(view.base) for view in seen)
    tiles.run(
        *product.range,
        [GradientRows(product, gradients, seen[1]), PatchColumns(product, images, seen[0])],
    )
    shape = [int(size) for size in main.shape[1:]]

    def before(column: Value) -> tuple[list[list[Number]], Value]:
        whole = e.places.add(product.first_column, column)
        found = [e.places.split(e.places.add(whole, k), shape) for k in range(together)]
        return found, e.places.compare("<", whole, columns)

    def write_row(found: tuple[list[list[Number]], Value], row: Value, values: list[Value]) -> None:
        others, exists = found
        own = e.places.add(product.first_row, row)
        if rows % cut.tile.rows:
            exists = e.registers.both(exists, e.places.compare("<", own, rows))
        channel = e.places.add(e.places.mul(product.group, rows), own)
        with dispatch.builder.if_(exists):
            finish.write([[channel, *other] for other in others], values, product.part)

    tiles.give(together, before, write_row, e)
    stages = [dispatch.finish(product.workgroups)]
    return added_up(stages, spec, machine, main, cut.parts, 0)
