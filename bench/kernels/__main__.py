"""The command: ``python -m bench.kernels``. See docs/benchmarking.md."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..lines import shared_line
from ..peers import report as peers_report
from ..peers.turns import machine
from . import report
from .cases import from_json
from .listing import COMPILED, GROUPS
from .sweep import DRAWS, drawn
from .turns import CHECKOUT, ENGINES, Point, Table

DESCRIPTION = """Single kernels beside the peers': results compared first, turns taken, medians of rounds.

    python -m bench.kernels                        the sizes of models: every group, every engine
    python -m bench.kernels gemm                   squares from 256 to 2048 beside MKL
    python -m bench.kernels --sweep                random sizes: the points where a peer is faster come first
    python -m bench.kernels --sweep conv rows --count 10 --seed 1
    python -m bench.kernels --again build/sweep.json       the points of a run where a peer was faster, once more
    python -m bench.kernels rows --before ../old           beside darner as another checkout has it
    python -m bench.kernels --sweep --check --seed 7       results alone, of other sizes
    python -m bench.kernels --sweep --prepare      compile all of it, and measure nothing: the next run measures only
"""

DOUBTED = 0.9
"""The ratio below which a point of a sweep is measured again, longer."""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernels",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("groups", nargs="*", help=f"by the beginning of the name: {', '.join(GROUPS)}")
    add("--sweep", action="store_true", help=f"random sizes of {', '.join(DRAWS)}")
    add("--count", type=int, default=40, help="of a sweep's points in each group")
    add("--seed", type=int, default=0)
    add("--again", type=Path, help=f"the points below {report.SLOW} that this file has")
    add("--before", type=Path, help="a checkout of darner to be measured beside this one")
    add("--engines", nargs="+", choices=list(ENGINES), help="all that make sense in a group")
    add("--threads", type=int, default=2)
    add("--rounds", type=int, help="5; 3 of a sweep")
    add("--seconds", type=float, help="of a turn: 0.05; 0.02 of a sweep")
    add("--prepare", action="store_true", help="compile, and measure nothing")
    add("--check", action="store_true", help="compare results with torch's, and measure nothing")
    add("--json", type=Path, help="build/kernels.json, or build/sweep.json")
    options = parser.parse_args(given)
    options.rounds = options.rounds or (3 if options.sweep else 5)
    options.seconds = options.seconds or (0.02 if options.sweep else 0.05)
    name = "again" if options.again else "sweep" if options.sweep else "kernels"
    options.json = options.json or Path(f"build/{name}.json")
    if options.before:
        os.environ[CHECKOUT] = str(options.before.resolve())
    try:
        known = DRAWS | GROUPS if options.again else DRAWS if options.sweep else GROUPS
        options.groups = chosen(options.groups, known)
    except ValueError as error:
        parser.error(str(error))
    return options


def chosen(names: Sequence[str], groups: dict[str, Any]) -> list[str]:
    """Groups by name, or by the beginning of it; all where none is named."""
    found: dict[str, None] = {}
    for name in names or [""]:
        matching = [group for group in groups if group.startswith(name)]
        if not matching:
            raise ValueError(f"there is no group '{name}'; there are {', '.join(groups)}")
        found.update(dict.fromkeys(matching))
    return list(found)


def engines_of(group: str, options: argparse.Namespace) -> list[str]:
    """Who is measured in a group."""
    peers = [*(["before"] if options.before else []), "torch", "numpy"]
    if options.engines:
        return list(dict.fromkeys(["darner", *peers[:-2], *options.engines]))
    if group == "gemm":
        peers.append("mkl")
    elif group in COMPILED and not options.sweep:
        peers.append("torch-compile")
    return ["darner", *peers]


def slow_cases(run: dict[str, Any], groups: Sequence[str]) -> dict[str, list[Any]]:
    """The cases of a run in which a peer was faster, the worst of each group first."""
    found = {}
    for group, points in run["groups"].items():
        slow = [p for p in points if p["ratio"] is not None and p["ratio"] < report.SLOW]
        slow.sort(key=lambda point: point["ratio"])
        if slow and group in groups:
            found[group] = [from_json(point["case"]) for point in slow]
    return found


def say(text: str) -> None:
    """What is going on, beside the results."""
    print(text, file=sys.stderr, flush=True)


def prepare(cases: dict[str, list[Any]], table: Table) -> None:
    """Compile everything, so that nothing is compiled between measurements."""
    for group, found in cases.items():
        started = time.perf_counter()
        for case in found:
            try:
                table.build(case)
            except RuntimeError as error:
                say(f"{case.name}: {error}")
        say(f"{group}: {len(found)} kernels made ready in {time.perf_counter() - started:.0f} s")


def check(cases: dict[str, list[Any]], table: Table) -> int:
    """How many cases darner computes otherwise than PyTorch."""
    wrong = 0
    for group, found in cases.items():
        points = [table.measure(case, ["torch", "darner"], 0, 0.0) for case in found]
        differing = [point for point in points if "darner" not in point.rounds]
        for point in differing:
            print("\n".join(point.notes), flush=True)
        print(f"{group}: {len(points) - len(differing)} of {len(points)} agree", flush=True)
        wrong += len(differing)
    return wrong


def measure_group(
    group: str, cases: Sequence[Any], table: Table, options: argparse.Namespace
) -> list[Point]:
    """The points of a group."""
    started = time.perf_counter()
    points = []
    for case in cases:
        point = table.measure(case, engines_of(group, options), options.rounds, options.seconds)
        if options.sweep and point.ratio is not None and point.ratio < DOUBTED:
            table.again(point, 2 * options.rounds, options.seconds)
        points.append(point)
        for note in point.notes:
            if "has no" not in note:
                say(note)
    say(f"{group}: {len(points)} points in {time.perf_counter() - started:.0f} s")
    return points


def line_of(threads: int) -> float | None:
    """What a line of cache costs that two cores share, now: on virtual machines it changes."""
    found = shared_line(threads)
    if found is not None:
        say(f"a line that another core has read takes {found:.1f} ns to write")
    return found


def peak_of(threads: int, before: dict[str, float] | None = None) -> dict[str, float]:
    """The better of two measurements of the machine: other programs can only make it worse."""
    try:
        found = machine(threads)
    except RuntimeError as error:
        say(f"the machine's peak is not measured: {error}")
        return before or {}
    return {key: max(value, (before or found)[key]) for key, value in found.items()}


def show(groups: dict[str, list[Point]], peak: dict[str, float], sweep: bool) -> None:
    """The tables."""
    if peak:
        rates = f"{peak['flops'] / 1e9:.0f} GFLOP/s, {peak['bandwidth'] / 1e9:.1f} GB/s"
        print(f"This machine: {rates}\n")
    points = [point for found in groups.values() for point in found]
    if sweep:
        slow = report.slow_points(points)
        print(f"{len(slow)} of {len(points)} points below {report.SLOW} of the best peer\n")
        if slow:
            print(report.points_table(slow, peak), end="\n\n")
        print(report.distribution_table(groups), end="\n\n")
        print(report.peers_table(groups))
        return
    print(report.points_table(points, peak), end="\n\n")
    print(report.peers_table(groups))


def main(given: list[str] | None = None) -> int:
    """0 where darner was measured at every point, else 1."""
    options = arguments(given)
    if options.again:
        cases = slow_cases(json.loads(options.again.read_text()), options.groups)
    elif options.sweep:
        cases = {group: drawn(group, options.count, options.seed) for group in options.groups}
    else:
        cases = {group: GROUPS[group] for group in options.groups}
    with Table(options.threads) as table:
        if options.check:
            return int(check(cases, table) > 0)
        prepare(cases, table)
        if options.prepare:
            return 0
        peak = peak_of(options.threads)
        lines = [line_of(options.threads)]
        groups = {}
        for group, found in cases.items():
            groups[group] = measure_group(group, found, table, options)
            lines.append(line_of(options.threads))
    peak = peak_of(options.threads, peak)
    show(groups, peak, options.sweep)
    result = {
        **peers_report.about_run([], {options.threads: peak}),
        "seed": options.seed if options.sweep else None,
        "shared_line_ns": [found and round(found, 1) for found in lines],
        "groups": {
            group: [report.point_json(point, peak) for point in points]
            for group, points in groups.items()
        },
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    say(f"written to {options.json}")
    return int(any("darner" not in p.rounds for points in groups.values() for p in points))


if __name__ == "__main__":
    sys.exit(main())
