"""The workloads in darner: a graph, and a session that runs it."""

import os
import time
from typing import Any

import numpy as np

import darner
from darner import Graph, Node, optim

from .place import CPU, Place
from .turns import Engine
from .workloads import Gemm, Llama, Workload

TYPES = {"float32": "f32", "int32": "i32", "uint32": "u32"}


class DarnerOps:
    """Nodes of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def embedding(self, table: Node, indices: Node) -> Node:
        return self.graph.embedding(indices, table)

    def rms_norm(self, x: Node, weight: Node, eps: float) -> Node:
        return x.rms_norm(weight, eps)

    def swiglu(self, gate: Node, up: Node) -> Node:
        return gate.swiglu(up)

    def attention(self, q: Node, k: Node, v: Node, sizes: Llama) -> Node:
        q, k = (self.graph.rope(x, sizes.theta, sizes.head) for x in (q, k))
        return self.graph.causal_attention(q, k, v, sizes.heads, sizes.kv_heads, sizes.head)

    def cached_attention(self, q: Node, k: Node, v: Node, layer: int, sizes: Llama) -> Node:
        graph, position = self.graph, self.graph.inputs["position"]
        q, k = (graph.rope_dynamic_offset(x, sizes.theta, position, sizes.head) for x in (q, k))
        written = []
        for kind, new in (("keys", k), ("values", v)):
            cache = graph.states[f"layer{layer}.{kind}"]
            written.append(graph.cache_write(new, cache, position, axis=1))
        return graph.cached_attention(
            q, *written, position, sizes.heads, sizes.kv_heads, sizes.head
        )

    def relu(self, x: Node) -> Node:
        return x.relu()

    def conv(self, x: Node, weight: Node, stride: int) -> Node:
        return self.graph.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def max_pool(self, x: Node) -> Node:
        return self.graph.max_pool2d(x, 3, 2, 1)

    def channels(self, bias: Node) -> Node:
        return bias.reshape((bias.shape[0], 1, 1))

    def batch_norm(self, x: Node, weight: Node, bias: Node, eps: float) -> Node:
        return self.graph.batch_norm_training(x, weight, bias, eps)[0]

    def mean_of_images(self, x: Node) -> Node:
        return x.mean((2, 3))

    def cross_entropy(self, logits: Node, labels: Node) -> Node:
        return logits.cross_entropy_loss(labels)


def data(workload: Any) -> dict[str, np.ndarray]:
    """The inputs of the graph: those of the workload, and the position where it decodes."""
    found = workload.inputs()
    if workload.mode == "decode":
        found["position"] = np.array([workload.position], np.uint32)
    return found


def graph(workload: Any) -> Graph:
    """The workload as a graph. The position of a token that is decoded is an input, as it has to be in use."""
    g = Graph(workload.name.replace(" ", "."))
    given = {
        name: g.input(name, value.shape, TYPES[value.dtype.name])
        for name, value in data(workload).items()
    }
    weights = {name: g.parameter(name, one.shape) for name, one in workload.weights().items()}
    for name, value in workload.caches().items():
        g.state(name, value.shape)
    g.set_outputs([workload.result(DarnerOps(g), weights.__getitem__, given)])
    return g


def optimizer(workload: Workload) -> optim.Optimizer:
    """How it trains."""
    kinds = {"sgd": optim.SGD, "adam": optim.Adam, "adamw": optim.AdamW}
    return kinds[workload.optimizer](workload.rate)


def filled(
    workload: Any, threads: int | None, place: Place = CPU, tune: bool = False
) -> tuple[darner.Session, float]:
    """A session, its inputs, weights and caches filled, and the seconds it took to build; compiled code is kept where ``BENCH_CACHE`` says."""
    options: dict[str, Any] = {"threads": threads, "progress": False, "tune": tune}
    options |= {"device": place.device, "precision": place.precision}
    options["cache"] = os.environ.get("BENCH_CACHE") or True
    made = graph(workload)
    started = time.perf_counter()
    if workload.trains:
        session = darner.build_session(made, optimizer=optimizer(workload), **options)
    else:
        session = darner.build_inference_session(made, **options)
    session.compile()
    spent = time.perf_counter() - started
    for name, value in workload.values():
        session.set_parameter(name, value)
    session.state().update(workload.caches())
    for name, value in data(workload).items():
        session.set_input(name, value)
    return session, spent


def prepare(workload: Any, threads: int, place: Place = CPU) -> Engine:
    """A step of a session."""
    session, spent = filled(workload, threads, place)

    def train() -> float:
        session.step()
        session.wait()
        return session.read_loss()

    def infer() -> None:
        session.step()
        session.wait()

    return Engine(
        step=train if workload.trains else infer,
        read=np.array if workload.trains else lambda _: session.read_output_by_index(0),
        version=darner.__version__,
        phases=lambda: {"session": spent, **session.build_seconds},
    )


def multiplied(place: Place, size: int = 8192, count: int = 20) -> float:
    """Products and sums a second of square matrices: the peak that steps in a precision are held against."""
    workload = Gemm(size=size)
    session, _ = filled(workload, None, place)
    session.step()
    session.wait()
    started = time.perf_counter()
    for _ in range(count):
        session.step()
    session.wait()
    return count * workload.step_flops() / (time.perf_counter() - started)
