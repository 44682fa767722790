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
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TensorType, TupleType
from .beside import Beside
from .blocks import FilledBlocks
from .cut import least_cut
from .groups import EPILOGUES, LARGEST, PLAIN, Fusing, Group, make_parts
from .product_ends import ProductEnds
from .roles import (
    LEAST_ROWS,
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
    work.sides()
    work.narrow()
    work.rows()
    work.alike()
    work.maps()
    if fusing.blocks:
        work.blocks()
    if fusing.beside:
        work.besides()
    return work.ordered()


class _Fusion(FilledBlocks, ProductEnds, Beside):
    """Which groups are joined, and what they become."""

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
        self._besides()

    def _besides(self) -> None:
        """What is kept for gradients is computed by the kernel of the call that has the same operands."""
        for node in self.nodes:
            if node.op.facts.beside is None or self.home[node.id] != node.id:
                continue
            call = (node.op.facts.beside, node.inputs, node.slots)
            calls = (user for x in node.operands[:1] for user in self.graph.users(x))
            for user in calls:
                alike = (user.op.name, user.inputs, user.slots) == call
                if alike and user.attrs == node.attrs and self._may_join(user.id, node.id):
                    self._join(self.home[user.id], node.id, self.groups[user.id].kind)
                    break

    def narrow(self) -> None:
        """Let kernels of rows compute what they read of an epilogue where fewer values, made on the way to it, are written instead.

        So the gradient of a norm is written once, and not once for what it reduces and once for its weight.
        """
        for node in self.nodes:
            if self.roles[node.id] == "contract" and not isinstance(node.type, TupleType):
                self._narrow(node)

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

    def _narrow(self, root: Node) -> None:
        name = self.home[root.id]
        group = self.groups[name]
        # A group goes by the name of one of its nodes, which stays.
        later = self._for_rows(group) - {name}
        if len(later) < 2:
            return
        ends = [id for id in later if any(self.home[i] != name for i in self.readers[id])]
        price = {id: float(self._bytes(id)) for id in group.nodes}
        for id in group.nodes:
            if id not in later and self._is_stored(id, name, id):
                price[id] = 0.0
        ways = {
            id: [i for i in self.readers[id] if self.home[i] == name and i in later]
            for id in group.nodes
        }
        sources = [id for id in group.nodes if id not in later]
        least, cut = least_cut(price, ways, sources, ends)
        if least >= sum(price[id] for id in ends):
            return
        found, stack = set[int](), [id for id in ends if id not in cut]
        while stack:
            id = stack.pop()
            if id not in cut and id in later and id not in found:
                found.add(id)
                stack += [i for i in self.sources[id] if i in later]
        # What is written in their place may be made of some of them.
        others = {i for id in found for i in self.readers[id] if self.home[i] == name}
        if found.issuperset(others):
            for id in sorted(found, reverse=True):
                self._give_back(name, id)

    def _for_rows(self, group: Group) -> set[int]:
        """The nodes of an epilogue that only kernels of rows and what these sum are for: they can compute them too."""
        later: set[int] = set()
        for id in reversed(group.nodes):
            node, readers = self.nodes[id], self.readers[id]
            if self.roles[id] != "point":
                continue
            inside = [i for i in readers if i in group.nodes]
            others = [i for i in readers if i not in group.nodes]
            plain = not self._is_kept(id) and later.issuperset(inside)
            if plain and all(self._is_of_rows(node, self.nodes[i]) for i in others):
                later.add(id)
        return later

    def _is_of_rows(self, node: Node, reader: Node) -> bool:
        """Whether a node is read element by element by a reduction, or by what is beside one of the same rows."""
        if node.id not in reader.inputs or self._is_seen_by(reader, node):
            return False
        if self.roles[reader.id] == "reduce":
            return not reader.op.facts.finds
        alone = self.home[reader.id] == reader.id and self.roles[reader.id] == "point"
        if not alone or reader.shape != node.shape or len(self.groups[reader.id].nodes) > 1:
            return False
        # What needs a sum of the product's elements comes after that sum.
        summed = any(self.roles[i] == "reduce" for i in self.readers[reader.id])
        return summed or self._between(self.home[node.id], reader.id) is None

    def _is_seen_by(self, reader: Node, node: Node) -> bool:
        """Whether a reader reads a node through a view."""
        views = (x for x in reader.operands if x.id != node.id)
        return any(self._is_seen(x, {node.id}) for x in views)

    def _is_stored(self, id: int, name: int, but: int) -> bool:
        """Whether a value of a group is written in any case, whatever becomes of one reader."""
        others = (reader for reader in self.readers[id] if reader != but)
        return self._is_kept(id) or any(self.home[reader] != name for reader in others)

    def _is_epilogue(self, reader: int, product: Node) -> bool:
        """Whether a node can be computed where a product is written: for each element, from that element."""
        node = self.nodes[reader]
        if self.home[reader] != reader or self.roles[reader] != "point":
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

    def rows(self) -> None:
        """Reductions over the same axes of the same rows, and what is element-wise around them.

        The largest values first: what a small one would join may lie between two that a large one joins. Sums over rows come last, as
        ``columns`` can add them to kernels of rows along the last axis.
        """
        pairs = [
            (source, node.id)
            for node in self.nodes
            if self.roles[node.id] in ("reduce", "point")
            for source in self.sources[node.id]
            if source in self.home and self.groups[self.home[source]].kind in ("map", "rows")
        ]
        pairs.sort(key=lambda pair: -self._bytes(pair[0]))
        self._join_pairs([pair for pair in pairs if not any(map(self._is_column, pair))])
        self._columns()
        # What is made of elements first goes to who reads its elements: who makes a value of each row would only write them.
        self._join_pairs([pair for pair in pairs if self._hands_elements(*pair)])
        self._join_pairs(pairs)

    def _join_pairs(self, pairs: Sequence[tuple[int, int]]) -> None:
        changed = True
        while changed:
            changed = False
            for source, reader in pairs:
                if self._join_rows(self.home[source], self.home[reader]):
                    changed = True

    def _is_column(self, id: int) -> bool:
        axes, node = self._axes(self.nodes[id]), self.nodes[id]
        return axes is not None and axes == tuple(range(node.operands[0].rank - 1))

    def alike(self) -> None:
        """Kernels of the same rows that read one value of many elements, such as the gradients of a batch norm: together they read it once."""
        for node in self.nodes:
            if isinstance(node.type, TupleType):
                continue
            names = dict.fromkeys(self.home[reader] for reader in self.readers[node.id])
            first: int | None = None
            for name in names:
                group = self.groups.get(name)
                if group is None or group.kind != "rows" or group.space != node.shape:
                    continue
                if first is None or first not in self.groups:
                    first = name
                elif self._join_rows(*sorted((first, name), key=self.order.__getitem__)):
                    first = first if first in self.groups else name

    def _hands_elements(self, source: int, reader: int) -> bool:
        """Whether a node reads all elements of its rows from another, not one value of each row."""
        return self.nodes[source].shape == self._space(self.nodes[reader])

    def _join_rows(self, producer: int, consumer: int) -> bool:
        if producer == consumer:
            return False
        first, second = self.groups[producer], self.groups[consumer]
        if {first.kind, second.kind} - {"map", "rows"} or "rows" not in (first.kind, second.kind):
            return False
        if first.axes is not None and second.axes is not None and self._finds(first, second):
            return False
        if self._has_columns_of(first, second):
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

    def _has_columns_of(self, first: Group, second: Group) -> bool:
        """Whether one group reads sums over all rows that another makes on its way: they are whole only after its last row."""
        columns = {
            id for id in first.nodes if self.roles[id] == "reduce" and self._is_beside(id, first)
        }
        return any(not columns.isdisjoint(self.sources[id]) for id in second.nodes)

    def _is_beside(self, id: int, group: Group) -> bool:
        return self._axes(self.nodes[id]) != group.axes

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
            # What has fewer axes has those of size 1 before them.
            spread = (*[1] * (len(space) - operand.rank), *operand.shape)
            known = is_of_rows(operand.shape, space, axes) or is_of_rows(spread, space, axes)
            if seen and not known:
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

    def _columns(self) -> None:
        """Sums over the rows of what a kernel of rows computes or reads, or of what is made of that: the gradients of a norm's weights."""
        for node in self.nodes:
            own = self.home.get(node.id)
            if own is None or self.roles[node.id] != "reduce" or len(self.groups[own].nodes) > 1:
                continue
            (x,) = node.operands
            if self.roles[x.id] == "view" or node.op.name != "sum" or x.rank < 2:
                continue
            made = self._only_for(x.id, node.id)
            beside = [x.id] if made is None else self._read_by(made)
            homes = [self.home.get(i) for id in beside for i in (id, *self.readers[id])]
            for home in dict.fromkeys(homes):
                if home not in (None, made, own) and self._sums_rows_of(own, home, made):
                    space, axes = self.groups[home].space, self.groups[home].axes
                    for part in (own,) if made is None else (made, own):
                        self._join(home, part, "rows")
                    self.groups[home].space, self.groups[home].axes = space, axes
                    break

    def _only_for(self, id: int, reader: int) -> int | None:
        """The map that makes a value, if a reader of that is all that it is for."""
        home = self.home.get(id)
        if home is None or self.groups[home].kind != "map":
            return None
        own = self.groups[home].nodes
        inside = {*own, reader}
        alone = all(inside.issuperset(self.readers[i]) and not self._is_kept(i) for i in own)
        return home if alone else None

    def _read_by(self, name: int) -> list[int]:
        own = self.groups[name].nodes
        return list(dict.fromkeys(i for id in own for i in self.sources[id] if i not in own))

    def _sums_rows_of(self, own: int, home: int, made: int | None) -> bool:
        """Whether a group that is one sum can be made by a group of rows on its way, with the map that makes what is summed."""
        rows, column = self.groups[home], self.groups[own]
        if rows.kind != "rows" or rows.space != column.space or not rows.space:
            return False
        last = len(rows.space) - 1
        count = math.prod(int(size) for size in rows.space[:-1])
        if rows.axes != (last,) or column.axes != tuple(range(last)) or count < LEAST_ROWS:
            return False
        if self._finds(rows) or own in rows.needs or made in rows.needs:
            return False
        if made is not None:
            nodes = [*rows.nodes, *self.groups[made].nodes]
            if len(nodes) >= LARGEST or not self._all_fit(nodes, rows.space, rows.axes):
                return False
        # Neither need come after the other: both may read the same.
        other = own if made is None else made
        return self._may_join(*sorted((home, other), key=self.order.__getitem__))

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
