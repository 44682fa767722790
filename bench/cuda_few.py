"""Products of a few rows on an NVIDIA GPU, beside torch.mm on the same card in the same run.

    python -m bench.cuda_few                            the shapes of decoding, 1 to 16 rows
    python -m bench.cuda_few --variants 4 --only 576    other ways to share the work out too
    python -m bench.cuda_few --device cuda:emulated --scale 16 --no-torch

Many products with weights of their own are one step, as in a model: their weights come from memory, and each waits for the one before it. Results are compared with NumPy's f32 first. Times are microseconds of one product, torch's
of a CUDA graph of as many.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import darner
from darner.backends.cuda import kernels
from darner.backends.cuda.contract.few_template import FEW_CONTRACT

SHAPES = (
    # columns, terms, layout
    (960, 576, "NN"),
    (576, 576, "NN"),
    (3072, 576, "NN"),
    (576, 1536, "NN"),
    (49152, 576, "NT"),
    (2560, 2048, "NN"),
    (2048, 2048, "NN"),
    (11264, 2048, "NN"),
    (2048, 5632, "NN"),
    (2048, 5632, "NT"),
    (32000, 2048, "NN"),
    (1000, 1000, "NN"),
)
MEMORY = 240_000_000
"""Bytes of weights: more than caches hold."""


@dataclass(frozen=True)
class Case:
    """Products of one shape."""

    m: int
    n: int
    k: int
    layout: str
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of a weight."""
        return self.n * self.k * (4 if self.dtype == "f32" else 2)

    @property
    def count(self) -> int:
        """Products of a step."""
        return max(2, min(24, MEMORY // self.nbytes))

    @property
    def shape(self) -> tuple[int, int]:
        """Of a weight."""
        return (self.n, self.k) if self.layout == "NT" else (self.k, self.n)

    def graph(self) -> darner.Graph:
        """The products of a step."""
        graph = darner.Graph("rows")
        x = graph.state("x", (self.count, self.m, self.k))
        outputs = []
        for i in range(self.count):
            w = graph.parameter(f"w{i}", self.shape)
            outputs.append(x[i] @ (w.T if self.layout == "NT" else w))
        graph.set_outputs(outputs)
        return graph


def session_of(case: Case, device: str) -> tuple[darner.Session, np.ndarray]:
    """A session of a case's graph, its weights set, and its rows."""
    rng = np.random.default_rng(0)
    precision: Any = case.dtype
    session = darner.build_inference_session(
        case.graph(), device=device, precision=precision, cache=None, progress=False
    )
    weight = rng.standard_normal(case.shape, np.float32)
    for i in range(case.count):
        session.set_parameter(f"w{i}", weight if i else weight * 0.5)
    x = rng.standard_normal((case.count, case.m, case.k), np.float32)
    session.state()["x"] = x
    return session, x


def checked(session: darner.Session, rows: np.ndarray, case: Case) -> float:
    """How far results are from those of NumPy, as a part of these."""
    found = np.asarray(session.run({})[session.output_names[0]])
    weight = np.asarray(session.get_parameter("w0"))
    weight = weight.T if case.layout == "NT" else weight
    wanted = rows[0].astype(np.float64) @ weight.astype(np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def per_step(step: Any, wait: Any, count: int = 12) -> float:
    """Microseconds of a step among many."""
    found = []
    for _ in range(4):
        started = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        found.append((time.perf_counter() - started) / count * 1e6)
    return statistics.median(found[1:])


def torch_step(case: Case) -> Any:
    """A CUDA graph of torch's products."""
    import torch

    kind = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}[case.dtype]
    x = torch.randn(case.m, case.k, device="cuda", dtype=kind)
    weights = [torch.randn(*case.shape, device="cuda", dtype=kind) for _ in range(case.count)]
    views = [w.T if case.layout == "NT" else w for w in weights]
    for view in views[:2]:
        torch.mm(x, view)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [torch.mm(x, view) for view in views]
    return graph.replay, torch.cuda.synchronize, kept


def cases(rows: list[int], dtypes: list[str], scale: int) -> Iterator[Case]:
    """All of them."""
    for dtype in dtypes:
        for m in rows:
            for n, k, layout in SHAPES:
                yield Case(m, n // scale // 8 * 8, k // scale // 8 * 8, layout, dtype)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--dtypes", nargs="*", default=["bf16"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", help="part of a case's name")
    parser.add_argument("--scale", type=int, default=1, help="divides columns and terms")
    parser.add_argument("--variants", type=int, default=1)
    parser.add_argument("--no-torch", action="store_true")
    given = parser.parse_args()
    own = kernels.OWN
    for case in cases(given.rows, given.dtypes, given.scale):
        name = f"{case.dtype} {case.m} x {case.n} x {case.k} {case.layout}"
        if given.only not in name:
            continue
        peer = 0.0
        if not given.no_torch:
            step, wait, _kept = torch_step(case)
            peer = per_step(step, wait) / case.count
        for number in range(given.variants):
            chosen: list[str] = []

            def write(
                spec: Any, machine: Any, number: int = number, chosen: list[str] = chosen
            ) -> Any:
                ways = list(FEW_CONTRACT.variants(spec, machine).items())  # type: ignore[misc]  # it has some
                way, written = ways[min(number, len(ways) - 1)]
                chosen.append(way)
                return written()

            kernels.OWN = (replace(FEW_CONTRACT, write=write), *own)
            session, rows = session_of(case, given.device)
            error = checked(session, rows, case)
            spent = per_step(session.step, session.wait) / case.count
            session.close()
            kernels.OWN = own
            rate = case.nbytes / spent / 1e3
            beside = f"  torch {peer:7.2f}  {peer / spent:5.2f}" if peer else ""
            print(
                f"{name:32s} {spent:8.2f} us {rate:6.0f} GB/s{beside}  error {error:.1e}  {chosen[0] if chosen else 'another template'}",
                flush=True,
            )


if __name__ == "__main__":
    main()
