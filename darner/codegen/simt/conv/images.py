"""Convolutions and their gradients towards the input as products of matrices: channels x pixels, of weights and patches.

Patches are never stored. A thread that brings one pixel's patches into shared memory knows where they begin; each tap is so far from there, and outside the image it is 0. The steps
of the sums go over the channels of one tap after the other, or, where channels are few, over both together. The gradient of a strided convolution is a product for each phase
of the stride, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.strided import Strided
from ...ir.index import Number
from ...ir.registers import Registers
from ..builder import Memory, Value
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import GRANULE, Machine
from .epilogue import Finish, added_up, split_parts, unmerged, words_of
from .plan import Cut, Products, cut_of
from .problem import Place, Problem
from .tile import Share, Source, Tiles

PACKED = 1 << 29
"""Products from which on it pays to bring weights into the order in which tiles read them."""
TABLES = 20 * 16
"""Bytes of the tables of a step, for the longest."""
FAR = 1 << 30
"""Further than any axis is long."""
NONE = (1 << 32) - 1
"""No place in memory."""


class Steps:
    """What the steps of the sums go over: the channels of one tap after the other, or channels and taps together.

    In the second case, where each row of a step reads is found once for all threads, and stands in shared memory.

    Attributes:
        reach: for each row of a step, how far from a pixel's first tap it reads, in memory and along each axis.
        weights: where its weights lie.
    """

    reach: Memory
    weights: Memory

    def __init__(self, tiles: Tiles, place: Place, flat: bool) -> None:
        self.tiles, self.place, self.flat = tiles, place, flat
        self.depth = tiles.tile.depth
        self.channels = place.problem.patches.channels
        self.blocks = ceil_div(self.channels, self.depth)
        if flat:
            b = tiles.builder
            self.reach = b.shared(dtypes.u32, self.depth, "step_taps", width=4)
            self.weights = b.shared(dtypes.u32, self.depth, "step_weights")

    @property
    def count(self) -> Number:
        """How many there are."""
        places = self.place.e.places
        if not self.flat:
            return places.mul(self.place.taps, self.blocks)
        products = places.mul(self.place.taps, self.channels)
        return places.div(places.add(products, self.depth - 1), self.depth)

    @property
    def exact(self) -> bool:
        """Whether all rows of all steps exist."""
        if not self.flat:
            return self.channels % self.depth == 0
        taps = {phase.taps for phase in self.place.problem.patches.phases}
        return all(self.channels * count % self.depth == 0 for count in taps)

    def moved(self, taps: Sequence[Number]) -> list[Number]:
        """How far a tap is from the first of its phase along each axis."""
        places, deltas = self.place.e.places, self.place.problem.patches.deltas
        return [places.mul(tap, delta) for tap, delta in zip(taps, deltas, strict=True)]

    def tap(self, step: Number) -> tuple[list[Number], Number]:
        """The tap of a step, and its first channel; where steps are not flat."""
        places = self.place.e.places
        tap, block = places.div(step, self.blocks), places.mod(step, self.blocks)
        return self.place.split(tap, self.place.counts), places.mul(block, self.depth)

    def exists(self, channel: Number) -> Value | None:
        """Whether there is such a channel; None where that is sure."""
        if self.exact:
            return None
        return self.place.e.places.compare("<", channel, self.channels)

    def prepare(self, step: Number, weight: Callable[[Number, Number], Number]) -> None:
        """Write down what the rows of a step read, where steps are flat: ``weight(channel, tap of the kernel)`` says where weights are."""
        place, places, patches = self.place, self.place.e.places, self.place.problem.patches
        b = self.tiles.builder
        with b.if_(b.local < self.depth):
            k = places.add(places.mul(step, self.depth), b.local)
            taps: Number = place.taps
            if not isinstance(taps, int):
                taps = b.let(b.max(taps, 1))
            channel, rest = place.divided(k, taps)
            own = place.split(rest, place.counts)
            moved = self.moved(own)
            far = places.add(places.mul(channel, patches.area), places.offset(moved, patches.sizes))
            parts = [places.value(part) for part in (far, *moved, *[0] * (3 - len(moved)))]
            at = places.value(weight(channel, place.kernel_tap(own)))
            if not self.exact:
                exists = places.value(channel) < self.channels
                parts[1] = b.choose(exists, parts[1], FAR)
                at = b.choose(exists, at, NONE)
            self.reach[b.local] = b.vector(parts)
            self.weights[b.local] = at


class ImageColumns:
    """Brings patches into shared memory: every thread those of one pixel."""

    def __init__(self, steps: Steps, memory: Memory, seen: Strided) -> None:
        self.tiles, self.place, self.steps, self.memory = steps.tiles, steps.place, steps, memory
        self.e = self.place.e
        problem, places = self.place.problem, self.e.places
        patches, tile = problem.patches, self.tiles.tile
        self.share = Share(self.tiles, self.tiles.columns, tile.columns)
        column = places.add(self.place.first_column, self.share.places[0])
        image, *pixel = self.place.pixel(column)
        # The first tap may lie outside, below 0: numbers without signs are then too large.
        self.corner = [
            places.add(places.mul(i, step), offset)
            for i, step, offset in zip(pixel, patches.steps, self.place.offsets, strict=True)
        ]
        first = places.mul(self.place.group, patches.channels * patches.area)
        base = places.add(places.add(places.mul(image, patches.image), first), seen.offset)
        self.base = places.add(base, places.offset(self.corner, patches.sizes))
        self.guarded = [not problem.never_outside(axis) for axis in range(len(patches.sizes))]
        self.guarded[0] |= steps.flat and not steps.exact
        if any(count % tile.columns for count in problem.columns) or self.place.is_uneven:
            # A column that does not exist is outside in every tap.
            b = self.e.builder
            exists = places.value(column) < self.place.columns
            self.corner[0] = b.let(b.choose(exists, places.value(self.corner[0]), FAR))
            self.guarded[0] = True

    def _is_inside(self, moved: Sequence[Number]) -> Value | None:
        """Whether what is so far from the first tap is inside the image; None where that is sure."""
        e, places = self.e, self.e.places
        found: Value | None = None
        sizes = self.place.problem.patches.sizes
        every = zip(self.corner, moved, sizes, self.guarded, strict=True)
        for corner, far, size, guarded in every:
            if guarded:
                own = places.plain(places.add(corner, far))
                hit = e.builder.icmp_unsigned("<", own, places.plain(size))
                found = hit if found is None else e.builder.and_(found, hit)
        return found

    def fetch(self, step: Value) -> None:
        e, places, steps, share = self.e, self.e.places, self.steps, self.share
        patches = self.place.problem.patches
        if steps.flat:
            for depth, register in zip(share.depths, share.registers, strict=True):
                reach = steps.reach[depth]
                moved = [reach[axis + 1] for axis in range(len(patches.sizes))]
                source = Source(self.memory, places.add(self.base, reach.x), self._is_inside(moved))
                self.tiles.load(e, register, source)
            return
        tap, first = steps.tap(step)
        far = steps.moved(tap)
        inside = self._is_inside(far)
        start = places.add(self.base, places.offset(far, patches.sizes))
        own = places.add(first, share.first)
        start = places.add(start, places.mul(own, patches.area))
        if inside is not None and steps.exact:
            # There are as many channels as rows of a step, so this and what follows is in memory.
            start = e.builder.select(inside, places.plain(start), places.plain(0))
        for shift, register in zip(share.shifts, share.registers, strict=True):
            exists = e.registers.both(steps.exists(places.add(own, shift)), inside)
            at = places.add(start, shift * patches.area)
            self.tiles.load(e, register, Source(self.memory, at, exists, safe=steps.exact))

    def put(self) -> None:
        self.share.put()


class WeightRows:
    """Brings weights into shared memory, as they lie in theirs."""

    def __init__(self, steps: Steps, memory: Memory, seen: Strided) -> None:
        self.steps, self.memory, self.place, self.seen = steps, memory, steps.place, seen
        tiles, problem = steps.tiles, steps.place.problem
        # Weights of one row lie beside each other, or those of one product.
        self.deep = not problem.turned
        self.share = Share(tiles, tiles.rows, tiles.tile.rows, deep=self.deep)

    def weight(self, channel: Number, tap: Number) -> Number:
        """Where that of the group's first row lies."""
        e, problem = self.place.e, self.place.problem
        at = weight_at(e, problem, self.place.group, 0, channel, tap)
        return e.places.add(at, self.seen.offset)

    def fetch(self, step: Value) -> None:
        e, share, problem, tiles = self.place.e, self.share, self.place.problem, self.steps.tiles
        places, registers = e.places, e.registers
        pitch = problem.taps * (1 if problem.turned else problem.patches.channels)
        own = places.add(self.place.first_row, share.places[0])
        begin: Number = 0
        there: Value | None = None
        for number_, register in enumerate(share.registers):
            if number_ == 0 or not self.deep:
                first, there = self._first(step, share.depths[number_])
                begin = places.add(first, places.mul(own, pitch))
            shift = share.shifts[number_] if self.deep else 0
            exists = there
            if problem.rows % tiles.tile.rows:
                row = places.compare("<", places.add(own, shift), problem.rows)
                exists = registers.both(there, row)
            at = places.add(begin, shift * pitch)
            tiles.load(e, register, Source(self.memory, at, exists))

    def _first(self, step: Value, depth: Number) -> tuple[Number, Value | None]:
        """Where the weights of a row of a step begin, and whether there are any (None: surely)."""
        steps, places = self.steps, self.place.e.places
        if steps.flat:
            first = steps.weights[depth]
            return first, None if steps.exact else places.compare("!=", first, NONE)
        taps, channel = steps.tap(step)
        channel = places.add(channel, depth)
        return self.weight(channel, self.place.kernel_tap(taps)), steps.exists(channel)

    def put(self) -> None:
        self.share.put()


