"""What is more than a GPU can hold or count, or tell of, is refused when a plan is made: by name, with both numbers, and with what would help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from ...graph.errors import Source, UnsupportedError
from ...graph.graph import Graph
from ...lower.loops import failing
from ...lower.plan import Plan, Spec

MOST_ELEMENTS = 1 << 31
"""Elements of a tensor: indices have 32 bits, and differences of them a sign."""

COUNTED = ("reshape", "random_bits")
"""Ops of a kernel's body that number the elements of a value, even of one that no memory holds."""


@dataclass(frozen=True)
class Limits:
    """How much a device can hold.

    Attributes:
        holder: what holds a value, with the device's name: "a buffer of 'H200'".
        most: bytes of a leaf.
        segment: bytes of a value of the arena, or of scratch memory.
        why: what the limit is called.
    """

    holder: str
    most: int
    segment: int
    why: str


@dataclass(frozen=True)
class _Value:
    """A tensor of a plan, and what it is to the user."""

    op: str
    label: str | None
    source: Source | None
    shape: tuple[int, ...]
    nbytes: int
    most: int


def check_values(plan: Plan, graph: Graph, limits: Limits) -> None:
    """Raise where a value has more bytes than a buffer of the GPU, or more elements than it can count.

    Args:
        plan: lowered for the GPU.
        graph: what it was made of: it knows where inputs, parameters and states were written.
        limits: of the GPU.
    """
    for value in _values(plan, graph, limits):
        shape = "x".join(map(str, value.shape))
        if prod(value.shape) > MOST_ELEMENTS:
            rule = f"a tensor of {shape} has {prod(value.shape):,} elements, and the GPU counts {MOST_ELEMENTS:,}"
            hint = "split it along an axis; device='cpu' has no such limit"
        elif value.nbytes > value.most:
            rule = f"a tensor of {shape} takes {value.nbytes:,} bytes, and {limits.holder} has {value.most:,} at most ({limits.why})"
            hint = "a smaller batch, a type of fewer bits, or the tensor in several pieces; device='cpu' has no such limit"
        else:
            continue
        raise UnsupportedError(rule, hint=hint).located(value.op, value.label, "", value.source)


def _values(plan: Plan, graph: Graph, limits: Limits) -> Iterator[_Value]:
    most, segment = limits.most, limits.segment
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


def check_scratch(nbytes: int, limits: Limits) -> None:
    """Raise where a kernel wants more scratch memory than a buffer can have."""
    if nbytes > limits.segment:
        raise UnsupportedError(
            f"a kernel takes {nbytes:,} bytes of scratch memory, and {limits.holder} has {limits.segment:,} at most ({limits.why})",
            hint="a smaller batch, or the tensor in several pieces; device='cpu' has no such limit",
        )


def check_loops(plan: Plan) -> None:
    """Refuse loops whose bodies data can make fail: a GPU does not tell which of its steps did.

    Raises:
        UnsupportedError: with the op in the body, its label and what would help.
    """
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        node = None if spec.inner is None else next(failing(spec), None)
        if node is not None:
            label, source = kernel.checks[0] if kernel.checks else (kernel.label, kernel.source)
            raise UnsupportedError(
                "it is in the body of a loop and can fail, which a GPU cannot tell of there",
                hint="do it for all steps before the loop, and read the results as xs; or build for device='cpu'",
            ).located(node.op.name, label, "", source)
