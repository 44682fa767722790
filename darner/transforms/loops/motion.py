"""Products that need not wait for the step before leave their loop: ``move_products``.

What a body computes from its steps of ``xs`` and from constants alone can be computed for all steps at once before the loop: the product of each step
with a weight is then one product of the whole sequence. A product that only what is written needs can be computed after the loop, from what it
reads. What depends on constants alone is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.types import TupleType
from ..batch import Walk
from .parts import Loop, Piece, closure, dependent, insert
from .rewrite import Lookup, Results, has_loops, moved, rewrite


def move_products(graph: Graph) -> Graph:
    """The graph with products outside of loops where they can be one product for all steps."""
    if not has_loops(graph):
        return graph

    def change(result: Graph, node: Node, lookup: Lookup) -> Results:
        made = moved(Loop.of(node), lookup)
        made = made.with_body(move_products(made.body).freeze())
        return _after(result, _before(result, made))

    return rewrite(graph, change)


class _Parts:
    """Which nodes of a body depend on what."""

    def __init__(self, made: Loop) -> None:
        self.made, self.body = made, made.body
        self.leaves = list(made.body.inputs.values())
        self.carried = dependent(self.body, self.leaves[: len(made.init)])
        self.stepping = dependent(self.body, self.leaves[made.first_step :])
        self.shared = dependent(self.body, self.leaves[made.first_constant : made.first_step])

    def varies(self, node: Node) -> bool:
        """Whether a value differs from step to step."""
        return self.carried[node.id] or self.stepping[node.id]

    def is_product(self, node: Node) -> bool:
        """Whether a node is a product of what changes with what all steps share, so that all steps are one product."""
        if not node.op.facts.full_rate or isinstance(node.type, TupleType):
            return False
        first, second = node.operands[:2]
        return self.varies(first) != self.varies(second) and can_batch(node)


def can_batch(node: Node) -> bool:
    """Whether there is a rule for many of a node at once."""
    return node.op.rules.vmap is not None or "elementwise" in node.op.traits or node.op.is_composite


# --------------------------------------------------------------------------- before the loop


def _before(graph: Graph, made: Loop) -> Loop:
    """A loop that reads what was computed before it."""
    parts = _Parts(made)
    fixed = _fixed_values(parts)
    early = [] if made.recompute else _early_values(parts)
    if not fixed and not early:
        return made
    walk = Walk(graph, made.length)
    for i, (leaf, operand) in enumerate(zip(parts.leaves, made.operands, strict=True)):
        if i >= made.first_constant:
            walk.give(leaf, operand, batched=i >= made.first_step)
    for node in closure(parts.body.nodes, [*fixed, *early], set()):
        if node.id not in walk.values:
            walk.visit(node)
    piece = Piece(made.body.name, made.body)
    groups = (
        ("h", parts.leaves[: made.first_constant]),
        ("k", [*parts.leaves[made.first_constant : made.first_step], *fixed]),
        ("x", [*parts.leaves[made.first_step :], *early]),
    )
    for stem, nodes in groups:
        for node in nodes:
            piece.input(stem, node._tensor, node)
    outputs = made.body.outputs
    piece.take(closure(parts.body.nodes, outputs, set(piece.mapped)))
    return replace(
        made,
        constants=(*made.constants, *(walk.values[node.id] for node in fixed)),
        xs=(*made.xs, *(walk.whole(node) for node in early)),
        body=piece.finish([piece.mapped[node.id] for node in outputs]),
    )


def _fixed_values(parts: _Parts) -> list[Node]:
    """What is computed from constants alone and read by what is not, views of it aside."""
    found: dict[int, Node] = {}
    for node in _read_by(parts, lambda node: parts.shared[node.id] and not parts.varies(node)):
        while "view" in node.op.traits and node.inputs and node.op.name != "project":
            node = node.operands[0]
        if node.inputs and node.op.name != "project":
            found[node.id] = node
    return [found[i] for i in sorted(found)]


def _early_values(parts: _Parts) -> list[Node]:
    """Products of steps of ``xs`` with what all steps share, and what is done with them element by element."""
    early = [False] * len(parts.body)
    for node in parts.body.nodes:
        if parts.carried[node.id] or not parts.stepping[node.id]:
            continue
        follows = "elementwise" in node.op.traits and any(
            early[o.id] and o.type == node.type for o in node.operands
        )
        early[node.id] = follows or parts.is_product(node)
    return _read_by(parts, lambda node: early[node.id])


def _read_by(parts: _Parts, pick: Callable[[Node], bool]) -> list[Node]:
    """The picked nodes that others read, or that are outputs."""
    found = []
    for node in parts.body.nodes:
        if pick(node):
            others = any(not pick(user) for user in parts.body.users(node))
            if others or parts.body.is_output(node):
                found.append(node)
    return found


# --------------------------------------------------------------------------- after the loop


def _after(graph: Graph, made: Loop) -> Results:
    """The results of a loop, those of products that only they need computed after it."""
    parts, count = _Parts(made), len(made.init)
    late = set() if made.recompute else _late_nodes(parts)
    if not late:
        return insert(graph, made)
    outputs = list(made.body.outputs)
    sunk = [j for j in range(count, len(outputs)) if outputs[j].id in late]
    kept = [j for j in range(len(outputs)) if j not in sunk]
    nodes = [parts.body.nodes[i] for i in sorted(late)]
    read = _read(nodes, late)
    steps = {leaf.id for leaf in parts.leaves[made.first_step :]}
    stacked = [node for node in read if parts.varies(node) and node.id not in steps]
    piece = Piece(made.body.name, made.body)
    for i, leaf in enumerate(parts.leaves):
        stem = "h" if i < made.first_constant else "k" if i < made.first_step else "x"
        piece.input(stem, leaf._tensor, leaf)
    ends = [*(outputs[j] for j in kept), *stacked]
    piece.take(closure(parts.body.nodes, ends, set(piece.mapped)))
    body = piece.finish([piece.mapped[node.id] for node in ends])
    answers = insert(graph, made.with_body(body))
    results: list[Node | None] = [None] * len(outputs)
    for j, answer in zip(kept, answers, strict=False):
        results[j] = answer
    walk = Walk(graph, made.length)
    for i, (leaf, operand) in enumerate(zip(parts.leaves, made.operands, strict=True)):
        if i >= made.first_constant:
            walk.give(leaf, operand, batched=i >= made.first_step)
    for node, answer in zip(stacked, answers[len(kept) :], strict=True):
        walk.give(node, answer, batched=True)
    for node in closure(parts.body.nodes, [outputs[j] for j in sunk], set(walk.values)):
        walk.visit(node)
    for j in sunk:
        results[j] = walk.whole(outputs[j])
    return results


def _late_nodes(parts: _Parts) -> set[int]:
    """Products that no carry needs, and what follows from them."""
    body, count = parts.body, len(parts.made.init)
    needed = {node.id for node in closure(body.nodes, body.outputs[:count], set())}
    late: set[int] = set()
    for node in body.nodes:
        if any(i in late for i in node.inputs) or (
            node.id not in needed and parts.carried[node.id] and parts.is_product(node)
        ):
            late.add(node.id)
    return late if all(can_batch(body.nodes[i]) for i in late) else set()


def _read(nodes: Iterable[Node], inside: set[int]) -> list[Node]:
    """What nodes read from outside of them, in order."""
    found = {o.id: o for node in nodes for o in node.operands if o.id not in inside}
    return [found[i] for i in sorted(found)]
