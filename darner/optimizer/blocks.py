"""Blocks: a graph cut into regions, so that equal regions need to be improved only once.

A deep model is one block many times over. ``partition`` finds the blocks (``runs``), joins the
backward pass of each to its forward pass (``pairing``) and describes every region exactly: what it
computes (``key``), what it reads, what others read of it. Labels and periods only propose; two
regions are equal when their keys are.

A region may be replaced by anything that computes the same outputs from the same inputs, whatever
the other regions are replaced by. A joined region is not convex: its backward pass reads gradients
that other regions make from its forward results. So the replacement must not compute a forward
result from such a gradient, although the values might allow it. ``late`` lists those pairs. The
rule that makes any choice of replacements a graph without cycles:

    an output may be computed from an input only if the input was traced before the output, in every
    region of the key

All values that cross between regions are then ordered by one sequence, the ids of the graph, and
every dependency, old or new, points backward in it. It is not enough to forbid inputs that are
reachable from the output: of two regions with no path between ``a1`` of the one and ``b1`` of the
other, one might come to compute a1 from b1 and the other b1 from a1. Little is lost, because a
region consists of few unbroken stretches, and all that a stretch reads was traced before it.

Random nodes stand alone. Each draws from a stream of its own, so no two are equal, and the blocks
they feed would differ. So do counters, which are traced inside the block that happens to use them
first.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.attributes import Pool
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.text.dump import dumps, encode_attrs
from ..graph.types import TensorType, TupleType, Type
from .pairing import join
from .runs import Trace, find_runs

Tag = Callable[[Node], Hashable]


@dataclass(frozen=True)
class Region:
    """A part of a graph.

    Attributes:
        nodes: ids of the nodes it owns, ascending.
        inputs: ids of the nodes outside that it reads, in order of first use: leaves, and values
            of other regions.
        outputs: positions in ``nodes`` that are read outside, in this region or in another of the
            same key.
        late: pairs of a position in ``inputs`` and an output (its position in ``nodes``) that must
            not be computed from it. The same for all regions of one key.
        key: equal for two regions exactly when they compute the same from inputs of the same kind:
            ops, attributes, types and wiring are equal, constants by value, leaves by kind and tag.
    """

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    late: tuple[tuple[int, int], ...]
    key: Hashable


@dataclass(frozen=True)
class Partition:
    """A graph in regions.

    Attributes:
        regions: in order of their first node; every node but the leaves belongs to exactly one.
        coverage: the share of these nodes that lie in regions whose key occurs at least twice.
    """

    regions: tuple[Region, ...]
    coverage: float

    @property
    def by_key(self) -> dict[Hashable, tuple[Region, ...]]:
        """The regions of each key, in order."""
        found: dict[Hashable, list[Region]] = {}
        for region in self.regions:
            found.setdefault(region.key, []).append(region)
        return {key: tuple(regions) for key, regions in found.items()}


def untagged(leaf: Node) -> Hashable:
    """The tag of every leaf unless others are asked for."""
    return None


def partition(graph: Graph, tag: Tag = untagged, *, rest_as_one: bool = False) -> Partition:
    """Cut a graph into regions, with equal keys where the graph repeats itself.

    ``tag`` gives for a leaf what else must be equal in equal regions, such as how it is stored. With ``rest_as_one`` the
    parts that occur once are one region, unless they are large.

    >>> graph = Graph("deep")
    >>> x = graph.input("x", (4, 8)).tanh()
    >>> for i in range(6):
    ...     h = x.layer_norm() @ graph.parameter(f"up{i}", (8, 32))
    ...     h = h.relu() * h.sigmoid() + h.tanh()
    ...     x = x + h @ graph.parameter(f"down{i}", (32, 8))
    >>> graph.set_outputs([x])
    >>> found = partition(graph)
    >>> [len(region.nodes) for region in found.regions], len(found.by_key)
    ([1, 9, 9, 9, 9, 9, 9], 2)
    """
    names = _Names(graph, tag)
    chosen = [node for node in names.nodes if not names.stands_apart[node.id]]
    owner = [0] * len(graph)
    count = _own_blocks(names, chosen, owner)
    for node in names.nodes:
        if "leaf" in node.op.traits:
            continue
        if names.stands_apart[node.id]:
            owner[node.id] = count
            count += 1
        # A value of several results cannot cross: what takes it apart goes where it is made.
        for source in node.inputs:
            if isinstance(names.nodes[source].type, TupleType):
                owner[node.id] = owner[source]
    members: list[list[int]] = [[] for _ in range(count)]
    for node in names.nodes:
        if "leaf" not in node.op.traits:
            members[owner[node.id]].append(node.id)
    regions = _described(names, sorted(filter(None, members)), owner)
    coverage = _coverage(regions)
    return Partition(_with_rest_as_one(names, regions, owner) if rest_as_one else regions, coverage)


MOST = 400
"""Nodes that the parts of a graph which occur once may have together to be one region."""


def _with_rest_as_one(
    names: _Names, regions: tuple[Region, ...], owner: list[int]
) -> tuple[Region, ...]:
    """What occurs once (the first nodes, the head, its backward) as one region: rules then see all of it."""
    occurrences: defaultdict[Hashable, int] = defaultdict(int)
    for region in regions:
        occurrences[region.key] += 1
    rest = [
        region
        for region in regions
        if occurrences[region.key] == 1 and not names.stands_apart[region.nodes[0]]
    ]
    merged = sorted(id for region in rest for id in region.nodes)
    if len(rest) < 2 or len(merged) > MOST:
        return regions
    for id in merged:
        owner[id] = owner[merged[0]]
    kept = [region for region in regions if region not in rest]
    return tuple(sorted([*kept, *_described(names, [merged], owner)], key=lambda r: r.nodes[0]))


def describe(
    graph: Graph, members: Sequence[Sequence[int]], tag: Tag = untagged
) -> tuple[Region, ...]:
    """Regions of these nodes, none of which is in two; what is in no region stays as it is."""
    owner = [~id for id in range(len(graph))]
    for number, ids in enumerate(members):
        for id in ids:
            owner[id] = number
    return _described(_Names(graph, tag), members, owner)


def _own_blocks(names: _Names, chosen: Sequence[Node], owner: list[int]) -> int:
    """Assign the nodes that can be part of blocks; returns the number of blocks."""
    places: list[tuple[int, ...]] = [()] * len(names.nodes)
    producers: list[int] = []
    readers: list[int] = []
    position = 0
    for node in names.nodes:
        read = tuple(dict.fromkeys([place for source in node.inputs for place in places[source]]))
        if names.stands_apart[node.id]:
            places[node.id] = read  # who reads it reads, for the choice of borders, what it reads
            continue
        producers += read
        readers += [position] * len(read)
        places[node.id] = (position,)
        position += 1
    trace = Trace(
        np.array([names.label(node) for node in chosen], np.int64),
        np.array([names.number(node.op.name) for node in chosen], np.int64),
        np.array(producers, np.int64),
        np.array(readers, np.int64),
    )
    leaves = [tuple(i for i in node.inputs if names.is_variable[i]) for node in chosen]
    groups = join(trace, find_runs(trace), leaves)
    for group, stretches in enumerate(groups):
        for start, stop in stretches:
            for node in chosen[start:stop]:
                owner[node.id] = group
    return len(groups)


# --------------------------------------------------------------------------- naming what nodes are


class _Names:
    """Text and numbers that stand for what a node is: the same for equal things."""

    def __init__(self, graph: Graph, tag: Tag) -> None:
        self.graph = graph
        self.tag = tag
        self.nodes = list(graph.nodes)
        leaf = ["leaf" in node.op.traits for node in self.nodes]
        self.stands_apart = [
            is_leaf or "random" in node.op.traits or _is_counter(node, leaf)
            for is_leaf, node in zip(leaf, self.nodes, strict=True)
        ]
        self.is_variable = [
            is_leaf and node.op.name != "constant"
            for is_leaf, node in zip(leaf, self.nodes, strict=True)
        ]
        self._numbers: dict[Hashable, int] = {}
        self._types: dict[Type, str] = {}
        self._attributes: dict[Hashable, str] = {}
        self._calls: dict[int, str] = {}
        self._sources: list[tuple[str, Hashable]] = [
            self._source(node, is_leaf) for node, is_leaf in zip(self.nodes, leaf, strict=True)
        ]

    def number(self, thing: Hashable) -> int:
        """A small number for a thing; equal things have equal ones."""
        return self._numbers.setdefault(thing, len(self._numbers))

    def call(self, id: int) -> str:
        """What a node does, operands aside: op, slots, attributes, type."""
        found = self._calls.get(id)
        if found is None:
            node = self.nodes[id]
            slots = ",".join(node.slots)
            type_ = self._type(node.type)
            found = f"{node.op.name}({slots}){self._attribute_text(node)}:{type_}"
            self._calls[id] = found
        return found

    def source(self, id: int) -> tuple[str, Hashable]:
        """What a node is to a region that reads it from outside, and its tag if it is a leaf."""
        return self._sources[id]

    def label(self, node: Node) -> int:
        """A number for what a node does and what kind of operands it has."""
        operands = tuple([self._sources[i] for i in node.inputs])
        return self.number((self.call(node.id), operands))

    def _source(self, node: Node, is_leaf: bool) -> tuple[str, Hashable]:
        if not is_leaf:
            return f"value:{self._type(node.type)}", None
        if node.op.name == "constant":
            return f"constant:{node.attrs['values'].digest}", self.tag(node)
        return f"{node.op.name}:{self._type(node.type)}", self.tag(node)

    def _type(self, type_: Type) -> str:
        found = self._types.get(type_)
        if found is None:
            found = self._types[type_] = str(type_)
        return found

    def _attribute_text(self, node: Node) -> str:
        if not node.attrs:
            return ""
        known = (node.op.name, *map(_apart, node.attrs.values()))
        found = self._attributes.get(known)
        if found is None:
            found = dumps(encode_attrs(node, Pool(), defaults=True))
            self._attributes[known] = found
        return found


def _is_counter(node: Node, leaf: Sequence[bool]) -> bool:
    """A scalar made from leaves alone that no node reads, such as the next step of a counter."""
    return (
        isinstance(node.type, TensorType)
        and not node.type.shape
        and not node.graph.use_count(node)
        and all(leaf[i] for i in node.inputs)
    )


def _apart(value: Any) -> Hashable:
    """An attribute as part of a dictionary's key, where 0.0, -0.0, 0 and False must differ."""
    return type(value), repr(value) if isinstance(value, float) else value


