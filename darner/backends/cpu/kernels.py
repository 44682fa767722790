"""Kernels as code: one function for each spec, and one step that calls them in order.

Every result is written in loops over its own shape, the rows shared out among the threads; what it is made of is emitted by ``Elements``. Reductions that
one value a row has are computed before the row's elements are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ...graph.errors import DarnerError
from ...graph.node import Node
from ...lower.plan import Plan, Spec
from .elements import Elements, can_emit
from .places import Places, as_value
from .scatters import can_scatter, emit_scatter
from .threads import BARRIER

KINDS = ("map", "rows", "contract", "index")
"""The kinds whose results are written element by element."""


class UnsupportedError(DarnerError):
    """A plan asks for something that this backend has no code for."""


def emit_plan(plan: Plan) -> Any:
    """The module of a plan: ``step(thread, threads, table)``.

    ``table`` begins with the team's address, then has the address of every buffer.
    """
    from llvmlite import ir  # type: ignore[import-untyped]

    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        if not _has_code(spec):
            names = ", ".join(dict.fromkeys(spec.ops))
            raise UnsupportedError(
                f"the CPU backend has no kernel of kind '{spec.kind}' for {names}"
            ).located(spec.ops[-1], kernel.label, "", kernel.source)
    module = ir.Module("plan")
    pointer, wide = ir.PointerType(), ir.IntType(64)
    functions = {
        digest: _emit_spec(module, f"kernel{number}", spec)
        for number, (digest, spec) in enumerate(plan.specs.items())
    }
    barrier = ir.Function(module, ir.FunctionType(ir.VoidType(), [pointer]), BARRIER)
    signature = ir.FunctionType(ir.VoidType(), [wide, wide, pointer])
    step = ir.Function(module, signature, "step")
    builder = ir.IRBuilder(step.append_basic_block("entry"))
    thread, threads, table = step.args

    def entry(number: int) -> Any:
        place = builder.gep(table, [as_value(number)], source_etype=pointer)
        return builder.load(place, typ=pointer)

    team = entry(0)
    for kernel in plan.kernels:
        places = [entry(1 + buffer) for buffer in (*kernel.operands, *kernel.results)]
        builder.call(functions[kernel.spec], [thread, threads, *places])
        builder.call(barrier, [team])
    builder.ret_void()
    return module


def _has_code(spec: Spec) -> bool:
    return can_scatter(spec.body) or (spec.kind in KINDS and can_emit(spec.body))


def _emit_spec(module: Any, name: str, spec: Spec) -> Any:
    from llvmlite import ir

    pointer, wide = ir.PointerType(), ir.IntType(64)
    count = len(spec.inputs) + len(spec.body.outputs)
    function = ir.Function(
        module, ir.FunctionType(ir.VoidType(), [wide, wide, *[pointer] * count]), name
    )
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    thread, threads, *places = function.args
    operands, results = places[: len(spec.inputs)], places[len(spec.inputs) :]
    if can_scatter(spec.body):
        elements = Elements(builder, spec.body, operands)
        emit_scatter(elements, spec.body.outputs[0], results[0], (thread, threads))
        builder.ret_void()
        return function
    groups: dict[tuple[int, ...], list[tuple[Node, Any]]] = {}
    for output, place in zip(spec.body.outputs, results, strict=True):
        shape = tuple(int(size) for size in output.shape)
        groups.setdefault(shape, []).append((output, place))
    for shape, outputs in groups.items():
        if prod(shape):
            elements = Elements(builder, spec.body, operands)
            _emit_results(elements, shape, outputs, thread, threads)
    builder.ret_void()
    return function


def _emit_results(
    elements: Elements,
    shape: Sequence[int],
    outputs: Sequence[tuple[Node, Any]],
    thread: Any,
    threads: Any,
) -> None:
    """Loops over the rows of results of one shape, then over the elements of a row."""
    places: Places = elements.places
    rows, columns = (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)
    lead = shape[:-1] if len(shape) > 1 else shape
    first = elements.builder.udiv(elements.builder.mul(thread, as_value(rows)), threads)
    after = elements.builder.add(thread, as_value(1))
    last = elements.builder.udiv(elements.builder.mul(after, as_value(rows)), threads)

    def row(number: Any, _: list[Any]) -> Sequence[Any]:
        index = places.split(number, lead)

        def element(column: Any, _: list[Any]) -> Sequence[Any]:
            full = [*index, column] if len(shape) > 1 else index
            # All are computed before any is written: a result may lie where an operand does.
            values = [elements.at(node, full) for node, _ in outputs]
            offset = places.add(places.mul(number, columns), column) if len(shape) > 1 else number
            for (node, pointer), value in zip(outputs, values, strict=True):
                elements.registers.store(value, pointer, offset, node.dtype)
            return []

        for node in _row_values(outputs, shape):
            elements.at(node, _row_index(node, index, len(shape)))
        if len(shape) > 1:
            elements.loop(0, columns, element)
        else:
            element(0, [])
        return []

    elements.loop(first, last, row)


def _row_values(outputs: Sequence[tuple[Node, Any]], shape: Sequence[int]) -> list[Node]:
    """The reductions over the last axis that elements of the results share with their row."""
    if len(shape) < 2:
        return []
    found: dict[int, Node] = {}
    seen: set[int] = set()
    stack = [node for node, _ in outputs]
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        if node.op.name in ("sum", "prod", "max", "min") and _is_of_rows(node, shape):
            found[node.id] = node
        stack += node.operands
    return [found[id] for id in sorted(found)]


def _is_of_rows(node: Node, shape: Sequence[int]) -> bool:
    (x,) = node.operands
    whole = tuple(int(size) for size in x.shape) == tuple(shape)
    return whole and node.attrs["axes"] == (len(shape) - 1,)


def _row_index(node: Node, index: list[Any], rank: int) -> list[Any]:
    return [*index, 0] if node.rank == rank else list(index)
