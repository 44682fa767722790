"""What was measured, as tables of text and as JSON."""

import statistics
from collections.abc import Sequence
from typing import Any

from ..peers.report import grid, three_digits
from .cases import to_json
from .turns import ENGINES, Point

SLOW = 0.8
"""The ratio to the best peer below which a point is a task."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of all lies, between two of them in proportion.

    >>> quantile([1.0, 2.0, 4.0], 0.75)
    3.0
    """
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def rates(point: Point, peak: dict[str, float]) -> dict[str, float]:
    """Darner's arithmetic and traffic of a second, and the larger of their shares of what the machine can do."""
    seconds = point.seconds("darner")
    flops, moved = point.case.flops / seconds, point.case.moved / seconds
    found = {"gflops": flops / 1e9, "gigabytes": moved / 1e9}
    if peak:
        found["share"] = max(flops / peak["flops"], moved / peak["bandwidth"])
    return found


def _line(point: Point, names: Sequence[str], peak: dict[str, float]) -> list[str]:
    cells = [point.case.variant, point.case.sizes]
    cells += [
        three_digits(1e6 * point.seconds(name)) if name in point.rounds else "" for name in names
    ]
    if "darner" not in point.rounds:
        return cells + [""] * 4
    found = rates(point, peak)
    ratio = point.ratio
    work = (
        f"{found['gflops']:.0f} GFLOP/s" if point.case.flops else f"{found['gigabytes']:.1f} GB/s"
    )
    share = f"{found['share']:.0%}" if "share" in found else ""
    return [*cells, point.best_peer or "", f"{ratio:.2f}" if ratio else "", work, share]


def points_table(points: Sequence[Point], peak: dict[str, float]) -> str:
    """Microseconds of every engine, the ratio to the best peer, and darner's rate as a share of the machine's."""
    names = [name for name in ENGINES if any(name in point.rounds for point in points)]
    head = ["kernel", "sizes", *(f"{name} us" for name in names), "best peer", "ratio"]
    return grid([*head, "darner's rate", "of peak"], [_line(p, names, peak) for p in points])


def slow_points(points: Sequence[Point]) -> list[Point]:
    """Those where a peer is clearly faster, the worst first."""
    found = [point for point in points if point.ratio is not None and point.ratio < SLOW]
    return sorted(found, key=lambda point: point.ratio or 0.0)


def distribution_table(groups: dict[str, list[Point]]) -> str:
    """How the ratios to the best peer lie, group by group."""
    head = ["group", "points", "least", "10 %", "median", "90 %", f"below {SLOW}", "below 1"]
    lines = []
    for name, points in {**groups, "all": [p for found in groups.values() for p in found]}.items():
        ratios = [point.ratio for point in points if point.ratio is not None]
        if not ratios:
            continue
        places = [quantile(ratios, share) for share in (0.0, 0.1, 0.5, 0.9)]
        below = [sum(ratio < limit for ratio in ratios) for limit in (SLOW, 1.0)]
        lines.append([name, str(len(ratios)), *(f"{p:.2f}" for p in places), *map(str, below)])
    return grid(head, lines)


def peers_table(groups: dict[str, list[Point]]) -> str:
    """The median ratio to each peer, group by group; above 1 darner is faster."""
    everyone = [point for points in groups.values() for point in points]
    peers = [name for name in ENGINES if any(p.ratio_to(name) for p in everyone)]
    peers = [name for name in peers if name != "darner"]
    lines = []
    for group, points in groups.items():
        line = [group]
        for name in peers:
            ratios = [ratio for p in points if (ratio := p.ratio_to(name)) is not None]
            line.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        lines.append(line)
    return grid(["darner beside", *peers], lines)


def point_json(point: Point, peak: dict[str, float]) -> dict[str, Any]:
    """Everything of a point."""
    found: dict[str, Any] = {
        "kernel": point.case.variant,
        "sizes": point.case.sizes,
        "case": to_json(point.case),
        "threads": point.threads,
        "us": {name: round(1e6 * point.seconds(name), 2) for name in point.rounds},
        "rounds_us": {
            name: [round(1e6 * value, 2) for value in values]
            for name, values in point.rounds.items()
        },
        "best_peer": point.best_peer,
        "ratio": round(point.ratio, 3) if point.ratio is not None else None,
        "about": point.about,
        "notes": point.notes,
    }
    if "darner" in point.rounds:
        found |= {key: round(value, 4) for key, value in rates(point, peak).items()}
    return found
