"""The cheapest set of nodes that lies on every way from some sources to some ends: a minimum cut of nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from math import inf

Vertex = tuple[int, bool]
"""A node as ways come into it (False) and as they leave it (True)."""

SOURCE: Vertex = (-1, False)
END: Vertex = (-1, True)


def least_cut(
    price: Mapping[int, float],
    followers: Mapping[int, Collection[int]],
    sources: Iterable[int],
    ends: Iterable[int],
) -> tuple[float, frozenset[int]]:
    """The least that a cut costs, and its nodes; of several cuts the one nearest to the ends.

    Args:
        price: what it costs to cut a node; infinite where it cannot be.
        followers: for each node those that a way goes on to.
        sources: where ways begin, and which may be cut themselves.
        ends: where they end, and which may be cut too.

    >>> least_cut({1: 5.0, 2: 2.0, 3: 2.0, 4: 9.0}, {1: [2, 3], 2: [4], 3: [4]}, [1], [4])
    (4.0, frozenset({2, 3}))
    """
    room: dict[Vertex, dict[Vertex, float]] = {SOURCE: {}, END: {}}

    def link(start: Vertex, end: Vertex, capacity: float) -> None:
        room.setdefault(start, {})[end] = capacity
        room.setdefault(end, {}).setdefault(start, 0.0)

    for node, cost in price.items():
        link((node, False), (node, True), cost)
    for node, found in followers.items():
        for other in found:
            link((node, True), (other, False), inf)
    for node in sources:
        link(SOURCE, (node, False), inf)
    for node in ends:
        link((node, True), END, inf)
    total = 0.0
    while (way := _way(room)) is not None:
        least = min(room[start][end] for start, end in way)
        if least == inf:
            return inf, frozenset()
        for start, end in way:
            room[start][end] -= least
            room[end][start] += least
        total += least
    behind = _behind(room)
    cut = {node for node in price if (node, False) not in behind and (node, True) in behind}
    return total, frozenset(cut)


def _way(room: Mapping[Vertex, Mapping[Vertex, float]]) -> list[tuple[Vertex, Vertex]] | None:
    """The shortest way with room left from the source to the end."""
    before: dict[Vertex, Vertex] = {SOURCE: SOURCE}
    waiting = deque([SOURCE])
    while waiting and END not in before:
        vertex = waiting.popleft()
        for other, left in room[vertex].items():
            if left > 0 and other not in before:
                before[other] = vertex
                waiting.append(other)
    if END not in before:
        return None
    way, vertex = [], END
    while vertex != SOURCE:
        way.append((before[vertex], vertex))
        vertex = before[vertex]
    return way


def _behind(room: Mapping[Vertex, Mapping[Vertex, float]]) -> set[Vertex]:
    """What can still reach the end."""
    found, waiting = {END}, [END]
    while waiting:
        vertex = waiting.pop()
        for other in room[vertex]:
            if other not in found and room[other].get(vertex, 0.0) > 0:
                found.add(other)
                waiting.append(other)
    return found
