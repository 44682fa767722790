"""How fast everything that is no product runs beside torch and NumPy: rows, element-wise code, copies, updates.

    python bench/rows.py                          one line a case and number of threads
    python bench/rows.py softmax norm --threads 1 --compile
    python bench/rows.py --beside ../other        and another checkout of darner, in turns

Every engine has a process of its own and they take turns; results are compared before times count. Times are medians of the rounds, in
microseconds. ``bandwidth`` is what the case must read and write at least, over the time, as a share of the machine's copy bandwidth (a large
``memcpy`` in the same minutes): above 1 for what fits a cache.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 5
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}


@dataclass(frozen=True)
class Case:
    """One thing to measure: inputs, what darner builds of them, what torch computes.

    Attributes:
        inputs: shapes, or arrays where random numbers will not do.
        build: from a graph and its inputs to outputs; with ``gradient`` the gradient of the first of these is taken.
        torch: the same from tensors.
        gradient: inputs by which the first output is differentiated, with the cotangent ``dy``.
    """

    inputs: dict[str, Any]
    build: Callable[..., Any]
    torch: Callable[..., Any]
    gradient: tuple[str, ...] = ()


def _functional() -> Any:
    import torch

    return torch.nn.functional


def cases() -> dict[str, Case]:
    """All of them, by name."""
    found: dict[str, Case] = {}
    rng = np.random.default_rng(0)

    def add(name: str, inputs: dict[str, Any], build: Any, other: Any, *gradient: str) -> None:
        found[name] = Case(inputs, build, other, gradient)

    for n, m in (
        (128, 576),
        (512, 512),
        (997, 1009),
        (128, 8192),
        (64, 49152),
        (4096, 1024),
        (7, 100003),
        (2081, 73),
        (5000, 9),
    ):
        size = f"{n}x{m}"
        add(f"softmax {size}", {"x": (n, m)}, lambda g, x: x.softmax(), lambda x: x.softmax(-1))
        add(
            f"softmax-backward {size}",
            {"x": (n, m), "dy": (n, m)},
            lambda g, x: x.softmax(),
            lambda x: x.softmax(-1),
            "x",
        )
    for n, m in ((128, 576), (997, 1009), (4096, 1024), (2048, 4096), (3, 65537)):
        size = f"{n}x{m}"
        add(
            f"rms-norm {size}",
            {"x": (n, m), "w": (m,)},
            lambda g, x, w: g.rms_norm(x, w, eps=1e-5),
            lambda x, w: _functional().rms_norm(x, w.shape, w, 1e-5),
        )
        add(
            f"layer-norm {size}",
            {"x": (n, m), "w": (m,), "b": (m,)},
            lambda g, x, w, b: g.layer_norm(x, w, b, eps=1e-5),
            lambda x, w, b: _functional().layer_norm(x, w.shape, w, b, 1e-5),
        )
        add(
            f"rms-norm-backward {size}",
            {"x": (n, m), "w": (m,), "dy": (n, m)},
            lambda g, x, w: g.rms_norm(x, w, eps=1e-5),
            lambda x, w: _functional().rms_norm(x, w.shape, w, 1e-5),
            "x",
            "w",
        )
        add(
            f"layer-norm-backward {size}",
            {"x": (n, m), "w": (m,), "b": (m,), "dy": (n, m)},
            lambda g, x, w, b: g.layer_norm(x, w, b, eps=1e-5),
            lambda x, w, b: _functional().layer_norm(x, w.shape, w, b, 1e-5),
            "x",
            "w",
            "b",
        )
    for n, m in ((128, 8192), (128, 49152), (509, 10007)):
        size = f"{n}x{m}"
        labels = rng.integers(0, m, n).astype(np.int32)
        add(
            f"cross-entropy {size}",
            {"x": (n, m), "t": labels},
            lambda g, x, t: g.cross_entropy_loss(x, t),
            lambda x, t: _functional().cross_entropy(x, t.long()),
        )
        add(
            f"cross-entropy-both {size}",
            {"x": (n, m), "t": labels},
            lambda g, x, t: g.cross_entropy_loss(x, t),
            lambda x, t: _functional().cross_entropy(x, t.long()),
            "x",
        )
    for n, m in ((1880, 743), (128, 1536)):
        found[f"affine {n}x{m}"] = Case(
            {"x": (n, m), "w": (m,), "b": (m,)},
            lambda g, x, w, b: x * w + b,
            lambda x, w, b: x * w + b,
        )
    for size in ((128, 1536), (1021, 1031), (2048, 4096)):
        text = "x".join(map(str, size))
        add(f"gelu {text}", {"x": size}, lambda g, x: x.gelu(), lambda x: _functional().gelu(x))
        add(
            f"gelu-tanh {text}",
            {"x": size},
            lambda g, x: x.gelu_approx(),
            lambda x: _functional().gelu(x, approximate="tanh"),
        )
        add(
            f"gelu-backward {text}",
            {"x": size, "dy": size},
            lambda g, x: x.gelu(),
            lambda x: _functional().gelu(x),
            "x",
        )
        add(
            f"swiglu {text}",
            {"a": size, "b": size},
            lambda g, a, b: a.silu() * b,
            lambda a, b: _functional().silu(a) * b,
        )
        add(
            f"swiglu-backward {text}",
            {"a": size, "b": size, "dy": size},
            lambda g, a, b: a.silu() * b,
            lambda a, b: _functional().silu(a) * b,
            "a",
            "b",
        )
        add(f"add {text}", {"a": size, "b": size}, lambda g, a, b: a + b, lambda a, b: a + b)
        add(
            f"where {text}",
            {"a": size, "b": size},
            lambda g, a, b: g.where(a > b, a * 2.0, b),
            lambda a, b: a.mul(2.0).where(a > b, b),
        )
        add(
            f"to-bf16 {text}",
            {"a": size},
            lambda g, a: a.cast("bf16").cast("f32") + 1.0,
            lambda a: a.bfloat16().float() + 1.0,
        )
        add(f"tanh {text}", {"a": size}, lambda g, a: a.tanh(), lambda a: a.tanh())
        add(f"exp {text}", {"a": size}, lambda g, a: a.exp(), lambda a: a.exp())
        add(
            f"log {text}",
            {"a": size},
            lambda g, a: (a * a + 1.0).log(),
            lambda a: (a * a + 1.0).log(),
        )
        add(
            f"transpose {text}",
            {"a": size},
            lambda g, a: a.transpose((1, 0)),
            lambda a: a.t().contiguous(),
        )
        add(
            f"every-other {text}",
            {"a": size},
            lambda g, a: a[:, ::2] + 1.0,
            lambda a: a[:, ::2] + 1.0,
        )
        add(f"flip {text}", {"a": size}, lambda g, a: g.flip(a, (1,)), lambda a: a.flip(1))
        add(f"sum-rows {text}", {"a": size}, lambda g, a: a.sum(1), lambda a: a.sum(1))
        add(f"sum-columns {text}", {"a": size}, lambda g, a: a.sum(0), lambda a: a.sum(0))
        add(f"max-columns {text}", {"a": size}, lambda g, a: a.max(0), lambda a: a.amax(0))
        add(f"sum-all {text}", {"a": size}, lambda g, a: a.sum(), lambda a: a.sum())
        add(f"argmax {text}", {"a": size}, lambda g, a: a.argmax(1), lambda a: a.argmax(1).int())
        add(f"cumsum {text}", {"a": size}, lambda g, a: a.cumsum(1), lambda a: a.cumsum(1))
        add(f"cumsum-columns {text}", {"a": size}, lambda g, a: a.cumsum(0), lambda a: a.cumsum(0))
        add(f"sort {text}", {"a": size}, lambda g, a: g.sort(a), lambda a: a.sort().values)
        add(f"top-k {text}", {"a": size}, lambda g, a: g.top_k(a, 8)[0], lambda a: a.topk(8).values)
    for shape, order in (
        ((4, 128, 9, 64), (0, 2, 1, 3)),
        ((4, 37, 12, 80), (0, 2, 1, 3)),
        ((8, 64, 56, 56), (0, 2, 3, 1)),
        ((8, 56, 56, 64), (0, 3, 1, 2)),
        ((31, 37, 41, 43), (3, 1, 2, 0)),
        ((64, 257, 127), (0, 2, 1)),
    ):
        text = "x".join(map(str, shape)) + "-" + "".join(map(str, order))
        add(
            f"permute {text}",
            {"a": shape},
            lambda g, a, order=order: a.transpose(order),
            lambda a, order=order: a.permute(order).contiguous(),
        )
    for n, m in ((257, 77), (1144, 104), (64, 2971), (4, 14931), (1, 41576)):
        size = f"{n}x{m}"
        add(f"sort {size}", {"a": (n, m)}, lambda g, a: g.sort(a), lambda a: a.numpy())
        found[f"sort {size}"] = Case(
            {"a": (n, m)}, lambda g, a: g.sort(a), lambda a: _numpy(a, np.sort)
        )
        found[f"top-k {size}"] = Case(
            {"a": (n, m)}, lambda g, a: g.top_k(a, 31)[0], lambda a: a.topk(31).values
        )
    for shape in ((48, 217, 592), (1, 49152)):
        text = "x".join(map(str, shape))
        found[f"argmax {text}"] = Case(
            {"a": shape}, lambda g, a: a.argmax(-1), lambda a: _numpy(a, _places)
        )
    for n, table, m in ((4850, 10253, 7), (16173, 38, 7)):
        found[f"gather {n} of {table}x{m}"] = Case(
            {"w": (table, m), "t": rng.integers(0, table, n).astype(np.int32)},
            lambda g, w, t: g.gather(w, t),
            lambda w, t: _functional().embedding(t, w),
        )
    for shape, order in (
        ((41, 929, 2), (2, 1, 0)),
        ((168, 774, 3), (0, 2, 1)),
        ((40, 211, 744), (2, 0, 1)),
    ):
        text = "x".join(map(str, shape)) + "-" + "".join(map(str, order))
        found[f"permute {text}"] = Case(
            {"a": shape},
            lambda g, a, order=order: a.transpose(order),
            lambda a, order=order: a.permute(order).contiguous(),
        )
    rows, width, tokens = 8192, 576, 509
    numbers = rng.integers(0, rows, tokens).astype(np.int32)
    add(
        "gather 509 of 8192x576",
        {"w": (rows, width), "t": numbers},
        lambda g, w, t: g.gather(w, t),
        lambda w, t: _functional().embedding(t, w),
    )
    add(
        "scatter-add 509 into 8192x576",
        {"d": (tokens, width), "t": numbers},
        lambda g, d, t: g.scatter_add(t, d, rows),
        lambda d, t: d.new_zeros(rows, width).index_add_(0, t, d),
    )
    for n in (1009, 576 * 1536, 8192 * 576):
        add(
            f"adam {n}",
            {
                "p": (n,),
                "d": (n,),
                "m": (n,),
                "v": np.abs(rng.standard_normal(n)).astype(np.float32),
            },
            _adam,
            _adam_torch,
        )
    return found


def _numpy(a: Any, function: Callable[[np.ndarray], np.ndarray]) -> Any:
    """What NumPy does faster than torch."""
    import torch

    return torch.from_numpy(function(a.numpy()))


def _places(a: np.ndarray) -> np.ndarray:
    return a.argmax(-1).astype(np.int32)


def _adam(g: Any, p: Any, d: Any, m: Any, v: Any) -> list[Any]:
    m, v = m * 0.9 + d * 0.1, v * 0.999 + d * d * 0.001
    return [p - 0.001 * (m / (v.sqrt() + 1e-8)), m, v]


def _adam_torch(p: Any, d: Any, m: Any, v: Any) -> list[Any]:
    m, v = m * 0.9 + d * 0.1, v * 0.999 + d * d * 0.001
    return [p - 0.001 * (m / (v.sqrt() + 1e-8)), m, v]


def arrays_of(case: Case) -> dict[str, np.ndarray]:
    """The inputs' values, the same in every process."""
    rng = np.random.default_rng(1)
    return {
        name: item if isinstance(item, np.ndarray) else rng.standard_normal(item).astype(np.float32)
        for name, item in case.inputs.items()
    }


