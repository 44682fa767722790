"""Kernels that replace a block of a value and compute the block themselves: ``fill_blocks``, a step of ``fuse``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..graph.node import Node

if TYPE_CHECKING:
    from .fuse import Fusion


def fill_blocks(work: Fusion) -> None:
    """Let what is element-wise before a block be computed where the block is written, if nothing else reads it."""
    for node in work.nodes:
        filled = node.op.facts.fills
        if filled is None or work.home.get(node.id) != node.id:
            continue
        slots = dict(zip(node.slots, node.operands, strict=True))
        block = _seen_through(work, slots[filled])
        over = _seen_through(work, slots[str(node.op.facts.overwrites)])
        producer = work.home.get(block.id)
        if producer is None or producer == node.id or not _is_only_for(work, producer, node):
            continue
        # In place, elements of the old value are gone where others are yet to be computed.
        if any(over.id in work.sources[i] for i in work.groups[producer].nodes):
            continue
        if work.may_join(producer, node.id):
            work.join(producer, node.id, work.groups[node.id].kind)


def _seen_through(work: Fusion, node: Node) -> Node:
    """What a node is a view of."""
    while work.roles[node.id] == "view" and len(node.inputs) == 1:
        (node,) = node.operands
    return node


def _is_only_for(work: Fusion, producer: int, node: Node) -> bool:
    """Whether a group is a map of which a node alone reads, and one value only."""
    group = work.groups[producer]
    if group.kind != "map" or any(work.is_kept(i) for i in group.nodes):
        return False
    outside = [
        (i, reader)
        for i in group.nodes
        for reader in work.readers[i]
        if work.home[reader] != producer
    ]
    return {reader for _, reader in outside} == {node.id} and len({i for i, _ in outside}) == 1
