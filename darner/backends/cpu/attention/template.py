"""Attention as native code: an online softmax over blocks of keys, and its gradients. Scores never go to memory.

Panels of queries go over blocks of keys (``forward``, ``backward``, ``bias``). Where heads share keys and each has few queries, the forward pass takes all
of them in one panel. Very few queries over many keys have kernels of their own (``decode``, ``decode_backward``). How the work is cut depends on shapes alone, so
results do not depend on the number of threads.
"""

from __future__ import annotations

from ....codegen.problems.attention import (
    BACKWARD,
    can_emit_attention,
    main_node,
    statistics_number,
)
from ....graph.node import Node
from ....lower.plan import Spec
from ..emit.template import Code, Scratch, Template
from ..runtime.jit import Machine
from .backward import backward_room, emit_backward
from .decode import decode_room, emit_decode
from .decode_backward import emit_few, few_room, suits_few
from .forward import emit_forward, forward_room
from .parts import Parts
from .plan import Attention, Room, describe, made_offsets, stacked


def _cut(node: Node, machine: Machine) -> Attention:
    """How an attention is cut; gradients sum over all heads that share keys anyway."""
    attention = describe(node, machine)
    return attention if node.op.name == BACKWARD else stacked(attention, machine)


def _scratch(spec: Spec, machine: Machine) -> Scratch:
    node = main_node(spec)
    if node is None:
        return Scratch()
    attention = _cut(node, machine)
    shared = Room()
    made_offsets(spec, attention, shared)
    if node.op.name == BACKWARD and suits_few(spec, attention):
        few_room(spec, attention, shared)
        own = 0
    elif node.op.name == BACKWARD:
        own = backward_room(spec, attention, shared).bytes
    elif attention.has_few_queries:
        own = decode_room(attention, shared).bytes
    else:
        own = forward_room(attention).bytes
    return Scratch(own, shared.bytes)


def _emit(code: Code) -> None:
    node = main_node(code.spec)
    if node is None:
        return
    attention = _cut(node, code.machine)
    parts = Parts(code, attention)
    parts.make_bases()
    if node.op.name == BACKWARD and suits_few(code.spec, attention):
        emit_few(parts)
    elif node.op.name == BACKWARD:
        emit_backward(parts)
    elif attention.is_empty:
        return
    elif attention.has_few_queries:
        emit_decode(parts)
    else:
        emit_forward(parts)


def _fits(spec: Spec) -> bool:
    """Whether there is code: kernels keep nothing for gradients, and gradients compute again what they are given."""
    return can_emit_attention(spec) and statistics_number(spec) is None


ATTENTION = Template("attention", _fits, _emit, _scratch)
