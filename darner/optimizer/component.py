"""A part of an extraction that can be solved by itself.

Once the classes that every extraction holds are known, the rest falls into components that share
nothing: each says which of its classes are held, and asks for the cheapest choices that complete
them. A component is a value, so equal layers of a model give equal components, solved once.

A component is first reduced, which often answers it; what remains goes to a small search, and only
what the search cannot finish becomes an integer program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple

from ..graph.errors import InternalError
from .dominators import SWEEPS
from .program import minimise
from .search import search


@dataclass(frozen=True, slots=True)
class Component:
    """Classes 0, 1, ... with their options in order; the first ``held`` are in every extraction.

    Attributes:
        options: per class its options, each a cost and the classes of the component it needs.
        held: how many classes, from the first, are held.
        cuts: cycles to avoid. A cut lists options of some classes, as positions; not all of these
            classes may use one of theirs.
    """

    options: tuple[tuple[tuple[float, tuple[int, ...]], ...], ...]
    held: int
    cuts: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...] = ()


class Move(NamedTuple):
    """An option during reduction.

    The classes it uses are two bit sets: ``needs`` are to be met, ``links`` are held, thus met
    anyway, but may close a cycle. ``cuts`` is the bit set of the cuts it is in; ``trail`` lists the
    decisions it stands for: its own, and those of the classes that were absorbed into it.
    """

    cost: float
    needs: int
    links: int
    cuts: int
    trail: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Tally:
    """What solving took."""

    solves: int = 0
    programs: int = 0
    largest: int = 0
    proved: bool = True


@dataclass(slots=True)
class Problem:
    """A component during reduction: the moves of each class still in it."""

    moves: dict[int, list[Move]]
    held: int
    cut_sizes: tuple[int, ...]
    # Classes named by a cut: these keep their identity.
    bound: int = field(init=False)

    def __post_init__(self) -> None:
        self.bound = 0
        for number, moves in self.moves.items():
            if any(move.cuts for move in moves):
                self.bound |= 1 << number


# A class is absorbed into its only user while that leaves it with no more moves than this.
_MOST_MOVES = 24


def solve(component: Component, deadline: float, tally: Tally) -> dict[int, int] | None:
    """The cheapest choices: class to position, for the classes in use. None when time ran out first.

    An answer that is not proved to be the best says so in the tally.
    """
    tally.solves += 1
    problem = _problem(component)
    _reduce(problem)
    chosen: list[Move] = []
    for part in _parts(problem):
        answer = _solve_part(part, deadline, tally)
        if answer is None:
            return None
        chosen += answer
    return dict(decision for move in chosen for decision in move.trail)


def _problem(component: Component) -> Problem:
    marks: dict[tuple[int, int], int] = {}
    for at, cut in enumerate(component.cuts):
        for number, positions in cut:
            for position in positions:
                marks[number, position] = marks.get((number, position), 0) | 1 << at
    moves: dict[int, list[Move]] = {}
    for number, options in enumerate(component.options):
        moves[number] = [
            Move(
                cost,
                sum(1 << need for need in needs),
                0,
                marks.get((number, position), 0),
                ((number, position),),
            )
            for position, (cost, needs) in enumerate(options)
        ]
    return Problem(moves, (1 << component.held) - 1, tuple(len(cut) for cut in component.cuts))


def members(mask: int) -> Iterator[int]:
    """The classes of a bit set, in order."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _needs(moves: Sequence[Move]) -> int:
    """What any of some moves needs."""
    return reduce(lambda mask, move: mask | move.needs, moves, 0)


def _reduce(problem: Problem) -> None:
    """Apply what shrinks a problem without losing its best answer, until nothing does."""
    changed = True
    while changed:
        _hold(problem)
        _drop_unreachable(problem)
        _drop_links(problem)
        changed = _drop_dominated(problem)
        changed |= _drop_dear(problem)
        changed |= _absorb(problem)


