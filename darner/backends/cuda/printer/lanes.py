"""Arithmetic on values of a card: what a ``Lane`` does otherwise there, and random bits.

Everything else is LLVM's own instructions: fused multiply-add is rounded once, f64 and integers of 64 bits are there, and denormal numbers are kept. Quotients and square roots of f32 are refined
approximations, as near as numbers rounded once but in very rare cases: what rounds them once for sure has a branch, which keeps four times as many instructions apart. Elementary functions are those of ``codegen.ir.elementary``, with the accuracy that ``codegen.ir.math`` states; no library is called.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ....codegen.ir.lanes import Lane, function_of
from ....codegen.ir.philox import MASK, MULTIPLIERS, ROUNDS, WEYL
from ....codegen.simt.builder import Operand, Type

if TYPE_CHECKING:
    from .instructions import Instructions


class CardLane(Lane):
    """A value of a thread."""

    __slots__ = ()

    def intrinsic(self, name: str, *others: Lane | float) -> Lane:
        """See ``Lane``."""
        if name == "sqrt" and self.bits == 32 and self.builder.refines:
            return self.of(self.builder.root(self.value))
        return super().intrinsic(name, *others)

    def clamped(self, low: float, high: float) -> Lane:
        """See ``Lane``: two instructions, where comparing and choosing takes four."""
        if self.bits != 32 or not self.builder.refines:
            return super().clamped(low, high)
        return self.maximum(self.constant(low)).minimum(self.constant(high))

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


def quotient(b: Instructions, above: Operand, below: Operand) -> Operand:
    """``above / below`` of f32.

    A product with an approximate inverse that is right in all but the last two bits, and what it leaves of ``above`` times the inverse once more: the sum is the nearest number, but for a few in a
    million where it is the next one. Both are scaled first where the divisor or its inverse is no normal number. The product alone is taken where it is 0, whose sign the sum might change, or
    infinite or no number, which leaves no number. What a denormal ``above`` leaves is lost: the result is then up to three places off. What depends on the divisor alone is computed once where many are divided by it.
    """
    divisor: Lane = CardLane(b, below)
    dividend: Lane = CardLane(b, above)
    size = divisor.absolute()
    scale = (size < 2.0**-126).choose(
        divisor.constant(2.0**24), (size > 2.0**125).choose(divisor.constant(2.0**-24), 1.0)
    )
    divisor, dividend = divisor * scale, dividend * scale
    inverse = _approximate(b, "rcp", divisor)
    near = dividend * inverse
    found = (-near).fma(divisor, dividend).fma(inverse, near)
    size = near.absolute()
    usual = (size > 0.0) & (size < float("inf"))
    return usual.choose(found, near).value


def root(b: Instructions, value: Operand) -> Operand:
    """The square root of an f32: a product with an approximate inverse root, and half of what it leaves times that, as in ``quotient``.

    Where what is left would be lost, below 2**-96, the number is scaled first. Zeros and infinity are their own roots.
    """
    x = CardLane(b, value)
    small = x < 2.0**-96
    scaled = x * small.choose(x.constant(2.0**64), 1.0)
    inverse = _approximate(b, "rsqrt", scaled)
    near = scaled * inverse
    found = (-near).fma(near, scaled).fma(inverse * 0.5, near)
    found = found * small.choose(x.constant(2.0**-32), 1.0)
    return (x.equals(0.0) | x.equals(float("inf"))).choose(x, found).value


def _approximate(b: Instructions, name: str, x: Lane) -> Lane:
    """The instruction for an inverse, or an inverse root, of a number that is no denormal one, and whose result is none."""
    kind = b.raw(x.value).type
    function = function_of(b.module, f"llvm.nvvm.{name}.approx.ftz.f", kind, [kind])
    return x.of(b.call(function, [x.value]))


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
