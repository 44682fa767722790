"""How long the graph core takes on large graphs, and whether its time grows with their size only.

    python bench/graph.py                 a table for 10,000 and 100,000 nodes
    python bench/graph.py --json out.json the same, as JSON too
    python bench/graph.py --sizes 1000 20000 --repeat 5

Every phase is the best of ``--repeat`` runs in one process, in seconds of processor time (it is one
thread, and a busy machine should not count). The results are checked before anything
is reported: each reading must give back an equal graph.
"""

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import darner
from darner import Graph

WIDTH = 64


def build(count: int) -> Graph:
    """A graph of about ``count`` nodes: residual blocks of element-wise ops under nested scopes."""
    graph = Graph("bench")
    x = graph.input("x", ("batch", WIDTH))
    mask = graph.input("mask", ("batch", 1))
    shared = x.tanh(label="shared")
    block = 0
    while len(graph) < count:
        with graph.scope(f"block{block}"):
            with graph.scope("norm"):
                scale = graph.parameter("scale", (WIDTH,))
                shift = graph.parameter("shift", (WIDTH,))
                h = (x * scale + shift).clip(-3.0, 3.0)
            with graph.scope("gate"):
                value = (h * 0.5 + shared).tanh(label="value")
                gate = 1.0 / (1.0 + (-h).exp())
                chosen = graph.where((mask > 0.0), value * gate, graph.mul(h, 0.1), label="chosen")
            average = graph.state("average", (WIDTH,))
            graph.set_update(average, average * 0.9 + scale.abs() * 0.1)
            x = graph.maximum(x - chosen.square(), -10.0, label="residual")
        block += 1
    graph.set_outputs([x, shared])
    return graph


def phases(count: int) -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Each phase as a function of the results of the phases before it."""
    return {
        "build": lambda done: build(count),
        "verify": lambda done: done["build"].verify(),
        "to_text": lambda done: done["build"].to_text(),
        "digest": lambda done: done["build"].digest(),
        "to_json": lambda done: done["build"].to_json(),
        "from_json": lambda done: Graph.from_json(done["to_json"]),
        "from_text": lambda done: Graph.from_text(done["to_text"]),
        "copy": lambda done: done["build"].copy(),
        "toposort": lambda done: done["build"].toposort(),
        "bind": lambda done: done["build"].bind(batch=32),
        "expand": lambda done: darner.expand(done["build"]),
        "users": lambda done: sum(len(done["build"].users(i)) for i in range(len(done["build"]))),
    }


def measure(count: int, repeat: int) -> tuple[int, dict[str, float]]:
    """The number of nodes and the best time of each phase, in seconds."""
    done: dict[str, Any] = {}
    times: dict[str, float] = {}
    for name, phase in phases(count).items():
        best = float("inf")
        for _ in range(repeat):
            gc.collect()
            start = time.process_time()
            done[name] = phase(done)
            best = min(best, time.process_time() - start)
        times[name] = best
    check(done)
    return len(done["build"]), times


def check(done: dict[str, Any]) -> None:
    """The figures mean nothing unless the answers are right."""
    graph = done["build"]
    for name in ("from_json", "from_text", "copy", "toposort"):
        assert done[name] == graph, name
    assert done["from_json"].to_json() == done["to_json"]
    assert done["from_text"].to_text() == done["to_text"]
    assert not done["bind"].has_dynamic_dims()
    assert done["users"] == sum(len(set(node.inputs)) for node in graph.nodes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    runs = [measure(size, options.repeat) for size in options.sizes]
    names = list(runs[0][1])
    ratios = {name: runs[-1][1][name] / runs[0][1][name] for name in names}
    heads = [f"{count:,}" for count, _ in runs]
    print(f"{'seconds, by nodes':20}" + "".join(f"{head:>12}" for head in heads) + f"{'ratio':>10}")
    for name in names:
        cells = "".join(f"{times[name]:12.4f}" for _, times in runs)
        print(f"{name:20}{cells}{ratios[name]:10.1f}")
    if options.json is not None:
        figures = {
            "bench": "graph",
            "python": platform.python_version(),
            "machine": platform.machine(),
            "repeat": options.repeat,
            "runs": [{"nodes": count, "seconds": times} for count, times in runs],
            "ratio": ratios,
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
