"""The gated delta rule: a matrix for each head that forgets, and that writes what it does not know yet.

With the matrix M (keys by values) of a head, one step is

    M *= exp(g);   d = beta (v - M' k);   M += k d';   o = M' q / sqrt(n)

Written out, all steps of a sequence are one triangular system for the d, and products of matrices (the WY form). Devices with a kernel of their own go by
steps, or by chunks of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

from ...graph.attributes import Float
from ...graph.build import check_given
from ...graph.dims import Dim, Shape, format_shape
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, Resolved, builder, composite, resolved
from ...graph.types import TensorType
from ..axes import spread
from ..elementwise.arithmetic import where
from ..elementwise.functions import exp
from ..linalg.systems import flipped, triangular_solve
from ..reductions.reduce import cumsum
from ..samples import Sample, Spec, sample, spec
from ..spatial.windows import merge_batch, split_batch
from .selective_scan import FAMILY, Gradients, check_state_size

# --------------------------------------------------------------------------- types


def _check_net(
    operands: Mapping[str, TensorType | None], q: TensorType, state_size: int | None
) -> int | None:
    """The settled size of the state; an error names the first operand that does not fit."""
    if q.rank != 4:
        raise ShapeError(f"q has rank {q.rank}: its axes are batch, sequence, heads and width")
    batch, steps, heads, width = q.shape
    size = check_state_size(state_size, width)
    gate, matrix = (batch, steps, heads), (batch, heads, width, width)
    wanted: dict[str, Shape] = {"g": gate, "beta": gate, "state": matrix, "dstate": matrix}
    for name, item in operands.items():
        expected = wanted.get(name, q.shape)
        if item is not None and item.shape != expected:
            raise ShapeError(
                f"{name} is {format_shape(item.shape)}: with q {format_shape(q.shape)} it must "
                f"be {format_shape(expected)}"
            )
    return size if isinstance(size, int) else state_size


def _operands(batch: int, steps: int, heads: int, width: int) -> list[Spec]:
    rows, gate = (batch, steps, heads, width), (batch, steps, heads)
    return [
        spec(*rows),
        spec(*rows, low=-0.8, high=0.8),
        spec(*rows),
        spec(*gate, low=-1.0, high=0.1),
        spec(*gate, low=0.1, high=1.0),
    ]


_SIZES = ((2, 5, 2, 3), (1, 19, 1, 1), (2, 1, 3, 4), (1, 0, 2, 3), (0, 3, 1, 2))


def _call(sizes: tuple[int, int, int, int], *more: Spec | int | None) -> Sample:
    return sample(*_operands(*sizes), *more)


def _state(sizes: tuple[int, int, int, int]) -> Spec:
    batch, _, heads, width = sizes
    return spec(batch, heads, width, width)


@composite(
    family=FAMILY,
    samples=[*(_call(sizes) for sizes in _SIZES), _call(_SIZES[0], _SIZES[0][3])],
    facts=Facts(role="library", whole=True, reads_rows=True, weight=64.0),
)
def gated_delta_net(
    q: Float, k: Float, v: Float, g: Float, beta: Float, state_size: int | None = None
) -> Resolved:
    """The gated delta rule from an empty state: ``M *= exp(g); M += k (beta (v - M'k))'; o = M'q / sqrt(n)`` along the sequence.

    ``q``, ``k`` and ``v`` are (batch, sequence, heads, n), ``g`` and ``beta`` are (batch, sequence, heads); the result is shaped like ``q``. Queries and keys
    are used as they are given: normalise them before, where a model does. ``gated_delta_net_carry`` begins with a state and keeps it.
    """
    size = _check_net({"k": k, "v": v, "g": g, "beta": beta}, q, state_size)
    return resolved(q, state_size=size)


@composite(
    family=FAMILY,
    samples=[
        *(_call(sizes, _state(sizes)) for sizes in _SIZES),
        _call(_SIZES[0], _state(_SIZES[0]), _SIZES[0][3]),
    ],
    facts=Facts(role="library", whole=True, reads_rows=True, carries="state", weight=64.0),
)
def gated_delta_net_final(
    q: Float,
    k: Float,
    v: Float,
    g: Float,
    beta: Float,
    state: Float,
    state_size: int | None = None,
) -> Resolved:
    """``gated_delta_net`` from a ``state`` (batch, heads, n keys, n values), and the state after the last step."""
    operands = {"k": k, "v": v, "g": g, "beta": beta, "state": state}
    size = _check_net(operands, q, state_size)
    return resolved((q, state), state_size=size)


# --------------------------------------------------------------------------- expansion


def heads_first(x: Node) -> Node:
    """(batch, sequence, heads, ...) as (batch, heads, sequence, ...), or back."""
    return x.transpose((0, 2, 1, *range(3, x.rank)))


def _column(x: Node) -> Node:
    """A number of each step beside the width."""
    return x.reshape((*x.shape, 1))


def _rows(x: Node, y: Node) -> Node:
    """The products of rows of ``x`` with rows of ``y``."""
    return x.matmul_bt(y)


def _scale(width: Dim) -> float:
    return 1 / math.sqrt(int(width)) if width else 1.0


class _Steps:
    """All steps of a sequence as matrices, heads first.

    Attributes:
        kept: what is left at step t (a row) of what was written at step s (a column); 0 where s comes later.
        kept_first: what is left at each step of the state at the beginning.
        kept_last: what is left at the end of what was written at each step.
        known: the values that the state gives for the keys, of steps before.
        written: the d of each step.
    """

    def __init__(self, q: Node, k: Node, v: Node, g: Node, beta: Node, state: Node | None) -> None:
        self.q, self.k, self.v, self.g, self.beta = map(heads_first, (q, k, v, g, beta))
        self.state = state
        graph, steps = q.graph, q.shape[1]
        row, column = graph.iota((steps, 1)), graph.iota((steps,))
        self.lower, self.strict = row >= column, row > column
        # The sums of g from one step to another, each by itself: differences of sums from the beginning would lose digits.
        paths = cumsum(where(self.strict, _column(self.g), 0.0), 2)
        self.kept = where(self.lower, exp(paths), 0.0)
        self.kept_first = exp(cumsum(self.g, 2))
        self.kept_last = self.kept[:, :, steps - 1 :].reshape(self.g.shape) if steps else self.g
        self.kept_all = self.kept_first[:, :, steps - 1 :] if steps else None
        self.of_keys = where(self.strict, _rows(self.k, self.k), 0.0)
        self.of_queries = where(self.lower, _rows(self.q, self.k), 0.0)
        self.system = _column(self.beta) * self.of_keys * self.kept
        wanted = self.v
        if state is not None:
            wanted = wanted - _column(self.kept_first) * self.k.matmul(state)
        self.written = triangular_solve(
            self.system, _column(self.beta) * wanted, unit_diagonal=True
        )
        self.missing = wanted - (self.of_keys * self.kept).matmul(self.written)

    def result(self) -> Node:
        """The results of all steps."""
        found = (self.of_queries * self.kept).matmul(self.written)
        if self.state is not None:
            found = found + _column(self.kept_first) * self.q.matmul(self.state)
        return heads_first(found * _scale(self.q.shape[3]))

    def final(self, state: Node) -> Node:
        """The state after the last step."""
        if self.kept_all is None:
            return state
        added = flipped(_column(self.kept_last) * self.k).matmul(self.written)
        return _column(self.kept_all) * state + added


LONGEST = 256
"""Steps up to which a sequence is one system: its matrices have so many rows and columns."""

PIECE = 128
"""Steps of a piece of a longer one."""


def _pieces(operands: Sequence[Node]) -> list[list[Node]]:
    """Operands by steps, cut along the sequence."""
    steps = int(operands[0].shape[1])
    return [[x[:, start : start + PIECE] for x in operands] for start in range(0, steps, PIECE)]


def _is_long(q: Node) -> bool:
    return isinstance(q.shape[1], int) and q.shape[1] > LONGEST


def _empty_state(q: Node) -> Node:
    """The state that a sequence begins with where none is given."""
    batch, _, heads, width = q.shape
    return q.graph.zeros((batch, heads, width, width), q.dtype)


@gated_delta_net.expand
def _(q: Node, k: Node, v: Node, g: Node, beta: Node, state_size: int | None) -> Node:
    if _is_long(q):
        return cast(Node, gated_delta_net_final(q, k, v, g, beta, _empty_state(q), state_size)[0])
    return _Steps(q, k, v, g, beta, None).result()


@gated_delta_net_final.expand
def _(
    q: Node, k: Node, v: Node, g: Node, beta: Node, state: Node, state_size: int | None
) -> tuple[Node, Node]:
    if _is_long(q):
        rows = []
        for piece in _pieces((q, k, v, g, beta)):
            o, state = gated_delta_net_final(*piece, state, state_size)
            rows.append(o)
        return q.graph.concat(rows, 1), state
    steps = _Steps(q, k, v, g, beta, state)
    return steps.result(), steps.final(state)


# --------------------------------------------------------------------------- gradients


@composite(
    family=FAMILY,
    samples=[
        _call(_SIZES[0], spec(*_SIZES[0])),
        *(_call(_SIZES[i], spec(*_SIZES[i]), *[_state(_SIZES[i])] * 2) for i in (1, 2, 3)),
        _call(_SIZES[0], spec(*_SIZES[0]), _state(_SIZES[0]), None, 3),
    ],
    facts=Facts(role="library", whole=True, reads_rows=True, weight=192.0),
)
def gated_delta_net_backward(
    q: Float,
    k: Float,
    v: Float,
    g: Float,
    beta: Float,
    dy: Float,
    state: Float | None = None,
    dstate: Float | None = None,
    state_size: int | None = None,
) -> Resolved:
    """The gradients of ``gated_delta_net`` with respect to ``q``, ``k``, ``v``, ``g`` and ``beta``; from a ``state``, also with respect to that.

    ``dy`` is the gradient of the result, and ``dstate`` that of the state after the last step, where there is one.
    """
    operands = {"k": k, "v": v, "g": g, "beta": beta, "dy": dy, "state": state, "dstate": dstate}
    size = _check_net(operands, q, state_size)
    if state is None and dstate is not None:
        raise ArgumentError("dstate is the gradient of a final state: give the state it began with")
    results = (q, k, v, g, beta) if state is None else (q, k, v, g, beta, state)
    return resolved(results, state_size=size)


@dataclass
class _Reached:
    """What a gradient reaches of the decays, by the steps between which they lie.

    Attributes:
        between: of ``kept``: from the step of a column to that of a row.
        until: of ``kept_first``: from the beginning to each step.
        since: of ``kept_last``: from each step to the end.
        through: of all of the sequence.
    """

    between: Node
    until: Node
    since: Node | None = None
    through: Node | None = None

    def gates(self, strict: Node) -> Node:
        """The gradient of g: every decay in which it has a part."""
        rows = cumsum(self.between, 2, reverse=True)
        found = where(strict, rows, 0.0).sum(-1) + cumsum(self.until, 2, reverse=True)
        if self.since is not None:
            found = found + cumsum(self.since, 2, exclusive=True)
        if self.through is not None:
            found = found + self.through
        return cast(Node, found)


@gated_delta_net_backward.expand
def _(
    q: Node,
    k: Node,
    v: Node,
    g: Node,
    beta: Node,
    dy: Node,
    state: Node | None,
    dstate: Node | None,
    state_size: int | None,
) -> tuple[Node, ...]:
    if _is_long(q):
        return _backward_by_pieces((q, k, v, g, beta, dy), state, dstate)
    steps = _Steps(q, k, v, g, beta, state)
    q, k, beta, written, kept = steps.q, steps.k, steps.beta, steps.written, steps.kept
    given = heads_first(dy) * _scale(q.shape[3])
    later = None if steps.kept_all is None else dstate
    reaching = flipped(steps.of_queries * kept).matmul(given)
    if later is not None:
        reaching = reaching + _column(steps.kept_last) * k.matmul(later)
    # The gradient of what each step wrote, by the transposed system.
    solved = triangular_solve(flipped(steps.system), reaching, lower=False, unit_diagonal=True)
    dv = _column(beta) * solved
    by_queries = where(steps.lower, _rows(given, written), 0.0)
    by_keys = where(steps.strict, -_rows(dv, written), 0.0)
    reached = _Reached(
        (by_queries * steps.of_queries + by_keys * steps.of_keys) * kept,
        g.graph.zeros(steps.g.shape, steps.g.dtype),
    )
    by_queries, by_keys = by_queries * kept, by_keys * kept
    dq = by_queries.matmul(k)
    dk = flipped(by_queries).matmul(q) + (by_keys + flipped(by_keys)).matmul(k)
    found: list[Node] = []
    if state is not None:
        first = _column(steps.kept_first)
        to_queries, to_keys = first * _rows(given, state), first * _rows(dv, state)
        dq, dk = dq + to_queries, dk - to_keys
        reached.until = (q * to_queries - k * to_keys).sum(-1)
        before = flipped(q).matmul(first * given) - flipped(k).matmul(first * dv)
        if later is not None and steps.kept_all is not None:
            whole = _column(steps.kept_all) * later
            before = before + whole
            reached.through = (whole * state).sum((2, 3)).reshape((*whole.shape[:2], 1))
        found = [before if later is not None or dstate is None else before + dstate]
    if later is not None:
        to_written = _column(steps.kept_last) * _rows(written, later)
        dk = dk + to_written
        reached.since = (k * to_written).sum(-1)
    dbeta = (solved * steps.missing).sum(-1)
    dg = reached.gates(steps.strict)
    return (*(heads_first(item) for item in (dq, dk, dv, dg, dbeta)), *found)


def _backward_by_pieces(
    operands: Sequence[Node], state: Node | None, dstate: Node | None
) -> tuple[Node, ...]:
    """The gradients piece by piece, the last first; before, the states with which pieces begin."""
    pieces, q = _pieces(operands), operands[0]
    starts = [_empty_state(q) if state is None else state]
    for *piece, _ in pieces[:-1]:
        starts.append(gated_delta_net_final(*piece, starts[-1])[1])
    rows: list[Sequence[Node]] = []
    for piece, start in zip(reversed(pieces), reversed(starts), strict=True):
        *found, dstate = gated_delta_net_backward(*piece, start, dstate)
        rows.insert(0, found)
    whole = tuple(q.graph.concat(list(parts), 1) for parts in zip(*rows, strict=True))
    return whole if state is None or dstate is None else (*whole, dstate)


@gated_delta_net.vjp
def _(cotangent: Node, out: Node, state_size: int | None, **operands: Node) -> Gradients:
    @cache
    def gradients() -> tuple[Node, ...]:
        found = gated_delta_net_backward(*operands.values(), cotangent, state_size=state_size)
        return cast("tuple[Node, ...]", found)

    return {name: partial(lambda i: gradients()[i], i) for i, name in enumerate(operands)}


@gated_delta_net_final.vjp
def _(
    cotangents: tuple[Node | None, Node | None],
    out: tuple[Node, Node],
    state: Node,
    state_size: int | None,
    **operands: Node,
) -> Gradients:
    dy, dstate = cotangents

    @cache
    def gradients() -> tuple[Node, ...]:
        q = operands["q"]
        given = q.graph.zeros(q.shape, q.dtype) if dy is None else dy
        found = gated_delta_net_backward(*operands.values(), given, state, dstate, state_size)
        return cast("tuple[Node, ...]", found)

    return {
        name: partial(lambda i: gradients()[i], i) for i, name in enumerate([*operands, "state"])
    }


def _in_batch(
    op: Op,
    size: Dim,
    batched: Mapping[str, bool],
    nodes: dict[str, Node | None],
    state_size: int | None,
) -> Node | tuple[Node, ...]:
    """A rule over a batch of sequences: the batch goes into their own batch axis."""
    merged = {
        name: None if node is None else merge_batch(node if batched[name] else spread(node, size))
        for name, node in nodes.items()
    }
    q = nodes["q"]
    rows = q.shape[1 if batched["q"] else 0] if q is not None else 0
    found = op(*merged.values(), state_size=state_size)
    if isinstance(found, tuple):
        return tuple(split_batch(item, size, rows) for item in found)
    return split_batch(found, size, rows)


@gated_delta_net.vmap
def _(
    size: Dim, batched: Mapping[str, bool], state_size: int | None, **nodes: Node | None
) -> object:
    return _in_batch(gated_delta_net, size, batched, nodes, state_size)


@gated_delta_net_final.vmap
def _(
    size: Dim, batched: Mapping[str, bool], state_size: int | None, **nodes: Node | None
) -> object:
    return _in_batch(gated_delta_net_final, size, batched, nodes, state_size)


@gated_delta_net_backward.vmap
def _(
    size: Dim, batched: Mapping[str, bool], state_size: int | None, **nodes: Node | None
) -> object:
    return _in_batch(gated_delta_net_backward, size, batched, nodes, state_size)


# --------------------------------------------------------------------------- states that are carried


@builder(family=FAMILY)
def gated_delta_net_carry(  # many parameters: RLX's order
    graph: Graph,
    q: Node,
    k: Node,
    v: Node,
    g: Node,
    beta: Node,
    state: Node,
    state_size: int | None = None,
    shape: object = None,
    *,
    return_state: bool = False,
) -> Node | tuple[Node, Node]:
    """``gated_delta_net`` that begins with ``state`` (batch, heads, n keys, n values): a whole prompt, or one token of it.

    A ``state`` leaf takes the state after the last step as its value after the run. With ``return_state`` the result comes with that state,
    ``(o, state)``; a node that is no leaf needs it, since nothing else would keep what was learned.
    """
    is_leaf = state.op.name == "state"
    if not is_leaf and not return_state:
        raise ArgumentError(
            f"the state is {state.op.name}: the state after the last step would be lost",
            hint="return_state=True gives (o, state); a state of the graph is updated by itself",
        )
    o, final = gated_delta_net_final(q, k, v, g, beta, state, state_size)
    o = o if o.dtype is q.dtype else o.cast(q.dtype)
    final = final if final.dtype is state.dtype else final.cast(state.dtype)
    if shape is not None:
        check_given(o, shape)
    if is_leaf:
        graph.set_update(state, final)
    return (o, final) if return_state else o
