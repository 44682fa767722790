"""A vector of pixels and the splats of their tile: what both directions of blending have in common.

The features of all splats are copied to scratch memory first, a line of cache each, with the least exponent at which a splat still counts. Threads claim tiles; a vector of
pixels has its light in registers while it goes through the list of its tile, and ends where none of its pixels takes more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, log

from ....codegen.ir.emit import broadcast, maximum, minimum
from ....codegen.ir.index import Index, IndexMath, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Builder, Pointer, Value
from ....codegen.problems.splats import CLOSE, FEATURES, BlendProblem
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ..emit.template import Code
from ..emit.vectors import Source, each, moved, sweep

LINE = 4 * FEATURES
"""Bytes of a splat's features."""


def table_bytes(problem: BlendProblem) -> int:
    """Scratch memory for the features of all splats and their least exponents."""
    return LINE * problem.rows + round_up(4 * problem.rows, 64)


@dataclass(frozen=True)
class Pixels:
    """A vector of pixels of one tile.

    Attributes:
        lead: the picture, by its index in the batch.
        picture: its number.
        u: how far to the right of the middle each pixel is.
        v: how far below it.
        number: of each pixel in its picture, 64 bits.
        inside: which of them there are.
        first: the first entry of the tile's list.
        last: what comes after its last.
    """

    lead: Sequence[Index]
    picture: Value
    u: Lane
    v: Lane
    number: Value
    inside: Lane
    first: Value
    last: Value


@dataclass(frozen=True)
class Meeting:
    """A splat as the rays of pixels meet it.

    Attributes:
        row: of the splat in the table.
        rays: the direction of each pixel in the splat.
        nearest: where the ray is nearest to its middle.
        depth: where that is along the ray.
        power: the exponent there.
    """

    row: Value
    rays: Sequence[Lane]
    nearest: Sequence[Lane]
    depth: Lane
    power: Lane


