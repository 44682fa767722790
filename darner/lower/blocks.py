"""Kernels that replace a block of a value, and compute the block themselves."""

from __future__ import annotations

from ..graph.node import Node
from .joining import Joining


class FilledBlocks(Joining):
    """Takes what blocks are computed by into the kernels that write them, where a target's can have that (``groups.Fusing``)."""

    def blocks(self) -> None:
        """What is element-wise before a block is computed where the block is written, if nothing else reads it."""
        for node in self.nodes:
            filled = node.op.facts.fills
            if filled is None or self.home.get(node.id) != node.id:
                continue
            slots = dict(zip(node.slots, node.operands, strict=True))
            block = self._behind(slots[filled])
            over = self._behind(slots[str(node.op.facts.overwrites)])
            producer = self.home.get(block.id)
            if producer is None or producer == node.id or not self._is_only_for(producer, node):
                continue
            # In place, elements of the old value are gone where others are yet to be computed.
            if any(over.id in self.sources[i] for i in self.groups[producer].nodes):
                continue
            if self._may_join(producer, node.id):
                self._join(producer, node.id, self.groups[node.id].kind)

    def _behind(self, node: Node) -> Node:
        """What a node is a view of."""
        while self.roles[node.id] == "view" and len(node.inputs) == 1:
            (node,) = node.operands
        return node

    def _is_only_for(self, producer: int, node: Node) -> bool:
        """Whether a group is a map of which a node alone reads, and one value only."""
        group = self.groups[producer]
        if group.kind != "map" or any(self._is_kept(i) for i in group.nodes):
            return False
        outside = [
            (i, reader)
            for i in group.nodes
            for reader in self.readers[i]
            if self.home[reader] != producer
        ]
        return {reader for _, reader in outside} == {node.id} and len({i for i, _ in outside}) == 1
