"""One loop of two, where the second computes all that the first does.

A gradient's forward loop takes the steps of the loop it belongs to and writes more of each. Whether a loop is part of another is seen from their
bodies, written out: numbers are given to values so that equal ones have one number, and each output of the first must be an output of the second.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ...graph.graph import LEAVES, Graph
from ...graph.node import Node
from ...graph.text.attributes import attribute_text
from ..expand import expand
from .parts import Loop, dependent, insert, is_loop
from .rewrite import moved


def merge_repeats(graph: Graph) -> Graph:
    """The graph without loops that are part of another."""
    loops = [node for node in graph.nodes if is_loop(node)]
    replaced: dict[int, tuple[Node, list[int]]] = {}
    for first in loops:
        for second in loops:
            if first is second or first.id in replaced or second.id in replaced:
                continue
            places = _places(first, second)
            if places is not None and not any(dependent(graph, [first])[i] for i in second.inputs):
                replaced[first.id] = second, places
    return _without(graph, replaced) if replaced else graph


def _places(first: Node, second: Node) -> list[int] | None:
    """For each result of the first loop, the number of the second's that equals it; None where one has none."""
    a, b = Loop.of(first), Loop.of(second)
    if (a.length, a.reverse) != (b.length, b.reverse):
        return None
    if len(a.init) > len(b.init) or (
        len(a.body.outputs) >= len(b.body.outputs) and first.id > second.id
    ):
        return None
    inputs = _inputs(a, b)
    if inputs is None:
        return None
    numbers: dict[Hashable, int] = {}
    outer = _numbered(b.body, list(range(len(b.operands))), numbers)
    inner = _numbered(a.body, inputs, numbers)
    count = len(b.init)
    found = []
    for j, number in enumerate(inner):
        if j < len(a.init):
            if outer[inputs[j]] != number:
                return None
            found.append(inputs[j])
        elif number in outer[count:]:
            found.append(outer.index(number, count))
        else:
            return None
    return found


def _inputs(a: Loop, b: Loop) -> list[int] | None:
    """For each input of ``a``'s body, the input of ``b``'s that is given the same."""
    taken: set[int] = set()
    found = []
    groups = (
        (a.init, b.init, 0),
        (a.constants, b.constants, b.first_constant),
        (a.xs, b.xs, b.first_step),
    )
    for ours, theirs, offset in groups:
        for node in ours:
            key = _value(node)
            places = [offset + i for i, other in enumerate(theirs) if _value(other) == key]
            places = [i for i in places if i not in taken] if offset == 0 else places
            if not places:
                return None
            taken.add(places[0])
            found.append(places[0])
    return found


def _value(node: Node) -> Hashable:
    """What a node is: equal constants, and equal views of them, are one."""
    if node.op.name == "constant":
        return node.attrs["values"]
    if "view" in node.op.traits and len(node.inputs) == 1:
        below = _value(node.operands[0])
        if not isinstance(below, int):
            return node.op.name, attribute_text(node.op, node.attrs), below
    return node.id


def _numbered(body: Graph, inputs: Sequence[int], numbers: dict[Hashable, int]) -> list[int]:
    """The numbers of a body's outputs, given those of its inputs."""
    graph = expand(body)
    known = {leaf.id: -1 - i for leaf, i in zip(graph.inputs.values(), inputs, strict=True)}
    for node in graph.nodes:
        if node.id not in known:
            key: Hashable = (
                node.op.name,
                node.slots,
                node.attrs.get("values") or attribute_text(node.op, node.attrs),
                tuple(known[i] for i in node.inputs),
            )
            known[node.id] = numbers.setdefault(key, len(numbers))
    return [known[node.id] for node in graph.outputs]


def _without(graph: Graph, replaced: dict[int, tuple[Node, list[int]]]) -> Graph:
    """The graph with results of larger loops in place of those of loops that they repeat."""
    result = Graph(graph.name)
    mapped: dict[int, Node] = {}
    answers: dict[int, list[Node]] = {}

    def before(node: Node) -> list[Node]:
        needed = list(node.operands)
        if node.id in replaced:
            needed = [replaced[node.id][0]]
        return [n for n in needed if n.id not in mapped and n.id not in answers]

    def place(node: Node) -> None:
        if node.id in replaced:
            other, places = replaced[node.id]
            answers[node.id] = [answers[other.id][i] for i in places]
        elif is_loop(node):
            with result.derived_from(node):
                answers[node.id] = insert(result, moved(Loop.of(node), lambda n: mapped[n.id]))
        elif node.op.name == "project" and node.inputs[0] in answers:
            mapped[node.id] = answers[node.inputs[0]][node.attrs["index"]]
        else:
            mapped[node.id] = result.insert_like(node, [mapped[i] for i in node.inputs])

    leaves = [node for node in graph.nodes if node.op.name in LEAVES]
    for node in (*leaves, *graph.nodes):
        waiting = [node]
        while waiting:
            last = waiting[-1]
            if last.id in mapped or last.id in answers:
                waiting.pop()
            elif needed := before(last):
                waiting += needed
            else:
                place(waiting.pop())
    result.set_outputs([mapped[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(mapped[leaf.id], mapped[value.id])
    result.inherit(graph)
    return result.toposort()
