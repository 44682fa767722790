"""Which parameters a training step keeps in panels, with the moments that go with them.

A weight is read by two products of a step, once as it is and once transposed, and changed at the end of a third, with its moments. All three have code for panels: the first reads
them as they are, the second turns blocks that lie together, and the third goes through weights and moments in one run. So a weight whose every use is one of these stays in panels from
step to step, and nothing is packed twice. Whoever else wants it (``backends.base.mirrors``) gets it row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ....lower.plan import Plan
from ..emit.panels import Offer, Panels

LEAST_BYTES = 1 << 20
"""Of a matrix with its moments that is worth it: smaller ones stay in the cache, whatever their order."""


class _Uses(NamedTuple):
    """How kernels use a buffer: the panels that each could take it in, and the positions in kernels."""

    panels: set[Panels | None]
    kernels: set[int]


def leaves_in_panels(plan: Plan, offered: Mapping[str, Offer]) -> dict[int, Panels]:
    """The buffers of a plan that lie in panels.

    Args:
        plan: what is run.
        offered: by the digest of a spec, what its code may have in panels.
    """
    uses: dict[int, _Uses] = {}
    for number, kernel in enumerate(plan.kernels):
        for position, buffer in enumerate((*kernel.operands, *kernel.results)):
            found = uses.setdefault(buffer, _Uses(set(), set()))
            found.panels.add(offered[kernel.spec].get(position))
            found.kernels.add(number)
    changed = {old for old, new in plan.updates if old == new}
    moved = {new for old, new in plan.updates if old != new}
    kept: dict[int, Panels] = {}
    for buffer in sorted(changed.difference(moved, plan.outputs)):
        panels = uses[buffer].panels if buffer in uses else set()
        one = next(iter(panels), None)
        if len(panels) == 1 and one is not None:
            kept[buffer] = one
    return _whole_kernels(plan, offered, kept, uses)


def _whole_kernels(
    plan: Plan,
    offered: Mapping[str, Offer],
    kept: dict[int, Panels],
    uses: Mapping[int, _Uses],
) -> dict[int, Panels]:
    """Without those that a kernel changes together with something that lies otherwise, or with too little."""
    waiting = {number for buffer in kept for number in uses[buffer].kernels}
    while waiting:
        number = waiting.pop()
        kernel = plan.kernels[number]
        buffers = (*kernel.operands, *kernel.results)
        together = {buffers[i] for i in offered[kernel.spec].together}
        size = sum(plan.buffers[i].nbytes for i in together)
        if not together <= kept.keys() or size < LEAST_BYTES:
            for buffer in together & kept.keys():
                del kept[buffer]
                waiting |= uses[buffer].kernels
    return kept
