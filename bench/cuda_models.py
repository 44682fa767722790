"""SmolLM2-135M and a perceptron on an NVIDIA GPU: how long a step takes, and which kernels it has.

    python -m bench.cuda_models                         all, in bf16, tf32 and f32
    python -m bench.cuda_models train-bf16 decode-f32   some
    python -m bench.cuda_models --layers 2 --device cuda:emulated decode-bf16

A step is timed with the wait for it, and as one of many that follow each other. Kernels of equal specs are one line, longest first: each is timed by events around it, which adds 2 to 3 us.
"""

import argparse
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any

import darner
from darner.backends.cuda.kernels import template_of

from .peers import engine_darner
from .peers.workloads import Smollm

MODES: dict[str, dict[str, Any]] = {
    "train": {"mode": "train", "batch": 4, "sequence": 512},
    "prefill128": {"mode": "forward", "batch": 1, "sequence": 128},
    "prefill2048": {"mode": "forward", "batch": 1, "sequence": 2048},
    "decode": {"mode": "decode", "batch": 1, "sequence": 512},
}
PRECISIONS = ("bf16", "tf32", "f32")


def filled(workload: Smollm, device: str, precision: str) -> tuple[darner.Session, float]:
    """A session with its weights, caches and inputs, and the seconds it took to build without a cache."""
    graph = engine_darner.graph(workload)
    started = time.perf_counter()
    options: dict[str, Any] = {"device": device, "precision": precision, "progress": False}
    if workload.trains:
        optimizer = engine_darner.optimizer(workload)
        session = darner.build_session(graph, optimizer=optimizer, cache=None, **options)
    else:
        session = darner.build_inference_session(graph, cache=None, **options)
    session.compile()
    spent = time.perf_counter() - started
    for name, value in workload.values():
        session.set_parameter(name, value)
    session.state().update(workload.caches())
    for name, value in engine_darner.data(workload).items():
        session.set_input(name, value)
    return session, spent


def llama_steps(device: str, precision: str) -> None:
    """A few steps of a small Llama, whose products and attention are those of large ones: what a sanitizer watches."""
    sizes = {"layers": 1, "width": 192, "heads": 3, "kv_heads": 1, "inner": 256, "vocabulary": 512}
    workload = Smollm(mode="train", batch=2, sequence=160, **sizes)
    session, _ = filled(workload, device, precision)
    for _ in range(2):
        session.step()
        session.wait()
    if not math.isfinite(session.read_loss()):
        raise SystemExit("the loss is not finite")
    session.close()


def timed(session: darner.Session, count: int = 20) -> tuple[float, float]:
    """Seconds of a step that is waited for, and of one of many."""
    alone = []
    for _ in range(count):
        started = time.perf_counter()
        session.step()
        session.wait()
        alone.append(time.perf_counter() - started)
    started = time.perf_counter()
    for _ in range(count):
        session.step()
    session.wait()
    return statistics.median(alone), (time.perf_counter() - started) / count


def kernels(session: darner.Session, top: int) -> Iterator[str]:
    """The kernels of a step, equal ones together."""
    session.set_profiling()
    for _ in range(4):
        session.step()
        session.wait()
    profile = session.profile()
    runner = session._runner
    plan: Any = runner.ran().plans.step
    program: Any = runner.loaded(runner.ran()).program
    first = {kernel.spec: kernel.number for kernel in reversed(profile.kernels)}
    for group in profile.specs[:top]:
        if first[group.name] < 0:
            continue
        kernel = plan.kernels[first[group.name]]
        template = template_of(plan.spec(kernel), program.device.machine)
        types = [
            ";".join(str(plan.buffers[number].type).replace(" ", "") for number in numbers)
            for numbers in (kernel.operands, kernel.results)
        ]
        made = "" if template is None else template.name
        yield (
            f"{group.seconds * 1e6:9.1f} us  {group.kernels:3d} x {group.seconds / group.kernels * 1e6:7.2f}  "
            f"{group.gigabytes:5.0f} GB/s  {group.gflops / 1e3:6.1f} TFLOP/s  {made:16s}  {group.ops[:40]:40s}  {types[0]} -> {types[1]}"
        )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    names = [f"{mode}-{precision}" for precision in PRECISIONS for mode in MODES]
    parser.add_argument("cases", nargs="*", help=", ".join(names))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--top", type=int, default=0, help="how many kernels are listed")
    given = parser.parse_args()
    for name in given.cases or names:
        if name not in names:
            parser.error(f"there is no case {name}: {', '.join(names)}")
        mode, _, precision = name.partition("-")
        session, spent = filled(Smollm(layers=given.layers, **MODES[mode]), given.device, precision)
        alone, among = timed(session)
        print(
            f"{name}: build {spent:.2f} s, step and wait {alone * 1e3:.3f} ms, one of many {among * 1e3:.3f} ms",
            flush=True,
        )
        for line in kernels(session, given.top) if given.top else ():
            print("  " + line)
        session.close()


if __name__ == "__main__":
    main()
