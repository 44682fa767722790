"""How fast contractions run beside NumPy's (OpenBLAS): one thread, turns taken, results compared first.

    python bench/gemm.py                   a table in GFLOP/s
    python bench/gemm.py --json out.json   the same, as JSON too
    python bench/gemm.py --rounds 15 --only 128x576x576

``m x k x n``; NN, NT and TN say which operand is stored transposed; ``packed`` keeps B in panels, as weights are.
A figure is the median of its rounds; the ratio is ours over NumPy's, and the median of the rounds' ratios, which a
busy neighbour disturbs less than either speed. Scratch and outputs are allocated once, for both.
"""

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import ctypes
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import llvmlite.ir as ir
import numpy as np

from darner.backends.cpu.gemm import (
    Contraction,
    emit_contraction,
    emit_pack_b,
    packed_elements,
    scratch_bytes,
)

SHAPES = [
    *((size, size, size) for size in (256, 512, 768, 1024)),
    *((128, 576, n) for n in (576, 960, 1536, 3072)),
    (128, 1536, 576),
    (1, 4096, 4096),
    (4, 2048, 2048),
    (127, 301, 513),
]
FORMS = {"NN": (False, False), "NT": (False, True), "TN": (True, False)}


@dataclass(frozen=True)
class Vectors:
    vector_bytes: int


def host() -> Vectors:
    features = llvm.get_host_cpu_features()
    return Vectors(64 if features.get("avx512f") else 32 if features.get("avx2") else 16)


def compile_module(module: Any) -> tuple[Any, float]:
    """A module as native code, and the seconds that took."""
    start = time.perf_counter()
    parsed = llvm.parse_assembly(str(module))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(parsed, target)
    engine.finalize_object()
    return engine, time.perf_counter() - start


def function(engine: Any, name: str, pointers: int) -> Any:
    kinds = [ctypes.c_int64] * 2 + [ctypes.c_void_p] * pointers
    return ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(name))


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + count].view(dtype).reshape(shape)


def burst(call: Callable[[], None], seconds: float) -> float:
    """Seconds of one call: the mean over a burst."""
    start = time.perf_counter()
    count = 0
    while True:
        call()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed > seconds:
            return elapsed / count


def measure(shape: tuple[int, int, int], rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Every form of one shape."""
    m, k, n = shape
    machine = host()
    rng = np.random.default_rng(0)
    rows = []
    for form, (transpose_a, transpose_b) in FORMS.items():
        a = aligned((k, m) if transpose_a else (m, k))
        b = aligned((n, k) if transpose_b else (k, n))
        a[...], b[...] = rng.standard_normal(a.shape), rng.standard_normal(b.shape)
        left, right = (a.T if transpose_a else a), (b.T if transpose_b else b)
        ours, kept, theirs = aligned((m, n)), aligned((m, n)), aligned((m, n))
        contraction = Contraction.dense(
            "f32", m, n, k, transpose_a=transpose_a, transpose_b=transpose_b
        )
        module = ir.Module()
        emit_contraction(module, "plain", contraction, machine)
        emit_contraction(module, "packed", contraction, machine, packed_b=True)
        emit_pack_b(module, "pack", contraction, machine)
        engine, compiling = compile_module(module)
        needed = max(scratch_bytes(contraction, machine, packed) for packed in (False, True))
        scratch = aligned((needed,), np.uint8)
        panels = aligned((packed_elements(contraction, machine),))
        function(engine, "pack", 2)(0, 1, b.ctypes.data, panels.ctypes.data)
        plain, packed = function(engine, "plain", 5), function(engine, "packed", 5)
        addresses = [array.ctypes.data for array in (a, b, ours, scratch, panels, kept)]
        pa, pb, pc, ps, pp, pk = addresses

        def run_plain() -> None:
            plain(0, 1, pa, pb, pc, 0, ps)  # noqa: B023

        def run_packed() -> None:
            packed(0, 1, pa, pp, pk, 0, ps)  # noqa: B023

        def run_numpy() -> None:
            np.matmul(left, right, out=theirs)  # noqa: B023

        calls = {"ours": run_plain, "packed": run_packed, "numpy": run_numpy}
        for call in calls.values():
            call()
        exact = left.astype(np.float64) @ right.astype(np.float64)
        for name, result in (("ours", ours), ("packed", kept), ("numpy", theirs)):
            error = float(np.abs(result - exact).max())
            if error > 1e-5 * k:
                raise SystemExit(f"{m}x{k}x{n} {form}: {name} is wrong by {error}")
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(rounds):
            order = list(calls) if turn % 2 else list(calls)[::-1]
            for name in order:
                times[name].append(burst(calls[name], seconds))
        work = 2e-9 * m * n * k
        row: dict[str, Any] = {"shape": f"{m}x{k}x{n}", "form": form}
        for name, spent in times.items():
            row[name] = round(work / statistics.median(spent), 1)
        for name in ("ours", "packed"):
            ratios = [t / o for t, o in zip(times["numpy"], times[name], strict=True)]
            row[f"{name}_ratio"] = round(statistics.median(ratios), 2)
        row["compile_ms"] = round(1e3 * compiling)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.03, help="of one burst")
    parser.add_argument("--only", help="one shape, as MxKxN")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    shapes = SHAPES
    if arguments.only:
        shapes = [tuple(int(size) for size in arguments.only.split("x"))]
    print(f"{'m x k x n':>16} form    ours  packed   numpy   ours/numpy  packed/numpy  compile ms")
    rows = []
    for shape in shapes:
        for row in measure(shape, arguments.rounds, arguments.seconds):
            rows.append(row)
            print(
                f"{row['shape']:>16} {row['form']:>4} {row['ours']:7.1f} {row['packed']:7.1f} "
                f"{row['numpy']:7.1f} {row['ours_ratio']:12.2f} {row['packed_ratio']:13.2f} "
                f"{row['compile_ms']:11}",
                flush=True,
            )
    if arguments.json:
        machine = {"processor": llvm.get_host_cpu_name(), "python": platform.python_version()}
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