# --------------------------------------------------------------------------- engines


def plan_of(case: Case, arrays: dict[str, np.ndarray]) -> Any:
    """What darner runs for a case."""
    import darner
    from darner.lower.lower import lower

    g = darner.Graph()
    cotangent = arrays.get("dy")
    names = [name for name in arrays if name != "dy"]
    nodes = {name: g.input(name, arrays[name].shape, arrays[name].dtype) for name in names}
    made = case.build(g, **nodes)
    outputs = list(made) if isinstance(made, (list, tuple)) else [made]
    g.set_outputs(outputs)
    if case.gradient and cotangent is None:
        g = darner.value_and_grad(g, list(case.gradient))
    elif case.gradient:
        g = darner.vjp(g, list(case.gradient))
        g.set_outputs(g.outputs[1:])
    return lower(g.toposort(), target="cpu")


def ours(case: Case, threads: int) -> tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]:
    """What runs a case, and what it gave."""
    from darner.backends.cpu.program import CpuProgram

    arrays = arrays_of(case)
    program = CpuProgram(plan_of(case, arrays), threads=threads)
    for name, number in program.plan.leaves("input").items():
        program.arrays[number][...] = arrays["dy" if name.startswith("d_") else name]
    return program.run, lambda: [np.array(program.arrays[i]) for i in program.plan.outputs]