class PackedRows:
    """Brings packed weights into shared memory, in vectors."""

    def __init__(self, steps: Steps, memory: Memory, width: int) -> None:
        self.steps, self.place, self.memory = steps, steps.place, memory
        self.vectors = width // 4
        tiles = steps.tiles
        self.share = Share(tiles, tiles.rows, tiles.tile.rows, vector=4)

    def weight(self, channel: Number, tap: Number) -> Number:
        """The row of packed weights."""
        places, problem = self.place.e.places, self.place.problem
        channels, taps = problem.patches.channels, problem.taps
        shape = [channels, taps] if self.steps.flat else [taps, channels]
        order = [channel, tap] if self.steps.flat else [tap, channel]
        first = places.mul(self.place.group, channels * taps)
        return places.add(first, places.offset(order, shape))

    def fetch(self, step: Value) -> None:
        e, steps, share = self.place.e, self.steps, self.share
        places = e.places
        column = places.add(places.div(self.place.first_row, 4), share.places[0])
        first: Number = 0
        begin: Number = 0
        if not steps.flat:
            taps, first = steps.tap(step)
            first = places.add(first, share.first)
            row = self.weight(first, self.place.kernel_tap(taps))
            begin = places.add(places.mul(row, self.vectors), column)
        for number_, register in enumerate(share.registers):
            exists = None
            if steps.flat:
                row = steps.weights[share.depths[number_]]
                at = places.add(places.mul(row, self.vectors), column)
                if not steps.exact:
                    exists = places.compare("!=", row, NONE)
            else:
                shift = share.shifts[number_]
                at = places.add(begin, shift * self.vectors)
                exists = steps.exists(places.add(first, shift))
            if exists is not None:
                at = e.builder.select(exists, places.plain(at), places.plain(0))
            value = self.memory[at]
            register.set(value if exists is None else e.builder.choose(exists, value, 0.0))

    def put(self) -> None:
        self.share.put()


