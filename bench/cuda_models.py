"""SmolLM2-135M, a Llama of 1.1 billion parameters and GPT-2 on an NVIDIA GPU: how long a step takes, and which kernels it has.

    python -m bench.cuda_models                         SmolLM2-135M, in bf16, tf32 and f32
    python -m bench.cuda_models llama1b.decode-bf16 gpt2.decode-bf16
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

import numpy as np

import darner
from darner.backends.cuda.kernels import template_of

from .peers import engine_darner
from .peers.workloads import Llama, Llama1b, Smollm, Weight

MODES: dict[str, dict[str, Any]] = {
    "train": {"mode": "train", "batch": 4, "sequence": 512},
    "prefill128": {"mode": "forward", "batch": 1, "sequence": 128},
    "prefill2048": {"mode": "forward", "batch": 1, "sequence": 2048},
    "decode": {"mode": "decode", "batch": 1, "sequence": 512},
}
LARGE: dict[str, dict[str, Any]] = {
    "llama1b.train": {"mode": "train", "batch": 4, "sequence": 512},
    "llama1b.prefill128": {"mode": "forward", "sequence": 128},
    "llama1b.decode": {"mode": "decode", "sequence": 1024},
    "llama1b.decode8k": {"mode": "decode", "sequence": 8192},
    "llama1b.decode32k": {"mode": "decode", "sequence": 32768},
}
PRECISIONS = ("bf16", "tf32", "f32")
GPT2 = "gpt2.decode"


def filled_gpt2(device: str, precision: Any, cache: int = 512) -> tuple[darner.Session, float]:
    """A session of GPT-2 that decodes the last token of a cache."""
    from darner.models import gpt2

    graph = gpt2.GPT2(gpt2.GPT2Config()).cached_graph(cache=cache)
    started = time.perf_counter()
    session = darner.build_inference_session(
        graph, device=device, precision=precision, cache=None, progress=False
    )
    session.compile()
    spent = time.perf_counter() - started
    for name in session.param_names():
        shape = np.asarray(session.get_parameter(name)).shape
        session.set_parameter(name, Weight(shape, 0.02).value(name))
    session.set_input("tokens", np.array([[7]], np.int32))
    session.set_input("position", np.array([cache - 1], np.int32))
    return session, spent


def filled(workload: Llama, device: str, precision: str) -> tuple[darner.Session, float]:
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
    usual = [f"{mode}-{precision}" for precision in PRECISIONS for mode in MODES]
    names = [*usual, *(f"{m}-{p}" for m in (*LARGE, GPT2) for p in PRECISIONS)]
    parser.add_argument("cases", nargs="*", help=", ".join(names))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, help="instead of all that a model has")
    parser.add_argument("--top", type=int, default=0, help="how many kernels are listed")
    given = parser.parse_args()
    for name in given.cases or usual:
        if name not in names:
            parser.error(f"there is no case {name}: {', '.join(names)}")
        mode, _, precision = name.partition("-")
        layers = {} if given.layers is None else {"layers": given.layers}
        if mode == GPT2:
            session, spent = filled_gpt2(given.device, precision)
        elif mode in LARGE:
            session, spent = filled(Llama1b(**LARGE[mode], **layers), given.device, precision)
        else:
            session, spent = filled(Smollm(**MODES[mode], **layers), given.device, precision)
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
