"""Kernels that are no code: the program runs them itself. Their place in a step's table is kept by a function that does nothing."""

from __future__ import annotations

from ....lower.plan import Spec
from ....ops.faults import host_nodes
from ..emit.template import Code, Template


def _fits(spec: Spec) -> bool:
    own = (node.op for node in host_nodes(spec.body))
    return spec.is_host and all(op.rules.reference is not None for op in own)


def _emit(code: Code) -> None:
    """Nothing: a step is split here, and never calls this."""


HOST = Template("host", _fits, _emit)
