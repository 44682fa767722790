"""The bridge to egglog: constructors, rules as queries, facts in, matches out.

egglog keeps the e-graph (hash-consing, congruence) and finds the matches. Every op is a constructor whose attributes are one of its
arguments, as text, so that only equal things unify:

    (constructor transpose.x (String T) T)
    (set (node 7) (transpose.x "perm=[1, 0]" (node 3)))

A rule's left side becomes a query that fills a table with what it found; guards and right sides are evaluated where types are known (see
``saturate``), and come back as new facts. So a whole run is one egglog program, which ``Engine.program`` keeps and any egglog replays.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from ..graph.forks import native_call
from ..graph.op import Op
from .declare import Rule
from .library import LIBRARY, EngineError, Inherited
from .pattern import Number, Pattern, Term, Variable


def bindings() -> Any:
    """Egglog's extension module."""
    return LIBRARY.module()


class _Parser(threading.local):
    """An e-graph that only parses: one for each thread, as egglog lets no other one use it."""

    def __init__(self) -> None:
        self.held = Inherited()


@cache
def _parser() -> _Parser:
    return _Parser()


@lru_cache(maxsize=20_000)
def _parsed(line: str) -> tuple[Any, ...]:
    """A command, parsed. Lines come one by one: a parsed command keeps the whole text it was parsed from."""
    try:
        return tuple(_parser().held.graph.parse_program(line))
    except (bindings().EggSmolError, SyntaxError) as error:
        raise EngineError(f"egglog cannot read {line}: {error}") from None


LIBRARY.forget += [_parser.cache_clear, _parsed.cache_clear]


# --------------------------------------------------------------------------- rules as queries


@dataclass(frozen=True)
class Query:
    """A rule's left side as egglog asks for it.

    Attributes:
        table: the relation that receives the matches, shared by queries with the same number of columns.
        terms: the calls of the pattern, root first; column i holds the class of ``terms[i]``.
        variables: the variables that stand for values; their classes follow.
        numbers: the constants of the pattern; their classes follow.
        texts: for each later column (attributes as text), which term has them.
        operands: for each term the columns in which its operands stand.
        needs: what must be in an e-graph before there can be a match: (constructor, place, constructor of the
            operand there). A place of -1 is any.
    """

    rule: Rule
    table: str
    terms: tuple[Term, ...]
    variables: tuple[str, ...]
    numbers: tuple[Number, ...]
    texts: tuple[int, ...]
    facts: str
    columns: str
    operands: tuple[tuple[int, ...], ...]
    needs: frozenset[tuple[str, int, str]]

    @property
    def classes(self) -> int:
        """The columns that hold classes."""
        return len(self.terms) + len(self.variables) + len(self.numbers)


def constructor(op: Op, slots: Sequence[str]) -> str:
    """The name of the constructor of an op with these operands."""
    return ".".join((op.name, *slots))


_QUERIES: WeakKeyDictionary[Rule, Query] = WeakKeyDictionary()


def query_of(rule: Rule) -> Query:
    """A rule's left side, compiled; made once."""
    found = _QUERIES.get(rule)
    if found is None:
        found = _QUERIES[rule] = _make_query(rule)
    return found


def _make_query(rule: Rule) -> Query:
    terms: list[Term] = []
    variables: list[str] = []
    numbers: list[Number] = []
    places: list[list[tuple[str, int]]] = []
    needs: set[tuple[str, int, str]] = set()
    constants = rule.when.constants if rule.when is not None else frozenset()
    known = {Variable(name) for name in constants}

    def visit(term: Term) -> int:
        at = len(terms)
        terms.append(term)
        places.append([])
        name = constructor(term.op, term.slots)
        any_place = "commutative" in term.op.traits
        needs.add((name, -1, ""))
        for index, operand in enumerate(term.operands):
            where = -1 if any_place else index
            if isinstance(operand, Term):
                needs.add((name, where, constructor(operand.op, operand.slots)))
            elif isinstance(operand, Number) or operand in known:
                needs.add((name, where, "constant"))
            places[at].append(place(operand))
        return at

    def place(operand: Pattern) -> tuple[str, int]:
        if isinstance(operand, Term):
            return "t", visit(operand)
        if isinstance(operand, Number):
            numbers.append(operand)
            return "n", len(numbers) - 1
        if isinstance(operand, Variable):
            if operand.name not in variables:
                variables.append(operand.name)
            return "v", variables.index(operand.name)
        raise EngineError(f"{operand!r} cannot stand on the left of rule '{rule.name}'")

    visit(rule.pattern)
    first = {"t": 0, "v": len(terms), "n": len(terms) + len(variables)}
    texts = tuple(i for i, term in enumerate(terms) if term.op.attributes)
    facts = []
    for i, term in enumerate(terms):
        parts = [f"a{i}"] * bool(term.op.attributes) + [f"{kind}{k}" for kind, k in places[i]]
        facts.append(f"(= t{i} ({constructor(term.op, term.slots)} {' '.join(parts)}))")
    facts += [f"(= n{i} (constant c{i}))" for i in range(len(numbers))]
    facts += [f"(= v{i} (constant k{i}))" for i, name in enumerate(variables) if name in constants]
    columns = [
        *(f"t{i}" for i in range(len(terms))),
        *(f"v{i}" for i in range(len(variables))),
        *(f"n{i}" for i in range(len(numbers))),
        *(f"a{i}" for i in texts),
    ]
    return Query(
        rule,
        f"found{len(columns) - len(texts)}.{len(texts)}",
        tuple(terms),
        tuple(variables),
        tuple(numbers),
        texts,
        " ".join(facts),
        " ".join(columns),
        tuple(tuple(first[kind] + k for kind, k in row) for row in places),
        frozenset(needs),
    )


