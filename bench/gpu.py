"""darner on a GPU: kernels as a share of what the card can do, and whole models; beside PyTorch on the same card where it is installed.

    python -m bench.gpu                 everything
    python -m bench.gpu gemm rows       some sections: gemm, memory, models, build
    python -m bench.gpu --device gpu:1

Results are compared with NumPy's or PyTorch's before a time counts. The time of a kernel is the difference of running it often and seldom in one submission, divided; models are timed as a
user has them: a step is started and waited for, and also many in a row.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import darner
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.native import dispatch_all
from darner.backends.wgpu.rates import measured_rates

from .peers.engine_darner import filled
from .peers.workloads import WORKLOADS

MODELS = (
    "mlp.train",
    "llama-s.forward",
    "llama-s.train",
    "llama-s.decode",
    "smollm2.forward b1 s128",
    "smollm2.decode b1",
    "smollm2.train",
)
TOLERANCE = 2e-3
"""Of losses and logits, relative to the largest: f32 sums in another order through thirty layers."""


def show(row: dict[str, Any]) -> None:
    """Print a result, and keep it."""
    ROWS.append(row)
    shown = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()]
    print("  ".join(shown), flush=True)


ROWS: list[dict[str, Any]] = []


def per_step(session: darner.Session, few: int = 3, many: int = 13) -> float:
    """Seconds of a step, when steps follow each other."""

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            session.step()
        session.wait()
        return time.perf_counter() - started

    run(few)
    return statistics.median(run(many) - run(few) for _ in range(5)) / (many - few)


def per_kernel(session: darner.Session, few: int = 2, many: int = 12) -> float:
    """Seconds of a step's kernels, when they follow each other in one submission."""
    program: Any = session._runner.loaded(session._runner.chosen({})).program
    calls = [call for one in program._calls for call in one]

    def run(count: int) -> float:
        encoder = program.device.encoder()
        compute = encoder.begin_compute_pass()
        dispatch_all(compute, calls * count)
        compute.end()
        started = time.perf_counter()
        program.device.submit(encoder)
        program.device.wait()
        return time.perf_counter() - started

    run(many)
    return (min(run(many) for _ in range(5)) - min(run(few) for _ in range(5))) / (many - few)


def single(make: Callable[..., Any], inputs: dict[str, np.ndarray], device: str) -> darner.Session:
    """A session of one expression over inputs that are on the device already."""
    graph = darner.Graph("kernel")
    kinds = {"float32": "f32", "float16": "f16", "int32": "i32"}
    nodes = [graph.input(n, v.shape, kinds[v.dtype.name]) for n, v in inputs.items()]
    made = make(graph, *nodes)
    graph.set_outputs(made if isinstance(made, list) else [made])
    session = darner.build_inference_session(graph, device=device, level=1, cache=False)
    for name, value in inputs.items():
        session.set_input(name, value)
    session.step()
    return session


def torch_gpu() -> Any:
    """PyTorch, where it is installed and sees a GPU."""
    try:
        import torch  # type: ignore[import-not-found]
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return torch


def gemm(device: str, sizes: tuple[tuple[int, int, int], ...]) -> None:
    """Products of matrices, beside cuBLAS in true f32."""
    torch, rng = torch_gpu(), np.random.default_rng(0)
    for m, n, k in sizes:
        for layout in ("NN", "NT", "TN"):
            a = rng.standard_normal((m, k) if layout[0] == "N" else (k, m), dtype=np.float32)
            b = rng.standard_normal((k, n) if layout[1] == "N" else (n, k), dtype=np.float32)

            def product(g: Any, x: Any, y: Any, layout: str = layout) -> Any:
                x = x if layout[0] == "N" else x.transpose((1, 0))
                y = y if layout[1] == "N" else y.transpose((1, 0))
                return x @ y

            session = single(product, {"a": a, "b": b}, device)
            found = session.read_output_by_index(0)
            rows = rng.integers(0, m, 8)
            left = a[rows] if layout[0] == "N" else a.T[rows]
            wanted = left.astype(np.float64) @ (b if layout[1] == "N" else b.T)
            error = float(np.abs(found[rows] - wanted).max() / np.abs(wanted).max())
            if not error < 1e-5:
                raise SystemExit(f"gemm {m}x{n}x{k} {layout} is wrong: {error}")
            rate = 2 * m * n * k / per_kernel(session) / 1e12
            row = {"what": f"gemm {m}x{n}x{k} {layout}", "TFLOP/s": rate, "error": error}
            session.close()
            if torch is not None:
                x, y = (torch.from_numpy(v).cuda() for v in (a, b))
                x = x if layout[0] == "N" else x.T
                y = y if layout[1] == "N" else y.T
                row["cuBLAS"] = 2 * m * n * k / timed_torch(torch, lambda x=x, y=y: x @ y) / 1e12
                row["ratio"] = rate / row["cuBLAS"]
            show(row)


