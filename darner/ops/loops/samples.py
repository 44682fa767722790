"""Typical calls of loops. Their bodies are graphs, so they state their element types."""

from __future__ import annotations

from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op
from ..creation import leaves  # the ops that the bodies are made of
from ..custom.samples import graph_of
from ..elementwise import arithmetic, functions
from ..linalg import contract, matrix
from ..reductions import reduce
from ..samples import Sample, Spec, ints, sample, spec

MADE_OF = (arithmetic, contract, functions, leaves, matrix, reduce)


def _floats(*shape: int) -> Spec:
    return spec(*shape, dtype="f64")


def _decay(h: Node) -> Node:
    return (h * 0.5).sin()


def _recurrent(h: Node, w: Node, x: Node) -> list[Node]:
    following = (h @ w + x).tanh()
    return [following, following.sum(-1)]


def _exchange(a: Node, b: Node, x: Node) -> list[Node]:
    return [b * 0.5, a + x, a * b]


def _written(k: Node, x: Node) -> list[Node]:
    return [(x * k).exp(), x.sum()]


def _counted() -> Graph:
    graph = Graph("counted")
    total, count = graph.input("total", (2,), "f64"), graph.input("count", (), "i32")
    n = graph.input("n", (), "i32")
    graph.set_outputs([total + n.cast("f64") * total, count + n, count])
    return graph.freeze()


_RECURRENT = graph_of("recurrent", {"h": (2, 3), "w": (3, 3), "x": (2, 3)}, _recurrent)
_EXCHANGE = graph_of("exchange", {"a": (3,), "b": (3,), "x": (3,)}, _exchange)


_STEPS = [[_floats(2, 3)], [_floats(3, 3)], [_floats(4, 2, 3)], _RECURRENT, 4]
_PAIR = [[_floats(3), _floats(3)], [], [_floats(5, 3)], _EXCHANGE, 5]
_WRITTEN = graph_of("written", {"k": (), "x": (2,)}, _written)

SAMPLES = [
    sample([_floats(3)], [], [], graph_of("decay", {"h": (3,)}, _decay), 3),
    sample(*_STEPS),
    sample(*_STEPS, reverse=True),
    sample(*_PAIR),
    sample(*_PAIR, reverse=True),
    sample([_floats(3), _floats(3)], [], [_floats(0, 3)], _EXCHANGE, 0),
    sample([], [_floats()], [_floats(3, 2)], _WRITTEN, 3),
    sample([_floats(2), ints(high=3)], [], [ints(3, high=4)], _counted(), 3),
]


def nested(loop: Op) -> Sample:
    """A loop within a loop, which needs the op itself."""
    inner = graph_of("inner", {"h": (3,), "k": (3,)}, lambda h, k: (h * k).tanh())
    graph = Graph("nested")
    h, k, x = (graph.input(name, (3,), "f64") for name in "hkx")
    (last,) = loop([h + x], [k], [], inner, 2)
    graph.set_outputs([last, last * x])
    return sample([_floats(3)], [_floats(3)], [_floats(4, 3)], graph.freeze(), 4)
