"""Values that suit any graph of the zoo: the same for the same seed and names, whatever the spelling."""

import math
import zlib
from typing import NamedTuple

import numpy as np

import darner
from darner import Graph, Node

FORWARDED = ("reshape", "cast", "where", "transpose", "broadcast_to", "slice", "stop_gradient")
"""Ops whose result holds the integers they were given."""

CLASSES = (
    "cross_entropy_loss",
    "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_backward",
    "nll_loss",
)


class Values(NamedTuple):
    """What a run of a graph takes, by name."""

    inputs: dict[str, np.ndarray]
    params: dict[str, np.ndarray]
    states: dict[str, np.ndarray]


def values(graph: Graph, seed: int = 0) -> Values:
    """Values for every leaf of a graph.

    Integers lie in the range of what they index. A bool input is a mask that leaves at least the first place of its last
    axis. Leaves named ``variance`` (the last word of the name) are above 0; weights shrink with what they sum over.
    """
    return Values(
        *(
            {name: _value(leaf, seed) for name, leaf in leaves.items()}
            for leaves in (graph.inputs, graph.parameters, graph.states)
        )
    )


def run(graph: Graph, seed: int = 0, *, float64: bool = False) -> list[np.ndarray]:
    """The outputs of a graph on ``values``, then what its updates make of leaves, by name."""
    inputs, params, states = values(graph, seed)
    results = darner.run(graph, inputs, params, state=states, float64=float64)
    return results + [states[name] for name in sorted(str(leaf.name) for leaf in graph.updates)]


def _value(leaf: Node, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, zlib.crc32(str(leaf.name).encode())])
    shape = tuple(int(size) for size in leaf.shape)
    if leaf.dtype.kind == "bool":
        size = shape[-1]
        lengths = rng.integers(1, size + 1, shape[:-1])
        return np.arange(size) < lengths[..., None]
    if leaf.dtype.is_int:
        return rng.integers(0, _bound(leaf), shape).astype(leaf.dtype.numpy)
    last = str(leaf.name).rsplit(".", 1)[-1]
    if last in ("variance", "step"):
        found = rng.uniform(0.5, 2.0, shape) if last == "variance" else np.full(shape, 3.0)
    elif leaf.op.name == "parameter" and len(shape) < 2:
        found = (last != "bias") + 0.2 * rng.normal(size=shape)
    elif leaf.op.name == "parameter":
        found = rng.normal(size=shape) / math.sqrt(_summed(leaf))
    else:
        found = rng.normal(size=shape)
    return np.asarray(found).astype(leaf.dtype.numpy)


def _summed(leaf: Node) -> int:
    """About how many products with a weight a result sums."""
    shape = [int(size) for size in leaf.shape]
    return math.prod(shape[1:]) if len(shape) > 2 else max(4, min(shape))


def _bound(leaf: Node) -> int:
    """How many different integers a leaf may hold, from what reads it; 2 where nothing says."""
    bounds, seen, waiting = [], set(), [leaf]
    while waiting:
        node = waiting.pop()
        for user in leaf.graph.users(node):
            if user.op.name in FORWARDED and user.id not in seen:
                seen.add(user.id)
                waiting.append(user)
            else:
                bounds.extend(_bound_by(node, user))
    return min(bounds, default=2)


def _bound_by(node: Node, user: Node) -> list[int]:
    """What one reader says of the integers in ``node``."""
    by_slot = dict(zip(user.slots, user.operands, strict=True))
    match user.op.name:
        case "gather" | "scatter" | "scatter_add":
            indexed = by_slot.get("table", user)
            return [int(indexed.shape[user.attrs.get("axis", 0)])]
        case "embedding":
            return [int(by_slot["table"].shape[0])]
        case "take_along_axis" | "scatter_add_along_axis":
            source = user if user.op.name.startswith("scatter") else user.operands[0]
            return [int(source.shape[user.attrs["axis"]])]
        case "eq" if user.rank > 0 and node.shape[-1:] != user.shape[-1:]:
            return [int(user.shape[-1])]  # one-hot rows
        case name if name in CLASSES:
            return [int(user.operands[0].shape[-1])]
    return []
