"""Attention on tensor cores: which specs, and in which form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from ....codegen.problems.attention import statistics_number
from ....codegen.simt.dispatch import Written
from ....codegen.simt.machine import Machine as AnyMachine
from ....codegen.simt.template import Template, Variants
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..machine import TENSOR_CORES, Machine
from .backward import write_backward
from .few import few_cuts, write_few
from .forward import write_forward
from .hopper_backward import can_write_hopper_backward, write_hopper_backward
from .hopper_forward import can_write_pairs, hopper_cuts, write_hopper_forward
from .plan import forward_cuts, gradient_cuts
from .problem import tensor_attention


def _variants(spec: Spec, machine: AnyMachine) -> Variants:
    """The ways to compute an attention, the one that is expected to be best first: by ``wgmma`` where there is such, then by ``mma.sync``."""
    if not isinstance(machine, Machine) or machine.capability < TENSOR_CORES:
        return {}
    found: dict[str, Callable[[], Written]] = {}
    few = tensor_attention(spec, few=True)
    if few is not None and statistics_number(spec) is None:
        for shared in few_cuts(few, machine):
            found[shared.name] = partial(write_few, spec, machine, few, shared)
        return found
    problem = tensor_attention(spec)
    if problem is None:
        return {}
    if problem.backward:
        if can_write_hopper_backward(spec, machine, problem):
            found["wgmma"] = partial(write_hopper_backward, spec, machine, problem)
        for cuts in gradient_cuts(problem, machine):
            name = " ".join(dict.fromkeys(cut.name for cut in cuts))
            found[name] = partial(write_backward, spec, machine, problem, cuts)
        return found
    for wide in hopper_cuts(problem, machine) if can_write_pairs(spec) else ():
        found[wide.name] = partial(write_hopper_forward, spec, machine, problem, wide)
    for cut in forward_cuts(problem, machine):
        found[cut.name] = partial(write_forward, spec, machine, problem, cut)
    return found


def _fits(spec: Spec, machine: AnyMachine) -> bool:
    return bool(_variants(spec, machine))


def _write(spec: Spec, machine: AnyMachine) -> Written:
    if not any(prod(sizes(output)) for output in spec.body.outputs):
        return Written(())
    best = next(iter(_variants(spec, machine).values()))
    return best()


TENSOR_ATTENTION = Template("attention on tensor cores", _fits, _write, _variants)
