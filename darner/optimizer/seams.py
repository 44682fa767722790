"""Where blocks meet: the few nodes on both sides of a border, as regions of their own.

Each block is optimized alone, so a rule whose left side would reach from one into the next finds nothing. After the blocks are done,
the borders at which some rule could match are looked at again, with the nodes around them. Borders between blocks of the same two
kinds are alike: one of them shows whether there is anything to gain.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from .declare import Rule
from .engine import constructor, query_of

REACH = 2
"""How many nodes beyond the border, in each direction, belong to its region."""

Pairs = set[tuple[str, int, str]]


@dataclass(frozen=True)
class Border:
    """Where two blocks meet: the blocks, and the nodes that hand over values and take them."""

    blocks: tuple[int, int]
    core: tuple[int, ...]


def find_borders(
    graph: Graph, home: Sequence[int], keys: Sequence[Hashable], rules: Iterable[Rule]
) -> list[list[Border]]:
    """The borders that a rule could reach across, alike ones together.

    ``home`` has the block of each node (-1 for none), ``keys`` what kind each block is.
    """
    nodes = list(graph.nodes)
    crossing: dict[tuple[int, int], dict[tuple[int, int], None]] = {}
    for node in nodes:
        own = home[node.id]
        if own < 0:
            continue
        for place, source in enumerate(node.inputs):
            other = home[source]
            if other != own and other >= 0:
                border = (own, other) if own < other else (other, own)
                crossing.setdefault(border, {})[node.id, place] = None
    alike: dict[Hashable, list[tuple[int, int]]] = {}
    for border, edges in crossing.items():
        kind = (keys[border[0]], keys[border[1]], len(edges))
        alike.setdefault(kind, []).append(border)
    wanted = [rule for rule in rules if len(query_of(rule).needs) > 1]
    found = []
    for blocks in alike.values():
        first = _border(nodes, blocks[0], crossing[blocks[0]])
        present = _present(graph, members(graph, home, first))
        pairs = {_pair(graph, id, place) for id, place in crossing[blocks[0]]}
        if any(_reaches(rule, present, pairs) for rule in wanted):
            found.append([_border(nodes, pair, crossing[pair]) for pair in blocks])
    return found


def _border(
    nodes: Sequence[Node], blocks: tuple[int, int], edges: Iterable[tuple[int, int]]
) -> Border:
    core: dict[int, None] = {}
    for id, place in edges:
        core.update({id: None, nodes[id].inputs[place]: None})
    return Border(blocks, tuple(core))


def disjoint(groups: Iterable[list[int]]) -> list[list[int]]:
    """The groups without the nodes that an earlier one has."""
    taken: set[int] = set()
    result = []
    for group in groups:
        left = [id for id in group if id not in taken]
        if len(left) == len(group):
            taken.update(left)
            result.append(left)
    return result


def _pair(graph: Graph, id: int, place: int) -> tuple[str, int, str]:
    node = graph.nodes[id]
    operand = graph.nodes[node.inputs[place]]
    where = -1 if "commutative" in node.op.traits else place
    below = constructor(operand.op, operand.slots)
    return constructor(node.op, node.slots), where, below


def _present(graph: Graph, ids: Iterable[int]) -> Pairs:
    """What an e-graph of these nodes begins with."""
    found: Pairs = set()
    for id in ids:
        node = graph.nodes[id]
        found.add((constructor(node.op, node.slots), -1, ""))
        found.update(_pair(graph, id, place) for place in range(len(node.inputs)))
    return found


def _reaches(rule: Rule, present: Pairs, crossing: Pairs) -> bool:
    """Whether all that a rule asks for is there, and some of it across the border."""
    needs = query_of(rule).needs
    return needs <= present and not needs.isdisjoint(crossing)


def members(graph: Graph, home: Sequence[int], border: Border) -> list[int]:
    """The nodes near a border, of the two blocks that meet there."""
    nodes = graph.nodes
    members = dict.fromkeys(border.core)
    for _ in range(REACH):
        near: dict[int, None] = {}
        for id in members:
            near.update(dict.fromkeys(nodes[id].inputs))
            near.update(dict.fromkeys(user.id for user in graph.users(id)))
        members.update({id: None for id in near if home[id] in border.blocks})
    # A node with several results goes with what takes it apart.
    for id in list(members):
        for source in nodes[id].inputs:
            if isinstance(nodes[source].type, TupleType):
                members[source] = None
    for id in list(members):
        if isinstance(nodes[id].type, TupleType):
            members.update(dict.fromkeys(user.id for user in graph.users(id)))
    return sorted(members)
