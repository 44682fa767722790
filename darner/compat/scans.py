"""RLX's scans: one carry, and loops over a body that is given as a graph.

``Graph.iterate`` and ``Graph.loop`` say the same of any number of carries. The backward ops are what a derivative of ``scan`` would be, with
the transposed body written out by the caller; darner's own derivatives do not use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.build import call, check_given
from ..graph.edit import inline_by_name
from ..graph.errors import ArgumentError, ShapeError
from ..graph.graph import Graph
from ..graph.integers import ceil_div
from ..graph.node import Node
from ..graph.op import builder
from ..ops.custom.bodies import COTANGENT, primal_inputs
from ..ops.loops.iterate import in_segments
from ..ops.loops.loop import FAMILY, loop
from .forms import form


def _graph(value: object, name: str) -> Graph:
    if not isinstance(value, Graph):
        raise ArgumentError(
            f"{name} must be a Graph, not {type(value).__name__}",
            hint="g.iterate takes a Python function",
        )
    return value


def _checked(body: Graph) -> Graph:
    _graph(body, "body")
    if len(body.outputs) != 1:
        raise ArgumentError(
            f"the body has {len(body.outputs)} outputs, not 1: the next carry",
            hint="g.loop takes several",
        )
    return body


def _looped(
    graph: Graph, init: Node, bcasts: Sequence[Node], xs: Sequence[Node], body: Graph, length: int
) -> Node:
    result: Node = call(loop, graph, [[init], list(bcasts), list(xs), _checked(body), length], {})[
        0
    ]
    return result


@builder(family=FAMILY)
def scan(graph: Graph, init: Node, body: Graph, length: int) -> Node:
    """The carry after ``length`` steps of ``body``, a graph of one input and one output. ``iterate`` takes a Python function."""
    return _looped(graph, init, [], [], body, length)


@builder(family=FAMILY)
def scan_with_xs(graph: Graph, init: Node, xs: list[Node], body: Graph, length: int) -> Node:
    """``scan`` of a body that also reads one step of each of ``xs``, which are [length, ...]."""
    return _looped(graph, init, [], xs, body, length)


@builder(family=FAMILY)
def scan_with_bcasts_and_xs(
    graph: Graph, init: Node, bcasts: list[Node], xs: list[Node], body: Graph, length: int
) -> Node:
    """``scan`` of a body that reads the carry, then what is the same in all steps, then one step of each of ``xs``."""
    return _looped(graph, init, bcasts, xs, body, length)


@builder(family=FAMILY)
def scan_trajectory(graph: Graph, init: Node, body: Graph, length: int) -> Node:
    """The carries after each of ``length`` steps: [length, ...]."""
    both = _checked(body).copy()
    both.set_outputs([both.outputs[0], both.outputs[0]])
    result: Node = call(loop, graph, [[init], [], [], both, length], {})[1]
    return result


@builder(family=FAMILY)
def scan_checkpointed(
    graph: Graph, init: Node, body: Graph, length: int, num_checkpoints: int
) -> Node:
    """``scan``, of which a gradient keeps ``num_checkpoints`` carries and computes the steps between them again."""
    return in_segments(graph, ([init], [], []), _checked(body), length, num_checkpoints)[0]


# --------------------------------------------------------------------------- backward, by a body of the caller's


@dataclass(frozen=True)
class _Backward:
    """A sweep from the last step to the first over a transposed body."""

    init: Node
    trajectory: Node
    upstream: Node
    xs: Sequence[Node]
    body_vjp: Graph
    length: int
    save_trajectory: bool
    """Whether ``upstream`` has a cotangent for the carry after each step."""

    def check(self) -> None:
        """The body reads a carry, steps of ``xs`` and ``d_output``, and gives as many gradients."""
        if COTANGENT not in _graph(self.body_vjp, "body_vjp").inputs:
            raise ArgumentError(f"the body_vjp has no input '{COTANGENT}'")
        if len(self.body_vjp.outputs) != 1 + len(self.xs):
            raise ArgumentError(
                f"the body_vjp has {len(self.body_vjp.outputs)} outputs: one is needed for the carry "
                f"and one for each of the {len(self.xs)} xs"
            )
        count = len(primal_inputs(self.body_vjp, [COTANGENT]))
        if count != 1 + len(self.xs):
            raise ShapeError(
                f"the body_vjp has {count} inputs beside '{COTANGENT}' for a carry and {len(self.xs)} xs"
            )
        if self.length < 0:
            raise ArgumentError(f"length must be 0 or more, not {self.length}")
        wanted = (self.length, *self.init.shape) if self.save_trajectory else self.init.shape
        if self.upstream.shape != wanted:
            raise ShapeError(
                f"upstream is {self.upstream.type}, but its shape must be {list(wanted)}"
            )

    def first(self) -> Node:
        """The cotangent behind the last step."""
        return self.init.zeros_like() if self.save_trajectory else self.upstream

    def results(self, carries: Node) -> list[Node]:
        """The gradient of ``init`` and of each of ``xs``; ``carries`` are those that the steps begin with."""
        step = Graph("backward")
        d = step.input("d", self.init.shape, self.init.dtype)
        operands = [carries, *self.xs, *([self.upstream] if self.save_trajectory else [])]
        read = [step.input(f"x{i}", x.shape[1:], x.dtype) for i, x in enumerate(operands)]
        if self.save_trajectory:
            d = d + read.pop()
        step.set_outputs(self.transposed(step, read, d))
        graph, lists = self.init.graph, [[self.first()], [], operands]
        return list(call(loop, graph, [*lists, step.freeze(), self.length], {"reverse": True}))

    def transposed(self, graph: Graph, values: Sequence[Node], d: Node) -> list[Node]:
        """The body of the caller in a graph."""
        leaves = primal_inputs(self.body_vjp, [COTANGENT])
        given = {str(leaf.name): value for leaf, value in zip(leaves, values, strict=True)}
        for leaf, value in (
            (self.body_vjp.inputs[name], v) for name, v in {**given, COTANGENT: d}.items()
        ):
            if leaf.type != value.type:
                raise ShapeError(
                    f"input '{leaf.name}' of the body_vjp is {leaf.type}, but its operand is {value.type}"
                )
        found = inline_by_name(graph, self.body_vjp, {**given, COTANGENT: d})
        if found[0].type != d.type:
            raise ShapeError(
                f"output 0 of the body_vjp is {found[0].type}, but the carry is {d.type}"
            )
        return found

    def before(self) -> Node:
        """The carries that steps begin with, from those that they end with."""
        first = self.init.reshape((1, *self.init.shape))
        if self.trajectory.shape != (self.length, *self.init.shape):
            raise ShapeError(
                f"the trajectory is {self.trajectory.type}, "
                f"but it needs the carry after each of the {self.length} steps"
            )
        if self.length == 0:
            return self.trajectory
        result: Node = self.init.graph.concat([first, self.trajectory[: self.length - 1]], axis=0)
        return result


def _swept(sweep: _Backward, checkpoints: int, forward_body: Graph | None) -> list[Node]:
    sweep.check()
    if checkpoints in (0, sweep.length):
        return sweep.results(sweep.before())
    if not 0 < checkpoints < sweep.length:
        raise ArgumentError(f"num_checkpoints must be 0 to {sweep.length}, not {checkpoints}")
    if forward_body is None:
        raise ArgumentError("with checkpoints the forward_body is needed")
    return _Segmented(sweep, checkpoints, _checked(forward_body)).results()


class _Segmented:
    """A backward sweep that computes the carries between checkpoints again, one segment after another.

    Segments differ by a step at most: all are as long as the longest, and what a shorter one does in its last step is not taken.
    """

    def __init__(self, sweep: _Backward, count: int, forward: Graph) -> None:
        self.sweep, self.count, self.forward = sweep, count, forward
        if sweep.trajectory.shape != (count, *sweep.init.shape):
            raise ShapeError(
                f"the trajectory is {sweep.trajectory.type}, but it needs {count} checkpoints of the carry"
            )
        ends = np.array([ceil_div((k + 1) * sweep.length, count) for k in range(count)])
        starts = np.array([0, *ends[:-1]])
        self.steps = int((ends - starts).max())
        numbers = starts[:, None] + np.arange(self.steps)[None, :]
        self.used = numbers < ends[:, None]
        self.numbers = np.minimum(numbers, sweep.length - 1).astype(np.int32)
        self.places = np.nonzero(self.used.reshape(-1))[0].astype(np.int32)

    def results(self) -> list[Node]:
        """The gradient of ``init`` and of each of ``xs``."""
        sweep = self.sweep
        graph, init = sweep.init.graph, sweep.init
        first = init.reshape((1, *init.shape))
        starts = graph.concat([first, sweep.trajectory[: self.count - 1]], axis=0)
        stacks = [*sweep.xs, *([sweep.upstream] if sweep.save_trajectory else [])]
        cut = [x.gather(graph.literal(self.numbers, None), axis=0) for x in stacks]
        operands = [starts, graph.literal(self.used, None), *cut]
        body = self._segment(operands)
        lists = [[sweep.first()], [], operands]
        d, *found = call(loop, graph, [*lists, body, self.count], {"reverse": True})
        places = graph.literal(self.places, None)
        flat = [y.reshape((self.count * self.steps, *y.shape[2:])) for y in found]
        return [d, *(y.gather(places, axis=0) for y in flat)]

    def _segment(self, operands: Sequence[Node]) -> Graph:
        """One segment: its carries forward, then the transposed body backward."""
        sweep, graph = self.sweep, Graph("segment")
        d = graph.input("d", sweep.init.shape, sweep.init.dtype)
        start, used, *read = (
            graph.input(f"x{i}", x.shape[1:], x.dtype) for i, x in enumerate(operands)
        )
        xs = read[: len(sweep.xs)]
        _, carries = call(loop, graph, [[start], [], xs, self._forward(), self.steps], {})
        lists = [[d], [], [carries, used, *read]]
        graph.set_outputs(
            list(
                call(loop, graph, [*lists, self._backward(lists[2]), self.steps], {"reverse": True})
            )
        )
        return graph.freeze()

    def _forward(self) -> Graph:
        """The caller's forward body, which also writes the carry that it begins with."""
        graph = self.forward.copy()
        graph.set_outputs([graph.outputs[0], next(iter(graph.inputs.values()))])
        return graph

    def _backward(self, operands: Sequence[Node]) -> Graph:
        sweep, graph = self.sweep, Graph("backward")
        d = graph.input("d", sweep.init.shape, sweep.init.dtype)
        carry, used, *read = (
            graph.input(f"x{i}", x.shape[1:], x.dtype) for i, x in enumerate(operands)
        )
        given = d + read.pop() if sweep.save_trajectory else d
        following, *written = sweep.transposed(graph, [carry, *read], given)
        graph.set_outputs([graph.where(used, following, d), *written])
        return graph.freeze()


