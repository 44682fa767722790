"""Kernels as shaders: the dispatches of each spec of a plan, by the first template that has code for it."""

from __future__ import annotations

from ...graph.errors import UnsupportedError
from ...lower.plan import Spec
from .complexes import COMPLEX
from .machine import Machine
from .maps import MAPS
from .scans import SCANS
from .scatters import SCATTERS
from .shader import Written
from .solving import SOLVING
from .sorting import SORTING
from .template import Template
from .updates import UPDATES

TEMPLATES: tuple[Template, ...] = (COMPLEX, SORTING, SCATTERS, SCANS, UPDATES, SOLVING, MAPS)
"""The families of kernels, those with the best code first."""


def template_of(spec: Spec, machine: Machine) -> Template | None:
    """The template that makes a spec's code."""
    return next((template for template in TEMPLATES if template.fits(spec, machine)), None)


def written(spec: Spec, machine: Machine) -> Written:
    """The code of a spec."""
    template = template_of(spec, machine)
    if template is None:
        ops = ", ".join(dict.fromkeys(spec.ops))
        raise UnsupportedError(f"the GPU has no kernel of kind '{spec.kind}' for {ops}")
    return template.write(spec, machine)
