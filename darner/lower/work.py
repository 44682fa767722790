"""What a kernel of a plan has to do at least: the arithmetic of its body, and the bytes of its operands and results.

    >>> import darner
    >>> from darner.lower.lower import lower
    >>> g = darner.Graph()
    >>> g.set_outputs([g.input("x", (32, 784)) @ g.parameter("w", (784, 128))])
    >>> plan = lower(g)
    >>> work = kernel_work(plan, plan.kernels[0])
    >>> work.flops, work.bytes
    (6422528, 518144)

What is computed inside a kernel moves no bytes: that is what fusing is for. An operand counts once, however often it is read;
of a table only the rows that are looked up, and of a value that is changed in place only what is replaced. The arithmetic of a loop is that of all its steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ..graph.errors import InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import Type
from ..optimizer.targets import Target
from ..transforms.cost import cost
from .loops import loop_of
from .plan import Kernel, Plan, Spec


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The least that must be done.

    Attributes:
        contraction_flops: additions and multiplications in matrix products, convolutions and attention.
        other_flops: all other arithmetic; an elementary function counts as one.
        read: bytes of operands.
        written: bytes of results.
        half: whether contractions are of 16-bit floats.
    """

    contraction_flops: int = 0
    other_flops: int = 0
    read: int = 0
    written: int = 0
    half: bool = False

    @property
    def flops(self) -> int:
        """All arithmetic."""
        return self.contraction_flops + self.other_flops

    @property
    def bytes(self) -> int:
        """All that is moved."""
        return self.read + self.written

    def arithmetic_seconds(self, target: Target) -> float:
        """The least time of its arithmetic."""
        rate = target.half if self.half else 1.0
        return target.seconds(
            self.contraction_flops / rate + self.other_flops / target.vector, 0, 0
        )

    def memory_seconds(self, target: Target) -> float:
        """The least time to move its operands and results."""
        return target.seconds(0, self.bytes, 0)

    def seconds(self, target: Target) -> float:
        """The least time on a machine: of its slower half, the time to start it left out."""
        return max(self.arithmetic_seconds(target), self.memory_seconds(target))

    def limit(self, target: Target) -> Literal["flops", "bytes"]:
        """Which half is slower on a machine."""
        slower = self.arithmetic_seconds(target) > self.memory_seconds(target)
        return "flops" if slower else "bytes"

    def __add__(self, other: KernelWork) -> KernelWork:
        return KernelWork(
            self.contraction_flops + other.contraction_flops,
            self.other_flops + other.other_flops,
            self.read + other.read,
            self.written + other.written,
            self.half or other.half,
        )


def kernel_work(plan: Plan, kernel: Kernel | int) -> KernelWork:
    """The work of a kernel, or of the kernel at a position."""
    kernel = plan.kernels[kernel] if isinstance(kernel, int) else kernel
    spec = plan.spec(kernel)
    contraction, other, half = _arithmetic(spec)
    read: dict[int, int] = {}
    written = 0
    for i, leaf in zip(kernel.operands, spec.inputs, strict=True):
        read[i] = max(read.get(i, 0), _bytes_read(spec.body, leaf))
    for i, output in zip(kernel.results, spec.body.outputs, strict=True):
        replaced = _replaced_in_place(plan, kernel, spec, i, output)
        if replaced is None:
            written += _size(output.type)
        else:
            operand, part = replaced
            written += part
            read[operand] = 0
    return KernelWork(contraction, other, sum(read.values()), written, half)


@lru_cache(maxsize=4096)
def _arithmetic(spec: Spec) -> tuple[int, int, bool]:
    contraction = other = 0
    half = False
    if spec.inner is not None:
        steps = loop_of(spec).length
        found = [_arithmetic(spec.inner.spec(kernel)) for kernel in spec.inner.kernels]
        contraction, other = (sum(one[i] for one in found) * steps for i in (0, 1))
        return contraction, other, any(one[2] for one in found)
    for node in spec.body.nodes:
        flops = cost(node).flops
        if not isinstance(flops, int):
            raise InternalError(f"the work of {node.op.name} is {flops}: a size is a symbol")
        if node.op.facts.full_rate:
            contraction += flops
            half = half or any(operand.dtype.is_half for operand in node.operands)
        else:
            other += flops
    return contraction, other, half


def _bytes_read(body: Graph, leaf: Node) -> int:
    """Bytes of an operand that are needed: all, unless every reader takes only a part."""
    whole = _size(leaf.type)
    total = 0
    for user in body.users(leaf):
        slots = [slot for i, slot in zip(user.inputs, user.slots, strict=True) if i == leaf.id]
        if user.op.name == "slice":
            part = _bytes_read(body, user)
        elif slots == [user.op.facts.reads_part_of]:
            part = _size(user.type)
        else:
            return whole
        total += part
    in_outputs = any(node.id == leaf.id for node in body.outputs)
    return whole if in_outputs else min(whole, total)


def _replaced_in_place(
    plan: Plan, kernel: Kernel, spec: Spec, result: int, output: Node
) -> tuple[int, int] | None:
    """Where a result is an operand with some elements replaced in place: the operand, and the bytes replaced."""
    slot = output.op.facts.overwrites
    for id, name in zip(output.inputs, output.slots, strict=True):
        if name != slot:
            continue
        for i, leaf in zip(kernel.operands, spec.inputs, strict=True):
            if leaf.id == id and same_place(plan, i, result):
                parts = [node for node in output.operands if node.id != id]
                return i, max((_size(node.type) for node in parts), default=0)
    return None


def same_place(plan: Plan, one: int, other: int) -> bool:
    """Whether two buffers share bytes."""
    if one == other:
        return True
    a, b = plan.buffers[one], plan.buffers[other]
    if a.place != "arena" or b.place != "arena":
        return False
    return a.range[0] < b.range[1] and b.range[0] < a.range[1]


def _size(type_: Type) -> int:
    return int(type_.nbytes)
