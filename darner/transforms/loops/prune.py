"""Loops without carries, constants, steps and stacks that no result needs, and with small constants inside their bodies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...graph.dims import Shape
from ...graph.graph import LEAVES, Graph
from ...graph.node import Node
from ...ops.shapes.primitives import certainly_less
from .parts import Loop, Piece, closure, insert, is_loop
from .rewrite import Lookup, Results, moved, rewrite

SMALL = 16
"""Elements of a constant that goes into a body."""


def prune_loops(graph: Graph) -> Graph:
    """The graph with loops that have only what their results need."""
    needs, live = _needs(graph)

    def change(result: Graph, node: Node, lookup: Lookup) -> Results:
        return _pruned(result, needs[node.id], lookup)

    return rewrite(graph, change, live)


@dataclass(frozen=True)
class _Need:
    """What of a loop is needed: numbers of inputs and outputs of its body."""

    made: Loop
    inputs: frozenset[int]
    """Inputs of the body that are read, those that become constants of it left out."""
    outputs: frozenset[int]
    fixed: frozenset[int]
    """Carries that no step changes."""

    def copied(self, number: int) -> Node | None:
        """The operand of which an output is the step that was read."""
        output = self.made.body.outputs[number]
        for leaf, x in zip(self.leaves[self.made.first_step :], self.made.xs, strict=True):
            if leaf is output:
                return x
        return None

    @property
    def leaves(self) -> list[Node]:
        """The inputs of the body."""
        return list(self.made.body.inputs.values())


def _needs(graph: Graph) -> tuple[dict[int, _Need], list[bool]]:
    """What each loop needs, and which nodes are alive."""
    live = [node.op.name in LEAVES for node in graph.nodes]
    for node in (*graph.outputs, *graph.updates.values()):
        live[node.id] = True
    used: dict[int, set[int]] = {}
    needs: dict[int, _Need] = {}
    for node in graph.reverse_topo():
        if not live[node.id]:
            continue
        if is_loop(node):
            need = needs[node.id] = _need(Loop.of(node), used.get(node.id, set()))
            for i in need.inputs | (need.outputs & set(range(len(need.made.init)))):
                live[node.inputs[i]] = True
            for j in need.outputs:
                if j >= len(need.made.init) and (copied := need.copied(j)) is not None:
                    live[copied.id] = True
            continue
        if node.op.name == "project" and is_loop(node.operands[0]):
            used.setdefault(node.inputs[0], set()).add(node.attrs["index"])
        for i in node.inputs:
            live[i] = True
    return needs, live


def _need(made: Loop, used: set[int]) -> _Need:
    """The inputs and outputs of a body that the ``used`` results need."""
    leaves, outputs = list(made.body.inputs.values()), made.body.outputs
    count = len(made.init)
    fixed = {i for i in range(count) if outputs[i] is leaves[i]}
    wanted = set(used)
    while True:
        needed = [False] * len(made.body)
        for j in wanted - fixed:
            needed[outputs[j].id] = True
        for node in made.body.reverse_topo():
            if needed[node.id]:
                for i in node.inputs:
                    needed[i] = True
        more = {i for i in range(count) if needed[leaves[i].id]} - wanted
        if not more:
            break
        wanted |= more
    inputs = {i for i, leaf in enumerate(leaves) if needed[leaf.id]}
    inside = {i for i in inputs if i >= count and _constant_of(made, i) is not None}
    return _Need(made, frozenset(inputs - inside), frozenset(wanted), frozenset(fixed))


def _constant_of(made: Loop, number: int) -> tuple[Node, Shape | None] | None:
    """The constant that an operand is in every step, and the shape it is repeated to."""
    node = made.operands[number]
    if number < made.first_step:
        small = node.op.name == "constant" and node.size <= SMALL
        return (node, None) if small else None
    if node.op.name == "broadcast_to" and node.operands[0].op.name == "constant":
        value = node.operands[0]
        return (value, node.shape[1:]) if value.size == 1 else None
    return None


def _pruned(graph: Graph, need: _Need, lookup: Lookup) -> Results:
    """The loop in another graph, with what is needed."""
    made, count = need.made, len(need.made.init)
    outputs = made.body.outputs
    results: list[Node | None] = [None] * len(outputs)
    for i in need.fixed & need.outputs:
        results[i] = lookup(made.init[i])
    # One segment between checkpoints is a loop of one step, and must not become part of what is kept.
    if made.length == 0 or (made.length == 1 and not made.recompute):
        found = _single_step(graph, need, lookup) if made.length else _no_step(graph, need, lookup)
        return [found.get(i, result) for i, result in enumerate(results)]
    carries = [i for i in range(count) if i in need.outputs and i not in need.fixed]
    written = []
    for j in sorted(j for j in need.outputs if j >= count):
        copied = need.copied(j)
        if copied is None:
            written.append(j)
        else:  # a step writes what it read: nothing has to be copied
            results[j] = lookup(copied)
    distinct = list({outputs[j].id: j for j in reversed(written)}.values())[::-1]
    if not carries and not written:
        return results
    constants, xs = _distinct(need)
    every = (len(carries), len(constants), len(xs), len(distinct))
    every_one = (count, len(made.constants), len(made.xs), len(outputs) - count)
    if every == every_one and all(_views(node)[0] is node for node in made.constants):
        return insert(graph, moved(made, lookup))
    body = _body(need, carries, constants, xs, [*carries, *distinct])
    smaller = replace(
        made,
        init=tuple(lookup(made.init[i]) for i in carries),
        constants=tuple(lookup(_views(made.operands[group[0]])[0]) for group in constants),
        xs=tuple(lookup(made.operands[group[0]]) for group in xs),
        body=body,
    )
    answers = insert(graph, smaller)
    results_of = {outputs[j].id: a for j, a in zip(distinct, answers[len(carries) :], strict=True)}
    for i, answer in zip(carries, answers, strict=False):
        results[i] = answer
    for j in written:
        results[j] = results_of[outputs[j].id]
    return results


def _no_step(graph: Graph, need: _Need, lookup: Lookup) -> dict[int, Node]:
    """The results of a loop of no steps: where it begins, and nothing written."""
    made, count = need.made, len(need.made.init)
    found = {i: lookup(made.init[i]) for i in need.outputs if i < count}
    for i in need.outputs - found.keys():
        empty = made.body.outputs[i]
        found[i] = graph.zeros((0, *empty.shape), empty.dtype)
    return found


def _single_step(graph: Graph, need: _Need, lookup: Lookup) -> dict[int, Node]:
    """The results of a loop of one step: its body."""
    made, count = need.made, len(need.made.init)
    mapped: dict[int, Node] = {}
    for i, leaf in enumerate(need.leaves):
        inside = _constant_of(made, i) if i >= count else None
        if inside is not None:
            value, shape = inside
            copy = graph.insert_like(value, [])
            mapped[leaf.id] = copy if shape is None else _repeated(copy, shape)
        elif i in need.inputs:
            operand = lookup(made.operands[i])
            mapped[leaf.id] = operand if i < made.first_step else operand.reshape(leaf.shape)
    wanted = [made.body.outputs[i] for i in sorted(need.outputs - need.fixed)]
    for node in closure(made.body.nodes, wanted, set(mapped)):
        mapped[node.id] = graph.insert_like(node, [mapped[i] for i in node.inputs])
    found = {i: mapped[made.body.outputs[i].id] for i in need.outputs - need.fixed}
    return {
        i: value if i < count else value.reshape((1, *value.shape)) for i, value in found.items()
    }


def _distinct(need: _Need) -> tuple[list[list[int]], list[list[int]]]:
    """Groups of inputs that read one operand: constants (carries that nothing changes among them), and steps."""
    made, count = need.made, len(need.made.init)
    constants: dict[int, list[int]] = {}
    xs: dict[int, list[int]] = {}
    for i in sorted(need.inputs):
        if i >= made.first_step:
            xs.setdefault(made.operands[i].id, []).append(i)
        elif i >= count or i in need.fixed:
            constants.setdefault(_views(made.operands[i])[0].id, []).append(i)
    return list(constants.values()), list(xs.values())


def _views(node: Node) -> tuple[Node, list[Node]]:
    """What a node is a view of, no larger than itself, and the views in the order they are taken: bodies take them themselves."""
    views: list[Node] = []
    while "view" in node.op.traits and len(node.inputs) == 1 and node.op.name != "project":
        views.append(node)
        node = node.operands[0]
    while views and certainly_less(views[-1].size, node.size):
        node = views.pop()
    return node, views[::-1]


def _body(
    need: _Need,
    carries: Sequence[int],
    constants: Sequence[Sequence[int]],
    xs: Sequence[Sequence[int]],
    ends: Sequence[int],
) -> Graph:
    made = need.made
    leaves = list(made.body.inputs.values())
    piece = Piece(made.body.name, made.body)
    for i in carries:
        piece.input("h", leaves[i]._tensor, leaves[i])
    for group in constants:
        base, _ = _views(made.operands[group[0]])
        new = piece.input("k", base._tensor)
        for i in group:
            view = new
            for node in _views(made.operands[i])[1]:
                view = piece.graph.insert_like(node, [view])
            piece.mapped[leaves[i].id] = view
    for group in xs:
        new = piece.input("x", leaves[group[0]]._tensor)
        piece.mapped.update({leaves[i].id: new for i in group})
    for i, leaf in enumerate(leaves):
        found = (
            _constant_of(made, i) if i >= len(made.init) and leaf.id not in piece.mapped else None
        )
        if found is not None:
            value, shape = found
            copy = piece.graph.insert_like(value, [])
            piece.mapped[leaf.id] = copy if shape is None else _repeated(copy, shape)
    outputs = [made.body.outputs[i] for i in ends]
    piece.take(closure(made.body.nodes, outputs, set(piece.mapped)))
    return piece.finish([piece.mapped[node.id] for node in outputs])


def _repeated(value: Node, shape: Shape) -> Node:
    return value.reshape(()).broadcast_to(shape) if value.rank else value.broadcast_to(shape)
