"""What transforms read and write: operands and results in each of their layouts, and what lies between real signals and a transform of half their length.

N real numbers, N even, are N/2 complex ones where they lie: even places are real parts. With Z the transform of these, the spectrum is
``X[k] = E + w^k O`` with ``E = (Z[k] + conj Z[M-k]) / 2`` and ``O = (Z[k] - conj Z[M-k]) / 2i``, and back ``2 Z[k] = X[k] + conj X[M-k] + i conj(w^k) (X[k] - conj X[M-k])``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ....codegen.elements.elements import Elements
from ....codegen.ir.butterflies import Complex
from ....codegen.ir.index import Index
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.fft import Transform, roots
from ....graph.data import Array
from ....graph.integers import round_up
from ....graph.node import Node
from ....lower.plan import ALIGNMENT
from ....lower.specs import sizes
from ....lower.strided import merged_stride, strided
from ..emit.template import Code
from ..emit.vectors import moved
from .registers import Vectors


def untangled(z: Complex, mirror: Complex, root: Complex, half: float) -> Complex:
    """A number of a spectrum from that of the transform of half the length and its mirror; ``half`` is half of the factor."""
    even = Complex(z.re + mirror.re, z.im - mirror.im)
    odd = Complex(z.im + mirror.im, mirror.re - z.re)
    return even.plus(odd.times(root)).scaled(half)


def tangled(x: Complex, mirror: Complex, root: Complex) -> Complex:
    """The way back, without a factor."""
    even = Complex(x.re + mirror.re, x.im - mirror.im)
    odd = Complex(x.re - mirror.re, x.im + mirror.im)
    turned = odd.times(Complex(root.re, -root.im))
    return Complex(even.re - turned.im, even.im + turned.re)


def half_turn(count: int) -> Array:
    """``exp(-2 pi i k / count)`` for k up to half of it."""
    return roots(np.arange(count // 2 + 1), count)


WINDOW = "window"
"""What the operand is called that frames are multiplied by."""


@dataclass(frozen=True)
class Layout:
    """How an operand lies in memory: steps in elements, those of complex numbers in pairs.

    Attributes:
        base: the input that it is a view of.
        offset: of its first element.
        lead: the steps of the axes before the transform's.
        along: the step of that axis.
        direct: whether vectors can be read: neighbours along the axis, or behind it.
    """

    base: Node
    offset: int
    lead: tuple[int, ...]
    along: int
    direct: bool


def layout(x: Node, problem: Transform) -> Layout | None:
    """The layout of a view that strides describe."""
    seen, axes_before = strided(x), len(problem.lead) - (problem.hop is not None)
    if seen is None or seen.base.name is None:
        return None
    whole, strides = sizes(x), seen.strides
    inner = merged_stride(whole[axes_before + 1 :], strides[axes_before + 1 :])
    behind = prod(whole[axes_before + 1 :])
    along = strides[axes_before]
    direct = along == 1 or whole[axes_before] == 1 if behind == 1 else inner == 1
    frames = () if problem.hop is None else (problem.hop * along,)
    return Layout(seen.base, seen.offset, (*frames, *strides[:axes_before]), along, direct)


def signals(node: Node) -> list[Node]:
    """What is transformed: all operands but a window."""
    slots = zip(node.operands, node.slots, strict=True)
    return [x for x, slot in slots if slot != WINDOW]


def window_of(node: Node) -> Layout | None:
    """Where the window of frames lies."""
    if WINDOW not in node.slots:
        return None
    seen = strided(node.operands[node.slots.index(WINDOW)])
    if seen is None or seen.base.name is None:
        return None
    return Layout(seen.base, seen.offset, (), seen.strides[0], seen.strides[0] == 1)


def reads_neighbours(node: Node, problem: Transform) -> bool:
    """Whether vectors can be read of all operands as they lie."""
    seen = [layout(x, problem) for x in signals(node)]
    if WINDOW in node.slots:
        seen.append(window_of(node))
    return all(one is not None and one.direct for one in seen)


class Operand:
    """An operand of a kernel; it is copied first where vectors cannot be read of it."""

    def __init__(self, vectors: Vectors, x: Node, problem: Transform) -> None:
        self.vectors, self.problem, self.node = vectors, problem, x
        self.layout = layout(x, problem)
        self.is_copied = self.layout is None or not self.layout.direct
        self.memory: Pointer = vectors.code.shared
        if not self.is_copied and self.layout is not None:
            self.memory = vectors.code.operand_of(self.layout.base)

    def copy(self, room: Pointer) -> None:
        """Copy it to shared memory, element by element."""
        code: Code = self.vectors.code
        whole, indices = sizes(self.node), code.indices
        registers, stored = self.vectors.registers, self.problem.stored
        self.memory = room
        seen = strided(self.node)
        if seen is not None and self.layout is not None and self.problem.kind == "complex":
            source, strides, offset = code.operand_of(self.layout.base), seen.strides, seen.offset

            def copy_pair(i: Value) -> None:
                place: Index = offset
                for number, stride in zip(indices.split(i, whole), strides, strict=True):
                    place = indices.add(place, indices.mul(number, stride))
                for side in range(2):
                    value = registers.load(source, indices.add(indices.mul(place, 2), side), stored)
                    registers.store(value, room, indices.add(indices.mul(i, 2), side), stored)

            code.each(prod(whole), copy_pair)
            return

        def copy_element(i: Value) -> None:
            value = Elements.of(code).at(self.node, indices.split(i, whole))
            registers.store(value, room, i, stored)

        code.each(prod(whole), copy_element)

    @property
    def nbytes(self) -> int:
        """Bytes of the copy."""
        return prod(sizes(self.node)) * self.node.dtype.itemsize

    def place(self, row: Index, along: Index, behind: Index = 0) -> Index:
        """Where an element lies: along the axis in a row, and behind it."""
        indices, problem = self.vectors.indices, self.problem
        if self.is_copied or self.layout is None:
            size = sizes(self.node)[len(problem.lead)]
            first = indices.add(indices.mul(row, size), along)
            return indices.add(indices.mul(first, problem.inner), behind)
        total: Index = indices.add(self.layout.offset, behind)
        numbers = indices.split(row, problem.lead) if problem.lead else []
        for number, stride in zip(numbers, self.layout.lead, strict=True):
            total = indices.add(total, indices.mul(number, stride))
        return indices.add(total, indices.mul(along, self.layout.along))


class Ends:
    """Where a kernel's numbers come from and go to, as complex vectors; the direction is seen to, and the factor."""

    def __init__(self, vectors: Vectors, node: Node, problem: Transform) -> None:
        self.vectors, self.problem = vectors, problem
        self.operands = [Operand(vectors, x, problem) for x in signals(node)]
        self.window = window_of(node)
        code = vectors.code
        outputs = zip(code.body.outputs, code.results, strict=True)
        self.results = {int(output.attrs.get("index", 0)): result for output, result in outputs}
        self.packed = problem.is_real and problem.count % 2 == 0

    @staticmethod
    def copied_bytes(node: Node, problem: Transform) -> int:
        """Bytes of the copies that operands need."""
        found = 0
        for x in signals(node):
            seen = layout(x, problem)
            if seen is None or not seen.direct:
                found += round_up(prod(sizes(x)) * x.dtype.itemsize, ALIGNMENT)
        return found

    def copy(self, room: Pointer) -> None:
        """Copy what cannot be read as it lies."""
        copied = [operand for operand in self.operands if operand.is_copied]
        for operand in copied:
            operand.copy(room)
            room = moved(self.vectors.b, room, round_up(operand.nbytes, ALIGNMENT))
        if copied:
            self.vectors.code.barrier()

    # ------------------------------------------------------------- operands

    def read(self, row: Index, number: Index, lanes: int, behind: Index = 0) -> Complex:
        """Numbers of an operand: neighbours along the axis, or behind it; real ones in pairs where their number is even."""
        vectors, problem, indices = self.vectors, self.problem, self.vectors.indices
        first, stored = self.operands[0], problem.stored
        if problem.kind == "complex":
            place = indices.mul(first.place(row, number, behind), 2)
            return self._directed(vectors.load_pairs(first.memory, place, lanes, stored))
        if problem.kind == "half":
            return self._read_real(row, number, lanes)
        place = first.place(row, number, behind)
        re = vectors.load(first.memory, place, lanes, stored)
        if problem.kind == "whole":
            second = self.operands[1]
            im = vectors.load(second.memory, second.place(row, number), lanes, stored)
            return Complex(re, im)
        place = first.place(row, indices.add(number, problem.count), behind)
        return self._directed(Complex(re, vectors.load(first.memory, place, lanes, stored)))

    def _read_real(self, row: Index, number: Index, lanes: int) -> Complex:
        """Neighbours of a signal, times the window where there is one; zeros where the signal has ended."""
        vectors, problem, first = self.vectors, self.problem, self.operands[0]
        start = vectors.indices.mul(number, 2 if self.packed else 1)
        place = first.place(row, start)

        def load(along: Index, lanes: int) -> Lane:
            left = None
            if problem.given < problem.count:
                left = vectors.indices.sub(problem.given, vectors.indices.add(start, along))
            at = vectors.indices.add(place, along)
            value = vectors.load(first.memory, at, lanes, problem.stored, left)
            if self.window is None:
                return value
            at = vectors.indices.add(vectors.indices.add(start, along), self.window.offset)
            memory = vectors.code.operand_of(self.window.base)
            return value * vectors.load(memory, at, lanes, problem.stored, left)

        if not self.packed:
            return Complex(load(0, lanes), vectors.zero(lanes))
        if lanes == 1:
            return Complex(load(0, 1), load(1, 1))
        return vectors.parted(load(0, lanes), load(lanes, lanes))

    def write(self, row: Index, number: Index, z: Complex, behind: Index = 0) -> None:
        """Numbers of the result; of half a spectrum they are scaled before."""
        vectors, problem, indices = self.vectors, self.problem, self.vectors.indices
        stored = problem.stored
        if problem.kind == "half":
            if problem.hop is not None:
                place = indices.add(indices.mul(row, 2 * problem.bins), number)
                vectors.store(z.re, self.results[0], place, stored)
                vectors.store(z.im, self.results[0], indices.add(place, problem.bins), stored)
                return
            place = indices.add(indices.mul(row, problem.bins), number)
            for side, part in enumerate(z):
                if side in self.results:
                    vectors.store(part, self.results[side], place, stored)
            return
        z = self._directed(z.scaled(problem.scale))
        if problem.kind == "whole":
            self._write_real(row, number, z)
            return
        size = problem.count * (2 if problem.kind == "block" else 1)
        place = indices.add(indices.mul(row, size), number)
        place = indices.add(indices.mul(place, problem.inner), behind)
        if problem.kind == "complex":
            vectors.store_pairs(z, self.results[0], indices.mul(place, 2), stored)
            return
        other = indices.add(place, problem.count * problem.inner)
        vectors.store(z.re, self.results[0], place, stored)
        vectors.store(z.im, self.results[0], other, stored)

    def _write_real(self, row: Index, number: Index, z: Complex) -> None:
        """Neighbours of a signal, as far as they are kept."""
        vectors, problem, indices = self.vectors, self.problem, self.vectors.indices
        start = indices.mul(number, 2 if self.packed else 1)
        place = indices.add(indices.mul(row, problem.kept), start)
        lines = [z.re] if not self.packed else vectors.joined(z)
        for line, part in enumerate(lines):
            along = line * (part.count or 1)
            left = None
            if problem.kept < problem.count:
                left = indices.sub(problem.kept, indices.add(start, along))
            at = indices.add(place, along)
            vectors.store(part, self.results[0], at, problem.stored, left)

    def _directed(self, z: Complex) -> Complex:
        return z.exchanged if self.problem.inverse else z
