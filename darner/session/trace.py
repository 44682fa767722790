"""Kernel by kernel through a step: what each one made, and which was the first to make a NaN or an infinity.

``trace_dispatches(program)`` runs the step one kernel at a time and looks at every result. A kernel is to blame where its
result has a NaN that no operand had, or an infinity where all operands were finite. Its computation is then gone through
once more, op by op in NumPy, to name the op, the element and the operands that made it. Parameters, states and outputs are
afterwards as they were before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError, Calling, DarnerError, Source
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..lower.plan import Plan
from ..lower.work import same_place
from .inspected import Inspectable, reading, run_and_wait, shown_ops, unchanged
from .statistics import Statistics, statistics
from .tables import Column, Part, Report, Table, clipped, number, percent, plural

LEAVES_SHOWN = 8
"""Leaves that are not finite and are named before the rest is counted."""


@dataclass(frozen=True)
class Value:
    """A tensor that a kernel reads or writes.

    Attributes:
        name: a leaf's own, or ``k3`` for what that kernel made; with several results ``k3.1``.
        statistics: what it held.
    """

    name: str
    statistics: Statistics

    def __str__(self) -> str:
        return f"{self.name}: {self.statistics}"


@dataclass(frozen=True)
class Cause:
    """The op within a kernel that made the first NaN or infinity.

    Attributes:
        op: its name.
        shape: of its result.
        index: of the first element that is not finite.
        value: that element.
        operands: what it was made of, where the op works element by element; empty otherwise.
    """

    op: str
    shape: tuple[int, ...]
    index: tuple[int, ...]
    value: float
    operands: tuple[float, ...] = ()

    def __str__(self) -> str:
        inside = ", ".join(f"{x:.6g}" for x in self.operands)
        call = f"{self.op}({inside})" if self.operands else self.op
        return f"{call} = {self.value:g} at {list(self.index)} of {list(self.shape)}"


@dataclass(frozen=True)
class Dispatch:
    """One kernel, as it ran.

    Attributes:
        number: its position in the plan.
        kind, ops, nodes, label, source: what it computes, and where it comes from in the user's graph.
        operands, results: what it read and what it made.
        flags: what is remarkable about the results: ``nan``, ``inf``, ``large``, ``zero``.
        made: which of ``nan``, ``inf`` and ``large`` no operand had.
        cause: the op that made a NaN or an infinity, where it could be told.
    """

    number: int
    kind: str
    ops: str
    nodes: tuple[int, ...]
    label: str | None
    source: Source | None
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    flags: tuple[str, ...]
    made: tuple[str, ...]
    cause: Cause | None = None

    @property
    def name(self) -> str:
        """``k3``."""
        return f"k{self.number}"

    def __str__(self) -> str:
        label = f" '{self.label}'" if self.label else ""
        line = f" ({self.source})" if self.source else ""
        lines = [f"{self.name} {self.kind}{label}: {self.ops}{line}"]
        if self.cause is not None:
            lines.append(f"  {self.cause}")
        for result in self.results:
            at = result.statistics.first_bad
            first = f", the first at {list(at)}" if at is not None else ""
            lines.append(f"  made {result}{first}")
        lines += [f"  read {operand}" for operand in self.operands]
        if self.nodes:
            lines.append(f"  nodes {', '.join(f'%{id}' for id in self.nodes)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Trace(Report):
    """What a step made, kernel by kernel.

    Attributes:
        name: the plan's name.
        kernels: how many the plan has.
        dispatches: the kernels that ran, in order: all, or up to the first to blame.
        leaves: inputs, parameters and states that hold a NaN or an infinity already.
        threshold: the magnitude from which a value counts as large.
    """

    name: str
    kernels: int
    dispatches: tuple[Dispatch, ...]
    leaves: tuple[Value, ...]
    threshold: float | None = None

    @property
    def first(self) -> Dispatch | None:
        """The first kernel to blame, or None where every result is well."""
        return next((dispatch for dispatch in self.dispatches if dispatch.made), None)

    @property
    def blamed(self) -> tuple[Dispatch, ...]:
        """All kernels to blame, of those that ran."""
        return tuple(dispatch for dispatch in self.dispatches if dispatch.made)

    def __bool__(self) -> bool:
        """Whether something is wrong."""
        return bool(self.leaves) or self.first is not None

    def __str__(self) -> str:
        return Report.__str__(self)

    def _parts(self) -> list[Part]:
        ran = plural(len(self.dispatches), "kernel")
        found: list[Part] = [f"trace of '{self.name}': {ran} of {self.kernels} ran"]
        found += [f"before anything ran, {leaf}" for leaf in self.leaves[:LEAVES_SHOWN]]
        if len(self.leaves) > LEAVES_SHOWN:
            found.append(f"and {len(self.leaves) - LEAVES_SHOWN} more leaves are not finite")
        first = self.first
        if first is None:
            sound = "no kernel made a NaN or an infinity"
            found.append(f"{sound} of its own" if self.leaves else sound)
        else:
            found += [f"the first kernel to make {_made(first)}:", str(first)]
        return found

    def table(self) -> Table:
        """Every result of every kernel that ran: its range, its mean, and what is remarkable."""
        columns = (
            Column("kernel", style="bold"),
            Column("kind", style="blue"),
            Column("ops"),
            Column("label", style="green"),
            Column("line", style="dim"),
            Column("result"),
            Column("min", "right", "cyan"),
            Column("max", "right", "cyan"),
            Column("mean", "right", "cyan"),
            Column("zeros", "right"),
            Column("remarks", style="red"),
        )
        return Table(columns, [row for one in self.dispatches for row in _rows(one)])


def _made(dispatch: Dispatch) -> str:
    words = {"nan": "a NaN", "inf": "an infinity", "large": "a large value"}
    return " and ".join(words[flag] for flag in dispatch.made)


def _rows(dispatch: Dispatch) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for i, result in enumerate(dispatch.results):
        found = result.statistics
        remarks = [f"{found.nans:,} NaN"] if found.nans else []
        remarks += [f"{found.infinities:,} Inf"] if found.infinities else []
        remarks += [flag for flag in dispatch.flags if flag in ("large", "zero")]
        if dispatch.made and remarks:
            remarks.append("made here")
        head = (dispatch.name, dispatch.kind, clipped(dispatch.ops, 34), dispatch.label or "")
        line = "" if dispatch.source is None else str(dispatch.source)
        rows.append(
            (
                *((*head, line) if i == 0 else ("",) * 5),
                found.type,
                number(found.minimum),
                number(found.maximum),
                number(found.mean),
                percent(found.zero_share) if found.zeros else "",
                ", ".join(remarks),
            )
        )
    return rows


# --------------------------------------------------------------------------- running


def trace_dispatches(
    program: Inspectable,
    inputs: Mapping[str, Any] | None = None,
    *,
    threshold: float | None = None,
    every: bool = False,
) -> Trace:
    """Run a step kernel by kernel and look at every result.

    Args:
        program: what to run, with the parameters and states it has.
        inputs: values of inputs, by name; those left out keep the value they have.
        threshold: blame a kernel too where a magnitude exceeds this and none of its operands' does.
        every: go on to the last kernel; otherwise the first one to blame is the last to run.

    A kernel whose own constants are infinite (a mask, say) may make infinities, and one that reads infinities may pass them
    on; but none may make a NaN of them.
    """
    with Calling("trace_dispatches"):
        if threshold is not None and not threshold > 0:
            raise ArgumentError(f"threshold is {threshold}, but a magnitude is above 0")
        with unchanged(program), reading(program, inputs):
            return _Tracing(program, threshold).trace(every)


class _Tracing:
    """One trace in the making: what every buffer held when it was last written."""

    def __init__(self, program: Inspectable, threshold: float | None) -> None:
        self.program = program
        self.plan: Plan = program.plan
        self.threshold = threshold
        self.known: dict[int, Value] = {}

    def trace(self, every: bool) -> Trace:
        """All kernels, or up to the first to blame."""
        plan = self.plan
        leaves = [self._value(i) for i, b in enumerate(plan.buffers) if b.place in LEAVES]
        found: list[Dispatch] = []
        for k in range(len(plan.kernels)):
            found.append(self._dispatch(k))
            if found[-1].made and not every:
                break
        bad = tuple(leaf for leaf in leaves if leaf.statistics.bad)
        return Trace(plan.name, len(plan.kernels), tuple(found), bad, self.threshold)

    def _value(self, i: int) -> Value:
        """What a buffer held when it was last written; a leaf or a constant, from the start."""
        if i not in self.known:
            buffer = self.plan.buffers[i]
            name: str = buffer.place
            if buffer.place != "constant":
                name = f"{buffer.place} '{buffer.name}'"
            self.known[i] = Value(name, statistics(self.program.arrays[i]))
        return self.known[i]

    def _dispatch(self, k: int) -> Dispatch:
        plan, arrays = self.plan, self.program.arrays
        kernel, spec = plan.kernels[k], plan.spec(k)
        operands = tuple(self._value(i) for i in dict.fromkeys(kernel.operands))
        before = [self._kept(i, kernel.results) for i in kernel.operands]
        run_and_wait(self.program, k, k + 1)
        results = []
        for position, i in enumerate(kernel.results):
            name = f"k{k}" if len(kernel.results) == 1 else f"k{k}.{position}"
            self.known[i] = Value(name, statistics(arrays[i]))
            results.append(self.known[i])
        had = self._flags([value.statistics for value in operands])
        flags = self._flags([value.statistics for value in results])
        made = _blame(flags, had, spec.body)
        zero = all(v.statistics.size and v.statistics.zeros == v.statistics.size for v in results)
        return Dispatch(
            number=k,
            kind=spec.kind,
            ops=shown_ops(spec),
            nodes=kernel.nodes,
            label=kernel.label,
            source=kernel.source,
            operands=operands,
            results=tuple(results),
            flags=(*flags, "zero") if zero else flags,
            made=made,
            cause=_cause(spec.body, before) if {"nan", "inf"} & set(made) else None,
        )

    def _kept(self, operand: int, results: tuple[int, ...]) -> Array:
        """An operand's value, which outlasts the kernel: a copy where a result takes its place."""
        array = self.program.arrays[operand]
        overwritten = any(same_place(self.plan, operand, result) for result in results)
        return np.array(array) if overwritten else array

    def _flags(self, found: list[Statistics]) -> tuple[str, ...]:
        flags = []
        if any(one.nans for one in found):
            flags.append("nan")
        if any(one.infinities for one in found):
            flags.append("inf")
        if self.threshold is not None and any(one.largest > self.threshold for one in found):
            flags.append("large")
        return tuple(flags)


