"""Sums over steps that leave their loop: one product after it in place of one product a step.

The gradient of a weight that all steps share is a sum of products, ``d += h_t.T @ g_t``. Carried through the loop it is a matrix that every step
reads and writes. If a carry is only ever added to, its last value is its first one and the sum of what is added; where that is a product of values
of the step, these are stacked, and time becomes one more contracted axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...graph.graph import Graph
from ...graph.node import Node
from ...ops.custom.bodies import is_float
from ..expand import expand
from .parts import Loop, Piece, closure, dependent, insert
from .rewrite import Lookup, Results, moved, rewrite

Sum: TypeAlias = "Callable[[_After], Node]"


def sums_outside(graph: Graph) -> Graph:
    """The graph with sums of products outside of the loops that summed them."""
    plans: dict[int, _Plan] = {}

    def change(result: Graph, node: Node, lookup: Lookup) -> Results:
        plan = plans[node.id]
        made = moved(plan.made, lookup)
        return plan.emit(result, made) if plan.sums else insert(result, made)

    for node in graph.nodes:
        if node.op.name == "loop":
            plans[node.id] = _planned(Loop.of(node))
    return rewrite(graph, change) if any(plan.sums for plan in plans.values()) else graph


def _planned(made: Loop) -> _Plan:
    """The sums of a loop that leave it; composites on the way to them are written out."""
    while True:
        plan = _Plan(made)
        if not plan.opaque:
            return plan if plan.sums else _Plan(made, empty=True)
        opaque = plan.opaque
        made = made.with_body(_written_out(made.body, opaque))


def _written_out(body: Graph, chosen: set[int]) -> Graph:
    """A body without the chosen composites."""
    return expand(body, keep=lambda node: node.id not in chosen).freeze()


class _Plan:
    """Which carries of a loop are sums that leave it, and what has to be stacked for them."""

    def __init__(self, made: Loop, empty: bool = False) -> None:
        self.made, self.body = made, made.body
        self.leaves = list(made.body.inputs.values())
        moving = [*self.leaves[: len(made.init)], *self.leaves[made.first_step :]]
        self.varies = dependent(made.body, moving)
        self.stacked: dict[int, Node] = {}
        self.opaque: set[int] = set()
        self.sums: dict[int, Sum] = {}
        if empty:
            return
        added = {i: node for i in range(len(made.init)) if (node := self._added(i)) is not None}
        # What products stack, sums of the same values can use; where steps are computed again, nothing of them is kept.
        for wanted in (False,) if made.recompute else (True, False):
            for i, node in added.items():
                if i in self.sums or self._has_product(node) is not wanted:
                    continue
                before = dict(self.stacked)
                found = self.sum_of(node, free=not wanted)
                if found is None:
                    self.stacked = before
                else:
                    self.sums[i] = found

    def _added(self, i: int) -> Node | None:
        """What each step adds to a carry, where that is all that happens to it."""
        leaf, output = self.leaves[i], self.body.outputs[i]
        if not is_float(leaf._tensor):
            return None
        users = [user.id for user in self.body.users(leaf)]
        if users != [output.id] or output.op.name != "add" or self.body.use_count(output):
            return None
        if sum(node is output for node in self.body.outputs) > 1 or self.body.is_output(leaf):
            return None
        first, second = output.operands
        added = second if first is leaf else first
        return added if added is not leaf and added.type == leaf.type else None

    def _has_product(self, node: Node) -> bool:
        """Whether a product is found on the way that ``sum_of`` takes; composites on it are noted as opaque."""
        waiting = [node]
        while waiting:
            node = waiting.pop()
            if node.op.name == "dot_general":
                return True
            if node.op.is_composite and node.op.facts.role != "point" and self.varies[node.id]:
                if "elementwise" not in node.op.traits:
                    self.opaque.add(node.id)
            elif node.op.name in _PASSED:
                waiting += node.operands
        return False

    def sum_of(self, node: Node, free: bool) -> Sum | None:
        """The sum of a value over all steps; ``free`` where nothing may be stacked for it."""
        if not self.varies[node.id]:
            return lambda after: after.fixed(node) * float(self.made.length)
        name, operands = node.op.name, node.operands
        if self._has_stack(node):
            stack = self._stack(node)
            return lambda after: stack(after).sum((0,))
        if name == "dot_general":
            return None if free else self._product(node)
        if name in ("add", "sub"):
            if any(operand.type != node.type for operand in operands):
                return None
            parts = [self.sum_of(operand, free) for operand in operands]
            if parts[0] is None or parts[1] is None:
                return None
            left, right = parts[0], parts[1]
            return lambda after: after.call(node, [left(after), right(after)])
        if name == "mul":
            return self._scaled(node, free)
        if name == "sum":
            return self._reduced(node, free)
        if name in _PASSED and is_float(operands[0]._tensor):
            inner = self.sum_of(operands[0], free)
            return None if inner is None else lambda after: after.call(node, [inner(after)])
        return None

    def _scaled(self, node: Node, free: bool) -> Sum | None:
        """A value times what is the same in all steps."""
        value, other = node.operands
        if self.varies[other.id]:
            value, other = other, value
        if self.varies[other.id] or value.type != node.type:
            return None
        inner = self.sum_of(value, free)
        return None if inner is None else lambda after: inner(after) * after.fixed(other)

    def _reduced(self, node: Node, free: bool) -> Sum | None:
        """A sum over axes of a value, and over time."""
        value = node.operands[0]
        axes = tuple(axis + 1 for axis in node.attrs["axes"])
        keep = bool(node.attrs.get("keepdims", False))
        if keep or not self._has_stack(value):
            inner = self.sum_of(value, free)
            return None if inner is None else lambda after: after.call(node, [inner(after)])
        stack = self._stack(value)
        return lambda after: stack(after).sum((0, *axes))

    def _product(self, node: Node) -> Sum | None:
        """A product of which time becomes a contracted axis, where both sides change with it."""
        a, b = node.operands
        if self.varies[a.id] and self.varies[b.id]:
            left, right = self._stack(a), self._stack(b)
            attrs = {key: tuple(i + 1 for i in value) for key, value in node.attrs.items()}
            for key in ("a_contract", "b_contract"):
                attrs[key] = (0, *attrs[key])
            return lambda after: after.call(node, [left(after), right(after)], attrs)
        moving, other = (a, b) if self.varies[a.id] else (b, a)
        inner = self.sum_of(moving, free=False)
        if inner is None:
            return None
        if moving is a:
            return lambda after: after.call(node, [inner(after), after.fixed(other)])
        return lambda after: after.call(node, [after.fixed(other), inner(after)])

    def _has_stack(self, node: Node) -> bool:
        if node.id in self.stacked or any(
            leaf is node for leaf in self.leaves[self.made.first_step :]
        ):
            return True
        return any(node is output for output in self.body.outputs[len(self.made.init) :])

    def _stack(self, node: Node) -> Sum:
        """All steps' values of a node."""
        for i, leaf in enumerate(self.leaves[self.made.first_step :]):
            if leaf is node:
                return lambda after: after.made.xs[i]
        self.stacked.setdefault(node.id, node)
        return lambda after: after.stacks[node.id]

    def emit(self, graph: Graph, made: Loop) -> Results:
        """The loop without the sums, and these after it."""
        kept = [i for i in range(len(made.init)) if i not in self.sums]
        written = list(self.body.outputs[len(made.init) :])
        stacked = list(self.stacked.values())
        piece = Piece(self.body.name, self.body)
        for i, leaf in enumerate(self.leaves):
            stem = "h" if i < made.first_constant else "k" if i < made.first_step else "x"
            if i not in self.sums:
                piece.input(stem, leaf._tensor, leaf)
        ends = [*(self.body.outputs[i] for i in kept), *written, *stacked]
        answers: list[Node] = []
        if ends:
            piece.take(closure(self.body.nodes, ends, set(piece.mapped)))
            body = piece.finish([piece.mapped[node.id] for node in ends])
            init = tuple(made.init[i] for i in kept)
            answers = insert(graph, replace(made, init=init, body=body))
        behind = len(kept) + len(written)
        after = _After(graph, made, self.leaves)
        after.stacks = {n.id: a for n, a in zip(stacked, answers[behind:], strict=True)}
        results: list[Node | None] = [None] * len(self.body.outputs)
        for place, answer in zip(
            [*kept, *range(len(made.init), len(results))], answers[:behind], strict=True
        ):
            results[place] = answer
        for i, total in self.sums.items():
            found = total(after)
            results[i] = found if _is_zero(made.init[i]) else made.init[i] + found
        return results