def _hold(problem: Problem) -> None:
    """Add the classes that what is held brings with it, and forget the needs they meet."""
    moves = problem.moves
    everything = sum(1 << number for number in moves)
    must: dict[int, int] = {}
    changed = True
    # As for the whole e-graph: from above, or where that takes too long some way from below.
    for start in (everything, 0):
        must = {number: start | 1 << number for number in moves}
        for _ in range(SWEEPS):
            changed = False
            for number in reversed(moves):
                brought = everything
                for move in moves[number]:
                    union = 0
                    for need in members(move.needs):
                        union |= must[need]
                    brought &= union
                brought |= 1 << number
                if brought != must[number]:
                    must[number] = brought
                    changed = True
            if not changed:
                break
        if not changed:
            break
    held = problem.held
    for number in members(problem.held):
        held |= must[number]
    problem.held = held
    for number, options in moves.items():
        if any(move.needs & held for move in options):
            moves[number] = [
                move._replace(needs=move.needs & ~held, links=move.links | move.needs & held)
                for move in options
            ]


def _drop_links(problem: Problem) -> None:
    """Forget the links that can be on no cycle: what they lead to cannot lead back."""
    moves = problem.moves
    if not any(move.links for options in moves.values() for move in options):
        return
    below = {
        number: reduce(lambda mask, move: mask | move.needs | move.links, options, 0)
        for number, options in moves.items()
    }
    reach = dict(below)
    # A link forgotten too early costs a cut, no more.
    for _ in range(SWEEPS):
        changed = False
        for number in reversed(moves):
            mask = below[number]
            for child in members(mask):
                mask |= reach[child]
            if mask != reach[number]:
                reach[number] = mask
                changed = True
        if not changed:
            break
    for number, options in moves.items():
        back = 0
        for child in members(below[number]):
            back |= (reach[child] >> number & 1) << child
        if any(move.links & ~back for move in options):
            moves[number] = [move._replace(links=move.links & back) for move in options]


def _drop_unreachable(problem: Problem) -> None:
    reached, frontier = 0, problem.held
    while frontier:
        reached |= frontier
        below = 0
        for number in members(frontier):
            for move in problem.moves[number]:
                below |= move.needs
        frontier = below & ~reached
    if len(problem.moves) != reached.bit_count():
        problem.moves = {n: moves for n, moves in problem.moves.items() if reached >> n & 1}


def _drop_dominated(problem: Problem) -> bool:
    """Drop a move when one no dearer uses no more and is in no other cut."""
    changed = False
    for number, moves in problem.moves.items():
        if len(moves) == 1:
            continue
        kept: list[Move] = []
        for move in sorted(moves, key=lambda move: move.cost):
            if not any(
                other.needs | move.needs == move.needs
                and other.links | move.links == move.links
                and other.cuts | move.cuts == move.cuts
                for other in kept
            ):
                kept.append(move)
        if len(kept) < len(moves):
            problem.moves[number] = kept
            changed = True
    return changed


def _drop_dear(problem: Problem) -> bool:
    """Drop a move that costs more alone than some other move with all it could ever need.

    Putting that other derivation in its place, whole, closes no cycle: it points nowhere else.
    Derivations with links or in cuts are not that harmless, and are left out.
    """
    whole = dict.fromkeys(problem.moves, float("inf"))
    for _ in range(SWEEPS):
        changed = False
        for number in reversed(problem.moves):
            least = whole[number]
            for move in problem.moves[number]:
                if move.cost < least and not move.links and not move.cuts:
                    total = move.cost + sum(whole[need] for need in members(move.needs))
                    least = min(least, total)
            if least < whole[number]:
                whole[number] = least
                changed = True
        if not changed:
            break
    dropped = False
    for number, moves in problem.moves.items():
        # The margin covers what rounding can add to a sum.
        kept = [move for move in moves if move.cost <= whole[number] * (1 + 1e-12)]
        if len(kept) < len(moves):
            problem.moves[number] = kept
            dropped = True
    return dropped


