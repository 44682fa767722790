"""Groups of nodes of a graph that are joined step by step, with an order in which the kernels that they are going to be can run.

Two groups are joined only if no third lies between them. Who joins which is decided in ``fuse``.
"""

from __future__ import annotations

from ..graph.dims import Shape
from ..graph.errors import InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from .groups import KINDS, LARGEST, Group, number_between
from .roles import roles
from .strided import Multipliers


class Joining:
    """The groups of a graph: at first one for each node that computes something."""

    def __init__(self, graph: Graph, multipliers: Multipliers | None) -> None:
        self.graph = graph
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

    def _is_seen(self, x: Node, inside: set[int]) -> bool:
        """Whether a node is a view of one of these values."""
        is_view = self.roles[x.id] in ("view", "part")
        return is_view and not inside.isdisjoint(self.sources[x.id])

    def _is_alone(self, id: int) -> bool:
        """Whether a node is a kernel of its own so far."""
        return self.home.get(id) == id and len(self.groups[id].nodes) == 1

    def _bytes(self, id: int) -> int:
        node = self.nodes[id]
        return 0 if isinstance(node.type, TupleType) else int(node.size) * node.dtype.itemsize

    def _last_space(self, group: int) -> Shape | None:
        return self._space(self.nodes[self.groups[group].nodes[-1]])

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
