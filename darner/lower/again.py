"""Which values are computed again where they are read, in place of being stored and read back.

A forward pass leaves element-wise values for the backward pass: of a SwiGLU the slope of its gate, of a norm what it has scaled. Where such a value is a few operations on
others that are in memory, or may be, its readers compute it from these, and fewer bytes are written and read. What is stored in its place is a minimum cut: of all sets of values
from which the readers can compute what they read, the one that moves the fewest bytes. It is taken if the arithmetic is worth them on the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from ..graph.dims import Shape
from ..graph.facts import Role
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from ..ops.faults import can_fail
from .cut import least_cut
from .groups import EPILOGUES, LARGEST, Group

GAIN = 2.0
"""How many times less the arithmetic is to take than the bytes that it saves."""


@dataclass(frozen=True)
class Price:
    """What a target computes in the time that it moves a byte.

    Attributes:
        operations: additions of element-wise code.
        least: bytes of a value from which on it has left the caches when it is read again.
    """

    operations: float
    least: int = 0


def computed_again(
    graph: Graph, groups: Sequence[Group], roles: Sequence[Role], price: Price | None
) -> list[set[int]]:
    """For each kernel the nodes of others that it computes again; none without a price."""
    work = _Again(graph, groups, roles)
    if price is not None:
        for number in range(len(groups)):
            work.decide(number, price)
    return work.again


def values_read(node: Node, roles: Sequence[Role]) -> Iterator[tuple[int, bool]]:
    """The values that a node reads, views seen through, and whether it is through one."""
    stack = [(operand, False) for operand in reversed(node.operands)]
    while stack:
        operand, seen = stack.pop()
        if roles[operand.id] in ("view", "part"):
            stack += [(inner, True) for inner in reversed(operand.operands)]
        else:
            yield operand.id, seen


@dataclass
class _Region:
    """The element-wise values of a kernel that its readers may compute themselves, and what these are made of.

    Attributes:
        wanted: what is read by other kernels, each with the numbers of these.
        followers: which values of the region are made of a value.
        sources: values that are not computed again, but read.
        reached: for each value the kernels that something made of it is for.
    """

    wanted: dict[int, frozenset[int]]
    followers: dict[int, set[int]]
    sources: set[int]
    reached: dict[int, set[int]]


class _Again:
    """Kernels, what they read, and what they compute again."""

    def __init__(self, graph: Graph, groups: Sequence[Group], roles: Sequence[Role]) -> None:
        self.graph = graph
        self.groups = groups
        self.roles = roles
        self.again: list[set[int]] = [set() for _ in groups]
        self.home = {id: number for number, group in enumerate(groups) for id in group.nodes}
        ends = [*graph.outputs, *graph.updates.values()]
        self.stays = {node.id for node in ends}
        """Values that are in memory whatever is decided."""
        for node in ends:
            if roles[node.id] in ("view", "part"):
                self.stays.update(id for id, _ in values_read(node, roles))
        self.updated = {leaf.id for leaf in graph.updates}
        self.reads: list[set[int]] = []
        self.readers: dict[int, set[int]] = {}
        for number, group in enumerate(groups):
            self.reads.append(set())
            for id in group.nodes:
                self._note(number, graph.nodes[id])

    def _note(self, number: int, node: Node) -> None:
        for id, seen in values_read(node, self.roles):
            if self.home.get(id) == number or id in self.again[number]:
                continue
            self.reads[number].add(id)
            self.readers.setdefault(id, set()).add(number)
            if seen or not self._is_by_element(number, node, self.graph.nodes[id]):
                self.stays.add(id)

    def _is_by_element(self, number: int, reader: Node, value: Node) -> bool:
        """Whether a node of a kernel reads one element of a value for each of its own, where the kernel can compute that."""
        group = self.groups[number]
        if group.kind == "rows" and self.roles[reader.id] == "reduce":
            return value.shape == group.space
        if "elementwise" not in reader.op.traits or reader.shape != value.shape:
            return False
        alike = value.shape == group.space
        return group.kind == "map" or (group.kind in ("rows", *EPILOGUES) and alike)

    # ------------------------------------------------------------- a kernel and its readers

    def decide(self, number: int, price: Price) -> None:
        """Let the readers of a kernel's values compute again what is cheaper so."""
        for shape in dict.fromkeys(self.graph.nodes[id].shape for id in self._wanted(number)):
            region = self._region(number, shape, price)
            if not region.wanted:
                continue
            now = sum(self._bytes(id) * (1 + len(found)) for id, found in region.wanted.items())
            costs = {id: self._cost(number, id, region) for id in region.reached}
            least, cut = least_cut(costs, region.followers, region.sources, region.wanted)
            if least < now:
                made = self._made(region, cut)
                work = sum(self._work(id) for ids in made.values() for id in ids)
                fits = all(self._has_room(other, ids) for other, ids in made.items())
                if fits and (now - least) * price.operations >= GAIN * work:
                    self._take(made)

    def _wanted(self, number: int) -> Iterator[int]:
        """The values of a kernel that others read, element by element."""
        for id in self.groups[number].nodes:
            if id in self.readers and id not in self.stays and self._is_repeatable(id):
                yield id

    def _is_repeatable(self, id: int) -> bool:
        node = self.graph.nodes[id]
        plain = self.roles[id] == "point" and "elementwise" in node.op.traits
        return plain and "random" not in node.op.traits and not can_fail(node)

    def _region(self, number: int, shape: Shape, price: Price) -> _Region:
        wanted = {
            id: frozenset(self.readers[id])
            for id in self._wanted(number)
            if self.graph.nodes[id].shape == shape and self._bytes(id) >= price.least
        }
        region = _Region(wanted, {}, set(), {id: set(found) for id, found in wanted.items()})
        # Nodes come after what they are made of: from the last on, all that is made of a value is known.
        for id in range(max(wanted, default=-1), -1, -1):
            if id not in region.reached or id in region.sources or self.home.get(id) != number:
                continue
            node = self.graph.nodes[id]
            if not self._is_repeatable(id) or node.shape != shape:
                region.sources.add(id)
                continue
            for value, seen in values_read(node, self.roles):
                region.followers.setdefault(value, set()).add(id)
                region.reached.setdefault(value, set()).update(region.reached[id])
                if seen or self.home.get(value) != number:
                    region.sources.add(value)
        return region

    def _cost(self, number: int, id: int, region: _Region) -> float:
        """The bytes that are moved for it if a value is what the readers begin with."""
        node, nbytes = self.graph.nodes[id], self._bytes(id)
        if isinstance(node.type, TupleType):
            return inf
        more = [
            other
            for other in region.reached[id]
            if id in region.wanted or id not in self.reads[other]
        ]
        if self.home.get(id) == number:
            stored = id in self.stays or (id in self.readers and id not in region.wanted)
            return nbytes * (len(more) + (not stored))
        # A leaf that is read later than it is updated would have to be copied before.
        if more and (id in self.updated or not self._is_in_memory(id)):
            return inf
        return float(nbytes * len(more))

    def _is_in_memory(self, id: int) -> bool:
        return id not in self.home or id in self.stays or bool(self.readers.get(id))

    def _made(self, region: _Region, cut: frozenset[int]) -> dict[int, set[int]]:
        """What each reader computes again, of values of a cut."""
        before: dict[int, list[int]] = {}
        for id, found in region.followers.items():
            for other in found:
                before.setdefault(other, []).append(id)
        made: dict[int, set[int]] = {}
        for id, readers in region.wanted.items():
            stack, found = [id], set[int]()
            while stack:
                value = stack.pop()
                if value not in cut and value not in found:
                    found.add(value)
                    stack += before.get(value, ())
            for reader in readers if found else ():
                made.setdefault(reader, set()).update(found)
        return made

    def _work(self, id: int) -> float:
        """The additions that computing a value once takes."""
        node = self.graph.nodes[id]
        return float(node.op.facts.weight * int(node.size))

    def _has_room(self, number: int, ids: set[int]) -> bool:
        return len(self.groups[number].nodes) + len(self.again[number] | ids) <= LARGEST

    def _take(self, made: Mapping[int, set[int]]) -> None:
        for number, ids in made.items():
            self.again[number] |= ids
            for value in self.reads[number]:
                self.readers[value].discard(number)
            self.reads[number].clear()
            for id in (*self.groups[number].nodes, *self.again[number]):
                self._note(number, self.graph.nodes[id])
            # What something is computed from again is in memory from now on.
            for id in ids:
                for value, _ in values_read(self.graph.nodes[id], self.roles):
                    if value not in self.again[number] and self.home.get(value) != number:
                        self.stays.add(value)

    def _bytes(self, id: int) -> int:
        node = self.graph.nodes[id]
        # A number is part of the code.
        return 0 if node.op.name == "constant" and node.size == 1 else int(node.type.nbytes)