# --------------------------------------------------------------------------- describing regions


@dataclass(frozen=True)
class _Carved:
    """A region before it is known what others of its key need."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    key: Hashable


def _described(
    names: _Names, members: Sequence[Sequence[int]], owner: Sequence[int]
) -> tuple[Region, ...]:
    keys: dict[Hashable, Hashable] = {}
    carved = [_carve(names, nodes, keys) for nodes in members]
    read = _read_outside(names.graph, owner)
    outputs: defaultdict[Hashable, set[int]] = defaultdict(set)
    for part in carved:
        outputs[part.key].update(k for k, id in enumerate(part.nodes) if read[id])
    late: defaultdict[Hashable, set[tuple[int, int]]] = defaultdict(set)
    for part in carved:
        made = [(k, id) for k, id in enumerate(part.inputs) if id > part.nodes[0]]
        made = [(k, id) for k, id in made if "leaf" not in names.nodes[id].op.traits]
        late[part.key].update(
            (k, output) for k, id in made for output in outputs[part.key] if id > part.nodes[output]
        )
    final = {key: (tuple(sorted(outputs[key])), tuple(sorted(late[key]))) for key in outputs}
    return tuple(Region(part.nodes, part.inputs, *final[part.key], part.key) for part in carved)


def _carve(names: _Names, nodes: Sequence[int], keys: dict[Hashable, Hashable]) -> _Carved:
    """Inputs and key of a region.

    ``keys`` holds the keys made so far, by a form that is quick to compare.
    """
    position = {id: k for k, id in enumerate(nodes)}
    inputs: dict[int, int] = {}

    def wire(source: int) -> int:
        if source in position:
            return position[source]
        return ~inputs.setdefault(source, len(inputs))

    wires = [tuple(map(wire, names.nodes[id].inputs)) for id in nodes]
    calls = tuple([names.call(id) for id in nodes])
    sources = tuple([names.source(id) for id in inputs])
    quick = (calls, tuple(wires), sources)
    key = keys.get(quick)
    if key is None:
        lines = [f"{call}{wiring}" for call, wiring in zip(calls, wires, strict=True)]
        lines += [text for text, _ in sources]
        digest = hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
        key = keys[quick] = (digest, tuple([tag for _, tag in sources]))
    return _Carved(tuple(nodes), tuple(inputs), key)


def _read_outside(graph: Graph, owner: Sequence[int]) -> list[bool]:
    """For each node, whether another region, an output or an update reads it."""
    read = [False] * len(graph)
    for node in graph.nodes:
        for source in node.inputs:
            if owner[source] != owner[node.id]:
                read[source] = True
    for node in (*graph.outputs, *graph.updates.values()):
        read[node.id] = True
    return read


def _coverage(regions: Sequence[Region]) -> float:
    occurrences: defaultdict[Hashable, int] = defaultdict(int)
    for region in regions:
        occurrences[region.key] += 1
    total = sum(len(region.nodes) for region in regions)
    repeated = sum(len(region.nodes) for region in regions if occurrences[region.key] > 1)
    return repeated / total if total else 0.0
