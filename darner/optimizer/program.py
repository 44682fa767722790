"""Extraction as an integer program, solved by HiGHS."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..graph.errors import InternalError
from ..graph.forks import native_call
from .search import Cuts

# The least and the most that a sum of variables may be, and their coefficients.
Row = tuple[float, float, dict[int, float]]
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Answer:
    """The best picks known, class to position, and whether they are proved to be the best."""

    picks: dict[int, int] | None
    proved: bool


def minimise(
    costs: Sequence[Sequence[float]],
    needs: Sequence[Sequence[Sequence[int]]],
    held: Sequence[int],
    cuts: Cuts,
    deadline: float,
    start: Mapping[int, int] | None = None,
) -> Answer:
    """Solve the program of a component, until the deadline on the clock ``time.perf_counter``.

    A 0/1 variable says for each option whether it is picked. Arguments are those of
    `darner.optimizer.search.search`; ``start`` are picks to improve on.
    """
    first: list[int] = []
    count = 0
    for options in costs:
        first.append(count)
        count += len(options)
    rows = _rows(first, needs, held, cuts)
    weights = np.array([cost for options in costs for cost in options], dtype=np.float64)
    # Tolerances of the solver are absolute: whatever the unit of cost, the dearest option is 1000.
    if weights.max() > 0:
        weights *= 1000.0 / weights.max()
    known = np.zeros(count)
    for number, position in (start or {}).items():
        known[first[number] + position] = 1.0
    # A presolver is at fault more often than the rest: what it spoils is solved again without.
    for presolve in ("choose", "off"):
        seconds = deadline - time.perf_counter()
        if seconds <= 0:
            break
        values, proved = _run(weights, rows, known, seconds, presolve)
        if values is not None and _meets(values, rows):
            return Answer(_picks(values, first, costs, needs, held), proved)
    return Answer(None, False)


def _rows(
    first: Sequence[int],
    needs: Sequence[Sequence[Sequence[int]]],
    held: Sequence[int],
    cuts: Cuts,
) -> list[Row]:
    rows: list[Row] = []
    variables = [range(at, at + len(options)) for at, options in zip(first, needs, strict=True)]
    always = set(held)
    for number, options in enumerate(needs):
        rows.append((float(number in always), 1.0, dict.fromkeys(variables[number], 1.0)))
        using: dict[int, list[int]] = {}
        for variable, need in zip(variables[number], options, strict=True):
            for child in need:
                using.setdefault(child, []).append(variable)
        for child, users in using.items():
            # One row for all options that use a child is tighter than one row for each.
            entries = {**dict.fromkeys(variables[child], 1.0), **dict.fromkeys(users, -1.0)}
            rows.append((0.0, 1.0, entries))
    for cut in cuts:
        entries = {first[number] + at: 1.0 for number, positions in cut for at in positions}
        rows.append((0.0, len(cut) - 1.0, entries))
    return rows


def _run(
    weights: Values, rows: Sequence[Row], known: Values, seconds: float, presolve: str
) -> tuple[Values | None, bool]:
    """The best values found, if any were, and whether no better ones exist."""
    import highspy

    count = len(weights)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = count, len(rows)
    model.col_cost_, model.col_lower_, model.col_upper_ = weights, np.zeros(count), np.ones(count)
    model.row_lower_ = np.array([least for least, _, _ in rows])
    model.row_upper_ = np.array([most for _, most, _ in rows])
    model.integrality_ = [highspy.HighsVarType.kInteger] * count
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(entries) for _, _, entries in rows)], dtype=np.int32)
    matrix.index_ = np.array([at for _, _, entries in rows for at in entries], dtype=np.int32)
    matrix.value_ = np.array([value for _, _, entries in rows for value in entries.values()])

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    settings: dict[str, bool | float | str] = {
        "output_flag": False,
        "mip_rel_gap": 0.0,
        "mip_abs_gap": 1e-7,
        "random_seed": 0,
        "parallel": "off",
        "presolve": presolve,
        "time_limit": seconds,
    }
    for name, value in settings.items():
        solver.setOptionValue(name, value)
    solver.passModel(model)
    if known.any():
        solution = highspy.HighsSolution()
        solution.col_value = known
        solver.setSolution(solution)
    with native_call():
        solver.run()
    status = solver.getModelStatus()
    if presolve == "off" and status == highspy.HighsModelStatus.kInfeasible:
        raise InternalError("the program of an extraction has no solution")
    values = solver.getSolution().col_value
    if len(values) != count:
        return None, False
    return np.round(values), status == highspy.HighsModelStatus.kOptimal


def _meets(values: Values, rows: Sequence[Row]) -> bool:
    """Whether rounded values satisfy every row."""
    return all(
        least <= sum(values[at] * factor for at, factor in entries.items()) <= most
        for least, most, entries in rows
    )


def _picks(
    values: Values,
    first: Sequence[int],
    costs: Sequence[Sequence[float]],
    needs: Sequence[Sequence[Sequence[int]]],
    held: Sequence[int],
) -> dict[int, int]:
    """What the solution picks, from the held classes on."""
    picks: dict[int, int] = {}
    stack = list(reversed(held))
    while stack:
        number = stack.pop()
        if number not in picks:
            options = values[first[number] : first[number] + len(costs[number])]
            picks[number] = int(options.argmax())
            stack.extend(reversed(needs[number][picks[number]]))
    return picks
