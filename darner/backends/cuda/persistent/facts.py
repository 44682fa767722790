"""What is known of a plan's buffers while a chain grows, kernel by kernel."""

from __future__ import annotations

from ....lower.plan import Kernel, Plan, Spec
from .roles import (
    attention_of,
    is_light,
    is_update,
    matrix_of,
    replaced,
    rounded_copies,
)


class Facts:
    """What is known of the buffers of a chain in the making."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[int, int] = {}
        self.read: set[int] = set()
        self.copies: dict[int, int] = {}

    def is_main(self, number: int) -> bool:
        """Whether all blocks share the work of a kernel."""
        spec = self.plan.spec(number)
        return matrix_of(spec) is not None or attention_of(spec) is not None

    def is_stable(self, buffer: int) -> bool:
        """Whether nothing of the chain has written a buffer."""
        return buffer not in self.made

    def admits(self, number: int) -> bool:
        """Whether a kernel can be the next of the chain; then it is."""
        kernel, spec = self.plan.kernels[number], self.plan.spec(number)
        if not self._fits(number, kernel, spec):
            return False
        self.read.update(kernel.operands)
        self.made.update(dict.fromkeys(kernel.results, number))
        return True

    def _fits(self, number: int, kernel: Kernel, spec: Spec) -> bool:
        if is_update(spec):
            return self._fits_update(kernel, replaced(spec))
        if set(kernel.operands) & set(kernel.results):
            return False
        matrix = matrix_of(spec)
        if matrix is not None:
            return self.is_stable(kernel.operands[matrix.weight])
        attention = attention_of(spec)
        if attention is not None:
            where = {leaf.id: i for i, leaf in enumerate(spec.inputs)}
            rows = [kernel.operands[where[attention.operands[n].base.id]] for n in ("k", "v")]
            return all(self._is_memory(buffer) for buffer in rows)
        copied = set()
        for result, operand in rounded_copies(spec).items():
            buffer = kernel.results[result]
            memory = self._is_memory(kernel.operands[operand])
            if memory and self._is_copied_for_attention(buffer):
                self.copies[buffer] = kernel.operands[operand]
                copied.add(result)
        return is_light(spec, frozenset(copied))

    def _is_memory(self, buffer: int) -> bool:
        """Whether a buffer lies in memory: nothing of the chain has made it but updates in place."""
        buffer = self.copies.get(buffer, buffer)
        made = self.made.get(buffer)
        return made is None or is_update(self.plan.spec(made))

    def _is_copied_for_attention(self, buffer: int) -> bool:
        """Whether only attention reads a copy, as keys or values."""
        outside = {*self.plan.outputs, *(new for _, new in self.plan.updates)}
        users = [k for k in self.plan.kernels if buffer in k.operands]
        for kernel in users:
            spec = self.plan.spec(kernel)
            found = attention_of(spec)
            if found is None:
                return False
            names = {leaf.id: i for i, leaf in enumerate(spec.inputs)}
            q = kernel.operands[names[found.operands["q"].base.id]]
            if q == buffer:
                return False
        return bool(users) and buffer not in outside

    def _fits_update(self, kernel: Kernel, operand: int) -> bool:
        """An update in place of what nothing in the chain has read or made."""
        (result,) = kernel.results
        others = [buffer for i, buffer in enumerate(kernel.operands) if i != operand]
        return (
            kernel.operands[operand] == result
            and result not in others
            and result not in self.read
            and result not in self.made
        )
