"""The products of matrices that a convolution, or its gradient towards the input, consists of; and which part of them a workgroup computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ....graph.cached import cached_property
from ....graph.integers import ceil_div
from ....graph.node import Node
from ...ir.index import Number
from ...problems.conv import Patches, Taps, patches_of
from ..elements import ThreadElements
from .plan import Cut

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
    def products(self) -> int:
        """Numbers that are multiplied, more or less."""
        taps = max(self.taps // len(self.patches.phases), 1)
        return self.patches.groups * self.rows * self.patches.channels * taps * sum(self.columns)

    @property
    def columns(self) -> list[int]:
        """Pixels of each phase."""
        return [self.patches.batch * phase.pixels for phase in self.patches.phases]

    def is_flat(self, depth: int) -> bool:
        """Whether steps go over taps and channels together."""
        taps, channels = self.patches.most_taps, self.patches.channels
        return taps * ceil_div(channels, depth) > WASTE * ceil_div(taps * channels, depth)

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

    def __init__(self, e: ThreadElements, problem: Problem, cut: Cut) -> None:
        self.e, self.problem, self.cut = e, problem, cut
        patches, tile = problem.patches, cut.tile
        row_tiles = ceil_div(problem.rows, tile.rows)
        column_tiles = ceil_div(max(problem.columns), tile.columns)
        counts = [len(taps) for taps in problem.axes]
        parts = [cut.parts, *counts, patches.groups, column_tiles, row_tiles]
        self.workgroups = prod(parts)
        self.part, *found = e.places.split(e.builder.group, parts)
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

    @property
    def is_uneven(self) -> bool:
        """Whether phases have different numbers of pixels."""
        return len(set(self.problem.columns)) > 1

    def pick(self, which: Number, values: Sequence[int]) -> Number:
        """One of some numbers."""
        if isinstance(which, int):
            return values[which]
        found: Number = values[0]
        for place, value in enumerate(values):
            if value != values[0]:
                b = self.e.builder
                found = b.let(b.choose(which == place, b.index(value), found))
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
        b, whole = self.e.builder, places.value(value)
        return b.let(whole // by), b.let(whole % by)

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
