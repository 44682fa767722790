"""One transform in all lanes: the length in two factors, transforms of the first of them side by side, roots of unity and a transpose, transforms of the second.

With N = A B and x seen as A rows of B columns, lanes are neighbouring columns first. Their results are transposed in squares of registers, and lanes are neighbours among the A
results of the first step then, which are neighbours in the result too. Both steps so read and write vectors. Threads share either step where a transform is long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ....codegen.ir.butterflies import Complex
from ....codegen.ir.index import Index
from ....codegen.ir.types import Pointer, Value
from ....codegen.problems.fft import (
    chirp,
    chirp_spectrum,
    convolved_length,
    halves,
    roots,
)
from ....graph.integers import ceil_div
from .lanes import LaneTransform, is_direct
from .registers import Share, Vectors, power_below

WHOLE_TABLE = 1 << 14
"""Numbers of a transform up to which each root of unity between the steps has a place in a table; longer ones multiply two."""

Read = Callable[[Index, int], Complex]
"""Numbers from one on, in so many lanes."""
Write = Callable[[Index, Complex], None]


@dataclass(frozen=True)
class SplitPlan:
    """How a length is cut.

    Attributes:
        count: the length.
        first: the first factor.
        second: the second one.
        lanes: of vectors in both steps.
        pitch: from one row to the next of what lies between the steps.
    """

    count: int
    first: int
    second: int
    lanes: int
    pitch: int

    @classmethod
    def of(cls, count: int, width: int, itemsize: int) -> SplitPlan:
        """The plan of a smooth length, with vectors of ``width`` lanes at the most."""
        first, second = halves(count, width)
        lanes = min(width, power_below(first))
        aliased = first * itemsize % 4096 == 0
        return cls(count, first, second, lanes, first + lanes if aliased else first)

    @property
    def between(self) -> int:
        """Elements of what lies between the steps."""
        return 2 * self.second * self.pitch

    @property
    def own(self) -> int:
        """Elements of scratch memory of a thread."""
        lanes = self.lanes
        work = max(LaneTransform.elements(n, lanes) for n in (self.first, self.second))
        return work + 2 * lanes * self.first


class SplitTransform:
    """Code of a plan; ``share`` says which thread does what, and ``wait`` lets them meet."""

    def __init__(
        self, vectors: Vectors, plan: SplitPlan, share: Share, wait: Callable[[], None]
    ) -> None:
        self.vectors, self.plan, self.share, self.wait = vectors, plan, share, wait
        self.steps = [LaneTransform(vectors, n, plan.lanes) for n in (plan.first, plan.second)]
        self._factors = self._tables()

    def emit(self, read: Read, write: Write, between: Pointer, own: Pointer) -> None:
        """Transform what ``read`` gives to ``write``, through memory between the steps and this thread's own."""
        vectors, plan, lanes = self.vectors, self.plan, self.plan.lanes
        panel = own
        work = vectors.moved(own, 2 * lanes * plan.first)

        def columns(column: Index) -> None:
            def load(row: Index) -> Complex:
                place = vectors.indices.add(vectors.indices.mul(row, plan.second), column)
                return read(place, lanes)

            def keep(row: Index, z: Complex) -> None:
                vectors.store_slot(z.times(self._factor(row, column)), panel, row, lanes)

            self.steps[0].emit(load, keep, work)
            vectors.blocks(
                plan.first, lanes, vectors.all, lambda row: self._turn(panel, row, column, between)
            )

        def rows(row: Index) -> None:
            def load(column: Index) -> Complex:
                return vectors.load_both(between, *self._places(column, row), lanes)

            def finish(column: Index, z: Complex) -> None:
                place = vectors.indices.add(vectors.indices.mul(column, plan.first), row)
                write(place, z)

            self.steps[1].emit(load, finish, work)

        vectors.blocks(plan.second, lanes, self.share, columns)
        self.wait()
        vectors.blocks(plan.first, lanes, self.share, rows)
        self.wait()

    def _places(self, column: Index, row: Index) -> tuple[Index, Index]:
        """Where real and imaginary parts between the steps lie."""
        indices = self.vectors.indices
        first = indices.add(indices.mul(column, self.plan.pitch), row)
        return first, indices.add(first, self.plan.second * self.plan.pitch)

    def _turn(self, panel: Pointer, row: Index, column: Index, between: Pointer) -> None:
        """A square from rows of columns to columns of rows."""
        vectors, lanes, indices = self.vectors, self.plan.lanes, self.vectors.indices
        lines = [vectors.load_slot(panel, indices.add(row, i), lanes) for i in range(lanes)]
        turned = [vectors.transposed([line[side] for line in lines]) for side in range(2)]
        for i in range(lanes):
            places = self._places(indices.add(column, i), row)
            vectors.store_both(Complex(turned[0][i], turned[1][i]), between, *places)

    # ------------------------------------------------------------- roots of unity between the steps

    def _tables(self) -> tuple[Pointer, ...]:
        vectors, plan = self.vectors, self.plan
        rows = np.arange(plan.first)
        name = f"between{plan.first}by{plan.second}"
        if plan.count <= WHOLE_TABLE:
            powers = np.outer(rows, np.arange(plan.second))
            return (vectors.planes(name, roots(powers, plan.count)),)
        starts = np.arange(ceil_div(plan.second, plan.lanes)) * plan.lanes
        starts = np.minimum(starts, plan.second - plan.lanes)
        coarse = roots(np.outer(rows, starts), plan.count)
        fine = roots(np.outer(rows, np.arange(plan.lanes)), plan.count)
        return vectors.table(f"{name}starts", coarse), vectors.planes(f"{name}lanes", fine)

    def _factor(self, row: Index, column: Index) -> Complex:
        """``exp(-2 pi i row column / N)`` for neighbouring columns."""
        vectors, plan, indices = self.vectors, self.plan, self.vectors.indices
        if len(self._factors) == 1:
            place = indices.add(indices.mul(row, plan.second), column)
            return vectors.load_both(
                self._factors[0], place, indices.add(place, plan.count), plan.lanes
            )
        coarse, fine = self._factors
        blocks = ceil_div(plan.second, plan.lanes)
        # The last block may begin before a multiple of the lanes: it is rounded up to its number.
        number = indices.div(indices.add(column, plan.lanes - 1), plan.lanes)
        start = vectors.entry(coarse, indices.add(indices.mul(row, blocks), number), plan.lanes)
        place = indices.mul(row, plan.lanes)
        wave = vectors.load_both(
            fine, place, indices.add(place, plan.first * plan.lanes), plan.lanes
        )
        return wave.times(start)