class Blending:
    """The code of a kernel that goes through lists for each pixel."""

    def __init__(self, code: Code, node: Node) -> None:
        self.code, self.node, self.b = code, node, code.builder
        self.problem = BlendProblem.of(node)
        self.registers = Registers(code.builder)
        self.lanes = code.machine.vector_bytes // 4
        features, lists = node.operands[:2]
        self.features = Source(code, features, features.rank - 1)
        self.lists = Source(code, lists, lists.rank - 1)
        self.limits = moved(code.builder, code.shared, LINE * self.problem.rows)

    # ------------------------------------------------------------- numbers

    def number(self, value: float, dtype: DType = dtypes.f32) -> Lane:
        """A number in every lane."""
        return Lane(self.b, self.registers.constant(value, dtype, self.lanes))

    def spread(self, value: Value) -> Lane:
        """A value in every lane."""
        return Lane(self.b, broadcast(self.b, value, self.lanes))

    def feature(self, row: Value, k: int) -> Lane:
        """A feature of a splat, in every lane."""
        at = self.b.add(self.b.mul(row, i64(FEATURES)), i64(k))
        return self.spread(self.registers.load(self.code.shared, at, dtypes.f32))

    def lead(self, picture: Value) -> Sequence[Index]:
        """The index of a picture in the batch."""
        if not self.problem.lead:
            return []
        return self.code.indices.split(picture, self.problem.lead)

    # ------------------------------------------------------------- the table

    def fill_table(self) -> None:
        """Copy the features of all splats, and find the least exponent of each."""
        b, problem = self.b, self.problem

        def copy(row: Value) -> None:
            picture = b.udiv(row, i64(problem.splats))
            index = [*self.lead(picture), b.urem(row, i64(problem.splats))]
            start = b.mul(row, i64(FEATURES))

            def columns(column: Index, width: int) -> None:
                value = self.features.at(index, column, width)
                at = self.code.indices.add(start, column)
                self.registers.store(value, self.code.shared, at, dtypes.f32)

            sweep(b, 0, FEATURES, self.features.lanes(FEATURES), columns)
            cover = Lane(b, self.features.at(index, 12))
            least = cover.constant(-3e38)
            if problem.cutoff > 0:
                least = log(problem.cutoff) - CLOSE - cover.log()
            least = (cover > 0.0).choose(least, cover.constant(inf))
            self.registers.store(least.value, self.limits, row, dtypes.f32)

        if problem.rows:
            self.code.each(problem.rows, copy)

    # ------------------------------------------------------------- pixels of tiles

    def for_pixels(self, body: Callable[[Pixels], None]) -> None:
        """``body`` for every vector of pixels of the tiles that this thread claims."""
        b, grid, problem = self.b, self.problem.grid, self.problem
        vectors = ceil_div(problem.square, self.lanes)

        def tile(piece: Value) -> None:
            picture, number = b.udiv(piece, i64(grid.tiles)), b.urem(piece, i64(grid.tiles))
            lead = self.lead(picture)
            first, last = (
                self.edge(lead, b.add(b.mul(number, i64(2)), i64(problem.entries + k)))
                for k in range(2)
            )

            def vector(k: Value) -> None:
                pixels = self._pixels(picture, number, b.mul(k, i64(self.lanes)), (first, last))
                with b.if_then(pixels.inside.any().value):
                    body(pixels)

            each(b, 0, vectors, vector)

        self.code.claims.each(problem.tiles, tile)

    def edge(self, lead: Sequence[Index], place: Value) -> Value:
        """Where a list begins or ends: within what there is."""
        found = self.lists.integer(lead, place)
        least = maximum(self.b, found, i64(0))
        return minimum(self.b, least, i64(self.problem.entries))

    def _pixels(
        self, picture: Value, tile: Value, start: Value, ends: tuple[Value, Value]
    ) -> Pixels:
        b, grid = self.b, self.problem.grid
        lanes, side = self.lanes, grid.tile_size
        own = IndexMath(b).vector(start, lanes)
        steps = self.registers.constant(0, dtypes.i64, lanes)
        within = Lane(b, b.add(own, _counting(steps)))
        across = within.constant(side)
        row, column = within.divided(across, signed=False), within
        column = within - row * side
        x = column + self.spread(b.mul(b.urem(tile, i64(grid.across)), i64(side)))
        y = row + self.spread(b.mul(b.udiv(tile, i64(grid.across)), i64(side)))
        inside = (x < grid.width) & (y < grid.height) & (within < self.problem.square)
        u = x.resized(32, signed=True).to_float(32, signed=True) + (0.5 - grid.width / 2)
        v = y.resized(32, signed=True).to_float(32, signed=True) + (0.5 - grid.height / 2)
        number = y * grid.width + x
        lead = self.lead(picture)
        return Pixels(lead, picture, u, v, number.value, inside, *ends)

    # ------------------------------------------------------------- splats and pixels

    def row_of(self, pixels: Pixels, entry: Value) -> tuple[Value, Value]:
        """The row of an entry's splat, and whether there is such a splat; the first row where there is not."""
        b, problem = self.b, self.problem
        found = self.lists.integer(pixels.lead, entry)
        known = b.icmp_unsigned("<", found, i64(problem.splats))
        number = b.select(known, found, i64(0))
        return b.add(b.mul(pixels.picture, i64(problem.splats)), number), known

    def rays(self, pixels: Pixels, row: Value) -> list[Lane]:
        """The direction of each pixel in a splat."""
        return [
            pixels.u.fma(
                self.feature(row, 3 + k),
                pixels.v.fma(self.feature(row, 6 + k), self.feature(row, 9 + k)),
            )
            for k in range(3)
        ]

    def meet(self, pixels: Pixels, row: Value) -> Meeting:
        """A splat as the rays of pixels meet it."""
        middle = [self.feature(row, k) for k in range(3)]
        rays = self.rays(pixels, row)
        depth = -(_dot(middle, rays) / _dot(rays, rays))
        nearest = [depth.fma(ray, o) for ray, o in zip(rays, middle, strict=True)]
        return Meeting(row, rays, nearest, depth, _dot(nearest, nearest) * -0.5)

    def live(self, left: Lane, steps: Lane) -> Lane:
        """Which pixels take more."""
        return (left >= self.problem.threshold) & (steps < self.problem.steps)

    def started(self, pixels: Pixels) -> Lane:
        """How many splats pixels have hit at first: none, or all that they can where there is no pixel."""
        nothing = self.number(0, dtypes.i32)
        return pixels.inside.choose(nothing, nothing.constant(self.problem.steps))

    def can_hit(self, met: Meeting, live: Lane) -> Lane:
        """Which pixels may be taken from; where none is, nothing more has to be known."""
        least = self.spread(self.registers.load(self.limits, met.row, dtypes.f32))
        return live & (met.depth > 0.0) & (met.power >= least)

    def taken(self, met: Meeting, can: Lane) -> tuple[Lane, Lane]:
        """What a splat takes of each pixel, 0 where it does not hit, and where it does."""
        alpha = self.feature(met.row, 12) * met.power.exp()
        hit = can & (alpha >= self.problem.cutoff) & (alpha > 0.0)
        return hit.choose(alpha, 0.0), hit

    # ------------------------------------------------------------- going through a list

    def through(
        self,
        pixels: Pixels,
        start: Sequence[Value],
        live: Callable[[Sequence[Value]], Lane],
        hit: Callable[[Value, Meeting, Lane, Sequence[Value]], Sequence[Value]],
    ) -> Sequence[Value]:
        """What is carried along the list of a tile: ``hit(entry, met, can, carried)`` for every splat that can be hit, while any pixel is ``live``."""
        b = self.b
        before = b.block
        head, look = b.append_basic_block("entry"), b.append_basic_block("look")
        work, skip = b.append_basic_block("work"), b.append_basic_block("skip")
        done = b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        entry = b.phi(i64(0).type)
        entry.add_incoming(pixels.first, before)
        carried = [b.phi(value.type) for value in start]
        for phi, value in zip(carried, start, strict=True):
            phi.add_incoming(value, before)
        open_ = live(carried)
        more = b.icmp_signed("<", entry, pixels.last)
        b.cbranch(b.and_(more, open_.any().value), look, done)
        b.position_at_end(look)
        row, known = self.row_of(pixels, entry)
        met = self.meet(pixels, row)
        can = self.can_hit(met, open_)
        following = b.add(entry, i64(1))
        b.cbranch(b.and_(known, can.any().value), work, skip)
        b.position_at_end(skip)
        b.branch(head)
        b.position_at_end(work)
        new = hit(entry, met, can, carried)
        ends = b.block
        b.branch(head)
        for block, values in ((skip, carried), (ends, new)):
            entry.add_incoming(following, block)
            for phi, value in zip(carried, values, strict=True):
                phi.add_incoming(value, block)
        b.position_at_end(done)
        return carried


def _counting(like: Value) -> Value:
    """0, 1, 2, ... in the lanes of a vector of integers."""
    from llvmlite import ir

    return ir.Constant(like.type, list(range(like.type.count)))


def _dot(a: Sequence[Lane], b: Sequence[Lane]) -> Lane:
    return a[2].fma(b[2], a[1].fma(b[1], a[0] * b[0]))


def address(builder: Builder, pointer: Pointer, row: Value, size: int) -> Pointer:
    """Where a row of so many bytes begins."""
    return moved(builder, pointer, builder.mul(row, i64(size)))
