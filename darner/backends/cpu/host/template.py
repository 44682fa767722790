"""Kernels that are no code: the program runs them itself. Their place in a step's table is kept by a function that does nothing."""

from __future__ import annotations

from ....lower.plan import Spec
from ..emit.template import Code, Template


def _fits(spec: Spec) -> bool:
    return spec.is_host


def _emit(code: Code) -> None:
    """Nothing: a step is split here, and never calls this."""


HOST = Template("host", _fits, _emit)
