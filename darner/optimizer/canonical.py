"""The canonical form of a graph: what is cheaper in every case, done once and cheaply.

Every node is made again, operands first. A call that was made before is taken again, a call of constants is computed, operands of
commutative ops are put in order, and rules that can only gain (``simplify=True``) are applied until none matches. Nodes
that nothing needs are left out; leaves stay, used or not, since callers know them by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..graph.errors import DarnerError
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.op import OPS, Op
from ..graph.text.attributes import attribute_text
from ..graph.types import Type
from .declare import RULES, Mode, Rule
from .fold import fold
from .match import RuleError, Value, build, match_node, node_value
from .pattern import Number, Term

DEEPEST = 100
"""Rewrites of one node, one after another; more means that rules undo each other."""


def canonicalise(
    graph: Graph, mode: Mode = "train", *, before_gradient: bool = False
) -> tuple[Graph, Counter[str]]:
    """The canonical form, and how often each simplification was made.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (3,))
    >>> g.set_outputs([-(-x) + x * 1.0, x + x])
    >>> result, counts = canonicalise(g)
    >>> print(result)
    graph @graph {
      %0 = input(name="x") : f32[3]
      %1 = add(%0, %0) : f32[3]
      return %1, %1
    }
    >>> dict(counts)
    {'neg of neg': 1, 'x * 1': 1, 'common subexpressions': 1}
    """
    form = _Form(graph, mode, before_gradient)
    for node in graph.nodes:
        if form.live[node.id]:
            form.take(node)
    return form.finish(), form.counts


class _Form:
    """A canonical graph in the making."""

    def __init__(self, source: Graph, mode: Mode, before_gradient: bool) -> None:
        self.source = source
        self.graph = Graph(source.name)
        self.counts: Counter[str] = Counter()
        self.live = needed(source)
        self._mapped: dict[int, Node] = {}
        self._made: dict[tuple[Any, ...], Node] = {}
        self._rules: dict[str, list[tuple[frozenset[str], Rule]]] = {}
        for rule in RULES.values():
            if rule.simplify and rule.runs(mode, before_gradient):
                rows = self._rules.setdefault(rule.pattern.op.name, [])
                rows.append((_ops_below(rule.pattern), rule))
        self._like: Node | None = None

    def take(self, node: Node) -> None:
        """Make a node of the source again."""
        if node.op.name in LEAVES:
            self._mapped[node.id] = self.graph.insert_like(node, [])
            return
        operands = [self._mapped[i] for i in node.inputs]
        self._like = node
        made = self._put(node.op, node.slots, node.attrs, operands, type_=node.type)
        if node.label is not None and made.label is None and made.op is node.op:
            self.graph.relabel(made, node.label)
        self._mapped[node.id] = made

    def _put(
        self,
        op: Op,
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        operands: Sequence[Node],
        depth: int = 0,
        type_: Type | None = None,
    ) -> Node:
        """The simplest node that computes a call; ``type_`` is its type where that is known."""
        if "commutative" in op.traits:
            operands = sorted(operands, key=lambda n: (n.op.name == "constant", n.id))
        key = (op.name, slots, attribute_text(op, attrs), *[n.id for n in operands])
        if op.name == "constant":
            key += (attrs["values"],)
        known = None if has_own_derivative(attrs) else self._made.get(key)
        if known is not None:
            if op.name != "constant":
                self.counts["common subexpressions"] += 1
            return known
        folded = self._fold(op, slots, attrs, operands)
        if folded is not None:
            self.counts["constants folded"] += 1
            made = self._put(OPS["constant"], (), {"values": folded}, [], depth)
        else:
            made = self._made[key] = self._insert(op, slots, attrs, operands, type_)
            made = self._simplified(made, depth)
        self._made[key] = made
        return made

    def _fold(
        self, op: Op, slots: tuple[str, ...], attrs: dict[str, Any], operands: Sequence[Node]
    ) -> Any:
        if not operands or any(n.op.name != "constant" for n in operands):
            return None
        type_, settled = op.infer_type(tuple(n.type for n in operands), slots, attrs)
        return fold(op, slots, settled, [n.attrs["values"] for n in operands], type_)

    def _insert(
        self,
        op: Op,
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        operands: Sequence[Node],
        type_: Type | None,
    ) -> Node:
        like = self._like
        return self.graph.insert(
            op,
            operands,
            slots,
            attrs,
            label=like.label if like is not None and like.op is op else None,
            scope=like.scope if like is not None else None,
            source=like.source if like is not None else None,
            type=type_,
        )

    def _simplified(self, node: Node, depth: int) -> Node:
        """What the rules make of a node; the node itself when none applies."""
        rules = self._rules.get(node.op.name)
        if rules is None:
            return node
        below = {operand.op.name for operand in node.operands}
        for wanted, rule in rules:
            if not wanted <= below:
                continue
            for match in match_node(rule.pattern, node):
                result = rule.produce(match)
                if result is None:
                    continue
                if depth >= DEEPEST:
                    raise RuleError(
                        f"rule '{rule.name}' is applied for ever: does another undo it?"
                    )
                made = self._build(rule, result, match, depth)
                if made is not node:
                    self.counts[rule.name] += 1
                    return made
        return node

    def _build(self, rule: Rule, result: Any, match: Any, depth: int) -> Node:
        def add(
            op: Op, slots: tuple[str, ...], attrs: dict[str, Any], operands: Sequence[Value]
        ) -> Value:
            return node_value(
                self._put(op, slots, attrs, [value.handle for value in operands], depth + 1)
            )

        try:
            made: Node = build(result, match, add).handle
        except RuleError:
            raise
        except DarnerError as error:
            raise RuleError(
                f"rule '{rule.name}' cannot be built on {match.root.handle!r}: {error}"
            ) from error
        if made.type != match.root.type:
            raise RuleError(
                f"rule '{rule.name}' makes {made.type} of {match.root.type}: its sides differ"
            )
        return made

    def finish(self) -> Graph:
        """The graph, with what the rules made useless left out."""
        self.graph.set_outputs([self._mapped[node.id] for node in self.source.outputs])
        for leaf, value in self.source.updates.items():
            self.graph.set_update(self._mapped[leaf.id], self._mapped[value.id])
        self.graph.inherit(self.source)
        result = without_useless(self.graph)
        dead = sum(not live for live in self.live)
        if dead:
            self.counts["dead nodes"] = dead
        return result


def has_own_derivative(attrs: dict[str, Any]) -> bool:
    """Whether a call brings its derivative: it need not be linear, so two equal calls are not one."""
    return attrs.get("vjp_body") is not None or attrs.get("jvp_body") is not None


def _ops_below(pattern: Term) -> frozenset[str]:
    """The ops that a pattern wants as operands of its root."""
    found = set()
    for operand in pattern.operands:
        if isinstance(operand, Term):
            found.add(operand.op.name)
        elif isinstance(operand, Number):
            found.add("constant")
    return frozenset(found)


def needed(graph: Graph) -> list[bool]:
    """For each node, whether an output or an update needs it, or it is a named leaf."""
    live = [node.op.name in LEAVES for node in graph.nodes]
    for node in (*graph.outputs, *graph.updates.values()):
        live[node.id] = True
    for node in graph.reverse_topo():
        if live[node.id]:
            for i in node.inputs:
                live[i] = True
    return live


def without_useless(graph: Graph) -> Graph:
    """The graph itself when every node is needed, else a copy without the rest."""
    return graph if all(needed(graph)) else graph.toposort()
