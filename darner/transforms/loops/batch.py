"""A loop over a batch: the body over the batch, with time in front of the batch axis of what it reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Unpack

from ...graph.dims import Dim
from ...graph.graph import Graph
from ...graph.node import Node
from ...ops.axes import spread
from ...ops.loops.loop import LoopAttributes, loop
from ..batch import Walk
from .parts import Loop, insert


@loop.vmap
def _(
    size: Dim,
    batched: dict[str, list[bool]],
    init: list[Node],
    constants: list[Node],
    xs: list[Node],
    **attrs: Unpack[LoopAttributes],
) -> tuple[Node, ...]:
    made = Loop(tuple(init), tuple(constants), tuple(xs), **attrs)
    return tuple(_over_batch(made, [*batched["init"], *batched["constants"], *batched["xs"]], size))


def _over_batch(made: Loop, flags: Sequence[bool], size: Dim) -> list[Node]:
    count = len(made.init)
    chosen = list(flags)
    while True:  # a carry is over the batch as soon as one step makes it so
        walk = _walked(made.body, chosen, size)
        found = [walk.batched[node.id] for node in made.body.outputs]
        if found[:count] == chosen[:count] or not any(
            new and not old for new, old in zip(found, chosen[:count], strict=False)
        ):
            break
        chosen[:count] = [a or b for a, b in zip(chosen, found[:count], strict=False)]
    outputs = [
        walk.whole(node) if i < count and chosen[i] else walk.values[node.id]
        for i, node in enumerate(made.body.outputs)
    ]
    walk.graph.set_outputs(outputs)
    starts = [
        spread(node, size) if new and not old else node
        for node, old, new in zip(made.init, flags, chosen, strict=False)
    ]
    read = [
        _exchanged(node) if flag else node
        for node, flag in zip(made.xs, flags[made.first_step :], strict=True)
    ]
    graph = made.operands[0].graph
    over = replace(made, init=tuple(starts), xs=tuple(read), body=walk.graph.toposort())
    answers = insert(graph, over)
    results = []
    for i, (answer, whole) in enumerate(zip(answers, found, strict=True)):
        if i < count:
            results.append(answer if chosen[i] else spread(answer, size))
        else:
            results.append(_exchanged(answer) if whole else spread(answer, size))
    return results


def _walked(body: Graph, flags: Sequence[bool], size: Dim) -> Walk:
    walk = Walk(Graph(body.name), size)
    for leaf, flag in zip(body.inputs.values(), flags, strict=True):
        shape = (size, *leaf.shape) if flag else leaf.shape
        walk.give(
            leaf, walk.graph.insert_like(leaf, [], {**leaf.attrs, "shape": shape}), batched=flag
        )
    for node in body.nodes:
        if node.id not in walk.values:
            walk.visit(node)
    return walk


def _exchanged(node: Node) -> Node:
    """The first two axes in the other order: time and batch."""
    return node.transpose((1, 0, *range(2, node.rank)))
