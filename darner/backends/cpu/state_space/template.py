"""Selective scans and gated delta rules as native code; each op has an emitter."""

from __future__ import annotations

from collections.abc import Callable

from ....codegen.problems.nodes import main_node
from ....codegen.problems.state_space import (
    NET,
    NET_BACKWARD,
    NET_FINAL,
    SCAN,
    SCAN_BACKWARD,
)
from ....graph.node import Node
from ....lower.plan import Spec
from ..emit.template import Code, Scratch, Template
from ..runtime.jit import Machine
from .net import emit_net, net_scratch
from .net_backward import emit_net_backward, net_backward_scratch
from .scan import emit_scan, scan_scratch
from .scan_backward import backward_scratch, emit_scan_backward


def _fits(spec: Spec) -> bool:
    return main_node(spec).op.name in EMITTERS


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    node = main_node(spec)
    return EMITTERS[node.op.name][1](node, machine)


def _emit(code: Code) -> None:
    node = main_node(code.spec)
    EMITTERS[node.op.name][0](code, node)


EMITTERS: dict[str, tuple[Callable[[Code, Node], None], Callable[[Node, Machine], Scratch]]] = {
    SCAN: (emit_scan, scan_scratch),
    SCAN_BACKWARD: (emit_scan_backward, backward_scratch),
    NET: (emit_net, net_scratch),
    NET_FINAL: (emit_net, net_scratch),
    NET_BACKWARD: (emit_net_backward, net_backward_scratch),
}

STATE_SPACE = Template("state space", _fits, _emit, _scratch)
