"""The SIMT builder for the host's processor: what a GPU has of its own (thread numbers, barriers, shuffles, shared memory) is printed in another way, the rest is the card's code.

A thread is a function of a *record* (see ``blocks``) and two numbers. Where threads wait for each other it is a coroutine of LLVM: it stops at every barrier and shuffle, with a number that says at which, and ``blocks``
lets it go on when all have come. Every address of a buffer or of shared memory is asked of a function that knows its size: a read or write outside of it is told of, and goes nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Self

from ....codegen.ir.lanes import Lane, function_of, note_target
from ....codegen.ir.types import Pointer
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Memory, Operand, Type
from ....graph import dtypes
from ..printer import Printer
from ..printer.blocks import Blocks as WrittenBlocks
from ..printer.instructions import Held
from ..printer.lanes import CardLane
from ..printer.printer import KERNEL
from ..printer.types import CodeBlock, CodeFunction, bytes_of, constant, integer, pointer
from ..printer.values import Values
from .blocks import SHUFFLE, SPINNING, STATES, Blocks

if TYPE_CHECKING:
    from ..machine import Machine

THREAD = "thread"
"""What the code of a thread is called."""
OWN_WORDS = "what shuffles exchange"
"""The memory for it."""


@cache
def converts_halves() -> bool:
    """Whether the processor has instructions between f16 and f32."""
    import llvmlite.binding as llvm

    found = llvm.get_host_cpu_features()
    return "x86" not in llvm.get_process_triple() or bool(found.get("f16c"))


@cache
def _token() -> Type:
    """The type of what coroutines are told apart by."""
    from llvmlite import ir

    # The only one of its class, it is equal to itself.
    members = {"null": "none", "_to_string": lambda self: "token"}
    return type("Token", (ir.types.Type,), members)()


class HostLane(CardLane):
    """A value of a thread on the host's processor."""

    __slots__ = ()

    def to_bf16(self) -> Lane:
        """By bits: for an instruction that the processor lacks LLVM calls a library."""
        return Lane.to_bf16(self)


