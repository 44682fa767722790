"""What a GPU computes with, and what it does not."""

from __future__ import annotations

from ...graph.errors import UnsupportedError
from ...lower.plan import Plan
from ..base.lowering import written_specs
from .machine import Machine


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
    for kernel, spec in written_specs(plan):
        # What a kernel is given comes first: the op that is named reads it, or makes it.
        for node in spec.body.nodes:
            name = str(getattr(node.type, "dtype", ""))
            if name in lacking:
                made_by = spec.ops[-1] if node.name is not None else node.op.name
                raise UnsupportedError(
                    f"the GPU '{machine.name}' has no {name}",
                    hint=f"cast to {lacking[name]} first, or build for device='cpu'",
                ).located(made_by, kernel.label, "", kernel.source)
