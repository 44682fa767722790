"""What an extraction can be made of, and what every extraction contains.

Before a program is solved, most of an e-graph decides itself: choices that no good extraction uses
are dropped, classes that cost nothing are settled, and the classes that every extraction holds are
found. The last is the dominator problem on a graph of alternatives: a class always brings with it
what all of its choices bring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from ..graph.errors import InternalError


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to compute a class: what it costs by itself, and the classes it needs."""

    cost: float
    children: tuple[int, ...]


Classes = Sequence[Sequence[Choice]]

# How often a set of equations is swept before a weaker answer is good enough.
SWEEPS = 20


class Option(NamedTuple):
    """A choice that survived: its index in its class, and its children that are not free."""

    choice: int
    cost: float
    children: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The part of an e-graph that can matter.

    Attributes:
        classes: the e-graph as it was given.
        options: the classes in the order in which they are reached, each with its options, the
            cheapest first and the earlier of two equals first.
        free: classes that cost nothing, with the choice that makes them so. Whatever such a choice
            needs is free too, so it can neither add to a cost nor close a cycle.
    """

    classes: Classes
    options: dict[int, list[Option]]
    free: dict[int, int]


def prune(classes: Classes, roots: Sequence[int]) -> Pruned:
    """Keep what an optimal extraction may need.

    A choice goes when it needs itself, when it needs a class that cannot be computed, or when a
    choice no dearer needs no more: commuted twins leave this way.
    """
    for number, choices in enumerate(classes):
        for choice in choices:
            if not 0.0 <= choice.cost < math.inf:
                raise InternalError(f"a choice of class {number} costs {choice.cost}")
    founded = derivable(classes)
    for root in roots:
        if root not in founded:
            raise InternalError(f"class {root} cannot be computed: each of its choices is circular")
    free = derivable(classes, free=True)
    options: dict[int, list[Option]] = {}
    stack = list(reversed(roots))
    while stack:
        number = stack.pop()
        if number in options or number in free:
            continue
        kept = _options(number, classes[number], founded, free)
        options[number] = kept
        for option in reversed(kept):
            stack.extend(reversed(option.children))
    return Pruned(classes, options, free)


def derivable(classes: Classes, *, free: bool = False) -> dict[int, int]:
    """The classes that can be computed at all, with the choice by which each was first reached.

    With ``free``, only through choices of no cost. The choices given form no cycle.
    """
    users: list[list[tuple[int, int]]] = [[] for _ in classes]
    waiting: dict[tuple[int, int], int] = {}
    found: dict[int, int] = {}
    ready: list[int] = []
    for number, choices in enumerate(classes):
        for index, choice in enumerate(choices):
            if free and choice.cost > 0:
                continue
            if choice.children:
                waiting[number, index] = len(choice.children)
                for child in choice.children:
                    users[child].append((number, index))
            elif number not in found:
                found[number] = index
                ready.append(number)
    while ready:
        for user in users[ready.pop()]:
            waiting[user] -= 1
            if not waiting[user] and user[0] not in found:
                found[user[0]] = user[1]
                ready.append(user[0])
    return found


def _options(
    number: int, choices: Sequence[Choice], founded: Mapping[int, int], free: Mapping[int, int]
) -> list[Option]:
    """The choices of a class that no other one makes needless."""
    candidates = []
    for index, choice in enumerate(choices):
        children = []
        for child in choice.children:
            if child == number or child not in founded:
                break
            if child not in free:
                children.append(child)
        else:
            candidates.append(Option(index, choice.cost, tuple(children)))
    if len(candidates) == 1:
        return candidates
    candidates.sort(key=lambda option: (option.cost, len(option.children), option.choice))
    kept: list[Option] = []
    needs: list[frozenset[int]] = []
    for option in candidates:
        need = frozenset(option.children)
        if not any(other <= need for other in needs):
            kept.append(option)
            needs.append(need)
    return kept


def forced(options: Mapping[int, Sequence[Option]], roots: Sequence[int]) -> set[int]:
    """The classes that every extraction of the roots holds.

    must(c) is c itself and whatever all options of c bring, as bits. Classes that need one another
    are settled together.
    """
    bit: dict[int, int] = {}
    must: dict[int, int] = {}
    for group in _strongly_connected(options, roots):
        for number in group:
            bit[number] = 1 << len(bit)
        if len(group) == 1:
            number = group[0]
            must[number] = bit[number] | _brought(options[number], must)
        else:
            # Children first, as far as there is such an order.
            _settle_group(list(reversed(group)), options, bit, must)
    held = reduce(or_, (must[root] for root in roots if root in must), 0)
    digits = bin(held)[:1:-1]
    return {number for number, digit in zip(bit, digits, strict=False) if digit == "1"}


def _brought(options: Sequence[Option], must: Mapping[int, int]) -> int:
    """What all options bring."""
    return reduce(
        and_, [reduce(or_, [must[child] for child in option.children], 0) for option in options]
    )


def _settle_group(
    group: Sequence[int],
    options: Mapping[int, Sequence[Option]],
    bit: Mapping[int, int],
    must: dict[int, int],
) -> None:
    """Find must(c) for classes that need one another.

    From above, the greatest solution is reached: what a derivation holds contains every solution,
    by induction from its leaves. Where that takes too many sweeps, some are made from below: each
    is right as far as it got.
    """
    top = reduce(or_, (bit[number] for number in group))
    for number in group:
        for option in options[number]:
            top |= reduce(or_, [must.get(child, 0) for child in option.children], 0)
    for start in (top, 0):
        must.update({number: start | bit[number] for number in group})
        for _ in range(SWEEPS):
            changed = False
            for number in group:
                brought = bit[number] | _brought(options[number], must)
                if brought != must[number]:
                    must[number] = brought
                    changed = True
            if not changed:
                return


def _strongly_connected(
    options: Mapping[int, Sequence[Option]], roots: Sequence[int]
) -> Iterator[list[int]]:
    """Groups of classes that need one another, each after the groups it needs (Tarjan)."""
    number_of: dict[int, int] = {}
    low: dict[int, int] = {}
    settled: set[int] = set()
    pending: list[int] = []
    for root in roots:
        if root in number_of or root not in options:
            continue
        path: list[tuple[int, Iterator[int]]] = []
        entering: int | None = root
        while entering is not None or path:
            if entering is not None:
                number_of[entering] = low[entering] = len(number_of)
                pending.append(entering)
                below = dict.fromkeys(
                    child for option in options[entering] for child in option.children
                )
                path.append((entering, iter(below)))
                entering = None
            here, children = path[-1]
            for child in children:
                if child not in number_of:
                    entering = child
                    break
                if child not in settled:
                    low[here] = min(low[here], number_of[child])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[here])
                if low[here] == number_of[here]:
                    at = len(pending) - 1
                    while pending[at] != here:
                        at -= 1
                    group = pending[at:]
                    del pending[at:]
                    settled.update(group)
                    yield group
