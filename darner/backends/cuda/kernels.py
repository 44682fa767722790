"""Which template makes a spec's code: first those that only NVIDIA's GPUs have, then those of every GPU."""

from __future__ import annotations

from collections.abc import Mapping

from ...codegen.problems.conv import CONVOLUTIONS_LAST
from ...codegen.simt import families
from ...codegen.simt.contract.product import in_halves
from ...codegen.simt.dispatch import Written
from ...codegen.simt.template import Template
from ...graph.errors import UnsupportedError
from ...graph.op import OPS
from ...lower.again import Price
from ...lower.plan import Plan, Spec
from ...lower.strided import Multipliers, contractions
from ..base.limits import Limits, check_scratch, last_op
from .attention.template import TENSOR_ATTENTION
from .contract.few_template import FEW_CONTRACT
from .contract.template import PLAIN_CONTRACT, TENSOR_CONTRACT
from .conv.template import TENSOR_CONV
from .machine import ALIGNMENT, TENSOR_CORES, Machine

OWN: tuple[Template, ...] = (
    TENSOR_ATTENTION,
    FEW_CONTRACT,
    TENSOR_CONTRACT,
    PLAIN_CONTRACT,
    TENSOR_CONV,
)
"""The families of kernels on tensor cores, those with the best code first."""

AGAIN = Price(3.0, 1 << 16)
"""Of an H200: 12 TFLOP/s of element-wise code beside 4 TB/s. Caches hold more than ``least``, but kernels that small take the time of a launch."""


def limits_of(machine: Machine) -> Limits:
    """How much a GPU holds: what its memory does."""
    most = machine.memory // ALIGNMENT * ALIGNMENT
    return Limits(f"the memory of '{machine.name}'", most, most, "all of it")


def multipliers_of(machine: Machine) -> Multipliers:
    """Which contractions read operands of fewer bits where they lie: all those of 16-bit floats, and products of matrices, convolutions with channels last and attention that round to tf32 on tensor cores."""
    every, products = contractions(), {"dot_general", *CONVOLUTIONS_LAST}
    rounding = {n for n in every if n in products or OPS[n].facts.role == "attention"}
    rounding = rounding if machine.capability >= TENSOR_CORES else set()
    return Multipliers(every, frozenset(rounding), tf32_along_sums=True)


def template_of(spec: Spec, machine: Machine) -> Template | None:
    """The template that makes a spec's code."""
    if spec.is_host:
        return None
    own = next((template for template in OWN if template.fits(spec, machine)), None)
    return own or families.template_of(spec, machine)


def runs(spec: Spec, machine: Machine) -> bool:
    """Whether there is good code for a spec: sums are taken in pairs by products on tensor cores and of a few rows, and by no others."""
    found = template_of(spec, machine)
    return found in (FEW_CONTRACT, TENSOR_CONTRACT) if in_halves(spec) else found is not None


def written(spec: Spec, machine: Machine, choice: str | None = None) -> Written:
    """The code of a spec; ``choice`` is one of the ways to write it, if it has that way."""
    template = template_of(spec, machine)
    if template is None:
        ops = ", ".join(dict.fromkeys(spec.ops))
        raise UnsupportedError(f"the GPU has no kernel of kind '{spec.kind}' for {ops}")
    if choice is not None and template.variants is not None:
        chosen = template.variants(spec, machine).get(choice)
        if chosen is not None:
            return chosen()
    return template.write(spec, machine)


def written_specs(
    plan: Plan, machine: Machine, choices: Mapping[str, str] | None = None
) -> dict[str, Written]:
    """The code of all specs of a plan, by digest; ``choices`` are the ways that tuning found best."""
    found: dict[str, Written] = {}
    for kernel in plan.kernels:
        if kernel.spec in found:
            continue
        spec = plan.spec(kernel)
        try:
            choice = choices.get(kernel.spec) if choices else None
            made = written(spec, machine) if choice is None else written(spec, machine, choice)
            check_scratch(made.scratch, limits_of(machine))
        except UnsupportedError as error:
            raise error.located(last_op(spec), kernel.label, "", kernel.source) from None
        found[kernel.spec] = made
    return found
