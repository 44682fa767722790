"""How fast products of matrices run as kernels of a plan, beside NumPy (OpenBLAS) and PyTorch (MKL).

    python bench/contract.py                       JSON lines: one for each case and number of threads
    python bench/contract.py --only 512x512x512 --form NT --threads 2 --rounds 9
    python bench/contract.py --after plain         products alone: no bias, no gelu

A case is ``m x k x n``; NN, NT and TN say which operand is stored transposed. ``after`` says what follows the product: ``plain``
nothing, ``bias`` an added row, ``gelu`` a row and gelu, ``residual`` an added matrix. Every engine computes all of it; their
results are compared with float64 before anything is timed. Engines take turns, in bursts whose first calls are left out, so that
threads of the one before have gone to sleep. Times are medians of rounds in microseconds, ratios medians of rounds' ratios: above 1
ours is quicker. ``build_ms`` is lowering, code generation and loading of the program, ``code_ms`` the processor time of its
machine code alone.
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from darner import Graph
from darner.backends.cpu.jit import compile_module
from darner.backends.cpu.kernels import emit_module, functions_of
from darner.backends.cpu.program import CpuProgram
from darner.lower.lower import lower

FORMS = {"NN": (False, False), "NT": (False, True), "TN": (True, False)}
AFTER = ("plain", "bias", "gelu", "residual")


class Case(NamedTuple):
    """One product: ``batch`` of ``m x k`` times ``k x n``."""

    m: int
    k: int
    n: int
    form: str = "NN"
    after: str = "gelu"
    batch: int = 0

    @property
    def name(self) -> str:
        """The sizes, as ``--only`` takes them."""
        sizes = f"{self.m}x{self.k}x{self.n}"
        return f"{self.batch}*{sizes}" if self.batch else sizes

    @property
    def work(self) -> float:
        """Billions of operations."""
        return 2e-9 * self.m * self.k * self.n * max(self.batch, 1)


SQUARES = [(128, 784, 128), (128, 576, 1536), (128, 1536, 576), (512, 512, 512), (1024, 1024, 1024)]
CASES = [
    *(Case(*shape) for shape in SQUARES),
    *(Case(*shape, after="plain") for shape in SQUARES),
    *(Case(*shape, "NT", "plain") for shape in SQUARES[:4]),
    Case(784, 128, 128, "TN", "plain"),
    Case(576, 128, 1536, "TN", "plain"),
    Case(1536, 128, 576, "TN", "plain"),
    Case(512, 512, 512, "TN", "plain"),
    Case(128, 1536, 576, after="residual"),
    Case(1, 4096, 4096, after="plain"),
    Case(1, 4096, 4096, "NT", after="plain"),
    Case(1, 576, 1536),
    Case(4, 576, 1536),
    Case(8, 576, 1536),
    Case(16, 576, 1536),
    Case(33, 129, 65),
    Case(33, 129, 65, after="plain"),
    Case(127, 301, 513),
    Case(128, 128, 10, after="bias"),
    Case(128, 10, 128, "NT", "plain"),
    Case(128, 128, 10, "TN", "plain"),
    Case(2048, 64, 64, after="bias"),
    Case(64, 4096, 64, "TN", "plain"),
    Case(8, 20000, 8, "TN", "plain"),
    Case(128, 64, 128, after="plain", batch=12),
    Case(128, 64, 128, "NT", "plain", batch=12),
    Case(128, 128, 64, after="plain", batch=12),
    Case(128, 128, 64, "TN", "plain", batch=12),
]


def numpy_threads(count: int) -> None:
    """Tell NumPy's OpenBLAS how many threads to use."""
    folder = Path(np.__file__).parent.parent / "numpy.libs"
    for path in folder.glob("*openblas*"):
        library = ctypes.CDLL(str(path))
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(count)
                return
    raise SystemExit("this NumPy has no OpenBLAS whose threads can be set")


def arrays_of(case: Case) -> list[np.ndarray]:
    """A, B, and what follows the product."""
    rng = np.random.default_rng(0)
    left, right = FORMS[case.form]
    lead = (case.batch,) if case.batch else ()
    shapes = [
        (*lead, *((case.k, case.m) if left else (case.m, case.k))),
        (*lead, *((case.n, case.k) if right else (case.k, case.n))),
    ]
    if case.after in ("bias", "gelu"):
        shapes.append((case.n,))
    elif case.after == "residual":
        shapes.append((*lead, case.m, case.n))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def graph_of(case: Case, arrays: list[np.ndarray]) -> Graph:
    """The case as a graph."""
    g = Graph()
    a, b, *rest = [g.input(str(i), array.shape) for i, array in enumerate(arrays)]
    left, right = FORMS[case.form]
    turn = (0, 2, 1) if case.batch else (1, 0)
    y = (a.transpose(turn) if left else a) @ (b.transpose(turn) if right else b)
    for node in rest:
        y = y + node
    g.set_outputs([y.gelu() if case.after == "gelu" else y])
    return g


