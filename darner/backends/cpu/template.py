"""What every kernel template of the CPU backend is written against.

A template makes the code of one family of kernels. ``fits`` says whether it has code for a spec, ``scratch`` what memory it needs besides operands and
results, and ``emit`` writes the code into a ``Code``: the body of a function that every thread calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...graph.graph import Graph
from ...graph.node import Node
from ...lower.plan import Spec
from .faults import CLAIMS, MARKS, WORDS, emit_check
from .gemm_ir import loop
from .jit import Machine
from .panels import Offer, Panels
from .places import Number, Places, as_value
from .threads_ir import BARRIER


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
        fault: where an index that is outside its axis is told of; see ``check``.
        packed: whether the operand of the template's ``Packing`` comes packed.
        panels: the operands, and after them the results, that lie in panels, by position.
    """

    builder: Any
    spec: Spec
    machine: Machine
    thread: Any
    threads: Any
    operands: Sequence[Any]
    results: Sequence[Any]
    own: Any
    shared: Any
    team: Any
    fault: Any
    packed: bool = False
    panels: Mapping[int, Panels] = field(default_factory=dict)

    @property
    def body(self) -> Graph:
        """What is computed, as a graph."""
        return self.spec.body

    @property
    def width(self) -> int:
        """Lanes of f32 that a vector of the machine has."""
        return self.machine.vector_bytes // 4

    @property
    def module(self) -> Any:
        """Where functions that kernels share are put."""
        return self.builder.module

    @property
    def places(self) -> Places:
        """Arithmetic on indices."""
        return Places(self.builder)

    def operand_of(self, leaf: Node) -> Any:
        """The address of an input of the body."""
        return self.operands[int(str(leaf.name))]

    def barrier(self) -> None:
        """Wait until every thread has come here; what any wrote before is then seen by all."""
        from llvmlite import ir  # type: ignore[import-untyped]

        found = self.module.globals.get(BARRIER)
        if found is None:
            kind = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
            found = ir.Function(self.module, kind, BARRIER)
        self.builder.call(found, [self.team])

    def check(self, index: Any, size: int) -> None:
        """Tell of an index that is not from 0 to before ``size``; the program raises after the step."""
        emit_check(self.builder, self.fault, index, size)

    def claim(self) -> Any:
        """The number of one more piece of work, from 0 on, that no other thread has claimed in this run of the kernel.

        A thread goes on until it gets a number for which there is no piece, and gives that to ``claimed``.
        """
        return self.builder.atomic_rmw("add", self._claims, as_value(1), "acq_rel")

    def claimed(self, number: Any, pieces: Number, marks: bool = False) -> None:
        """End this thread's claims. Who made the last of all threads has the next run begin at 0, and takes back the ``marks``."""
        b = self.builder
        last = b.sub(b.add(as_value(pieces), self.threads), as_value(1))
        with b.if_then(b.icmp_signed("==", number, last)):
            for place in range(MARKS, WORDS) if marks else ():
                b.atomic_rmw("xchg", self._word(place), as_value(0), "release")
            b.atomic_rmw("xchg", self._claims, as_value(0), "release")

    def mark(self, number: Any) -> None:
        """Say that something, one of ``MOST_MARKS``, is done: what this thread wrote before is seen by who sees the mark.

        A thread marks nothing more once it has claimed beyond the last piece; then all marks may be taken back at any time.
        """
        place, bit = self._mark(number)
        self.builder.atomic_rmw("or", place, bit, "release")

    def marked(self, number: Any) -> Any:
        """Whether something was marked."""
        b = self.builder
        place, bit = self._mark(number)
        seen = b.load_atomic(place, "acquire", 8, typ=bit.type)
        return b.icmp_unsigned("!=", b.and_(seen, bit), as_value(0))

    def _mark(self, number: Any) -> tuple[Any, Any]:
        """The word of a mark, and its bit."""
        b = self.builder
        place = b.add(as_value(MARKS), b.lshr(number, as_value(6)))
        return self._word(place), b.shl(as_value(1), b.and_(number, as_value(63)))

    def each_claimed(self, pieces: int, inside: Callable[[Any], None]) -> None:
        """``inside(piece)`` for the pieces that this thread claims, one after another, as long as there are any."""
        b = self.builder
        first, before = self.claim(), b.block
        head, some = b.append_basic_block("claim"), b.append_basic_block("claimed")
        done = b.append_basic_block("done")
        b.branch(head)
        b.position_at_end(head)
        piece = b.phi(first.type)
        piece.add_incoming(first, before)
        b.cbranch(b.icmp_unsigned("<", piece, as_value(pieces)), some, done)
        b.position_at_end(some)
        inside(piece)
        following = self.claim()
        piece.add_incoming(following, b.block)
        b.branch(head)
        b.position_at_end(done)
        self.claimed(piece, pieces)

    @property
    def _claims(self) -> Any:
        return self._word(CLAIMS)

    def _word(self, number: Number) -> Any:
        from llvmlite import ir

        return self.builder.gep(self.fault, [as_value(number)], source_etype=ir.IntType(64))

    def share(self, count: Number) -> tuple[Any, Any]:
        """The first of this thread's part of ``count`` things, and the one after its last; parts differ by one at most."""
        b = self.builder
        first = b.udiv(b.mul(self.thread, as_value(count)), self.threads)
        after = b.add(self.thread, as_value(1))
        return first, b.udiv(b.mul(after, as_value(count)), self.threads)

    def each(self, count: Number, inside: Callable[[Any], None]) -> None:
        """``inside(i)`` for this thread's part of ``range(count)``."""
        first, last = self.share(count)

        def one(i: Any, _: Sequence[Any]) -> None:
            inside(i)

        loop(self.builder, first, last, 1, one)

    def alone(self) -> Any:
        """A context in which only the first thread runs, for what is too small to share."""
        return self.builder.if_then(self.builder.icmp_signed("==", self.thread, as_value(0)))


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
    """

    operand: int
    nbytes: int
    key: str
    emit: Callable[[Code], None]
    panels: Panels | None = None


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


def sizes(node: Node) -> list[int]:
    """The sizes of a node; in a kernel all are known."""
    return [int(size) for size in node.shape]
