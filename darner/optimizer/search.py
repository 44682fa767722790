"""Branch and bound for small extraction problems.

An integer programming solver needs milliseconds to begin; most problems that are left after
reduction have a dozen classes and are finished in less by a search with a good bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# How many options a search may look at before it gives up: about as long as a solver takes to start.
_EFFORT = 8_000
# Beyond this many classes a search is not tried: it would not finish, and it is recursive.
_MOST_CLASSES = 150

Cuts = Sequence[Sequence[tuple[int, Sequence[int]]]]


@dataclass(slots=True)
class Found:
    """The best picks met, class to position, and whether they are proved to be the best there are."""

    picks: dict[int, int] | None
    complete: bool


def search(
    costs: Sequence[Sequence[float]],
    needs: Sequence[Sequence[Sequence[int]]],
    links: Sequence[Sequence[Sequence[int]]],
    held: Sequence[int],
    cuts: Cuts,
) -> Found:
    """Look for the cheapest picks that complete the held classes, within a fixed effort.

    Arguments:
        costs: per class and position what it costs.
        needs: per class and position the classes it needs.
        links: per class and position the held classes it uses: with the needs, what closes cycles.
        held: the classes that must be picked.
        cuts: per cut the classes in it with their positions; one class at least must stay out.
    """
    if len(costs) > _MOST_CLASSES:
        return Found(None, False)
    return _Search(costs, needs, links, cuts).run(held)


class _Search:
    """The state of a depth-first search: what is decided, what is open, the best so far."""

    def __init__(
        self,
        costs: Sequence[Sequence[float]],
        needs: Sequence[Sequence[Sequence[int]]],
        links: Sequence[Sequence[Sequence[int]]],
        cuts: Cuts,
    ) -> None:
        self.options = [
            [(cost, tuple(need)) for cost, need in zip(*pair, strict=True)]
            for pair in zip(costs, needs, strict=True)
        ]
        self.cheapest = [option.index(min(option)) for option in costs]
        self.below = [
            [[*need, *link] for need, link in zip(*pair, strict=True)]
            for pair in zip(needs, links, strict=True)
        ]
        self.users: list[set[int]] = [set() for _ in costs]
        for number, options in enumerate(needs):
            for need in options:
                for child in need:
                    self.users[child].add(number)
        self.cuts = [dict(cut) for cut in cuts]
        self.cuts_of: list[list[dict[int, Sequence[int]]]] = [
            [cut for cut in self.cuts if number in cut] for number in range(len(costs))
        ]
        self.order = self._children_first()
        self.picks: dict[int, int] = {}
        self.best: dict[int, int] | None = None
        self.best_cost = float("inf")
        self.effort = _EFFORT
        self.margin = 1e-12 * sum(max(cost) for cost in costs)

    def run(self, held: Sequence[int]) -> Found:
        self._descend(dict.fromkeys(held), 0.0)
        return Found(self.best, self.effort > 0)

    def _children_first(self) -> list[int]:
        """Every class after what it needs, as far as cycles allow."""
        order: list[int] = []
        seen: set[int] = set()
        stack = [(number, False) for number in reversed(range(len(self.options)))]
        while stack:
            number, leaving = stack.pop()
            if leaving:
                order.append(number)
            elif number not in seen:
                seen.add(number)
                stack.append((number, True))
                for _, needs in self.options[number]:
                    stack.extend((child, False) for child in needs if child not in seen)
        return order

    def _shares(self, opened: dict[int, None]) -> list[float]:
        """What a user pays at least for each class that is neither decided nor open.

        A class is paid once, so its cost is split evenly among those who could still use it.
        """
        shares = [0.0] * len(self.options)
        for number in self.order:
            if number in self.picks or number in opened:
                continue
            options = self.options[number]
            self.effort -= len(options)
            count = sum(1 for user in self.users[number] if user not in self.picks)
            if count:
                least = min([cost + sum([shares[n] for n in need]) for cost, need in options])
                shares[number] = least / count
        return shares

    def _descend(self, opened: dict[int, None], paid: float) -> None:
        """Decide the open classes in every way that may still be the cheapest."""
        if not opened:
            if paid < self.best_cost:
                self.best, self.best_cost = dict(self.picks), paid
            return
        if self.effort <= 0:
            return
        shares = self._shares(opened)
        bound = paid
        branch, regret = -1, -1.0
        ranked: list[tuple[float, int]] = []
        for number in opened:
            options = self.options[number]
            self.effort -= len(options)
            totals = sorted(
                (cost + sum([shares[n] for n in need]), position)
                for position, (cost, need) in enumerate(options)
            )
            bound += totals[0][0]
            loss = totals[1][0] - totals[0][0] if len(totals) > 1 else float("inf")
            cheapest = self.cheapest[number]
            if not self.cuts_of[number] and not self.below[number][cheapest]:
                # Alone it costs least, and it needs nothing: no other option can gain.
                loss, totals = float("inf"), [(options[cheapest][0], cheapest)]
            if loss > regret:
                branch, regret, ranked = number, loss, totals
        if bound >= self.best_cost - self.margin:
            return
        rest = {number: None for number in opened if number != branch}
        slack = bound - ranked[0][0]
        for least, position in ranked:
            if slack + least >= self.best_cost - self.margin:
                return
            self.picks[branch] = position
            if not self._breaks_a_cut(branch) and not self._closes_a_cycle(branch):
                cost, need = self.options[branch][position]
                fresh = {n: None for n in need if n not in self.picks}
                self._descend({**rest, **fresh}, paid + cost)
            del self.picks[branch]

    def _breaks_a_cut(self, number: int) -> bool:
        return any(
            all(self.picks.get(other, -1) in positions for other, positions in cut.items())
            for cut in self.cuts_of[number]
        )

    def _closes_a_cycle(self, number: int) -> bool:
        stack = list(self.below[number][self.picks[number]])
        seen: set[int] = set()
        while stack:
            child = stack.pop()
            if child == number:
                return True
            if child not in seen and child in self.picks:
                seen.add(child)
                stack += self.below[child][self.picks[child]]
        return False
