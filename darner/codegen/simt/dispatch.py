"""One dispatch of a kernel while it is being written: its operands, results and scratch memory, and the builder of its code.

dispatch = Dispatch(spec, machine, threads=256)
b, elements = dispatch.builder, dispatch.elements()
with b.if_(b.thread < count):
...
return dispatch.finish(groups=-(-count // 256))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...graph.dtypes import DType, u32
from ...graph.errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node
from ...lower.plan import Spec
from ...ops.faults import can_fail
from .builder import Memory, is_packed
from .elements import ThreadElements
from .machine import Machine

WORKGROUP = 256
"""Threads of a workgroup, where nothing speaks for another number."""
FAULT_BYTES = 256
"""What a kernel tells of a fault, at a distance that every device can bind at."""


@dataclass(frozen=True)
class Binding:
    """What a dispatch has bound: an operand or result of the kernel, scratch memory, or the place where faults are told.

    Attributes:
        what: ``operand``, ``result``, ``scratch`` or ``fault``.
        number: of the operand or result, or the scratch memory's first byte.
        nbytes: of scratch memory, or of a part of an operand or result; all of it where it is 0.
        offset: the first byte of that part.
    """

    what: str
    number: int = 0
    nbytes: int = 0
    offset: int = 0


Stage: TypeAlias = Any
"""A dispatch as the machine's builder finished it."""


@dataclass(frozen=True)
class Written:
    """A kernel: dispatches one after another, as the machine's builder finished them, and bytes of scratch memory for all of them."""

    stages: tuple[Stage, ...]
    scratch: int = 0


def operand_number(leaf: Node) -> int:
    """Which of a kernel's operands an input of its body is."""
    if leaf.name is None:
        raise InternalError(f"{leaf} is no input of a kernel's body")
    return int(leaf.name)


class Dispatch:
    """A dispatch in the making.

    Args:
        spec: what the kernel computes.
        machine: for which GPU.
        threads: of a workgroup; no more than the GPU allows.
        whole: results of bools, bytes and 16-bit numbers that are written in whole words by who writes them; all others are written atomically.
    """

    def __init__(
        self, spec: Spec, machine: Machine, *, threads: int = WORKGROUP, whole: bool = False
    ) -> None:
        self.spec = spec
        self.machine = machine
        self.threads = min(threads, machine.threads)
        self.builder = machine.builder(self.threads)
        self.operands = [
            Memory(f"operand{i}", node.dtype, builder=self.builder)
            for i, node in enumerate(spec.inputs)
        ]
        self.results = [
            Memory(
                f"result{i}",
                node.dtype,
                atomic=is_packed(node.dtype) and not whole,
                builder=self.builder,
            )
            for i, node in enumerate(spec.body.outputs)
        ]
        self._scratch: list[tuple[Memory, Binding]] = []

    @property
    def body(self) -> Graph:
        """What is computed, as a graph."""
        return self.spec.body

    @property
    def fault(self) -> Memory | None:
        """Where faults of data are told of; None where there can be none."""
        return self._fault if any(map(can_fail, self.body.nodes)) else None

    @property
    def _fault(self) -> Memory:
        return Memory("fault", u32, builder=self.builder)

    def operand(self, leaf: Node) -> Memory:
        """The operand that an input of the body is."""
        return self.operands[operand_number(leaf)]

    def elements(self, body: Graph | None = None) -> ThreadElements:
        """The elements of the body's nodes."""
        operands: Sequence[Memory] = self.operands
        return ThreadElements(self.builder, body or self.body, operands, self.fault, self.body)

    def as_vectors(self, memory: Memory, count: int) -> Memory:
        """Declare an operand or result as vectors of 2 or 4 elements; returns what stands for it from now on."""
        found = replace(memory, vector=count)
        self.operands = [found if item is memory else item for item in self.operands]
        self.results = [found if item is memory else item for item in self.results]
        return found

    def scratch(self, start: int, count: int, dtype: DType, vector: int = 1) -> Memory:
        """Some of the kernel's scratch memory, from byte ``start`` (a multiple of 256) on."""
        name = f"scratch{len(self._scratch)}"
        memory = Memory(name, dtype, vector=vector, builder=self.builder)
        self._scratch.append((memory, Binding("scratch", start, count * dtype.itemsize)))
        return memory

    def barrier(self) -> None:
        """See ``Simt.barrier``: for the same."""
        self.builder.barrier()

    def finish(self, groups: int, copies: tuple[int, int] | None = None) -> Stage:
        """The dispatch, for so many workgroups; nothing is to be written to it any more.

        Args:
            groups: how many workgroups there are.
            copies: an operand and a result, where all it does is to copy the one to the other.
        """
        buffers = [
            *((memory, Binding("operand", i)) for i, memory in enumerate(self.operands)),
            *((memory, Binding("result", i)) for i, memory in enumerate(self.results)),
            *self._scratch,
            (self._fault, Binding("fault")),
        ]
        return self.builder.finish(groups, buffers, copies)
