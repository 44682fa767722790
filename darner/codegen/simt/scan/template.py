"""Kernels that go along an axis in order: running sums, products, maxima and minima.

A tensor is seen as [outer, length, inner]. Where there are many columns, or short ones, a thread goes along each. Otherwise a workgroup does: every thread takes a few
neighbours, what the threads have is scanned in the memory of the workgroup, and what all have together goes on to the next part of the row. Few long rows are divided: each
piece is summed up first, and then scanned from what those before it come to. So sums and products are formed in another order than one after
another. 16-bit floats are summed in f32, each result rounded once.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ....backends.wgpu.text import Text, spelled
from ....graph import dtypes
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.math import emit, register_type
from ...problems.scan import NAMES
from ..builder import Memory, is_packed
from ..dispatch import WORKGROUP, Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import Machine, power_above, power_below
from ..sort.template import word
from ..template import Template

ALONE = 32
"""Along so few elements a thread goes by itself."""
MANY = 8192
"""Columns that keep a GPU busy with a thread for each."""
NEIGHBOURS = 8
"""Elements that a thread takes at once, in a workgroup that goes along a row."""
PIECE = 2048
"""Elements of a piece of a long row: what a workgroup takes at a time."""
ROWS = 256
"""Rows that keep a GPU busy with a workgroup for each."""


class _Scan:
    """What is combined, and how a row's elements are read and its results written."""

    def __init__(self, spec: Spec, machine: Machine) -> None:
        (node,) = spec.body.outputs
        self.spec, self.machine, self.node = spec, machine, node
        (self.x,) = node.operands
        self.axis, whole = int(node.attrs["axis"]), sizes(node)
        self.lead, self.length, self.tail = (
            whole[: self.axis],
            whole[self.axis],
            whole[self.axis + 1 :],
        )
        self.inner = prod(self.tail)
        self.rows = prod(self.lead) * self.inner
        self.reduction, self.op = NAMES[node.op.name]
        self.exclusive = bool(node.attrs.get("exclusive", False))
        self.reverse = bool(node.attrs["reverse"])

    # ------------------------------------------------------------- elements

    def start(self, shader: Dispatch, elements: ThreadElements) -> None:
        """Say what all that follows needs of a shader."""
        self.shader, self.elements, self.writer = shader, elements, shader.builder
        self.kept = elements.registers.kept_in(self.node.dtype)
        self.kind = register_type(self.kept)
        self.neutral = self.writer.text(
            elements.registers.neutral(self.reduction, self.x.dtype, self.node.dtype)
        )

    def _place(self, step: Text) -> Any:
        return self.elements.places.sub(self.length - 1, step) if self.reverse else step

    def read(self, row: Text, step: Text) -> Any:
        """The element of a row that comes at a step."""
        places = self.elements.places
        outer, inner = places.div(row, self.inner), places.mod(row, self.inner)
        lead = places.split(outer, self.lead) if self.lead else []
        tail = places.split(inner, self.tail) if self.tail else []
        value = self.elements.at(self.x, [*lead, self._place(step), *tail])
        return self.elements.registers.cast(value, self.x.dtype, self.kept)

    def write(self, row: Text, step: Text, total: Any) -> None:
        """The result of a step."""
        places, registers = self.elements.places, self.elements.registers
        outer, inner = places.div(row, self.inner), places.mod(row, self.inner)
        at = places.add(places.mul(outer, self.length), self._place(step))
        offset = places.add(places.mul(at, self.inner), inner)
        value = registers.cast(total, self.kept, self.node.dtype)
        registers.store(value, self.shader.results[0], offset, self.node.dtype)

    def combined(self, a: str, b: Any) -> str:
        """Two running results as one."""
        values = [Text(self.kind, a), Text(self.kind, b) if isinstance(b, str) else b]
        return self.writer.text(
            emit(self.op, self.writer, values, [self.kept, self.kept], self.kept)
        )

    # ------------------------------------------------------------- dispatches

    def by_threads(self) -> Stage:
        """A thread goes along each row."""
        shader = Dispatch(self.spec, self.machine, threads=64)
        elements = shader.elements()
        self.start(shader, elements)
        writer = shader.builder
        with writer.block(f"if (thread < {self.rows}u)"), elements.scope():
            writer.line(f"var total = {self.neutral};")

            def one(step: Any, _: list[Any]) -> list[Any]:
                value = self.read(word("thread"), step)
                following = self.combined("total", value)
                shown = "total" if self.exclusive else following
                self.write(word("thread"), step, writer.let_text(self.kind, shown))
                writer.line(f"total = {following};")
                return []

            elements.loop(0, self.length, one)
        return shader.finish(-(-self.rows // shader.threads))

    def by_workgroups(self, pieces: int = 1) -> Stage:
        """A workgroup goes along each piece of a row; where there are several, it begins with what those before come to."""
        shader = self._begin(pieces)
        writer, elements = self.writer, self.elements
        if pieces == 1:
            writer.line(f"var carried = {self.neutral};")
        else:
            sums = self._sums(shader, pieces)
            writer.line(f"var own = {self.neutral};")
            head = f"for (var i = local; i < piece; i += {shader.threads}u)"
            with writer.block(head), elements.scope():
                value = writer.let_text(
                    self.kind, self._from_word(f"{sums.name}[group - piece + i]")
                )
                writer.line(f"own = {self.combined('own', value)};")
            self._reduce()
            writer.line(f"var carried = {self._held('0')};")
            shader.barrier()
        head = f"for (var part = first; part < last; part += {shader.threads * NEIGHBOURS}u)"
        with writer.block(head), elements.scope():
            self._part(shader.threads)
        return shader.finish(self.rows * pieces)

    def sums(self, pieces: int) -> Stage:
        """What every piece of a row comes to."""
        shader = self._begin(pieces)
        writer, elements = self.writer, self.elements
        found = self._sums(shader, pieces)
        writer.line(f"var own = {self.neutral};")
        head = f"for (var step = first + local; step < last; step += {shader.threads}u)"
        with writer.block(head), elements.scope():
            value = self.read(word("row"), word("step"))
            writer.line(f"own = {self.combined('own', value)};")
        self._reduce()
        text = self._to_word(self._held("0"))
        writer.line(f"if (local == 0u) {{ {found.name}[group] = {text}; }}")
        return shader.finish(self.rows * pieces)

    # ------------------------------------------------------------- pieces

    def _begin(self, pieces: int) -> Dispatch:
        """A dispatch with a workgroup for each piece of each row, which knows where its own begins and ends."""
        size = -(-self.length // pieces)
        needed = max(32, power_above(-(-size // NEIGHBOURS)))
        threads = min(power_below(min(WORKGROUP, self.machine.threads)), needed)
        shader = Dispatch(self.spec, self.machine, threads=threads)
        self.start(shader, shader.elements())
        # Bools of workgroup memory may share words, which threads would overwrite for each other.
        kind = "u32" if spelled(self.kind) == "bool" else spelled(self.kind)
        shader.text_shared("sums", f"array<{kind}, {threads}>")
        self.writer.line(f"let row = group / {pieces}u;")
        self.writer.line(f"let piece = group % {pieces}u;")
        self.writer.line(f"let first = min(piece * {size}u, {self.length}u);")
        self.writer.line(f"let last = min(first + {size}u, {self.length}u);")
        return shader

    def _sums(self, shader: Dispatch, pieces: int) -> Memory:
        held = dtypes.u32 if is_packed(self.kept) else self.kept
        return shader.scratch(0, self.rows * pieces, held)

    def _to_word(self, text: str) -> str:
        return f"u32({text})" if spelled(self.kind) == "bool" else text

    def _from_word(self, text: str) -> str:
        return f"({text} != 0u)" if spelled(self.kind) == "bool" else text

    def _held(self, place: str) -> str:
        """What a thread of the workgroup has put down."""
        return self._from_word(f"sums[{place}]")

    def _hold(self, text: str) -> None:
        """Put down what the other threads are to know."""
        self.writer.line(f"sums[local] = {self._to_word(text)};")

    def _reduce(self) -> None:
        """What all threads have as ``own`` together, in ``sums[0]``."""
        writer, shader = self.writer, self.shader
        self._hold("own")
        shader.barrier()
        head = f"for (var half = {shader.threads // 2}u; half > 0u; half >>= 1u)"
        with writer.block(head), self.elements.scope():
            with writer.block("if (local < half)"), self.elements.scope():
                self._hold(self.combined(self._held("local"), self._held("local + half")))
            shader.barrier()

    def _part(self, threads: int) -> None:
        """As many elements as a workgroup takes at a time; ``carried`` is what came before."""
        shader, writer, elements = self.shader, self.writer, self.elements
        writer.line(f"let at = part + local * {NEIGHBOURS}u;")
        writer.line(f"var own = {self.neutral};")
        values = []
        for k in range(NEIGHBOURS):
            name = writer.name("x")
            writer.line(f"var {name} = {self.neutral};")
            with writer.block(f"if (at + {k}u < last)"), elements.scope():
                step = writer.let_text(word("").type, f"at + {k}u")
                writer.line(f"{name} = {writer.text(self.read(word('row'), step))};")
            values.append(name)
            writer.line(f"own = {self.combined('own', name)};")
        self._hold("own")
        shader.barrier()
        head = f"for (var apart = 1u; apart < {threads}u; apart <<= 1u)"
        with writer.block(head), elements.scope():
            writer.line(f"var found = {self.neutral};")
            writer.line(f"if (local >= apart) {{ found = {self._held('local - apart')}; }}")
            shader.barrier()
            writer.line(f"own = {self.combined('found', 'own')};")
            self._hold("own")
            shader.barrier()
        writer.line(f"var former = {self.neutral};")
        writer.line(f"if (local > 0u) {{ former = {self._held('local - 1u')}; }}")
        writer.line(f"var total = {self.combined('carried', 'former')};")
        for k, each in enumerate(values):
            with writer.block(f"if (at + {k}u < last)"), elements.scope():
                following = self.combined("total", each)
                shown = "total" if self.exclusive else following
                step = writer.let_text(word("").type, f"at + {k}u")
                self.write(word("row"), step, writer.let_text(self.kind, shown))
                writer.line(f"total = {following};")
        writer.line(f"carried = {self.combined('carried', self._held(f'{threads - 1}u'))};")
        shader.barrier()


def _fits(spec: Spec, machine: Machine) -> bool:
    return len(spec.body.outputs) == 1 and spec.body.outputs[0].op.name in NAMES


def _write(spec: Spec, machine: Machine) -> Written:
    scan = _Scan(spec, machine)
    if not scan.rows * scan.length:
        return Written(())
    if scan.length <= ALONE or scan.rows >= MANY:
        return Written((scan.by_threads(),))
    pieces = -(-scan.length // PIECE)
    if scan.rows >= ROWS or pieces == 1:
        return Written((scan.by_workgroups(),))
    stages = (scan.sums(pieces), scan.by_workgroups(pieces))
    size = max(4, scan.kept.itemsize)
    return Written(stages, scan.rows * pieces * size)


SCANS = Template("scans", _fits, _write)