def timed_torch(torch: Any, run: Callable[[], Any]) -> float:
    """Seconds of one of many."""
    for _ in range(3):
        run()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / 10)
    return statistics.median(times)


def memory(device: str, rows: int, length: int) -> None:
    """Kernels that move memory, as a share of copying."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, length), dtype=np.float32)
    y = rng.standard_normal((rows, length), dtype=np.float32)
    w = rng.standard_normal(length, dtype=np.float32)
    labels = rng.integers(0, length, rows).astype(np.int32)
    gpu, nbytes = opened(device), x.nbytes
    rates = measured_rates(gpu)
    copied = rates.bandwidth
    show({"what": "copy by a shader", "GB/s": copied / 1e9})
    show({"what": "multiply-adds of registers", "TFLOP/s": rates.flops / 1e12})
    show({"what": "dispatch", "us": rates.launch * 1e6, "processors": rates.processors})
    cases: dict[str, tuple[Callable[..., Any], dict[str, np.ndarray], float]] = {
        "x * 2 + 1": (lambda g, x: x * 2.0 + 1.0, {"x": x}, 2),
        "x + y": (lambda g, x, y: x + y, {"x": x, "y": y}, 3),
        "gelu": (lambda g, x: x.gelu(), {"x": x}, 2),
        "swiglu": (lambda g, x, y: x.swiglu(y), {"x": x, "y": y}, 3),
        "adam": (_adam, {"x": x, "y": y}, 5),
        "transpose": (lambda g, x: x.transpose((1, 0)) * 1.0, {"x": x}, 2),
        "softmax": (lambda g, x: x.softmax(-1), {"x": x}, 2),
        "rms_norm": (lambda g, x, w: x.rms_norm(w, 1e-5), {"x": x, "w": w}, 2),
        "layer_norm": (lambda g, x, w: x.layer_norm(w, w), {"x": x, "w": w}, 2),
        "sum of rows": (lambda g, x: x.sum(axis=1), {"x": x}, 1),
        "sum of columns": (lambda g, x: x.sum(axis=0), {"x": x}, 1),
        "sum of all": (lambda g, x: x.sum(), {"x": x}, 1),
        "argmax": (lambda g, x: x.argmax(axis=-1), {"x": x}, 1),
        "cross_entropy": (
            lambda g, x, t: x.cross_entropy_loss(t),
            {"x": x, "t": labels},
            1,
        ),
    }
    for name, (make, inputs, passes) in cases.items():
        try:
            session = single(make, inputs, device)
            checked(name, make, inputs, session)
            moved = passes * nbytes / per_kernel(session)
            show({"what": name, "GB/s": moved / 1e9, "of copy": moved / copied})
            session.close()
        except darner.DarnerError as error:
            show({"what": name, "failed": str(error)[:200]})


def _adam(g: Any, x: Any, y: Any) -> list[Any]:
    m, v = x * 0.9 + y * 0.1, y * 0.999 + x * x * 0.001
    return [m, v, x - m / (v.abs().sqrt() + 1e-8) * 1e-3]


def checked(
    name: str, make: Callable[..., Any], inputs: dict[str, np.ndarray], session: darner.Session
) -> None:
    """Compare some rows of the first output with the reference in f64, where rows do not depend on each other."""
    found = session.read_output_by_index(0)
    some = {n: v[:64] if v.ndim == 2 else v for n, v in inputs.items()}
    if name in ("sum of columns", "sum of all", "cross_entropy", "transpose"):
        x = inputs["x"].astype(np.float64)
        if name == "transpose":
            np.testing.assert_array_equal(found[:, :64], inputs["x"][:64].T)
        elif name != "cross_entropy":
            wanted = x.sum(axis=0 if name == "sum of columns" else None)
            np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-2)
        return
    graph = darner.Graph()
    kinds = {"float32": "f32", "int32": "i32"}
    nodes = [graph.input(n, v.shape, kinds[v.dtype.name]) for n, v in some.items()]
    made = make(graph, *nodes)
    graph.set_outputs(made if isinstance(made, list) else [made])
    wanted = darner.run(graph, some, float64=True)[0]
    np.testing.assert_allclose(found[:64], wanted, rtol=1e-4, atol=1e-5)


def models(device: str, names: tuple[str, ...], tune: bool = False) -> None:
    """Steps of whole models, started and waited for."""
    for name in names:
        workload = WORKLOADS[name]
        with tempfile.TemporaryDirectory() as folder:
            os.environ["BENCH_CACHE"] = folder
            session, cold = filled(workload, None, device, tune)
            session.close()
            session, warm = filled(workload, None, device, tune)
        row: dict[str, Any] = {"what": name, "build cold s": cold, "build warm s": warm}
        session.step()
        session.wait()
        found = session.read_output_by_index(0)
        row["result"] = float(found.reshape(-1)[0])
        peer = _torch_result(workload)
        if peer is not None:
            row["error"] = float(np.abs(found - peer).max() / np.abs(peer).max())
            if not row["error"] < TOLERANCE:
                row["WRONG"] = True
        # Cards that have had nothing to do take a while to reach their speed.
        until = time.perf_counter() + 1.0
        while time.perf_counter() < until:
            session.step()
            session.wait()
        times = []
        for _ in range(30):
            started = time.perf_counter()
            session.step()
            session.wait()
            times.append(time.perf_counter() - started)
        row["ms"] = 1e3 * statistics.median(times)
        row["best ms"] = 1e3 * min(times)
        row["ms, steps in a row"] = 1e3 * per_step(session)
        program = session._runner.loaded(session._runner.chosen({})).program
        row["kernels"] = len(program.plan.kernels)
        started = time.perf_counter()
        session.step()
        row["ms to start"] = 1e3 * (time.perf_counter() - started)
        session.wait()
        row["dispatches"] = sum(len(calls) for calls in program._calls)
        row["pipelines"] = program.pipelines
        show(row)
        session.close()


def _torch_result(workload: Any) -> Any:
    """The first result of the same work by PyTorch, on the processor."""
    try:
        from .peers.engine_torch import prepare
    except ImportError:
        return None
    try:
        engine = prepare(workload, os.cpu_count() or 1)
    except ImportError:
        return None
    return np.asarray(engine.read(engine.step()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sections", nargs="*", default=["gemm", "memory", "models"])
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--small", action="store_true", help="sizes for a software driver")
    parser.add_argument("--tune", action="store_true", help="time the ways to write kernels")
    parser.add_argument("--json", help="a file for the results")
    options = parser.parse_args()
    machine = opened(options.device).machine
    print(f"{machine.name}, {machine.kind}, {machine.api}, {machine.driver}", flush=True)
    if "gemm" in options.sections:
        large = ((4096, 4096, 4096), (4093, 4091, 4095), (1024, 1024, 1024), (128, 1536, 576))
        gemm(options.device, ((96, 64, 80),) if options.small else large)
    if "memory" in options.sections:
        memory(options.device, *((64, 100) if options.small else (16384, 8192)))
    if "models" in options.sections:
        models(options.device, tuple(options.models), options.tune)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine.to_json(), "rows": ROWS}, file, indent=1)


if __name__ == "__main__":
    main()
