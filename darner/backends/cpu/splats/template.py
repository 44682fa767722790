"""Which op of splats has which kernel, and the memory that it needs."""

from __future__ import annotations

from ....codegen.problems.splats import BACKWARD, BLEND, LISTS, main_node
from ....graph.errors import InternalError
from ....graph.node import Node
from ....lower.plan import Spec
from ..emit.template import Code, Scratch, Template
from ..runtime.jit import Machine
from . import backward, forward, lists

EMITTERS = {
    LISTS: lists.emit_lists,
    BLEND: forward.emit_blend,
    BACKWARD: backward.emit_backward,
}


def _fits(spec: Spec) -> bool:
    return main_node(spec, *EMITTERS) is not None


def _main(spec: Spec) -> Node:
    node = main_node(spec, *EMITTERS)
    if node is None:
        raise InternalError("no kernel of splats")
    return node


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    node = _main(spec)
    if node.op.name == LISTS:
        return Scratch(shared=lists.scratch_bytes(node))
    if node.op.name == BLEND:
        return Scratch(shared=forward.scratch_bytes(node))
    return Scratch(backward.own_bytes(node, machine), backward.shared_bytes(node))


def _emit(code: Code) -> None:
    node = _main(code.spec)
    EMITTERS[node.op.name](code, node)


SPLATS = Template("splats", _fits, _emit, _scratch)
"""``splat_lists``, ``splat_blend`` and ``splat_blend_backward``."""
