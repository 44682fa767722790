"""What a template for tensor cores calls: the instructions of a warp on values of the SIMT builder.

``cores_of`` gives them for a machine: as PTX, or on an emulated one as arithmetic (``emulated``), so that the same template runs on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from ....codegen.simt.builder import Memory, Simt, Value, Variable
from ..emulator.printer import EmulatedPrinter
from ..machine import Machine
from ..printer import Printer
from ..printer.memory import item_of
from .assembly import F32, I32, I64
from .copies import (
    cp_async,
    cp_async_commit,
    cp_async_wait,
    cp_async_word,
    load_shared,
    store_shared,
)
from .emulated import EmulatedCores
from .mma import ldmatrix, mma_sync
from .numbers import round_tf32
from .threads import sync_warp


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
        *,
        rounded: bool = False,
    ) -> None:
        """Add products to the sums of a warp: for each 16 rows and each 8 columns four; see ``mma.mma_sync``.

        Args:
            dtype: ``bf16``, ``f16`` or ``tf32``.
            sums: row by row.
            left: the fragments of A, four words for each 16 rows.
            right: those of B, two words for each 8 columns.
            rounded: whether operands of tf32 are so already.
        """
        ...

    def ldmatrix(self, addresses: Sequence[Value], *, transposed: bool = False) -> list[Value]:
        """Four matrices of 8 by 8 elements of 16 bits at each of some addresses; see ``mma.ldmatrix``."""
        ...

    def store_pair(self, address: Value, first: Value, second: Value) -> None:
        """Write two f32 to shared memory, at a multiple of 8."""
        ...

    def store_four(self, address: Value, values: Sequence[Value]) -> None:
        """Write four f32 to shared memory, at a multiple of 16."""
        ...

    def load_one(self, address: Value) -> Value:
        """An f32 of shared memory."""
        ...

    def load_four(self, address: Value) -> list[Value]:
        """Four f32 of shared memory, from a multiple of 16 on."""
        ...

    def sync_warp(self) -> None:
        """Wait for all lanes of the warp, and see what they wrote."""
        ...

    def copy_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """Copy an item of 16 bytes to shared memory; zeros beyond ``nbytes``, which may be less than 0."""
        ...

    def copy_word_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """Copy an item of 4 bytes to shared memory, or zero where ``nbytes`` is 0."""
        ...

    def commit(self) -> None:
        """Make a group of this thread's copies since the last one."""
        ...

    def wait(self, most: int = 0) -> None:
        """Wait until at most so many of this thread's groups are under way."""
        ...


class NativeCores:
    """The instructions as PTX.

    Args:
        printer: where the code goes.
        nbytes: of shared memory.
    """

    def __init__(self, printer: Printer, nbytes: int) -> None:
        self.printer = printer
        memory = printer.dynamic_shared(nbytes)
        base = printer.ir.ptrtoint(printer.bases[memory.name], I64)
        self.base: Value = printer.held(printer.ir.trunc(base, I32))

    def multiply(
        self,
        dtype: str,
        sums: Sequence[Sequence[Sequence[Variable]]],
        left: Sequence[Value],
        right: Sequence[Value],
        *,
        rounded: bool = False,
    ) -> None:
        """See ``Cores``."""
        p = self.printer
        a, b = [p.raw(word) for word in left], [p.raw(word) for word in right]
        if dtype == "tf32" and not rounded:
            a, b = (
                [round_tf32(p.ir, p.ir.bitcast(word, F32)) for word in words] for words in (a, b)
            )
        for i, across in enumerate(sums):
            # There and back, so that the words of a column are used twice in turn.
            columns = range(len(across)) if i % 2 == 0 else reversed(range(len(across)))
            for j in columns:
                old = [p.raw(total) for total in across[j]]
                new = mma_sync(p.ir, dtype, old, a[4 * i : 4 * i + 4], b[2 * j : 2 * j + 2])
                for total, value in zip(across[j], new, strict=True):
                    total.set(p.held(value))

    def ldmatrix(self, addresses: Sequence[Value], *, transposed: bool = False) -> list[Value]:
        """See ``Cores``."""
        p = self.printer
        return [
            p.held(word)
            for address in addresses
            for word in ldmatrix(p.ir, p.raw(address), transposed=transposed)
        ]

    def store_pair(self, address: Value, first: Value, second: Value) -> None:
        """See ``Cores``."""
        p = self.printer
        store_shared(p.ir, p.raw(address), [p.raw(first), p.raw(second)])

    def store_four(self, address: Value, values: Sequence[Value]) -> None:
        """See ``Cores``."""
        p = self.printer
        store_shared(p.ir, p.raw(address), [p.raw(value) for value in values])

    def load_one(self, address: Value) -> Value:
        """See ``Cores``."""
        p = self.printer
        return p.held(load_shared(p.ir, p.raw(address), 1)[0])

    def load_four(self, address: Value) -> list[Value]:
        """See ``Cores``."""
        p = self.printer
        return [p.held(value) for value in load_shared(p.ir, p.raw(address), 4)]

    def sync_warp(self) -> None:
        """See ``Cores``."""
        sync_warp(self.printer.ir)

    def copy_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """See ``Cores``."""
        p = self.printer
        address = p.address(source, item_of(source), p.index(item))
        given = nbytes if isinstance(nbytes, int) else p.raw(nbytes)
        cp_async(p.ir, p.raw(to), address, given)

    def copy_word_async(self, to: Value, source: Memory, item: Value, nbytes: Value | int) -> None:
        """See ``Cores``."""
        p = self.printer
        address = p.address(source, item_of(source), p.index(item))
        given = nbytes if isinstance(nbytes, int) else p.raw(nbytes)
        cp_async_word(p.ir, p.raw(to), address, given)

    def commit(self) -> None:
        """See ``Cores``."""
        cp_async_commit(self.printer.ir)

    def wait(self, most: int = 0) -> None:
        """See ``Cores``."""
        cp_async_wait(self.printer.ir, most)


def cores_of(builder: Simt, machine: Machine, nbytes: int) -> Cores:
    """The instructions of a warp for a machine, in a kernel that asks for so many bytes of shared memory."""
    if machine.emulated:
        return EmulatedCores(cast(EmulatedPrinter, builder), nbytes)
    return NativeCores(cast(Printer, builder), nbytes)
