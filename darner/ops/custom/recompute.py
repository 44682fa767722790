"""The op that keeps what is computed again apart from what was computed first."""

from __future__ import annotations

from ...graph.attributes import Free
from ...graph.data import Array
from ...graph.dims import Dim
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import primitive
from ...graph.types import TensorType
from ..axes import spread
from ..samples import ints, sample, spec


@primitive(
    family="shape",
    facts=Facts(role="point", selects=True),
    traits=["view", "barrier"],
    samples=[
        sample(spec(3, 5), spec(2)),
        sample(spec(), spec(4, 1)),
        sample(spec(0, 3), spec(0)),
        sample(ints(4, high=9), spec(1)),
    ],
)
def recompute_barrier(x: Free, after: Free) -> TensorType:
    """``x`` itself, but not before ``after`` is known.

    What is computed from it is never merged with what is computed from ``x``: a backward pass puts it between the
    values it kept and those it computes again.
    """
    return x


@recompute_barrier.reference
def _(x: Array, after: Array) -> Array:
    return x


@recompute_barrier.vjp
def _(g: Node, out: Node, x: Node, after: Node) -> dict[str, Node]:
    return {"x": g}


@recompute_barrier.vmap
def _(size: Dim, batched: dict[str, bool], x: Node, after: Node) -> Node:
    held = recompute_barrier(x, after)
    return held if batched["x"] else spread(held, size)
