"""Attention on tensor cores: which specs, and in which form."""

from __future__ import annotations

from math import prod

from ....codegen.simt.dispatch import Written
from ....codegen.simt.machine import Machine as AnyMachine
from ....codegen.simt.template import Template
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..machine import Machine
from .backward import write_backward
from .forward import write_forward
from .hopper_backward import can_write_hopper_backward, write_hopper_backward
from .hopper_forward import can_write_pairs, hopper_cut, write_hopper_forward
from .plan import forward_cut, gradient_cuts
from .problem import tensor_attention

FIRST = (8, 0)
"""The first generation whose tensor cores multiply bf16, and copy to shared memory by themselves."""


def _fits(spec: Spec, machine: AnyMachine) -> bool:
    if not isinstance(machine, Machine) or machine.capability < FIRST:
        return False
    problem = tensor_attention(spec)
    if problem is None or forward_cut(problem, machine) is None:
        return False
    return not problem.backward or gradient_cuts(problem, machine) is not None


def _write(spec: Spec, machine: AnyMachine) -> Written:
    problem = tensor_attention(spec)
    if not isinstance(machine, Machine) or problem is None:
        return Written(())
    if not any(prod(sizes(output)) for output in spec.body.outputs):
        return Written(())
    if problem.backward and can_write_hopper_backward(spec, machine, problem):
        return write_hopper_backward(spec, machine, problem)
    if problem.backward:
        return write_backward(spec, machine, problem)
    hopper = hopper_cut(problem, machine) if can_write_pairs(spec) else None
    if hopper is not None:
        return write_hopper_forward(spec, machine, problem, hopper)
    cut = forward_cut(problem, machine)
    return Written(()) if cut is None else write_forward(spec, machine, problem, cut)


TENSOR_ATTENTION = Template("attention on tensor cores", _fits, _write)
