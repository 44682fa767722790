"""What is more than a GPU can hold or count is refused when a plan is made: by name, with both numbers, and with what would help.

What only has to be bound in another way is no reason to refuse anything: see ``bindings``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ...codegen.simt.machine import GRANULE
from ...graph.errors import Source, UnsupportedError
from ...graph.graph import Graph
from ...lower.plan import Plan, Spec
from .machine import Machine

MOST_ELEMENTS = 1 << 31
"""Elements of a tensor: indices have 32 bits, and differences of them a sign."""

COUNTED = ("reshape", "random_bits")
"""Ops of a kernel's body that number the elements of a value, even of one that no memory holds."""


def segment_of(machine: Machine) -> int:
    """Bytes of the largest buffer, as a multiple of what every value begins at."""
    # One granule is left for what is bound past the last value.
    return machine.most_bytes // GRANULE * GRANULE - GRANULE


@dataclass(frozen=True)
class _Value:
    """A tensor of a plan, and what it is to the user."""

    op: str
    label: str | None
    source: Source | None
    shape: tuple[int, ...]
    nbytes: int
    most: int


def check_values(plan: Plan, graph: Graph, machine: Machine) -> None:
    """Raise where a value has more bytes than a buffer of the GPU, or more elements than it can count.

    Args:
        plan: lowered for the GPU.
        graph: what it was made of: it knows where inputs, parameters and states were written.
        machine: the GPU.
    """
    for value in _values(plan, graph, machine):
        shape = "x".join(map(str, value.shape))
        if prod(value.shape) > MOST_ELEMENTS:
            rule = f"a tensor of {shape} has {prod(value.shape):,} elements, and the GPU counts {MOST_ELEMENTS:,}"
            hint = "split it along an axis; device='cpu' has no such limit"
        elif value.nbytes > value.most:
            rule = f"a tensor of {shape} takes {value.nbytes:,} bytes, and a buffer of '{machine.name}' has {value.most:,} at most (max-buffer-size)"
            hint = "a smaller batch, a type of fewer bits, or the tensor in several pieces; device='cpu' has no such limit"
        else:
            continue
        raise UnsupportedError(rule, hint=hint).located(value.op, value.label, "", value.source)


def _values(plan: Plan, graph: Graph, machine: Machine) -> Iterator[_Value]:
    most, segment = machine.most_bytes, segment_of(machine)
    leaves = {**graph.inputs, **graph.parameters, **graph.states}
    for buffer in plan.buffers:
        if buffer.place != "arena":
            name = str(buffer.name)
            source = leaves[name].source if name in leaves else None
            shape = tuple(int(size) for size in buffer.type.shape)
            yield _Value(buffer.place, name, source, shape, buffer.nbytes, most)
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        for number in kernel.results:
            buffer = plan.buffers[number]
            shape = tuple(int(size) for size in buffer.type.shape)
            yield _Value(last_op(spec), kernel.label, kernel.source, shape, buffer.nbytes, segment)
        for node in spec.body.nodes:
            if node.op.name in COUNTED:
                shape = tuple(int(size) for size in node.shape)
                yield _Value(node.op.name, kernel.label, kernel.source, shape, 0, segment)


def last_op(spec: Spec) -> str:
    """What a kernel is called in errors."""
    return spec.ops[-1] if spec.ops else "copy"


def check_scratch(nbytes: int, machine: Machine) -> None:
    """Raise where a kernel wants more scratch memory than a buffer can have."""
    most = segment_of(machine)
    if nbytes > most:
        raise UnsupportedError(
            f"a kernel takes {nbytes:,} bytes of scratch memory, and a buffer of '{machine.name}' has {most:,} at most (max-buffer-size)",
            hint="a smaller batch, or the tensor in several pieces; device='cpu' has no such limit",
        )
