"""Weights of products that share an operand, and what a training step saves where they are stored side by side.

In training a joint product has a joint gradient, at whose end the whole block is updated. What is saved is small: the shared operand is packed once and not for every
product, its gradient is added up in registers, and fewer kernels start. What it costs is of the same size: the gradients of the results have to be put side by side, and a gate
is a kernel of its own where it was the end of a product. ``Wish.saving`` weighs the two; docs/rejected.md has the measurements that its figures are fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..graph.graph import Graph
from ..graph.node import Node
from .layout import plan_layouts, weight_of
from .price import number
from .targets import Target


COPIES = 4
"""How many times a step goes over the bytes of weights that it puts side by side itself: it reads and writes them, and then their gradients."""


@dataclass(frozen=True)
class Wish:
    """Weights that products of one operand would like to have side by side.

    Attributes:
        weights: ids, in the order in which they would stand.
        axis: of the weights, along which they would.
        rows: of the shared operand, all of its axes but the last.
        depth: the size that products sum over.
        columns: of all weights.
        itemsize: bytes of an element.
        gated: whether the results are read element by element, as a gate does.
        copied: bytes that the graph itself puts side by side in every step; 0 where they are wished for only.
    """

    weights: tuple[int, ...]
    axis: int
    parts: int = 1
    rows: float = 0.0
    depth: float = 0.0
    columns: float = 0.0
    itemsize: int = 4
    gated: bool = False
    copied: float = 0.0

    def saving(self, target: Target) -> float:
        """Seconds that a training step is predicted to be shorter."""
        if self.copied:
            return COPIES * self.copied / target.bandwidth
        return 0.0


def shared_operands(graph: Graph) -> list[Wish]:
    """What the weights of a graph would like, in the order of the graph; weights that it joins itself come first."""
    products: dict[int, list[Node]] = {}
    for node in graph.nodes:
        found = weight_of(node)
        if found is not None:
            products.setdefault(found[0].id, []).append(node)
    return [_wish(graph, ids, products) for ids in plan_layouts(graph).blocks]


def _wish(graph: Graph, ids: tuple[int, ...], products: dict[int, list[Node]]) -> Wish:
    leaves = [graph.nodes[i] for i in ids]
    concats = [n for n in graph.users(ids[0]) if n.op.name == "concat" and n.inputs == ids]
    uses = [node for i in ids for node in products.get(i, ())]
    if concats or not uses:
        axis = concats[0].attrs["axis"] if concats else 0
        total = sum(number(leaf.type.nbytes) for leaf in leaves)
        return Wish(ids, axis, copied=total)
    shared, axes = uses[0].operands[0], [found[1] for n in uses if (found := weight_of(n))]
    depth = number(leaves[0].shape[1 - axes[0]])
    return Wish(
        ids,
        axes[0],
        parts=len(ids),
        rows=number(shared.size) / depth,
        depth=depth,
        columns=sum(number(leaf.shape[axes[0]]) for leaf in leaves),
        itemsize=shared.dtype.itemsize,
        gated=all(_gates(user) for node in uses for user in graph.users(node)),
    )


def _gates(node: Node) -> bool:
    return "elementwise" in node.op.traits or node.op.facts.fused
