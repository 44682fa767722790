"""The command: ``python -m bench.peers``. See docs/benchmarking.md."""

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from . import growth, report, turns, workloads
from .place import TOLERANCE, Place

DESCRIPTION = """The workloads beside the peers: every engine in a process of its own, turns taken, results compared first.

    python -m bench.peers                                   every workload, every engine, 2 threads
    python -m bench.peers --quick                           two minutes: no compilers but darner, no images
    python -m bench.peers llama-s --batch 1 4 --sequence 37 128 512
    python -m bench.peers mlp --engines darner numpy --threads 1 2
    python -m bench.peers mlp smollm2 --device cuda --precision bf16 tf32
                                                            on a GPU, engines waited for
    python -m bench.peers --build                           how long building takes, cold and warm, by phase
    python -m bench.peers --growth llama-s.train --axes sequence
                                                            how time and memory grow with a size, beside torch
    python -m bench.peers --predict                         the cost model beside what darner's kernels take
    python -m bench.peers --record                          and append to bench/history.jsonl; --history shows it
"""


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "workloads",
        nargs="*",
        help=f"by the beginning of the name: {', '.join(workloads.WORKLOADS)}",
    )
    add(
        "--engines",
        nargs="+",
        choices=list(turns.ENGINES),
        help="all; darner, torch and numpy when quick",
    )
    add("--threads", nargs="+", type=int, default=[2])
    add("--device", default="cpu", help="cpu, or a GPU that all engines share: cuda")
    add("--precision", nargs="+", choices=list(TOLERANCE), default=["f32"], help="of products")
    add("--batch", nargs="+", type=int, default=[1], help="of Llama")
    add(
        "--sequence",
        nargs="+",
        type=int,
        default=[128],
        help="of Llama: tokens, or rows of the cache",
    )
    add("--rounds", type=int, help="7; 5 when quick")
    add("--seconds", type=float, help="of a turn: 0.7; 0.5 when quick")
    add("--quick", action="store_true")
    add("--build", action="store_true", help="measure building, and nothing else")
    add("--predict", action="store_true", help="compare the cost model with profiles of darner")
    add("--growth", action="store_true", help="measure Llama and ResNet-18 at growing sizes")
    add("--axes", nargs="+", help="of growth: sequence, width, layers, batch, size")
    add("--picture", type=Path, default=Path("build/growth.svg"), help="of growth")
    add(
        "--json", type=Path, help="where everything is written: build/bench.json, build/growth.json"
    )
    add("--record", action="store_true", help="append the medians to the history")
    add("--history", action="store_true", help="show the history, and measure nothing")
    options = parser.parse_args(given)
    if options.json is None:
        kind = "growth" if options.growth else "predict" if options.predict else "bench"
        options.json = Path(f"build/{kind}.json")
    if options.growth:
        options.engines = options.engines or ["darner", "torch"]
        options.rounds, options.seconds = options.rounds or 3, options.seconds or 0.3
    if options.engines is None:
        options.engines = ["darner", "torch", "numpy"] if options.quick else list(turns.ENGINES)
    options.rounds = options.rounds or (5 if options.quick else 7)
    options.seconds = options.seconds or (0.5 if options.quick else 0.7)
    names = options.workloads or list(workloads.QUICK if options.quick else workloads.USUAL)
    try:
        options.workloads = workloads.chosen(names, options.batch, options.sequence)
    except ValueError as error:
        parser.error(str(error))
    return options


def say(text: str) -> None:
    """What is going on, beside the results."""
    print(text, file=sys.stderr, flush=True)


def build(options: argparse.Namespace) -> dict[str, Any]:
    """How long building takes."""
    built = []
    for workload in options.workloads:
        for engine in options.engines:
            say(f"{workload.name}: building with {engine}")
            try:
                built.append((workload, engine, turns.build(workload, engine, options.threads[0])))
            except (turns.NotOfferedError, RuntimeError) as error:
                say(f"{workload.name}: {engine} is not measured: {error}")
    print(report.build_table(built))
    return {
        "builds": [
            {"name": workload.name, "engine": engine, **found} for workload, engine, found in built
        ]
    }


