"""A loop over one body: what a step hands to the next, what all steps share, what each step reads and writes.

The body is a graph that computes from its inputs alone. Its inputs are, in the order they are declared, the carries, the constants, and one step
of each of ``xs``; its outputs are the carries of the next step and then what the step writes. Loops nest: a body may hold another.

The reference stands in ``interpreter.py``, which runs the body; ``transforms/loops`` has derivatives and batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from ...graph.attributes import Body, Free
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.op import primitive
from ...graph.types import TensorType
from ..custom.bodies import check_closed
from .samples import SAMPLES, nested

FAMILY = "loops"


class LoopAttributes(TypedDict):
    """The attributes of a loop, as its rules get them."""

    body: Graph
    length: int
    reverse: bool
    recompute: bool


@primitive(family=FAMILY, facts=Facts(role="loop"), samples=SAMPLES)
def loop(
    init: list[Free],
    constants: list[Free],
    xs: list[Free],
    body: Body,
    length: int,
    reverse: bool = False,
    recompute: bool = False,
) -> tuple[TensorType, ...]:
    """``body`` for each of ``length`` steps, from the carries ``init``; the last carries, and what the steps wrote.

    The body's inputs are, in the order they are declared, the carries, the ``constants``, and one step of each of
    ``xs``, whose first axis is time. Its outputs are the next carries, in order, and then any number of values that are
    stacked along a new first axis. ``reverse`` goes from the last step to the first, in ``xs`` and in what is stacked.
    With ``recompute`` a gradient keeps the carries of each step alone and computes the body again, instead of keeping what the body computed.
    ``Graph.iterate`` makes the body from a Python function.
    """
    if length < 0:
        raise ArgumentError(f"length must be 0 or more, not {length}")
    check_closed(body, "body")
    _check_inputs(body, init, constants, xs, length)
    outputs = [node._tensor for node in body.outputs]
    _check_carries(body, init, outputs)
    written = outputs[len(init) :]
    if not outputs:
        raise ArgumentError("the body has no output", hint="call set_outputs on it")
    return (*init, *(type_.with_shape((length, *type_.shape)) for type_ in written))


def _check_inputs(
    body: Graph,
    init: Sequence[TensorType],
    constants: Sequence[TensorType],
    xs: Sequence[TensorType],
    length: int,
) -> None:
    """One input of the body for each operand, of its type; for ``xs`` of one step of it."""
    leaves = list(body.inputs.values())
    count = len(init) + len(constants) + len(xs)
    if len(leaves) != count:
        named = ", ".join(repr(leaf.name) for leaf in leaves)
        raise ShapeError(
            f"the body has {len(leaves)} inputs ({named}) for {count} operands",
            hint=f"it needs {len(init)} carries, {len(constants)} constants and {len(xs)} steps of xs, in this order",
        )
    wanted = [(f"init[{i}]", type_) for i, type_ in enumerate(init)]
    wanted += [(f"constants[{i}]", type_) for i, type_ in enumerate(constants)]
    wanted += [(f"one step of xs[{i}]", _step(i, type_, length)) for i, type_ in enumerate(xs)]
    for leaf, (operand, type_) in zip(leaves, wanted, strict=True):
        if leaf.type != type_:
            raise ShapeError(
                f"input '{leaf.name}' of the body is {leaf.type}, but {operand} is {type_}"
            )


def _step(index: int, type_: TensorType, length: int) -> TensorType:
    """The type of one step of ``xs[index]``."""
    if type_.rank == 0 or type_.shape[0] != length:
        raise ShapeError(f"xs[{index}] is {type_}, but its first axis must be the {length} steps")
    return type_.with_shape(type_.shape[1:])


def _check_carries(body: Graph, init: Sequence[TensorType], outputs: Sequence[TensorType]) -> None:
    """The first outputs of the body are the carries, which keep their types."""
    if len(outputs) < len(init):
        raise ShapeError(
            f"the body has {len(outputs)} outputs, but there are {len(init)} carries",
            hint="its first outputs are the carries of the next step",
        )
    for i, (leaf, found, wanted) in enumerate(
        zip(body.inputs.values(), outputs, init, strict=False)
    ):
        if found != wanted:
            raise ShapeError(
                f"output {i} of the body is {found}, but carry '{leaf.name}' is {wanted}"
            )


loop.samples = (*loop.samples, nested(loop))
