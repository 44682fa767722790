"""Kernels that write where an index says: ``scatter``, ``scatter_add`` and ``scatter_add_along_axis``.

A tensor is seen as [outer, size, inner], the slices of ``src`` as [outer, count, inner]. No order of threads is ever seen in a result. Few slices are looked through by
whoever writes a place, or by each other. Many are put in the order of their indices first, so that all that go to one place stand side by side, in their own order. The sorted slices are
then divided into pieces of equal length: what lies in one piece is combined by one thread for each column, and a place that several pieces have slices of is put
together afterwards. Where every column has indices of its own, and there are many columns, a thread goes along each. An index outside is left out, and told of.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ....backends.wgpu.text import Text
from ....graph import dtypes
from ....graph.dtypes import DType
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.math import emit, register_type
from ..builder import Memory, is_packed
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import Machine
from ..sort.template import Sort, rounded, word
from ..template import Template
from .update import filled, prepared

NAMES = ("scatter", "scatter_add", "scatter_add_along_axis")
COMBINES = {
    "add": ("sum", "add"),
    "mul": ("prod", "mul"),
    "max": ("max", "larger"),
    "min": ("min", "smaller"),
}
"""What each mode combines: the reduction whose neutral element it begins with, and the op."""
SMALL = 1 << 21
"""Up to so many comparisons every element of the result looks through all indices."""
FEW = 8
"""So few elements of a column are not sorted, and its words are made whole where elements share them."""
UNSORTED = 64
"""Up to so many slices each looks through the indices of the others."""
PIECE = 32
"""Sorted slices that one thread combines."""
AHEAD = 4
"""Slices that are read before the first of them is combined."""
COLUMNS = 4096
"""Columns of their own indices that keep a GPU busy with a thread for each."""


class _Scatter:
    """What goes where."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        (node,) = spec.body.outputs
        self.spec, self.machine, self.node = spec, machine, node
        self.along = node.op.name == "scatter_add_along_axis"
        self.mode = str(node.attrs.get("mode", "add"))
        self.indices = node.operands[node.slots.index("indices")]
        self.src = node.operands[node.slots.index("src")]
        self.x = node.operands[node.slots.index("x")] if "x" in node.slots else None
        self.axis = int(node.attrs["axis"])
        whole = sizes(node)
        self.lead, self.size, self.tail = (
            whole[: self.axis],
            whole[self.axis],
            whole[self.axis + 1 :],
        )
        self.outer, self.inner = prod(self.lead), prod(self.tail)
        self.count = sizes(self.src)[self.axis] if self.along else prod(sizes(self.indices))
        columns = self.outer * self.inner
        # Where indices are those of whole slices, one row of them is sorted for all columns.
        self.rows, self.columns = (columns, 1) if self.along else (1, columns)
        self.kept = dtypes.f32 if node.dtype.is_half else node.dtype

    # ------------------------------------------------------------- elements

    def _parts(self, elements: ThreadElements, column: Any) -> tuple[list[Any], list[Any]]:
        """The indices of a column along the axes before and after the one that is written along."""
        places = elements.places
        outer, inner = (
            places.div(column, max(self.inner, 1)),
            places.mod(column, max(self.inner, 1)),
        )
        lead = places.split(outer, self.lead) if self.lead else []
        return lead, places.split(inner, self.tail) if self.tail else []

    def index(self, elements: ThreadElements, row: Any, number: Any) -> Text:
        """The place that a slice goes to, as it is given."""
        if self.along:
            lead, tail = self._parts(elements, row)
            at = [*lead, number, *tail]
        else:
            at = elements.places.split(number, sizes(self.indices)) if self.indices.rank else []
        found: Text = elements.places.plain(elements.integer(self.indices, at))
        return found

    def value(self, elements: ThreadElements, row: Any, number: Any, column: Any) -> Any:
        """An element of a slice, in the type that is combined in."""
        lead, tail = self._parts(elements, row if self.along else column)
        token = [number]
        if not self.along:
            token = elements.places.split(number, sizes(self.indices)) if self.indices.rank else []
        found = elements.at(self.src, [*lead, *token, *tail])
        return elements.registers.cast(found, self.src.dtype, self.kept)

    def offset(self, elements: ThreadElements, row: Any, place: Any, column: Any) -> Any:
        """Where an element of the result lies."""
        places = elements.places
        flat = row if self.along else column
        outer, inner = places.div(flat, max(self.inner, 1)), places.mod(flat, max(self.inner, 1))
        return places.add(
            places.mul(places.add(places.mul(outer, self.size), place), self.inner), inner
        )

    def neutral(self, elements: ThreadElements) -> Any:
        """What is combined with nothing."""
        if self.mode == "set":
            return elements.registers.constant(0, self.kept)
        return elements.registers.neutral(COMBINES[self.mode][0], self.kept, self.kept)

    def combined(self, elements: ThreadElements, total: Any, value: Any) -> Any:
        """Two values as one."""
        if self.mode == "set":
            return value
        op = COMBINES[self.mode][1]
        return emit(op, elements.builder, [total, value], [self.kept, self.kept], self.kept)

    def store(self, shader: Dispatch, elements: ThreadElements, total: Any, offset: Any) -> None:
        """Write what slices gave together, with what was there before."""
        registers, (result,) = elements.registers, shader.results
        if self.x is not None and self.mode != "set":
            before = registers.load(result, offset, self.node.dtype)
            before = registers.cast(before, self.node.dtype, self.kept)
            total = self.combined(elements, before, total)
        value = registers.cast(total, self.kept, self.node.dtype)
        registers.store(value, result, offset, self.node.dtype)

    # ------------------------------------------------------------- few slices

    def looked_through(self) -> Stage:
        """Every element of the result looks for the slices that go to it."""
        shape = sizes(self.node)

        def value(elements: ThreadElements, at: Text) -> Any:
            places, registers, writer = elements.places, elements.registers, elements.builder
            index = places.split(at, shape)
            lead, place, tail = index[: self.axis], index[self.axis], index[self.axis + 1 :]
            outer = places.offset(lead, self.lead)
            column = places.add(places.mul(outer, self.inner), places.offset(tail, self.tail))
            total = self.neutral(elements)
            if self.x is not None:
                total = registers.cast(elements.at(self.x, index), self.x.dtype, self.kept)

            def one(number: Any, held: list[Any]) -> list[Any]:
                found = self.index(elements, column, number)
                elements.check(self.node, found, self.size)
                kind = writer.name("c")
                writer.line(f"var {kind} = {writer.text(held[0])};")
                same = f"if ({writer.text(found)} == {places.text(place)})"
                with writer.block(same), elements.scope():
                    each = self.value(elements, column, number, column)
                    following = self.combined(elements, Text(held[0].type, kind), each)
                    writer.line(f"{kind} = {writer.text(following)};")
                return [Text(held[0].type, kind)]

            (total,) = elements.loop(0, self.count, one, [total])
            return registers.cast(total, self.kept, self.node.dtype)

        return filled(self.spec, self.machine, 0, value)

    def directly(self) -> Stage:
        """Of all slices that go to one place one writes what they give together: the last where it replaces, the first where it combines all."""
        shader, count = Dispatch(self.spec, self.machine), self.count * self.columns
        writer, sets = shader.builder, self.mode == "set"
        with writer.block(f"if (thread < {count}u)"):
            elements = shader.elements()
            number, column = elements.places.split(word("thread"), (self.count, self.columns))
            number = elements.places.plain(number)
            own = writer.text(number)
            place = self.index(elements, 0, number)
            elements.check(self.node, place, self.size)
            writer.line(f"var writes = {place.text} < {self.size}u;")
            others = f"{own} + 1u; other < {self.count}u" if sets else f"0u; other < {own}"
            with writer.block(f"for (var other = {others}; other++)"), elements.scope():
                found = self.index(elements, 0, word("other"))
                writer.line(f"writes = writes && {found.text} != {place.text};")
            with writer.block("if (writes)"), elements.scope():
                value = self.value(elements, 0, number, column)
                writer.line(f"var total = {writer.text(value)};")
                total = Text(value.type, "total")
                if not sets:
                    rest = f"for (var other = {own} + 1u; other < {self.count}u; other++)"
                    with writer.block(rest), elements.scope():
                        found = self.index(elements, 0, word("other"))
                        with writer.block(f"if ({found.text} == {place.text})"), elements.scope():
                            each = self.value(elements, 0, word("other"), column)
                            following = self.combined(elements, total, each)
                            writer.line(f"total = {writer.text(following)};")
                self.store(shader, elements, total, self.offset(elements, 0, place, column))
        return shader.finish(-(-count // shader.threads))

    # ------------------------------------------------------------- columns with indices of their own

    def by_columns(self) -> Stage:
        """A thread goes along each column."""
        shader = Dispatch(self.spec, self.machine)
        writer, (result,) = shader.builder, shader.results
        with writer.block(f"if (thread < {self.rows}u)"):
            elements = shader.elements()

            def one(number: Any, _: list[Any]) -> list[Any]:
                place = self.index(elements, word("thread"), number)
                elements.check(self.node, place, self.size)
                with writer.block(f"if ({writer.text(place)} < {self.size}u)"), elements.scope():
                    offset = self.offset(elements, word("thread"), place, 0)
                    before = elements.registers.load(result, offset, self.node.dtype)
                    value = self.value(elements, word("thread"), number, 0)
                    total = self.combined(elements, before, value)
                    elements.registers.store(total, result, offset, self.node.dtype)
                return []

            elements.loop(0, self.count, one)
        return shader.finish(-(-self.rows // shader.threads))

    # ------------------------------------------------------------- slices in order

    def in_order(self) -> tuple[list[Stage], int]:
        """Slices are sorted by their indices, and combined piece by piece."""
        count = self.rows * self.count
        keys_at, numbers_at = 0, rounded(4 * count)
        self._keys, self._numbers = keys_at, numbers_at

        def key(shader: Dispatch, elements: ThreadElements, row: Text, number: Text) -> Text:
            found = self.index(elements, row, number)
            elements.check(self.node, found, self.size)
            return shader.builder.let_text(found.type, f"min({found.text}, {self.size}u)")

        def finish(
            shader: Dispatch,
            elements: ThreadElements,
            row: Text,
            place: Text,
            key: Text,
            number: Text,
        ) -> None:
            keys, numbers = self._sorted(shader)
            at = f"{row.text} * {self.count}u + {place.text}"
            shader.builder.line(f"{keys.name}[{at}] = {key.text};")
            shader.builder.line(f"{numbers.name}[{at}] = {number.text};")

        start = numbers_at + rounded(4 * count)
        sort = Sort(self.spec, self.machine, self.rows, self.count, key, finish, start=start)
        stages = sort.stages()
        if self.mode == "set":
            return [*stages, self._last_of_each()], sort.end
        pieces = -(-self.count // PIECE)
        self._partial = sort.end
        stages.append(self._pieces(pieces))
        end = sort.end
        if pieces > 1:
            stages.append(self._joined(pieces))
            end += 2 * rounded(self._threads(pieces) * self._held.itemsize)
        return stages, end

    def _sorted(self, shader: Dispatch) -> tuple[Memory, Memory]:
        count = self.rows * self.count
        return tuple(shader.scratch(at, count, dtypes.u32) for at in (self._keys, self._numbers))  # type: ignore[return-value]

    def _threads(self, pieces: int) -> int:
        return self.rows * pieces * self.columns

    @property
    def _held(self) -> DType:
        """The type that parts of a result are kept in."""
        return dtypes.u32 if is_packed(self.kept) else self.kept

    def _heads_and_tails(self, shader: Dispatch, pieces: int) -> tuple[Memory, Memory]:
        """For each piece, what its first place gets where pieces before have slices of it too, and what its last gets where later ones have."""
        count = self._threads(pieces)
        return tuple(  # type: ignore[return-value]
            shader.scratch(
                self._partial + k * rounded(count * self._held.itemsize), count, self._held
            )
            for k in range(2)
        )

    def _split(self, shader: Dispatch, per_row: int) -> tuple[Text, Text, Text]:
        """The row, the number in it and the column of a thread; neighbours have neighbouring columns."""
        writer = shader.builder
        writer.line(f"let column = thread % {self.columns}u;")
        writer.line(f"let number = thread / {self.columns}u % {per_row}u;")
        writer.line(f"let row = thread / {self.columns * per_row}u;")
        return word("row"), word("number"), word("column")

    def _last_of_each(self) -> Stage:
        """Of the slices of one place the last is written."""
        shader, count = Dispatch(self.spec, self.machine), self.rows * self.count * self.columns
        writer = shader.builder
        keys, numbers = self._sorted(shader)
        with writer.block(f"if (thread < {count}u)"):
            elements = shader.elements()
            row, at, column = self._split(shader, self.count)
            place = writer.let_text(word("").type, f"{keys.name}[number]")
            last = f"(number == {self.count - 1}u || {keys.name}[min(number + 1u, {self.count - 1}u)] != {place.text})"
            with writer.block(f"if ({place.text} < {self.size}u && {last})"), elements.scope():
                which = writer.let_text(at.type, f"{numbers.name}[number]")
                value = self.value(elements, row, which, column)
                self.store(shader, elements, value, self.offset(elements, row, place, column))
        return shader.finish(-(-count // shader.threads))

    def _pieces(self, pieces: int) -> Stage:
        """Combine what lies in each piece; a place that lies in one piece only is done then."""
        shader, writer = (made := Dispatch(self.spec, self.machine)), made.builder
        keys, numbers = self._sorted(shader)
        parts = self._heads_and_tails(shader, pieces) if pieces > 1 else None
        elements = shader.elements()
        kind = register_type(self.kept)
        neutral = writer.text(self.neutral(elements))

        def flush(ends: str) -> None:
            with writer.block(f"if (place < {self.size}u)"), elements.scope():
                total = Text(kind, "total")
                if parts is None:
                    self.store(
                        shader, elements, total, self.offset(elements, row, word("place"), column)
                    )
                    return
                with writer.block(f"if (begins && {ends})"), elements.scope():
                    self.store(
                        shader, elements, total, self.offset(elements, row, word("place"), column)
                    )
                with writer.block("else if (begins)"):
                    writer.line(f"{parts[1].name}[thread] = {self._as_held('total')};")
                with writer.block("else"):
                    writer.line(f"{parts[0].name}[thread] = {self._as_held('total')};")

        with writer.block(f"if (thread < {self._threads(pieces)}u)"), elements.scope():
            row, _, column = self._split(shader, pieces)
            writer.line(f"let base = row * {self.count}u;")
            writer.line(f"let first = number * {PIECE}u;")
            writer.line(f"let last = min(first + {PIECE}u, {self.count}u);")
            writer.line(f"var place = {keys.name}[base + first];")
            before = f"{keys.name}[base + max(first, 1u) - 1u]"
            writer.line(f"var begins = first == 0u || {before} != place;")
            writer.line(f"var total = {neutral};")
            head = f"for (var at = first; at < last; at += {AHEAD}u)"
            with writer.block(head), elements.scope():
                values = []
                for k in range(AHEAD):
                    writer.line(f"let at{k} = base + min(at + {k}u, last - 1u);")
                    writer.line(f"let key{k} = {keys.name}[at{k}];")
                    which = writer.let_text(column.type, f"{numbers.name}[at{k}]")
                    values.append(self.value(elements, row, which, column))
                for k, value in enumerate(values):
                    with writer.block(f"if (at + {k}u < last)"), elements.scope():
                        with writer.block(f"if (key{k} != place)"), elements.scope():
                            flush("true")
                            writer.line(f"place = key{k};")
                            writer.line("begins = true;")
                            writer.line(f"total = {neutral};")
                        following = self.combined(elements, Text(kind, "total"), value)
                        writer.line(f"total = {writer.text(following)};")
            after = f"{keys.name}[base + min(last, {self.count - 1}u)]"
            writer.line(f"let ends = last == {self.count}u || {after} != place;")
            flush("ends")
        return shader.finish(-(-self._threads(pieces) // shader.threads))

    def _as_held(self, text: str) -> str:
        return f"u32({text})" if self.kept is dtypes.bool_ else text

    def _from_held(self, text: str) -> Text:
        text = f"({text} != 0u)" if self.kept is dtypes.bool_ else text
        return Text(register_type(self.kept), text)

    def _joined(self, pieces: int) -> Stage:
        """A place whose slices begin in one piece and end in another gets what all of these have for it."""
        shader, writer = (made := Dispatch(self.spec, self.machine)), made.builder
        keys, _ = self._sorted(shader)
        heads, tails = self._heads_and_tails(shader, pieces)
        elements = shader.elements()
        with writer.block(f"if (thread < {self._threads(pieces)}u)"), elements.scope():
            row, _, column = self._split(shader, pieces)
            writer.line(f"let base = row * {self.count}u;")
            writer.line(f"let first = number * {PIECE}u;")
            writer.line(f"let last = min(first + {PIECE}u, {self.count}u);")
            writer.line(f"let place = {keys.name}[base + last - 1u];")
            before = f"{keys.name}[base + max(first, 1u) - 1u]"
            writer.line(f"let begins = first == 0u || {before} != place;")
            after = f"{keys.name}[base + min(last, {self.count - 1}u)]"
            writer.line(f"let goes_on = last < {self.count}u && {after} == place;")
            with writer.block(f"if (begins && goes_on && place < {self.size}u)"), elements.scope():
                start = self._from_held(f"{tails.name}[thread]")
                writer.line(f"var total = {writer.text(start)};")
                writer.line("var piece = number + 1u;")
                with writer.block(f"while (piece < {pieces}u)"), elements.scope():
                    at = f"thread + (piece - number) * {self.columns}u"
                    value = self._from_held(f"{heads.name}[{at}]")
                    following = self.combined(elements, Text(start.type, "total"), value)
                    writer.line(f"total = {writer.text(following)};")
                    writer.line(f"let end = (piece + 1u) * {PIECE}u;")
                    next_ = f"{keys.name}[base + min(end, {self.count - 1}u)]"
                    writer.line(f"if (end >= {self.count}u || {next_} != place) {{ break; }}")
                    writer.line("piece++;")
                total = Text(start.type, "total")
                offset = self.offset(elements, row, word("place"), column)
                self.store(shader, elements, total, offset)
        return shader.finish(-(-self._threads(pieces) // shader.threads))


# --------------------------------------------------------------------------- kernels


def _fits(spec: Spec, machine: Machine) -> bool:
    outputs = spec.body.outputs
    return len(outputs) == 1 and outputs[0].op.name in NAMES


def _write(spec: Spec, machine: Machine) -> Written:
    found = _Scatter(spec, machine)
    elements = prod(sizes(found.node))
    if not elements:
        return Written(())
    start = prepared(spec, machine, found.x)
    if not found.count:
        return Written((start,))
    if found.mode != "set" and elements * found.count <= SMALL:
        return Written((found.looked_through(),))
    if not found.along and found.count <= UNSORTED:
        return Written((start, found.directly()))
    few = found.along and found.count <= FEW
    if found.along and (few or found.rows >= COLUMNS) and not is_packed(found.node.dtype):
        return Written((start, found.by_columns()))
    if few:
        return Written((found.looked_through(),))
    stages, scratch = found.in_order()
    return Written((start, *stages), scratch)


SCATTERS = Template("scatters", _fits, _write)
