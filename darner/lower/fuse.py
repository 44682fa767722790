"""Which nodes are computed together: a graph of primitives cut into kernels.

Every node that computes something belongs to one kernel. Views belong to none: whoever reads one reads its operand in another order. Three things
are put together, each only where it saves a value from going through memory:

- *epilogues*: element-wise nodes after a contraction, an attention or sums by index, done where its result is written;
- *rows*: reductions over the same axes of the same rows, with the element-wise nodes before, between and after them
  (softmax, norms, losses);
- *maps*: element-wise nodes that one kernel alone reads.

A kernel may have several results. Two kernels are joined only if no third lies between them, so that there is always an order to run them in.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ..graph.dims import Shape
from ..graph.errors import InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType, TupleType
from .blocks import FilledBlocks
from .columns import Columns
from .groups import EPILOGUES, PLAIN, Fusing, Group, make_parts
from .product_ends import ProductEnds
from .roles import (
    Along,
    ended_ops,
    is_aligned,
    is_for_products,
    is_of_rows,
    may_end,
    runs_along,
    seen_through,
    takes_one,
)
from .strided import Multipliers

LONGEST_ROW = 1 << 18
"""Elements of a row beyond which no cache keeps it: what is computed from its reduction reads it again in any case."""


def fuse(
    graph: Graph,
    ended: Collection[str] | None = None,
    multipliers: Multipliers | None = None,
    fusing: Fusing = PLAIN,
) -> list[Group]:
    """The kernels of a graph, in an order in which they can run; those by index of the ops ``ended`` may have epilogues.

    ``multipliers`` and ``fusing`` say what else the target's kernels can do.
    """
    work = _Fusion(graph, multipliers, fusing)
    work.epilogues()
    work.ends(ended_ops() if ended is None else ended)
    handed = work.hand_over()
    work.sides()
    work.rows(handed)
    work.columns()
    work.maps()
    work.blocks()
    return work.ordered()


class _Fusion(FilledBlocks, ProductEnds, Columns):
    """Groups of nodes, joined step by step."""

    # ------------------------------------------------------------- epilogues

    def epilogues(self) -> None:
        """Element-wise nodes that read the result of a contraction or an attention, and those that read them; after products what else a target's kernels end with."""
        for node in self.nodes:
            if self.roles[node.id] not in ("contract", "attention"):
                continue
            if not isinstance(node.type, TupleType):
                self._take_readers(node)
                if node.op.name == "dot_general":
                    self._take_joins(node)
                    self._take_gates(node)
                self._trim(node.id)

    def ends(self, ended: Collection[str]) -> None:
        """Element-wise nodes that read sums by index, where nothing else does: those sums are never in memory.

        They come after contractions: a weight's gradient that is both is the product's to add up.
        """
        for node in self.nodes:
            if may_end(node, ended) and not self._is_kept(node.id):
                self._take_readers(node)
                if self._is_stored(node.id, node.id, node.id):
                    for id in reversed(self.groups[node.id].nodes[1:]):
                        self._give_back(node.id, id)
                self._trim(node.id)

    def _take_readers(self, node: Node) -> None:
        """Let a node's kernel compute what reads it, and what reads that, element by element."""
        waiting = list(self.readers[node.id])
        while waiting:
            reader = waiting.pop(0)
            if self._is_epilogue(reader, node):
                self._join(node.id, reader, self.groups[node.id].kind)
                waiting += self.readers[reader]

    def _trim(self, name: int) -> None:
        """Give back what would only be one more value to write: others read its operands anyway, and can make it."""
        changed = True
        while changed:
            changed = False
            for id in reversed(self.groups[name].nodes[1:]):
                inside = [i for i in self.sources[id] if self.home.get(i) == name]
                read_here = any(self.home[reader] == name for reader in self.readers[id])
                if read_here or self._is_kept(id):
                    continue
                if is_for_products(self.nodes[id], [self.roles[i] for i in self.readers[id]]):
                    continue
                if not all(self._is_stored(i, name, id) for i in inside):
                    continue
                self._give_back(name, id)
                changed = True

    def _is_stored(self, id: int, name: int, but: int) -> bool:
        """Whether a value of a group is written in any case, whatever becomes of one reader."""
        others = (reader for reader in self.readers[id] if reader != but)
        return self._is_kept(id) or any(self.home[reader] != name for reader in others)

    def _is_epilogue(self, reader: int, product: Node) -> bool:
        """Whether a node can be computed where a product is written: for each element, from that element."""
        node = self.nodes[reader]
        if self.home[reader] != reader or self.roles[reader] != "point" or reader in self.late:
            return False
        if "elementwise" not in node.op.traits or node.shape != product.shape:
            return False
        inside = {i for i in self.sources[reader] if self.home.get(i) == product.id}
        if not inside or self._looks_through(node, inside):
            return False  # from another element
        return self._may_join(product.id, reader)

    def _looks_through(self, node: Node, inside: set[int]) -> bool:
        """Whether a node reads one of these values through a view, be it beside the value itself."""
        return any(self._is_seen(x, inside) for x in node.operands)

    def sides(self) -> None:
        """Element-wise nodes that only an epilogue reads, such as the moments that an optimizer scales: it computes them."""
        for node in reversed(self.nodes):
            if self.roles[node.id] != "point" or "elementwise" not in node.op.traits:
                continue
            homes = {self.home[reader] for reader in self.readers[node.id]}
            if len(homes) != 1 or self.home[node.id] in homes or self._is_kept(node.id):
                continue
            (consumer,) = homes
            group = self.groups[consumer]
            directly = all(node.id in self.nodes[i].inputs for i in self.readers[node.id])
            alike = group.kind in EPILOGUES and group.space == node.shape
            if alike and directly and self._reads_elements(node, group):
                producer = self.home[node.id]
                if self.groups[producer].nodes == [node.id] and self._may_join(producer, consumer):
                    space = group.space
                    self._join(producer, consumer, group.kind)
                    self.groups[producer].space = space

    def _reads_elements(self, node: Node, group: Group) -> bool:
        """Whether those of a group that read a node are part of its epilogue, not what the epilogue follows."""
        own = set(group.nodes)
        readers = (self.nodes[i] for i in self.readers[node.id] if i in own)
        return all("elementwise" in reader.op.traits for reader in readers)

    # ------------------------------------------------------------- rows

    def rows(self, handed: Sequence[int] = ()) -> None:
        """Reductions over the same axes of the same rows, and what is element-wise around them.

        The largest values first: what a small one would join may lie between two that a large one joins. Sums over rows, and what is made of these, come last: kernels of
        rows along the last axis take in the sums (``columns``), those first that products have ``handed`` over.
        """
        pairs = [
            (source, node.id)
            for node in self.nodes
            if self.roles[node.id] in ("reduce", "point")
            for source in self.sources[node.id]
            if source in self.home and self.groups[self.home[source]].kind in ("map", "rows")
        ]
        pairs.sort(key=lambda pair: -self._bytes(pair[0]))
        apart = [pair for pair in pairs if not any(self._is_column(id) for id in pair)]
        for some in (apart, pairs):
            if some is pairs:
                self.handed_columns(handed)
                self.columns()
            changed = True
            while changed:
                changed = False
                for source, reader in some:
                    if self._join_rows(self.home[source], self.home[reader]):
                        changed = True

    def _bytes(self, id: int) -> int:
        node = self.nodes[id]
        return 0 if isinstance(node.type, TupleType) else int(node.size) * node.dtype.itemsize

    def _join_rows(self, producer: int, consumer: int) -> bool:
        if producer == consumer:
            return False
        first, second = self.groups[producer], self.groups[consumer]
        if {first.kind, second.kind} - {"map", "rows"} or "rows" not in (first.kind, second.kind):
            return False
        if first.axes is not None and second.axes is not None and self._finds(first, second):
            return False
        space, axes = self._common_rows(first, second)
        if space is None or not self._all_fit([*first.nodes, *second.nodes], space, axes):
            return False
        if self._is_long(space, axes) and not self._hands_over(producer, consumer, space):
            return False
        if not self._may_join(producer, consumer):
            return False
        self._join(producer, consumer, "rows")
        self.groups[producer].space = space
        self.groups[producer].axes = axes
        return True

    @staticmethod
    def _is_long(space: Shape, axes: tuple[int, ...]) -> bool:
        """Whether rows are so long that none stays in a cache."""
        return math.prod(int(space[i]) for i in axes) > LONGEST_ROW

    def _hands_over(self, producer: int, consumer: int, space: Shape) -> bool:
        """Whether a group needs no memory for something that it hands over to another, beside one value of each row."""
        first, second = self.groups[producer], self.groups[consumer]
        if first.axes is None:
            return True
        for id in second.nodes:
            for source in self.sources[id]:
                if self.home.get(source) == producer and self.nodes[source].shape == space:
                    return True
        # What has no elements costs nothing to join.
        return all(
            self.roles[id] != "reduce" and self.nodes[id].shape != space for id in second.nodes
        )

    def _finds(self, *groups: Group) -> bool:
        """Whether one looks for a place: that takes a pass of its own."""
        return any(self.nodes[id].op.facts.finds for group in groups for id in group.nodes)

    @staticmethod
    def _common_rows(first: Group, second: Group) -> tuple[Shape | None, tuple[int, ...]]:
        """The rows of two groups, where they have the same."""
        with_axes = [group for group in (first, second) if group.axes is not None]
        spaces = {(group.space, group.axes) for group in with_axes}
        if len(spaces) != 1:
            return None, ()
        space, axes = with_axes[0].space, with_axes[0].axes
        return space, axes or ()

    def _all_fit(self, ids: Sequence[int], space: Shape, axes: tuple[int, ...]) -> bool:
        """Whether every node has one value an element or one a row, and reads its own row only."""
        inside = [self.nodes[id] for id in ids]
        for node in inside:
            if self.roles[node.id] == "reduce":
                continue
            if not isinstance(node.type, TensorType) or not is_of_rows(node.shape, space, axes):
                return False
            if not ("elementwise" in node.op.traits or takes_one(node, space, axes)):
                return False
        own = set(ids)
        return all(self._reads_its_row(node, own, space, axes) for node in inside)

    def _reads_its_row(
        self, node: Node, inside: set[int], space: Shape, axes: tuple[int, ...]
    ) -> bool:
        """Whether what a node of a kernel of rows reads of others there is in its own row: a row's value spread over its elements is."""
        whole = self.roles[node.id] == "reduce" or takes_one(node, space, axes)
        shape = space if whole else node.shape
        for operand in node.operands:
            seen = self._is_seen(operand, inside)
            # Of as many axes, each lies above its own.
            if not seen and (operand.id not in inside or operand.rank == len(shape)):
                continue
            if seen and not is_of_rows(operand.shape, space, axes):
                return False
            found = self._runs(operand, inside, space, axes)
            if found is None or not is_aligned(found, runs_along(shape, space, axes)):
                return False
        return True

    def _runs(self, x: Node, inside: set[int], space: Shape, axes: tuple[int, ...]) -> Along | None:
        """Which axes of its rows what a node reads runs along; nothing is asked of what others compute. None where elements are in another order."""
        if x.id in inside:
            return runs_along(x.shape, space, axes)
        if not self._is_seen(x, inside):
            return (None,) * x.rank
        if len(x.operands) != 1:
            return None
        found = self._runs(x.operands[0], inside, space, axes)
        return None if found is None else seen_through(x, found)

    # ------------------------------------------------------------- maps

    def maps(self) -> None:
        """Element-wise nodes into the one kernel that reads them, or beside it."""
        for node in reversed(self.nodes):
            if self.roles[node.id] != "point" or node.id not in self.home:
                continue
            own = self.home[node.id]
            if self.groups[own].kind != "map" or self._is_kept(node.id):
                continue
            homes = {self.home[reader] for reader in self.readers[node.id]} - {own}
            if len(homes) != 1:
                continue
            consumer = next(iter(homes))
            if self.groups[consumer].kind != "map" or self._spreads(node, consumer):
                continue
            if self._may_join(own, consumer):
                self._join(own, consumer, "map")
                self.groups[own].space = self._last_space(own)

        self._siblings()

    def _siblings(self) -> None:
        """A map that reads what another of the same shape has just computed goes beside it: one read less."""
        for node in self.nodes:
            if self.roles[node.id] != "point" or "elementwise" not in node.op.traits:
                continue
            for source in node.inputs:
                producer, consumer = self.home.get(source), self.home[node.id]
                if producer is None or producer == consumer:
                    continue
                first, second = self.groups[producer], self.groups[consumer]
                alike = first.space == second.space or (
                    self.fusing.places_parts and make_parts(self.nodes, first, second)
                )
                if first.kind != "map" or second.kind != "map" or not alike:
                    continue
                if self._may_join(producer, consumer):
                    self._join(producer, consumer, "map")

    def _spreads(self, node: Node, consumer: int) -> bool:
        """Whether a kernel would compute it more than once for each of its elements."""
        readers = [i for i in self.readers[node.id] if self.home[i] == consumer]
        # A part of a concat is computed where it is a part, and nowhere else.
        apart = [i for i in readers if self.nodes[i].op.name != "concat"]
        return any(self.nodes[i].size != node.size for i in apart)

    def _last_space(self, group: int) -> Shape | None:
        return self._space(self.nodes[self.groups[group].nodes[-1]])

    # ------------------------------------------------------------- the order

    def ordered(self) -> list[Group]:
        """Groups so that each comes after those it needs; otherwise as the graph has them."""
        result: list[Group] = []
        done: set[int] = set()
        names = sorted(self.groups, key=lambda name: self.groups[name].nodes[-1])
        most = 2 * sum(len(group.needs) + 1 for group in self.groups.values())
        for start in names:
            stack = [start]
            while stack:
                name = stack[-1]
                if name in done:
                    stack.pop()
                    continue
                waiting = sorted(need for need in self.groups[name].needs if need not in done)
                if len(stack) > most:
                    raise InternalError("kernels wait for each other in a circle")
                if waiting:
                    stack += reversed(waiting)
                    continue
                done.add(name)
                result.append(self.groups[name])
                stack.pop()
        return result
