"""Which state spaces GPUs have kernels for."""

from __future__ import annotations

from collections.abc import Callable

from ....graph import dtypes
from ....graph.node import Node
from ....lower.plan import Spec
from ...problems.nodes import main_node
from ...problems.state_space import (
    NET,
    NET_BACKWARD,
    NET_FINAL,
    SCAN,
    SCAN_BACKWARD,
)
from ..dispatch import Written
from ..machine import Machine
from ..main_node import is_bound
from ..template import Template
from .net import write_net
from .net_backward import write_net_backward
from .scan import write_scan
from .scan_backward import write_scan_backward

MOST = 1024
"""Numbers that a thread can hold, at the most."""


def _fits(spec: Spec, machine: Machine) -> bool:
    node = main_node(spec)
    if node.op.name not in WRITERS or not is_bound(spec, machine, 2):
        return False
    first = node.operands[0]
    if first.dtype is dtypes.f64 and not machine.wide:
        return False
    return int(node.attrs["state_size"]) <= MOST


def _write(spec: Spec, machine: Machine) -> Written:
    node = main_node(spec)
    return WRITERS[node.op.name](spec, machine, node)


WRITERS: dict[str, Callable[[Spec, Machine, Node], Written]] = {
    SCAN: write_scan,
    SCAN_BACKWARD: write_scan_backward,
    NET: write_net,
    NET_FINAL: write_net,
    NET_BACKWARD: write_net_backward,
}

STATE_SPACE = Template("state space", _fits, _write)