def weight_at(
    e: ThreadElements, problem: Problem, group: Number, row: Number, channel: Number, tap: Number
) -> Number:
    """Where a weight lies: that of a row of a group's product, a channel that is summed over, and a tap."""
    rows, channels = problem.rows, problem.patches.channels
    if problem.turned:
        return e.places.offset(
            [group, channel, row, tap], [problem.patches.groups, channels, rows, problem.taps]
        )
    return e.places.offset(
        [group, row, channel, tap], [problem.patches.groups, rows, channels, problem.taps]
    )


@dataclass(frozen=True)
class Packing:
    """Weights as [group, channel and tap in the order of the steps, row], with zeros up to ``width`` rows.

    Attributes:
        flat: whether taps come after channels.
        kept: the type that they are multiplied in.
    """

    problem: Problem
    flat: bool
    width: int
    kept: DType

    @property
    def shape(self) -> list[int]:
        """Of the packed weights."""
        patches, taps = self.problem.patches, self.problem.taps
        order = [patches.channels, taps] if self.flat else [taps, patches.channels]
        return [patches.groups, *order, self.width]

    def write(self, spec: Spec, machine: Machine, seen: Strided) -> Stage:
        """The dispatch that packs them."""
        problem, kept = self.problem, self.kept
        dispatch = Dispatch(spec, machine)
        memory, weights = dispatch.scratch(0, prod(self.shape), kept), dispatch.operand(seen.base)
        threads = [problem.patches.groups, problem.patches.channels, self.width]
        b = dispatch.builder
        with b.if_(b.thread < prod(threads)):
            e = dispatch.elements()
            places, registers = e.places, e.registers
            group, channel, row = places.split(b.thread, threads)
            exists = places.compare("<", row, problem.rows)
            nothing = registers.constant(0.0, kept)
            # All taps of a weight lie beside each other.
            with b.for_(0, problem.taps, name="tap") as tap:
                at = places.add(weight_at(e, problem, group, row, channel, tap), seen.offset)
                at = b.select(exists, places.plain(at), places.plain(0))
                value = registers.load(weights, at, seen.base.dtype)
                value = registers.cast(value, seen.base.dtype, kept)
                own = [channel, tap] if self.flat else [tap, channel]
                offset = places.offset([group, *own, row], self.shape)
                registers.store(registers.choose(exists, value, nothing), memory, offset, kept)
        return dispatch.finish(ceil_div(prod(threads), dispatch.threads))


