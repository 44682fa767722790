"""Which op of splats has which kernel on GPUs."""

from __future__ import annotations

from ....graph.errors import InternalError
from ....lower.plan import Spec
from ...problems.splats import BACKWARD, BLEND, LISTS, main_node
from ..dispatch import Written
from ..machine import Machine
from ..template import Template
from .gradient import has_room, write_backward
from .lists import write_lists
from .pixels import write_blend

WRITERS = {LISTS: write_lists, BLEND: write_blend, BACKWARD: write_backward}


def _fits(spec: Spec, machine: Machine) -> bool:
    node = main_node(spec, *WRITERS)
    return node is not None and (node.op.name != BACKWARD or has_room(node))


def _write(spec: Spec, machine: Machine) -> Written:
    node = main_node(spec, *WRITERS)
    if node is None:
        raise InternalError("no kernel of splats")
    return WRITERS[node.op.name](spec, machine, node)


SPLATS = Template("splats", _fits, _write)
"""``splat_lists``, ``splat_blend`` and ``splat_blend_backward``."""
