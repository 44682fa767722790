"""The cheapest selection from an e-graph, with sharing, exactly.

An extraction picks one choice for every class in use, so that each choice finds its children in use
and nothing needs itself. A class is paid once however many use it, so choices that only pay together
are found: one producer that three slices share.

    >>> producer, single = Choice(6.0, (0,)), Choice(4.0, (0,))
    >>> slices = [[single, Choice(0.1, (4,))] for _ in range(3)]
    >>> found = extract([[Choice(0.0, ())], *slices, [producer]], roots=[1, 2, 3])
    >>> found.chosen, round(found.cost, 2), found.method
    ({1: 1, 4: 0, 0: 0, 2: 1, 3: 1}, 6.3, 'exact')

With the classes that every extraction holds set apart, the problem falls into small components, each
solved once however often it occurs. Cycles are rare, so they are forbidden as they appear: a cycle
in the joint answer merges the components that can avoid it, which are then solved again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..graph.errors import InternalError
from .component import Component, Tally, solve
from .dominators import Choice, Classes, Option, Pruned, forced, prune
from .greedy import candidates, greedy

__all__ = ["Choice", "Classes", "Extraction", "extract"]

# A cycle to avoid: classes, each with the positions of the options that continue the cycle.
Cut = tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Extraction:
    """A selection, and how it was found.

    Attributes:
        chosen: class to index of its choice, for the classes that the roots reach.
        cost: the sum over the chosen classes.
        exact: whether no selection is cheaper.
        solves: components solved: those neither decided at once nor equal to an earlier one.
        programs: integer programs among them.
        cuts: cycles that had to be forbidden.
        components: independent parts of the problem.
        largest: variables of the largest part that was neither alone nor reduced to nothing.
        method: "exact", "heuristic", or "input" where the selection is the one that was given.
    """

    chosen: dict[int, int]
    cost: float
    exact: bool
    solves: int
    programs: int
    cuts: int
    components: int
    largest: int
    method: str


def extract(
    classes: Classes,
    roots: Sequence[int],
    *,
    incumbent: Mapping[int, int] | None = None,
    seconds: float = 10.0,
) -> Extraction:
    """The cheapest selection that computes the roots.

    Arguments:
        classes: class number to its choices. Of two equal answers, one with earlier choices is
            preferred; the same input always gives the same answer.
        roots: the classes to compute.
        incumbent: a known selection; the result is never dearer.
        seconds: how long to look for the best. Then a good selection is returned, and says so.
    """
    deadline = time.perf_counter() + seconds
    given = None if incumbent is None else _given(classes, roots, incumbent)
    pruned = prune(classes, roots)
    held = forced(pruned.options, roots)
    solution = _Solution(pruned.options, held)
    picks, legal = solution.run(roots, deadline)
    tally = solution.tally
    exact = legal and tally.proved
    found = [picks] if legal else [greedy(pruned.options, held, favoured=picks)]
    if not exact:
        found += candidates(pruned.options, held, roots)
    method = "exact" if exact else "heuristic"
    selections = [(method, _chosen(pruned, entry, roots)) for entry in found]
    if given is not None:
        selections.append(("input", given))
    priced = [(_cost(classes, chosen), method, chosen) for method, chosen in selections]
    cost, method, chosen = min(priced, key=lambda entry: entry[0])
    return Extraction(
        chosen=chosen,
        cost=cost,
        exact=exact,
        solves=tally.solves,
        programs=tally.programs,
        cuts=len(solution.cuts),
        components=solution.components,
        largest=tally.largest,
        method="exact" if exact else method,
    )


def _cost(classes: Classes, chosen: Mapping[int, int]) -> float:
    # The exact sum: it does not depend on the order in which classes were reached.
    return math.fsum(classes[number][index].cost for number, index in chosen.items())


def _given(classes: Classes, roots: Sequence[int], incumbent: Mapping[int, int]) -> dict[int, int]:
    """The part of a given selection that the roots reach, checked."""
    chosen: dict[int, int] = {}
    stack = list(reversed(roots))
    while stack:
        number = stack.pop()
        if number in chosen:
            continue
        if number not in incumbent:
            raise InternalError(f"the given selection lacks class {number}")
        chosen[number] = incumbent[number]
        stack.extend(reversed(classes[number][incumbent[number]].children))
    below = {number: classes[number][index].children for number, index in chosen.items()}
    for cycle in _cycles(below, roots):
        raise InternalError(f"the given selection is circular: {cycle}")
    return chosen


def _chosen(pruned: Pruned, picks: Mapping[int, Option], roots: Sequence[int]) -> dict[int, int]:
    """Class to choice, in the order in which the roots reach the classes."""
    chosen: dict[int, int] = {}
    stack = list(reversed(roots))
    while stack:
        number = stack.pop()
        if number in chosen:
            continue
        if number in pruned.free:
            chosen[number] = pruned.free[number]
            children = pruned.classes[number][pruned.free[number]].children
        else:
            chosen[number] = picks[number].choice
            children = pruned.classes[number][picks[number].choice].children
        stack.extend(reversed(children))
    return chosen


def _cycles(below: Mapping[int, Sequence[int]], roots: Sequence[int]) -> Iterator[list[int]]:
    """Cycles of a selection: one for each edge by which a walk from the roots meets itself."""
    done: set[int] = set()
    for root in roots:
        if root in done or root not in below:
            continue
        path = {root: 0}
        stack = [(root, iter(below[root]))]
        while stack:
            here, children = stack[-1]
            for child in children:
                if child in path:
                    yield list(path)[path[child] :]
                elif child not in done and child in below:
                    path[child] = len(path)
                    stack.append((child, iter(below[child])))
                    break
            else:
                stack.pop()
                del path[here]
                done.add(here)


@dataclass
class _Solution:
    """Components, solved and merged until their joint answer has no cycle."""

    options: dict[int, list[Option]]
    held: set[int]
    tally: Tally = field(default_factory=Tally)
    cuts: dict[Cut, None] = field(default_factory=dict)
    components: int = 0
    greedy: dict[int, Option] | None = None
    memo: dict[Component, dict[int, int]] = field(default_factory=dict)
    # Union of classes into components: a class to another one of its component, or to itself.
    above: dict[int, int] = field(default_factory=dict)

    def run(self, roots: Sequence[int], deadline: float) -> tuple[dict[int, Option], bool]:
        """The picks of the classes in use, and whether they are free of cycles.

        They are, unless time ran out. Components for which there was no time are filled by the
        greedy selection.
        """
        self.above = {number: number for number in self.options}
        for number, options in self.options.items():
            for option in options:
                for child in option.children:
                    if child not in self.held:
                        self._join(number, child)
        groups = self._groups(list(self.options))
        self.components = len(groups)
        picks: dict[int, Option] = {}
        while groups:
            for group in groups.values():
                for number in group:
                    picks.pop(number, None)
                found = self._solve(group, deadline)
                if found is None:
                    self.tally.proved = False
                    found = self._fill(group)
                picks.update(found)
            below = {number: option.children for number, option in picks.items()}
            touched: list[int] = []
            known = len(self.cuts)
            # Held classes that the walk from the roots missed may be on cycles of their own.
            for cycle in _cycles(below, [*roots, *picks]):
                cut = self._cut(cycle)
                self.cuts[cut] = None
                for number, _ in cut:
                    self._join(cut[0][0], number)
                touched.append(cut[0][0])
            # A cycle that is already forbidden comes back only where a component was filled.
            if touched and (len(self.cuts) == known or time.perf_counter() >= deadline):
                return picks, False
            again = {self._find(number) for number in touched}
            groups = self._groups([n for n in self.options if self._find(n) in again])
        return picks, True

    def _find(self, number: int) -> int:
        above = self.above
        while above[number] != number:
            above[number] = number = above[above[number]]
        return number

    def _join(self, one: int, other: int) -> None:
        self.above[self._find(other)] = self._find(one)

    def _groups(self, numbers: Sequence[int]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for number in numbers:
            groups.setdefault(self._find(number), []).append(number)
        return groups

    def _cut(self, cycle: Sequence[int]) -> Cut:
        """What avoids a cycle: the classes on it that have a way out."""
        cut: list[tuple[int, tuple[int, ...]]] = []
        for number, follower in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            options = self.options[number]
            positions = tuple(at for at, o in enumerate(options) if follower in o.children)
            if len(positions) < len(options) or number not in self.held:
                cut.append((number, positions))
        if not cut:
            raise InternalError(f"every selection has the cycle {list(cycle)}")
        return tuple(cut)

    def _solve(self, group: list[int], deadline: float) -> dict[int, Option] | None:
        """The picks of one component."""
        if len(group) == 1 and not self.cuts:
            return {group[0]: self.options[group[0]][0]}
        order = self._order(group)
        place = {number: at for at, number in enumerate(order)}
        held = self.held
        component = Component(
            options=tuple(
                tuple(
                    (option.cost, tuple([place[n] for n in option.children if n in place]))
                    for option in self.options[number]
                )
                for number in order
            ),
            held=sum(1 for number in order if number in held),
            cuts=tuple(
                tuple((place[number], positions) for number, positions in cut)
                for cut in self.cuts
                if cut[0][0] in place
            ),
        )
        found = self.memo.get(component)
        if found is None:
            if time.perf_counter() < deadline:
                found = solve(component, deadline, self.tally)
            if found is None:
                return None
            self.memo[component] = found
        return {order[at]: self.options[order[at]][position] for at, position in found.items()}

    def _fill(self, group: list[int]) -> dict[int, Option]:
        """The greedy picks of one component."""
        if self.greedy is None:
            self.greedy = greedy(self.options, self.held)
        found: dict[int, Option] = {}
        stack = [number for number in group if number in self.held]
        while stack:
            number = stack.pop()
            if number not in found:
                found[number] = self.greedy[number]
                stack += [child for child in found[number].children if child not in self.held]
        return found

    def _order(self, group: list[int]) -> list[int]:
        """The classes of a component as they are found from those held: equal for equal layers."""
        held = [number for number in group if number in self.held]
        held.sort(key=lambda number: [(o.cost, len(o.children)) for o in self.options[number]])
        order = dict.fromkeys(held)
        queue = list(held)
        for number in queue:
            for option in self.options[number]:
                for child in option.children:
                    if child not in order and child not in self.held:
                        order[child] = None
                        queue.append(child)
        return list(order)
