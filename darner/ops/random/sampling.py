"""Choosing a token: greedily, or at random under temperature, top-k, top-p and min-p."""

from __future__ import annotations

import math
from typing import Any

from ...graph import dtypes
from ...graph.attributes import Float, Index
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder, composite
from ...graph.types import TensorType
from ..elementwise.arithmetic import where
from ..indexing.index import take_along_axis
from ..indexing.ordering import argsort, top_k
from ..losses.softmax import shifted, softmax
from ..reductions.reduce import argmax, cumsum
from ..samples import ints, sample, spec
from .bits import FAMILY, TRAITS, check_source, settle_source
from .distributions import random_uniform

COLDEST = 1e-6


@builder(family=FAMILY)
def greedy(graph: Graph, logits: Node) -> Node:
    """The index (i32) of the largest logit of each row, the first where several are."""
    result: Node = argmax(logits, -1)
    return result


@composite(
    name="sample",
    family=FAMILY,
    traits=TRAITS,
    samples=[
        sample(spec(5, 9, low=-4, high=4)),
        sample(spec(6, 9, low=-4, high=4), 3),
        sample(spec(6, 9, low=-4, high=4), 0, 0.7, seed=3),
        sample(spec(6, 9, low=-4, high=4), 5, 0.8, 0.5, 2**40 + 1),
        sample(spec(6, 9, low=-4, high=4), 40, 1.0, 1.5, 4, min_p=0.1, step=False),
        sample(spec(2, 3, 7), 4, 0.9, min_p=0.05, step=ints(high=9)),
        sample(spec(4, 5, distinct=True), temperature=0.0),
        sample(spec(8), 0, 0.5),
        sample(spec(3, 1)),
        sample(spec(0, 5), 2),
    ],
)
def sample_(
    logits: Float,
    top_k: int = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    seed: int = 0,
    *,
    min_p: float = 0.0,
    stream: int | None = None,
    step: Index | None = None,
) -> TensorType:
    """One index (i32) for each row of ``logits`` [..., V], drawn by softmax(logits / temperature).

    ``top_k`` keeps the k largest logits (of equal ones those with lower indices; 0 keeps all),
    ``top_p`` the fewest of these that reach that share of their probability, ``min_p`` those with
    at least that fraction of the largest probability. What is left shares the whole.
    ``temperature=0`` takes the largest. One uniform number a row is compared with running sums:
    over falling logits where anything is left out, over indices otherwise. Every run of the graph
    draws anew; ``step=False`` repeats the same draw, and a scalar integer node as ``step`` decides
    itself.
    """
    check_source(seed, stream, step)
    if logits.rank == 0 or logits.shape[-1] == 0:
        raise ShapeError("there is nothing to choose from on the last axis of logits")
    if top_k < 0:
        raise ArgumentError(f"top_k {top_k} is negative", hint="0 keeps every index")
    if not 0 < top_p <= 1:
        raise ArgumentError(f"top_p must be above 0 and at most 1, got {top_p}")
    if not 0 <= min_p <= 1:
        raise ArgumentError(f"min_p must be in 0..1, got {min_p}")
    if not 0 <= temperature < math.inf:
        raise ArgumentError(f"temperature must be 0 or more, got {temperature}")
    return TensorType(logits.shape[:-1], dtypes.i32)


_settle = settle_source(anew=True)


@sample_.spelling
def _(graph: Graph, *args: Any, **kwargs: Any) -> Any:
    # RLX states the result's type as a sixth argument, and stores indices as floats.
    if len(args) == 6 and isinstance(args[5], TensorType):
        if args[5].dtype is not dtypes.i32:
            raise DTypeError(
                f"the result is i32, but {args[5].dtype} was stated",
                hint="indices are integers here: state i32, and cast the result if floats are needed",
            )
        args = (*args[:5], args[5].shape)
    temperature = args[3] if len(args) > 3 else kwargs.get("temperature")
    if temperature == 0 and kwargs.get("step") is None:
        kwargs["step"] = False  # nothing is drawn, so runs need not be counted
    return _settle(graph, *args, **kwargs)


@sample_.expand
def _(
    logits: Node,
    top_k: int,
    top_p: float,
    temperature: float,
    seed: int,
    min_p: float,
    stream: int,
    step: Node,
) -> Node:
    if temperature == 0:
        return argmax(logits, -1)
    scaled = logits * (1 / max(temperature, COLDEST))
    drawn = random_uniform(
        (*logits.shape[:-1], 1), seed=seed, stream=stream, dtype=logits.dtype, step=step
    )
    if top_k == 0 and top_p == 1 and min_p == 0:
        return _invert(softmax(scaled, -1), drawn).reshape(logits.shape[:-1])
    scaled, order = _ranked(scaled, top_k)
    weights = softmax(scaled, -1)
    if top_p < 1:
        before = cumsum(weights, -1, True)
        weights = where(before.lt(top_p), weights, 0.0)
    if min_p > 0:
        # exp of the distance from the largest is the ratio of the probabilities.
        weights = where(shifted(scaled, -1).exp().lt(min_p), 0.0, weights)
    place = _invert(weights, drawn)
    return take_along_axis(order, place, -1).reshape(logits.shape[:-1])


def _ranked(scaled: Node, k: int) -> tuple[Node, Node]:
    """The ``k`` largest values (all for 0), largest first, and their indices."""
    size = scaled.shape[-1]
    if k and not (isinstance(size, int) and k >= size):
        values, order = top_k(scaled, k, -1)
        return values, order
    order = argsort(scaled, -1, True)
    return take_along_axis(scaled, order, -1), order


def _invert(weights: Node, drawn: Node) -> Node:
    """The first place [..., 1] where the running sum exceeds ``drawn`` of the whole."""
    running = cumsum(weights, -1)
    size = weights.shape[-1]
    start = (*(0,) * (weights.rank - 1), size - 1)
    total = running.slice(start, weights.shape)
    # A place of weight 0 adds nothing to the sum, so it never is the first to exceed anything; and
    # the last place always exceeds, as what is drawn is below 1.
    return running.le(drawn * total).sum(-1, keepdims=True)
