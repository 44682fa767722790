"""Where a thread of a kernel of rows stands, and which elements it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....backends.wgpu.machine import Machine
from ....backends.wgpu.writer import Text
from ....graph import dtypes
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...ir.math import register_type
from ...problems.rows import Passes
from ..elements import is_packed
from ..shader import Shader
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
    valid: str


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
    valid: str


class RowPlace:
    """A dispatch, as far as it goes through rows.

    Threads that share a row are ``member`` 0, 1, ... of it, and the row is number ``beside`` of its workgroup.

    Args:
        spec: what the kernel computes.
        machine: for which GPU.
        passes: the reductions.
        layout: how rows are shared out.
        adjacent: whether threads of one row stand side by side; otherwise those of different rows do.
    """

    def __init__(
        self, spec: Spec, machine: Machine, passes: Passes, layout: Layout, *, adjacent: bool
    ) -> None:
        self.adjacent = adjacent
        self.spec = spec
        self.passes = passes
        self.layout = layout
        self.length, self.rows = row_length(passes), row_count(passes)
        self.across = lies_across(passes)
        self.shader = Shader(spec, machine, threads=layout.threads)
        self.writer = self.shader.writer
        self._as_vectors()
        self.elements = RowElements(self.writer, spec.body, self.shader.operands, self.shader.fault)
        self.elements.beside = {}
        self.elements.vector = layout.vector
        self.places, self.registers = self.elements.places, self.elements.registers
        self.others = [axis for axis in range(len(passes.space)) if axis not in passes.axes]
        inner, outer = f"local % {layout.peers}u", f"local / {layout.peers}u"
        if not adjacent:
            inner, outer = f"local / {layout.side}u", f"local % {layout.side}u"
        self.writer.line(f"let member = {inner};")
        self.writer.line(f"let beside = {outer};")
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
        self.row_valid = ""

    def _is_full(self, node: Node) -> bool:
        return tuple(sizes(node)) == self.passes.space

    def _as_vectors(self) -> None:
        """Let what has the rows' last axis be seen as vectors, and results that share words as whole ones."""
        shader, vector = self.shader, self.layout.vector
        inputs, outputs = full_nodes(self.spec.body, self.passes)
        wide = {node.id for node in (*inputs, *outputs)}
        results = [*zip(self.spec.body.outputs, shader.results, strict=True)]
        self.joined: set[int] = set()
        for node, memory in [*zip(self.spec.inputs, shader.operands, strict=True), *results]:
            if vector > 1 and node.id in wide and has_whole_words(node.dtype, vector):
                shader.as_vectors(memory, vector)
        for number, node in enumerate(self.spec.body.outputs):
            if not self._is_full(node) or not is_packed(node.dtype):
                continue
            joined = vector == 1 and self._share_words(node)
            if joined or has_whole_words(node.dtype, vector):
                shader.results[number] = replace(shader.results[number], atomic=False)
            if joined:
                self.joined.add(number)

    def _share_words(self, node: Node) -> bool:
        """Whether the elements that share a word are those of neighbouring threads, that run in step."""
        share, machine = 4 // node.dtype.itemsize, self.shader.machine
        beside = not self.adjacent and self.layout.side % share == 0
        in_step = machine.subgroup and machine.subgroups[0] >= share
        return beside and in_step and self.passes.space[-1] % share == 0

    # ------------------------------------------------------------- where a thread stands

    def let(self, text: str) -> Text:
        """A number of 32 bits by a name."""
        return self.writer.let(register_type(dtypes.u32), text)

    def at_row(self, number: str, *, certain: bool) -> None:
        """Stand at a row; one that may be behind the last is the last, and nothing is written for it."""
        found = self.let(number)
        self.row_valid = ""
        if not certain:
            self.row_valid = self.writer.name("valid")
            self.writer.line(f"let {self.row_valid} = {found.text} < {self.rows}u;")
            found = self.let(f"min({found.text}, {self.rows - 1}u)")
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
        own = "member" if layout.vector == 1 else f"member * {layout.vector}u"
        found: Number = (
            self.let(f"{self.places.text(start)} + {own}") if layout.peers > 1 else start
        )
        reach = self.length % layout.step == 0
        if isinstance(start, int):
            reach = start + layout.stride <= self.length
        valid = ""
        if not reach:
            valid = self.writer.name("valid")
            text = self.places.text(found)
            self.writer.line(f"let {valid} = {text} < {self.length}u;")
            found = self.let(f"min({text}, {self.length - layout.vector}u)")
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
        inside: Callable[[list[Vector], list[Any]], Sequence[Any]],
        carried: Sequence[Any],
        base: Number = 0,
        stop: Number | None = None,
    ) -> list[Any]:
        """Go through this thread's elements of the row, all at once where they are held."""
        layout = self.layout
        if layout.held:
            return list(inside(self.held(), list(carried)))

        def step(first: Any, values: list[Any]) -> Sequence[Any]:
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
