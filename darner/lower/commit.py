"""Which kernels can meet a fault of data, and the order that keeps parameters and states as they were where one does.

A step commits at one point: every kernel that can fail comes before it, and every kernel that writes a parameter or state comes after it. There a
program looks for faults, and goes no further where it finds one. What a kernel checks can often be shown to hold before: an input of
indices is checked before a step begins, an argmax lies on its axis, and what one kernel has checked holds for the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph.graph import Graph
from ..graph.node import Node
from ..ops.faults import indexed_size, is_indexed
from .ranges import Range, integer_ranges
from .specs import Work
from .strided import is_view


def committed(graph: Graph, works: Sequence[Work]) -> tuple[list[Work], int]:
    """Kernels in an order in which those that write leaves come after those that can fail, as far as their values allow.

    Returns:
        The kernels, and how many of them come before the commit point; 0 where none can fail.
    """
    failing = _failing(graph, works)
    if not failing:
        return list(works), 0
    last = failing[-1]
    makers = {id: number for number, work in enumerate(works) for id in work.results}
    needs = [{makers[id] for id in work.operands if id in makers} for work in works]
    before: set[int] = set()
    stack = list(failing)
    while stack:
        number = stack.pop()
        if number not in before:
            before.add(number)
            stack += needs[number]
    new = {value.id for value in graph.updates.values()}
    later: list[int] = []
    for number in range(last + 1):
        writes = not new.isdisjoint(works[number].results)
        if number not in before and (writes or not needs[number].isdisjoint(later)):
            later.append(number)
    first = [number for number in range(last + 1) if number not in set(later)]
    order = [*first, *later, *range(last + 1, len(works))]
    return [works[number] for number in order], len(first)


def index_bounds(graph: Graph) -> dict[str, tuple[int, ...]]:
    """The inputs of a graph that are indices as they are given: the size of the smallest axis they index, and then numbers that stand for no index.

    >>> import darner
    >>> g = darner.Graph()
    >>> labels = g.input("labels", (4,), "i32")
    >>> g.set_outputs([g.gather(g.parameter("table", (50, 8)), labels.ne(-100).where(labels, 0))])
    >>> index_bounds(g)
    {'labels': (50, -100)}
    """
    found: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes:
        if not is_indexed(node):
            continue
        (root, others), size = _root(_indices(node), indexed_size(node)), indexed_size(node)
        if root.op.name == "input":
            least, *free = found.get(str(root.name), (size, *others))
            found[str(root.name)] = (min(size, least), *(n for n in free if n in others))
    return found


def _failing(graph: Graph, works: Sequence[Work]) -> list[int]:
    """The kernels that can fail where none before them has."""
    if not any(work.checks for work in works):
        return []
    found: list[int] = []
    checked: dict[int, int] = {}
    ranges = integer_ranges(graph)
    for number, work in enumerate(works):
        for id in work.checks:
            node = graph.nodes[id]
            if _is_safe(node, ranges, checked):
                continue
            found.append(number)
            if is_indexed(node):
                indices, size = _indices(node), indexed_size(node)
                root, _ = _root(indices, size)
                if root.size == indices.size and _reads_all(graph, node, work):
                    checked[root.id] = min(size, checked.get(root.id, size))
    return sorted(set(found))


def _is_safe(node: Node, ranges: Sequence[Range | None], checked: Mapping[int, int]) -> bool:
    """Whether a node that can fail does not here: what it takes is known, or was checked, or is nothing."""
    if is_indexed(node):
        indices, size = _indices(node), indexed_size(node)
        within, (root, _) = ranges[indices.id], _root(indices, size)
        inside = within is not None and within[0] >= 0 and within[1] < size
        earlier = root.op.name == "input" or checked.get(root.id, size + 1) <= size
        return inside or earlier or not _has_elements(indices)
    if node.op.facts.fails_on == "exponent":
        exponents = ranges[node.inputs[1]]
        return exponents is not None and exponents[0] >= 0
    return node.op.facts.fails_on == "matrix" and not _has_elements(node.operands[0])


def _indices(node: Node) -> Node:
    return node.operands[node.slots.index("indices")]


def _has_elements(node: Node) -> bool:
    return all(int(size) for size in node.shape)


def _root(node: Node, size: int) -> tuple[Node, tuple[int, ...]]:
    """What indices of an axis are but for their order and type, and numbers of it that an index inside stands for."""
    others: tuple[int, ...] = ()
    while True:
        if _is_same_number(node) and node.operands[0].dtype.is_int:
            node = node.operands[0]
        elif (found := _replaced(node, size)) is not None:
            node, number = found
            others = (*others, number)
        else:
            return node, others


def _is_same_number(node: Node) -> bool:
    """Whether an index is the same number after an op as before it."""
    passes_on = "elementwise" in node.op.traits and node.op.facts.selects
    return is_view(node) or passes_on or node.op.name == "cast"


def _replaced(node: Node, size: int) -> tuple[Node, int] | None:
    """``x`` and ``n``, where a node is ``x`` with an index inside the axis in place of every ``n``."""
    if node.op.name != "where" or node.operands[0].op.name not in ("eq", "ne"):
        return None
    condition, *choices = node.operands
    if condition.op.name == "ne":
        choices.reverse()
    inside, x = _constant(choices[0]), choices[1]
    number = _constant(condition.operands[1])
    same = condition.operands[0].id == x.id and x.shape == node.shape
    if not same or number is None or inside is None or not 0 <= inside < size:
        return None
    return x, number


def _constant(node: Node) -> int | None:
    """The number that all elements of a node are."""
    while node.op.name == "broadcast_to":
        node = node.operands[0]
    if node.op.name != "constant" or node.size != 1 or not node.dtype.is_int:
        return None
    return int(node.attrs["values"].array.reshape(-1)[0])


def _reads_all(graph: Graph, node: Node, work: Work) -> bool:
    """Whether a kernel computes every element of one of its nodes."""
    if node.op.facts.role != "point":
        return True
    inside, stack = set(work.nodes), [node]
    while stack:
        found = stack.pop()
        if found.id in work.results:
            return True
        for user in graph.users(found.id):
            plain = "elementwise" in user.op.traits or user.op.facts.reads_all
            if plain and user.id in inside:
                stack.append(user)
    return False
