"""Random bits: counter-based, the same from the same seed on every backend.

They, and all that is drawn from them, are a pure function of ``seed``, ``stream`` (each call takes
the graph's next, so that two calls differ) and ``step``: equal ones give equal numbers, element for
element whatever the shape, and in every element type to its precision. Numbers stay the same from
run to run unless ``step`` changes; ``step=True`` counts the runs of the graph, in a state that all
its random ops share.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Index, ShapeOf
from ...graph.data import Array
from ...graph.dims import Dim
from ...graph.errors import ArgumentError, NameTakenError, ShapeError, caller
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.integers import ceil_div
from ...graph.node import Node
from ...graph.op import Rule, builder, primitive
from ...graph.types import TensorType
from ..samples import ints, sample

FAMILY = "random"
TRAITS = ["random"]
STEP = "random_step"
WORDS = 2**32

# --------------------------------------------------------------------------- bits


@primitive(
    family=FAMILY,
    facts=Facts(role="point", effort="much"),
    traits=TRAITS,
    samples=[
        sample((5,), 7),
        sample((3, 4), 2**40 + 1, 3),
        sample((2, 3), 5, 1, ints(high=9)),
        sample((6,), 2**64 - 1, 2**32 - 1, ints(low=2**31, high=2**32, dtype="u32")),
        sample((0, 2), 0),
        sample((), 1),
    ],
)
def random_bits(
    shape: ShapeOf, seed: int = 0, stream: int = 0, step: Index | None = None
) -> TensorType:
    """32 random bits an element (u32): Philox 4x32-10, a pure function of its arguments.

    Element ``i`` is word ``i % 4`` of the block with counter (i // 4, stream, step) and key
    ``seed``. ``step`` is a scalar integer computed in the graph, so that each run of a graph can
    draw anew.
    """
    _check_source(seed, stream, step)
    return TensorType(shape, dtypes.u32)


def _check_source(seed: int, stream: int, step: TensorType | None) -> None:
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"seed {seed} is outside 0..2**64-1")
    if not 0 <= stream < WORDS:
        raise ArgumentError(f"stream {stream} is outside 0..2**32-1")
    if step is not None and step.shape != ():
        raise ShapeError("step must be a scalar integer")


@random_bits.reference
def _(shape: tuple[int, ...], seed: int, stream: int, step: Array | None) -> Array:
    size = math.prod(shape)
    block = np.arange(ceil_div(size, 4), dtype=np.uint64)
    now = 0 if step is None else int(step) % WORDS
    counter = np.stack(
        [
            block & np.uint64(0xFFFFFFFF),
            block >> np.uint64(32),
            np.full_like(block, stream),
            np.full_like(block, now),
        ]
    )
    return philox(counter, seed).T.reshape(-1)[:size].reshape(shape)


@random_bits.vmap
def _(size: Dim, batched: dict[str, Any], **source: Any) -> Node:
    raise ArgumentError(
        "the step of a random op differs along the batch, but all of it draws the same numbers",
        hint="share the step: leave it out of in_axes",
    )


def philox(counter: Array, seed: int) -> Array:
    """Ten rounds of Philox 4x32 over counters of shape (4, n), held in uint64."""
    mask = np.uint64(0xFFFFFFFF)
    x = counter.astype(np.uint64)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product0 = x[0] * np.uint64(0xD2511F53)
        product1 = x[2] * np.uint64(0xCD9E8D57)
        x = np.stack(
            [
                (product1 >> np.uint64(32)) ^ x[1] ^ np.uint64(key0),
                product1 & mask,
                (product0 >> np.uint64(32)) ^ x[3] ^ np.uint64(key1),
                product0 & mask,
            ]
        )
        key0 = (key0 + 0x9E3779B9) & 0xFFFFFFFF
        key1 = (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return x.astype(np.uint32)


# --------------------------------------------------------------------------- streams and steps


@builder(family=FAMILY)
def random_step(graph: Graph) -> Node:
    """The number of runs so far (u32), a state the graph keeps under the name ``random_step``.

    It is made at the first call; later calls, and all random ops that draw anew at every run, share
    it.
    """
    known = graph.states.get(STEP)
    if known is not None and known.type == TensorType((), dtypes.u32):
        return known
    if known is not None or STEP in graph.inputs or STEP in graph.parameters:
        raise NameTakenError(
            f"'{STEP}' is the name of the graph's count of its runs, but another leaf has it",
            hint="give that leaf another name, or pass step=",
        )
    attrs = {"name": STEP, "shape": (), "dtype": dtypes.u32, "init": 0.0}
    # Outside every scope: one counter serves the whole graph.
    line = caller()
    leaf = graph.insert("state", [], (), attrs, scope="", source=line)
    one = graph.literal(1, dtypes.u32)
    following = graph.insert("add", [leaf, one], ("a", "b"), {}, scope="", source=line)
    graph.set_update(leaf, following)
    return leaf


def settle_source(*, anew: bool) -> Rule:
    """A spelling that fills in ``stream`` and ``step``.

    ``anew`` says what an absent ``step`` means: the graph's count of runs, or 0 for ever.
    """

    def spelling(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        step = kwargs.get("step")
        if step is None:
            step = anew
        if isinstance(step, bool):
            step = random_step.function(graph) if step else graph.literal(0, dtypes.u32)
        if kwargs.get("stream") is None:
            kwargs["stream"] = graph.next_stream()
        return args, {**kwargs, "step": step}

    return spelling


def check_source(seed: int, stream: int | None, step: TensorType | None) -> None:
    """What every op that draws demands of where it draws from."""
    if stream is None or step is None:
        raise ArgumentError("a drawing op has a stream and a step", hint="call it as a method")
    _check_source(seed, stream, step)