def _blame(flags: tuple[str, ...], had: tuple[str, ...], body: Graph) -> tuple[str, ...]:
    """What a kernel made that it did not read."""
    made = []
    if "nan" in flags and "nan" not in had:
        made.append("nan")
    if "inf" in flags and not {"nan", "inf"} & set(had) and not _has_infinite_constant(body):
        made.append("inf")
    if "large" in flags and not had:
        made.append("large")
    return tuple(made)


def _has_infinite_constant(body: Graph) -> bool:
    constants = (node for node in body.nodes if node.op.name == "constant")
    return any(np.isinf(_wide(node.attrs["values"].array)).any() for node in constants)


def _cause(body: Graph, operands: list[Array]) -> Cause | None:
    """The first op of a kernel whose result is not finite although its operands are, found in NumPy.

    NumPy may round otherwise than the kernel, and so may miss what was at the edge of overflow: then there is none.
    """
    from ..interpreter import compute

    values: dict[int, Any] = {}
    tainted: Cause | None = None
    with np.errstate(all="ignore"):
        for node in body.nodes:
            if node.op.name == "input":
                values[node.id] = operands[int(str(node.name))]
                continue
            try:
                values[node.id] = compute(node, [values[i] for i in node.inputs])
            except DarnerError:
                return tainted
            if node.op.name == "constant" or isinstance(values[node.id], tuple):
                continue
            cause = _made_here(node, values)
            if cause is not None and cause.value != cause.value:
                return cause
            tainted = tainted or cause
    return tainted


def _made_here(node: Node, values: Mapping[int, Any]) -> Cause | None:
    """What an op made that is worse than all it read: NaN of numbers, or infinities of finite ones."""
    result = _wide(values[node.id])
    inputs = [_wide(values[i]) for i in node.inputs if not isinstance(values[i], tuple)]
    bad = np.isnan(result)
    if not bad.any() or any(np.isnan(value).any() for value in inputs):
        bad = np.isinf(result)
        if not bad.any() or not all(np.isfinite(value).all() for value in inputs):
            return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), result.shape))
    read: tuple[float, ...] = ()
    if "elementwise" in node.op.traits:
        read = tuple(float(np.broadcast_to(value, result.shape)[index]) for value in inputs)
    return Cause(node.op.name, tuple(result.shape), index, float(result[index]), read)


def _wide(array: Array) -> Array:
    """A value in f64; complex ones by magnitude."""
    found = np.asarray(array)
    return (np.abs(found) if np.iscomplexobj(found) else found).astype(np.float64)
