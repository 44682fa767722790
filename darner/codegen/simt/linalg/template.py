"""Linear algebra: ``solve``, ``triangular_solve``, ``cholesky`` and ``slogdet``, a workgroup for each matrix of a batch.

Matrix and right-hand sides stand side by side, in the memory of the workgroup where they fit and in scratch memory otherwise, in f32 or f64. Each step of an elimination
is shared by all threads, which then wait for each other. A pivot of 0, or a root of what is not positive, is told of as a fault of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from ....backends.wgpu.text import Text, spelled
from ....graph import dtypes
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....ops.faults import can_fail
from ...ir.math import emit, register_type
from ..dispatch import Dispatch, Written
from ..machine import Machine, power_above, power_below
from ..sort.template import rounded, word
from ..template import Template

LARGE = 128
"""From so many rows on, a matrix gets as many threads as a workgroup can have."""
PANEL = 8
"""Columns of a large matrix that are worked on together."""
TALL = 64
"""Rows below them whose factors are in the memory of the workgroup."""
AHEAD = 4
"""Rows that a thread reads before it writes the first of them."""
MOST = 1024
"""More threads than this wait for each other longer than they save."""


class _Work:
    """A matrix, and code on its elements."""

    def __init__(self, spec: Spec, machine: Machine, node: Node) -> None:
        self.spec, self.node = spec, node
        a = node.operands[0]
        whole = sizes(a)
        self.lead, self.order = whole[:-2], whole[-1]
        self.batch = prod(self.lead)
        self.sides = sizes(node.operands[1])[-1] if len(node.operands) > 1 else 0
        self.width = self.order + self.sides
        self.dtype = dtypes.f32 if a.dtype.is_half else a.dtype
        self.ir_type = register_type(self.dtype)
        self.kind = spelled(self.ir_type)
        self.bits = "u64" if self.kind == "f64" else "u32"
        area = self.order * self.width
        threads = min(256, max(32, power_above(area // 4)))
        if self.order >= LARGE:
            threads = min(MOST, machine.threads)
        # A workgroup that combines by halves has a power of two of threads.
        threads = power_below(min(threads, machine.threads))
        self.shader = Dispatch(spec, machine, threads=threads)
        self.threads = self.shader.threads
        self.writer = self.shader.builder
        self.elements = self.shader.elements()
        room = machine.shared - threads * (4 + self.dtype.itemsize)
        self.inside = area * self.dtype.itemsize <= room
        self.scratch = 0
        if self.inside:
            self.name = self.shader.text_shared("work", f"array<{self.kind}, {max(area, 1)}>")
            self.base = ""
        else:
            self.scratch = rounded(self.batch * area * self.dtype.itemsize)
            self.name = self.shader.scratch(0, self.batch * area, self.dtype).name
            self.base = f"group * {area}u + "

    # ------------------------------------------------------------- elements

    def at(self, row: str, column: str) -> str:
        """An element of the matrix."""
        return f"{self.name}[{self.base}({row}) * {self.width}u + {column}]"

    def wait(self) -> None:
        """Let the threads meet: what each wrote is then seen by all."""
        if not self.inside:
            self.writer.line("storageBarrier();")
        self.shader.barrier()

    @contextmanager
    def each(self, count: str) -> Iterator[None]:
        """``i`` from 0 to before ``count``, shared out."""
        head = f"for (var i = local; i < {count}; i += {self.threads}u)"
        with self.writer.block(head), self.elements.scope():
            yield

    @contextmanager
    def rows_and_columns(
        self, first: str, last: str, start: str, stop: str, columns: int, row: str = ""
    ) -> Iterator[None]:
        """``i`` from ``first`` to before ``last``, and ``j`` from ``start`` to before ``stop``: threads side by side take columns.

        ``row`` is a line that is written for each ``i``.
        """
        across = min(power_above(columns), 32, self.threads)
        rows = f"i = ({first}) + local / {across}u; i < ({last}); i += {self.threads // across}u"
        with self.writer.block(f"for (var {rows})"), self.elements.scope():
            if row:
                self.writer.line(row)
            inner = f"j = ({start}) + local % {across}u; j < ({stop}); j += {across}u"
            with self.writer.block(f"for (var {inner})"), self.elements.scope():
                yield

    def fill(self, operand: int, start: int, *, lower: bool = False) -> None:
        """Copy an operand to the columns from ``start`` on, or what is not above its diagonal."""
        node, writer = self.node.operands[operand], self.writer
        columns = sizes(node)[-1]
        with self.each(f"{self.order * columns}u"):
            writer.line(f"let row = i / {columns}u;")
            writer.line(f"let column = i % {columns}u;")
            places = self.elements.places
            lead = places.split(word("group"), self.lead) if self.lead else []
            value = self.elements.at(node, [*lead, word("row"), word("column")])
            text = writer.text(self.elements.registers.cast(value, node.dtype, self.dtype))
            if lower:
                text = f"select({writer.text(self.constant(0))}, {text}, column <= row)"
            writer.line(f"{self.at('row', f'{start}u + column')} = {text};")

    def write(self, columns: int, start: int) -> None:
        """Write the result from the columns from ``start`` on."""
        registers = self.elements.registers
        with self.each(f"{self.order * columns}u"):
            at = self.at(f"i / {columns}u", f"{start}u + i % {columns}u")
            value = registers.cast(
                self.writer.let_text(self.ir_type, at), self.dtype, self.node.dtype
            )
            offset = self.writer.let_text(word("").type, f"group * {self.order * columns}u + i")
            registers.store(value, self.shader.results[0], offset, self.node.dtype)

    def constant(self, number: float) -> Any:
        """A number in the type that is computed in."""
        return self.elements.registers.constant(number, self.dtype)

    def magnitude(self, text: str) -> str:
        """The bits of a number without its sign: larger for larger numbers, NaN above all."""
        mask = f"{(1 << 63) - 1}lu" if self.bits == "u64" else f"{(1 << 31) - 1}u"
        return f"(bitcast<{self.bits}>({text}) & {mask})"

    @property
    def infinity(self) -> str:
        """The bits of infinity."""
        return f"{0x7FF << 52}lu" if self.bits == "u64" else f"{0xFF << 23}u"

    # ------------------------------------------------------------- elimination

    def eliminate(self) -> None:
        """Make the matrix upper triangular, each step by the largest element that is left in its column; ``sign`` is that of the order of rows."""
        writer, n, width = self.writer, self.order, self.width
        writer.line(f"var sign = {writer.text(self.constant(1))};")
        if not self.inside:
            self._eliminate_panels()
            return
        with writer.block(f"for (var k = 0u; k < {n}u; k++)"), self.elements.scope():
            self._exchange()
            writer.line(f"let pivot = {self.at('k', 'k')};")
            self.refuse_pivot()
            with writer.block(f"if ({self._usable('pivot')})"):
                row, after = f"let factor = {self.at('i', 'k')} / pivot;", "k + 1u"
                with self.rows_and_columns(after, f"{n}u", after, f"{width}u", width, row):
                    target = self.at("i", "j")
                    writer.line(f"{target} = {target} - factor * {self.at('k', 'j')};")
            self.wait()

    def _exchange(self) -> None:
        """Exchange row ``k`` for the one with the first largest element of its column."""
        writer = self.writer
        self._pivot()
        with writer.block("if (chosen != k)"):
            with self.each(f"{self.width}u"):
                writer.line(f"let one = {self.at('k', 'i')};")
                writer.line(f"{self.at('k', 'i')} = {self.at('chosen', 'i')};")
                writer.line(f"{self.at('chosen', 'i')} = one;")
            writer.line("sign = -sign;")
        self.wait()

    def _usable(self, text: str) -> str:
        return f"{self.magnitude(text)} != {'0lu' if self.bits == 'u64' else '0u'}"

    def refuse(self, wrong: str) -> None:
        """Tell of a matrix that cannot be taken, where ``wrong`` holds."""
        self.elements.tell_if(f"local == 0u && {wrong}", self.node, "group")

    def refuse_pivot(self) -> None:
        """Tell of a matrix whose ``pivot`` is 0; the sign of a determinant is 0 then, which is no fault."""
        if can_fail(self.node):
            self.refuse(f"!({self._usable('pivot')})")

    # ------------------------------------------------------------- elimination of large matrices

    def _eliminate_panels(self) -> None:
        """The same, a few columns at a time: what is right of them is read and written once for all of these."""
        writer, n = self.writer, self.order
        head = f"for (var start = 0u; start < {n}u; start += {PANEL}u)"
        with writer.block(head), self.elements.scope():
            writer.line(f"let stop = min(start + {PANEL}u, {n}u);")
            with writer.block("for (var k = start; k < stop; k++)"), self.elements.scope():
                self._exchange()
                self._narrow_step()
            self._upper_rows()
            self._lower_rows()

    def _narrow_step(self) -> None:
        """Take row ``k`` out of those below, in the panel alone; the factors stay where there would be zeros."""
        writer = self.writer
        writer.line(f"let pivot = {self.at('k', 'k')};")
        self.refuse_pivot()
        with writer.block(f"for (var i = k + 1u + local; i < {self.order}u; i += {self.threads}u)"):
            writer.line(f"var factor = {writer.text(self.constant(0))};")
            quotient = f"{self.at('i', 'k')} / pivot"
            writer.line(f"if ({self._usable('pivot')}) {{ factor = {quotient}; }}")
            writer.line(f"{self.at('i', 'k')} = factor;")
            with writer.block("for (var j = k + 1u; j < stop; j++)"):
                target = self.at("i", "j")
                writer.line(f"{target} = {target} - factor * {self.at('k', 'j')};")
        self.wait()

    def _columns(self) -> str:
        return f"for (var j = stop + local; j < {self.width}u; j += {self.threads}u)"

    def _upper_rows(self) -> None:
        """The rows of the panel, right of it: a thread for each column, from the first row to the last."""
        writer = self.writer
        with writer.block(self._columns()):
            for t in range(PANEL):
                writer.line(f"var u{t} = {writer.text(self.constant(0))};")
            for t in range(PANEL):
                with writer.block(f"if (start + {t}u < stop)"):
                    place = self.at(f"start + {t}u", "j")
                    writer.line(f"u{t} = {place};")
                    for s in range(t):
                        factor = self.at(f"start + {t}u", f"start + {s}u")
                        writer.line(f"u{t} = u{t} - {factor} * u{s};")
                    writer.line(f"{place} = u{t};")
        self.wait()

    def _lower_rows(self) -> None:
        """All that is below and right of the panel: some rows' factors at a time are shared by all columns."""
        writer, n, halves = self.writer, self.order, PANEL // 4
        vector = f"vec4<{self.kind}>"
        self.shader.text_shared("factors", f"array<{vector}, {TALL * halves}>")
        with writer.block(f"for (var top = stop; top < {n}u; top += {TALL}u)"):
            head = f"for (var i = local; i < {TALL * halves}u; i += {self.threads}u)"
            with writer.block(head):
                writer.line(f"let row = min(top + i / {halves}u, {n - 1}u);")
                parts = [self.at("row", f"start + i % {halves}u * 4u + {k}u") for k in range(4)]
                writer.line(f"factors[i] = {vector}({', '.join(parts)});")
            self.wait()
            with writer.block(self._columns()):
                # Rows below a panel are only there where it has all its columns.
                for t in range(PANEL):
                    writer.line(f"let u{t} = {self.at(f'start + {t}u', 'j')};")
                with writer.block(f"for (var r = 0u; r < min({TALL}u, {n}u - top); r += {AHEAD}u)"):
                    for q in range(AHEAD):
                        place = self.at(f"min(top + r + {q}u, {n - 1}u)", "j")
                        writer.line(f"var x{q} = {place};")
                    for q in range(AHEAD):
                        for t in range(PANEL):
                            factor = f"factors[(r + {q}u) * {halves}u + {t // 4}u][{t % 4}]"
                            writer.line(f"x{q} = x{q} - {factor} * u{t};")
                        place = self.at(f"top + r + {q}u", "j")
                        writer.line(f"if (top + r + {q}u < {n}u) {{ {place} = x{q}; }}")
            self.wait()

    def _pivot(self) -> None:
        """``chosen``: the first row with the largest element of column ``k``; row ``k`` itself where that is NaN."""
        writer, threads = self.writer, self.threads
        self.shader.text_shared("largest", f"array<{self.bits}, {threads}>")
        self.shader.text_shared("largest_row", f"array<u32, {threads}>")
        suffix, infinity = "lu" if self.bits == "u64" else "u", self.infinity
        writer.line(f"var most = 0{suffix};")
        writer.line("var row = k;")
        with writer.block(f"for (var i = k + local; i < {self.order}u; i += {threads}u)"):
            writer.line(f"var size = {self.magnitude(self.at('i', 'k'))};")
            # NaN is larger than nothing, and nothing is larger than it.
            outside = f"select(0{suffix}, {infinity}, i == k)"
            writer.line(f"if (size > {infinity}) {{ size = {outside}; }}")
            writer.line("if (size > most) { most = size; row = i; }")
        writer.line("largest[local] = most;")
        writer.line("largest_row[local] = row;")
        self.shader.barrier()
        with writer.block(f"for (var half = {threads // 2}u; half > 0u; half >>= 1u)"):
            with writer.block("if (local < half)"):
                writer.line("let size = largest[local + half];")
                writer.line("let other = largest_row[local + half];")
                equal = "size == largest[local] && other < largest_row[local]"
                with writer.block(f"if (size > largest[local] || ({equal}))"):
                    writer.line("largest[local] = size;")
                    writer.line("largest_row[local] = other;")
            self.shader.barrier()
        writer.line("let chosen = largest_row[0];")

    def substitute(self, lower: bool, unit_diagonal: bool) -> None:
        """Solve a triangular system for the right-hand sides, row by row."""
        writer, n, sides = self.writer, self.order, self.sides
        with writer.block(f"for (var step = 0u; step < {n}u; step++)"):
            writer.line(f"let k = {'step' if lower else f'{n - 1}u - step'};")
            if not unit_diagonal:
                if self.node.op.name == "triangular_solve":
                    writer.line(f"let pivot = {self.at('k', 'k')};")
                    self.refuse_pivot()
                with self.each(f"{sides}u"):
                    target = self.at("k", f"{n}u + i")
                    writer.line(f"{target} = {target} / {self.at('k', 'k')};")
                self.wait()
            first, last = ("k + 1u", f"{n}u") if lower else ("0u", "k")
            with self.rows_and_columns(first, last, f"{n}u", f"{self.width}u", sides):
                target = self.at("i", "j")
                writer.line(f"{target} = {target} - {self.at('i', 'k')} * {self.at('k', 'j')};")
            self.wait()


