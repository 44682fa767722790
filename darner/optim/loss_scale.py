"""Loss scaling in the graph of a training step: gradients that f16 has numbers for, and steps that change nothing where it has none.

The cotangent of the loss is a state, the scale, in place of 1; gradients are divided by it before anybody reads them. Where one of them is infinite or NaN,
no parameter or state is updated and the scale is halved; after ``INTERVAL`` steps without that it is doubled. So does PyTorch's ``GradScaler``. All of it is part
of the graph: nothing waits for the device, and the scale is saved with the other states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..graph import dtypes
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from ..transforms.gradients import Wrt, value_and_grad
from .base import ACCUMULATED, GRADIENT_SUM, KnownAs, Optimizer, as_dtype
from .step import Summing, add_updates

PREFIX = "loss_scale/"
SCALE = f"{PREFIX}scale"
"""The state that has the factor of the loss."""

GOOD_STEPS = f"{PREFIX}good_steps"
"""The state that counts the steps with finite gradients since the scale last changed."""

START = 2.0**16
INTERVAL = 2000
"""Steps with finite gradients after which the scale is doubled."""

LEAST = 2.0**-24
"""The scale is not halved beyond this: 0 would never grow again."""


def with_loss_scale(graph: Graph) -> Graph:
    """A copy of the graph of a loss with the states of loss scaling, by which later stages know to scale it.

    >>> import darner
    >>> from darner.optim.loss_scale import with_loss_scale
    >>> g = darner.Graph()
    >>> g.set_outputs([g.parameter("w", (3,)).square().sum()])
    >>> list(with_loss_scale(g).states)
    ['loss_scale/scale', 'loss_scale/good_steps']
    """
    taken = [name for name in graph._names if name in (SCALE, GOOD_STEPS)]
    if taken:
        raise ArgumentError(
            f"graph '{graph.name}' has '{taken[0]}', which loss scaling calls its own",
            hint="give it another name, or train with precision='bf16', which needs no scale",
        )
    result = graph.copy()
    result.state(SCALE, (), init=START)
    result.state(GOOD_STEPS, (), "i32")
    return result


def is_scaled(graph: Graph) -> bool:
    """Whether the loss of a graph is to be scaled."""
    return SCALE in graph.states


def value_and_scaled_grad(graph: Graph, wrt: Wrt = None) -> Graph:
    """As ``value_and_grad``, with gradients of the loss times its scale."""
    scaled = graph.copy()
    loss = scaled.outputs[0]
    with scaled.derived_from(loss):
        product = as_dtype(loss, dtypes.f32) * scaled.states[SCALE]
    scaled.set_outputs([product, *scaled.outputs])
    result = value_and_grad(scaled, wrt)
    result.set_outputs(result.outputs[1:])
    return result.toposort()


def add_scaled_updates(
    graph: Graph,
    optimizer: Optimizer | None,
    leaves: Sequence[Node],
    gradients: Sequence[Node],
    known_as: Mapping[str, KnownAs] | None = None,
) -> list[Node]:
    """``add_updates`` for a graph whose loss may be scaled; returns the gradients as they are without the scale.

    With ``accumulate`` the sum of all runs that share an update is looked at, in the run that makes it, and the scale stays until then.
    """
    if not is_scaled(graph):
        if optimizer is not None:
            add_updates(graph, optimizer, leaves, gradients, due=True, known_as=known_as)
        return list(gradients)
    inverse = 1.0 / graph.states[SCALE]
    found = [_divided(gradient, inverse) for gradient in gradients]
    if isinstance(optimizer, Summing):
        add_updates(graph, optimizer, leaves, found, due=True, known_as=known_as)
        return found
    finite = _Finite(graph)
    if optimizer is None:
        finite(found)
    else:
        add_updates(graph, optimizer, leaves, found, due=True, known_as=known_as, checked=finite)
    guard(graph, finite.known)
    _update_scale(graph, finite.known)
    return found


class _Finite:
    """Looks at the gradients of an update, and lets it go on with zeros where one of them is not finite.

    What is computed of them then waits for the answer, and writes parameters and moments where they lie.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known = graph.constant(True)

    def __call__(self, gradients: list[Node]) -> list[Node]:
        self.known = all_finite(self.graph, gradients)
        checked = []
        for gradient in gradients:
            with self.graph.derived_from(gradient):
                checked.append(self.graph.where(self.known, gradient, gradient.zeros_like()))
        return checked


def _divided(gradient: Node, inverse: Node) -> Node:
    with gradient.graph.derived_from(gradient):
        # Multiplied in f32: a scale is none of f16's numbers for long.
        wide = as_dtype(gradient, dtypes.f32) if gradient.dtype.is_half else gradient
        return as_dtype(wide * as_dtype(inverse, wide.dtype), gradient.dtype)


def all_finite(graph: Graph, gradients: Sequence[Node]) -> Node:
    """Whether no element of any gradient is infinite or NaN, as one bool."""
    found: Node | None = None
    for gradient in gradients:
        with graph.derived_from(gradient):
            own = gradient.is_finite().all()
            found = own if found is None else found.logical_and(own)
    return graph.constant(True) if found is None else found


def guard(graph: Graph, finite: Node) -> None:
    """Let every update leave its parameter or state as it is unless gradients are finite.

    What counts and sums the runs of one update begins anew all the same.
    """
    found = dict(graph.updates)
    graph._updates = {}
    for leaf, value in found.items():
        name = str(leaf.name)
        counts = name == ACCUMULATED or name.endswith(GRADIENT_SUM)
        with graph.derived_from(leaf):
            graph.set_update(leaf, value if counts else graph.where(finite, value, leaf))


def _update_scale(graph: Graph, finite: Node) -> None:
    scale, good = graph.states[SCALE], graph.states[GOOD_STEPS]
    count = good + 1
    full = count.ge(INTERVAL)
    doubled = scale * 2.0
    grown = graph.where(full.logical_and(doubled.is_finite()), doubled, scale)
    lowered = (scale * 0.5).maximum(LEAST)
    graph.set_update(scale, graph.where(finite, grown, lowered))
    counted = graph.where(full, count.zeros_like(), count)
    graph.set_update(good, graph.where(finite, counted, count.zeros_like()))