def theirs(case: Case, compiled: bool) -> tuple[Callable[[], Any], Callable[[], list[np.ndarray]]]:
    """The same by torch."""
    import torch

    values = {name: torch.tensor(a) for name, a in arrays_of(case).items()}
    cotangent = values.pop("dy", None)
    names = list(values)

    def forward(*given: Any) -> list[Any]:
        made = case.torch(**dict(zip(names, given, strict=True)))
        return list(made) if isinstance(made, (list, tuple)) else [made]

    def compute(*given: Any) -> list[Any]:
        if not case.gradient:
            return forward(*given)
        held = [given[names.index(name)] for name in case.gradient]

        def of(*some: Any) -> Any:
            mixed = [
                some[case.gradient.index(name)] if name in case.gradient else item
                for name, item in zip(names, given, strict=True)
            ]
            return forward(*mixed)[0]

        value, pull = torch.func.vjp(of, *held)
        if cotangent is not None:
            return list(pull(cotangent))
        return [value, *pull(torch.ones_like(value))]

    given = list(values.values())
    if not compiled:
        if case.gradient:
            for name in case.gradient:
                values[name].requires_grad_()

            def eager() -> list[Any]:
                value = forward(*given)[0]
                wanted = [values[name] for name in case.gradient]
                made = list(torch.autograd.grad(value, wanted, cotangent))
                return made if cotangent is not None else [value, *made]

            return eager, lambda: [item.detach().numpy() for item in eager()]
        with torch.inference_mode():
            return (lambda: compute(*given)), lambda: [item.numpy() for item in compute(*given)]
    outs = [torch.empty_like(item) for item in compute(*given)]

    @torch.compile(dynamic=False)
    def into(given: list[Any], outs: list[Any]) -> None:
        for out, value in zip(outs, compute(*given), strict=True):
            out.copy_(value)

    return (lambda: into(given, outs)), lambda: [item.numpy() for item in outs]


