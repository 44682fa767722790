"""What was measured, as tables of text, as JSON, and as lines of a history."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .turns import ENGINES, Row, Times
from .workloads import to_json

HISTORY = Path(__file__).parents[1] / "history.jsonl"


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown that can be read as text: the first column to the left, the others to the right.

    >>> print(grid(["engine", "ms"], [["darner", "1.5"]]))
    | engine |  ms |
    |--------|----:|
    | darner | 1.5 |
    """
    widths = [max(len(line[i]) for line in [head, *lines]) for i in range(len(head))]

    def written(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return f"| {' | '.join([first, *(c.rjust(w) for c, w in zip(cells[1:], widths[1:], strict=True))])} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([written(head), f"|{rule}|", *(written(line) for line in lines)])


def three_digits(value: float) -> str:
    """Three digits that count.

    >>> [three_digits(x) for x in (0.01234, 1.5, 12.34, 123.4)]
    ['0.0123', '1.50', '12.3', '123']
    """
    for limit, places in ((0.1, 4), (1, 3), (10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{places}f}"
    return f"{value:.0f}"


# ------------------------------------------------------------- what follows from a row


def best_peer(row: Row) -> str | None:
    """The fastest engine that is not darner."""
    peers = [name for name in row.engines if name != "darner"]
    return min(peers, key=lambda name: row.engines[name].median, default=None)


def ratio(row: Row) -> float | None:
    """How many times as fast as the best peer darner is."""
    peer = best_peer(row)
    if peer is None or "darner" not in row.engines:
        return None
    return row.engines[peer].median / row.engines["darner"].median


def ratios(row: Row) -> list[float]:
    """The same round by round, each with the best peer of its own round."""
    peers = [times.rounds for name, times in row.engines.items() if name != "darner"]
    if not peers or "darner" not in row.engines:
        return []
    best = [min(found) for found in zip(*peers, strict=True)]
    return [p / d for p, d in zip(best, row.engines["darner"].rounds, strict=True)]


def _columns(rows: Sequence[Row]) -> list[str]:
    return [name for name in ENGINES if any(name in row.engines for row in rows)]


# ------------------------------------------------------------- tables


def _where(rows: Sequence[Row]) -> str:
    return "device" if any(row.place.is_card for row in rows) else "threads"


def times_table(rows: Sequence[Row]) -> str:
    """Milliseconds of a step, the ratio to the best peer (its range over rounds), and the share of the floor."""
    names = _columns(rows)
    head = [
        "workload",
        _where(rows),
        *names,
        "best peer",
        "ratio",
        "of rounds",
        "floor",
        "of floor",
    ]
    lines = []
    for row in rows:
        line = [row.workload.name, row.where]
        for name in names:
            times = row.engines.get(name)
            line.append(three_digits(1e3 * times.median) if times else "")
        found, each = ratio(row), ratios(row)
        line += [best_peer(row) or "", f"{found:.2f}" if found else ""]
        line.append(f"{min(each):.2f} - {max(each):.2f}" if each else "")
        line.append(three_digits(1e3 * row.floor) if row.floor else "")
        darner = row.engines.get("darner")
        line.append(f"{row.floor / darner.median:.0%}" if darner and row.floor else "")
        lines.append(line)
    return grid(head, lines)


def memory_table(rows: Sequence[Row]) -> str:
    """The most memory that each process held, in MB, darner's as a share of eager PyTorch's, and seconds to the first step."""
    names = _columns(rows)
    head = ["workload", _where(rows), *(f"{name} MB" for name in names), "darner / torch"]
    head += [f"{name} s" for name in names]
    lines = []
    for row in rows:
        found = [row.engines.get(name) for name in names]
        memory = [f"{times.memory:.0f}" if times else "" for times in found]
        first = [three_digits(_until_first(times)) if times else "" for times in found]
        share = memory_share(row)
        lines.append([row.workload.name, row.where, *memory])
        lines[-1] += [f"{share:.2f}" if share else "", *first]
    return grid(head, lines)


def memory_share(row: Row) -> float | None:
    """Darner's memory over eager PyTorch's; below 1 it needs less."""
    if not {"darner", "torch"} <= set(row.engines):
        return None
    return row.engines["darner"].memory / row.engines["torch"].memory


def _until_first(times: Times) -> float:
    return times.seconds["setup"] + times.seconds["first"]


def build_table(built: Sequence[tuple[Any, str, dict[str, dict[str, Any]]]]) -> str:
    """Seconds of building: workload, engine, and for cold and warm caches what ``turns.build`` found."""
    phases = list(
        dict.fromkeys(
            phase for _, _, found in built for about in found.values() for phase in about["phases"]
        )
    )
    head = ["workload", "engine", "caches", "import", "setup", "first step", *phases]
    lines = []
    for workload, engine, found in built:
        for state, about in found.items():
            seconds = about["seconds"]
            line = [workload.name, engine, state]
            line += [three_digits(seconds[part]) for part in ("import", "setup", "first")]
            line += [
                three_digits(about["phases"][phase]) if phase in about["phases"] else ""
                for phase in phases
            ]
            lines.append(line)
    return grid(head, lines)


# ------------------------------------------------------------- JSON and history


def row_json(row: Row) -> dict[str, Any]:
    """Everything of a row."""
    engines = {
        name: {
            "median_ms": round(1e3 * times.median, 4),
            "best_ms": round(1e3 * times.best, 4),
            "rounds_ms": [round(1e3 * value, 4) for value in times.rounds],
            "steps": times.steps,
            "memory_mb": round(times.memory, 1),
            "others_cores": round(statistics.median(times.others), 2),
            "relative_error": times.error,
            "seconds": {key: round(value, 4) for key, value in times.seconds.items()},
            "phases": {key: round(value, 4) for key, value in times.phases.items()},
        }
        for name, times in row.engines.items()
    }
    found, each = ratio(row), ratios(row)
    return {
        "name": row.workload.name,
        "workload": to_json(row.workload),
        "threads": row.threads,
        "device": row.place.device,
        "precision": row.place.precision,
        "floor_ms": round(1e3 * row.floor, 4) or None,
        "best_peer": best_peer(row),
        "ratio": round(found, 3) if found else None,
        "memory_to_torch": round(memory_share(row) or 0.0, 3) or None,
        "ratio_of_rounds": round(statistics.median(each), 3) if each else None,
        "engines": engines,
        "notes": row.notes,
    }


def about_run(rows: Sequence[Row], peaks: dict[str, dict[str, float]]) -> dict[str, Any]:
    """When, where and with what was measured."""
    versions = {name: times.version for row in rows for name, times in row.engines.items()}
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "load": round(os.getloadavg()[0], 2),
        "peak": peaks,
    }


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of the checkout, with a plus where files were changed since; empty where git knows of none."""
    folder = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        found = git("rev-parse", "--short", "HEAD")
        return found + "+" if found and git("status", "--porcelain", "-uno") else found
    except FileNotFoundError:
        return ""


def record(run: dict[str, Any], path: Path = HISTORY) -> None:
    """Append a run to the history: one line, with the medians of every row."""
    kept = {key: run[key] for key in ("when", "commit", "machine", "versions", "load")}
    kept["rows"] = [
        {
            "name": row["name"],
            "threads": row["threads"],
            "ms": {name: engine["median_ms"] for name, engine in row["engines"].items()},
            "memory_mb": {name: engine["memory_mb"] for name, engine in row["engines"].items()},
            "ratio": row["ratio"],
            "doubtful": any("doubtful" in note for note in row["notes"]),
        }
        for row in run["rows"]
    ]
    with path.open("a") as file:
        file.write(json.dumps(kept) + "\n")


def history_table(path: Path = HISTORY) -> str:
    """How darner's time, ratio to the best peer and memory went on, workload by workload, and the change from the run before."""
    runs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    lines: dict[tuple[str, str], list[list[str]]] = {}
    before: dict[tuple[str, str], float] = {}
    for run in runs:
        for row in run["rows"]:
            if "darner" not in row["ms"]:
                continue
            key, spent = (row["name"], str(row["threads"])), row["ms"]["darner"]
            change = f"{spent / before[key] - 1:+.0%}" if key in before else ""
            before[key] = spent
            line = [*key, run["when"][:16], run["commit"], three_digits(spent), change]
            line.append(f"{row['ratio']:.2f}" if row["ratio"] else "")
            line.append(f"{row['memory_mb']['darner']:.0f}")
            lines.setdefault(key, []).append([*line, "doubtful" if row.get("doubtful") else ""])
    head = ["workload", "threads", "when", "commit", "darner ms", "change", "ratio", "MB", ""]
    return grid(head, [line for found in lines.values() for line in found])
