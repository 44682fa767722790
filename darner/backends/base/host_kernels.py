"""Kernels of kind ``host``: the NumPy functions of a user's ops, called between the kernels that a device runs.

A function gets arrays that it may read and not write. What it raises ends the step, as what the data make fail does: such kernels come before
the plan commits, so no parameter or state has changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...graph.data import Array
from ...graph.errors import DarnerError
from ...interpreter import evaluate
from ...lower.faults import located
from ...lower.plan import Kernel, Plan, Spec
from .loops import Oracle


def run_kernel(plan: Plan, number: int, arrays: Sequence[Array]) -> None:
    """Compute a kernel of a plan in NumPy; ``arrays`` are the values of all buffers.

    Raises:
        DarnerError: with the op, its label and its line; what a user's function raised is its cause.
    """
    kernel = plan.kernels[number]
    spec = plan.spec(kernel)
    values = [_to_read(arrays[i]) for i in kernel.operands]
    if spec.inner is not None:
        results = _repeated(spec, kernel, values)
    else:
        try:
            found = evaluate(spec.body, {str(i): value for i, value in enumerate(values)})
        except DarnerError as error:
            raise located(error, kernel, spec.body) from error.__cause__
        results = [found[node.id] for node in spec.body.outputs]
    written = [arrays[i] for i in kernel.results]
    if len(results) > 1:
        # All are there before one is written: a result may be a view of an operand that it replaces.
        results = [_apart(result, written) for result in results]
    for array, result in zip(written, results, strict=True):
        array[...] = result


def _repeated(spec: Spec, kernel: Kernel, operands: Sequence[Array]) -> list[Array]:
    try:
        return Oracle().compute(spec, operands, kernel.checks)
    except DarnerError as error:
        op = error.op or "loop"
        raise error.located(op, kernel.label, "", kernel.source) from error.__cause__


def _to_read(array: Array) -> Array:
    """The same memory, which nobody writes by way of this array."""
    seen = array.view()
    seen.flags.writeable = False
    return seen


def _apart(result: Array, written: Sequence[Array]) -> Array:
    shares = any(np.may_share_memory(result, array) for array in written)
    return np.array(result) if shares else result
