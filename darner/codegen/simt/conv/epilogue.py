"""The way of sums to a convolution's results: through what is computed from them element by element, or to scratch memory where they are parts of sums."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.registers import Registers
from ..builder import Memory, Operand, is_packed
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import Machine
from ..main_node import Element, main_stages

BESIDE = 8
"""Parts of a sum that are read together."""


def words_of(spec: Spec) -> int:
    """Elements that share a word of memory, in the result of the smallest type."""
    return max(max(1, 4 // out.dtype.itemsize) for out in spec.body.outputs)


class Finish:
    """The end of a kernel about a main node.

    Args:
        dispatch: of the kernel; its results are written in whole words where ``together`` is above 1.
        main: what it has sums of.
        parts: how many pieces these are in; several go to scratch memory from byte ``start`` on.
        together: neighbouring elements that are written at once.
    """

    def __init__(
        self, dispatch: Dispatch, main: Node, parts: int, start: int = 0, together: int = 1
    ) -> None:
        self.dispatch, self.main, self.parts, self.together = dispatch, main, parts, together
        self.shape = sizes(main)
        self.memory: Memory | None = None
        self.elements: ThreadElements = dispatch.elements()
        if parts > 1:
            kept = self.elements.registers.kept_in(main.dtype)
            self.memory = dispatch.scratch(start, parts * prod(self.shape), kept)

    def write(
        self, indices: Sequence[Sequence[Number]], sums: Sequence[Operand], part: Number
    ) -> None:
        """Take the sums at neighbouring indices to the results."""
        e = self.elements
        at: Number = e.places.offset(indices[0], self.shape)
        if self.memory is not None:
            at = e.places.add(e.places.mul(part, prod(self.shape)), at)
            for k, value in enumerate(sums):
                e.registers.store(value, self.memory, e.places.add(at, k), self.memory.dtype)
            return
        # All are computed before any is written: a result may lie where an operand does.
        values = []
        for index, value in zip(indices, sums, strict=True):
            with e.scope():
                e.give(self.main, e.registers.reduced("sum", value, self.main.dtype))
                values.append([e.at(out, index) for out in self.dispatch.body.outputs])
        for number, (out, memory) in enumerate(
            zip(self.dispatch.body.outputs, self.dispatch.results, strict=True)
        ):
            _store(e, memory, out.dtype, at, [row[number] for row in values])


def _store(
    e: ThreadElements, memory: Memory, dtype: DType, at: Number, values: Sequence[Operand]
) -> None:
    """Write neighbouring elements; of small types whole words, where there are several."""
    share = 4 // dtype.itemsize if is_packed(dtype) else 1
    if share == 1 or len(values) % share:
        for k, value in enumerate(values):
            e.registers.store(value, memory, e.places.add(at, k), dtype)
        return
    word = e.places.value(e.places.div(at, share))
    for first in range(0, len(values), share):
        made = e.registers.word(values[first : first + share], dtype)
        memory[word + first // share] = made


def added_up(
    stages: Sequence[Stage], spec: Spec, machine: Machine, main: Node, parts: int, start: int
) -> Written:
    """Some dispatches, and one more that adds up what ``Finish`` left in scratch memory from byte ``start`` on, where sums are in parts."""
    if parts == 1:
        return Written(tuple(stages), start)
    shape = sizes(main)

    def element(dispatch: Dispatch) -> Element:
        kept = dispatch.elements().registers.kept_in(main.dtype)
        memory = dispatch.scratch(start, parts * prod(shape), kept)

        def at(e: ThreadElements, index: list[Number]) -> Operand:
            place = e.places.offset(index, shape)

            def add_parts(first: Number, count: int, total: Operand) -> Operand:
                # All are read before any is added: so they are on the way together.
                moved = [
                    e.places.mul(e.places.add(first, part), prod(shape)) for part in range(count)
                ]
                values = [e.registers.load(memory, e.places.add(place, far), kept) for far in moved]
                for value in values:
                    total = e.builder.fadd(total, value)
                return total

            total = e.registers.constant(0.0, kept)
            whole = parts // BESIDE * BESIDE
            if whole:
                (total,) = e.loop(
                    0, whole, lambda i, sums: [add_parts(i, BESIDE, sums[0])], [total], step=BESIDE
                )
            total = add_parts(whole, parts - whole, total)
            return e.registers.reduced("sum", total, main.dtype)

        return at

    nbytes = parts * prod(shape) * Registers.kept_in(main.dtype).itemsize
    return Written((*stages, *main_stages(spec, machine, main, element)), start + nbytes)


def split_parts(
    e: ThreadElements, part: Number, parts: int, steps: int, count: Number
) -> tuple[Number, Number]:
    """The first step of a part of the sums and the one behind its last, of ``count`` in all."""
    if parts == 1:
        return 0, count
    b = e.builder
    first, total = e.places.value(e.places.mul(part, steps)), e.places.value(count)
    return b.let(b.min(first, total)), b.let(b.min(first + steps, total))


def unmerged(
    e: ThreadElements, pixel: Sequence[Number], merged: Sequence[int], main: Node
) -> list[Number]:
    """A pixel's place along the axes of the node, of which ``Patches`` took some together."""
    own = [int(size) for size in main.shape[2:]]
    return e.places.reshaped(pixel, merged, own)
