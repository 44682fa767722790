"""Neighbours of quantised weights on targets whose values have one lane: what they have in common is computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ...graph import dtypes
from ...graph.node import Node
from ...ops.quantised.block_formats import Block, Number, half_of
from ...ops.quantised.block_formats import Place as PlaceOfFormat
from ...ops.quantised.scheme import QuantScheme
from ..ir.index import Index, Lanes
from ..ir.lanes import Lane
from ..ir.types import Value
from .packed import Place

if TYPE_CHECKING:
    from .elements import Elements


class Several:
    """Values of neighbours: as many as there are, or one that all have in common."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes

    def each(self, code: Callable[..., Lane], *others: Several | float) -> Several:
        """``code`` of the values of each neighbour; once, where all have the same."""
        sides: list[Sequence[Lane | float]] = [self.lanes]
        sides += [other.lanes if isinstance(other, Several) else [other] for other in others]
        count = max(len(side) for side in sides)
        return Several([code(*(side[i % len(side)] for side in sides)) for i in range(count)])

    def __add__(self, other: Several | float) -> Several:
        return self.each(lambda a, b: a + b, other)

    def __sub__(self, other: Several | float) -> Several:
        return self.each(lambda a, b: a - b, other)

    def __mul__(self, other: Several | float) -> Several:
        return self.each(lambda a, b: a * b, other)

    def __and__(self, other: Several | float) -> Several:
        return self.each(lambda a, b: a & b, other)

    def __or__(self, other: Several | float) -> Several:
        return self.each(lambda a, b: a | b, other)


class _Run:
    """The block of neighbours within a run of a packed scheme: ``Block`` of the decoders, in code.

    Args:
        e: emits the bytes that are read.
        node: the ``dequantize_blocks``.
        before: all but the last number of their index.
        first: the last number of the first of them, a multiple of ``count``.
        count: how many there are.
    """

    def __init__(
        self, e: Elements, node: Node, before: Sequence[Index], first: Index, count: int
    ) -> None:
        self.e = e
        self.scheme = QuantScheme(node.attrs["scheme"])
        (self.codes,) = node.operands
        self.before = before
        self.kind = node.dtype
        self.made: type[Lane] = getattr(e.builder, "lane", Lane)
        block, size = self.scheme.block, self.scheme.layout.bytes
        self.start = e.indices.mul(e.indices.div(first, block), size)
        within = Lanes(e.indices.mod(first, block), count, 1, count)
        self.place = Place(e.indices, within)
        self.count = count

    def decoded(self) -> list[Value]:
        """The elements."""
        found = self.scheme.layout.decode(cast(Block, self), cast(PlaceOfFormat, self.place))
        lanes = cast(Several, found).lanes
        return [lane.value for lane in lanes] * (self.count // len(lanes))

    def _numbers(self, place: Place | int) -> list[Index]:
        """A number of each neighbour, or of all."""
        number = place.index if isinstance(place, Place) else place
        if not isinstance(number, Lanes):
            return [number]
        math = self.e.indices
        return [math.add(number.start, i * number.stride) for i in range(number.count)]

    def byte(self, place: Place | int) -> Several:
        """A byte of each."""
        lanes = []
        for number in self._numbers(place):
            value = self.e.at(self.codes, [*self.before, self.e.indices.add(self.start, number)])
            value = self.e.registers.cast(value, self.codes.dtype, dtypes.i32)
            lanes.append(self.made(self.e.builder, value))
        return Several(lanes)

    def signed(self, place: Place) -> Several:
        """A byte of each, with its sign."""
        found = self.byte(place)
        return found - self.left(found & 128, 1)

    def half(self, place: int) -> Several:
        """An f16 of the block."""
        bits = self.byte(place) | self.left(self.byte(place + 1), 8)
        return cast(Several, half_of(cast(Block, self), cast(Number, bits)))

    def single(self, place: int) -> Several:
        """An f32 of the block."""
        return self.of_bits(self.word(place))

    def word(self, place: int) -> Several:
        """32 bits of the block."""
        bits = self.byte(place)
        for i in range(1, 4):
            bits = bits | self.left(self.byte(place + i), 8 * i)
        return bits

    def right(self, bits: Several, by: Place | int) -> Several:
        """Bits moved down."""
        steps = self._numbers(by)
        if isinstance(steps[0], int):
            return bits.each(lambda x, n: x.shift_right(n, signed=False), int(steps[0]))
        found = [self.e.registers.of_index(step, dtypes.i32) for step in steps]
        moved = Several([self.made(self.e.builder, value) for value in found])
        return bits.each(lambda x, n: x.shift_right(n, signed=False), moved)

    def left(self, bits: Several, by: int) -> Several:
        """Bits moved up."""
        return bits.each(lambda x: x.shift_left(by))

    def float(self, number: Several) -> Several:
        """Integers as floats."""
        return number.each(lambda x: x.to_float(self.kind.bits, signed=True))

    def of_bits(self, bits: Several) -> Several:
        """The floats that have these bits."""
        return bits.each(lambda x: x.as_float().refloated(self.kind.bits))

    def where(self, place: Place, limit: int, below: Several, above: Several) -> Several:
        """One of two, by a place that all have in common."""
        (number,) = self._numbers(place)
        condition = self.made(self.e.builder, self.e.indices.less(number, limit))
        return below.each(lambda x, y: condition.choose(x, y), above)

    def pick(self, number: Several, equal: int, then: Several, otherwise: Several) -> Several:
        """One of two, by a number of each."""
        return number.each(lambda n, x, y: n.equals(equal).choose(x, y), then, otherwise)


def decoded_neighbours(  # many parameters: what is decoded, and where
    e: Elements, node: Node, before: Sequence[Index], first: Index, count: int
) -> list[Value]:
    """The elements of a ``dequantize_blocks`` from ``first`` on along the last axis, a multiple of their ``count``."""
    scheme = QuantScheme(node.attrs["scheme"])
    if scheme.is_packed and scheme.layout.run % count == 0:
        return _Run(e, node, before, first, count).decoded()
    return [e.at(node, [*before, e.indices.add(first, i)]) for i in range(count)]
