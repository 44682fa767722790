"""Convolutions of every channel by itself, and their gradients: too few products for each element read to be worth tiles of matrices.

A thread computes a small block of the result: some rows, and where the gradient of a strided convolution is computed, all phases of the stride. What several of its
elements read is read once. For the gradient towards the weight a workgroup sums over pixels of one channel, for all taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import lcm, prod

from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.strided import Strided
from ...ir.index import Number
from ...problems.conv import patches_of
from ..builder import Memory, Operand, Value, Variable
from ..dispatch import Dispatch, Written
from ..machine import Machine
from .epilogue import Finish, added_up, unmerged, words_of
from .problem import Problem

MOST_ROWS = 4
"""Channels of the result that one channel may have: with more, products are worth tiles."""
MOST_PRODUCTS = 256
"""Of a thread: they are written one after the other."""
ENOUGH = 1 << 17
"""Threads that keep a large GPU busy; what there is beyond, threads have more rows for."""
THREADS = 128
"""Of a workgroup that sums."""
TOGETHER = 16
"""Taps that are summed over the threads of a workgroup at once."""
MOST_TAPS = 64
"""Whose sums a thread keeps in registers."""
WORKGROUPS = 1024
"""That keep a large GPU busy."""
MOST_PARTS = 64
LEAST_PIXELS = 4
"""Of a thread."""


def fits(main: Node) -> bool:
    """Whether each channel of the result reads one of the source, and not many read the same."""
    patches = patches_of(main)
    if main.op.name == "conv_weight_grad":
        rows = int(main.shape[0]) // patches.groups
        return patches.channels == 1 and rows <= MOST_ROWS and prod(patches.kernel) <= MOST_TAPS
    problem = Problem.of(main)
    if patches.channels != 1 or problem.rows > MOST_ROWS:
        return False
    return _products(problem, _block(problem, 4, 1)) <= MOST_PRODUCTS


def _block(problem: Problem, words: int, rows: int) -> list[int]:
    """The sizes of a thread's block: whole phases, whole words along the last axis, some rows."""
    block = list(problem.patches.strides)
    if problem.patches.result[-1] % words == 0:
        block[-1] = lcm(block[-1], words)
    if len(block) > 1:
        block[-2] *= rows
    return block


def _products(problem: Problem, block: Sequence[int]) -> int:
    """Products that a thread has for a block, at most."""
    return prod(block) * problem.patches.most_taps