# --------------------------------------------------------------------------- what is asked for


def _solve(work: _Work) -> None:
    work.fill(0, 0)
    work.fill(1, work.order)
    work.wait()
    work.eliminate()
    work.substitute(False, False)
    work.write(work.sides, work.order)


def _triangular_solve(work: _Work) -> None:
    work.fill(0, 0)
    work.fill(1, work.order)
    work.wait()
    attrs = work.node.attrs
    work.substitute(bool(attrs["lower"]), bool(attrs["unit_diagonal"]))
    work.write(work.sides, work.order)


def _slogdet(work: _Work) -> None:
    work.fill(0, 0)
    work.wait()
    work.eliminate()
    writer, elements, dtype = work.writer, work.elements, work.dtype
    with writer.block("if (local == 0u)"), elements.scope():

        def one(k: Any, held: list[Any]) -> list[Any]:
            value = writer.let_text(work.ir_type, work.at(writer.text(k), writer.text(k)))
            sign = emit("sign", writer, [value], [dtype], dtype)
            size = emit("abs", writer, [value], [dtype], dtype)
            logarithm = emit("log", writer, [size], [dtype], dtype)
            return [writer.fmul(held[0], sign), writer.fadd(held[1], logarithm)]

        start = [Text(work.ir_type, "sign"), work.constant(0)]
        found = elements.loop(0, work.order, one, start)
        for output, result in zip(work.spec.body.outputs, work.shader.results, strict=True):
            value = found[int(output.attrs["index"])]
            value = elements.registers.cast(value, dtype, output.dtype)
            elements.registers.store(value, result, word("group"), output.dtype)


