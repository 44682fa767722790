"""What products end with besides what is element-wise after them: values that they put side by side, and gates of both halves of their columns."""

from __future__ import annotations

from ..graph.graph import Graph
from ..graph.node import Node
from .groups import PLAIN, Fusing
from .joining import Joining
from .strided import Multipliers


class ProductEnds(Joining):
    """Takes such ends into the kernels of products, where a target's can have them (``groups.Fusing``)."""

    def __init__(
        self, graph: Graph, multipliers: Multipliers | None, fusing: Fusing = PLAIN
    ) -> None:
        super().__init__(graph, multipliers)
        self.fusing = fusing

    def _take_joins(self, product: Node) -> None:
        """Concatenations along the last axis whose parts are all made after a product, each of its shape; and their casts."""
        group = self.groups[product.id]
        for id in list(group.nodes) if self.fusing.joins else ():
            for reader in self.readers[id]:
                if self._is_join(reader, product):
                    self._join(product.id, reader, group.kind)
                    for cast in self.readers[reader]:
                        casts = self.nodes[cast].op.name == "cast" and self._is_alone(cast)
                        if casts and self._may_join(product.id, cast):
                            self._join(product.id, cast, group.kind)

    def _take_gates(self, product: Node) -> None:
        """What is element-wise of both halves of a product's columns, in pairs, where nothing is done with the columns before."""
        group = self.groups[product.id]
        found = {user.id for user in self.graph.users(product) if _is_half(user, product)}
        if not self.fusing.halves or len(found) != 2 or group.nodes != [product.id]:
            return
        waiting = list(self.readers[product.id])
        while waiting:
            reader = waiting.pop(0)
            if self._is_of_halves(reader, product, found):
                self._join(product.id, reader, group.kind)
                waiting += self.readers[reader]
        if {i for id in group.nodes for i in self.nodes[id].inputs if i in found} != found:
            for id in reversed(group.nodes[1:]):
                self._give_back(product.id, id)

    def _is_of_halves(self, reader: int, product: Node, halves: set[int]) -> bool:
        """Whether a node is computed of elements that lie in the same place of both halves of a product's columns."""
        node = self.nodes[reader]
        if not self._is_alone(reader) or self.roles[reader] != "point":
            return False
        shape = self.nodes[next(iter(halves))].shape
        if "elementwise" not in node.op.traits or node.shape != shape:
            return False
        inside = {i for i in self.sources[reader] if self.home.get(i) == product.id}
        if not inside or any(
            self._is_seen(x, inside) and x.id not in halves for x in node.operands
        ):
            return False
        alike = all(x.id != product.id for x in node.operands)
        return alike and self._may_join(product.id, reader)

    def _is_join(self, id: int, product: Node) -> bool:
        """Whether a node puts values side by side that are all made in a product's epilogue."""
        node = self.nodes[id]
        if node.op.name != "concat" or not self._is_alone(id):
            return False
        inside = all(self.home.get(part.id) == product.id for part in node.operands)
        alike = all(part.shape == product.shape for part in node.operands)
        along = node.attrs["axis"] == product.rank - 1
        return inside and alike and along and self._may_join(product.id, id)


def _is_half(view: Node, product: Node) -> bool:
    """Whether a view is one half of a product's columns, with all rows."""
    if view.op.name != "slice" or set(view.attrs["steps"] or (1,)) != {1}:
        return False
    columns = int(product.shape[-1])
    if columns < 2 or columns % 2 or view.shape[:-1] != product.shape[:-1]:
        return False
    half = columns // 2
    return int(view.shape[-1]) == half and int(view.attrs["starts"][-1]) in (0, half)
