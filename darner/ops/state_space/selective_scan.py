"""Selective state spaces: the recurrence at the heart of Mamba, and its gradients.

Every channel has ``state_size`` numbers of its own that decay at a pace which the data chooses, and take in what the data selects:

    h = exp(delta a) h + delta b x,    y = sum(c h)

Written out it is ``linear_recurrence`` over (batch, sequence, channels, state) elements. Devices with a kernel of their own keep the states in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TypeAlias, cast

from ...graph.attributes import Float
from ...graph.dims import Dim, Shape, format_shape
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.node import Node
from ...graph.op import Resolved, composite, resolved
from ...graph.types import TensorType
from ..axes import spread
from ..elementwise.functions import exp
from ..reductions.reduce import linear_recurrence, shifted
from ..samples import Sample, sample, spec
from ..spatial.windows import merge_batch, split_batch

FAMILY = "state space"

Gradients: TypeAlias = dict[str, Callable[[], Node]]
"""What a rule of derivatives answers: a gradient for each operand, made where it is wanted."""

STEPS = 1
"""The axis of the sequence."""


# --------------------------------------------------------------------------- types


def check_state_size(state_size: int | None, found: Dim) -> Dim:
    """The size of the state, which must be the one that was stated."""
    if state_size is not None and state_size < 0:
        raise ArgumentError(f"state_size {state_size} is negative")
    if state_size is not None and state_size != found:
        raise ShapeError(f"state_size is {state_size}, but the operands have states of {found}")
    return found


def _check_scan(
    operands: dict[str, TensorType], x: TensorType, a: TensorType, state_size: int | None
) -> int | None:
    """The settled size of the state; an error names the first operand that does not fit."""
    if x.rank != 3:
        raise ShapeError(f"x has rank {x.rank}: its axes are batch, sequence and channels")
    batch, steps, channels = x.shape
    if a.rank != 2 or a.shape[0] != channels:
        raise ShapeError(
            f"a is {format_shape(a.shape)}: it must have one row of states for each of the "
            f"{channels} channels of x {format_shape(x.shape)}"
        )
    size = check_state_size(state_size, a.shape[1])
    wanted: dict[str, Shape] = {
        "delta": x.shape,
        "b": (batch, steps, size),
        "c": (batch, steps, size),
        "dy": x.shape,
    }
    for name, item in operands.items():
        if item.shape != wanted[name]:
            raise ShapeError(
                f"{name} is {format_shape(item.shape)}: with x {format_shape(x.shape)} and "
                f"a {format_shape(a.shape)} it must be {format_shape(wanted[name])}"
            )
    return size if isinstance(size, int) else state_size


def _calls(*sizes: tuple[int, int, int, int]) -> list[Sample]:
    """A call for each batch, length, count of channels and size of the state."""
    found = []
    for batch, steps, channels, size in sizes:
        shape = (batch, steps, channels)
        operands = [
            spec(*shape),
            spec(*shape, low=0.1, high=1.0),
            spec(channels, size, low=-1.5, high=0.5),
            spec(batch, steps, size),
            spec(batch, steps, size),
        ]
        found.append(sample(*operands))
    found.append(sample(*found[0].args, found[0].args[2].shape[1]))
    return found


SCANS = _calls((2, 5, 3, 4), (1, 7, 18, 1), (2, 1, 5, 17), (1, 3, 2, 0), (2, 0, 3, 2), (0, 2, 1, 3))


@composite(
    family=FAMILY,
    samples=SCANS,
    facts=Facts(role="library", whole=True, reads_rows=True, effort="much", weight=32.0),
)
def selective_scan(
    x: Float, delta: Float, a: Float, b: Float, c: Float, state_size: int | None = None
) -> Resolved:
    """The selective scan of Mamba: ``h = exp(delta * a) * h + delta * b * x`` from 0 along the sequence, and ``y = sum(c * h)`` over the state.

    ``x`` and ``delta`` are (batch, sequence, channels), ``a`` is (channels, state), ``b`` and ``c`` are (batch, sequence, state). The result is shaped like
    ``x``. ``delta`` is used as it is given: put ``softplus`` before it, and add ``d * x`` behind, where a model has them.
    """
    size = _check_scan({"delta": delta, "b": b, "c": c}, x, a, state_size)
    return resolved(x, state_size=size)


# --------------------------------------------------------------------------- expansion


def _over_channels(row: Node) -> Node:
    """(batch, sequence, state) beside all channels."""
    batch, steps, size = row.shape
    return row.reshape((batch, steps, 1, size))


def _over_states(column: Node) -> Node:
    """(batch, sequence, channels) beside all numbers of the state."""
    return column.reshape((*column.shape, 1))


def _decay(delta: Node, a: Node) -> Node:
    return cast(Node, exp(_over_states(delta) * a))


def _states(x: Node, delta: Node, a: Node, b: Node) -> Node:
    """The state after every step: (batch, sequence, channels, state)."""
    drive = _over_states(delta * x) * _over_channels(b)
    return cast(Node, linear_recurrence(_decay(delta, a), drive, STEPS))


@selective_scan.expand
def _(x: Node, delta: Node, a: Node, b: Node, c: Node, state_size: int | None) -> Node:
    return (_states(x, delta, a, b) * _over_channels(c)).sum(-1)


# --------------------------------------------------------------------------- gradients


@composite(
    family=FAMILY,
    samples=[sample(*call.args[:5], call.args[0], *call.args[5:]) for call in SCANS],
    facts=Facts(role="library", whole=True, reads_rows=True, effort="much", weight=96.0),
)
def selective_scan_backward(
    x: Float,
    delta: Float,
    a: Float,
    b: Float,
    c: Float,
    dy: Float,
    state_size: int | None = None,
) -> Resolved:
    """The gradients of ``selective_scan`` with respect to ``x``, ``delta``, ``a``, ``b`` and ``c``; ``dy`` is the gradient of its result."""
    size = _check_scan({"delta": delta, "b": b, "c": c, "dy": dy}, x, a, state_size)
    return resolved((x, delta, a, b, c), state_size=size)


@selective_scan_backward.expand
def _(
    x: Node, delta: Node, a: Node, b: Node, c: Node, dy: Node, state_size: int | None
) -> tuple[Node, ...]:
    decay, states = _decay(delta, a), _states(x, delta, a, b)
    # What reaches a state: from its own result, and from the state after it.
    given = _over_states(dy) * _over_channels(c)
    reaching = linear_recurrence(shifted(decay, STEPS, -1, 0.0), given, STEPS, reverse=True)
    slope = reaching * decay * shifted(states, STEPS, 1, 0.0)
    driven = (reaching * _over_channels(b)).sum(-1)
    return (
        driven * delta,
        driven * x + (slope * a).sum(-1),
        (slope * _over_states(delta)).sum((0, 1)),
        (reaching * _over_states(delta * x)).sum(2),
        (states * _over_states(dy)).sum(2),
    )


@selective_scan.vjp
def _(g: Node, out: Node, state_size: int | None, **operands: Node) -> Gradients:
    @cache
    def gradients() -> tuple[Node, ...]:
        return cast("tuple[Node, ...]", selective_scan_backward(*operands.values(), g, state_size))

    return {name: partial(lambda i: gradients()[i], i) for i, name in enumerate(operands)}


@selective_scan.vmap
def _(
    size: Dim, batched: Mapping[str, bool], a: Node, state_size: int | None, **operands: Node
) -> object:
    if batched["a"]:
        return NotImplemented  # the channels of a batch would each have a pace of their own
    x, delta, b, c = (
        merge_batch(operand if batched[name] else spread(operand, size))
        for name, operand in operands.items()
    )
    rows = operands["x"].shape[1 if batched["x"] else 0]
    return split_batch(selective_scan(x, delta, a, b, c, state_size), size, rows)
