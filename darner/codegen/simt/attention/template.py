"""Attention: an online softmax over blocks of keys, and its gradients; scores never go through memory."""

from __future__ import annotations

from math import prod

from ....lower.plan import Spec
from ....lower.specs import sizes
from ...problems.attention import (
    BACKWARD,
    can_emit_attention,
    described,
    main_node,
    statistics_number,
)
from ..dispatch import Written
from ..machine import Machine
from ..template import Template
from .backward import backward_cuts, write_backward
from .decode import decode_parts, write_decode
from .forward import forward_cut, write_forward

MOST_SCRATCH = 2
"""Ranges of scratch memory that a dispatch has bound, at most."""


def _fits(spec: Spec, machine: Machine) -> bool:
    if not can_emit_attention(spec):
        return False
    node = main_node(spec)
    if node is None:
        return False
    attention = described(node)
    if attention.accumulator != "f32":
        # On NVIDIA's driver 580 these very kernels in f64 gave wrong sums: products and rows do it instead.
        return False
    if len(spec.inputs) + len(spec.body.outputs) + MOST_SCRATCH > machine.most_buffers:
        return False
    if node.op.name == BACKWARD:
        return backward_cuts(attention, machine) is not None
    return forward_cut(attention, machine) is not None


def _write(spec: Spec, machine: Machine) -> Written:
    node = main_node(spec)
    if node is None or not any(prod(sizes(output)) for output in spec.body.outputs):
        return Written(())
    attention = described(node)
    if node.op.name == BACKWARD:
        cuts = backward_cuts(attention, machine)
        return Written(()) if cuts is None else write_backward(spec, machine, attention, cuts)
    # Training has many queries: there is no need that few of them keep statistics.
    parts = decode_parts(attention, machine) if statistics_number(spec) is None else None
    if parts is not None:
        return write_decode(spec, machine, attention, parts)
    cut = forward_cut(attention, machine)
    if cut is None:
        return Written(())
    return write_forward(spec, machine, attention, cut)


ATTENTION = Template("attention", _fits, _write)
