"""Faults of data as the errors that a user reads: with the op, its label and the line of the graph that the kernel came from."""

from __future__ import annotations

from collections.abc import Sequence

from ..graph.errors import DarnerError, RunError, Source
from ..graph.graph import Graph
from ..graph.node import Node
from ..ops.faults import can_fail, fault_of, is_indexed
from .loops import failing
from .plan import Kernel, Plan
from .specs import operand_number


def raised(plan: Plan, number: int, words: Sequence[int]) -> RunError:
    """The error that the words of a kernel tell of: which of its nodes that can fail, counted from 1, what it met, and the size of an axis."""
    kernel = plan.kernels[number]
    spec = plan.spec(kernel)
    node = [*failing(spec)][words[0] - 1]
    error = fault_of(node, words[1], words[2])
    if spec.inner is None and is_indexed(node) and (inputs := _inputs_of(plan, kernel, node)):
        error.rule += f", and comes from input {', '.join(map(repr, inputs))}"
    error.located(node.op.name, *_named(kernel, words[0] - 1))
    return error


def _inputs_of(plan: Plan, kernel: Kernel, node: Node) -> list[str]:
    """The user's inputs that the indices of a node are made of, in its kernel or in those before it."""
    writers = {buffer: item for item in plan.kernels for buffer in item.results}
    nodes, places = [node.operands[node.slots.index("indices")]], list[int]()
    while nodes:
        found = nodes.pop()
        if found.op.name == "input":
            places.append(kernel.operands[operand_number(found)])
        nodes += found.operands
    inputs: dict[str, None] = {}
    seen: set[int] = set()
    while places:
        place = places.pop()
        buffer = plan.buffers[place]
        if place in seen or not (buffer.type.dtype.is_int or buffer.type.dtype.kind == "bool"):
            continue
        seen.add(place)
        if buffer.place == "input":
            inputs[str(buffer.name)] = None
        elif place in writers:
            places += writers[place].operands
    return list(inputs)


def located(error: DarnerError, kernel: Kernel, body: Graph) -> DarnerError:
    """An error of a node of a kernel's body, with the label and the line of the node that the user wrote."""
    failing = [node.op.name for node in body.nodes if can_fail(node)]
    op = error.op or "run"
    return error.located(op, *_named(kernel, failing.index(op) if op in failing else None))


def _named(kernel: Kernel, check: int | None) -> tuple[str | None, str, Source | None]:
    """Label, operands and line for an error of one of a kernel's nodes that can fail, by number."""
    label, source = (kernel.label, kernel.source) if check is None else kernel.checks[check]
    return label, "", source
