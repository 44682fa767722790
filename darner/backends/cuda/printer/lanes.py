"""Arithmetic on values of a card: what a ``Lane`` does otherwise there, and random bits.

Everything else is LLVM's own instructions: fused multiply-add, quotients and square roots are rounded once, f64 and integers of 64 bits are there, and denormal numbers are kept. Elementary
functions are those of ``codegen.ir.elementary``, with the accuracy that ``codegen.ir.math`` states; no library is called.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ....codegen.ir.lanes import Lane
from ....codegen.ir.philox import MASK, MULTIPLIERS, ROUNDS, WEYL
from ....codegen.simt.builder import Operand, Type

if TYPE_CHECKING:
    from .instructions import Instructions


class CardLane(Lane):
    """A value of a thread."""

    __slots__ = ()

    @property
    def can_scale(self) -> bool:
        """No instruction multiplies by powers of two."""
        return False

    @property
    def can_look_up(self) -> bool:
        """Nor does one pick from a table in registers."""
        return False

    def to_bf16(self) -> Lane:
        """One instruction, from sm_80 on; every NaN becomes the same there."""
        b = self.builder
        return self.of(b.bitcast(b.fptrunc(self.value, bfloat()), self.integer(16)))


@cache
def bfloat() -> Type:
    """LLVM's type of bf16, which llvmlite has none for."""
    from llvmlite import ir

    members = {"_to_string": lambda self: "bfloat", "intrinsic_name": "bf16"}
    return type("BFloat", (ir.types.Type,), members)()


def philox(b: Instructions, offset: Operand, step: Operand, seed: int, stream: int) -> Operand:
    """The random bits of the element at a place: Philox 4x32-10 in words of 32 bits."""
    from llvmlite import ir

    word, wide = ir.IntType(32), ir.IntType(64)
    place = CardLane(b, offset)

    def product(x: Lane, factor: int) -> tuple[Lane, Lane]:
        """The upper and the lower word of a product."""
        whole = x.of(b.zext(x.value, wide)) * factor
        upper = whole.shift_right(32, signed=False)
        return upper.of(b.trunc(upper.value, word)), x.of(b.trunc(whole.value, word))

    block = place.shift_right(2, signed=False)
    x = [block, place.constant(0), place.constant(stream & MASK), CardLane(b, step)]
    key0, key1 = seed & MASK, seed >> 32
    for _ in range(ROUNDS):
        upper0, lower0 = product(x[0], MULTIPLIERS[0])
        upper1, lower1 = product(x[2], MULTIPLIERS[1])
        x = [upper1 ^ x[1] ^ key0, lower1, upper0 ^ x[3] ^ key1, lower0]
        key0, key1 = (key0 + WEYL[0]) & MASK, (key1 + WEYL[1]) & MASK
    which = place & 3
    chosen = x[3]
    for number in (2, 1, 0):
        chosen = which.equals(number).choose(x[number], chosen)
    return chosen.value
