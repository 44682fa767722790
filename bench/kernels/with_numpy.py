"""Cases in NumPy, where it has a function for them; products by its OpenBLAS, or by MKL, Fourier transforms by SciPy."""

import ctypes
import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.fft

from ..peers.turns import NotOfferedError
from .prepared import Prepared, by_clock

Arrays = dict[str, np.ndarray]


def _contract(case: Any, given: Arrays, out: np.ndarray) -> Callable[[], Any]:
    a, b = (
        v.swapaxes(-1, -2) if c == "T" else v
        for v, c in zip(given.values(), case.form, strict=True)
    )
    return lambda: np.matmul(a, b, out=out)


def _map(case: Any, given: Arrays, out: np.ndarray) -> Callable[[], Any]:
    if case.op != "affine":
        raise NotOfferedError(f"NumPy has no {case.op}")
    x, weight, bias = given.values()

    def call() -> None:
        np.multiply(x, weight, out=out)
        np.add(out, bias, out=out)

    return call


def _reduce(case: Any, given: Arrays, out: np.ndarray) -> Callable[[], Any]:
    reduce = getattr(np, case.op)
    return lambda: reduce(given["x"], axis=case.axis, out=out)


def _index(case: Any, given: Arrays, out: np.ndarray) -> Callable[[], Any]:
    indices = given["indices"]
    if case.op == "gather":
        return lambda: np.take(given["table"], indices, axis=0, out=out, mode="clip")

    def call() -> None:
        out[...] = 0
        np.add.at(out, indices, given["src"])

    return call


def _order(case: Any, given: Arrays, out: np.ndarray) -> Callable[[], Any]:
    if case.op != "sort":
        raise NotOfferedError("NumPy has no top_k")

    def call() -> None:
        out[...] = given["x"]
        out.sort(-1)

    return call


def _move(case: Any, given: Arrays, out: np.ndarray) -> Callable[[], Any]:
    return lambda: np.copyto(out, given["x"].transpose(case.order))


def _fourier(case: Any, given: Arrays, threads: int) -> Prepared:
    """SciPy's, which share rows among threads."""
    transform = getattr(scipy.fft, case.op)
    if case.op == "irfft":
        half = given["re"] + 1j * given["im"]
        return by_clock(
            lambda: transform(half, case.count, norm="forward", workers=threads),
            lambda found: [found],
        )
    return by_clock(lambda: transform(given["x"], workers=threads), lambda found: [found])


WRITTEN: dict[str, Callable[[Any, Arrays, np.ndarray], Callable[[], Any]]] = {
    "contract": _contract,
    "map": _map,
    "reduce": _reduce,
    "index": _index,
    "order": _order,
    "move": _move,
}


def prepare(case: Any, arrays: Arrays, threads: int) -> Prepared:
    """The case over arrays; the process was started with as many threads for OpenBLAS."""
    if case.kind == "fourier":
        return _fourier(case, arrays, threads)
    if case.kind not in WRITTEN or case.part != "forward":
        raise NotOfferedError(f"NumPy has no {case.variant}")
    out = np.empty(case.result, np.int64 if case.variant == "reduce.argmax" else np.float32)
    call = WRITTEN[case.kind](case, arrays, out)
    return by_clock(call, lambda _: [out])


# ------------------------------------------------------------- MKL

ROW_MAJOR, PLAIN, TRANSPOSED = 101, 111, 112


def _library() -> ctypes.CDLL:
    """MKL as its wheel installs it, or as the system has it."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        raise NotOfferedError("mkl is not installed") from None
    for file in files:
        if Path(str(file)).name.startswith("libmkl_rt.so"):
            return ctypes.CDLL(str(file.locate()), mode=ctypes.RTLD_GLOBAL)
    raise NotOfferedError("mkl has no libmkl_rt")


def prepare_mkl(case: Any, arrays: Arrays, threads: int) -> Prepared:
    """Products by ``cblas_sgemm``; the process was started with as many threads for MKL."""
    if case.kind != "contract" or case.batch:
        raise NotOfferedError(f"MKL has no {case.variant} here")
    gemm = _library().cblas_sgemm
    number, address, scale = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
    gemm.argtypes = [*[number] * 6, scale, address, number, address, number, scale, address, number]
    gemm.restype = None
    out = np.empty(case.result, np.float32)
    turned = [TRANSPOSED if letter == "T" else PLAIN for letter in case.form]
    a, b = arrays["a"], arrays["b"]
    operands = [1.0, a.ctypes.data, a.shape[1], b.ctypes.data, b.shape[1]]
    asked = [ROW_MAJOR, *turned, case.m, case.n, case.k, *operands, 0.0, out.ctypes.data, case.n]
    held = (a, b, out)

    def call() -> np.ndarray:
        # The addresses in `asked` keep nothing alive.
        gemm(*asked)
        return held[-1]

    return by_clock(call, lambda found: [found])
