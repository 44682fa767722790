"""What a lane does by itself between products: powers of two, pairs of 16-bit numbers, words of shared memory.

``lane_of`` gives these for a template that is written for ``warp.Cores``: one instruction each, or on an emulated machine arithmetic of the SIMT builder.
"""

from __future__ import annotations

from typing import Any, Protocol

from ....codegen.simt.builder import Operand, Simt, Value
from ....codegen.simt.elements import ThreadRegisters
from ....graph import dtypes
from ....graph.dtypes import DType
from .assembly import I32, assembly
from .emulated import EmulatedCores
from .numbers import exp2_approximate, pack_bf16, pack_f16
from .warp import Cores

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

    def load_word(self, address: Value) -> Value:
        """Read a word of shared memory."""
        ...

    def store_word(self, address: Value, word: Operand) -> None:
        """Write one."""
        ...


class CardLaneOps:
    """The instructions of a card."""

    def __init__(self, builder: Any) -> None:
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

    def load_word(self, address: Value) -> Value:
        """See ``LaneOps``."""
        b = self.builder
        found: Value = b.held(assembly(b.ir, "ld.shared.b32 $0, [$1];", [I32], [b.raw(address)])[0])
        return found

    def store_word(self, address: Value, word: Operand) -> None:
        """See ``LaneOps``."""
        b = self.builder
        assembly(b.ir, "st.shared.b32 [$0], $1;", (), [b.raw(address), b.raw(word)])


class EmulatedLaneOps:
    """The same as arithmetic."""

    def __init__(self, builder: Simt, cores: EmulatedCores) -> None:
        self.builder, self.cores = builder, cores
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

    def load_word(self, address: Value) -> Value:
        """See ``LaneOps``."""
        return self.builder.let(self.cores.memory[address >> 4, (address >> 2) & 3])

    def store_word(self, address: Value, word: Operand) -> None:
        """See ``LaneOps``."""
        self.cores.memory[address >> 4, (address >> 2) & 3] = word


def lane_of(builder: Simt, cores: Cores) -> LaneOps:
    """What a lane does by itself, in the same form as ``cores``."""
    if isinstance(cores, EmulatedCores):
        return EmulatedLaneOps(builder, cores)
    return CardLaneOps(builder)
