"""What every kernel template of the CPU backend is written against.

A template makes the code of one family of kernels. ``fits`` says whether it has code for a spec, ``scratch`` what memory it needs besides operands and
results, and ``emit`` writes the code into a ``Code``: the body of a function that every thread calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ....codegen.ir.emit import loop
from ....codegen.ir.faults import Faults
from ....codegen.ir.index import Index, IndexMath, i64
from ....codegen.ir.types import Block, Builder, Module, Pointer, Value
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import operand_number
from ..runtime.jit import Machine
from ..runtime.threads_ir import BARRIER
from .panels import Offer, Panels
from .work_queue import Claims

WHOLE = 1024
"""Parts that portions are said in."""


@dataclass(frozen=True)
class Scratch:
    """Bytes of memory that a kernel needs while it runs.

    Attributes:
        own: for each thread, which no other touches.
        shared: for all threads together.
    """

    own: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Code:
    """A kernel's function while it is being written.

    Every thread runs it, and thread ``thread`` of ``threads`` does its part: results must not depend on how many there are. Nothing is
    known of what other threads have done until ``barrier``; there is one after the kernel in any case where another needs its results.

    Attributes:
        builder: where the code goes.
        spec: what is computed.
        machine: the processor it is for.
        thread: this thread's number, 64 bits.
        threads: how many there are.
        operands: addresses, in the order of the spec's inputs; elements lie in row-major order.
        results: addresses, in the order of the body's outputs.
        own: this thread's scratch memory, at a multiple of 64 bytes.
        shared: the scratch memory of all threads, at a multiple of 64 bytes.
        team: what ``barrier`` waits for.
        words: what the kernel has of its own in all runs: where it tells of faults, and what threads claim.
        packed: whether the operand of the template's ``Packing`` comes packed.
        panels: the operands, and after them the results, that lie in panels, by position.
        portion: the first and the last of what ``share`` gives a thread that is done here, as parts of ``WHOLE``.
    """

    builder: Builder
    spec: Spec
    machine: Machine
    thread: Value
    threads: Value
    operands: Sequence[Pointer]
    results: Sequence[Pointer]
    own: Pointer
    shared: Pointer
    team: Pointer
    words: Pointer
    packed: bool = False
    panels: Mapping[int, Panels] = field(default_factory=dict)
    portion: tuple[Index, Index] = (0, WHOLE)

    @property
    def body(self) -> Graph:
        """What is computed, as a graph."""
        return self.spec.body

    @property
    def width(self) -> int:
        """Lanes of f32 that a vector of the machine has."""
        return self.machine.vector_bytes // 4

    @property
    def module(self) -> Module:
        """Where functions that kernels share are put."""
        return self.builder.module

    @property
    def indices(self) -> IndexMath:
        """Arithmetic on indices."""
        return IndexMath(self.builder)

    def operand_of(self, leaf: Node) -> Pointer:
        """The address of an input of the body."""
        return self.operands[operand_number(leaf)]

    def for_others(self, plain: Value, non_temporal: Value) -> Pointer:
        """Of two functions that write the same the one that does so ``non_temporal`` the cache, where there are other threads to read it.

        What these have read before they hold in their caches, and a plain store waits until each has let go of its line.
        """
        several = self.builder.icmp_signed(">", self.threads, i64(1))
        return self.builder.select(several, non_temporal, plain)

    def barrier(self, non_temporal: bool = False) -> None:
        """Wait until every thread has come here; what any wrote before, ``non_temporal`` the cache where that is said, is then seen by all."""
        from llvmlite import ir

        if non_temporal:
            self.builder.fence("seq_cst")

        found = self.module.globals.get(BARRIER)
        if found is None:
            kind = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
            found = ir.Function(self.module, kind, BARRIER)
        self.builder.call(found, [self.team])

    @property
    def faults(self) -> Faults:
        """How the kernel tells of faults."""
        return Faults(self.words, self.body)

    def check(self, node: Node, index: Value, size: int) -> None:
        """Tell of an index of a node that is not from 0 to before ``size``; the program raises."""
        self.faults.check_index(self.builder, node, index, size)

    @property
    def claims(self) -> Claims:
        """How threads claim pieces of the kernel's work."""
        return Claims(self.builder, self.words, self.thread, self.threads)

    def share(self, count: Index) -> tuple[Value, Value]:
        """The first of this thread's part of ``count`` things, and the one after its last; parts differ by one at most."""
        b = self.builder
        first = b.udiv(b.mul(self.thread, i64(count)), self.threads)
        after = b.add(self.thread, i64(1))
        last = b.udiv(b.mul(after, i64(count)), self.threads)
        if self.portion == (0, WHOLE):
            return first, last
        own = b.sub(last, first)
        low, high = (b.udiv(b.mul(own, i64(end)), i64(WHOLE)) for end in self.portion)
        return b.add(first, low), b.add(first, high)

    def each(self, count: Index, body: Callable[[Value], None]) -> None:
        """``body(i)`` for this thread's part of ``range(count)``."""
        first, last = self.share(count)

        def emit_index(i: Value, _: Sequence[Value]) -> None:
            body(i)

        loop(self.builder, first, last, 1, emit_index)

    def alone(self) -> AbstractContextManager[Block]:
        """A context in which only the first thread runs, for what is too small to share."""
        return self.builder.if_then(self.builder.icmp_signed("==", self.thread, i64(0)))


def no_scratch(spec: Spec, machine: Machine) -> Scratch:
    """For templates that need none."""
    return Scratch()


@dataclass(frozen=True)
class Packing:
    """An operand that a kernel reads faster in another order, which pays where it changes seldom.

    Attributes:
        operand: its position.
        nbytes: bytes of it in that order.
        key: what the order depends on; kernels with equal keys share what is packed.
        emit: writes the kernel that packs; its one operand is what is packed, its one result where to.
        panels: the order, where it is all of the operand bit for bit, so that the operand can be read back.
        alone: whether it pays only if nothing reads the operand as it is, which would be kept beside what is packed.
        repeated: whether it pays only if the kernel is run many times while the operand and what is packed are in the cache.
    """

    operand: int
    nbytes: int
    key: str
    emit: Callable[[Code], None]
    panels: Panels | None = None
    alone: bool = False
    repeated: bool = False


def no_packing(spec: Spec, machine: Machine) -> Packing | None:
    """For templates that read operands as they are."""
    return None


def no_panels(spec: Spec, machine: Machine) -> Offer:
    """For templates whose operands and results all lie row by row."""
    return Offer()


@dataclass(frozen=True)
class Template:
    """A family of kernels: which specs it has code for, the memory they need, what they would have packed, and the code.

    ``panels`` says which operands and results may lie in panels, and in which.
    """

    name: str
    fits: Callable[[Spec], bool]
    emit: Callable[[Code], None]
    scratch: Callable[[Spec, Machine], Scratch] = no_scratch
    packing: Callable[[Spec, Machine], Packing | None] = no_packing
    panels: Callable[[Spec, Machine], Offer] = no_panels
