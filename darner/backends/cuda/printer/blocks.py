"""Variables, blocks, loops and functions of the SIMT builder as LLVM IR.

A variable is memory of the function's own, which LLVM's passes make registers of. A block has a number while the code is in it, by which values know whether they can be used (``Held``).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

from ....codegen.ir.types import Phi, Pointer
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Operand, Type, Value, Variable, value_type
from ....codegen.simt.scopes import Scopes
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from .instructions import Held
from .types import Branch, CodeBlock, CodeFunction, constant, element, integer
from .values import Values


class Cell(Held, Variable):
    """A variable: where it is used, it is read.

    Attributes:
        room: where it lies.
    """

    __slots__ = ("room",)

    builder: Any

    def __init__(self, builder: Blocks, room: Pointer, type_: Type, signed: bool = False) -> None:
        Value.__init__(self, builder, type_, signed)
        self.room = room
        self.again = None
        self.home = builder.home

    def __repr__(self) -> str:
        return f"<{self.type} variable>"

    @property
    def value(self) -> Raw:
        """What it is here."""
        return self.builder.ir.load(self.room, typ=self.type)


class Blocks(Values, Scopes):
    """Writes blocks; see ``codegen.simt.builder.Simt``.

    Args:
        function: what is written; it has no code yet.

    Attributes:
        buffers: the addresses of the buffers that it reads or writes, by name.
    """

    def __init__(self, function: CodeFunction) -> None:
        from llvmlite import ir

        super().__init__()
        self.function_ir = function
        self.scopes = []
        self.buffers: dict[str, Pointer] = {}
        self._count = 0
        self._ends: list[CodeBlock] = []
        self._entry = function.append_basic_block("entry")
        self._rooms = ir.IRBuilder(self._entry)
        self._start = function.append_basic_block("start")
        self.ir = ir.IRBuilder(self._start)
        self._left: tuple[Branch, CodeBlock] | None = None

    # ------------------------------------------------------------- variables

    def room(self, type_: Type) -> Pointer:
        """Memory of the function's own."""
        return self._rooms.alloca(type_)

    def variable(
        self, initial: Operand, name: str = "v", dtype: DType | None = None, width: int = 1
    ) -> Cell:
        """See ``Simt``."""
        initial = self.first_value(initial, dtype, width)
        raw = self.raw(initial)
        cell = Cell(self, self.room(raw.type), raw.type, bool(getattr(initial, "signed", False)))
        self.ir.store(raw, cell.room)
        return cell

    def assign(self, variable: Operand, value: Operand) -> None:
        """See ``Variable.set``."""
        if value is not variable:
            raw = self.fitted(self.literal(value, variable), variable.type)
            self.ir.store(raw, variable.room)

    def assign_part(self, variable: Operand, part: int, value: Operand) -> None:
        """See ``Variable``."""
        own = self.fitted(self.literal(value, variable), element(variable.type))
        whole = self.ir.insert_element(variable.value, own, constant(integer(32), part))
        self.ir.store(whole, variable.room)

    # ------------------------------------------------------------- blocks

    def _new(self, name: str) -> CodeBlock:
        return self.function_ir.append_basic_block(name)

    @contextmanager
    def _numbered(self) -> Iterator[None]:
        """Give the code a block's number."""
        self._count += 1
        number, before = self._count, self.home
        self.open[number] = None
        self.home = number
        try:
            yield
        finally:
            del self.open[number]
            self.home = before

    def trial(self, body: Callable[[], None]) -> int:
        """See ``Simt``."""
        function, block, rooms = self.function_ir, self.ir.block, self._entry.instructions
        blocks, before, allocated = len(function.blocks), len(block.instructions), len(rooms)
        with self._numbered(), self.scope():
            body()
        added = [item for one in function.blocks[blocks:] for item in one.instructions]
        written = len(block.instructions) - before + len(added)
        del function.blocks[blocks:], block.instructions[before:], rooms[allocated:]
        block.terminator = None
        self.ir.position_at_end(block)
        # Every other instruction is part of an address.
        return written // 2

    def _join(self, block: CodeBlock) -> None:
        """End the block with a branch, if it has no end yet."""
        if not self.ir.block.is_terminated:
            self.ir.branch(block)

    @contextmanager
    def if_(self, *conditions: Operand) -> Iterator[None]:
        """See ``Simt``."""
        test = self.test_of(conditions)
        if test is None:
            with self.scope():
                yield
            return
        chosen, after = self._new("then"), self._new("after")
        branch = self.ir.cbranch(self.raw(test), chosen, after)
        self.ir.position_at_end(chosen)
        with self._numbered(), self.scope():
            yield
        self._join(after)
        self.ir.position_at_end(after)
        self._left = branch, after

    @contextmanager
    def else_(self) -> Iterator[None]:
        """See ``Simt``."""
        if self._left is None or self._left[1] is not self.ir.block or self.ir.block.instructions:
            raise InternalError("'else_' follows the block of an 'if_'")
        branch, after = self._left
        other = self._new("else")
        branch.operands[2] = other
        self.ir.position_at_end(other)
        with self._numbered(), self.scope():
            yield
        self._join(after)
        self.ir.position_at_end(after)

    @contextmanager
    def _loop(
        self, first: Sequence[Raw], condition: Callable[[Sequence[Raw]], Raw]
    ) -> Iterator[tuple[list[Phi], list[Raw]]]:
        """A loop over values of LLVM that change: those of a round, and a list for those of the next, which the caller fills at the end of the block."""
        before = self.ir.block
        head, body, after = self._new("head"), self._new("body"), self._new("done")
        self.ir.branch(head)
        self.ir.position_at_end(head)
        phis = [self.ir.phi(raw.type) for raw in first]
        for phi, raw in zip(phis, first, strict=True):
            phi.add_incoming(raw, before)
        following: list[Raw] = []
        with self._numbered():
            self.ir.cbranch(condition(phis), body, after)
            self.ir.position_at_end(body)
            self._ends.append(after)
            with self._numbered(), self.scope():
                yield phis, following
            self._ends.pop()
        for phi, raw in zip(phis, following, strict=True):
            phi.add_incoming(raw, self.ir.block)
        self.ir.branch(head)
        self.ir.position_at_end(after)

    @contextmanager
    def for_(
        self, first: Operand, last: Operand, step: Operand = 1, name: str = "i"
    ) -> Iterator[Held]:
        """See ``Simt``."""
        like = next((x for x in (first, last) if isinstance(x, Held)), None)
        signed = like is not None and like.signed
        number = self._constant(0, integer(32), signed)
        begin, end, by = (
            self.fitted(self.literal(x, number), integer(32)) for x in (first, last, step)
        )
        less = self.ir.icmp_signed if signed else self.ir.icmp_unsigned
        with self._loop([begin], lambda phis: less("<", phis[0], end)) as (phis, following):
            yield self.held(phis[0], signed)
            following.append(self.ir.add(phis[0], by))

    @contextmanager
    def iterate(
        self,
        first: Operand,
        condition: Callable[[Value], Value],
        following: Callable[[Value], Value],
        name: str = "i",
    ) -> Iterator[Held]:
        """See ``Simt``."""
        begin = self.fitted(self.literal(first, self._constant(0, integer(32))), integer(32))
        with self._loop([begin], lambda phis: self.raw(condition(self.held(phis[0])))) as (
            phis,
            then,
        ):
            i = self.held(phis[0])
            yield i
            then.append(self.raw(following(i)))

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Iterator[None]:
        """See ``Simt``."""
        with self._loop([], lambda _: self.raw(condition())):
            yield

    def loop(
        self,
        first: Operand,
        last: Operand,
        step: int,
        body: Callable[[Value, list[Value]], Sequence[Operand]],
        carried: Sequence[Operand],
    ) -> list[Value]:
        """See ``Simt``."""
        number = self._constant(0, integer(32))
        begin, end = (self.fitted(self.literal(x, number), integer(32)) for x in (first, last))
        values = [begin, *map(self.raw, carried)]
        with self._loop(values, lambda phis: self.ir.icmp_unsigned("<", phis[0], end)) as (
            phis,
            then,
        ):
            held: list[Value] = [self.held(phi) for phi in phis[1:]]
            found = body(self.held(phis[0]), held)
            then.append(self.ir.add(phis[0], constant(integer(32), step)))
            then += [self.fitted(x, phi.type) for x, phi in zip(found, phis[1:], strict=True)]
        return [self.held(phi) for phi in phis[1:]]

    def switch(self, value: Operand, count: int, body: Callable[[int], None]) -> None:
        """See ``Simt``."""
        raw = self.raw(value)
        cases, after = [self._new("case") for _ in range(count)], self._new("after")
        chosen = self.ir.switch(raw, cases[-1])
        for k, case in enumerate(cases):
            if k + 1 < count:
                chosen.add_case(constant(raw.type, k), case)
            self.ir.position_at_end(case)
            with self._numbered(), self.scope():
                body(k)
            self._join(after)
        self.ir.position_at_end(after)

    def _leave(self, block: CodeBlock) -> None:
        """Go to a block; what is written after it is not reached."""
        self.ir.branch(block)
        self.ir.position_at_end(self._new("unreached"))

    def break_(self) -> None:
        """See ``Simt``."""
        self._leave(self._ends[-1])

    def return_(self) -> None:
        """See ``Simt``."""
        self.end()
        self.ir.position_at_end(self._new("unreached"))

    def end(self) -> None:
        """Let the thread end here."""
        self.ir.ret_void()

    def close(self) -> None:
        """Join the block of variables and the code, when all is written."""
        self._rooms.position_at_end(self._entry)
        self._rooms.branch(self._start)

    # ------------------------------------------------------------- functions

    @abstractmethod
    def child(self, function: CodeFunction) -> Self:
        """What writes a function of this kernel."""

    @abstractmethod
    def passed(self, child: Blocks) -> list[Raw]:
        """What a function takes besides its arguments: the buffers that it reads, as they are called here."""

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, DType, int]],
        body: Callable[..., Operand],
    ) -> Callable[..., Value]:
        """See ``Simt``."""
        from llvmlite import ir

        kinds = [value_type(dtype, width) for _, dtype, width in parameters]
        unknown = ir.FunctionType(ir.VoidType(), kinds)
        function = ir.Function(self.module, unknown, self.module.get_unique_name(name))
        function.linkage = "internal"
        function.attributes.add("alwaysinline")
        arguments = function.args
        child = self.child(function)
        result = body(child, *map(child.held, arguments))
        raw, signed = child.raw(result), bool(getattr(result, "signed", False))
        child.ir.ret(raw)
        child.close()
        # What it takes and gives is known now.
        function.ftype = ir.FunctionType(raw.type, [x.type for x in function.args])
        function.type = function.ftype.as_pointer()
        function.return_value = ir.values.ReturnValue(function, raw.type)

        def call(*values: Operand) -> Held:
            # In another function it is called there.
            into = cast(Blocks, next((x.builder for x in values if isinstance(x, Held)), self))
            likes = [Held(into, ir.Constant(kind, ir.Undefined)) for kind in kinds]
            given = [
                into.fitted(into.literal(x, like), like.type)
                for x, like in zip(values, likes, strict=True)
            ]
            made = into.ir.call(function, [*given, *into.passed(child)])
            return Held(into, made, signed)

        return call