def burst(call: Callable[[], Any], seconds: float) -> float:
    """The median of calls over so many seconds, after a few that do not count."""
    for _ in range(2):
        call()
    times, start = [], time.perf_counter()
    while True:
        before = time.perf_counter()
        call()
        after = time.perf_counter()
        times.append(after - before)
        if after - start > seconds:
            return statistics.median(times)


def _copies(seconds: float) -> float:
    """Bytes a second that torch reads and writes, copying what no cache holds."""
    import torch

    source, target = torch.ones(1 << 26), torch.zeros(1 << 26)
    return 2 * source.nbytes / burst(lambda: target.copy_(source), seconds)


def work(engine: str, threads: int) -> None:
    """A worker: names of cases come in, results and times go out."""
    reading, writing = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    known = cases()
    if engine.startswith("torch"):
        import torch

        torch.set_num_threads(threads)
    while True:
        name, seconds = pickle.load(reading)
        answer: Any
        if name == "copy":
            answer = _copies(seconds)
        elif seconds is None:
            ready = None
            try:
                if engine == "torch-compile":
                    torch._dynamo.reset()
                ready = (
                    theirs(known[name], engine == "torch-compile")
                    if engine.startswith("torch")
                    else ours(known[name], threads)
                )
                ready[0]()
                answer = ready[1]()
            except Exception as error:
                answer = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            answer = burst(ready[0], seconds) if ready is not None else None
        pickle.dump(answer, writing)
        writing.flush()


