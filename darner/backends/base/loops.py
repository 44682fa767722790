"""Kernels of kind ``loop`` in NumPy: the plan of the body on bytes of its own, as often as there are steps.

Leaves lie where ``lower.loops.Loop`` says they do: steps are read from the operands and written to the results, and carries are changed in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...graph.data import Array
from ...graph.dtypes import DType
from ...graph.errors import DarnerError, Source
from ...graph.integers import ceil_div
from ...graph.node import Node
from ...interpreter import evaluate
from ...lower.loops import CARRY, CONSTANT, Loop, Place, failing, loop_of
from ...lower.plan import Buffer, Plan, Spec
from ...transforms.expand import _widen, in_float64

UNWRITTEN = 0xFF
"""What an arena holds before anything is written: NaN in every float."""

Check = tuple[str | None, Source | None]


@dataclass(frozen=True)
class Oracle:
    """How the kernels of a plan are computed: in their own types, or with ``float64`` in the oracle's."""

    float64: bool = False

    def dtype(self, buffer: Buffer) -> DType:
        """What a buffer's elements are kept in."""
        return _widen(buffer.type.dtype) if self.float64 else buffer.type.dtype

    def factor(self, plan: Plan) -> int:
        """How many times as many bytes as planned the widest value takes."""
        pairs = [(self.dtype(b).itemsize, b.type.dtype.itemsize) for b in plan.buffers]
        return max((ceil_div(wide, own) for wide, own in pairs), default=1)

    def compute(
        self, spec: Spec, operands: Sequence[Array], checks: Sequence[Check]
    ) -> list[Array]:
        """The results of a kernel; ``checks`` are its labels and lines, as in ``Kernel``."""
        if spec.inner is not None:
            return self._repeated(spec, operands, checks)
        body = in_float64(spec.body) if self.float64 else spec.body
        try:
            found = evaluate(body, {str(place): value for place, value in enumerate(operands)})
        except DarnerError as error:
            raise _located(error, spec, checks) from error.__cause__
        return [np.array(found[node.id]) for node in body.outputs]

    def _repeated(
        self, spec: Spec, operands: Sequence[Array], checks: Sequence[Check]
    ) -> list[Array]:
        loop = loop_of(spec)
        results = [_room(node, self.float64) for node in spec.body.outputs]
        values = self._values(loop.plan)
        leaves = {**loop.plan.leaves("state"), **loop.plan.leaves("input")}
        for name in leaves:
            place, buffer = loop.places[name], loop.plan.buffers[leaves[name]]
            if name[0] == CARRY:
                start = _part(operands, place, buffer, 0)
                home = np.empty_like(start) if place.result is None else results[place.result]
                home[...] = start
                values[leaves[name]] = home
            elif name[0] == CONSTANT:
                values[leaves[name]] = _part(operands, place, buffer, 0)
        for number in range(loop.length):
            step = loop.step(number)
            for name, i in leaves.items():
                place = loop.places[name]
                if not place.stride and name[0] in (CARRY, CONSTANT):
                    continue
                if place.result is not None:
                    whole = results[place.result]
                    values[i] = whole[step : step + 1].reshape(whole.shape[1:])
                else:
                    values[i] = _part(operands, place, loop.plan.buffers[i], step)
            self._step(loop, values, checks)
        return results

    def _step(self, loop: Loop, values: Mapping[int, Array], checks: Sequence[Check]) -> None:
        at = 0
        for kernel in loop.plan.kernels:
            inner = loop.plan.spec(kernel)
            own = checks[at : at + len(kernel.checks)]
            at += len(own)
            found = self.compute(inner, [values[i] for i in kernel.operands], own)
            for i, result in zip(kernel.results, found, strict=True):
                values[i][...] = result

    def _values(self, plan: Plan) -> dict[int, Array]:
        """An array for each buffer of the arena, views of its bytes, and for each constant."""
        factor = self.factor(plan)
        arena = np.full(plan.arena_bytes * factor, UNWRITTEN, np.uint8)
        values: dict[int, Array] = {}
        for number, buffer in enumerate(plan.buffers):
            kind = self.dtype(buffer)
            if buffer.place == "arena":
                start, shape = buffer.range[0] * factor, _sizes(buffer)
                stop = start + int(buffer.type.size) * kind.itemsize
                values[number] = arena[start:stop].view(kind.numpy).reshape(shape)
            elif buffer.place == "constant":
                values[number] = plan.constants[str(buffer.name)].array.astype(kind.numpy)
        return values


def _sizes(buffer: Buffer) -> tuple[int, ...]:
    return tuple(int(size) for size in buffer.type.shape)


def _room(node: Node, float64: bool) -> Array:
    kind = _widen(node.dtype) if float64 else node.dtype
    return np.empty([int(size) for size in node.shape], kind.numpy)


def _part(operands: Sequence[Array], place: Place, buffer: Buffer, step: int) -> Array:
    """Where an operand has the value of a leaf in a step."""
    whole = operands[place.operand or 0].reshape(-1)
    size = buffer.type.dtype.itemsize
    start = (place.offset + step * place.stride) // size
    return whole[start : start + int(buffer.type.size)].reshape(_sizes(buffer))


def _located(error: DarnerError, spec: Spec, checks: Sequence[Check]) -> DarnerError:
    """An error of a kernel's body, with the label and the line of the node that the user wrote."""
    names = [node.op.name for node in failing(spec)]
    op = error.op or "run"
    if op in names and names.index(op) < len(checks):
        label, source = checks[names.index(op)]
        return error.located(op, label, "", source)
    return error