def _gradient(
    *,
    out_shape: object,
    xs_idx: int | None = None,
    num_checkpoints: int = 0,
    forward_body: Graph | None = None,
    **carries: Any,
) -> Node:
    """The gradient of ``init``, or of one of ``xs``."""
    found = _swept(_Backward(**carries), num_checkpoints, forward_body)
    if xs_idx is not None and not 0 <= xs_idx < len(found) - 1:
        raise ArgumentError(f"xs_idx must be within the {len(found) - 1} xs, not {xs_idx}")
    result = found[0 if xs_idx is None else 1 + xs_idx]
    if out_shape is not None:
        check_given(result, out_shape)
    return result


_CARRIES = "init: Node, trajectory: Node, upstream: Node, xs: list[Node], body_vjp: Graph, length: int, save_trajectory: bool"
_SEGMENTS = "num_checkpoints: int, forward_body: Graph | None = None"

form(
    f"scan_backward({_CARRIES}, out_shape: object = None)",
    FAMILY,
    _gradient,
    """The gradient of a scan's ``init``, by a transposed body.

    ``body_vjp`` has the inputs of the scan's body and ``d_output``; its outputs are the gradients of the carry and of
    each of ``xs``. ``trajectory`` has the carry after each step. With ``save_trajectory`` the ``upstream`` cotangents are those of all carries, else that
    of the last.
    """,
    by_name=True,
)
form(
    f"scan_backward_xs({_CARRIES}, xs_idx: int, out_shape: object = None)",
    FAMILY,
    _gradient,
    "The gradient of ``xs[xs_idx]`` of a scan: [length, ...]; see ``scan_backward``.",
    by_name=True,
)
form(
    f"scan_backward_with_checkpoints({_CARRIES}, {_SEGMENTS}, out_shape: object = None)",
    FAMILY,
    _gradient,
    """``scan_backward`` from ``num_checkpoints`` carries: those after steps ceil((k + 1) length / num_checkpoints) - 1.

    The carries between them are computed again by ``forward_body``, one segment at a time. 0 checkpoints, or as many as there are steps, is all carries.
    """,
    by_name=True,
)
form(
    f"scan_backward_xs_with_checkpoints({_CARRIES}, xs_idx: int, {_SEGMENTS}, out_shape: object = None)",
    FAMILY,
    _gradient,
    "``scan_backward_xs`` from ``num_checkpoints`` carries; see ``scan_backward_with_checkpoints``.",
    by_name=True,
)
