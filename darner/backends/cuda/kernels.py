"""Which template makes a spec's code: first those that only NVIDIA's GPUs have, then those of every GPU."""

from __future__ import annotations

from ...codegen.problems.conv import CONVOLUTIONS_LAST
from ...codegen.simt import families
from ...codegen.simt.dispatch import Written
from ...codegen.simt.template import Template
from ...graph.errors import UnsupportedError
from ...lower.plan import Plan, Spec
from ...lower.strided import Multipliers, contractions
from ..base.limits import Limits, check_scratch, last_op
from .attention.template import TENSOR_ATTENTION
from .contract.template import PLAIN_CONTRACT, TENSOR_CONTRACT
from .conv.template import TENSOR_CONV
from .machine import ALIGNMENT, TENSOR_CORES, Machine

OWN: tuple[Template, ...] = (TENSOR_ATTENTION, TENSOR_CONTRACT, PLAIN_CONTRACT, TENSOR_CONV)
"""The families of kernels on tensor cores, those with the best code first."""


def limits_of(machine: Machine) -> Limits:
    """How much a GPU holds: what its memory does."""
    most = machine.memory // ALIGNMENT * ALIGNMENT
    return Limits(f"the memory of '{machine.name}'", most, most, "all of it")


def multipliers_of(machine: Machine) -> Multipliers:
    """Which contractions read operands of fewer bits where they lie: all those of 16-bit floats, and products of matrices that round to tf32 on tensor cores."""
    products = {"dot_general", *CONVOLUTIONS_LAST}
    tf32 = products if machine.capability >= TENSOR_CORES else ()
    return Multipliers(contractions(), frozenset(tf32))


def template_of(spec: Spec, machine: Machine) -> Template | None:
    """The template that makes a spec's code."""
    if spec.is_host:
        return None
    own = next((template for template in OWN if template.fits(spec, machine)), None)
    return own or families.template_of(spec, machine)


def written(spec: Spec, machine: Machine) -> Written:
    """The code of a spec."""
    template = template_of(spec, machine)
    if template is None:
        ops = ", ".join(dict.fromkeys(spec.ops))
        raise UnsupportedError(f"the GPU has no kernel of kind '{spec.kind}' for {ops}")
    return template.write(spec, machine)


def written_specs(plan: Plan, machine: Machine) -> dict[str, Written]:
    """The code of all specs of a plan, by digest."""
    found: dict[str, Written] = {}
    for kernel in plan.kernels:
        if kernel.spec in found:
            continue
        spec = plan.spec(kernel)
        try:
            made = written(spec, machine)
            check_scratch(made.scratch, limits_of(machine))
        except UnsupportedError as error:
            raise error.located(last_op(spec), kernel.label, "", kernel.source) from None
        found[kernel.spec] = made
    return found