def _absorb(problem: Problem) -> bool:
    """Melt a class that only one class can use into the moves of that class."""
    moves = problem.moves
    users = dict.fromkeys(moves, 0)
    for number, options in moves.items():
        for need in members(_needs(options)):
            users[need] |= 1 << number
    changed = False
    for number in list(moves):
        bit = 1 << number
        if (problem.held | problem.bound) & bit or users[number].bit_count() != 1:
            continue
        user = users[number].bit_length() - 1
        inner = moves[number]
        using = sum(1 for move in moves[user] if move.needs & bit)
        after = len(moves[user]) + using * (len(inner) - 1)
        if after > max(_MOST_MOVES, len(moves[user])):
            continue
        joined: list[Move] = []
        for move in moves[user]:
            if not move.needs & bit:
                joined.append(move)
                continue
            for part in inner:
                needs = move.needs & ~bit | part.needs
                links = move.links | part.links
                # Through the absorbed class it would need itself.
                if not (needs | links) >> user & 1:
                    trail = move.trail + part.trail
                    joined.append(Move(move.cost + part.cost, needs, links, move.cuts, trail))
        if not joined:
            raise InternalError("reduction left a class of an extraction without choices")
        for need in members(_needs(moves[user]) | _needs(inner)):
            users[need] &= ~(bit | 1 << user)
        for need in members(_needs(joined)):
            users[need] |= 1 << user
        moves[user] = joined
        del moves[number]
        changed = True
    return changed


def _parts(problem: Problem) -> Iterator[Problem]:
    """Split where nothing connects any more: neither a need nor a cut."""
    above = {number: number for number in problem.moves}
    first_in: dict[int, int] = {}

    def find(number: int) -> int:
        while above[number] != number:
            above[number] = number = above[above[number]]
        return number

    for number, moves in problem.moves.items():
        for need in members(_needs(moves)):
            above[find(need)] = find(number)
        for cut in members(reduce(lambda mask, move: mask | move.cuts, moves, 0)):
            above[find(first_in.setdefault(cut, number))] = find(number)
    parts: dict[int, dict[int, list[Move]]] = {}
    for number, moves in problem.moves.items():
        parts.setdefault(find(number), {})[number] = moves
    for part in parts.values():
        held = sum(1 << number for number in part) & problem.held
        yield Problem(part, held, problem.cut_sizes)


def _solve_part(problem: Problem, deadline: float, tally: Tally) -> list[Move] | None:
    """The moves of the best answer, by the least means that finds it."""
    if len(problem.moves) == 1 and not problem.bound:
        (options,) = problem.moves.values()
        return [min(options, key=lambda move: move.cost)]
    numbers = list(problem.moves)
    place = {number: at for at, number in enumerate(numbers)}
    moves = [problem.moves[number] for number in numbers]
    costs = [[move.cost for move in options] for options in moves]
    needs = [[[place[n] for n in members(move.needs)] for move in options] for options in moves]
    links = [
        [[place[n] for n in members(move.links) if n in place] for move in options]
        for options in moves
    ]
    cuts = _cut_rows(moves, problem.cut_sizes)
    held = [at for at, number in enumerate(numbers) if problem.held >> number & 1]
    tally.largest = max(tally.largest, len(moves) + sum(map(len, moves)))
    found = search(costs, needs, links, held, cuts)
    if not found.complete:
        tally.programs += 1
        every = [*cuts, *_pairs(needs, links)]
        program = minimise(costs, needs, held, every, deadline, found.picks)
        tally.proved &= program.proved
        if program.picks is not None:
            return [moves[at][position] for at, position in program.picks.items()]
    if found.picks is None:
        return None
    return [moves[at][position] for at, position in found.picks.items()]


def _cut_rows(
    moves: Sequence[Sequence[Move]], sizes: Sequence[int]
) -> list[list[tuple[int, list[int]]]]:
    """The cuts that can still be broken, on the classes of a part."""
    rows: list[list[tuple[int, list[int]]]] = [[] for _ in sizes]
    for at, options in enumerate(moves):
        for cut in members(reduce(lambda mask, move: mask | move.cuts, options, 0)):
            rows[cut].append((at, [p for p, move in enumerate(options) if move.cuts >> cut & 1]))
    return [row for row, size in zip(rows, sizes, strict=True) if len(row) == size]


def _pairs(
    needs: Sequence[Sequence[list[int]]], links: Sequence[Sequence[list[int]]]
) -> Iterator[list[tuple[int, list[int]]]]:
    """Cuts against two classes that use each other: the commonest cycles, forbidden in advance."""
    using: dict[tuple[int, int], list[int]] = {}
    for number, options in enumerate(needs):
        for position, need in enumerate(options):
            for child in need + links[number][position]:
                using.setdefault((number, child), []).append(position)
    for (number, child), positions in using.items():
        if number < child and (child, number) in using:
            yield [(number, positions), (child, using[child, number])]
