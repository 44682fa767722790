"""How fast convolutions run beside PyTorch's: turns taken, results compared first, one JSON line for each case.

    python bench/conv.py                        forward, and forward with both gradients
    python bench/conv.py --threads 1 --rounds 9 --only 7x7

Both get tensors [batch, channels, height, width] as they are, and weights as they are. Ours writes into memory that was allocated once, PyTorch allocates
its results, as its users do. A figure is the median of its rounds; the ratio, PyTorch's time over ours, is the median of the rounds' ratios, which a busy
neighbour disturbs less than either.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from darner import Graph
from darner.backends.cpu.program import CpuProgram
from darner.lower.lower import lower
from darner.ops.conv import conv, conv_input_grad, conv_weight_grad

CASES: dict[str, dict[str, Any]] = {
    "(4,64,16,16) 3x3 -> 64": {"x": (4, 64, 16, 16), "w": (64, 64, 3, 3), "padding": 1},
    "(4,128,8,8) 3x3 -> 128": {"x": (4, 128, 8, 8), "w": (128, 128, 3, 3), "padding": 1},
    "(8,3,64,64) 7x7 s2 -> 64": {
        "x": (8, 3, 64, 64),
        "w": (64, 3, 7, 7),
        "padding": 3,
        "stride": 2,
    },
    "(4,64,56,56) 1x1 -> 256": {"x": (4, 64, 56, 56), "w": (256, 64, 1, 1)},
    "(4,96,28,28) 3x3 depthwise": {
        "x": (4, 96, 28, 28),
        "w": (96, 1, 3, 3),
        "padding": 1,
        "groups": 96,
    },
    "(2,37,29,31) 3x3 -> 53": {"x": (2, 37, 29, 31), "w": (53, 37, 3, 3), "padding": 1},
    "(4,64,64,64) 3x3 -> 64": {"x": (4, 64, 64, 64), "w": (64, 64, 3, 3), "padding": 1},
    "(4,256,16,16) 3x3 -> 256": {"x": (4, 256, 16, 16), "w": (256, 256, 3, 3), "padding": 1},
    "(4,512,8,8) 3x3 -> 512": {"x": (4, 512, 8, 8), "w": (512, 512, 3, 3), "padding": 1},
    "(3,17,23,29) 3x3 -> 19": {"x": (3, 17, 23, 29), "w": (19, 17, 3, 3), "padding": 1},
    "(2,5,31,37) 5x5 -> 17": {"x": (2, 5, 31, 37), "w": (17, 5, 5, 5), "padding": 2},
    "(4,64,28,28) 3x3, 4 groups -> 64": {
        "x": (4, 64, 28, 28),
        "w": (64, 16, 3, 3),
        "padding": 1,
        "groups": 4,
    },
    "(4,64,28,28) 3x3 s2 -> 128": {
        "x": (4, 64, 28, 28),
        "w": (128, 64, 3, 3),
        "padding": 1,
        "stride": 2,
    },
}
WHOLE = ("conv", "conv_input_grad", "conv_weight_grad")


def burst(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call: the mean over a burst."""
    start = time.perf_counter()
    count = 0
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed > seconds:
            return elapsed / count


def attributes(case: dict[str, Any]) -> dict[str, Any]:
    return {
        "stride": (case.get("stride", 1),) * 2,
        "padding": ((case.get("padding", 0),) * 2,) * 2,
        "groups": case.get("groups", 1),
    }


def program(case: dict[str, Any], parts: str, threads: int, dy_shape: Any) -> CpuProgram:
    """The forward pass (``f``), the gradients towards the input (``i``) and the weight (``w``), as asked."""
    graph = Graph()
    x, w = graph.input("x", case["x"]), graph.input("w", case["w"])
    attrs = attributes(case)
    outputs = []
    if "f" in parts:
        outputs.append(conv(x, w, **attrs))
    if "i" in parts or "w" in parts:
        dy = graph.input("dy", dy_shape)
    if "i" in parts:
        outputs.append(conv_input_grad(dy, w, sizes=case["x"][2:], **attrs))
    if "w" in parts:
        outputs.append(conv_weight_grad(x, dy, kernel=case["w"][2:], **attrs))
    graph.set_outputs(outputs)
    return CpuProgram(lower(graph, target="cpu", whole=WHOLE), threads=threads)


def measure(name: str, parts: str, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One case: both results compared, then both timed in turns."""
    case = CASES[name]
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal(case["x"], dtype=np.float32))
    w = torch.from_numpy(rng.standard_normal(case["w"], dtype=np.float32))
    stride, padding, groups = (
        case.get(k, d) for k, d in (("stride", 1), ("padding", 0), ("groups", 1))
    )
    backward = parts != "f"
    x.requires_grad_("i" in parts)
    w.requires_grad_("w" in parts)

    def forward() -> torch.Tensor:
        return torch.nn.functional.conv2d(x, w, None, stride, padding, 1, groups)

    y = forward().detach()
    dy = torch.from_numpy(rng.standard_normal(tuple(y.shape), dtype=np.float32))
    wanted_of = [tensor for tensor, part in ((x, "i"), (w, "w")) if part in parts]

    def theirs() -> list[torch.Tensor]:
        if not backward:
            with torch.no_grad():
                return [forward()]
        if "f" in parts:
            result = forward()
            return [result, *torch.autograd.grad(result, wanted_of, dy)]
        only = (False, True, False) if parts == "w" else (True, False, False)
        found = torch.ops.aten.convolution_backward(
            dy, x, w, None, [stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups, only
        )
        return [item for item in found if item is not None]

    ours = program(case, parts, threads, tuple(y.shape))
    plan = ours.plan
    for leaf, buffer in plan.leaves("input").items():
        ours.arrays[buffer][...] = {"x": x, "w": w, "dy": dy}[leaf].detach().numpy()
    ours.run()
    exact = [item.detach().numpy() for item in theirs()]
    for buffer, wanted in zip(plan.outputs, exact, strict=True):
        error = float(np.abs(ours.arrays[buffer] - wanted).max() / np.abs(wanted).max())
        if error > 2e-5:
            raise SystemExit(f"{name} {parts}: results differ by {error}")
    times: dict[str, list[float]] = {"ours": [], "torch": []}
    calls = {"ours": ours.run, "torch": theirs}
    for turn in range(rounds):
        for which in sorted(calls, reverse=bool(turn % 2)):
            times[which].append(burst(calls[which], seconds))
    products = y.numel() * int(np.prod(case["w"][1:]))
    work = 2e-9 * products * len(parts)
    ratios = [b / a for a, b in zip(times["ours"], times["torch"], strict=True)]
    ours.close()
    return {
        "case": name,
        "parts": {"f": "forward", "i": "input", "w": "weight", "fiw": "all"}[parts],
        "threads": threads,
        "ours_us": round(1e6 * statistics.median(times["ours"]), 1),
        "torch_us": round(1e6 * statistics.median(times["torch"]), 1),
        "ours_gflops": round(work / statistics.median(times["ours"]), 1),
        "ours_best_gflops": round(work / min(times["ours"]), 1),
        "torch_gflops": round(work / statistics.median(times["torch"]), 1),
        "ratio": round(statistics.median(ratios), 2),
    }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--only", default="")
    parser.add_argument("--parts", default="f,fiw", help="of f, i, w and fiw")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in CASES:
        if options.only not in name:
            continue
        for parts in options.parts.split(","):
            row = measure(name, parts, options.threads, options.rounds, options.seconds)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
