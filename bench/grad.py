"""How long it takes to differentiate a deep model, and whether that grows with its depth only.

    python bench/grad.py                  a table for 1, 8 and 30 layers
    python bench/grad.py --json out.json  the same, as JSON too
    python bench/grad.py --profile        where the time of the deepest one goes

The model is shaped like SmolLM2-135M (30 layers of width 576, 9 query and 3 key heads, 49,152 words) over 128 tokens.
Only graphs are built; nothing is run. Every figure is the best of ``--repeat`` runs in one process, in seconds of
processor time; the first run of the deepest is given too, which finds every memo empty. The graphs are checked before anything is
reported: every node is used, and each layer adds the same number of nodes.
"""

import argparse
import cProfile
import gc
import json
import platform
import pstats
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import darner
from darner import Graph

LENGTH, WIDTH, HEADS, KEY_HEADS, INNER, VOCABULARY = 128, 576, 9, 3, 1536, 49152
HEAD = WIDTH // HEADS
TARGET = 2.0
"""Seconds that the gradient of 30 layers may take."""


def build(layers: int) -> Graph:
    """A Llama with a loss over the next tokens."""
    graph = Graph("smollm2")
    tokens = graph.input("tokens", (LENGTH,), "i32")
    labels = graph.input("labels", (LENGTH,), "i32")
    words = graph.parameter("words", (VOCABULARY, WIDTH))

    def linear(name: str, x: Any, out: int) -> Any:
        return x @ graph.parameter(name, (x.shape[-1], out))

    x = graph.embedding(tokens, words)
    for i in range(layers):
        with graph.scope(f"layer{i}"):
            h = graph.rms_norm(x, graph.parameter("ln1", (WIDTH,)))
            q = graph.rope(linear("q", h, HEADS * HEAD), 10000.0, HEAD)
            k = graph.rope(linear("k", h, KEY_HEADS * HEAD), 10000.0, HEAD)
            v = linear("v", h, KEY_HEADS * HEAD)
            y = graph.causal_attention(q, k, v, HEADS, KEY_HEADS, HEAD)
            x = x + linear("o", y, WIDTH)
            h = graph.rms_norm(x, graph.parameter("ln2", (WIDTH,)))
            x = x + linear(
                "down", graph.swiglu(linear("gate", h, INNER), linear("up", h, INNER)), WIDTH
            )
    logits = graph.rms_norm(x, graph.parameter("last", (WIDTH,))) @ words.T
    graph.set_outputs([graph.cross_entropy_loss(logits, labels)])
    return graph


TRANSFORMS: dict[str, Callable[[Graph], Graph]] = {
    "grad": darner.grad,
    "value_and_grad": darner.value_and_grad,
    "jvp": darner.jvp,
    "hvp": darner.hvp,
    "grad of one layer": lambda graph: darner.grad(graph, "layer0.q"),
    "vmap of grad": lambda graph: darner.vmap(darner.grad(graph), ["tokens", "labels"], 8),
}


def measure(layers: int, repeat: int) -> dict[str, Any]:
    """Nodes and seconds of each transform of one model."""
    start = time.process_time()
    graph = build(layers)
    figures: dict[str, Any] = {"layers": layers, "nodes": len(graph)}
    figures["build"] = time.process_time() - start
    figures["transforms"] = {}
    for name, transform in TRANSFORMS.items():
        times = []
        for _ in range(repeat):
            gc.collect()
            start = time.process_time()
            result = transform(graph)
            times.append(time.process_time() - start)
        check(result, name)
        figures["transforms"][name] = {
            "nodes": len(result),
            "first": times[0],
            "seconds": min(times),
        }
    return figures


def check(graph: Graph, name: str) -> None:
    """The figures mean nothing unless the graph is whole and lean."""
    graph.verify()
    unused = [
        n
        for n in graph.nodes
        if n.name is None and not graph.use_count(n) and not graph.is_output(n)
    ]
    assert not unused, f"{name}: {len(unused)} nodes are not used"


def check_growth(runs: list[dict[str, Any]]) -> None:
    """Each layer must add the same number of nodes, at any depth."""
    for name in TRANSFORMS:
        slopes = {
            (after["transforms"][name]["nodes"] - before["transforms"][name]["nodes"])
            / (after["layers"] - before["layers"])
            for before, after in pairwise(runs)
        }
        assert len(slopes) <= 1, f"{name}: layers of one model differ in nodes: {slopes}"


def profile(layers: int) -> None:
    """Where the time goes."""
    graph = build(layers)
    darner.grad(graph)
    profiler = cProfile.Profile()
    profiler.runcall(darner.grad, graph)
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 8, 30])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    if options.profile:
        profile(max(options.layers))
        return
    # The deepest comes first, so that its first run finds every memo empty.
    runs = [measure(layers, options.repeat) for layers in sorted(options.layers, reverse=True)][
        ::-1
    ]
    check_growth(runs)
    print(f"{'seconds and nodes, by layers':28}" + "".join(f"{run['layers']:>18}" for run in runs))
    for name in TRANSFORMS:
        cells = [run["transforms"][name] for run in runs]
        shown = "".join(f"{cell['seconds']:10.3f} {cell['nodes']:7}" for cell in cells)
        print(f"{name:28}{shown}")
    deepest = runs[-1]["transforms"]["grad"]
    print(f"the first grad took {deepest['first']:.3f} s; the target is {TARGET} s for 30 layers")
    if options.json is not None:
        figures = {
            "bench": "grad",
            "python": platform.python_version(),
            "machine": platform.machine(),
            "repeat": options.repeat,
            "target": TARGET,
            "runs": runs,
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