class EmulatedPrinter(Printer):
    """The code of one launch for the host's processor.

    Attributes:
        slots: the numbers of memory in the record, by name.
        waits: the barriers and shuffles that are written so far.
    """

    space = 0
    refines = False

    def __init__(
        self, machine: Machine, threads: int, function: CodeFunction | None = None
    ) -> None:
        self.slots: dict[str, int] = {}
        self.waits = 0
        self._found: dict[str, tuple[Raw, Raw]] = {}
        self._turn: Pointer | None = None
        self._ends_of_thread: tuple[CodeBlock, CodeBlock] | None = None
        super().__init__(machine, threads, function)
        self.lane = HostLane

    def word_of(self, bits: Held, which: int) -> Held:
        """See ``Values``."""
        return Values.word_of(self, bits, which)

    def joined(self, low: Operand, high: Operand) -> Held:
        """See ``Values``."""
        return Values.joined(self, low, high)

    # ------------------------------------------------------------- the thread

    def new_kernel(self) -> CodeFunction:
        """A module and the function of a thread, without code."""
        from llvmlite import ir

        module = ir.Module(KERNEL, ir.Context())
        note_target(module, 0, converts_halves())
        kinds = [pointer(0), integer(32), integer(32)]
        thread = ir.Function(module, ir.FunctionType(pointer(0), kinds), THREAD)
        thread.linkage = "internal"
        return thread

    def begin(self) -> None:
        """See ``Printer``."""
        self.record, group, local = self.function_ir.args
        self._open = self.ir.block
        self._code = self._new("code")
        self.ir.position_at_end(self._code)
        self.group, self.local = self.held(group), self.held(local)
        self.thread = self.let(self.group * self.threads + self.local, "thread")
        self._closed = self._new("closed")

    def child(self, function: CodeFunction) -> Self:
        """See ``Blocks``: it knows the record, and the same memory."""
        found = type(self)(self.machine, self.threads, function)
        found.record = found.parameter(pointer(0), "record")
        found.slots, found.sizes, found.bases = self.slots, self.sizes, self.bases
        return found

    def passed(self, child: WrittenBlocks) -> list[Raw]:
        """See ``Blocks``."""
        self.buffers.update(child.buffers)
        return [self.record]

    def end(self) -> None:
        """See ``Blocks``."""
        self.ir.branch(self._closed)

    # ------------------------------------------------------------- memory

    def slot(self, name: str) -> int:
        """The number of a memory in the record."""
        return self.slots.setdefault(name, len(self.slots))

    def dynamic_shared(self, nbytes: int) -> Memory:
        """See ``Printer``."""
        found = Memory("dynamic", dtypes.u32, False, 4, (nbytes // 16,), "shared", builder=self)
        self._dynamic = nbytes
        self.sizes[found.name] = integer(32, 4), nbytes // 16
        self.bases[found.name] = self.declared(found, nbytes // 16)
        return found

    def declared(self, memory: Memory, count: int) -> Pointer:
        """See ``Memories``: a block has its address in the record."""
        self.slot(memory.name)
        return self.record

    def address(self, memory: Memory, item: Type, number: Held) -> Pointer:
        """See ``Memories``."""
        if memory.space == "local":
            return super().address(memory, item, number)
        name, number = self.whole(memory, item, number)
        if name in self._found:
            return self._checked_at(name, self.wide(number), bytes_of(item))
        if memory.space == "buffer":
            self.buffers[name] = self.record
        return self._checked(self.slot(name), self.wide(number), bytes_of(item))

    def resize_dynamic(self, memory: Memory, nbytes: int) -> None:
        """See ``Printer``."""
        super().resize_dynamic(memory, nbytes)
        self.sizes[memory.name] = integer(32, 4), nbytes // 16

    def found_at(self, name: str, address: Operand, nbytes: Operand) -> None:
        """See ``Memories``."""
        base = self.ir.inttoptr(self.raw(address), pointer(0))
        self._found[name] = base, self.raw(nbytes)
        self.slot(name)

    def _checked_at(self, name: str, number: Raw, size: int) -> Pointer:
        """The same of memory that the code has found itself."""
        base, nbytes = self._found[name]
        p, wide = pointer(0), integer(64)
        inside = function_of(self.module, "inside", p, [p, integer(32), p, wide, wide, wide])
        which, whole = constant(integer(32), self.slot(name)), constant(wide, size)
        start = self.ir.mul(number, whole)
        return self.ir.call(inside, [self.record, which, base, nbytes, start, whole])

    def pause(self) -> None:
        """Let other threads and blocks go on: this one waits for what they write."""
        self._stop(constant(integer(32), SPINNING))

    def _checked(self, slot: int, number: Raw, size: int) -> Pointer:
        """Where an item of a memory lies, which is seen to be inside."""
        kinds = [pointer(0), integer(32), integer(64), integer(64)]
        place = function_of(self.module, "place", pointer(0), kinds)
        start = self.ir.mul(number, constant(integer(64), size))
        which, whole = constant(integer(32), slot), constant(integer(64), size)
        return self.ir.call(place, [self.record, which, start, whole])

    # ------------------------------------------------------------- threads among each other

    def _field(self, number: int) -> Pointer:
        """An address that the record has."""
        place = self.ir.gep(self.record, [constant(integer(64), number)], source_etype=integer(64))
        return self.ir.load(place, typ=pointer(0))

    def _wait(self, kind: int) -> None:
        """Stop here until other threads have come."""
        self.waits += 1
        self._stop(constant(integer(32), self.waits << 1 | kind))

    def _stop(self, state: Raw) -> None:
        """Stop here, in a state."""
        from llvmlite import ir

        self.waits = max(self.waits, 1)
        states = self._field(STATES)
        own = self.ir.gep(states, [self.wide(self.local)], source_etype=integer(32))
        self.ir.store(state, own)
        token = ir.Constant(_token(), None)
        suspend = function_of(self.module, "llvm.coro.suspend", integer(8), [_token(), integer(1)])
        how = self.ir.call(suspend, [token, constant(integer(1), 0)])
        onward = self._new("onward")
        chosen = self.ir.switch(how, self._ways[1])
        chosen.add_case(constant(integer(8), 0), onward)
        chosen.add_case(constant(integer(8), 1), self._ways[0])
        self.ir.position_at_end(onward)

    @property
    def _ways(self) -> tuple[CodeBlock, CodeBlock]:
        """The blocks in which a thread's memory is given back, and in which it stops."""
        if self._ends_of_thread is None:
            self._ends_of_thread = self._new("freed"), self._new("stopped")
        return self._ends_of_thread

    def barrier(self, *, buffers: bool = False) -> None:
        """See ``Simt``."""
        self._wait(0)

    def shuffled_word(self, word: Raw, mask: int) -> Raw:
        """See ``Printer``: by way of memory, of which there are two pieces for shuffles in turn."""
        number = integer(32)
        if self._turn is None:
            self._turn = self.room(number)
            self._rooms.store(constant(number, 0), self._turn)
        turn = self.ir.load(self._turn, typ=number)
        self.ir.store(self.ir.xor(turn, constant(number, self.threads)), self._turn)
        self.sizes.setdefault(OWN_WORDS, (number, 2 * self.threads))

        def at(thread: Raw) -> Pointer:
            place = self.ir.zext(self.ir.add(turn, thread), integer(64))
            return self._checked(self.slot(OWN_WORDS), place, 4)

        local = self.raw(self.local)
        self.ir.store(word, at(local))
        self._wait(SHUFFLE)
        other = self.ir.xor(local, constant(number, mask))
        missing = self.ir.icmp_unsigned(">=", other, constant(number, self.threads))
        nowhere = constant(number, 2 * self.threads)
        return self.ir.load(at(self.ir.select(missing, nowhere, other)), typ=number)

    # ------------------------------------------------------------- the launch

    def written(self, names: Sequence[str]) -> str:
        """The module: the thread, and what runs blocks of it."""
        self.end()
        self.ir.position_at_end(self._open)
        room = self._opened() if self.waits else None
        self.ir.branch(self._code)
        self.ir.position_at_end(self._closed)
        if room is None:
            self.ir.ret(self.record)
        else:
            self._close_coroutine(*room)
        self.close()
        memories: dict[int, int] = {}
        for name, number in self.slots.items():
            if name in self.sizes:
                item, count = self.sizes[name]
                memories[number] = bytes_of(item) * count
        places = {self.slot(name): position for position, name in enumerate(names)}
        blocks = Blocks(
            self.threads, bool(self.waits), tuple(self.slots), memories, places, self.together
        )
        return blocks.joined(str(self.module))

    def _opened(self) -> tuple[Raw, Raw]:
        """Make the thread a coroutine: what it is called by LLVM, and its handle."""
        from llvmlite import ir

        call, p = self.ir.call, pointer(0)
        set.add(self.function_ir.attributes, "presplitcoroutine")
        declared = function_of(self.module, "llvm.coro.id", _token(), [integer(32), p, p, p])
        nothing = ir.Constant(p, None)
        own = call(declared, [constant(integer(32), 0), nothing, nothing, nothing])
        size = call(function_of(self.module, "llvm.coro.size.i64", integer(64), []), [])
        memory = call(function_of(self.module, "room", p, [integer(64)]), [size])
        begin = function_of(self.module, "llvm.coro.begin", p, [_token(), p])
        return own, call(begin, [own, memory])

    def _close_coroutine(self, own: Raw, handle: Raw) -> None:
        """Its end: its state says so, and its memory is given back."""
        from llvmlite import ir

        call, p = self.ir.call, pointer(0)
        states = self._field(STATES)
        place = self.ir.gep(states, [self.wide(self.local)], source_etype=integer(32))
        self.ir.store(constant(integer(32), 0), place)
        self.ir.branch(self._ways[0])
        self.ir.position_at_end(self._ways[0])
        memory = call(function_of(self.module, "llvm.coro.free", p, [_token(), p]), [own, handle])
        call(function_of(self.module, "give_back", ir.VoidType(), [p]), [memory])
        self.ir.branch(self._ways[1])
        self.ir.position_at_end(self._ways[1])
        kinds = [p, integer(1), _token()]
        end = function_of(self.module, "llvm.coro.end", ir.VoidType(), kinds)
        call(end, [handle, constant(integer(1), 0), ir.Constant(_token(), None)])
        self.ir.ret(handle)
