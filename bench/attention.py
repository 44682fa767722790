"""How fast attention runs beside torch's scaled_dot_product_attention: turns taken, results compared first.

    python bench/attention.py                     one line of JSON for each shape and pass
    python bench/attention.py --threads 1 --rounds 15 --only decode

``forward`` is the result alone; ``both`` the result and the gradients of queries, keys and values. Times are medians of
the rounds in microseconds, with one thread of its processor time; the ratio is torch's time over ours, and the median of the
rounds' ratios.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import darner
from darner.backends.cpu.program import CpuProgram
from darner.lower.lower import lower

WHOLE = ("scaled_dot_attention", "scaled_dot_attention_backward")


@dataclass(frozen=True)
class Shape:
    """One attention to measure."""

    name: str
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    causal: bool = False


SHAPES = [
    Shape("llama", 1, 9, 3, 128, 128, 64, causal=True),
    Shape("batch", 4, 12, 12, 256, 256, 64),
    Shape("long", 1, 16, 16, 1024, 1024, 64, causal=True),
    Shape("decode", 1, 9, 3, 1, 512, 64),
]


def burst(call: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """Seconds of one call: the mean over a burst, after a few that do not count."""
    for _ in range(3):
        call()
    count, start = 0, clock()
    while True:
        call()
        count += 1
        elapsed = clock() - start
        if elapsed > seconds:
            return elapsed / count


def ours(shape: Shape, both: bool, arrays: dict[str, Any], threads: int) -> CpuProgram:
    """The native program, its inputs filled."""
    g = darner.Graph()
    q, k, v, dy = (g.input(name, arrays[name].shape) for name in ("q", "k", "v", "dy"))
    y = g.scaled_dot_attention(q, k, v, causal=shape.causal)
    outputs = [y]
    if both:
        outputs += list(g.scaled_dot_attention_backward(q, k, v, dy, causal=shape.causal))
    g.set_outputs(outputs)
    program = CpuProgram(lower(g, target="cpu", whole=WHOLE), threads=threads)
    for name, number in program.plan.leaves("input").items():
        program.arrays[number][...] = arrays[name]
    return program


def theirs(shape: Shape, both: bool, arrays: dict[str, Any]) -> Callable[[], list[Any]]:
    """Torch's results."""
    q, k, v, dy = (torch.tensor(arrays[name]) for name in ("q", "k", "v", "dy"))
    attend = torch.nn.functional.scaled_dot_product_attention
    options = {"is_causal": shape.causal, "enable_gqa": shape.heads != shape.kv_heads}
    if not both:

        def forward() -> list[Any]:
            with torch.no_grad():
                return [attend(q, k, v, **options)]

        return forward
    for item in (q, k, v):
        item.requires_grad_()

    def gradients() -> list[Any]:
        y = attend(q, k, v, **options)
        return [y, *torch.autograd.grad(y, (q, k, v), dy)]

    return gradients


def measure(shape: Shape, both: bool, arguments: argparse.Namespace) -> dict[str, Any]:
    """One line."""
    rng = np.random.default_rng(0)
    lead = (shape.batch, shape.heads, shape.queries, shape.width)
    kept = (shape.batch, shape.kv_heads, shape.keys, shape.width)
    arrays = {
        name: rng.standard_normal(size).astype(np.float32)
        for name, size in (("q", lead), ("k", kept), ("v", kept), ("dy", lead))
    }
    start = time.perf_counter()
    program = ours(shape, both, arrays, arguments.threads)
    compiling = time.perf_counter() - start
    other = theirs(shape, both, arrays)
    program.run()
    for number, wanted in zip(program.plan.outputs, other(), strict=True):
        error = np.abs(program.arrays[number] - wanted.detach().numpy()).max()
        if not error < 1e-4 * max(1.0, math.sqrt(shape.keys) / 10):
            raise SystemExit(f"{shape.name}: results differ by {error}")
    calls = {"ours": program.run, "torch": other}
    # One thread's own time is not disturbed by what else the machine does.
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(arguments.rounds):
        for name in list(calls) if turn % 2 else list(calls)[::-1]:
            times[name].append(burst(calls[name], arguments.seconds, clock))
    program.close()
    ratios = [t / o for o, t in zip(times["ours"], times["torch"], strict=True)]
    pairs = shape.queries * shape.keys
    if shape.causal:
        pairs = sum(min(shape.keys, i + 1) for i in range(shape.queries))
    # The fewest products that do it: two forward, five for the gradients.
    products = 7 if both else 2
    work = 2 * products * shape.batch * shape.heads * pairs * shape.width
    mean = statistics.median(times["ours"])
    return {
        "shape": shape.name,
        "pass": "both" if both else "forward",
        "ours_us": round(1e6 * mean, 1),
        "torch_us": round(1e6 * statistics.median(times["torch"]), 1),
        "ratio": round(statistics.median(ratios), 2),
        "ours_gflops": round(1e-9 * work / mean, 1),
        "threads": arguments.threads,
        "compile_ms": round(1e3 * compiling),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.1, help="of one burst")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="the name of one shape")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for shape in SHAPES:
        if arguments.only in (None, shape.name):
            for both in (False, True):
                print(json.dumps(measure(shape, both, arguments)), flush=True)


if __name__ == "__main__":
    main()
