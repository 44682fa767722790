"""Elements of quantised weights as code: the decoders of ``ops.block_formats`` over what a kernel reads.

A vector of neighbouring elements within one block needs one vector of bytes, and its scales once for all lanes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.node import Node
from ...lower.specs import sizes as _sizes
from ...ops.quantised.block_formats import Block, Number, half_of
from ...ops.quantised.block_formats import Place as PlaceOfFormat
from ...ops.quantised.scheme import QuantScheme
from ..ir.index import Index, IndexMath, Lanes, lane_count
from ..ir.lanes import Lane
from ..ir.types import Value

if TYPE_CHECKING:
    from .elements import Elements


class Place:
    """A number of an element or a byte, known or in the code, with the operators of decoders."""

    def __init__(self, math: IndexMath, index: Index) -> None:
        self.math = math
        self.index = index

    def __add__(self, other: Place | int) -> Place:
        number = other.index if isinstance(other, Place) else other
        return Place(self.math, self.math.add(self.index, number))

    def __mul__(self, other: int) -> Place:
        return Place(self.math, self.math.mul(self.index, other))

    def __floordiv__(self, other: int) -> Place:
        return Place(self.math, self.math.div(self.index, other))

    def __mod__(self, other: int) -> Place:
        return Place(self.math, self.math.mod(self.index, other))


class _Code:
    """The block of a node's element at an index: ``Block`` of the decoders, in code.

    Args:
        e: emits the elements that are read.
        node: the ``dequantize_blocks``.
        index: of the element; where it has lanes, all that is returned has as many.
        block: the number of its block of rows, where scales lie beside codes, and it is known.
    """

    def __init__(
        self, e: Elements, node: Node, index: list[Index], block: Index | None = None
    ) -> None:
        self.e = e
        self.block = block
        self.scheme = QuantScheme(node.attrs["scheme"])
        self.operands = dict(zip(node.slots, node.operands, strict=True))
        self.index = index
        self.kind = node.dtype
        self.made: type[Lane] = getattr(e.builder, "lane", Lane)
        self.compiled = not hasattr(e.builder, "lane")
        counts = [lane_count(number) for number in index]
        self.count = next((count for count in counts if count is not None), None)
        self.first: Index = 0
        self.place: Index = 0
        if self.scheme.is_packed:
            block = e.indices.div(index[-1], self.scheme.block)
            self.place = e.indices.mod(index[-1], self.scheme.block)
            self.first = e.indices.mul(block, self.scheme.layout.bytes)

    def decoded(self) -> Value:
        """The element."""
        place = cast(PlaceOfFormat, Place(self.e.indices, self.place))
        found = self.scheme.layout.decode(cast(Block, self), place)
        return cast(Lane, found).value

    # ------------------------------------------------------------- what is read

    def _lane(self, value: Value) -> Lane:
        """A value with as many lanes as there are elements."""
        if self.count is not None:
            value = self.e.indices.spread(value, self.count)
        return self.made(self.e.builder, value)

    def _read(self, slot: str, index: list[Index], to: DType) -> Lane:
        operand = self.operands[slot]
        value = self.e.at(operand, index)
        return self._lane(self.e.registers.cast(value, operand.dtype, to))

    def _byte_index(self, place: Place | int) -> list[Index]:
        within = place.index if isinstance(place, Place) else place
        return [*self.index[:-1], self.e.indices.add(self.first, within)]

    def byte(self, place: Place | int) -> Lane:
        return self._read("codes", self._byte_index(place), dtypes.i32)

    def signed(self, place: Place) -> Lane:
        if not self.compiled:
            found = self.byte(place)
            return found - (found & 128).shift_left(1)
        value = self.e.at(self.operands["codes"], self._byte_index(place))
        return self._lane(self.e.registers.cast(value, dtypes.i8, dtypes.i32))

    def half(self, place: int) -> Lane:
        found = self._loaded(place, dtypes.f16)
        if found is not None:
            return found
        bits = self.byte(place) | self.byte(place + 1).shift_left(8)
        return cast(Lane, half_of(cast(Block, self), cast(Number, bits)))

    def single(self, place: int) -> Lane:
        return self.of_bits(self.word(place))

    def word(self, place: int) -> Lane:
        found = self._loaded(place, dtypes.i32)
        if found is not None:
            return found
        bits = self.byte(place)
        for i in range(1, 4):
            bits = bits | self.byte(place + i).shift_left(8 * i)
        return bits

    def _loaded(self, place: int, dtype: DType) -> Lane | None:
        """The f16, as a float, or the i32 at a byte, where it is one for all lanes and its bytes are in memory as they are."""
        codes, index = self.operands["codes"], self._byte_index(place)
        if not self.compiled or codes.id not in self.e.leaves:
            return None
        if any(lane_count(number) is not None for number in index):
            return None
        from llvmlite import ir

        pointer, leaf = self.e.leaves[codes.id]
        builder, registers = self.e.builder, self.e.registers
        at = self.e.indices.plain(self.e.indices.offset(index, _sizes(leaf)))
        address = builder.gep(pointer, [at], source_etype=ir.IntType(8))
        kind = ir.HalfType() if dtype is dtypes.f16 else ir.IntType(32)
        value = builder.load(address, typ=kind, align=1)
        return self._lane(registers.cast(value, dtype, self.kind) if dtype.is_float else value)

    # ------------------------------------------------------------- arithmetic

    def right(self, bits: Lane, by: Place | int) -> Lane:
        if isinstance(by, Place) and not isinstance(by.index, int):
            steps = self._lane(self.e.registers.of_index(by.index, dtypes.i32))
            return bits.shift_right(steps, signed=False)
        number = by.index if isinstance(by, Place) else by
        return bits.shift_right(cast(int, number), signed=False) if number else bits

    def left(self, bits: Lane, by: int) -> Lane:
        return bits.shift_left(by)

    def float(self, number: Lane) -> Lane:
        return number.to_float(self.kind.bits, signed=True)

    def of_bits(self, bits: Lane) -> Lane:
        return bits.as_float().refloated(self.kind.bits)

    def where(self, place: Place, limit: int, below: Lane, above: Lane) -> Lane:
        if isinstance(place.index, int):
            return below if place.index < limit else above
        before = self.e.indices.less(place.index, limit)
        return self._lane(before).choose(below, above)

    def pick(self, number: Lane, equal: int, then: Lane, otherwise: Lane) -> Lane:
        return number.equals(equal).choose(then, otherwise)

    # ------------------------------------------------------------- scales beside codes

    def code(self) -> Lane:
        if self.scheme.layout.code != "nibble":
            return self._read("codes", self.index, dtypes.i32)
        indices, column = self.e.indices, self.index[-1]
        before = self.index[:-1]
        if isinstance(column, Lanes) and column.stride == 1 and column.multiple % 2 == 0:
            return self._nibbles(before, column)
        byte = self._read("codes", [*before, indices.div(column, 2)], dtypes.i32)
        return self.right(byte, Place(indices, indices.mul(indices.mod(column, 2), 4))) & 15

    def _nibbles(self, before: list[Index], column: Lanes) -> Lane:
        """The codes of neighbours: half as many bytes, each in two lanes."""
        from llvmlite import ir

        e, lanes = self.e, range(column.count)
        start = e.indices.div(column.start, 2)
        pairs: Index = start if column.count == 2 else Lanes(start, column.count // 2)
        mask = e.mask
        try:
            if mask is not None and column.count > 2:
                e.mask = e.registers.picked(mask, lanes[::2])
            bytes_ = e.at(self.operands["codes"], [*before, pairs])
        finally:
            e.mask = mask
        wide = e.registers.cast(bytes_, dtypes.u8, dtypes.i32)
        if lane_count(wide) is None:
            spread = e.indices.spread(wide, column.count)
        else:
            spread = e.registers.picked(wide, [lane // 2 for lane in lanes])
        kind = ir.VectorType(ir.IntType(32), column.count)
        by = self._lane(ir.Constant(kind, [lane % 2 * 4 for lane in lanes]))
        return self._lane(spread).shift_right(by, signed=False) & 15

    def _beside(self, slot: str, to: DType) -> Lane:
        row = self.block
        if row is None:
            row = self.e.indices.div(self.index[-2], self.scheme.block)
        return self._read(slot, [*self.index[:-2], row, self.index[-1]], to)

    def scale(self) -> Lane:
        return self._beside("scales", self.kind)

    def scale_code(self) -> Lane:
        return self._beside("scales", dtypes.i32)

    def offset(self) -> Lane:
        return self._beside("offsets", self.kind)


def decoded_in_block(e: Elements, node: Node, index: list[Index], block: Index) -> Value:
    """A decoded element of quantised weights with scales beside its codes, which lies in a block of rows."""
    return _Code(e, node, index, block).decoded()


def dequantize_blocks(e: Elements, node: Node, index: list[Index]) -> Value:
    """A decoded element of quantised weights."""
    return _Code(e, node, index).decoded()
