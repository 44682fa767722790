"""What looking into a running program needs of it, and how it leaves the program as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import RunError, ShapeError
from ..graph.habits.hints import input_name
from ..lower.plan import Kernel, Plan, Spec


class Inspectable(Protocol):
    """The part of a backend's program that is needed here; see ``darner.backends.base.program.Program``."""

    plan: Plan

    @property
    def arrays(self) -> Sequence[Array]:
        """The values of the plan's buffers."""

    @property
    def threads(self) -> int:
        """How many threads run it."""

    def bind(self, buffer: int, array: Array | None) -> None:
        """Let an input be read from the caller's memory."""

    def write(self, buffer: int, value: Array) -> None:
        """Give a buffer a value."""

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Start the kernels from ``first`` to before ``last``; all by default, and then the updates of leaves.

        ``times`` of shape (rows, threads, 2) takes when each thread began and ended each, in nanoseconds.
        """


@runtime_checkable
class _Asynchronous(Protocol):
    def sync(self) -> None: ...


def run_and_wait(
    program: Inspectable,
    first: int = 0,
    last: int | None = None,
    times: npt.NDArray[np.int64] | None = None,
) -> None:
    """Run kernels, and wait until they are done where a backend only starts them."""
    program.run(first, last, times)
    if isinstance(program, _Asynchronous):
        program.sync()


@contextmanager
def unchanged(program: Inspectable) -> Iterator[None]:
    """Whatever runs inside, parameters, states and outputs are afterwards as they were before."""
    plan = program.plan
    touched = {i for kernel in plan.kernels for i in kernel.results}
    kept = {i for i in touched if plan.buffers[i].place != "arena"}
    kept.update(old for old, _ in plan.updates)
    kept.update(plan.outputs)
    before = {i: np.array(program.arrays[i]) for i in kept}
    try:
        yield
    finally:
        for i, array in before.items():
            if plan.buffers[i].place != "constant":
                program.write(i, array)


@contextmanager
def reading(program: Inspectable, inputs: Mapping[str, Any] | None) -> Iterator[None]:
    """Let inputs have other values for a while, by name; those not named keep theirs."""
    plan = program.plan
    places = plan.leaves("input")
    chosen: dict[int, Array] = {}
    for name, value in (inputs or {}).items():
        name = input_name(name, places)
        buffer = plan.buffers[places[name]]
        array, _ = as_array(value, f"input '{name}'")
        shape = tuple(int(size) for size in buffer.type.shape)
        if array.shape != shape:
            raise ShapeError(f"input '{name}' is {shape}, but the value is {array.shape}")
        if not np.can_cast(array.dtype, buffer.type.dtype.numpy, "same_kind"):
            raise RunError(f"input '{name}' is {buffer.type.dtype}, but the value is {array.dtype}")
        chosen[places[name]] = np.ascontiguousarray(array, buffer.type.dtype.numpy)
    before = {i: program.arrays[i] for i in chosen}
    try:
        for i, array in chosen.items():
            program.bind(i, array)
        yield
    finally:
        for i, array in before.items():
            program.bind(i, array)


def shown_ops(spec: Spec) -> str:
    """What a kernel computes, for a reader: views left out, and an op in a row counted.

    >>> import darner
    >>> from darner.lower.lower import lower
    >>> g = darner.Graph()
    >>> x = g.input("x", (3, 2))
    >>> g.set_outputs([((x + 1.0) * 2.0 * x).exp()])
    >>> plan = lower(g)
    >>> shown_ops(plan.spec(0))
    'add, mul x2, exp'
    """
    plain = {"input", "constant"}
    names = [
        node.op.name
        for node in spec.body.nodes
        if node.op.name not in plain and "view" not in node.op.traits
    ]
    runs: list[tuple[str, int]] = []
    for name in names or list(spec.ops):
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return ", ".join(name if times == 1 else f"{name} x{times}" for name, times in runs)


def updated_leaves(plan: Plan, kernel: Kernel) -> tuple[str, ...]:
    """The parameters and states that take a result of a kernel, in place or at the end; parameters first."""
    takers = {new: old for old, new in plan.updates}
    found = [i if plan.buffers[i].place != "arena" else takers.get(i) for i in kernel.results]
    leaves = [plan.buffers[i] for i in found if i is not None]
    leaves.sort(key=lambda buffer: buffer.place != "parameter")
    return tuple(str(buffer.name) for buffer in leaves)
