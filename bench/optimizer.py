"""How long the optimizer takes in a cold process, and whether that grows with depth.

    python bench/optimizer.py                  SmolLM2-135M: forward (inference) and training, at several depths
    python bench/optimizer.py --json out.json  the same, as JSON too
    python bench/optimizer.py --profile        where the time of the training graph goes

Every figure is one call in a process of its own, in which darner is imported and the graph is built, but nothing of the optimizer is
loaded yet: egglog, HiGHS and the rules are part of the time. "training" is all of it: the forward graph optimized, differentiated, and
the result optimized again; "whole" is one optimization of the graph of loss and gradients as ``value_and_grad`` makes it.
Results are checked before times count: every layer must have its joint products (Q, K and V; gate and up), the fusions must grow by
the same number with every layer, and no graph may be predicted to be slower than it was.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGETS = {"training": 1.5, "whole": 1.5, "forward": 0.5}
"""Seconds for 30 layers; 120 layers may take twice as long."""


def once(kind: str, layers: int) -> dict[str, Any]:
    """One optimization in this process."""
    sys.path.insert(0, str(HERE))
    from grad import build

    import darner

    graph = build(layers)
    if kind == "whole":
        graph = darner.value_and_grad(graph)
    start = time.perf_counter()
    if kind == "forward":
        result, report = darner.optimize_inference(graph)
    elif kind == "training":
        result, report = darner.optimize_training(graph)
    else:
        result, report = darner.optimize(graph, report=True)
    seconds = time.perf_counter() - start
    result.verify()
    products = sum(
        node.op.name == "concat" and all(n.op.name == "parameter" for n in node.operands)
        for node in result.nodes
    )
    last = report.passes[-1]
    return {
        "kind": kind,
        "layers": layers,
        "seconds": seconds,
        "phases": [dict(item.phases) for item in report.passes],
        "nodes": [report.passes[0].nodes_before, report.nodes_after],
        "fusions": len(last.fusions),
        "joint": products,
        "predicted": [last.before.seconds, last.after.seconds],
        "exact": all(block.exact for item in report.passes for block in item.blocks),
        "digest": result.digest(),
    }


def cold(kind: str, layers: int, hashes: int) -> dict[str, Any]:
    """The same in a new process."""
    command = [sys.executable, __file__, "--once", kind, "--layers", str(layers)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hashes)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    result: dict[str, Any] = json.loads(found.stdout)
    return result


def check(runs: dict[tuple[str, int], list[dict[str, Any]]]) -> None:
    """The figures mean nothing unless the result is right."""
    for (kind, layers), repeats in runs.items():
        first = repeats[0]
        assert first["joint"] == 2 * layers, f"{kind}, {layers} layers: {first['joint']} joint"
        assert first["predicted"][1] <= first["predicted"][0], f"{kind}: slower than it was"
        digests = {run["digest"] for run in repeats}
        assert len(digests) == 1, f"{kind}, {layers} layers: processes disagree"
    for kind in TARGETS:
        found = sorted(
            (layers, run[0]["fusions"]) for (k, layers), run in runs.items() if k == kind
        )
        slopes = {(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(found)}
        assert len(slopes) <= 1, f"{kind}: fusions do not grow evenly: {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2, 17, 30, 60, 120])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--once", choices=list(TARGETS), help="one run in this process, as JSON")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once, options.layers[0])))
        return
    if options.profile:
        import cProfile
        import pstats

        profiler = cProfile.Profile()
        profiler.runcall(once, "training", 30)
        pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
        return
    cold("forward", 1, 0)  # compiles the modules that are not yet
    runs = {}
    for kind in TARGETS:
        for layers in options.layers:
            runs[kind, layers] = [cold(kind, layers, 1 + i) for i in range(options.repeat)]
    check(runs)
    print(f"{'median seconds, by layers':26}" + "".join(f"{n:>10}" for n in options.layers))
    for kind in TARGETS:
        times = [statistics.median(r["seconds"] for r in runs[kind, n]) for n in options.layers]
        print(f"{kind:26}" + "".join(f"{seconds:10.3f}" for seconds in times))
    for kind in TARGETS:
        counts = [runs[kind, n][0]["fusions"] for n in options.layers]
        print(f"{kind + ', fusions':26}" + "".join(f"{count:10}" for count in counts))
    if {30, 120} <= set(options.layers):
        for kind in TARGETS:
            few, many = (statistics.median(r["seconds"] for r in runs[kind, n]) for n in (30, 120))
            print(f"{kind}: 120 layers take {many / few:.2f} times as long as 30")
    print(f"targets at 30 layers: {TARGETS}; 120 layers in less than twice the time of 30")
    if options.json is not None:
        figures = {
            "bench": "optimize",
            "python": platform.python_version(),
            "machine": platform.machine(),
            "targets": TARGETS,
            "runs": [run for repeats in runs.values() for run in repeats],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
