"""What tests of ops need: arrays from samples, and one rule for how close is close.

A declared op can be checked the way darner checks its own:

    >>> import numpy as np
    >>> from darner.graph.op import get_op
    >>> from darner.testing import assert_close, make_case
    >>> case = make_case(get_op("tanh"), 4, "f32")
    >>> assert_close(case.run()[0], np.tanh(case.arrays["arg0"]), "f32")
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .graph import dtypes
from .graph.build import call
from .graph.data import Array
from .graph.dtypes import DType
from .graph.graph import Graph
from .graph.node import Node
from .graph.op import Op
from .interpreter import run
from .ops.samples import Sample, Spec


def epsilon(dtype: Any) -> float:
    """The spacing of a float type at 1."""
    return float(ml_dtypes.finfo(dtypes.dtype(dtype).numpy).eps)  # type: ignore[no-untyped-call]


def tolerance(dtype: Any, length: int = 1) -> float:
    """How far a result may be off, relative to the largest value around.

    A sum of ``length`` rounded terms errs by about sqrt(length) roundings; 16-bit floats are stored
    narrow but summed in f32, so their length does not count.
    """
    kind = dtypes.dtype(dtype)
    if not kind.is_float:
        return 0.0
    if kind.is_half:
        return 4 * epsilon(kind)
    return 16 * epsilon(kind) * (1 + math.sqrt(max(length, 1)))


def assert_close(actual: Any, expected: Any, dtype: Any, length: int = 1) -> None:
    """Fail unless two arrays agree to ``tolerance``; infinities and NaN must stand in the same places."""
    found, wanted = np.asarray(actual), np.asarray(expected)
    if found.shape != wanted.shape:
        raise AssertionError(f"shapes differ: {found.shape} and {wanted.shape}")
    if wanted.size == 0:
        return
    if found.dtype.kind == "c":
        found, wanted = (_parts(array) for array in (found, wanted))
        dtype = dtypes.f64 if dtypes.dtype(dtype) is dtypes.c128 else dtypes.f32
    if not dtypes.dtype(dtype).is_float or wanted.dtype.kind in "biu":
        np.testing.assert_array_equal(found, wanted)
        return
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    scale = float(np.abs(wanted[finite]).max()) if finite.any() else 0.0
    limit = tolerance(dtype, length)
    np.testing.assert_allclose(found, wanted, rtol=limit, atol=limit * max(scale, 1e-30))


def _parts(array: Array) -> Array:
    """Complex numbers as real ones, with one more axis of two."""
    return np.stack([array.real, array.imag], -1).astype(np.float64)


@dataclass
class Case:
    """One call of an op on made-up arrays."""

    graph: Graph
    arrays: dict[str, Array]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """The call's arguments, with arrays in place of nodes."""

    def run(self, *, float64: bool = False) -> list[Array]:
        """The reference's results."""
        return run(self.graph, self.arrays, float64=float64)

    @property
    def length(self) -> int:
        """The most elements any operand has: a bound on the length of a sum."""
        return max((array.size for array in self.arrays.values()), default=1)


def make_array(
    spec: Spec, dtype: DType, rng: np.random.Generator, *, contiguous: bool = True
) -> Array:
    """Values as a ``Spec`` asks; not contiguous ones are every other element of a larger array."""
    values: Array
    if spec.kind == "bool":
        values = rng.integers(0, 2, spec.shape).astype(np.bool_)
    elif spec.kind == "int":
        values = rng.integers(int(spec.low), int(spec.high), spec.shape)
    elif spec.kind == "definite":
        root = rng.uniform(-1, 1, spec.shape)
        values = root @ root.swapaxes(-1, -2) + np.eye(spec.shape[-1])
    elif spec.distinct:
        count = int(np.prod(spec.shape))
        steps = np.linspace(spec.low, spec.high, count) if count else np.zeros(0)
        values = rng.permutation(steps).reshape(spec.shape)
    else:
        values = rng.uniform(spec.low, spec.high, spec.shape)
    if spec.kind == "complex":
        values = values + 1j * rng.uniform(spec.low, spec.high, spec.shape)
    if spec.dtype is not None:
        target = dtypes.dtype(spec.dtype)
    elif spec.kind in ("float", "definite"):
        target = dtype
    else:
        target = dtypes.bool_ if spec.kind == "bool" else dtypes.i32
    array: Array = np.asarray(values).astype(target.numpy)
    if contiguous or array.ndim == 0:
        return array
    wide = np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    view: Array = np.asfortranarray(wide)[..., ::2]
    view[...] = array
    return view


def make_case(op: Op, index: int, dtype: Any = "f32", *, contiguous: bool = True) -> Case:
    """The graph and arrays of an op's sample number ``index``, floats in ``dtype``."""
    sample: Sample = op.samples[index]
    kind = dtypes.dtype(dtype)
    rng = np.random.default_rng(zlib.crc32(f"{op.name}/{index}".encode()))
    graph = Graph(f"{op.name}_{index}")
    arrays: dict[str, Array] = {}

    def fill(value: Any, as_node: bool, names: list[str]) -> Any:
        if isinstance(value, Spec):
            if as_node:
                name = f"arg{len(arrays)}"
                arrays[name] = make_array(value, kind, rng, contiguous=contiguous)
                names.append(name)
                return graph.input(name, value.shape, arrays[name].dtype)
            return arrays[names.pop(0)]
        if isinstance(value, list):
            return [fill(item, as_node, names) for item in value]
        return value

    names: list[str] = []
    nodes = [fill(value, True, names) for value in sample.args]
    keywords = {name: fill(value, True, names) for name, value in sample.kwargs.items()}
    result = call(op, graph, nodes, dict(keywords))
    outputs = list(result) if isinstance(result, tuple) else [result]
    graph.set_outputs([output for output in outputs if isinstance(output, Node)])
    args = tuple(fill(value, False, names) for value in sample.args)
    kwargs = {name: fill(value, False, names) for name, value in sample.kwargs.items()}
    return Case(graph, arrays, args, kwargs)
