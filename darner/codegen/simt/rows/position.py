"""Where a thread of a kernel of rows stands, and which elements it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...problems.rows import Passes
from ..builder import Operand, Value, is_packed
from ..dispatch import Dispatch
from ..machine import Machine
from .elements import RowElements, has_whole_words
from .layout import Layout, full_nodes, lies_across, row_count, row_length


@dataclass(frozen=True)
class Stretch:
    """Places side by side in any row.

    Attributes:
        start: the first of them.
        inner: the index of each along the reduced axes.
        valid: a condition, where they may be behind the row's end; they are then others of the row.
    """

    start: Number
    inner: Sequence[list[Number]]
    valid: Value | None


@dataclass(frozen=True)
class Vector:
    """Elements of a row side by side.

    Attributes:
        start: the place of the first in its row.
        indices: of each.
        valid: as that of a stretch.
    """

    start: Number
    indices: Sequence[list[Number]]
    valid: Value | None


class RowPlace:
    """A dispatch, as far as it goes through rows.

    Threads that share a row are ``member`` 0, 1, ... of it, and the row is number ``beside`` of its workgroup.

    Args:
        spec: what the kernel computes.
        machine: for which GPU.
        passes: the reductions.
        layout: how rows are shared out.
    """

    def __init__(self, spec: Spec, machine: Machine, passes: Passes, layout: Layout) -> None:
        self.spec = spec
        self.passes = passes
        self.layout = layout
        self.length, self.rows = row_length(passes), row_count(passes)
        self.across = lies_across(passes)
        self.dispatch = Dispatch(spec, machine, threads=layout.threads)
        b = self.builder = self.dispatch.builder
        self._as_vectors()
        self.elements = RowElements(b, spec.body, self.dispatch.operands, self.dispatch.fault)
        self.elements.beside = {}
        self.elements.vector = layout.vector
        self.places, self.registers = self.elements.places, self.elements.registers
        self.others = [axis for axis in range(len(passes.space)) if axis not in passes.axes]
        member, beside = b.local % layout.peers, b.local // layout.peers
        if not layout.adjacent:
            member, beside = b.local // layout.side, b.local % layout.side
        self.member, self.beside = b.let(member, "member"), b.let(beside, "beside")
        self.operands = [
            leaf
            for leaf in full_nodes(spec.body, passes)[0]
            if all(
                size in (1, whole)
                for size, whole in zip(sizes(leaf)[::-1], passes.space[::-1], strict=False)
            )
            and leaf.rank <= len(passes.space)
        ]
        self._held: list[Vector] = []
        self._stretches: list[Stretch] = []
        self.row: list[Number] = [0] * len(self.others)
        self.row_number: Number = 0
        self.row_valid: Value | None = None

    def _is_full(self, node: Node) -> bool:
        return tuple(sizes(node)) == self.passes.space

    def _as_vectors(self) -> None:
        """Let what has the rows' last axis be seen as vectors, and results that share words as whole ones."""
        dispatch, vector = self.dispatch, self.layout.vector
        inputs, outputs = full_nodes(self.spec.body, self.passes)
        wide = {node.id for node in (*inputs, *outputs)}
        results = [*zip(self.spec.body.outputs, dispatch.results, strict=True)]
        self.joined: set[int] = set()
        for node, memory in [*zip(self.spec.inputs, dispatch.operands, strict=True), *results]:
            if vector > 1 and node.id in wide and has_whole_words(node.dtype, vector):
                dispatch.as_vectors(memory, vector)
        for number, node in enumerate(self.spec.body.outputs):
            if not self._is_full(node) or not is_packed(node.dtype):
                continue
            joined = vector == 1 and self._share_words(node)
            if joined or has_whole_words(node.dtype, vector):
                dispatch.results[number] = replace(dispatch.results[number], atomic=False)
            if joined:
                self.joined.add(number)

    def _share_words(self, node: Node) -> bool:
        """Whether the elements that share a word are those of neighbouring threads, that run in step."""
        share, machine = 4 // node.dtype.itemsize, self.dispatch.machine
        beside = not self.layout.adjacent and self.layout.side % share == 0
        in_step = machine.subgroup and machine.subgroups[0] >= share
        return beside and in_step and self.passes.space[-1] % share == 0

    # ------------------------------------------------------------- where a thread stands

    def at_row(self, number: Value, *, certain: bool) -> None:
        """Stand at a row; one that may be behind the last is the last, and nothing is written for it."""
        b = self.builder
        found = b.let(number)
        self.row_valid = None
        if not certain:
            self.row_valid = b.let(found < self.rows, "valid")
            found = b.let(b.min(found, self.rows - 1))
        self.row_number = found if self.rows > 1 else 0
        self.row = self.places.split(self.row_number, [self.passes.space[a] for a in self.others])

    def place(self, inner: Sequence[Number]) -> list[Number]:
        """The index of an element of this row."""
        result: list[Number] = [0] * len(self.passes.space)
        for axis, number in zip(self.others, self.row, strict=True):
            result[axis] = number
        for axis, number in zip(self.passes.axes, inner, strict=True):
            result[axis] = number
        return result

    def stretch(self, base: Number, number: int) -> Stretch:
        """Places of a row that this thread has: so many after those that it has from ``base`` on."""
        layout = self.layout
        start = self.places.add(base, number * layout.stride)
        b = self.builder
        found = b.let(self.member * layout.vector + start) if layout.peers > 1 else start
        reach = self.length % layout.step == 0
        if isinstance(start, int):
            reach = start + layout.stride <= self.length
        valid = None
        if not reach:
            found = self.places.value(found)
            valid = b.let(found < self.length, "valid")
            found = b.let(b.min(found, self.length - layout.vector))
        *outer, last = self.places.split(found, [self.passes.space[a] for a in self.passes.axes])
        inner = [[*outer, lane] for lane in self.elements.along(last)]
        return Stretch(found, inner, valid)

    def vector(self, stretch: Stretch) -> Vector:
        """The elements of this row that lie there."""
        indices = [self.place(inner) for inner in stretch.inner]
        return Vector(stretch.start, indices, stretch.valid)

    # ------------------------------------------------------------- its elements

    def over_row(
        self,
        inside: Callable[[list[Vector], list[Operand]], Sequence[Operand]],
        carried: Sequence[Operand],
        base: Number = 0,
        stop: Number | None = None,
    ) -> list[Operand]:
        """Go through this thread's elements of the row, all at once where they are held."""
        layout = self.layout
        if layout.held:
            return list(inside(self.held(), list(carried)))

        def step(first: Operand, values: list[Operand]) -> Sequence[Operand]:
            vectors = [self.vector(self.stretch(first, k)) for k in range(layout.at_once)]
            return inside(vectors, values)

        end = self.length if stop is None else stop
        return self.elements.loop(base, end, step, carried, step=layout.step)

    def held(self) -> list[Vector]:
        """All vectors of this thread in a row that stays in registers, asked for before anything is computed."""
        if not self._held:
            self._held = [self.vector(stretch) for stretch in self.stretches()]
            self._ask(self._held, self.operands)
        return self._held

    def stretches(self) -> list[Stretch]:
        """The places that this thread has in every row that stays in registers."""
        if not self._stretches:
            self._stretches = [self.stretch(0, k) for k in range(self.layout.held)]
        return self._stretches

    def hold_shared(self) -> None:
        """Read what is the same for all rows, such as a norm's weights, before standing at any."""
        vectors = [self.vector(stretch) for stretch in self.stretches()]
        shared = [leaf for leaf in self.operands if leaf.size == sizes(leaf)[-1]]
        self._ask(vectors, shared)

    def _ask(self, vectors: Sequence[Vector], leaves: Sequence[Node]) -> None:
        for vector in vectors:
            for index in vector.indices:
                for leaf in leaves:
                    self.elements.at(leaf, self.elements.spread(leaf, index))
