"""What a template for tensor cores calls: the instructions of a warp on values of the SIMT builder.

``cores_of`` gives them for a machine: as PTX, or on an emulated one as arithmetic (``emulated``), so that the same template runs on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ....codegen.simt.builder import Memory, Value, Variable


class Cores(Protocol):
    """The instructions of a warp. All of its lanes come to each of them.

    Attributes:
        base: the address of shared memory, of 32 bits, a multiple of 1024.
    """

    base: Value

    def multiply(
        self,
        dtype: str,
        sums: Sequence[Sequence[Sequence[Variable]]],
        left: Sequence[Value],
        right: Sequence[Value],
    ) -> None:
        """Add products to the sums of a warp: for each 16 rows and each 8 columns four; see ``mma.mma_sync``.

        Args:
            dtype: ``bf16``, ``f16`` or ``tf32``.
            sums: row by row.
            left: the fragments of A, four words for each 16 rows.
            right: those of B, two words for each 8 columns.
        """
        ...

    def ldmatrix(self, addresses: Sequence[Value], *, transposed: bool = False) -> list[Value]:
        """Four matrices of 8 by 8 elements of 16 bits at each of some addresses; see ``mma.ldmatrix``."""
        ...

    def shuffle_xor(self, values: Sequence[Value], mask: int) -> list[Value]:
        """Numbers of f32 of the lane whose number differs in these bits."""
        ...

    def copy_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """Copy an item of 16 bytes to shared memory; zeros beyond ``nbytes``, which may be less than 0."""
        ...

    def commit(self) -> None:
        """Make a group of this thread's copies since the last one."""
        ...

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many of this thread's groups are under way."""
        ...


def cores_of(builder, machine, nbytes: int) -> Cores:
    from .emulated import EmulatedCores
    return EmulatedCores(builder, nbytes)
