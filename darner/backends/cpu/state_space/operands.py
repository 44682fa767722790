"""Operands and results of state spaces: read and written as vectors of the type that is computed in."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import broadcast
from ....codegen.ir.index import Index, Lanes, lane_count
from ....codegen.ir.lanes import Lane
from ....codegen.ir.registers import Registers
from ....codegen.ir.types import Pointer, Value, accumulator_type
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.specs import sizes
from ....lower.strided import row_major, strided
from ..emit.template import Code
from ..emit.vectors import cast, constant, element_address


class Operand:
    """An operand, by its strides."""

    def __init__(self, code: Code, node: Node) -> None:
        self._code = code
        self._node = node
        self.kind = accumulator_type(node.dtype)
        seen = strided(node)
        # A number that is part of the kernel lies nowhere.
        self._seen = seen if seen is not None and seen.base.name is not None else None

    @property
    def is_narrow(self) -> bool:
        """Whether its elements are converted when they are read."""
        return self._node.dtype is not self.kind

    def at(self, index: Sequence[Index]) -> Value:
        """The elements at an index, whose last may be lanes."""
        return self.masked(index, None)

    def masked(self, index: Sequence[Index], mask: Value | None) -> Value:
        """The same, 0 outside of a mask."""
        code, b = self._code, self._code.builder
        if self._seen is None:
            value = Elements.of(code).at(self._node, [0] * self._node.rank)
            count = lane_count(index[-1])
            value = value if count is None else broadcast(b, value, count)
            return cast(b, value, self._node.dtype, self.kind)
        pointer = code.operand_of(self._seen.base)
        value = Registers(b).load(pointer, self._offset(index), self._node.dtype, mask)
        return cast(b, value, self._node.dtype, self.kind)

    def spread(self, index: Sequence[Index], lanes: int) -> Lane:
        """One element in every lane."""
        b = self._code.builder
        return Lane(b, broadcast(b, self.at(index), lanes))

    def _offset(self, index: Sequence[Index]) -> Index:
        indices = self._code.indices
        total: Index = self._seen.offset if self._seen else 0
        for number, stride in zip(index, self._seen.strides if self._seen else (), strict=True):
            total = indices.add(total, indices.mul(number, stride))
        return total


class Result:
    """A result, without gaps; what is not wanted is not written."""

    def __init__(self, code: Code, node: Node, position: int | None) -> None:
        self._code = code
        self.shape = sizes(node)
        self.dtype: DType = node.dtype
        self.pointer = None if position is None else code.results[position]

    def put(self, value: Value, index: Sequence[Index], mask: Value | None = None) -> None:
        """Write elements at an index, whose last may be lanes."""
        if self.pointer is None:
            return
        code, b = self._code, self._code.builder
        offset: Index = 0
        for number, stride in zip(index, row_major(self.shape), strict=True):
            offset = code.indices.add(offset, code.indices.mul(number, stride))
        value = cast(b, value, accumulator_type(self.dtype), self.dtype)
        Registers(b).store(value, self.pointer, offset, self.dtype, mask)


class Room:
    """Scratch memory as elements of one type.

    Attributes:
        lanes: how many of them a vector has.
    """

    def __init__(self, code: Code, pointer: Pointer, dtype: DType, lanes: int) -> None:
        self._code = code
        self.pointer = pointer
        self.dtype = dtype
        self.lanes = lanes

    def part(self, first: Index) -> Room:
        """What lies from an element on."""
        address = element_address(self._code.builder, self.pointer, first, self.dtype)
        return Room(self._code, address, self.dtype, self.lanes)

    def get(self, offset: Index) -> Lane:
        """The vector that begins with an element."""
        b = self._code.builder
        return Lane(b, Registers(b).load(self.pointer, Lanes(offset, self.lanes), self.dtype))

    def put(self, value: Lane, offset: Index) -> None:
        """Write the vector that begins with an element."""
        b = self._code.builder
        Registers(b).store(value.value, self.pointer, Lanes(offset, self.lanes), self.dtype)

    def zero(self) -> Lane:
        """A vector of zeros."""
        b = self._code.builder
        return Lane(b, constant(b, 0, self.dtype, self.lanes))

    def number(self, offset: Index) -> Value:
        """One element."""
        return Registers(self._code.builder).load(self.pointer, offset, self.dtype)

    def spread(self, offset: Index) -> Lane:
        """One element in every lane."""
        b = self._code.builder
        return Lane(b, broadcast(b, self.number(offset), self.lanes))

    def put_number(self, value: Value, offset: Index) -> None:
        """Write one element."""
        Registers(self._code.builder).store(value, self.pointer, offset, self.dtype)