class Blocks:
    """The code of ``conv`` and ``conv_input_grad``."""

    def __init__(
        self, dispatch: Dispatch, finish: Finish, problem: Problem, block: Sequence[int]
    ) -> None:
        self.dispatch, self.finish, self.problem, self.block = dispatch, finish, problem, block
        self.e = finish.elements
        patches = problem.patches
        counts = [ceil_div(size, own) for size, own in zip(patches.result, block, strict=True)]
        self.channels = patches.groups * problem.rows
        self.shape = [patches.batch, self.channels, *counts]
        self._hits: dict[tuple[int, int], Value | None] = {}
        self._values: dict[tuple[int, ...], Value] = {}

    def write(self, seen: Sequence[Strided]) -> None:
        """All of it."""
        e, patches, problem = self.e, self.problem.patches, self.problem
        places, b = e.places, e.builder
        self.seen = seen[0]
        self.memory = self.dispatch.operand(seen[0].base)
        with b.if_(b.thread < prod(self.shape)):
            image, channel, *blocks = places.split(b.thread, self.shape)
            self.corner = [
                places.mul(i, own // stride * step)
                for i, own, stride, step in zip(
                    blocks, self.block, patches.strides, patches.steps, strict=True
                )
            ]
            group = places.div(channel, problem.rows)
            plane = places.add(places.mul(image, patches.groups), group)
            base = places.add(places.mul(plane, patches.area), self.seen.offset)
            self.base = places.add(base, places.offset(self.corner, patches.sizes))
            self._weights(self.dispatch.operand(seen[1].base), seen[1], channel)
            firsts = [places.mul(i, own) for i, own in zip(blocks, self.block, strict=True)]
            ahead = list(product(*(range(own) for own in self.block)))
            sums = {own: self._sum(own) for own in ahead}
            together = self.finish.together
            for first in range(0, len(ahead), together):
                some = ahead[first : first + together]
                self._finish([image, channel], firsts, some, [sums[own] for own in some])

    def _weights(self, memory: Memory, seen: Strided, channel: Number) -> None:
        e, taps = self.e, self.problem.taps
        first = e.places.add(e.places.mul(channel, taps), seen.offset)
        dtype = memory.dtype
        kept = e.registers.kept_in(dtype)
        self.weights = [
            e.registers.cast(e.registers.load(memory, e.places.add(first, tap), dtype), dtype, kept)
            for tap in range(taps)
        ]

    def _sum(self, own: tuple[int, ...]) -> Operand:
        """The sum of an element of the block."""
        e, patches, problem = self.e, self.problem.patches, self.problem
        phases = []
        moved = []
        for axis, i in enumerate(own):
            pixel, phase = divmod(i, patches.strides[axis])
            phases.append(problem.axes[axis][min(phase, len(problem.axes[axis]) - 1)])
            moved.append(pixel * patches.steps[axis])
        dtype = problem.main.dtype
        total: Operand = e.registers.neutral("sum", dtype, dtype)
        for taps in product(*(range(phase.count) for phase in phases)):
            far = tuple(
                start + phase.offset + tap * delta
                for start, phase, tap, delta in zip(
                    moved, phases, taps, patches.deltas, strict=True
                )
            )
            kernel = [
                phase.kernel + tap * spacing
                for phase, tap, spacing in zip(phases, taps, patches.spacing, strict=True)
            ]
            weight = self.weights[int(e.places.offset(kernel, patches.kernel))]
            kept = e.registers.kept_in(dtype)
            total = e.registers.multiply_add(total, self._value(far), weight, kept, kept)
        return total

    def _value(self, far: tuple[int, ...]) -> Value:
        """What is so far from the block's corner: 0 outside the image."""
        if far in self._values:
            return self._values[far]
        e, sizes = self.e, self.problem.patches.sizes
        inside: Value | None = None
        for axis, size in enumerate(sizes):
            hit = self._hit(axis, far[axis], size)
            if hit is not None:
                inside = hit if inside is None else e.builder.and_(inside, hit)
        at = e.places.add(self.base, int(e.places.offset(far, sizes)))
        if inside is not None:
            at = e.builder.select(inside, e.places.plain(at), e.places.plain(0))
        kept = e.registers.kept_in(self.memory.dtype)
        value: Value = e.registers.cast(
            e.registers.load(self.memory, at, self.memory.dtype), self.memory.dtype, kept
        )
        if inside is not None:
            value = e.registers.choose(inside, value, e.registers.constant(0.0, kept))
        self._values[far] = value
        return value

    def _hit(self, axis: int, far: int, size: int) -> Value | None:
        """Whether a place along an axis is inside; None where that is sure."""
        if (axis, far) not in self._hits:
            e, patches = self.e, self.problem.patches
            step = self.block[axis] // patches.strides[axis] * patches.steps[axis]
            last = (self.shape[2 + axis] - 1) * step + far
            found = None
            if far < 0 or last >= size:
                own = e.places.plain(e.places.add(self.corner[axis], far))
                found = e.builder.icmp_unsigned("<", own, e.places.plain(size))
            self._hits[axis, far] = found
        return self._hits[axis, far]

    def _finish(
        self,
        plane: list[Number],
        firsts: Sequence[Number],
        some: Sequence[tuple[int, ...]],
        sums: Sequence[Operand],
    ) -> None:
        """Take neighbouring sums to the results, where they exist."""
        e, patches = self.e, self.problem.patches
        pixels = [
            [e.places.add(first, i) for first, i in zip(firsts, own, strict=True)] for own in some
        ]
        exists: Value | None = None
        for axis, size in enumerate(patches.result):
            if size % self.block[axis]:
                within = e.places.compare("<", pixels[0][axis], size)
                exists = e.registers.both(exists, within)
        with e.builder.if_(exists):
            main = self.problem.main
            indices = [[*plane, *unmerged(e, pixel, patches.result, main)] for pixel in pixels]
            self.finish.write(indices, sums, 0)


def _write_blocks(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    problem = Problem.of(main)
    words = words_of(spec)
    block = _block(problem, words, 1)
    for rows in (2, 4):
        more = _block(problem, words, rows)
        enough = main.size >= ENOUGH * prod(more)
        if enough and _products(problem, more) <= MOST_PRODUCTS:
            block = more
    together = words if block[-1] % words == 0 and problem.patches.result[-1] % words == 0 else 1
    dispatch = Dispatch(spec, machine, whole=together > 1)
    finish = Finish(dispatch, main, 1, 0, together)
    blocks = Blocks(dispatch, finish, problem, block)
    blocks.write(seen)
    return Written((dispatch.finish(ceil_div(prod(blocks.shape), dispatch.threads)),))


class PixelSums:
    """The code of ``conv_weight_grad``: a workgroup has a part of the pixels of a channel, and sums for all taps."""

    def __init__(self, dispatch: Dispatch, finish: Finish, seen: Sequence[Strided]) -> None:
        self.dispatch, self.finish, self.seen = dispatch, finish, seen
        self.main, self.e = finish.main, finish.elements
        self.patches = patches_of(self.main)
        self.images, self.gradients = (dispatch.operand(view.base) for view in seen)
        self.kept: DType = self.e.registers.kept_in(self.main.dtype)

    def write(self, parts: int, each: int) -> None:
        """All of it, for so many parts of ``each`` pixels."""
        b, places = self.e.builder, self.e.places
        patches, channels = self.patches, int(self.main.shape[0])
        pixels = patches.batch * patches.pixels
        part, channel = places.split(b.group, [parts, channels])
        group = places.div(channel, channels // patches.groups)
        first = places.value(places.mul(part, each))
        last = b.let(b.min(first + each, pixels), "last")
        taps = [b.variable(0, "tap", self.kept) for _ in range(prod(patches.kernel))]
        with b.for_(first + b.local, last, self.dispatch.threads, name="at") as at:
            image, *pixel = places.split(at, [patches.batch, *patches.result])
            self._add([image, *pixel], channel, group, taps)
        self._write_totals(taps, [channel], part)

    def _load(self, memory: Memory, at: Number) -> Value:
        registers, dtype = self.e.registers, memory.dtype
        found: Value = registers.cast(registers.load(memory, at, dtype), dtype, self.kept)
        return found

    def _add(
        self, where: list[Number], channel: Number, group: Number, taps: Sequence[Variable]
    ) -> None:
        """What a pixel of an image gives to the sums."""
        e, places, patches = self.e, self.e.places, self.patches
        image, *pixel = where
        plane = places.add(places.mul(image, int(self.main.shape[0])), channel)
        own = places.add(places.mul(plane, patches.pixels), places.offset(pixel, patches.result))
        gradient = self._load(self.gradients, places.add(own, self.seen[1].offset))
        corner = [places.mul(i, step) for i, step in zip(pixel, patches.steps, strict=True)]
        plane = places.add(places.mul(image, patches.groups), group)
        base = places.add(places.mul(plane, patches.area), self.seen[0].offset)
        base = places.add(base, places.offset(corner, patches.sizes))
        hits: dict[tuple[int, int], Value] = {}
        kernel = product(*(range(size) for size in patches.kernel))
        for total, tap in zip(taps, kernel, strict=True):
            far = [
                axis.offset + i * delta
                for axis, i, delta in zip(patches.phases[0].axes, tap, patches.deltas, strict=True)
            ]
            inside = self._is_inside(corner, far, hits)
            at = places.add(base, int(places.offset(far, patches.sizes)))
            if inside is not None:
                at = e.builder.select(inside, places.plain(at), places.plain(0))
            value = self._load(self.images, at)
            if inside is not None:
                nothing = e.registers.constant(0.0, self.kept)
                value = e.registers.choose(inside, value, nothing)
            total.set(e.builder.fma(gradient, value, total))

    def _is_inside(
        self, corner: Sequence[Number], far: Sequence[int], hits: dict[tuple[int, int], Value]
    ) -> Value | None:
        """Whether what is so far from a corner is inside the image; None where that is sure. ``hits`` is what is known of its axes."""
        places, patches = self.e.places, self.patches
        inside: Value | None = None
        for axis, (size, moved) in enumerate(zip(patches.sizes, far, strict=True)):
            most = (patches.result[axis] - 1) * patches.steps[axis] + moved
            if moved < 0 or most >= size:
                if (axis, moved) not in hits:
                    place = places.plain(places.add(corner[axis], moved))
                    hit = self.e.builder.icmp_unsigned("<", place, places.plain(size))
                    hits[axis, moved] = hit
                inside = self.e.registers.both(inside, hits[axis, moved])
        return inside

    def _write_totals(self, taps: Sequence[Variable], index: list[Number], part: Number) -> None:
        """The sums of all threads, for each tap: a few threads for each first, then one."""
        e, b, threads = self.e, self.e.builder, self.dispatch.threads
        chunk = min(TOGETHER * 4 // self.kept.itemsize, len(taps))
        few = threads // TOGETHER
        held = b.shared(self.kept, (chunk, threads + 1), "held")
        for first in range(0, len(taps), chunk):
            some = taps[first : first + chunk]
            for tap, value in enumerate(some):
                held[tap, b.local] = value
            b.barrier()
            total = b.variable(0, "total", self.kept)
            own = b.let(b.min(b.local // few, len(some) - 1), "own")
            with b.for_(b.local % few, threads, few, name="k") as k:
                total += held[own, k]
            b.barrier()
            with b.if_(b.local < len(some) * few):
                held[b.local // few, b.local % few] = total
            b.barrier()
            with b.if_(b.local < len(some)):
                total.set(0)
                with b.for_(0, few, name="k") as k:
                    total += held[b.local, k]
                own_tap = e.places.add(b.local, first)
                where = e.places.split(own_tap, [int(size) for size in self.main.shape[1:]])
                self.finish.write([[*index, *where]], [b.let(total)], part)
            b.barrier()


def _write_sums(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The gradient towards the weight."""
    patches, channels = patches_of(main), int(main.shape[0])
    pixels = patches.batch * patches.pixels
    parts = max(1, min(WORKGROUPS // channels, pixels // (THREADS * LEAST_PIXELS), MOST_PARTS))
    each = ceil_div(pixels, parts)
    parts = ceil_div(pixels, each)
    dispatch = Dispatch(spec, machine, threads=THREADS)
    sums = PixelSums(dispatch, Finish(dispatch, main, parts), seen)
    sums.write(parts, each)
    return added_up([dispatch.finish(parts * channels)], spec, machine, main, parts, 0)


def write(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The kernel of a convolution of single channels, or of one of its gradients."""
    form = _write_sums if main.op.name == "conv_weight_grad" else _write_blocks
    return form(spec, machine, main, seen)
