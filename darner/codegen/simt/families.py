"""The families of kernels that GPUs run: which of them has code for a spec, and the code."""

from __future__ import annotations

from ...graph.errors import UnsupportedError
from ...lower.plan import Spec
from .attention.template import ATTENTION
from .complex.template import COMPLEX
from .contract.template import CONTRACT
from .conv.template import CONV
from .dispatch import Written
from .index.scatter import SCATTERS
from .index.update import UPDATES
from .linalg.template import SOLVING
from .machine import Machine
from .maps.template import MAPS
from .maps.transpose import TURNED
from .pooling.template import POOLING
from .rows.template import ROWS
from .scan.template import SCANS
from .sort.template import SORTING
from .state_space.template import STATE_SPACE
from .template import Template

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
    STATE_SPACE,
    ROWS,
    TURNED,
    MAPS,
)
"""The families of kernels, those with the best code first."""


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
