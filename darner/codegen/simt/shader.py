"""One dispatch of a kernel while it is being written: what it has bound, its threads, its text.

    shader = Shader(spec, machine, threads=256)
    elements = shader.elements()
    with shader.writer.block(f"if ({shader.thread} < {count}u)"):
        ...
    return shader.finish(groups=-(-count // 256))

All buffers are bound for reading and writing, since several may be ranges of one. ``workgroup`` is the number of the workgroup (its third part is always 0), ``group`` that number
in one piece, ``local`` the number of the thread in it, ``thread`` its number among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...backends.wgpu.lanes import ShaderLane
from ...backends.wgpu.machine import Machine
from ...backends.wgpu.writer import HIDDEN, ZERO, Writer
from ...graph.dtypes import DType, u32
from ...graph.errors import UnsupportedError
from ...graph.graph import Graph
from ...lower.plan import Spec
from ...ops.faults import can_fail
from .elements import Memory, ShaderElements, is_packed

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


@dataclass(frozen=True)
class Move:
    """What a dispatch has copied to scratch memory, because it cannot have it bound where it lies.

    Attributes:
        binding: what is copied; back too, afterwards, unless it is an operand.
        room: the scratch memory that it is copied to.
    """

    binding: Binding
    room: Binding


@dataclass(frozen=True)
class Stage:
    """A dispatch.

    Attributes:
        text: its shader.
        groups: its workgroups, across and down.
        bindings: what it has bound, in the order of the bindings' numbers.
        copies: an operand and a result, where all it does is to copy the one to the other: it is left out where both are the same memory.
        moves: what is copied to scratch memory before it, and back.
    """

    text: str
    groups: tuple[int, int]
    bindings: tuple[Binding, ...]
    copies: tuple[int, int] | None = None
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True)
class Written:
    """A kernel in WGSL: dispatches one after another, and bytes of scratch memory for all of them."""

    stages: tuple[Stage, ...]
    scratch: int = 0


class Shader:
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
        self.writer = Writer()
        self.writer.lane = ShaderLane
        self.operands = [Memory(f"operand{i}", node.dtype) for i, node in enumerate(spec.inputs)]
        self.results = [
            Memory(f"result{i}", node.dtype, atomic=is_packed(node.dtype) and not whole)
            for i, node in enumerate(spec.body.outputs)
        ]
        self._scratch: list[tuple[Memory, Binding]] = []
        self._shared: list[str] = []
        self._builtins = [
            "@builtin(workgroup_id) workgroup: vec3<u32>",
            "@builtin(local_invocation_index) local: u32",
        ]

    @property
    def body(self) -> Graph:
        """What is computed, as a graph."""
        return self.spec.body

    @property
    def fault(self) -> str | None:
        """Where faults of data are told of; None where there can be none."""
        return "fault" if any(map(can_fail, self.body.nodes)) else None

    def elements(self, body: Graph | None = None) -> ShaderElements:
        """The elements of the body's nodes."""
        operands: Sequence[Memory] = self.operands
        return ShaderElements(self.writer, body or self.body, operands, self.fault, self.body)

    # ------------------------------------------------------------- memory

    def as_vectors(self, memory: Memory, count: int) -> Memory:
        """Declare an operand or result as vectors of 2 or 4 elements; returns what stands for it from now on."""
        found = replace(memory, vector=count)
        self.operands = [found if item is memory else item for item in self.operands]
        self.results = [found if item is memory else item for item in self.results]
        return found

    def scratch(self, start: int, count: int, dtype: DType, vector: int = 1) -> Memory:
        """Some of the kernel's scratch memory, from byte ``start`` (a multiple of 256) on."""
        memory = Memory(f"scratch{len(self._scratch)}", dtype, vector=vector)
        self._scratch.append((memory, Binding("scratch", start, count * dtype.itemsize)))
        return memory

    def shared(self, name: str, kind: str) -> str:
        """Memory of a workgroup; ``kind`` is a WGSL type such as ``array<f32, 256>``."""
        self._shared.append(f"var<workgroup> {name}: {kind};")
        return name

    def barrier(self) -> None:
        """Wait until every thread of the workgroup has come here; what any wrote to shared memory is then seen by all."""
        self.writer.line("workgroupBarrier();")

    def subgroup_builtins(self) -> None:
        """Have ``subgroup_size`` and ``lane`` (``subgroup_invocation_id``)."""
        self._builtins += [
            "@builtin(subgroup_size) subgroup_size: u32",
            "@builtin(subgroup_invocation_id) lane: u32",
        ]

    # ------------------------------------------------------------- text

    def finish(
        self, groups: int, enables: Sequence[str] = (), copies: tuple[int, int] | None = None
    ) -> Stage:
        """The dispatch, for so many workgroups; the body is not to be written to any more."""
        most = self.machine.most_groups
        high = -(-groups // most)
        if high > most:
            raise UnsupportedError(
                f"a kernel of {groups:,} workgroups is more than '{self.machine.name}' runs ({most:,} times {most:,})",
                hint="a smaller batch, or the tensor in several pieces",
            )
        across = -(-groups // max(high, 1)) if groups else 0
        head = [f"let group = workgroup.x + workgroup.y * {across}u;"]
        if across * high != groups:
            head.append(f"if (group >= {groups}u) {{ return; }}")
        if HIDDEN in self.writer.globals:
            head.append(f"{HIDDEN} = {ZERO};")
        head.append(f"let thread = group * {self.threads}u + local;")
        text = "\n".join(self.writer.lines)
        bindings: list[Binding] = []
        declared = []

        def bind(memory: Memory, binding: Binding) -> None:
            at = f"@group(0) @binding({len(bindings)})"
            kind = f"array<{memory.item}>"
            declared.append(f"{at} var<storage, read_write> {memory.name}: {kind};")
            bindings.append(binding)

        everything = text + "\n".join(self.writer.globals.values())
        for what, memories in (("operand", self.operands), ("result", self.results)):
            for i, memory in enumerate(memories):
                if _mentions(everything, memory.name):
                    bind(memory, Binding(what, i))
        for memory, binding in self._scratch:
            bind(memory, binding)
        if _mentions(everything, "fault"):
            bind(Memory("fault", u32), Binding("fault"))
        parts = [
            *(f"enable {name};" for name in enables),
            *declared,
            *self._shared,
            *self.writer.globals.values(),
            f"@compute @workgroup_size({self.threads}) fn main({', '.join(self._builtins)}) {{",
            *("  " + line for line in head),
            text,
            "}",
        ]
        return Stage("\n".join(parts), (across, max(high, 1)), tuple(bindings), copies)


def _mentions(text: str, name: str) -> bool:
    """Whether a text has a name, and not only longer ones that have it in them."""
    at = text.find(name)
    while at >= 0:
        behind = text[at + len(name) : at + len(name) + 1]
        if not behind.isalnum() and not text[at - 1 : at].isalnum():
            return True
        at = text.find(name, at + 1)
    return False
