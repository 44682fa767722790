"""Saturation: rules are applied to all equal forms at once until nothing new is found.

The e-graph lives in egglog; here are its e-nodes with their types, in the order in which they were made. One round asks egglog for the matches of
every left side, evaluates guards and right sides with the types at hand, and hands the new terms and equalities back. The
type of a right side must be that of its left side: anything else is a mistake in the rule, and an error.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..graph.errors import DarnerError
from ..graph.op import OPS, Op
from ..graph.text.attributes import attribute_text, quoted
from ..graph.types import Type
from .canonical import has_own_derivative
from .engine import Engine, Query, constructor
from .fold import fold
from .match import Match, RuleError, Value, build, fits_attributes, fits_number


@dataclass(frozen=True)
class Budget:
    """How far a saturation may go. Reaching a limit is reported; what was found until then is used.

    Attributes:
        nodes: e-nodes in one e-graph.
        iterations: rounds of all rules.
        per_rule: how often one rule may find something new in one e-graph, beside once for every node it began with. What
            feeds itself (sums of products of sums) is stopped there, and the others go on.
        seconds: of saturation, for one e-graph.
        extract_seconds: of the search for the cheapest form, for one e-graph.
    """

    nodes: int = 20_000
    iterations: int = 30
    per_rule: int = 50
    seconds: float = 10.0
    extract_seconds: float = 5.0


USUAL = Budget()
"""What every model of the test suite stays far below."""


@dataclass(slots=True)
class ENode:
    """One way to compute a value: an op on classes. Classes are named by their first e-node.

    Attributes:
        rule: the rule that made it; None for what the graph had.
        origin: the node of the graph that it stands for, or whose match made it.
        credit: the fusion that it is the result of, by the rule that made it or by one whose result that rule changed.
    """

    op: Op | None
    slots: tuple[str, ...]
    attrs: dict[str, Any]
    text: str
    children: tuple[int, ...]
    type: Type
    rule: str | None
    origin: int
    credit: str | None = None


@dataclass
class Tally:
    """What happened to one rule."""

    matches: int = 0
    applied: int = 0
    seconds: float = 0.0


Group: TypeAlias = Callable[["EGraph"], None]
Credit: TypeAlias = str | tuple[int, ...] | None


@dataclass
class EGraph:
    """The e-nodes of one block, their classes, and the commands that made them.

    Attributes:
        nodes: every e-node, in the order they were made; the index is its name in egglog.
        classes: for each e-node the first e-node of its class.
        refused: (rule, origin, guard) where a fusion's left side matched and its guard did not hold.
    """

    engine: Engine
    nodes: list[ENode] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)
    joined: set[tuple[str, int, int]] = field(default_factory=set)
    iterations: int = 0
    limit: str | None = None
    stopped: dict[str, int] = field(default_factory=dict)
    """Rules that were stopped, and after how many finds."""

    _most: int = 0
    _fused: dict[tuple[int, str], str] = field(default_factory=dict)
    _index: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _values: dict[int, Value] = field(default_factory=dict)
    _pending: list[str] = field(default_factory=list)
    _attrs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _seen: dict[str, set[tuple[Any, ...]]] = field(default_factory=dict)
    _rule: str | None = None
    _origin: int = -1

    # ------------------------------------------------------------- what goes in

    def external(
        self,
        type_: Type,
        leaf: str | None,
        text: str,
        origin: int,
        layout: tuple[int, int] | None = None,
    ) -> int:
        """A value from outside: a leaf of the graph, or what another block computes."""
        index = len(self.nodes)
        self.nodes.append(ENode(None, (), {}, text, (), type_, None, origin))
        self.classes.append(index)
        self._pending.append(f"(set (node {index}) (value {index} {quoted(text)}))")
        self._values[index] = Value(index, type_, leaf, None, layout)
        return index

    def original(
        self,
        op: Op,
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        children: Sequence[int],
        type_: Type,
        origin: int,
    ) -> int:
        """A node of the graph."""
        self._origin = origin
        alone = f" #{origin}" if has_own_derivative(attrs) else ""
        index, _ = self._put(op, slots, attrs, tuple(children), type_, alone)
        return index

    def _put(
        self,
        op: Op,
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        kids: tuple[int, ...],
        type_: Type,
        alone: str = "",
    ) -> tuple[int, bool]:
        """The e-node of a call, and whether it is new; ``alone`` keeps it apart from equal ones."""
        text = attribute_text(op, attrs) + alone
        children = tuple([self.classes[kid] for kid in kids])
        key = (op.name, slots, text, children)
        known = self._index.get(key)
        if known is not None:
            return known, False
        index = len(self.nodes)
        self.nodes.append(ENode(op, slots, attrs, text, kids, type_, self._rule, self._origin))
        self.classes.append(index)
        self._index[key] = index
        self._attrs[op.name, text] = attrs
        constant = attrs["values"] if op.name == "constant" else None
        self._values[index] = Value(index, type_, "constant" if constant else None, constant)
        self._pending += self.engine.declare(op, slots)
        parts = [quoted(text)] if op.attributes else []
        parts += [f"(node {kid})" for kid in kids]
        name = constructor(op, slots)
        self._pending.append(f"(set (node {index}) ({' '.join((name, *parts))}))")
        if "commutative" in op.traits and kids[0] != kids[1]:
            self._pending.append(f"(union (node {index}) ({' '.join((name, *parts[::-1]))}))")
        return index, True

    # ------------------------------------------------------------- what rules do

    def value(self, handle: int) -> Value:
        """A class as rules see it."""
        return self._values[self.classes[handle]]

    def leaf(self, handle: int) -> str | None:
        """The kind of leaf that an e-node is."""
        return self._values[handle].leaf

    def add(
        self, op: Op, slots: tuple[str, ...], attrs: dict[str, Any], operands: Sequence[Value]
    ) -> Value:
        """A call that a rule makes; of constants, it is computed at once."""
        types = tuple([value.type for value in operands])
        type_, settled = op.infer_type(types, slots, attrs)
        constants = [value.constant for value in operands]
        folded = fold(op, slots, settled, constants, type_)
        if folded is not None:
            op, slots, settled, operands = OPS["constant"], (), {"values": folded}, []
        kids = tuple([value.handle for value in operands])
        index, _ = self._put(op, slots, settled, kids, type_)
        return self.value(index)

    def unite(self, a: int, b: int) -> bool:
        """Two e-nodes are equal; False when that was known."""
        if self.classes[a] == self.classes[b]:
            return False
        if self.nodes[a].type != self.nodes[b].type:
            raise RuleError(
                f"rule '{self._rule}' makes {self.nodes[b].type} of {self.nodes[a].type}: "
                f"its sides differ ({self.describe(a)} and {self.describe(b)})"
            )
        self._pending.append(f"(union (node {a}) (node {b}))")
        return True

    def count(self, name: str) -> None:
        """Note that a rule found something, for rules that are not rows of the table."""
        tally = self.tallies.setdefault(name, Tally())
        tally.matches += 1
        tally.applied += 1

    def describe(self, index: int) -> str:
        """An e-node as a call, for messages."""
        node = self.nodes[index]
        kids = ", ".join(str(self.nodes[kid].type) for kid in node.children)
        name = node.op.name if node.op is not None else node.text
        return f"{name}({kids})"

    def apply(self, name: str, root: int, make: Callable[[], Value], credit: Credit = None) -> bool:
        """Add what ``make`` builds and make it equal to ``root``; True when that is news.

        ``credit`` is the fusion that the result counts as, or the classes that it was matched on: then it counts as the
        fusion that made one of the same op there.
        """
        self._rule, self._origin = name, self.nodes[root].origin
        before = len(self.nodes)
        try:
            made = make()
            self._give_credit(made.handle, before, credit)
            news = self.unite(root, made.handle)
        except RuleError:
            raise
        except DarnerError as error:
            raise RuleError(
                f"rule '{name}' cannot be built on {self.describe(root)}: {error}"
            ) from error
        finally:
            self._rule, self._origin = None, -1
        return news or len(self.nodes) > before

    def _give_credit(self, index: int, before: int, credit: Credit) -> None:
        """Say which fusion a rule's result is (or what the result is a view of)."""
        while index >= before:
            node = self.nodes[index]
            if node.op is None or "view" not in node.op.traits or not node.children:
                break
            index = node.children[0]
        if index < before or node.op is None:
            return
        if isinstance(credit, tuple):
            labels = (self._fused.get((name, node.op.name)) for name in credit)
            credit = next((label for label in labels if label is not None), None)
        node.credit = credit

    # ------------------------------------------------------------- saturation

    def saturate(self, budget: Budget, groups: Sequence[Group] = ()) -> None:
        """Apply all rules until nothing new is found or a limit is reached."""
        deadline = time.perf_counter() + budget.seconds
        self._most = budget.per_rule + len(self.nodes)
        self._flush()
        while True:
            found = self._refresh()
            # What was found equal may be what a rule has waited for.
            if time.perf_counter() < deadline and self.engine.admit(self._present()):
                found += self._refresh()
            if time.perf_counter() > deadline:
                self.limit = f"{budget.seconds} seconds"
                return
            if self.iterations >= budget.iterations:
                self.limit = f"{budget.iterations} iterations"
                return
            self.iterations += 1
            for query, rows in found:
                self._apply_rows(query, rows, budget, deadline)
                if self.limit is not None:
                    self._flush()
                    self._refresh()
                    return
            for group in groups:
                group(self)
            if not self._pending:
                return
            self._flush()

    def _flush(self) -> None:
        lines, self._pending = self._pending, []
        self.engine.run(lines)

    def _present(self) -> set[tuple[str, int, str]]:
        """Which constructors there are, and which as operands of which: what rules wait for."""
        names: dict[int, dict[str, None]] = {}
        for i, node in enumerate(self.nodes):
            if node.op is not None:
                members = names.setdefault(self.classes[i], {})
                members[constructor(node.op, node.slots)] = None
        present: set[tuple[str, int, str]] = set()
        for node in self.nodes:
            if node.op is None:
                continue
            name = constructor(node.op, node.slots)
            present.add((name, -1, ""))
            any_place = "commutative" in node.op.traits
            for index, kid in enumerate(node.children):
                where = -1 if any_place else index
                for child in names.get(self.classes[kid], ()):
                    present.add((name, where, child))
        return present

    def _refresh(self) -> list[tuple[Query, list[tuple[Any, ...]]]]:
        """Take over the classes, and make one view of each."""
        self.classes, found = self.engine.search(self.stopped)
        index: dict[tuple[Any, ...], int] = {}
        values: dict[int, Value] = {}
        self._fused = {}
        for i, node in enumerate(self.nodes):
            name = self.classes[i]
            if node.op is not None:
                if node.credit is not None:
                    self._fused.setdefault((name, node.op.name), node.credit)
                children = tuple([self.classes[kid] for kid in node.children])
                index.setdefault((node.op.name, node.slots, node.text, children), i)
            own = self._values[i]
            first = values.get(name)
            if first is None:
                values[name] = Value(name, node.type, own.leaf, own.constant, own.layout)
            else:
                if first.type != node.type:
                    raise RuleError(
                        f"{self.describe(name)} and {self.describe(i)} were found equal, "
                        f"but are {first.type} and {node.type}"
                    )
                if first.leaf is None and own.leaf is not None:
                    values[name] = Value(name, node.type, own.leaf, own.constant, own.layout)
        self._index = index
        for i, name in enumerate(self.classes):
            if name == i:
                self._values[i] = values[i]
        return found

    def _apply_rows(
        self, query: Query, rows: Iterable[tuple[Any, ...]], budget: Budget, deadline: float
    ) -> None:
        """Apply a rule wherever it was found, until a limit is reached."""
        start = now = time.perf_counter()
        rule = query.rule
        tally = self.tallies.setdefault(rule.name, Tally())
        seen = self._seen.setdefault(rule.name, set())
        for row in rows:
            if row in seen:
                continue
            if tally.applied >= self._most:
                self.stopped[rule.name] = tally.applied
                break
            now = time.perf_counter()
            if len(self.nodes) > budget.nodes:
                self.limit = f"{budget.nodes} e-nodes"
                break
            if now > deadline:
                self.limit = f"{budget.seconds} seconds"
                break
            seen.add(row)
            match = self._match(query, row)
            if match is None:
                continue
            tally.matches += 1
            result = rule.produce(match)
            if result is None:
                guard = rule.when
                if rule.fusion is not None and guard is not None and not guard(match):
                    self.refused[rule.name, self.nodes[row[0]].origin] = repr(guard)
                continue
            credit: Credit = rule.fusion or row[: len(query.terms)]
            if self.apply(rule.name, row[0], lambda: build(result, match, self.add), credit):  # noqa: B023
                tally.applied += 1
        tally.seconds += time.perf_counter() - start

    def _match(self, query: Query, row: tuple[Any, ...]) -> Match | None:
        """A row as variables bound to what they stand for, or None where attributes or numbers do not fit."""
        terms = len(query.terms)
        first = terms + len(query.variables)
        for i, number in enumerate(query.numbers):
            if not fits_number(number, self.value(row[first + i])):
                return None
        found: dict[str, Any] = {
            name: self.value(row[terms + i]) for i, name in enumerate(query.variables)
        }
        texts = first + len(query.numbers)
        for i, which in enumerate(query.texts):
            term = query.terms[which]
            attrs = self._attrs[term.op.name, row[texts + i]]
            types = [self.value(row[column]).type for column in query.operands[which]]
            if not fits_attributes(term, attrs, types, found):
                return None
        return Match(self.value(row[0]), found)

    # ------------------------------------------------------------- what comes out

    def members(self) -> Mapping[int, list[int]]:
        """The e-nodes of each class, in the order they were made, equal ones once."""
        result: dict[int, list[int]] = {}
        keys: set[tuple[Any, ...]] = set()
        for i, node in enumerate(self.nodes):
            name = self.classes[i]
            members = result.setdefault(name, [])
            if node.op is not None:
                children = tuple([self.classes[kid] for kid in node.children])
                key = (node.op.name, node.slots, node.text, children)
                if key in keys:
                    continue
                keys.add(key)
            members.append(i)
        return result

    def applied(self) -> Counter[str]:
        """How often each rule found something new."""
        return Counter(
            {name: tally.applied for name, tally in self.tallies.items() if tally.applied}
        )
