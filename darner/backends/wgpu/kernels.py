"""Kernels as shaders: the dispatches of each spec of a plan, by the first template that has code for it."""

from __future__ import annotations

from ...codegen.simt.attention.template import ATTENTION
from ...codegen.simt.complex.template import COMPLEX
from ...codegen.simt.contract.template import CONTRACT
from ...codegen.simt.conv.template import CONV
from ...codegen.simt.index.scatter import SCATTERS
from ...codegen.simt.index.update import UPDATES
from ...codegen.simt.linalg.template import SOLVING
from ...codegen.simt.maps.template import MAPS
from ...codegen.simt.maps.transpose import TURNED
from ...codegen.simt.pooling.template import POOLING
from ...codegen.simt.rows.template import ROWS
from ...codegen.simt.scan.template import SCANS
from ...codegen.simt.shader import Written
from ...codegen.simt.sort.template import SORTING
from ...codegen.simt.template import Template
from ...graph.errors import UnsupportedError
from ...lower.plan import Plan, Spec
from .machine import Machine

TEMPLATES: tuple[Template, ...] = (
    COMPLEX,
    ATTENTION,
    CONTRACT,
    CONV,
    POOLING,
    SORTING,
    SCATTERS,
    SCANS,
    UPDATES,
    SOLVING,
    ROWS,
    TURNED,
    MAPS,
)
"""The families of kernels, those with the best code first."""


def check_types(plan: Plan, machine: Machine) -> None:
    """Refuse a plan that has an element type which a GPU cannot compute with, by the op that makes it.

    Raises:
        UnsupportedError: with the op, its label, the type and what would help.
    """
    lacking = {}
    if not machine.long:
        lacking["i64"] = "i32"
    if not machine.wide:
        lacking |= {"f64": "f32", "c128": "c64"}
    if not lacking:
        return
    for kernel in plan.kernels:
        spec = plan.spec(kernel)
        # What a kernel is given comes first: the op that is named reads it, or makes it.
        for node in spec.body.nodes:
            name = str(getattr(node.type, "dtype", ""))
            if name in lacking:
                made_by = spec.ops[-1] if node.name is not None else node.op.name
                raise UnsupportedError(
                    f"the GPU '{machine.name}' has no {name}",
                    hint=f"cast to {lacking[name]} first, or build for device='cpu'",
                ).located(made_by, kernel.label, "", kernel.source)


def template_of(spec: Spec, machine: Machine) -> Template | None:
    """The template that makes a spec's code."""
    if spec.is_host:
        return None
    return next((template for template in TEMPLATES if template.fits(spec, machine)), None)


def written(spec: Spec, machine: Machine, choice: str | None = None) -> Written:
    """The code of a spec; of its variants the one that tuning has chosen, where it is one."""
    template = template_of(spec, machine)
    if template is None:
        ops = ", ".join(dict.fromkeys(spec.ops))
        raise UnsupportedError(f"the GPU has no kernel of kind '{spec.kind}' for {ops}")
    if choice is not None and template.variants is not None:
        listed = template.variants(spec, machine)
        if choice in listed:
            return listed[choice]()
    return template.write(spec, machine)