def grow(options: argparse.Namespace) -> None:
    """Curves: measured, kept beside those of other runs, drawn."""
    found = {}
    for curve in growth.curves(options.workloads, options.axes):
        found[curve.name] = growth.measure(
            curve, options.engines, options.threads[0], options.rounds, options.seconds, say
        )
    print(growth.table(found))
    everything = growth.kept(options.json, found)
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    options.picture.write_text(growth.picture(everything))
    say(f"written to {options.json} and {options.picture}")


def compare_costs(options: argparse.Namespace) -> dict[str, Any]:
    """The cost model beside profiles: workload by workload, and all together."""
    from darner.optimizer.targets import find_target

    from . import predict

    target, found, kernels = find_target("cpu"), {}, []
    for workload in options.workloads:
        say(f"{workload.name}: profiling")
        some = predict.recorded(workload, options.threads[0])
        found[workload.name] = predict.summary(some, target)
        print(f"{workload.name}\n{predict.table(found[workload.name])}\n")
        kernels += some
    found["all"] = predict.summary(kernels, target)
    best = predict.fitted(kernels, target)
    print(f"all, by {target}\n{predict.table(found['all'])}\n\nfits best: {best}")
    fit = {"flops": best.flops, "bandwidth": best.bandwidth, "launch": best.launch}
    return {"target": str(target), "fits_best": fit, "workloads": found}


def watch_peak(threads: int, place: Place, peaks: dict[str, dict[str, float]]) -> None:
    """Measure the machine and keep the better of all measurements: other programs can only make it worse."""
    try:
        found = turns.machine(threads, place)
    except RuntimeError as error:
        say(f"the machine's peak is not measured: {error}")
        return
    before = peaks.get(place.told(threads), found)
    peaks[place.told(threads)] = {key: max(value, before[key]) for key, value in found.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The rows of the table, and the tables themselves."""
    rows: list[turns.Row] = []
    peaks: dict[str, dict[str, float]] = {}
    places = [Place(options.device, precision) for precision in options.precision]
    for threads, place in itertools.product(options.threads, places):
        watch_peak(threads, place, peaks)
        for workload in options.workloads:
            row = turns.measure(
                workload,
                options.engines,
                threads,
                rounds=options.rounds,
                seconds=options.seconds,
                place=place,
            )
            rows.append(row)
            found = {n: report.three_digits(1e3 * t.median) for n, t in row.engines.items()}
            say(f"{workload.name}, {row.where}: {found}")
        watch_peak(threads, place, peaks)
    for told, peak in peaks.items():
        rates = f"{peak['flops'] / 1e9:.0f} GFLOP/s, {peak['bandwidth'] / 1e9:.1f} GB/s"
        print(f"This machine ({told}): {rates}\n")
    for row in rows:
        if row.where in peaks:
            peak = peaks[row.where]
            row.floor = row.workload.floor(peak["flops"], peak["bandwidth"], row.place.width)
    print(report.times_table(rows))
    print()
    print(report.memory_table(rows))
    notes = list(dict.fromkeys(note for row in rows for note in row.notes))
    if notes:
        print()
        print("\n".join(notes))
    return {**report.about_run(rows, peaks), "rows": [report.row_json(row) for row in rows]}


def main() -> int:
    """0 where darner was measured in every row, else 1."""
    options = arguments()
    if options.history:
        print(report.history_table())
        return 0
    if options.growth:
        grow(options)
        return 0
    kinds = [(options.build, build), (options.predict, compare_costs), (True, measure)]
    result = next(work for asked, work in kinds if asked)(options)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(result, indent=1) + "\n")
    say(f"written to {options.json}")
    if options.build or options.predict:
        return 0
    if options.record:
        report.record(result)
        say(f"recorded in {report.HISTORY}")
    asked = "darner" in options.engines
    return int(asked and any("darner" not in row["engines"] for row in result["rows"]))


if __name__ == "__main__":
    sys.exit(main())
