"""Kernels of complex numbers: a plan of their own over real and imaginary parts, whose dispatches are the kernel's.

The values between its kernels lie in scratch memory. Results are copied to where they belong at the end, since one may lie where an operand does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from ....graph.data import Array
from ....graph.graph import Graph
from ....graph.integers import ceil_div, round_up
from ....lower.lower import lower
from ....lower.plan import Plan, Spec
from ...elements.complex_pairs import in_pairs, is_complex
from ..dispatch import Binding, Dispatch, Stage, Written
from ..machine import GRANULE, Machine
from ..maps.template import MAPS
from ..template import Template


@lru_cache(maxsize=1024)
def _inner(spec: Spec) -> Plan:
    """What a kernel does, as kernels on floats."""
    return lower(in_pairs(spec.body), target="gpu", ended=(), alignment=GRANULE)


def _fits(spec: Spec, machine: Machine) -> bool:
    from ..families import template_of

    if not is_complex(spec.body):
        return False
    return all(template_of(inner, machine) is not None for inner in _inner(spec).specs.values())


def _write(spec: Spec, machine: Machine) -> Written:
    from ..families import written

    plan = _inner(spec)
    places, end = _places(plan)
    stages = [
        _constant(machine, plan.constants[str(buffer.name)].array, places[number])
        for number, buffer in enumerate(plan.buffers)
        if buffer.place == "constant"
    ]
    most = 0
    for kernel in plan.kernels:
        inside = written(plan.spec(kernel), machine)
        most = max(most, inside.scratch)
        operands, results = ([places[i] for i in ids] for ids in (kernel.operands, kernel.results))
        stages += [_moved(stage, operands, results, end) for stage in inside.stages]
    for number, buffer in enumerate(plan.outputs):
        about = plan.buffers[buffer]
        graph = Graph("copy")
        graph.set_outputs([graph.input("0", about.type.shape, about.type.dtype)])
        copied = MAPS.write(Spec("map", graph), machine)
        stages += [
            _moved(stage, [places[buffer]], [Binding("result", number)], end)
            for stage in copied.stages
        ]
    return Written(tuple(stages), end + most)


def _places(plan: Plan) -> tuple[list[Binding], int]:
    """What stands for each buffer of the plan, and the bytes of scratch memory that these take."""
    end = round_up(plan.arena_bytes, GRANULE)
    inputs = {buffer: int(name) for name, buffer in plan.leaves("input").items()}
    found = []
    for number, buffer in enumerate(plan.buffers):
        if buffer.place == "input":
            found.append(Binding("operand", inputs[number]))
        elif buffer.place == "constant":
            found.append(Binding("scratch", end, max(buffer.nbytes, 4)))
            end += round_up(max(buffer.nbytes, 4), GRANULE)
        else:
            found.append(Binding("scratch", buffer.offset or 0, buffer.nbytes))
    return found, end


def _moved(
    stage: Stage, operands: Sequence[Binding], results: Sequence[Binding], end: int
) -> Stage:
    """A dispatch of an inner kernel with the outer kernel's memory."""
    kinds = {"operand": operands, "result": results}

    def moved(one: Binding) -> Binding:
        if one.what == "scratch":
            return replace(one, number=one.number + end)
        return kinds[one.what][one.number] if one.what in kinds else one

    return replace(stage, bindings=tuple(map(moved, stage.bindings)), copies=None)


def _constant(machine: Machine, array: Array, place: Binding) -> Stage:
    """A dispatch that writes an array that is part of its text."""
    from ....graph.dtypes import u32

    data = np.ascontiguousarray(array).tobytes()
    words = np.frombuffer(data + b"\0" * (-len(data) % 4), np.uint32)
    dispatch = Dispatch(Spec("map", Graph("values")), machine)
    b, memory = dispatch.builder, dispatch.scratch(place.number, len(words), u32)
    values = b.table(words.tolist(), "values")
    with b.if_(b.thread < len(words)):
        memory[b.thread] = values[b.thread]
    return dispatch.finish(ceil_div(len(words), dispatch.threads))


COMPLEX = Template("complex", _fits, _write)
