"""What a lane does by itself between products: powers of two, and pairs of 16-bit numbers.

``lane_of`` gives these for a machine: one instruction each, or on an emulated one arithmetic of the SIMT builder.
"""

from __future__ import annotations

from typing import Protocol, cast

from ....codegen.simt.builder import Operand, Simt, Value
from ....codegen.simt.elements import ThreadRegisters
from ....graph import dtypes
from ....graph.dtypes import DType
from ..machine import Machine
from ..printer import Printer
from .numbers import exp2_approximate, pack_bf16, pack_f16, round_tf32

LN_2 = 0.6931471805599453
LEAST = -126.0
"""Powers of two below this one are no normal numbers: they become 0."""


class LaneOps(Protocol):
    """What a lane does by itself."""

    def exp2(self, value: Operand) -> Value:
        """2 to the power of an f32; 0 where that is no normal number."""
        ...

    def pack(self, low: Operand, high: Operand, dtype: DType) -> Value:
        """Two f32 as a word of bf16 or f16, rounded to nearest even."""
        ...

    def round_tf32(self, value: Operand) -> Value:
        """The bits of an f32 rounded to tf32: nearest, ties away from zero."""
        ...


class CardLaneOps:
    """The instructions of a card."""

    def __init__(self, builder: Printer) -> None:
        self.builder = builder

    def exp2(self, value: Operand) -> Value:
        """See ``LaneOps``."""
        b = self.builder
        found: Value = b.held(exp2_approximate(b.ir, b.raw(value)))
        return found

    def pack(self, low: Operand, high: Operand, dtype: DType) -> Value:
        """See ``LaneOps``."""
        b = self.builder
        pack = pack_bf16 if dtype is dtypes.bf16 else pack_f16
        found: Value = b.held(pack(b.ir, b.raw(low), b.raw(high)))
        return found

    def round_tf32(self, value: Operand) -> Value:
        """See ``LaneOps``."""
        b = self.builder
        found: Value = b.held(round_tf32(b.ir, b.raw(value)))
        return found


class EmulatedLaneOps:
    """The same as arithmetic."""

    def __init__(self, builder: Simt) -> None:
        self.builder = builder
        self.registers = ThreadRegisters(builder)

    def exp2(self, value: Operand) -> Value:
        """See ``LaneOps``."""
        b = self.builder
        least = b.let(b.max(value, LEAST))
        return b.let(b.choose(value >= LEAST, b.call("exp", least * LN_2), 0.0))

    def pack(self, low: Operand, high: Operand, dtype: DType) -> Value:
        """See ``LaneOps``."""
        b, kind = self.builder, dtypes.f32
        values = [self.registers.cast(value, kind, dtype) for value in (low, high)]
        return b.let(self.registers.word(values, dtype))

    def round_tf32(self, value: Operand) -> Value:
        """See ``LaneOps``."""
        b = self.builder
        bits = b.bits(b.let(value))
        return b.let(b.choose((bits << 1) > 0xFF000000, bits, (bits + 0x1000) & 0xFFFFE000))


def lane_of(builder: Simt, machine: Machine) -> LaneOps:
    """What a lane of a machine does by itself."""
    return EmulatedLaneOps(builder) if machine.emulated else CardLaneOps(cast(Printer, builder))