# --------------------------------------------------------------------------- the engine


class Engine:
    """One egglog e-graph, and the program that made it.

    A rule is declared when the e-graph has what its left side asks for, operand by operand: a block needs some dozens
    of the many hundred there are, and each costs half a millisecond.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.rules = rules
        self.program: list[str] = []
        self._held = Inherited()
        self._graph = self._held.graph
        self._declared: set[str] = {"constant"}
        self._tables: set[str] = set()
        self._waiting = dict(enumerate(rules))
        self._queries: dict[int, Query] = {}
        self.run(
            (
                "(sort T)",
                "(function node (i64) T :no-merge)",
                "(constructor value (i64 String) T)",
                "(constructor constant (String) T)",
                "(ruleset match)",
                "(ruleset forget)",
            )
        )

    def declare(self, op: Op, slots: tuple[str, ...]) -> list[str]:
        """The commands that make a constructor known, if it is not."""
        name = constructor(op, slots)
        if name in self._declared:
            return []
        self._declared.add(name)
        sorts = ["String"] * bool(op.attributes) + ["T"] * len(slots)
        return [f"(constructor {name} ({' '.join(sorts)}) T)"]

    def admit(self, present: Set[tuple[str, int, str]]) -> bool:
        """Declare the rules that can have matches, given what the e-graph has; False if there are no new ones."""
        lines: list[str] = []
        for index, rule in list(self._waiting.items()):
            query = query_of(rule)
            if not query.needs <= present:
                continue
            del self._waiting[index]
            self._queries[index] = query
            if query.table not in self._tables:
                self._tables.add(query.table)
                sorts = ["T"] * query.classes + ["String"] * len(query.texts)
                lines.append(f"(relation {query.table} (i64 {' '.join(sorts)}))")
                row = f"({query.table} i {' '.join(f'c{k}' for k in range(len(sorts)))})"
                lines.append(f"(rule ({row}) ((delete {row})) :ruleset forget)")
            found = f"({query.table} {index} {query.columns})"
            lines.append(f"(rule ({query.facts}) ({found}) :ruleset match)")
        self.run(lines)
        return bool(lines)

    def run(self, lines: Iterable[str]) -> None:
        """Run commands."""
        commands: list[Any] = []
        for line in lines:
            self.program.append(line)
            commands += _parsed(line)
        try:
            with native_call():
                self._graph.run_program(*commands)
        except bindings().EggSmolError as error:
            raise EngineError(f"egglog refuses a command: {error}") from None

    def search(
        self, stopped: Collection[str] = ()
    ) -> tuple[list[int], list[tuple[Query, list[tuple[Any, ...]]]]]:
        """Find the new matches of all rules declared, but for those stopped.

        Returns the class of every node, named by its first node, and the rows that each query found, in the order of the
        rules. A row holds nodes (class names) in the columns of classes, and texts.
        """
        self.run(["(run match 1)"])
        graph = self._graph
        with native_call():
            functions = graph.freeze().functions
        self.run(["(run forget 1)"])
        rows = sorted(
            [(graph.value_to_i64(row.inputs[0]), row.output) for row in functions["node"].rows]
        )
        names: dict[Any, int] = {}
        classes = [names.setdefault(value, index) for index, value in rows]
        texts: dict[Any, str] = {}
        indices: dict[Any, int] = {}
        counts = {
            index: query.classes
            for index, query in self._queries.items()
            if query.rule.name not in stopped
        }
        found: dict[int, list[tuple[Any, ...]]] = {}
        for table in sorted(self._tables):
            for row in functions[table].rows:
                head, *cells = row.inputs
                index = indices.get(head)
                if index is None:
                    index = indices[head] = graph.value_to_i64(head)
                count = counts.get(index)
                if count is None:
                    continue
                decoded: list[Any] = [names[value] for value in cells[:count]]
                for value in cells[count:]:
                    text = texts.get(value)
                    if text is None:
                        text = texts[value] = graph.value_to_string(value)
                    decoded.append(text)
                found.setdefault(index, []).append(tuple(decoded))
        return classes, [(self._queries[i], sorted(rows)) for i, rows in sorted(found.items())]
