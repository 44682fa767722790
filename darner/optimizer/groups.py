"""Weights of products that share an operand, and what a training step saves where they are stored side by side.

In training a joint product has a joint gradient, at whose end the whole block is updated. What is saved is small: the shared operand is packed once and not for every
product, its gradient is added up in registers, and fewer kernels start. What it costs is of the same size: the gradients of the results have to be put side by side, and a gate
is a kernel of its own where it was the end of a product. ``Wish.saving`` weighs the two; docs/rejected.md has the measurements that its figures are fitted to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..graph.graph import Graph
from ..graph.node import Node
from .layout import plan_layouts, weight_of
from .price import number
from .targets import Target

COPIES = 4
"""How many times a step goes over the bytes of weights that it puts side by side itself: it reads and writes them, and then their gradients."""

SHARED = (0.8, 1.6)
"""How many times the shared operand is gone over less for each product that is joined to another: to pack it, and where it has one to add up its gradient."""

NEAR = 1 << 20
CACHED = 0.25
"""What that is worth of an operand of fewer bytes than ``NEAR``, which a core has at hand."""

GRADIENTS = 2.0
"""How many times the gradients of all results are gone over to put them side by side, for each of them: an element is looked for among all."""

GATE = 1.5
"""How many times the results are gone over by a gate that is no more the end of a product."""

KERNELS = 3
"""Kernels of a product in training: its own, and those of both gradients."""

PASSES = 5
"""How many times a wide machine goes over the shared operand less for each product that is joined to another: each reads it twice, and its gradient is read and written."""

MOVED = 2
"""How many times it goes over the gradients of results that it puts side by side; those of a gate are written so."""


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
        learned: whether the shared operand has a gradient.
        gated: whether the results are read together, as by a gate.
        elsewhere: whether a weight is read by something else too, which would get it and give its gradient by itself.
        copied: bytes that the graph itself puts side by side in every step; 0 where they are wished for only.
        parts: how many there are.
    """

    weights: tuple[int, ...]
    axis: int
    parts: int
    rows: float = 0.0
    depth: float = 0.0
    columns: float = 0.0
    itemsize: int = 4
    learned: bool = False
    gated: bool = False
    elsewhere: bool = False
    copied: float = 0.0

    def saving(self, target: Target) -> float:
        """Seconds that a training step is predicted to be shorter."""
        if self.elsewhere:
            return -COPIES * self.columns * self.depth * self.itemsize / target.bandwidth
        if self.copied:
            return COPIES * self.copied / target.bandwidth
        operand = self.rows * self.depth * self.itemsize
        results = self.rows * self.columns * self.itemsize
        if target.wide:
            less = KERNELS * target.launch + PASSES * operand / target.bandwidth
            moved = 0.0 if self.gated else MOVED * results / target.bandwidth
            return (self.parts - 1) * less - moved
        passes = GATE if self.gated else GRADIENTS * self.parts
        worth = CACHED if operand < NEAR else 1.0
        gained = worth * SHARED[self.learned] * (self.parts - 1) * operand / target.bandwidth
        return gained - passes * results / (target.bandwidth * target.vector)

    def of(self, weights: Sequence[Node]) -> Wish:
        """The same wish of some of the weights alone."""
        columns = sum(number(leaf.shape[self.axis]) for leaf in weights)
        ids = tuple(leaf.id for leaf in weights)
        copied = self.copied if len(ids) == self.parts else 0.0
        return replace(self, weights=ids, parts=len(ids), columns=columns, copied=copied)


def shared_operands(graph: Graph) -> list[Wish]:
    """What the weights of a graph would like, in the order of the graph; weights that it joins itself come first."""
    products: dict[int, list[Node]] = {}
    for node in graph.nodes:
        found = weight_of(node)
        if found is not None:
            products.setdefault(found[0].id, []).append(node)
    learned: set[int] = set()
    for node in graph.nodes:
        if node.op.name == "parameter" or not learned.isdisjoint(node.inputs):
            learned.add(node.id)
    return [_wish(graph, ids, products, learned) for ids in plan_layouts(graph).blocks]


def _wish(
    graph: Graph, ids: tuple[int, ...], products: dict[int, list[Node]], learned: set[int]
) -> Wish:
    leaves = [graph.nodes[i] for i in ids]
    concats = [n for n in graph.users(ids[0]) if n.op.name == "concat" and n.inputs == ids]
    if concats:
        return _joined_by_the_graph(graph, leaves, concats)
    uses = [node for i in ids for node in products[i]]
    known = {node.id for node in uses}
    axes = [found[1] for node in uses if (found := weight_of(node))]
    shared, axis = uses[0].operands[0], axes[0]
    depth = number(leaves[0].shape[1 - axis])
    return Wish(
        ids,
        axis,
        len(ids),
        rows=number(shared.size) / depth,
        depth=depth,
        columns=sum(number(leaf.shape[axis]) for leaf in leaves),
        itemsize=shared.dtype.itemsize,
        learned=shared.id in learned,
        gated=len({tuple(user.id for user in graph.users(node)) for node in uses}) == 1,
        elsewhere=not all(user.id in known for leaf in leaves for user in _readers(graph, leaf)),
    )


def _joined_by_the_graph(graph: Graph, leaves: list[Node], concats: list[Node]) -> Wish:
    axis, first = concats[0].attrs["axis"], leaves[0]
    columns = sum(number(leaf.shape[axis]) for leaf in leaves)
    known = {node.id for node in concats}
    return Wish(
        tuple(leaf.id for leaf in leaves),
        axis,
        len(leaves),
        depth=number(first.size) / number(first.shape[axis]),
        columns=columns,
        itemsize=first.dtype.itemsize,
        elsewhere=not all(user.id in known for leaf in leaves for user in graph.users(leaf)),
        copied=sum(number(leaf.type.nbytes) for leaf in leaves),
    )


def _readers(graph: Graph, leaf: Node) -> Iterator[Node]:
    """What reads a weight, as it is or transposed."""
    for user in graph.users(leaf):
        if user.op.name == "transpose":
            yield from graph.users(user)
        else:
            yield user
