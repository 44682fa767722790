"""Steps of models in each precision, in turns, on any device.

    python -m bench.precision                         # llama-s on the CPU: forward, train, decode
    python -m bench.precision --device gpu --only train --precisions f32 bf16

A block of llama-s is as in the other benchmarks: width 576, 9 heads of which 3 have keys, SwiGLU 1536; four of them, a vocabulary of 8192, 128 tokens. What the precisions
compute is compared first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

import darner
from darner import optim
from darner.graph.precision import PRECISIONS
from darner.models.llama import Llama, LlamaConfig

CONFIG = LlamaConfig(
    vocab_size=8192,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=4,
    num_attention_heads=9,
    num_key_value_heads=3,
    rms_norm_eps=1e-5,
)
TOKENS, CACHE = 128, 128


def session(what: str, precision: str, device: str, threads: int | None) -> darner.Session:
    """What is timed."""
    model = Llama(CONFIG)
    options: dict[str, Any] = {"device": device, "threads": threads, "precision": precision}
    options["init"] = "normal"
    if what == "train":
        graph = model.training_graph(batch=1, length=TOKENS)
        return darner.build_session(graph, optimizer=optim.Adam(1e-3), **options)
    if what == "decode":
        graph = model.cached_graph(batch=1, length=1, cache=CACHE)
    else:
        graph = model.inference_graph(batch=1, length=TOKENS)
    return darner.build_inference_session(graph, **options)


def inputs_of(graph: darner.Graph) -> dict[str, np.ndarray[Any, Any]]:
    """Tokens; whatever else there is begins at 0."""
    rng = np.random.default_rng(0)
    return {
        name: (
            rng.integers(0, CONFIG.vocab_size, leaf.shape)
            if leaf.rank == 2
            else np.zeros(leaf.shape)
        ).astype(leaf.dtype.numpy)
        for name, leaf in graph.inputs.items()
    }


def compare(what: str, precisions: Sequence[str], options: argparse.Namespace) -> None:
    """Print the median step of each precision, and how far its results are from those of the first."""
    opened = {name: session(what, name, options.device, options.threads) for name in precisions}
    given = inputs_of(opened[precisions[0]].graph)
    first: np.ndarray[Any, Any] | None = None
    off: dict[str, float] = {}
    for name, one in opened.items():
        found = next(iter(one.run(given).values()))
        first = found if first is None else first
        off[name] = float(np.abs(found - first).max() / np.abs(first).max())
    times: dict[str, list[float]] = {name: [] for name in precisions}
    for _ in range(options.rounds):
        for name, one in opened.items():
            for key, value in given.items():
                one.set_input(key, value)
            for _ in range(3):
                start = time.perf_counter()
                one.step()
                one.wait()
                times[name].append(time.perf_counter() - start)
    base = statistics.median(times[precisions[0]])
    for name, one in opened.items():
        median = statistics.median(times[name])
        arena = one.plan().arena_bytes / 2**20
        print(
            f"llama-s.{what:8} {name:5} {median * 1e3:8.2f} ms  {median / base:5.2f} of {precisions[0]}"
            f"  arena {arena:7.1f} MiB  off by {off[name]:.1e}"
        )
        one.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", default=["forward", "train", "decode"])
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    options = parser.parse_args()
    for what in options.only:
        compare(what, options.precisions, options)


if __name__ == "__main__":
    main()
