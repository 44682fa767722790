"""Good selections at once, for when there is no time for the best one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence, Set

from .dominators import Option

_ROUNDS = 4

Options = Mapping[int, Sequence[Option]]


def greedy(
    options: Options, held: Set[int], favoured: Mapping[int, Option] | None = None
) -> dict[int, Option]:
    """Every class takes the option that is cheapest with all it needs; held classes count as paid.

    With ``favoured``, these options are taken wherever they close no cycle.
    """
    if favoured is None:
        return _settle(options, {number: float(number not in held) for number in options})
    freed = {
        number: [
            option._replace(cost=0.0) if option == favoured.get(number) else option
            for option in entries
        ]
        for number, entries in options.items()
    }
    picks = _settle(freed, dict.fromkeys(options, 0.0))
    at = {(n, option.choice): option for n, entries in options.items() for option in entries}
    return {number: at[number, option.choice] for number, option in picks.items()}


def candidates(
    options: Options, held: Set[int], roots: Sequence[int]
) -> Iterator[dict[int, Option]]:
    """Some selections, one of which is usually near the best.

    After the plain ones, what a class costs is split among those that could use it, and in later
    rounds among those that did: sharing shows only then.
    """
    yield greedy(options, held)
    yield greedy(options, frozenset())
    users = dict.fromkeys(options, 0)
    for entries in options.values():
        for child in dict.fromkeys(child for option in entries for child in option.children):
            users[child] += 1
    part = {number: 0.0 if number in held else 1 / max(n, 1) for number, n in users.items()}
    for _ in range(_ROUNDS):
        picks = _settle(options, part)
        yield picks
        used: dict[int, int] = {}
        for number in _reached(picks, roots):
            for child in picks[number].children:
                used[child] = used.get(child, 0) + 1
        for number, count in used.items():
            if number not in held:
                part[number] = 1 / count


def _settle(options: Options, part: Mapping[int, float]) -> dict[int, Option]:
    """Settle classes in order of cost; ``part`` is the share of a class that each user pays.

    An option is ready when its children are settled, so the result has no cycle.
    """
    users: dict[int, list[tuple[int, int]]] = {number: [] for number in options}
    waiting: dict[tuple[int, int], int] = {}
    worth: dict[tuple[int, int], float] = {}
    ready: list[tuple[float, int, int]] = []
    for number, entries in options.items():
        for position, option in enumerate(entries):
            if not option.children:
                ready.append((option.cost, number, position))
                continue
            waiting[number, position] = len(option.children)
            worth[number, position] = option.cost
            for child in option.children:
                users[child].append((number, position))
    heapq.heapify(ready)
    settled: dict[int, Option] = {}
    while ready:
        cost, number, position = heapq.heappop(ready)
        if number in settled:
            continue
        settled[number] = options[number][position]
        for user in users[number]:
            waiting[user] -= 1
            worth[user] += cost * part[number]
            if not waiting[user]:
                heapq.heappush(ready, (worth[user], *user))
    return settled


def _reached(picks: Mapping[int, Option], roots: Sequence[int]) -> list[int]:
    reached: dict[int, None] = {}
    stack = [root for root in roots if root in picks]
    while stack:
        number = stack.pop()
        if number not in reached:
            reached[number] = None
            stack += picks[number].children
    return list(reached)
