"""Kernels of complex numbers: a plan of their own over real and imaginary parts, which runs inside the kernel.

Values between its kernels are in shared scratch memory, and all threads wait between one kernel and the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ....codegen.elements.complex_pairs import in_pairs, is_complex
from ....codegen.ir.index import i64
from ....codegen.ir.types import Pointer, Value
from ....graph.integers import round_up
from ....lower.lower import lower
from ....lower.plan import ALIGNMENT, Plan, Spec
from ....lower.specs import operand_number
from ..emit.template import Code, Scratch, Template
from ..emit.vectors import constant_array, copy_bytes, moved
from ..runtime.jit import Machine


@lru_cache(maxsize=1024)
def _inner(spec: Spec) -> Plan:
    """What a kernel does, as kernels on floats."""
    return lower(in_pairs(spec.body), target="cpu")


def _template(spec: Spec) -> Template | None:
    from ..kernels import template_of

    return template_of(spec)


def _fits(spec: Spec) -> bool:
    if spec.inner is not None:
        return False
    return is_complex(spec.body) and None not in map(_template, _inner(spec).specs.values())


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    plan = _inner(spec)
    needs = []
    for inner in plan.specs.values():
        template = _template(inner)
        if template is not None:
            needs.append(template.scratch(inner, machine))
    own = max((need.own for need in needs), default=0)
    shared = max((need.shared for need in needs), default=0)
    return Scratch(own=own, shared=_arena(plan) + shared)


def _arena(plan: Plan) -> int:
    return round_up(plan.arena_bytes, ALIGNMENT)


def _emit(code: Code) -> None:
    plan = _inner(code.spec)
    places = [_address_of(code, plan, number) for number in range(len(plan.buffers))]
    rest = moved(code.builder, code.shared, _arena(plan))
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        template = _template(spec)
        if template is None:
            continue
        inside = replace(
            code,
            spec=spec,
            operands=[places[i] for i in kernel.operands],
            results=[places[i] for i in kernel.results],
            shared=rest,
        )
        template.emit(inside)
        code.barrier()
    # A result may lie where an operand does, which the kernels before still had to read.
    _copy_out(code, plan, places)


def _address_of(code: Code, plan: Plan, number: int) -> Pointer:
    buffer = plan.buffers[number]
    if buffer.place == "input":
        return code.operands[operand_number(buffer)]
    if buffer.place == "constant":
        return constant_array(code.module, "values", plan.constants[str(buffer.name)].array)
    return moved(code.builder, code.shared, buffer.offset or 0)


def _copy_out(code: Code, plan: Plan, places: Sequence[Value]) -> None:
    b = code.builder
    for number, result in zip(plan.outputs, code.results, strict=True):
        first, last = code.share(plan.buffers[number].nbytes)
        target, source = (moved(b, pointer, first) for pointer in (result, places[number]))
        copy_bytes(b, target, source, b.sub(last, i64(first)))


COMPLEX = Template("complex", _fits, _emit, _scratch)
