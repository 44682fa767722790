"""Convolutions of every channel by itself, and their gradients: too few products for each element read to be worth tiles of matrices.

A thread computes a small block of the result: some rows, and where the gradient of a strided convolution is computed, all phases of the stride. What several of its
elements read is read once. For the gradient towards the weight a workgroup sums over pixels of one channel, for all taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import lcm, prod
from typing import Any

from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.strided import Strided
from ...ir.index import Number
from ...ir.registers import Registers
from ...problems.conv import patches_of
from ..dispatch import Dispatch, Written
from ..machine import Machine
from .epilogue import Finish, added_up, unmerged, words_of
from .problem import Problem
from .tile import number

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
        self, shader: Dispatch, finish: Finish, problem: Problem, block: Sequence[int]
    ) -> None:
        self.shader, self.finish, self.problem, self.block = shader, finish, problem, block
        self.e = finish.elements
        patches = problem.patches
        counts = [-(-size // own) for size, own in zip(patches.result, block, strict=True)]
        self.channels = patches.groups * problem.rows
        self.shape = [patches.batch, self.channels, *counts]
        self._hits: dict[tuple[int, int], Any] = {}
        self._values: dict[tuple[int, ...], Any] = {}

    def write(self, operands: Sequence[int], seen: Sequence[Strided]) -> None:
        """All of it."""
        e, patches, problem = self.e, self.problem.patches, self.problem
        places, writer = e.places, self.shader.builder
        self.seen = seen[0]
        self.memory = self.shader.operands[operands[0]]
        with writer.block(f"if (thread < {prod(self.shape)}u)"), e.scope():
            image, channel, *blocks = places.split(number("thread"), self.shape)
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
            self._weights(self.shader.operands[operands[1]], seen[1], channel)
            firsts = [places.mul(i, own) for i, own in zip(blocks, self.block, strict=True)]
            ahead = list(product(*(range(own) for own in self.block)))
            sums = {own: self._sum(own) for own in ahead}
            together = self.finish.together
            for first in range(0, len(ahead), together):
                some = ahead[first : first + together]
                self._finish([image, channel], firsts, some, [sums[own] for own in some])

    def _weights(self, memory: Any, seen: Strided, channel: Number) -> None:
        e, taps = self.e, self.problem.taps
        first = e.places.add(e.places.mul(channel, taps), seen.offset)
        dtype = memory.dtype
        kept = e.registers.kept_in(dtype)
        self.weights = [
            e.registers.cast(e.registers.load(memory, e.places.add(first, tap), dtype), dtype, kept)
            for tap in range(taps)
        ]

    def _sum(self, own: tuple[int, ...]) -> Any:
        """The sum of an element of the block."""
        e, patches, problem = self.e, self.problem.patches, self.problem
        phases = []
        moved = []
        for axis, i in enumerate(own):
            pixel, phase = divmod(i, patches.strides[axis])
            phases.append(problem.axes[axis][min(phase, len(problem.axes[axis]) - 1)])
            moved.append(pixel * patches.steps[axis])
        dtype = problem.main.dtype
        total = e.registers.neutral("sum", dtype, dtype)
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

    def _value(self, far: tuple[int, ...]) -> Any:
        """What is so far from the block's corner: 0 outside the image."""
        if far in self._values:
            return self._values[far]
        e, sizes = self.e, self.problem.patches.sizes
        inside: Any = None
        for axis, size in enumerate(sizes):
            hit = self._hit(axis, far[axis], size)
            if hit is not None:
                inside = hit if inside is None else e.builder.and_(inside, hit)
        at = e.places.add(self.base, int(e.places.offset(far, sizes)))
        if inside is not None:
            at = e.builder.select(inside, e.places.plain(at), e.places.plain(0))
        kept = e.registers.kept_in(self.memory.dtype)
        value = e.registers.cast(
            e.registers.load(self.memory, at, self.memory.dtype), self.memory.dtype, kept
        )
        if inside is not None:
            value = e.registers.choose(inside, value, e.registers.constant(0.0, kept))
        self._values[far] = value
        return value

    def _hit(self, axis: int, far: int, size: int) -> Any:
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
        sums: Sequence[Any],
    ) -> None:
        """Take neighbouring sums to the results, where they exist."""
        e, patches = self.e, self.problem.patches
        pixels = [
            [e.places.add(first, i) for first, i in zip(firsts, own, strict=True)] for own in some
        ]
        exists: Any = None
        for axis, size in enumerate(patches.result):
            if size % self.block[axis]:
                within = e.places.compare("<", pixels[0][axis], size)
                exists = e.registers.both(exists, within)
        head = "" if exists is None else f"if ({e.builder.text(exists)})"
        with self.shader.builder.block(head), e.scope():
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
    shader = Dispatch(spec, machine, whole=together > 1)
    finish = Finish(shader, main, 1, 0, together)
    blocks = Blocks(shader, finish, problem, block)
    blocks.write([int(str(view.base.name)) for view in seen], seen)
    return Written((shader.finish(-(-prod(blocks.shape) // shader.threads)),))


def _write_sums(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The gradient towards the weight."""
    patches = patches_of(main)
    kept = Registers.kept_in(main.dtype)
    taps = prod(patches.kernel)
    channels = int(main.shape[0])
    rows = channels // patches.groups
    pixels = patches.batch * patches.pixels
    parts = max(1, min(WORKGROUPS // channels, pixels // (THREADS * LEAST_PIXELS), MOST_PARTS))
    each = -(-pixels // parts)
    parts = -(-pixels // each)
    shader = Dispatch(spec, machine, threads=THREADS)
    finish = Finish(shader, main, parts)
    e, writer = finish.elements, shader.builder
    places, registers = e.places, e.registers
    images, gradients = (shader.operands[int(str(view.base.name))] for view in seen)
    part, channel = places.split(number("group"), [parts, channels])
    group = places.div(channel, rows)
    first = places.text(places.mul(part, each))
    writer.line(f"let last = min({first} + {each}u, {pixels}u);")
    nothing = writer.text(registers.constant(0.0, kept))
    for tap in range(taps):
        writer.line(f"var tap{tap} = {nothing};")
    head = f"for (var at = {first} + local; at < last; at += {shader.threads}u)"
    with writer.block(head), e.scope():
        image, *pixel = places.split(number("at"), [patches.batch, *patches.result])
        plane = places.add(places.mul(image, channels), channel)
        own = places.add(places.mul(plane, patches.pixels), places.offset(pixel, patches.result))
        own = places.add(own, seen[1].offset)
        dtype = main.dtype
        gradient = registers.cast(registers.load(gradients, own, dtype), dtype, kept)
        corner = [places.mul(i, step) for i, step in zip(pixel, patches.steps, strict=True)]
        plane = places.add(places.mul(image, patches.groups), group)
        base = places.add(places.mul(plane, patches.area), seen[0].offset)
        base = places.add(base, places.offset(corner, patches.sizes))
        axes = patches.phases[0].axes
        hits: dict[tuple[int, int], Any] = {}
        for number_, tap_ in enumerate(product(*(range(size) for size in patches.kernel))):
            far = [
                axis.offset + i * delta
                for axis, i, delta in zip(axes, tap_, patches.deltas, strict=True)
            ]
            inside: Any = None
            for axis, (size, moved) in enumerate(zip(patches.sizes, far, strict=True)):
                most = (patches.result[axis] - 1) * patches.steps[axis] + moved
                if moved < 0 or most >= size:
                    if (axis, moved) not in hits:
                        place = places.plain(places.add(corner[axis], moved))
                        hits[axis, moved] = e.builder.icmp_unsigned("<", place, places.plain(size))
                    inside = registers.both(inside, hits[axis, moved])
            at = places.add(base, int(places.offset(far, patches.sizes)))
            if inside is not None:
                at = e.builder.select(inside, places.plain(at), places.plain(0))
            value = registers.cast(registers.load(images, at, dtype), dtype, kept)
            if inside is not None:
                value = registers.choose(inside, value, registers.constant(0.0, kept))
            left, right = e.builder.text(gradient), e.builder.text(value)
            writer.line(f"tap{number_} = fma({left}, {right}, tap{number_});")
    _write_totals(shader, finish, taps, [channel], part)
    stages = [shader.finish(parts * channels)]
    return added_up(stages, spec, machine, main, parts, 0)


def _write_totals(
    shader: Dispatch, finish: Finish, taps: int, index: list[Number], part: Number
) -> None:
    """The sums of all threads, for each tap: a few threads for each first, then one."""
    e, writer, threads = finish.elements, shader.builder, shader.threads
    kept = e.registers.kept_in(finish.main.dtype)
    scalar = "f64" if kept.itemsize == 8 else "f32"
    chunk = min(TOGETHER * 4 // kept.itemsize, taps)
    few = threads // TOGETHER
    shader.text_shared("held", f"array<array<{scalar}, {threads + 1}>, {chunk}>")
    kind = e.registers.constant(0.0, kept).type
    nothing = writer.text(e.registers.constant(0.0, kept))
    for first in range(0, taps, chunk):
        count = min(chunk, taps - first)
        for tap in range(count):
            writer.line(f"held[{tap}][local] = tap{first + tap};")
        shader.barrier()
        total = writer.name("total")
        writer.line(f"var {total} = {nothing};")
        own = f"min(local / {few}u, {count - 1}u)"
        head = f"for (var k = local % {few}u; k < {threads}u; k += {few}u)"
        with writer.block(head):
            writer.line(f"{total} = {total} + held[{own}][k];")
        shader.barrier()
        with writer.block(f"if (local < {count * few}u)"):
            writer.line(f"held[local / {few}u][local % {few}u] = {total};")
        shader.barrier()
        with writer.block(f"if (local < {count}u)"), e.scope():
            writer.line(f"{total} = {nothing};")
            with writer.block(f"for (var k = 0u; k < {few}u; k++)"):
                writer.line(f"{total} = {total} + held[local][k];")
            own_tap = e.places.add(number("local"), first)
            where = e.places.split(own_tap, [int(size) for size in finish.main.shape[1:]])
            finish.write([[*index, *where]], [writer.let_text(kind, total)], part)
        shader.barrier()


def write(spec: Spec, machine: Machine, main: Node, seen: Sequence[Strided]) -> Written:
    """The kernel of a convolution of single channels, or of one of its gradients."""
    form = _write_sums if main.op.name == "conv_weight_grad" else _write_blocks
    return form(spec, machine, main, seen)
