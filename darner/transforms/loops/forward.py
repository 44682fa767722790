"""The tangent of a loop: one loop over the body and its derivative, whose carries are the carries and their tangents."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Unpack

from ...graph.node import Node
from ...ops.loops.loop import LoopAttributes, loop
from ..forward import Tangents, push_forward
from ..reverse import prepare
from .parts import Loop, Piece, closure, insert
from .reverse import varying_inputs


@loop.jvp
def _(
    tangents: dict[str, list[Node | None]],
    node: Node,
    init: list[Node],
    constants: list[Node],
    xs: list[Node],
    **attrs: Unpack[LoopAttributes],
) -> tuple[Node | None, ...]:
    given = [*tangents["init"], *tangents["constants"], *tangents["xs"]]
    made = Loop(tuple(init), tuple(constants), tuple(xs), **attrs)
    return tuple(results_of(made, given))


def results_of(made: Loop, given: Sequence[Node | None]) -> list[Node | None]:
    """The tangents of a loop's results from those of its operands; None for zero."""
    graph = made.operands[0].graph
    moving = varying_inputs(made, [tangent is not None for tangent in given])
    leaves = list(made.body.inputs.values())
    chosen = [i for i, flag in enumerate(moving) if flag]
    rebuilt = prepare(made.body, [leaves[i] for i in chosen], made.body.outputs)
    both, count = rebuilt.graph, len(made.init)
    moved = {
        i: both.input(_unused(both._names, f"t{i}"), leaves[i].shape, leaves[i].dtype)
        for i in chosen
    }
    known: Tangents = {rebuilt[leaves[i]].id: leaf for i, leaf in moved.items()}
    primal = list(both.outputs)
    push_forward(both, known, primal)
    found = [known.get(node.id) for node in primal]

    piece = Piece(f"{made.body.name}_and_tangent")
    kinds = [range(count), range(count, made.first_step), range(made.first_step, len(leaves))]
    for stem, numbers in zip("hkx", kinds, strict=True):
        for i in numbers:
            piece.input(stem, leaves[i]._tensor, rebuilt[leaves[i]])
        for i in numbers:
            if moving[i]:
                piece.input("t", leaves[i]._tensor, moved[i])
    ends = [node for node in (*primal, *found) if node is not None]
    piece.take(closure(both.nodes, ends, set(piece.mapped)))

    carries = [i for i in chosen if i < count]
    written = [j for j in range(count, len(primal)) if found[j] is not None]
    values = [piece.mapped[node.id] for node in primal]
    following = [
        piece.graph.zeros(leaves[i].shape, leaves[i].dtype)
        if (new := found[i]) is None
        else piece.mapped[new.id]
        for i in carries
    ]
    body = piece.finish(
        [
            *values[:count],
            *following,
            *values[count:],
            *(piece.mapped[new.id] for j in written if (new := found[j]) is not None),
        ]
    )
    starts = [
        graph.zeros(node.shape, node.dtype) if (t := given[i]) is None else t
        for i, node in enumerate(made.init)
        if moving[i]
    ]
    beside = [t for t in given[count : made.first_step] if t is not None]
    read = [t for t in given[made.first_step :] if t is not None]
    answers = insert(
        graph,
        replace(
            made,
            init=(*made.init, *starts),
            constants=(*made.constants, *beside),
            xs=(*made.xs, *read),
            body=body,
        ),
    )
    places = [*carries, *written]
    tangents: list[Node | None] = [None] * len(primal)
    skipped = len(primal) - count + len(carries)
    for place, answer in zip(
        places,
        [*answers[count : count + len(carries)], *answers[count + skipped :]],
        strict=True,
    ):
        tangents[place] = answer
    return tangents


def _unused(names: Collection[str], stem: str) -> str:
    while stem in names:
        stem += "_"
    return stem