def _cholesky(work: _Work) -> None:
    """Column by column: each takes what it stands for out of all that is left; above the diagonal is 0."""
    writer, n = work.writer, work.order
    work.fill(0, 0, lower=True)
    work.wait()
    with writer.block(f"for (var k = 0u; k < {n}u; k++)"), work.elements.scope():
        with writer.block("if (local == 0u)"), work.elements.scope():
            value = writer.let_text(work.ir_type, work.at("k", "k"))
            # NaN is not positive, and a shader may take it to be anything but for its bits.
            bits, zero = work.magnitude(value.text), "0lu" if work.bits == "u64" else "0u"
            negative = f"bitcast<{work.bits}>({value.text}) != {bits}"
            work.refuse(f"({bits} == {zero} || {negative} || {bits} > {work.infinity})")
            root = emit("sqrt", writer, [value], [work.dtype], work.dtype)
            writer.line(f"{work.at('k', 'k')} = {writer.text(root)};")
        work.wait()
        with work.each(f"{n - 1}u - k"):
            target = work.at("k + 1u + i", "k")
            writer.line(f"{target} = {target} / {work.at('k', 'k')};")
        work.wait()
        with work.rows_and_columns("k + 1u", f"{n}u", "k + 1u", "i + 1u", n):
            target = work.at("i", "j")
            writer.line(f"{target} = {target} - {work.at('i', 'k')} * {work.at('j', 'k')};")
        work.wait()
    work.write(n, 0)


WRITERS: dict[str, Callable[[_Work], None]] = {
    "cholesky": _cholesky,
    "slogdet": _slogdet,
    "solve": _solve,
    "triangular_solve": _triangular_solve,
}


def _main(spec: Spec) -> Node:
    output = spec.body.outputs[0]
    return output.operands[0] if output.op.name == "project" else output


def _fits(spec: Spec, machine: Machine) -> bool:
    return _main(spec).op.name in WRITERS


def _write(spec: Spec, machine: Machine) -> Written:
    node = _main(spec)
    work = _Work(spec, machine, node)
    if not work.batch or not any(prod(sizes(output)) for output in spec.body.outputs):
        return Written(())
    WRITERS[node.op.name](work)
    return Written((work.shader.finish(work.batch),), work.scratch)


SOLVING = Template("solving", _fits, _write)
