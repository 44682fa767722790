"""Images laid out so that every tap of a kernel reads them at a fixed offset: rows one after the other, with zeros between them.

Each pixel of any image has a position, and the element that a tap reads there lies at that position plus an offset of the tap. A row's zeros serve both
sides: what is read before a row lies behind the row before. Where pixels are several elements apart, each phase of the stride is a plane of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ....codegen.ir.emit import (
    accumulator_of,
    constant_words,
    ir,
    lane_mask,
    lane_numbers,
    load,
    loop,
    maximum,
    minimum,
    offset,
    store,
)
from ....codegen.ir.index import Index, IndexMath, i64
from ....codegen.ir.types import Builder, LoopBody, Pointer, Value
from ....codegen.problems.conv import Patches, Taps
from ....graph.integers import ceil_div
from .pack import unravelled, walk

TOGETHER = 8
"""Channels that are copied by one walk along the rows."""
MOST_PLANES = 9
"""Phases of a stride that there is code for: that of each is written out."""
COPIED = 6.0
"""Cycles for a vector of a row that is copied to its place, whether its elements lie side by side or not; twice as many where half a vector is multiplied, and moved, at a time."""


@dataclass(frozen=True)
class Plane:
    """Elements of a channel that are ``steps`` apart, from ``starts`` on: ``sizes`` of them on each axis."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """The places of the patches that a convolution reads, or its gradient towards the input.

    Attributes:
        pitches: places that each axis has, its zeros included.
        planes: the phases of the source that taps meet.
        taps: for each phase of the result, and each tap that meets its pixels, the plane of the tap, and its distance from a place.
        before: the most that a tap lies before its pixel.
        behind: the most that one lies behind.
    """

    pitches: tuple[int, ...]
    planes: tuple[Plane, ...]
    taps: tuple[tuple[tuple[int, int], ...], ...]
    before: int
    behind: int

    @property
    def possible(self) -> bool:
        """Whether there is code for it."""
        return len(self.planes) <= MOST_PLANES

    @property
    def image(self) -> int:
        """Places of one image."""
        return prod(self.pitches)

    @property
    def halo(self) -> int:
        """Places that are read around those of some pixels."""
        return self.before + self.behind

    def plane_cycles(self, places: float, lanes: int, rate: int) -> float:
        """Cycles for copying so many places of a plane, row by row, where ``rate`` vectors are multiplied in one."""
        row = self.pitches[-1]
        return max(places / row * ceil_div(row, lanes), places / lanes) * COPIED * 2 / rate


def grid_of_planes(patches: Patches) -> Grid:
    """The smallest grid in which no tap meets another row's elements; pixels of all phases share their places.

    >>> from types import SimpleNamespace
    >>> phase = SimpleNamespace(axes=[Taps(pixels=5, start=0, count=3, offset=-1, kernel=0)])
    >>> row = dict(sizes=(5,), steps=(1,), deltas=(1,), result=(5,), phases=[phase])
    >>> grid_of_planes(SimpleNamespace(**row)).pitches  # one zero between two rows serves both
    (6,)
    """
    pitches = []
    met: list[dict[Taps, list[tuple[int, int]]]] = []
    for axis, (size, step) in enumerate(zip(patches.sizes, patches.steps, strict=True)):
        own: dict[Taps, list[tuple[int, int]]] = {}
        pitch = 0
        for taps in dict.fromkeys(phase.axes[axis] for phase in patches.phases):
            own[taps] = []
            pitch = max(pitch, taps.pixels)
            for tap in range(taps.count):
                distance, start = divmod(taps.offset + tap * patches.deltas[axis], step)
                own[taps].append((start, distance))
                count = _count(size, start, step)
                pitch = max(pitch, count, count - distance, taps.pixels + distance)
        pitches.append(pitch)
        met.append(own)
    strides = [prod(pitches[axis + 1 :]) for axis in range(len(pitches))]
    axes = (sorted({start for found in own.values() for start, _ in found}) for own in met)
    starts = sorted(product(*axes))
    planes = tuple(
        Plane(
            start,
            patches.steps,
            tuple(map(_count, patches.sizes, start, patches.steps)),
        )
        for start in starts
    )
    taps_of = []
    for phase in patches.phases:
        found = []
        for one in product(*(own[taps] for own, taps in zip(met, phase.axes, strict=True))):
            distance = sum(d * stride for (_, d), stride in zip(one, strides, strict=True))
            found.append((starts.index(tuple(start for start, _ in one)), distance))
        taps_of.append(tuple(found))
    distances = [0, *(distance for found in taps_of for _, distance in found)]
    return Grid(tuple(pitches), planes, tuple(taps_of), -min(distances), max(distances))


def _count(size: int, start: int, step: int) -> int:
    """Elements from ``start`` on, ``step`` apart."""
    return max(0, ceil_div(size - start, step))


def write_distances(
    builder: Builder, grid: Grid, channels: int, plane: int, table: Pointer
) -> None:
    """Write down where the taps of some channels begin, behind the first place of the first channel's first plane.

    Args:
        builder: where the code goes.
        grid: the places.
        channels: how many.
        plane: the distance of two planes; a channel's are one after the other.
        table: memory for a 64-bit number for each tap of each channel, those of one phase after those of another.
    """
    word = ir().IntType(64)
    before = 0
    for phase in grid.taps:
        own = [number * plane + grid.before + distance for number, distance in phase]
        taps = constant_words(builder, "darner.taps", own)
        first = before * channels
        before += len(own)

        def channel(
            number: Value,
            _: Sequence[Value],
            taps: Pointer = taps,
            count: int = len(own),
            first: int = first,
        ) -> None:
            start = builder.mul(number, i64(len(grid.planes) * plane))
            row = builder.add(builder.mul(number, i64(count)), i64(first))

            def emit_tap(tap: Value, _: Sequence[Value]) -> None:
                value = builder.load(builder.gep(taps, [tap], source_etype=word), typ=word)
                address = builder.gep(table, [builder.add(row, tap)], source_etype=word)
                builder.store(builder.add(start, value), address)

            loop(builder, i64(0), i64(count), 1, emit_tap)

        if own:
            loop(builder, i64(0), i64(channels), 1, channel)


@dataclass(frozen=True)
class Channels:
    """Elements of some channels, which are copied.

    Attributes:
        plane: which elements of a channel.
        sizes: of a channel.
        image: elements of an image.
        start: the first channel's.
    """

    plane: Plane
    sizes: tuple[int, ...]
    image: int
    start: Pointer


class Copier:
    """Copies the elements of some places, and zeros where there are none.

    Args:
        builder: where the code goes.
        grid: the places.
        batch: images.
        dtype: how the source is stored; what is copied is of its accumulator.
        lanes: of a vector of the accumulator.
    """

    def __init__(self, builder: Builder, grid: Grid, batch: int, dtype: str, lanes: int) -> None:
        self.builder, self.grid, self.batch = builder, grid, batch
        self.dtype, self.lanes = dtype, lanes

    def copy(
        self,
        source: Channels,
        channels: Value,
        places: tuple[Value, int],
        target: Pointer,
        pitch: int,
    ) -> None:
        """Copy some places of ``channels`` channels.

        Args:
            source: which elements, of what.
            channels: how many; a number of the code.
            places: the first, which may lie before the first image; how many.
            target: of the first channel.
            pitch: between channels there. A vector of spare room lies behind the last place.
        """
        builder = self.builder
        whole = builder.mul(builder.udiv(channels, i64(TOGETHER)), i64(TOGETHER))
        area = prod(source.sizes)

        def copy_several(together: int) -> LoopBody:
            def body(channel: Value, _: Sequence[Value]) -> None:
                first = offset(builder, source.start, self.dtype, builder.mul(channel, i64(area)))
                to = offset(
                    builder, target, accumulator_of(self.dtype), builder.mul(channel, i64(pitch))
                )
                own = replace(source, start=first)
                self._rows(own, together, places, to, pitch)

            return body

        loop(builder, i64(0), whole, TOGETHER, copy_several(TOGETHER))
        loop(builder, whole, channels, 1, copy_several(1))

    def _rows(
        self,
        source: Channels,
        together: int,
        places: tuple[Value, int],
        target: Pointer,
        pitch: int,
    ) -> None:
        builder, lanes, grid = self.builder, self.lanes, self.grid
        plane, sizes = source.plane, source.sizes
        numbers = IndexMath(builder)
        accumulator = accumulator_of(self.dtype)
        # Counted from the image before the first, so that none is negative.
        start = builder.add(places[0], i64(grid.image))
        end = builder.add(start, i64(places[1]))
        step, area = plane.steps[-1], prod(sizes)

        def row(address: Value, held: Value) -> tuple[Value, Value]:
            number, index = unravelled(builder, address, grid.pitches)
            column = i64(index[-1])
            length = builder.sub(i64(grid.pitches[-1]), column)
            length = minimum(builder, length, builder.sub(end, address))
            number = builder.sub(i64(number), i64(1))
            inside = builder.icmp_unsigned("<", number, i64(self.batch))
            at: Index = 0
            for axis, one in enumerate(index):
                if axis < len(index) - 1:
                    valid = builder.icmp_signed("<", i64(one), i64(plane.sizes[axis]))
                    inside = builder.and_(inside, valid)
                own = numbers.add(plane.starts[axis], numbers.mul(one, plane.steps[axis]))
                at = numbers.add(numbers.mul(at, sizes[axis]), own)
            at = numbers.add(at, builder.mul(number, i64(source.image)))
            # Where there is no such row, some other is not read: outside of memory that takes a microsecond.
            at = builder.select(inside, i64(at), i64(0))
            left = builder.sub(i64(plane.sizes[-1]), column)
            left = builder.select(inside, maximum(builder, left, i64(0)), i64(0))
            to = builder.sub(address, start)

            def vector(done: Value, _: Sequence[Value]) -> None:
                count = builder.sub(left, done)
                here = numbers.add(at, numbers.mul(done, step))
                values = []
                for channel in range(together):
                    read = offset(builder, source.start, self.dtype, here, channel * area)
                    values.append(self._load(read, count, step))
                for channel, value in enumerate(values):
                    write = offset(builder, target, accumulator, to, done, channel * pitch)
                    # What goes past the row's end is written again with the next.
                    store(builder, value, write, accumulator)

            loop(builder, i64(0), length, lanes, vector)
            return builder.add(address, length), held

        walk(builder, start, end, row, i64(0))

    def _load(self, at: Pointer, count: Value, step: int) -> Value:
        """Up to ``count`` elements that are ``step`` apart, then zeros."""
        builder, lanes = self.builder, self.lanes
        if step != 2:
            return load(builder, at, self.dtype, lanes, lane_mask(builder, count, lanes), step)
        elements = builder.sub(builder.shl(count, i64(1)), i64(1))
        halves = []
        for half in range(2):
            mask = lane_mask(builder, builder.sub(elements, i64(half * lanes)), lanes)
            read = offset(builder, at, self.dtype, half * lanes)
            halves.append(load(builder, read, self.dtype, lanes, mask))
        return builder.shuffle_vector(halves[0], halves[1], lane_numbers(range(0, 2 * lanes, 2)))
