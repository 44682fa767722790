"""Typical calls of custom functions. Their bodies are graphs, so they state their element types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...graph.graph import Graph
from ...graph.node import Node
from ..creation import leaves  # the ops that the bodies are made of
from ..elementwise import arithmetic, functions
from ..reductions import reduce
from ..samples import ints, sample, spec

MADE_OF = (arithmetic, functions, leaves, reduce)
Shapes = dict[str, tuple[int, ...]]


def graph_of(name: str, inputs: Shapes, build: Callable[..., Any], kinds: str = "f64") -> Graph:
    """A body: ``build`` of inputs with these names and shapes."""
    graph = Graph(name)
    given = [graph.input(key, shape, kinds) for key, shape in inputs.items()]
    answer = build(*given)
    graph.set_outputs(answer if isinstance(answer, Sequence) else [answer])
    return graph.freeze()


def _product(a: Node, b: Node) -> Node:
    return (a * b).tanh()


def _product_vjp(a: Node, b: Node, y: Node, d: Node) -> list[Node]:
    inner = d * (1.0 - y * y)
    return [inner * b, inner * a]


def _product_jvp(a: Node, b: Node, da: Node, db: Node, y: Node) -> Node:
    return (da * b + a * db) * (1.0 - y * y)


def _repeated() -> Graph:
    graph = Graph("repeated")
    x, count = graph.input("x", (2, 3), "f64"), graph.input("count", (3,), "i32")
    graph.set_outputs([x.exp() * count.cast("f64")])
    return graph.freeze()


def _repeated_vjp() -> Graph:
    graph = Graph("repeated_vjp")
    graph.input("x", (2, 3), "f64")
    graph.input("count", (3,), "i32")
    y, d = graph.input("primal_output", (2, 3), "f64"), graph.input("d_output", (2, 3), "f64")
    graph.set_outputs([d * y])
    return graph.freeze()


_TWO: Shapes = {"a": (3,), "b": (3,)}
_BODY = graph_of("product", _TWO, _product)
_VJP = graph_of("product_vjp", {**_TWO, "primal_output": (3,), "d_output": (3,)}, _product_vjp)
_JVP = graph_of(
    "product_jvp",
    {**_TWO, "tangent_0": (3,), "tangent_1": (3,), "primal_output": (3,)},
    _product_jvp,
)
_SUM = graph_of("sum", {"x": (2, 3)}, lambda x: x.square().sum())
_BOTH: Shapes = {"a": (3,), "b": ()}


def _several(a: Node, b: Node) -> list[Node]:
    return [a * b, a.exp().sum()]


def _several_vjp(a: Node, b: Node, y: Node, d: Node, total: Node, d_total: Node) -> list[Node]:
    return [d * b + d_total * a.exp(), (d * a).sum()]


def _several_jvp(a: Node, b: Node, da: Node, db: Node) -> list[Node]:
    return [da * b + a * db, (da * a.exp()).sum()]


_SEVERAL = graph_of("several", _BOTH, _several)
_SEVERAL_VJP = graph_of(
    "several_vjp",
    {
        **_BOTH,
        "primal_output_0": (3,),
        "d_output_0": (3,),
        "primal_output_1": (),
        "d_output_1": (),
    },
    _several_vjp,
)
_SEVERAL_JVP = graph_of("several_jvp", {**_BOTH, "tangent_0": (3,), "tangent_1": ()}, _several_jvp)


def _operands(*shapes: tuple[int, ...]) -> list[Any]:
    return [spec(*shape, dtype="f64") for shape in shapes]


SAMPLES = [
    sample(_operands((3,), (3,)), _BODY),
    sample(_operands((3,), (3,)), _BODY, _VJP),
    sample(_operands((3,), (3,)), _BODY, None, _JVP),
    sample(_operands((3,), (3,)), _BODY, vjp_body=_VJP, jvp_body=_JVP),
    sample(_operands((2, 3)), _SUM),
    sample([*_operands((2, 3)), ints(3, high=4)], _repeated(), _repeated_vjp()),
]

MULTI_SAMPLES = [
    sample(_operands((3,), ()), _SEVERAL),
    sample(_operands((3,), ()), _SEVERAL, _SEVERAL_VJP),
    sample(_operands((3,), ()), _SEVERAL, None, _SEVERAL_JVP),
    sample(_operands((3,), ()), _SEVERAL, _SEVERAL_VJP, _SEVERAL_JVP),
]
