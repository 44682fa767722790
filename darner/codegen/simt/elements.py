"""Elements of a kernel's values in one thread: the CPU's walk over a body, one element at a time.

Numbers of indices are 32 bits wide: no tensor of a device has more than 2**31 elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import TYPE_CHECKING

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node
from ...ops.faults import ordinal
from ..elements.elements import Elements
from ..ir.index import IndexMath, Number
from ..ir.registers import Registers
from .builder import Memory, Operand, Simt, Value, is_packed

NEVER = 1 << 62
"""More elements than any row has: nothing is computed in vectors."""


@lru_cache(maxsize=4096)
def _known(number: int) -> Operand:
    from llvmlite import ir

    return ir.Constant(ir.IntType(32), number)


class ThreadPlaces(IndexMath):
    """Arithmetic on indices of 32 bits."""

    def plain(self, number: Number) -> Operand:
        """A number as a value."""
        return _known(number) if isinstance(number, int) else number

    if TYPE_CHECKING:

        def compare(self, sign: str, a: Number, b: Number) -> Value: ...

    def _both(self, a: Number, b: Number) -> tuple[Operand, Operand]:
        return self.plain(a), self.plain(b)

    def value(self, number: Number) -> Value:
        """A number as a value that operators continue."""
        return self.builder.index(number)


class ThreadRegisters(Registers):
    """Loads, stores and numbers of one thread."""

    builder: Simt

    if TYPE_CHECKING:
        # What is made of this builder's values is one, or a constant.

        def cast(self, value: Operand, found: DType, wanted: DType) -> Operand: ...

        def choose(self, condition: Operand, chosen: Operand, otherwise: Operand) -> Value: ...

        def both(self, first: Operand, second: Operand) -> Operand: ...

        def reduced(self, name: str, total: Operand, result: DType) -> Operand: ...

    def __init__(self, builder: Simt) -> None:
        super().__init__(builder)
        self.places: ThreadPlaces = ThreadPlaces(builder)
        self.indices = self.places

    def load(self, pointer: Memory, offset: Number, dtype: DType, mask: Operand = None) -> Operand:
        """The element at an offset."""
        offset = self.places.value(offset)
        if is_packed(dtype):
            if self.builder.narrow:
                return self.builder.load(pointer.singles, offset)
            return self.unpacked(self._word(pointer, offset, dtype), offset, dtype)
        if pointer.vector == 1:
            return self.builder.load(pointer, offset)
        return self.builder.load(pointer, self._item(pointer, offset))

    @staticmethod
    def _item(pointer: Memory, offset: Number) -> tuple[Number, Number]:
        """The number of the vector that an element is in, and its part."""
        return offset >> (pointer.vector.bit_length() - 1), offset & (pointer.vector - 1)

    def _word(self, pointer: Memory, offset: Number, dtype: DType) -> Value:
        """The word that an element shares with others."""
        at = offset >> self._shift(dtype)
        if pointer.words == 1:
            return self.builder.load(pointer, at)
        item = offset >> (pointer.vector.bit_length() - 1)
        return self.builder.load(pointer, (item, at & (pointer.words - 1)))

    @staticmethod
    def _shift(dtype: DType) -> int:
        """Elements of a word, as a power of two."""
        return 2 if dtype.itemsize == 1 else 1

    def unpacked(self, word: Operand, offset: Number, dtype: DType) -> Value:
        """One of the elements of a word: which is told by the lowest bits of its offset."""
        b, bits = self.builder, 8 * dtype.itemsize
        word, offset = b.index(word), b.index(offset)
        low = (word >> ((offset & (32 // bits - 1)) * bits)) & ((1 << bits) - 1)
        return b.let(b.of_half_bits(low) if dtype is dtypes.f16 else b.of_bits(low, dtype))

    def packed(self, value: Operand, dtype: DType) -> Value:
        """The bits of an element that shares a word, zeros above them."""
        b = self.builder
        return b.half_bits(value) if dtype is dtypes.f16 else b.bits(value)

    def word(self, values: Sequence[Operand], dtype: DType) -> Value:
        """The elements that share a word, as that word."""
        bits = 8 * dtype.itemsize
        first, *rest = (
            self.packed(value, dtype) << (bits * place) for place, value in enumerate(values)
        )
        return reduce(or_, rest, first)

    def store(
        self,
        value: Operand,
        pointer: Memory,
        offset: Number,
        dtype: DType,
        mask: Operand = None,
        *,
        non_temporal: bool = False,
    ) -> None:
        """Write the element at an offset; one that shares a word takes only its own bits of it."""
        offset = self.places.value(offset)
        if not is_packed(dtype):
            at = offset if pointer.vector == 1 else self._item(pointer, offset)
            self.builder.store(value, pointer, at)
            return
        if self.builder.narrow:
            self.builder.store(value, pointer.singles, offset)
            return
        if not pointer.atomic:
            raise InternalError(f"elements of {dtype} are written in whole words, or atomically")
        b, bits = self.builder, 8 * dtype.itemsize
        by = b.let((offset & (32 // bits - 1)) * bits, "by")
        word, own = offset >> self._shift(dtype), self.places.value((1 << bits) - 1)
        b.atomic("and", pointer, word, ~(own << by))
        b.atomic("or", pointer, word, self.packed(value, dtype) << by)

    def of_index(self, index: Number, dtype: DType) -> Operand:
        """An index as an element."""
        return self.cast(self.places.plain(index), dtypes.i32, dtype)

    def as_index(self, value: Operand, dtype: DType) -> Operand:
        """An element of integers as an index."""
        if dtype.itemsize < 8:
            return self.cast(value, dtype, dtypes.i32)
        # What 32 bits cannot hold is outside of every axis, and stays so.
        return self.builder.let(self.builder.narrowed(value))


class ThreadElements(Elements):
    """The elements of a body's nodes in the code of a thread.

    Args:
        builder: where the code goes.
        body: what is computed.
        operands: the buffers of the body's inputs.
        fault: the buffer where faults of data are told of; without it, an index outside its axis counts as the nearest inside.
        whole: the kernel's body, where ``body`` was made of it.
    """

    def __init__(
        self,
        builder: Simt,
        body: Graph,
        operands: Sequence[Memory],
        fault: Memory | None = None,
        whole: Graph | None = None,
    ) -> None:
        super().__init__(builder, body, operands, width=NEVER)
        self.whole = whole or body
        self.places: ThreadPlaces = ThreadPlaces(builder)
        self.indices = self.places
        self.registers: ThreadRegisters = ThreadRegisters(builder)
        self.fault = fault
        # What is computed in a block is not known after it.
        builder.scopes.append(self.scope)

    if TYPE_CHECKING:

        def at(self, node: Node, index: Sequence[Number]) -> Operand:
            """See ``Elements``: a value of the builder, or a constant."""
            ...

    def loop(
        self,
        start: Number,
        stop: Number,
        inside: Callable[[Operand, list[Operand]], Sequence[Operand]],
        carried: Sequence[Operand] = (),
        step: int = 1,
    ) -> list[Operand]:
        """``for i in range(start, stop, step)``; ``inside`` maps the carried values to their next ones."""
        return list(self.builder.loop(start, stop, step, inside, carried))

    def place(self, node: Node, indices: Node, index: Sequence[Number], size: int) -> Operand:
        """An element of a node's indices as a place on an axis: inside it, and told of where it was not."""
        found = self.integer(indices, index)
        self.check(node, found, size)
        return self.places.clamp(found, 0, max(size - 1, 0))

    def check(self, node: Node, index: Operand, size: int) -> None:
        """Tell of an index of a node that is not from 0 to before ``size``; the program raises."""
        index = self.places.value(index)
        self.tell_if(index >= size, node, index, size)

    def check_exponent(self, node: Node, exponent: Operand) -> None:
        """Tell of a negative exponent of a power of integers, where it is not a number that is known."""
        given = node.operands[1]
        if given.op.name != "constant":
            index = self.places.value(self.registers.as_index(exponent, given.dtype))
            self.tell_if((index >> 31) != 0, node, index)

    def tell_if(self, wrong: Operand, node: Node, value: Operand, size: int = 0) -> None:
        """Tell of a fault of a node where ``wrong`` holds: what it met, and the size of an axis."""
        if self.fault is None:
            return
        with self.builder.if_(wrong):
            self.builder.store(value, self.fault, 1)
            self.builder.store(size, self.fault, 2)
            self.builder.store(ordinal(self.whole, node), self.fault, 0)

    def random_bits(self, offset: Operand, step: Operand, seed: int, stream: int) -> Operand:
        """The random bits of the element at a place: Philox 4x32-10, with products of 32 bits in two words."""
        return self.builder.let(self.builder.random_bits(offset, step, seed, stream))
