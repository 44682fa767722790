"""Training steps with weights side by side and apart, in turns: what `darner.optimizer.groups` is fitted to.

python bench/side_by_side.py                 all cases, one thread, processor time
python bench/side_by_side.py --threads 2     by the clock
python bench/side_by_side.py llama           those whose names begin so
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

import darner
from darner import Graph, optim

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.peers.engine_darner import data, graph
from bench.peers.workloads import Llama

Case = tuple[Graph, dict[str, np.ndarray], dict[str, np.ndarray]]


def llama(**sizes: int) -> Callable[[], Case]:
    """Layers of a Llama: queries, keys and values, gate and up."""

    def make() -> Case:
        workload = replace(Llama(mode="train"), **sizes)
        return graph(workload), data(workload), dict(workload.values())

    return make


def narrow(rows: int, depth: int, columns: int, parts: int) -> Callable[[], Case]:
    """Several narrow weights of one wide operand, as in the first halves of low-rank changes, or heads of a classifier."""

    def make() -> Case:
        g = Graph("narrow")
        x = g.input("x", (rows, depth)).tanh()
        rng = np.random.default_rng(0)
        values = {f"w{i}": rng.normal(0, depth**-0.5, (depth, columns)) for i in range(parts)}
        products = [x @ g.parameter(name, value.shape) for name, value in values.items()]
        total = sum((y.sin() * (i + 1.0)).square().mean() for i, y in enumerate(products))
        g.set_outputs([total])
        return g, {"x": rng.normal(size=(rows, depth)).astype(np.float32)}, values

    return make


CASES = {
    "llama 576, 16 tokens": llama(layers=2, sequence=16, vocabulary=512),
    "llama 576, 128 tokens": llama(layers=2, vocabulary=512),
    "llama 200, 77 tokens": llama(
        layers=2, sequence=77, width=200, heads=5, kv_heads=5, inner=523, vocabulary=300
    ),
    "llama 768, 128 tokens": llama(
        layers=1, width=768, heads=12, kv_heads=4, inner=2048, vocabulary=256
    ),
    "llama 1024, 128 tokens": llama(
        layers=1, width=1024, heads=16, kv_heads=16, inner=2752, vocabulary=256
    ),
    "narrow 32x576, 3 of 8": narrow(32, 576, 8, 3),
    "narrow 128x2048, 3 of 16": narrow(128, 2048, 16, 3),
    "narrow 128x2048, 3 of 64": narrow(128, 2048, 64, 3),
    "narrow 1024x576, 3 of 8": narrow(1024, 576, 8, 3),
    "narrow 128x576, 7 of 3": narrow(128, 576, 3, 7),
    "narrow 128x576, 2 of 192": narrow(128, 576, 192, 2),
}


def measure(name: str, threads: int, seconds: float) -> None:
    """One line: the time of a step apart, the share of it side by side, and what was predicted."""
    made, inputs, params = CASES[name]()
    sessions, losses = {}, {}
    for joined in (False, True):
        session = darner.build_session(
            made, optimizer=optim.Adam(1e-3), side_by_side=joined, threads=threads, progress=False
        )
        session.parameters().update(params)
        for key, value in inputs.items():
            session.set_input(key, value)
        for _ in range(3):
            session.step()
        sessions[joined], losses[joined] = session, session.read_loss()
    if not np.isclose(losses[True], losses[False], rtol=1e-3):
        raise SystemExit(f"{name}: the losses are {losses}")
    clock = time.process_time if threads == 1 else time.perf_counter
    times: dict[bool, list[float]] = {False: [], True: []}
    order, end = [False, True], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[True]) < 9:
        random.shuffle(order)
        for joined in order:
            sessions[joined].step()  # in caches that are its own
            start = clock()
            sessions[joined].step()
            times[joined].append(clock() - start)
    apart = statistics.median(times[False])
    ratio = statistics.median(b / a for a, b in zip(times[False], times[True], strict=True))
    told = sessions[True].report.passes[-1].notes
    print(f"{name:26} {apart * 1e3:8.3f} ms   x {ratio:.3f}   {'; '.join(told)}", flush=True)
    for session in sessions.values():
        session.close()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", default=[""], help="by the beginning of the name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each case")
    options = parser.parse_args()
    for name in CASES:
        if any(name.startswith(beginning) for beginning in options.cases):
            measure(name, options.threads, options.seconds)


if __name__ == "__main__":
    main()
