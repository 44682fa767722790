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
from .groups import EPILOGUES, KINDS, Group, make_parts, number_between
from .roles import (
    LEAST_ROWS,
    Along,
    ended_ops,
    is_aligned,
    is_for_products,
    is_of_rows,
    may_end,
    roles,
    runs_along,
    seen_through,
    takes_one,
)
from .strided import Multipliers

LARGEST = 96
"""Nodes in one kernel: beyond that, registers run out and compiling takes longer than it saves."""

LONGEST_ROW = 1 << 18
"""Elements of a row beyond which no cache keeps it: what is computed from its reduction reads it again in any case."""


def fuse(
    graph: Graph,
    ended: Collection[str] | None = None,
    multipliers: Multipliers | None = None,
    places_parts: bool = False,
) -> list[Group]:
    """The kernels of a graph, in an order in which they can run; those by index of the ops ``ended`` may have epilogues.

    With ``places_parts`` a map that makes the parts of a concatenation takes in what is element-wise beside them.
    """
    work = _Fusion(graph, multipliers, places_parts)
    work.epilogues()
    work.ends(ended_ops() if ended is None else ended)
    work.sides()
    work.rows()
    work.columns()
    work.maps()
    return work.ordered()


class _Fusion:
    """Groups of nodes, joined step by step."""

    def __init__(
        self, graph: Graph, multipliers: Multipliers | None, places_parts: bool = False
    ) -> None:
        self.graph = graph
        self.places_parts = places_parts
        self.nodes = list(graph.nodes)
        self.roles = roles(graph, multipliers)
        self.kept = {node.id for node in (*graph.outputs, *graph.updates.values())}
        self.home: dict[int, int] = {}
        self.groups: dict[int, Group] = {}
        # A number for each group, larger than those of all that it needs: whoever looks for a way between two
        # groups need not look beyond them.
        self.order: dict[int, float] = {}
        self.sources = [self._sources(node) for node in self.nodes]
        self.readers: list[list[int]] = [[] for _ in self.nodes]
        for node in self.nodes:
            found = self.roles[node.id]
            if found in ("leaf", "view", "part"):
                continue
            for source in self.sources[node.id]:
                self.readers[source].append(node.id)
            self.home[node.id] = node.id
            self.order[node.id] = float(node.id)
            self.groups[node.id] = Group(
                KINDS[found], [node.id], self._space(node), self._axes(node)
            )
        for id, group in self.groups.items():
            group.needs = {self.home[i] for i in self.sources[id] if i in self.home}

    # ------------------------------------------------------------- what nodes read

    def _sources(self, node: Node) -> tuple[int, ...]:
        """The nodes whose values it reads, views seen through."""
        found: dict[int, None] = {}
        stack = list(reversed(node.inputs))
        while stack:
            i = stack.pop()
            if self.roles[i] in ("view", "part"):
                stack += reversed(self.nodes[i].inputs)
            else:
                found[i] = None
        return tuple(found)

    def _space(self, node: Node) -> Shape | None:
        if isinstance(node.type, TupleType):
            return None
        if self.roles[node.id] == "reduce":
            return self.nodes[node.inputs[0]].shape
        return node.shape

    def _axes(self, node: Node) -> tuple[int, ...] | None:
        if self.roles[node.id] != "reduce":
            return None
        axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
        if axes == (None,):
            return tuple(range(self.nodes[node.inputs[0]].rank))
        return tuple(int(axis) for axis in axes)

    def _is_kept(self, id: int) -> bool:
        """Whether a value must be in memory: as an output, directly or through a view."""
        return id in self.kept or any(
            self.roles[user.id] == "view" and self._view_is_kept(user)
            for user in self.graph.users(id)
        )

    def _view_is_kept(self, view: Node) -> bool:
        return view.id in self.kept or any(
            self.roles[user.id] == "view" and self._view_is_kept(user)
            for user in self.graph.users(view)
        )

    # ------------------------------------------------------------- joining

    def _between(self, producer: int, consumer: int) -> set[int] | None:
        """What a group needs that comes after another in the order; None where some of it needs that other one."""
        low, found = self.order[producer], set[int]()
        stack = [name for name in self.groups[consumer].needs if name != producer]
        while stack:
            name = stack.pop()
            if name == producer:
                return None
            if name not in found and self.order[name] > low:
                found.add(name)
                stack += self.groups[name].needs
        return found

    def _after(self, producer: int, consumer: int) -> set[int]:
        """What needs a group and comes before another in the order, that other one left out."""
        high, found = self.order[consumer], set[int]()
        stack = [producer]
        while stack:
            for id in self.groups[stack.pop()].nodes:
                for reader in self.readers[id]:
                    name = self.home[reader]
                    if name not in found and name != producer and self.order[name] < high:
                        found.add(name)
                        stack.append(name)
        return found

    def _may_join(self, producer: int, consumer: int) -> bool:
        """No third group between them: nothing else the consumer needs comes after the producer."""
        first, second = self.groups[producer], self.groups[consumer]
        if len(first.nodes) + len(second.nodes) > LARGEST:
            return False
        return self._between(producer, consumer) is not None

    def _reorder(self, producer: int, consumer: int) -> None:
        """Make room for a group of both: what the consumer needs goes before it, what needs the producer after it.

        Only these move, and among the places that they have: the rest of the order stays good (Pearce and Kelly's way).
        """
        before = self._between(producer, consumer)
        if before is None:
            raise InternalError("kernels would wait for each other in a circle")
        after = self._after(producer, consumer)
        moved = {*before, *after, producer, consumer}
        places = sorted(self.order[name] for name in moved)
        first, last = (sorted(names, key=self.order.__getitem__) for names in (before, after))
        for name, place in zip([*first, producer], places, strict=False):
            self.order[name] = place
        for name, place in zip(reversed(last), reversed(places), strict=False):
            self.order[name] = place
        del self.order[consumer]

    def _join(self, producer: int, consumer: int, kind: str) -> None:
        """Make one group of two; it goes by the producer's name."""
        if self.order[producer] < self.order[consumer]:
            self._reorder(producer, consumer)
        else:
            self._reorder(consumer, producer)
            self.order[producer] = self.order.pop(consumer)
        first, second = self.groups[producer], self.groups.pop(consumer)
        first.kind = kind
        first.nodes = sorted([*first.nodes, *second.nodes])
        first.needs = (first.needs | second.needs) - {producer, consumer}
        first.axes = first.axes if first.axes is not None else second.axes
        for id in second.nodes:
            self.home[id] = producer
        for id in second.nodes:
            for reader in self.readers[id]:
                group = self.groups[self.home[reader]]
                group.needs.discard(consumer)
                if group is not first:
                    group.needs.add(producer)

    # ------------------------------------------------------------- epilogues

    def epilogues(self) -> None:
        """Element-wise nodes that read the result of a contraction or an attention, and those that read them."""
        for node in self.nodes:
            if self.roles[node.id] not in ("contract", "attention"):
                continue
            if not isinstance(node.type, TupleType):
                self._take_readers(node)
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

    def _give_back(self, name: int, id: int) -> None:
        """Make a node of a group a group of its own again."""
        group, node = self.groups[name], self.nodes[id]
        group.nodes.remove(id)
        self.home[id] = id
        alone = Group(KINDS[self.roles[id]], [id], self._space(node), self._axes(node))
        alone.needs = {self.home[i] for i in self.sources[id] if i in self.home}
        self.groups[id] = alone
        others = [self.order[self.home[i]] for i in self.readers[id] if self.home[i] != name]
        start, end = self.order[name], min(others, default=self.order[name] + 1.0)
        self.order[id] = number_between(start, end, set(self.order.values()))
        group.needs = {
            self.home[i] for own in group.nodes for i in self.sources[own] if i in self.home
        } - {name}
        for reader in self.readers[id]:
            needing = self.groups[self.home[reader]]
            needing.needs = {
                self.home[i] for own in needing.nodes for i in self.sources[own] if i in self.home
            } - {self.home[reader]}

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

    def _is_seen(self, x: Node, inside: set[int]) -> bool:
        """Whether a node is a view of one of these values."""
        is_view = self.roles[x.id] in ("view", "part")
        return is_view and not inside.isdisjoint(self.sources[x.id])

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
        # What is made of elements first goes to who reads its elements: who makes a value of each row would only write them.
        handed = [pair for pair in pairs if self._hands_elements(*pair)]
        for some, with_columns in ((pairs, False), (handed, True), (pairs, True)):
            changed = True
            while changed:
                changed = False
                for source, reader in some:
                    first, second = self.home[source], self.home[reader]
                    if not with_columns and (self._sums_rows(first) or self._sums_rows(second)):
                        continue
                    if self._join_rows(first, second):
                        changed = True

    def _sums_rows(self, name: int) -> bool:
        """Whether a group reduces all axes but the last."""
        group = self.groups[name]
        return group.axes is not None and group.axes == tuple(range(len(group.space or ()) - 1))

    def _hands_elements(self, source: int, reader: int) -> bool:
        """Whether a node reads all elements of its rows from another, not one value of each row."""
        return self.nodes[source].shape == self._space(self.nodes[reader])

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

    def columns(self) -> None:
        """Sums over the rows of what a kernel of rows computes or reads: the gradients of a norm's weights."""
        for node in self.nodes:
            own = self.home.get(node.id)
            if own is None or self.roles[node.id] != "reduce" or len(self.groups[own].nodes) > 1:
                continue
            (x,) = node.operands
            if self.roles[x.id] == "view" or node.op.name != "sum" or x.rank < 2:
                continue
            homes = [self.home.get(x.id), *(self.home[i] for i in self.readers[x.id])]
            for home in dict.fromkeys(homes):
                if home is not None and self._sums_rows_of(own, home):
                    space, axes = self.groups[home].space, self.groups[home].axes
                    self._join(home, own, "rows")
                    self.groups[home].space, self.groups[home].axes = space, axes
                    break

    def _sums_rows_of(self, own: int, home: int) -> bool:
        """Whether a group that is one sum can be made by a group of rows on its way."""
        rows, column = self.groups[home], self.groups[own]
        if own == home or rows.kind != "rows" or rows.space != column.space or not rows.space:
            return False
        last = len(rows.space) - 1
        count = math.prod(int(size) for size in rows.space[:-1])
        if rows.axes != (last,) or column.axes != tuple(range(last)) or count < LEAST_ROWS:
            return False
        if self._finds(rows) or own in rows.needs:
            return False
        # Neither need come after the other: both may read the same.
        return self._may_join(*sorted((home, own), key=self.order.__getitem__))

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
                    self.places_parts and make_parts(self.nodes, first, second)
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