def write(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The kernel of ``conv`` or ``conv_input_grad``."""
    problem = Problem.of(main)
    patches = problem.patches
    kept = Registers.kept_in(main.dtype)
    # What belongs to one tap lies in a good order as it is.
    packed = problem.products >= PACKED and problem.taps > 1
    pad = 0 if packed or problem.turned else 1
    length = patches.most_taps * patches.channels
    products = Products(problem.rows, problem.columns, length, patches.groups, kept, pad)
    cut = cut_of(products, machine, TABLES)
    flat = problem.is_flat(cut.tile.depth) or (not packed and problem.taps > 1)
    if not flat:
        steps = patches.most_taps * ceil_div(patches.channels, cut.tile.depth)
        cut = Cut(cut.tile, cut.parts, ceil_div(steps, cut.parts))
    stages, nbytes = [], 0
    packing = Packing(problem, flat, round_up(problem.rows, cut.tile.rows), kept)
    count = prod(packing.shape)
    if packed:
        nbytes = round_up(count * kept.itemsize, GRANULE)
        stages.append(packing.write(spec, machine, seen[1]))

    together = words_of(spec)
    if together > 1 and (prod(patches.result) % together or set(patches.strides) != {1}):
        together = 1
    dispatch = Dispatch(spec, machine, threads=cut.tile.threads, whole=together > 1)
    tiles, b = Tiles(dispatch, cut.tile, kept, pad), dispatch.builder
    finish = Finish(dispatch, main, cut.parts, nbytes, together)
    e = finish.elements
    place = Place(e, problem, cut)
    if place.is_uneven:
        with b.if_(e.places.value(place.first_column) >= place.columns):
            b.return_()
    steps_ = Steps(tiles, place, flat)
    columns = ImageColumns(steps_, dispatch.operand(seen[0].base), seen[0])
    rows: WeightRows | PackedRows
    if packed:
        rows = PackedRows(steps_, dispatch.scratch(0, count, kept, vector=4), packing.width)
    else:
        rows = WeightRows(steps_, dispatch.operand(seen[1].base), seen[1])
    tiles.run(
        *split_parts(e, place.part, cut.parts, cut.steps, steps_.count),
        [rows, columns],
        (lambda step: steps_.prepare(step, rows.weight)) if flat else None,
    )

    def before(column: Value) -> tuple[list[list[Number]], Value]:
        found = []
        whole = e.places.add(place.first_column, column)
        for k in range(together):
            image, *pixel = place.pixel(e.places.add(whole, k))
            moved = [
                e.places.add(e.places.mul(i, stride), start)
                for i, stride, start in zip(pixel, patches.strides, place.starts, strict=True)
            ]
            found.append([image, *unmerged(e, moved, patches.result, main)])
        return found, e.places.compare("<", whole, place.columns)

    def write_row(found: tuple[list[list[Number]], Value], row: Value, values: list[Value]) -> None:
        pixels, exists = found
        own = e.places.add(place.first_row, row)
        if problem.rows % cut.tile.rows:
            exists = e.registers.both(exists, e.places.compare("<", own, problem.rows))
        channel = e.places.add(e.places.mul(place.group, problem.rows), own)
        with b.if_(exists):
            indices = [[image, channel, *pixel] for image, *pixel in pixels]
            finish.write(indices, values, place.part)

    tiles.give(together, before, write_row, e)
    stages.append(dispatch.finish(place.workgroups))
    return added_up(stages, spec, machine, main, cut.parts, nbytes)