class Engine:
    """A worker's other end."""

    def __init__(self, name: str, threads: int, path: Path) -> None:
        environment = {**os.environ, **MALLOC, "PYTHONPATH": str(path)}
        if name != "darner":
            environment["XDG_CACHE_HOME"] = environment.get("XDG_CACHE_HOME", "") or "/tmp"
        command = [sys.executable, __file__, "--work", name, "--threads", str(threads)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )

    def ask(self, name: str, seconds: float | None = None) -> Any:
        """Results of a case, or the time it takes."""
        pickle.dump((name, seconds), self.process.stdin)
        self.process.stdin.flush()  # type: ignore[union-attr]
        return pickle.load(self.process.stdout)  # type: ignore[arg-type]


def close(a: Any, b: Any) -> bool:
    """Whether results agree, relative to the largest value of each."""
    return len(a) == len(b) and all(
        x.size == y.size
        and float(np.abs(x.astype(float).reshape(-1) - y.astype(float).reshape(-1)).max(initial=0))
        <= 2e-5 * max(1.0, float(np.abs(y.astype(float)).max(initial=0)))
        for x, y in zip(a, b, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("only", nargs="*", help="words that a name has to begin with or contain")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=0.03, help="of one burst")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--compile", action="store_true", help="torch.compile too")
    parser.add_argument("--beside", type=Path, help="another checkout of darner")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.work, arguments.threads[0])
        return
    here = Path(__file__).resolve().parents[1]
    for threads in arguments.threads:
        engines = {"darner": Engine("darner", threads, here)}
        if arguments.beside:
            engines["old"] = Engine("old", threads, arguments.beside.resolve())
        engines["torch"] = Engine("torch", threads, here)
        if arguments.compile:
            engines["compile"] = Engine("torch-compile", threads, here)
        peak = engines["torch"].ask("copy", 0.5)
        print(f"{threads} threads, copies at {peak / 1e9:.1f} GB/s", flush=True)
        print(f"{'':34}" + "".join(f"{name:>10}" for name in engines) + "   ratio  bandwidth")
        for name, case in cases().items():
            if arguments.only and not any(word in name for word in arguments.only):
                continue
            results = {engine: item.ask(name) for engine, item in engines.items()}
            bad = [
                e
                for e, r in results.items()
                if isinstance(r, str) or not close(r, results["torch"])
            ]
            for engine in bad:
                print(
                    f"{name}: {engine} is left out: {results[engine] if isinstance(results[engine], str) else 'differs'}"
                )
            times: dict[str, list[float]] = {e: [] for e in engines if e not in bad}
            for turn in range(arguments.rounds):
                for engine in list(times) if turn % 2 else list(times)[::-1]:
                    times[engine].append(engines[engine].ask(name, arguments.seconds))
            middle = {engine: statistics.median(found) for engine, found in times.items()}
            cells = "".join(
                f"{1e6 * middle[e]:10.1f}" if e in middle else f"{'-':>10}" for e in engines
            )
            peers = [value for e, value in middle.items() if e not in ("darner", "old")]
            ratio = min(peers) / middle["darner"] if peers and "darner" in middle else 0.0
            moved = sum(a.nbytes for a in arrays_of(case).values())
            moved += sum(a.nbytes for a in results["torch"])
            share = moved / middle.get("darner", 1e9) / peak
            print(f"{name:34}{cells}{ratio:8.2f}{share:8.2f}", flush=True)
        for engine in engines.values():
            engine.process.kill()


if __name__ == "__main__":
    main()
