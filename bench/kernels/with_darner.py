"""Cases in darner: graphs, optimized and lowered as a session does it, each a program of its own.

A kernel is timed inside the native call: a step of a real model makes that call once for hundreds of kernels.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import darner
from darner import Graph, Node, optim
from darner.backends.base.cache import ObjectCache
from darner.backends.base.lowering import lower_for
from darner.backends.cpu.runtime.program import CpuProgram
from darner.lower.plan import Plan
from darner.optimizer import optimize_inference
from darner.session.pipeline import GRADIENT, update_graph

from .prepared import Prepared

TYPES = {"float32": "f32", "int32": "i32"}
Nodes = dict[str, Node]

LONG = 5e-4
"""Seconds of a run from which on it is timed by itself."""

MOST = 200
"""Runs in one call."""


def _contract(case: Any, g: Graph, given: Nodes) -> list[Node]:
    turned = [
        node.transpose((*range(len(node.shape) - 2), -1, -2)) if letter == "T" else node
        for node, letter in zip(given.values(), case.form, strict=True)
    ]
    return [turned[0] @ turned[1]]


def _conv(case: Any, g: Graph, given: Nodes) -> list[Node]:
    options = {"stride": case.stride, "padding": case.padding, "groups": case.groups}
    if case.part == "input":
        sizes = case.image[2:]
        return [g.conv_input_grad(given["dy"], given["w"], sizes=sizes, **options)]
    if case.part == "weight":
        kernel = case.weight[2:]
        return [g.conv_weight_grad(given["x"], given["dy"], kernel=kernel, **options)]
    return [g.conv2d(given["x"], given["w"], **options)]


def _attention(case: Any, g: Graph, given: Nodes) -> list[Node]:
    return [g.scaled_dot_attention(given["q"], given["k"], given["v"], causal=case.causal)]


def _rows(case: Any, g: Graph, given: Nodes) -> list[Node]:
    x = given["x"]
    if case.op == "cross_entropy":
        return [x.cross_entropy_loss(given["labels"])]
    others = [given[name] for name in ("weight", "bias") if name in given]
    return [getattr(x, case.op)(*others)]


def _map(case: Any, g: Graph, given: Nodes) -> list[Node]:
    if case.op == "gelu":
        return [given["x"].gelu()]
    if case.op == "swiglu":
        return [given["gate"].swiglu(given["up"])]
    return [given["x"] * given["weight"] + given["bias"]]


def _reduce(case: Any, g: Graph, given: Nodes) -> list[Node]:
    return [getattr(given["x"], case.op)(case.axis)]


def _pool(case: Any, g: Graph, given: Nodes) -> list[Node]:
    pool = g.max_pool2d if case.op == "max" else g.avg_pool2d
    return [pool(given["x"], case.window, case.stride)]


def _index(case: Any, g: Graph, given: Nodes) -> list[Node]:
    if case.op == "gather":
        return [g.gather(given["table"], given["indices"])]
    return [g.scatter_add(given["indices"], given["src"], case.rows)]


def _order(case: Any, g: Graph, given: Nodes) -> list[Node]:
    return [given["x"].sort()] if case.op == "sort" else list(given["x"].top_k(case.k))


def _move(case: Any, g: Graph, given: Nodes) -> list[Node]:
    return [given["x"].transpose(case.order)]


def _scan(case: Any, g: Graph, given: Nodes) -> list[Node]:
    return [g.selective_scan(*given.values())]


def _delta(case: Any, g: Graph, given: Nodes) -> list[Node]:
    if case.part == "step":
        return list(g.gated_delta_net_carry(*given.values(), return_state=True))
    return [g.gated_delta_net(*given.values())]


WRITTEN: dict[str, Callable[[Any, Graph, Nodes], list[Node]]] = {
    "contract": _contract,
    "conv": _conv,
    "attention": _attention,
    "rows": _rows,
    "map": _map,
    "reduce": _reduce,
    "pool": _pool,
    "index": _index,
    "order": _order,
    "move": _move,
    "scan": _scan,
    "delta": _delta,
}
"""Each kind as nodes of a graph."""


def graph(case: Any, arrays: dict[str, np.ndarray]) -> Graph:
    """A case as a graph of inputs alone; Adam has its parameter and moments in place."""
    g = Graph(case.kind)
    if case.variant == "map.adam":
        g.set_outputs([g.parameter("p", case.result).sum()])
        return update_graph(g, optim.Adam(1e-3))
    given = {
        name: g.input(name, value.shape, TYPES[value.dtype.name])
        for name, value in arrays.items()
        if name != "d_output"
    }
    g.set_outputs(WRITTEN[case.kind](case, g, given))
    return darner.vjp(g, case.trained) if case.part == "both" else g


def plan(case: Any, arrays: dict[str, np.ndarray]) -> Plan:
    """The kernels of a case."""
    optimized, _ = optimize_inference(graph(case, arrays), target="cpu")
    return lower_for("cpu", optimized)


def _filled(program: CpuProgram, arrays: dict[str, np.ndarray]) -> None:
    for name, buffer in program.plan.leaves("input").items():
        program.arrays[buffer][...] = arrays["gradient" if name == GRADIENT + "p" else name]
    if "p" in program.storage:
        program.storage["p"][...] = arrays["p"]


def _timed(program: CpuProgram) -> Callable[[], float]:
    """Seconds of one run, from many in one native call: from the end of the first to the end of the last.

    So neither Python nor the waking of threads counts. Long ones run once, from their own beginning.
    """
    steps = program._steps

    def spent(repeats: int) -> Callable[[], float]:
        many = steps.repeated(repeats)
        times = np.zeros((repeats, len(steps), program.threads, 2), np.int64)

        def timed() -> float:
            many.run(times=times)
            if repeats == 1:
                return float(times[0, ..., 1].max() - times[0, ..., 0].min()) / 1e9
            return float(times[-1, ..., 1].max() - times[0, ..., 1].max()) / (repeats - 1) / 1e9

        return timed

    few = spent(4)
    once = max(min(few() for _ in range(3)), 1e-7)
    return spent(1 + min(math.ceil(LONG / once), MOST) if once < LONG else 1)


def prepare(case: Any, arrays: dict[str, np.ndarray], threads: int) -> Prepared:
    """The case as a program, its inputs filled; compiled code is kept in the user's cache."""
    started = time.perf_counter()
    program = CpuProgram(plan(case, arrays), threads=threads, cache=ObjectCache())
    built = time.perf_counter() - started
    _filled(program, arrays)
    program.run()
    results = program.plan.outputs
    found = [program.arrays[i] for i in results] if results else [program.storage["p"]]
    first = [np.array(value) for value in found]
    about = {"build": built, "kernels": len(program.plan.kernels)}
    return Prepared(_timed(program), lambda: first, program.close, about)
