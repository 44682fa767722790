"""Convolutions and their gradients towards the input as products of matrices: channels x pixels, of weights and patches.

Patches are never stored. A thread that brings one pixel's patches into shared memory knows where they begin; each tap is so far from there, and outside the image it is 0. The steps
of the sums go over the channels of one tap after the other, or, where channels are few, over both together. The gradient of a strided convolution is a product for each phase
of the stride, as on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from ...graph.dtypes import DType
from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.strided import Strided
from ..cpu.conv_plan import Patches, Taps, patches_of
from ..cpu.places import Number
from ..cpu.registers import Registers
from .conv_cut import Cut, cut_of
from .conv_finish import Finish, split_parts, summed, words_of
from .conv_tile import COLUMNS, ROWS, Share, Tiles, number
from .device import GRANULE
from .elements import Memory, ShaderElements
from .machine import Machine
from .shader import Shader, Stage, Written
from .writer import Text

PACKED = 1 << 15
"""Weights from which on it pays to bring them into the order in which tiles read them."""
WASTE = 1.15
"""How many more steps the taps may take one by one than with their channels together."""


@dataclass(frozen=True)
class Problem:
    """The products of a convolution, or of its gradient towards the input.

    Attributes:
        main: the node.
        patches: what it reads of the images.
        rows: channels of the result in a group.
        turned: whether weights have their own channels of the result second: those of the gradient.
    """

    main: Node
    patches: Patches
    rows: int
    turned: bool

    @staticmethod
    def of(main: Node) -> Problem:
        """That of a node."""
        patches = patches_of(main)
        rows = int(main.shape[1]) // patches.groups
        return Problem(main, patches, rows, main.op.name == "conv_input_grad")

    @cached_property
    def axes(self) -> list[list[Taps]]:
        """What taps there are in each phase of each axis."""
        count = len(self.patches.result)
        return [
            list(dict.fromkeys(phase.axes[axis] for phase in self.patches.phases))
            for axis in range(count)
        ]

    @property
    def taps(self) -> int:
        """Of the kernel."""
        return prod(self.patches.kernel)

    @property
    def columns(self) -> list[int]:
        """Pixels of each phase."""
        return [self.patches.batch * phase.pixels for phase in self.patches.phases]

    def is_flat(self, depth: int) -> bool:
        """Whether steps go over taps and channels together."""
        taps, channels = self.patches.most_taps, self.patches.channels
        return taps * -(-channels // depth) > WASTE * -(-taps * channels // depth)

    def never_outside(self, axis: int) -> bool:
        """Whether all patches lie inside the image along an axis."""
        patches, taps = self.patches, self.axes[axis]
        for phase in taps:
            ends = [0, (phase.count - 1) * patches.deltas[axis]]
            last = phase.offset + (phase.pixels - 1) * patches.steps[axis]
            if phase.count and (
                phase.offset + min(ends) < 0 or last + max(ends) >= patches.sizes[axis]
            ):
                return False
        return True


class Place:
    """Which part of the products a workgroup computes, and what that depends on."""

    def __init__(self, shader: Shader, e: ShaderElements, problem: Problem, cut: Cut) -> None:
        self.e, self.problem, self.cut = e, problem, cut
        patches, tile = problem.patches, cut.tile
        row_tiles = -(-problem.rows // tile.rows)
        column_tiles = -(-max(problem.columns) // tile.columns)
        counts = [len(taps) for taps in problem.axes]
        parts = [cut.parts, *counts, patches.groups, column_tiles, row_tiles]
        self.workgroups = prod(parts)
        self.part, *found = e.places.split(number("group"), parts)
        phases, (self.group, column, row) = found[: len(counts)], found[len(counts) :]
        self.first_row = e.places.mul(row, tile.rows)
        self.first_column = e.places.mul(column, tile.columns)

        def of(name: str) -> list[Number]:
            return [
                self.pick(phase, [getattr(taps, name) for taps in axis])
                for phase, axis in zip(phases, problem.axes, strict=True)
            ]

        self.pixels, self.starts, self.counts = of("pixels"), of("start"), of("count")
        self.offsets, self.kernel = of("offset"), of("kernel")
        self.area = self.product(self.pixels)
        self.columns = e.places.mul(self.area, patches.batch)
        self.taps = self.product(self.counts)

    def pick(self, which: Number, values: Sequence[int]) -> Number:
        """One of some numbers."""
        if isinstance(which, int):
            return values[which]
        found: Number = values[0]
        for place, value in enumerate(values):
            if value != values[0]:
                text, plain = self.e.places.text, self.e.places.plain(value)
                chosen = f"select({text(found)}, {text(plain)}, {text(which)} == {place}u)"
                found = self.let(chosen)
        return found

    def let(self, text: str) -> Text:
        """Give an index a name."""
        found: Text = self.e.builder.let(number("").type, text)
        return found

    def product(self, values: Sequence[Number]) -> Number:
        """All multiplied."""
        total: Number = 1
        for value in values:
            total = self.e.places.mul(total, value)
        return total

    def divided(self, value: Number, by: Number) -> tuple[Number, Number]:
        """A quotient and its rest."""
        places = self.e.places
        if isinstance(by, int):
            return places.div(value, by), places.mod(value, by)
        text, below = places.text(value), places.text(by)
        return self.let(f"{text} / {below}"), self.let(f"{text} % {below}")

    def split(self, value: Number, shape: Sequence[Number]) -> list[Number]:
        """Indices of a place in a shape; the first is not bounded."""
        found: list[Number] = []
        for size in reversed(shape[1:]):
            value, rest = self.divided(value, size)
            found.append(rest)
        return [value, *reversed(found)]

    def pixel(self, column: Number) -> list[Number]:
        """The image and the pixel of a column, within the phase."""
        return self.split(column, [self.problem.patches.batch, *self.pixels])

    def kernel_tap(self, taps: Sequence[Number]) -> Number:
        """The number in the kernel of a tap of the phase."""
        places, patches = self.e.places, self.problem.patches
        own = [
            places.add(first, places.mul(tap, spacing))
            for first, tap, spacing in zip(self.kernel, taps, patches.spacing, strict=True)
        ]
        return places.offset(own, patches.kernel)


class Steps:
    """What the steps of the sums go over."""

    def __init__(self, place: Place, flat: bool) -> None:
        self.place, self.flat = place, flat
        self.depth = place.cut.tile.depth
        self.channels = place.problem.patches.channels
        self.blocks = -(-self.channels // self.depth)

    @property
    def count(self) -> Number:
        """How many there are."""
        places = self.place.e.places
        if not self.flat:
            return places.mul(self.place.taps, self.blocks)
        products = places.mul(self.place.taps, self.channels)
        return places.div(places.add(products, self.depth - 1), self.depth)

    def of(self, step: Number, depths: Sequence[Text]) -> list[tuple[Number, list[Number], Any]]:
        """The channel and tap of some rows of a step, and whether there are such (None: surely)."""
        if self.flat:
            known = {depth.text: self.product(step, depth) for depth in dict.fromkeys(depths)}
            return [known[depth.text] for depth in depths]
        taps, first = self.tap(step)
        channels = {depth: self.place.e.places.add(first, depth) for depth in dict.fromkeys(depths)}
        within = {depth: self.within(channels[depth]) for depth in channels}
        return [(channels[depth], taps, within[depth]) for depth in depths]

    def tap(self, step: Number) -> tuple[list[Number], Number]:
        """The tap of a step, and its first channel; where steps are not flat."""
        places = self.place.e.places
        tap, block = places.div(step, self.blocks), places.mod(step, self.blocks)
        return self.place.split(tap, self.place.counts), places.mul(block, self.depth)

    def product(self, step: Number, depth: Number) -> tuple[Number, list[Number], Any]:
        """The channel and tap of a row of a step, and whether there is one; where steps are flat."""
        place, places = self.place, self.place.e.places
        k = places.add(places.mul(step, self.depth), depth)
        channel, rest = place.divided(k, place.taps)
        taps = place.split(rest, place.counts)
        exact = isinstance(place.taps, int) and place.taps * self.channels % self.depth == 0
        return channel, taps, None if exact else self.within(channel)

    def within(self, channel: Number) -> Any:
        """Whether there is such a channel; None where that is sure."""
        if not self.flat and self.channels % self.depth == 0:
            return None
        return self.place.e.places.compare("<", channel, self.channels)


class ImageColumns:
    """Brings patches into shared memory: every thread those of one pixel."""

    def __init__(self, tiles: Tiles, place: Place, steps: Steps, memory: Memory, seen: Strided):
        self.place, self.steps, self.memory, self.e = place, steps, memory, place.e
        self.tiles = tiles
        self.share = Share(tiles, COLUMNS, tiles.tile.columns)
        problem, places = place.problem, self.e.places
        patches = problem.patches
        self.sizes = patches.sizes
        column = places.add(place.first_column, self.share.places[0])
        image, *pixel = place.pixel(column)
        # The first tap may lie outside, below 0: numbers without signs are then too large.
        self.corner = [
            places.add(places.mul(i, step), offset)
            for i, step, offset in zip(pixel, patches.steps, place.offsets, strict=True)
        ]
        self.guarded = [not problem.never_outside(axis) for axis in range(len(self.sizes))]
        ragged = any(count % tiles.tile.columns for count in problem.columns)
        if ragged or len(set(problem.columns)) > 1:
            # A column that does not exist is outside in every tap.
            text = places.text
            far = f"select({1 << 30}u, {text(self.corner[0])}, {text(column)} < {text(place.columns)})"
            self.corner[0] = place.let(far)
            self.guarded[0] = True
        first = places.mul(place.group, patches.channels * patches.area)
        self.base = places.add(places.add(places.mul(image, patches.image), first), seen.offset)

    def _at(self, taps: Sequence[Number]) -> tuple[Number, Any]:
        """Where a tap lies, in the first channel; and whether it does (None: always)."""
        e, places, patches = self.e, self.e.places, self.place.problem.patches
        own = [
            places.add(corner, places.mul(tap, delta))
            for corner, tap, delta in zip(self.corner, taps, patches.deltas, strict=True)
        ]
        inside: Any = None
        for number_, size, guarded in zip(own, self.sizes, self.guarded, strict=True):
            if guarded:
                hit = e.builder.icmp_unsigned("<", places.plain(number_), places.plain(size))
                inside = hit if inside is None else e.builder.and_(inside, hit)
        at = places.add(self.base, places.offset(own, self.sizes))
        return at, inside

    def _load(self, register: str, at: Number, channel: Number, inside: Any) -> None:
        e, area = self.e, self.place.problem.patches.area
        place = e.places.add(at, e.places.mul(channel, area))
        self.tiles.load(e, register, self.memory, place, inside)

    def fetch(self, step: Text) -> None:
        """See ``Loader``."""
        steps, share = self.steps, self.share
        both = self.e.registers.both
        known: dict[int, tuple[Number, Any]] = {}
        for register, (channel, taps, exists) in zip(
            share.registers, steps.of(step, share.depths), strict=True
        ):
            # One tap for all rows of a step, or one for each.
            if id(taps) not in known:
                known[id(taps)] = self._at(taps)
            at, inside = known[id(taps)]
            self._load(register, at, channel, both(exists, inside))

    def put(self) -> None:
        """See ``Loader``."""
        self.share.put()


class WeightRows:
    """Brings weights into shared memory, as they lie in theirs."""

    def __init__(self, tiles: Tiles, place: Place, steps: Steps, memory: Memory, seen: Strided):
        self.tiles, self.place, self.steps, self.memory = tiles, place, steps, memory
        self.e, self.seen = place.e, seen
        self.share = Share(tiles, ROWS, tiles.tile.rows, deep=not place.problem.turned)

    def fetch(self, step: Text) -> None:
        """See ``Loader``."""
        e, steps, share, problem = self.e, self.steps, self.share, self.place.problem
        places, registers = e.places, e.registers
        whole = problem.rows % self.tiles.tile.rows == 0
        known = steps.of(step, share.depths)
        for own, register, (channel, taps, inside) in zip(
            share.places, share.registers, known, strict=True
        ):
            row = places.add(self.place.first_row, own)
            exists = None if whole else places.compare("<", row, problem.rows)
            exists = registers.both(exists, inside)
            at = places.add(
                weight_at(e, problem, self.place.group, row, channel, self.place.kernel_tap(taps)),
                self.seen.offset,
            )
            self.tiles.load(e, register, self.memory, at, exists)

    def put(self) -> None:
        """See ``Loader``."""
        self.share.put()


class PackedRows:
    """Brings packed weights into shared memory, in vectors."""

    def __init__(self, tiles: Tiles, place: Place, steps: Steps, memory: Memory, width: int):
        self.tiles, self.place, self.steps, self.memory = tiles, place, steps, memory
        self.width = width
        self.share = Share(tiles, ROWS, tiles.tile.rows, vector=4)

    def fetch(self, step: Text) -> None:
        """See ``Loader``."""
        e, steps, share, place = self.place.e, self.steps, self.share, self.place
        places, problem = e.places, place.problem
        channels, taps = problem.patches.channels, problem.taps
        begin = places.mul(place.group, channels * taps)
        vectors = self.width // 4
        column = places.add(places.div(place.first_row, 4), share.places[0])
        for register, (channel, own, inside) in zip(
            share.registers, steps.of(step, share.depths), strict=True
        ):
            order = (channel, taps, place.kernel_tap(own))
            if not steps.flat:
                order = (place.kernel_tap(own), channels, channel)
            row = places.add(places.mul(order[0], order[1]), order[2])
            at = places.add(places.mul(places.add(begin, row), vectors), column)
            if inside is not None:
                at = e.builder.select(inside, places.plain(at), places.plain(0))
            text = f"{self.memory.name}[{places.text(at)}]"
            if inside is not None:
                chosen = e.builder.text(inside)
                text = f"select({self.tiles.vector}(), {text}, {chosen})"
            e.builder.line(f"{register} = {text};")

    def put(self) -> None:
        """See ``Loader``."""
        self.share.put()


def weight_at(
    e: ShaderElements, problem: Problem, group: Number, row: Number, channel: Number, tap: Number
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


def _pack(
    spec: Spec,
    machine: Machine,
    problem: Problem,
    operand: int,
    seen: Strided,
    flat: bool,
    width: int,
    kept: DType,
) -> Stage:
    """Weights as [group, channel and tap in the order of the steps, row], with zeros up to ``width`` rows."""
    shader = Shader(spec, machine)
    writer = shader.writer
    patches = problem.patches
    order = [patches.channels, problem.taps] if flat else [problem.taps, patches.channels]
    shape = [patches.groups, *order, width]
    memory = shader.scratch(0, prod(shape), kept)
    with writer.block(f"if (thread < {prod(shape)}u)"):
        e = shader.elements()
        thread = number("thread")
        group, first, second, row = e.places.split(thread, shape)
        channel, tap = (first, second) if flat else (second, first)
        exists = e.places.compare("<", row, problem.rows)
        at = e.places.add(weight_at(e, problem, group, row, channel, tap), seen.offset)
        at = e.builder.select(exists, e.places.plain(at), e.places.plain(0))
        value = e.registers.load(shader.operands[operand], at, seen.base.dtype)
        value = e.registers.cast(value, seen.base.dtype, kept)
        value = e.registers.choose(exists, value, e.registers.constant(0.0, kept))
        e.registers.store(value, memory, thread, kept)
    return shader.finish(-(-prod(shape) // shader.threads))


def write(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The kernel of ``conv`` or ``conv_input_grad``."""
    problem = Problem.of(main)
    patches = problem.patches
    kept = Registers.kept_in(main.dtype)
    packed = patches.groups * problem.rows * patches.channels * problem.taps >= PACKED
    pad = 0 if packed or problem.turned else 1
    length = patches.most_taps * patches.channels
    cut = cut_of(problem.rows, problem.columns, length, patches.groups, machine, kept, pad)
    flat = problem.is_flat(cut.tile.depth)
    if not flat:
        steps = patches.most_taps * -(-patches.channels // cut.tile.depth)
        cut = Cut(cut.tile, cut.parts, -(-steps // cut.parts))
    operands = [int(str(view.base.name)) for view in seen]
    stages, packed_bytes = [], 0
    width = -(-problem.rows // cut.tile.rows) * cut.tile.rows
    if packed:
        count = patches.groups * problem.taps * patches.channels * width
        packed_bytes = -(-count * kept.itemsize // GRANULE) * GRANULE
        stages.append(_pack(spec, machine, problem, operands[1], seen[1], flat, width, kept))

    together = words_of(spec)
    if together > 1 and (prod(patches.result) % together or set(patches.strides) != {1}):
        together = 1
    shader = Shader(spec, machine, threads=cut.tile.threads, whole=together > 1)
    tiles = Tiles(shader, cut.tile, kept, pad)
    finish = Finish(shader, main, cut.parts, packed_bytes, together)
    e = finish.elements
    place = Place(shader, e, problem, cut)
    steps_ = Steps(place, flat)
    if len(set(problem.columns)) > 1:
        first, count_ = e.places.text(place.first_column), e.places.text(place.columns)
        shader.writer.line(f"if ({first} >= {count_}) {{ return; }}")
    columns = ImageColumns(tiles, place, steps_, shader.operands[operands[0]], seen[0])
    rows: WeightRows | PackedRows
    if packed:
        count = patches.groups * problem.taps * patches.channels * width
        memory = shader.scratch(0, count, kept, vector=4)
        rows = PackedRows(tiles, place, steps_, memory, width)
    else:
        rows = WeightRows(tiles, place, steps_, shader.operands[operands[1]], seen[1])
    first_step, last_step = split_parts(e, place.part, cut.parts, cut.steps, steps_.count)
    tiles.run(first_step, last_step, [rows, columns])

    def before(column: Text) -> tuple[list[list[Number]], Any]:
        found = []
        whole = e.places.add(place.first_column, column)
        for k in range(together):
            image, *pixel = place.pixel(e.places.add(whole, k))
            moved = [
                e.places.add(e.places.mul(i, stride), start)
                for i, stride, start in zip(pixel, patches.strides, place.starts, strict=True)
            ]
            found.append([image, *_unmerged(e, moved, patches.result, main)])
        return found, e.places.compare("<", whole, place.columns)

    def inside(found: tuple[list[list[Number]], Any], row: Text, values: list[Text]) -> None:
        pixels, exists = found
        own = e.places.add(place.first_row, row)
        if problem.rows % cut.tile.rows:
            exists = e.registers.both(exists, e.places.compare("<", own, problem.rows))
        channel = e.places.add(e.places.mul(place.group, problem.rows), own)
        with shader.writer.block(f"if ({e.builder.text(exists)})"), e.scope():
            indices = [[image, channel, *pixel] for image, *pixel in pixels]
            finish.write(indices, values, place.part)

    tiles.give(together, before, inside, e)
    stages.append(shader.finish(place.workgroups))
    nbytes = packed_bytes
    if cut.parts > 1:
        stages += summed(spec, machine, main, cut.parts, packed_bytes)
        nbytes += cut.parts * main.size * kept.itemsize
    return Written(tuple(stages), int(nbytes))


def _unmerged(
    e: ShaderElements, pixel: Sequence[Number], merged: Sequence[int], main: Node
) -> list[Number]:
    """A pixel's place along the axes of the node, of which ``Patches`` took some together."""
    own = [int(size) for size in main.shape[2:]]
    return e.places.reshaped(pixel, merged, own)
