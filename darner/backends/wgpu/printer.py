"""The SIMT builder's WGSL: blocks, memory, and the shader of a dispatch; ``values`` has its expressions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...codegen.ir.index import Number
from ...codegen.simt.builder import Index, Memory, Operand, Value, value_type
from ...codegen.simt.dispatch import Binding
from ...codegen.simt.scopes import Scopes
from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError, UnsupportedError
from ...graph.integers import ceil_div
from .access import Access, Line
from .expressions import SUM, Cell, Text, reads_of
from .spelling import dtype_of, element, integer, spelled
from .stage import Listing, Stage
from .values import Values, is_signed
from .writer import HIDDEN, ZERO

if TYPE_CHECKING:
    from .machine import Machine


def item_of(memory: Memory) -> str:
    """The type of a memory's items in WGSL."""
    if memory.packed:
        word = "atomic<u32>" if memory.atomic else "u32"
        return word if memory.words == 1 else f"vec{memory.words}<u32>"
    if memory.dtype is dtypes.bool_:
        # Bools may share words, which threads would overwrite for each other.
        return "u32"
    return spelled(memory.type, memory.signed)


@dataclass
class Function:
    """A function of a shader while it is not known yet how buffers are bound."""

    head: str
    lines: list[Line]


class Printer(Values, Scopes):
    """The code of one dispatch as WGSL; see ``codegen.simt.builder.Simt``.

    Args:
        machine: for which GPU.
        threads: of a workgroup.
        zero: see ``Writer``.
    """

    narrow = False
    group: Value
    local: Value
    thread: Value

    def __init__(self, machine: Machine, threads: int, zero: str = ZERO) -> None:
        super().__init__(zero)
        self.machine = machine
        self.threads = threads
        self.scopes = []
        self._loop_count = 0
        self._shared: dict[str, str] = {}
        self._builtins = [
            "@builtin(workgroup_id) workgroup: vec3<u32>",
            "@builtin(local_invocation_index) local: u32",
        ]
        self._else_at = -1
        self.group, self.local, self.thread = (
            Text(integer(32), name, self) for name in ("group", "local", "thread")
        )

    # ------------------------------------------------------------- variables

    def variable(
        self, initial: Operand, name: str = "v", dtype: DType | None = None, width: int = 1
    ) -> Cell:
        initial = self.first_value(initial, dtype, width)
        found = self.called(name)
        self.line(f"var {found} = {self.expression(initial)};")
        return Cell(initial.type, found, self, is_signed(initial))

    def assign(self, variable: Operand, value: Operand) -> None:
        text = self.literal(value, variable).whole
        if text != variable.raw:
            self.line(f"{variable.raw} = {text};")
            variable.change()

    def assign_part(self, variable: Operand, part: int, value: Operand) -> None:
        self.line(f"{variable.raw}.{'xyzw'[part]} = {self.literal(value, variable).whole};")
        variable.change()

    # ------------------------------------------------------------- blocks

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        with self.block(head), self.scope():
            yield

    def trial(self, body: Callable[[], None]) -> int:
        before = len(self.lines)
        with self.scope():
            body()
        written = len(self.lines) - before
        del self.lines[before:]
        return written

    @contextmanager
    def if_(self, *conditions: Operand) -> Iterator[None]:
        test = self.test_of(conditions)
        if test is None:
            with self.scope():
                yield
            return
        with self._block(f"if ({self.expression(test)})"):
            yield
        self._else_at = len(self.lines)

    @contextmanager
    def else_(self) -> Iterator[None]:
        if self._else_at != len(self.lines):
            raise InternalError("'else_' follows the block of an 'if_'")
        self.lines.pop()
        with self._block("} else"):
            yield

    @contextmanager
    def _loop(self, head: str) -> Iterator[None]:
        self._loop_count += 1
        self.loops.append(self._loop_count)
        with self._block(head):
            yield
        self.loops.pop()

    @contextmanager
    def for_(
        self, first: Operand, last: Operand, step: Operand = 1, name: str = "i"
    ) -> Iterator[Text]:
        like = next((x for x in (first, last) if isinstance(x, Text)), None)
        signed = like is not None and like.signed
        i = Text(integer(32), self.called(name), self, signed=signed)
        begin, by = (self.literal(x, i).whole for x in (first, step))
        end = self.literal(last, i).above(SUM)
        with self._loop(f"for (var {i.raw} = {begin}; {i.raw} < {end}; {i.raw} += {by})"):
            yield i

    @contextmanager
    def iterate(
        self,
        first: Operand,
        condition: Callable[[Value], Value],
        following: Callable[[Value], Value],
        name: str = "i",
    ) -> Iterator[Text]:
        i = Text(integer(32), self.called(name), self)
        begin = self.literal(first, i).whole
        test, after = (self.expression(f(i)) for f in (condition, following))
        with self._loop(f"for (var {i.raw} = {begin}; {test}; {i.raw} = {after})"):
            yield i

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        count = len(self.lines)
        test = self.expression(condition())
        if len(self.lines) != count:
            raise InternalError("the condition of a loop is one expression, of variables")
        with self._loop(f"while ({test})"):
            yield

    def loop(
        self,
        first: Operand,
        last: Operand,
        step: int,
        body: Callable[[Value, list[Value]], Sequence[Operand]],
        carried: Sequence[Operand],
    ) -> list[Value]:
        held = []
        for value in carried:
            found = self.name("c")
            self.line(f"var {found} = {self.expression(value)};")
            held.append(Text(value.type, found, self))
        with self.for_(first, last, step) as i:
            following = [self.expression(value) for value in body(i, list(held))]
            for value, text in zip(held, following, strict=True):
                if text != value.raw:
                    self.line(f"{value.raw} = {text};")
        # What is carried may change again in an enclosing loop: from here on it is a value.
        return [self.let(value) for value in held]

    def switch(self, value: Operand, count: int, body: Callable[[int], None]) -> None:
        with self.block(f"switch {self.text(value)}"):
            for k in range(count):
                with self._block(f"case {k}u:" if k + 1 < count else "default:"):
                    body(k)

    def break_(self) -> None:
        self.line("break;")

    def return_(self) -> None:
        self.line("return;")

    # ------------------------------------------------------------- functions

    def child(self) -> Printer:
        """What writes a function of this shader."""
        found = Printer(self.machine, self.threads, HIDDEN)
        found.globals = self.globals
        return found

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, DType, int]],
        body: Callable[..., Operand],
    ) -> Callable[..., Value]:
        found = self.called(name)
        child = self.child()
        arguments = [
            Text(value_type(dtype, width), child.called(word), child)
            for word, dtype, width in parameters
        ]
        result = body(child, *arguments)
        listed = ", ".join(f"{x.raw}: {spelled(x.type)}" for x in arguments)
        signed = is_signed(result)
        child.line(f"return {child.expression(result)};")
        if child.hides:
            self.globals.setdefault(HIDDEN, f"var<private> {HIDDEN}: u32;")
        head = f"fn {found}({listed}) -> {spelled(result.type, signed)} {{"
        self.globals[found] = Function(head, [*child.lines, "}"])

        def call(*values: Operand) -> Value:
            likes = zip(values, arguments, strict=True)
            given = [self.literal(value, like) for value, like in likes]
            text = f"{found}({', '.join(x.whole for x in given)})"
            return Text(result.type, text, self, signed=signed, reads=reads_of(*given))

        return call

    # ------------------------------------------------------------- memory

    def shared(
        self,
        dtype: DType,
        shape: int | Sequence[int],
        name: str,
        width: int = 1,
        *,
        signed: bool = False,
    ) -> Memory:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        found = self.called(name)
        memory = Memory(found, dtype, False, width, sizes, "shared", signed, builder=self)
        self._shared[memory.name] = _array(item_of(memory), sizes)
        return memory

    def resize(self, memory: Memory, count: int) -> None:
        self._shared[memory.name] = _array(item_of(memory), (count,)) if count else ""

    def table(self, words: Sequence[int], name: str) -> Memory:
        found, kind = self.called(name), f"array<u32, {len(words)}>"
        listed = ", ".join(f"{word}u" for word in words)
        self.declare(found, f"var<private> {found}: {kind} = {kind}({listed});")
        return Memory(found, dtypes.u32, False, 1, (len(words),), "local", builder=self)

    def array(self, values: Sequence[Operand], name: str) -> Memory:
        type_, found = values[0].type, self.called(name)
        kind = f"array<{spelled(type_, is_signed(values[0]))}, {len(values)}>"
        self.line(f"var {found} = {kind}({', '.join(map(self.expression, values))});")
        dtype, count = dtype_of(type_), values[0].width
        return Memory(found, dtype, False, count, (len(values),), "local", builder=self)

    def _placed(self, memory: Memory, index: Index) -> tuple[list[Number], Operand]:
        """The indices of an item, and the part of it that is meant."""
        given = list(index) if isinstance(index, tuple) else [index]
        axes = 1 if memory.space == "buffer" else len(memory.shape)
        if len(given) not in (axes, axes + 1):
            raise InternalError(f"'{memory.name}' takes {axes} indices, not {len(given)}")
        return given[:axes], given[axes] if len(given) > axes else None

    def load(self, memory: Memory, index: Index) -> Text:
        at, part = self._placed(memory, index)
        kind = memory.type if part is None else element(memory.type)
        named = self.name()
        if memory.space == "buffer":
            op = "atomicLoad" if memory.atomic else ""
            which = "" if part is None else self.text_of(part)
            self._access(Access(memory.name, self._number(at[0]), which, "", named, op))
        else:
            self.line(f"let {named} = {self._place(memory, at, part)};")
        found = Text(kind, named, self, signed=memory.signed)
        if memory.dtype is dtypes.bool_ and memory.space != "buffer":
            return self.let(self.operate("!=", Text(integer(32), named, self), 0))
        return found

    def _place(self, memory: Memory, at: Sequence[Number], part: Operand) -> str:
        places = [*at] if part is None else [*at, part]
        return memory.name + "".join(f"[{self.text_of(place)}]" for place in places)

    def _access(self, access: Access) -> None:
        object.__setattr__(access, "indent", "  " * self._depth)
        # What it reads is checked here, not when its text is made.
        _ = access.index.whole
        self.lines.append(access)

    def store(self, value: Operand, memory: Memory, index: Index) -> None:
        at, part = self._placed(memory, index)
        if memory.dtype is dtypes.bool_ and memory.space != "buffer":
            value = self.bits(value)
        kind = memory.type if part is None else element(memory.type)
        like = Text(kind, "", self, signed=memory.signed)
        text = self.literal(value, like).whole
        if memory.space == "buffer":
            which = "" if part is None else self.text_of(part)
            self._access(Access(memory.name, self._number(at[0]), which, text))
        else:
            self.line(f"{self._place(memory, at, part)} = {text};")

    def atomic(self, op: str, memory: Memory, index: Index, value: Operand) -> None:
        like = Text(integer(32), "", self)
        name = f"atomic{op.capitalize()}"
        self._access(
            Access(memory.name, self._number(index), value=self.literal(value, like).whole, op=name)
        )

    # ------------------------------------------------------------- threads among each other

    def barrier(self, *, buffers: bool = False) -> None:
        if buffers:
            self.line("storageBarrier();")
        self.line("workgroupBarrier();")

    def uniform(self, memory: Memory) -> Text:
        found = self.name()
        self.line(f"let {found} = workgroupUniformLoad(&{memory.name});")
        return Text(memory.type, found, self, signed=memory.signed)

    def shuffle_xor(self, value: Operand, mask: int) -> Text:
        text = f"subgroupShuffleXor({self.expression(value)}, {mask}u)"
        return self.let_text(value.type, text)

    # ------------------------------------------------------------- the shader

    def finish(
        self,
        groups: int,
        buffers: Sequence[tuple[Memory, Binding]],
        copies: tuple[int, int] | None = None,
    ) -> Stage:
        """The shader of what is written, for so many workgroups; of ``buffers`` those are bound that it reads or writes."""
        most = self.machine.most_groups
        high = ceil_div(groups, most)
        if high > most:
            raise UnsupportedError(
                f"a kernel of {groups:,} workgroups is more than '{self.machine.name}' runs ({most:,} times {most:,})",
                hint="a smaller batch, or the tensor in several pieces",
            )
        across = ceil_div(groups, max(high, 1)) if groups else 0
        head = [f"let group = workgroup.x + workgroup.y * {across}u;"]
        if across * high != groups:
            head.append(f"if (group >= {groups}u) {{ return; }}")
        if HIDDEN in self.globals:
            head.append(f"{HIDDEN} = {ZERO};")
        head.append(f"let thread = group * {self.threads}u + local;")
        parts: list[Line] = [
            f"var<workgroup> {name}: {kind};" for name, kind in self._shared.items() if kind
        ]
        for item in self.globals.values():
            parts += [item.head, *item.lines] if isinstance(item, Function) else [item]
        parts.append(
            f"@compute @workgroup_size({self.threads}) fn main({', '.join(self._builtins)}) {{"
        )
        parts += ["  " + line for line in head]
        parts += [*self.lines, "}"]
        listing = Listing(tuple(parts))
        used = listing.memories()
        bound = [
            (memory.name, item_of(memory), binding)
            for memory, binding in buffers
            if binding.what == "scratch" or memory.name in used
        ]
        return Stage.of(listing, bound, (across, max(high, 1)), copies)


def _array(item: str, sizes: Sequence[int]) -> str:
    for size in reversed(sizes):
        item = f"array<{item}, {size}>"
    return item