@dataclass
class _After:
    """What sums are made of: the graph after the loop."""

    graph: Graph
    made: Loop
    leaves: list[Node]
    stacks: dict[int, Node] = field(default_factory=dict)
    known: dict[int, Node] = field(default_factory=dict)

    def fixed(self, node: Node) -> Node:
        """A value that is the same in all steps, computed outside."""
        if not self.known:
            self.known = {
                leaf.id: operand
                for leaf, operand in zip(self.leaves, self.made.operands, strict=True)
            }
        for part in closure(node.graph.nodes, [node], set(self.known)):
            operands = [self.known[i] for i in part.inputs]
            self.known[part.id] = self.graph.insert_like(part, operands)
        return self.known[node.id]

    def call(
        self, like: Node, operands: list[Node], attrs: dict[str, tuple[int, ...]] | None = None
    ) -> Node:
        """A node like one of the body."""
        return self.graph.insert(like.op, operands, like.slots, attrs or like.attrs)


_PASSED = ("add", "sub", "mul", "neg", "sum", "transpose", "reshape", "broadcast_to", "cast")
"""Ops through which a sum over steps passes."""


def _is_zero(node: Node) -> bool:
    """Whether a sum begins with nothing."""
    while "view" in node.op.traits:
        node = node.operands[0]
    return node.op.name == "constant" and not node.attrs["values"].array.any()