def ours(case: Case, arrays: list[np.ndarray], threads: int) -> tuple[Any, Any, dict[str, float]]:
    """The call of our program, its result, and what making it took."""
    graph = graph_of(case, arrays)
    started = time.perf_counter()
    program = CpuProgram(lower(graph, target="cpu"), threads=threads)
    built = time.perf_counter() - started
    module = emit_module(program.plan, functions_of(program.plan))
    started = time.process_time()
    compile_module(module, passes=True)
    coded = time.process_time() - started
    for name, place in program.plan.leaves("input").items():
        program.arrays[place][...] = arrays[int(name)]
    taken = {"build_ms": round(1e3 * built, 1), "code_ms": round(1e3 * coded, 1)}
    taken["kernels"] = len(program.plan.kernels)
    return program, program.arrays[program.plan.outputs[0]], taken


def with_torch(case: Case, arrays: list[np.ndarray]) -> tuple[Callable[[], None], torch.Tensor]:
    """PyTorch's call and its result."""
    left, right = FORMS[case.form]
    a, b, *rest = [torch.from_numpy(array) for array in arrays]
    a = a.transpose(-1, -2) if left else a
    b = b.transpose(-1, -2) if right else b
    out = torch.empty((*a.shape[:-1], b.shape[-1]))

    def call() -> None:
        if rest and not case.batch:
            torch.addmm(rest[0], a, b, out=out)
        else:
            torch.matmul(a, b, out=out)
        if case.after == "gelu":
            torch.ops.aten.gelu.out(out, approximate="tanh", out=out)

    return call, out


def with_numpy(case: Case, arrays: list[np.ndarray]) -> tuple[Callable[[], None], np.ndarray]:
    """NumPy's call and its result; gelu is left out, which it has no function for."""
    left, right = FORMS[case.form]
    a, b, *rest = arrays
    a = a.swapaxes(-1, -2) if left else a
    b = b.swapaxes(-1, -2) if right else b
    out = np.empty((*a.shape[:-1], b.shape[-1]), np.float32)

    def call() -> None:
        np.matmul(a, b, out=out)
        for array in rest:
            np.add(out, array, out=out)

    return call, out


def burst(call: Callable[[], None], seconds: float) -> float:
    """Seconds of one call: the median over a burst, the first third left out."""
    clock = time.perf_counter
    began = clock()
    spent = []
    while True:
        start = clock()
        call()
        end = clock()
        if end - began > seconds / 3:
            spent.append(end - start)
        if end - began > seconds:
            return statistics.median(spent) if spent else end - start


def gelu(x: np.ndarray) -> np.ndarray:
    """Gelu by the hyperbolic tangent, in the type of x."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def check(case: Case, arrays: list[np.ndarray], results: dict[str, np.ndarray]) -> None:
    """Compare results with float64."""
    left, right = FORMS[case.form]
    a, b, *rest = [array.astype(np.float64) for array in arrays]
    exact = (a.swapaxes(-1, -2) if left else a) @ (b.swapaxes(-1, -2) if right else b)
    for array in rest:
        exact = exact + array
    for name, found in results.items():
        wanted = gelu(exact) if case.after == "gelu" and name != "numpy" else exact
        error = float(np.abs(found - wanted).max())
        if error > 2e-6 * case.k + 1e-3:
            raise SystemExit(f"{case.name} {case.form} {case.after}: {name} is wrong by {error}")


def measure(case: Case, threads: int, rounds: int, seconds: float) -> dict[str, Any]:
    """One line of the report."""
    torch.set_num_threads(threads)
    numpy_threads(threads)
    arrays = arrays_of(case)
    program, result, taken = ours(case, arrays, threads)
    torch_call, torch_result = with_torch(case, arrays)
    numpy_call, numpy_result = with_numpy(case, arrays)
    calls = {"ours": program.run, "torch": torch_call, "numpy": numpy_call}
    for call in calls.values():
        call()
    found = {"ours": np.array(result), "torch": torch_result.numpy(), "numpy": numpy_result}
    check(case, arrays, found)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds):
        for name in list(calls) if turn % 2 else list(calls)[::-1]:
            times[name].append(burst(calls[name], seconds))
    program.close()
    row: dict[str, Any] = {
        "case": case.name,
        "form": case.form,
        "after": case.after,
        "threads": threads,
    }
    for name, spent in times.items():
        row[f"{name}_us"] = round(1e6 * statistics.median(spent), 1)
    row["gflops"] = round(case.work / statistics.median(times["ours"]), 1)
    row["best_gflops"] = round(case.work / min(times["ours"]), 1)
    for name in ("torch", "numpy"):
        ratios = [t / o for t, o in zip(times[name], times["ours"], strict=True)]
        row[f"over_{name}"] = round(statistics.median(ratios), 2)
    return row | taken


def chosen(arguments: argparse.Namespace) -> Iterator[Case]:
    """The cases that were asked for."""
    for case in CASES:
        wanted = (
            (arguments.only, case.name),
            (arguments.form, case.form),
            (arguments.after, case.after),
        )
        if all(asked is None or asked == own for asked, own in wanted):
            yield case


def main() -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="one case, as MxKxN or BATCH*MxKxN")
    parser.add_argument("--form", choices=list(FORMS))
    parser.add_argument("--after", choices=AFTER)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.06, help="of one burst")
    arguments = parser.parse_args()
    for case in chosen(arguments):
        for threads in arguments.threads:
            row = measure(case, threads, arguments.rounds, arguments.seconds)
            json.dump(row, sys.stdout)
            sys.stdout.write("\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