class LineTransform:
    """A transform of any length along a line: two steps, or a convolution made of two such transforms.

    Attributes:
        plan: of the transform that it consists of.
        between: elements of memory between steps.
        own: elements of a thread's own memory.
    """

    def __init__(self, count: int, width: int, itemsize: int) -> None:
        self.count = count
        self.smooth = is_direct(count)
        self.length = count if self.smooth else convolved_length(count)
        self.plan = SplitPlan.of(self.length, width, itemsize)
        self.between = self.plan.between + (0 if self.smooth else 2 * self.length)
        self.own = self.plan.own

    def emit(  # many parameters: where it reads, writes, works, and who shares it
        self,
        split: SplitTransform,
        read: Read,
        write: Write,
        between: Pointer,
        own: Pointer,
    ) -> None:
        """Transform what ``read`` gives to ``write``."""
        if self.smooth:
            split.emit(read, write, between, own)
            return
        vectors, length, count = split.vectors, self.length, self.count
        lanes = min(self.plan.lanes, power_below(count))
        wave = vectors.planes(f"wave{count}", chirp(count))
        spectrum = vectors.planes(f"spectrum{count}", chirp_spectrum(count, length))
        line = vectors.moved(between, self.plan.between)
        indices = vectors.indices

        def of(memory: Pointer, size: int, place: Index, wide: int) -> Complex:
            return vectors.load_both(memory, place, indices.add(place, size), wide)

        def keep(place: Index, z: Complex) -> None:
            vectors.store_both(z, line, place, indices.add(place, length))

        def fill(place: Index) -> None:
            keep(place, read(place, lanes).times(of(wave, count, place, lanes)))

        def clear(number: Value) -> None:
            zero = vectors.zero(1)
            keep(indices.add(number, count), Complex(zero, zero))

        def multiply(place: Index, z: Complex) -> None:
            product = z.times(of(spectrum, length, place, self.plan.lanes))
            keep(place, product.exchanged)

        def again(place: Index, wide: int) -> Complex:
            return of(line, length, place, wide)

        def finish(place: Index) -> None:
            z = of(line, length, place, lanes).exchanged
            write(place, z.times(of(wave, count, place, lanes)))

        vectors.blocks(count, lanes, split.share, fill)
        split.share(length - count, clear)
        split.wait()
        split.emit(again, multiply, between, own)
        split.emit(again, keep, between, own)
        vectors.blocks(count, lanes, split.share, finish)
        split.wait()
