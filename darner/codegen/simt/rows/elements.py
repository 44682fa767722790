"""Elements of rows: several that lie side by side are read and written as one vector, or as whole words."""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.specs import sizes
from ...ir.index import Number, identity
from ..builder import Memory, Operand, Value, is_packed
from ..elements import ThreadElements


def has_whole_words(dtype: DType, vector: int) -> bool:
    """Whether so many elements side by side are whole words."""
    return dtype.itemsize * vector % 4 == 0


class RowElements(ThreadElements):
    """Elements of which a thread has several side by side.

    Attributes:
        beside: for an index along the last axis, known by its identity: the index, that of the vector's first element, and how many elements it is after that.
        vector: elements side by side.
    """

    beside: dict[int, tuple[Value, Number, int]]
    vector: int = 1

    def along(self, first: Number) -> list[Number]:
        """The indices along the last axis of a vector's elements."""
        if self.vector == 1:
            return [first]
        found = []
        for place in range(self.vector):
            number = self.builder.let(self.places.value(first) + place)
            self.beside[id(number)] = number, first, place
            found.append(number)
        return found

    def _element(self, node: Node, index: list[Number]) -> Operand:
        found = self.beside.get(id(index[-1])) if node.id in self.leaves and index else None
        if found is None:
            return super()._element(node, index)
        _, first, place = found
        memory, leaf = self.leaves[node.id]
        if memory.vector != self.vector or sizes(leaf)[-1] % self.vector:
            return super()._element(node, index)
        key = ("vector", node.id, *[identity(number) for number in (*index[:-1], first)])
        for known in reversed(self._known):
            if key in known:
                return known[key][0][place]
        values = self._loaded(memory, leaf, [*index[:-1], first])
        self._known[-1][key] = (values, None, [*index, first])
        return values[place]

    def _loaded(self, memory: Memory, leaf: Node, index: Sequence[Number]) -> list[Value]:
        """A vector's elements."""
        offset = self.places.value(self.places.offset(index, sizes(leaf)))
        vector = memory[offset >> (self.vector.bit_length() - 1)]
        if not is_packed(leaf.dtype):
            return vector.parts
        return [
            self.registers.unpacked(word, place, leaf.dtype)
            for word in vector.parts
            for place in range(4 // leaf.dtype.itemsize)
        ]

    def store_vector(
        self, values: Sequence[Operand], memory: Memory, offset: Number, dtype: DType
    ) -> None:
        """Write a vector's elements, the first of them at an offset."""
        if memory.vector == 1:
            for place, value in enumerate(values):
                self.registers.store(value, memory, self.places.add(offset, place), dtype)
            return
        parts = list(values)
        if is_packed(dtype):
            share = len(parts) // memory.words
            parts = [
                self.registers.word(values[share * word : share * (word + 1)], dtype)
                for word in range(memory.words)
            ]
        item = self.places.value(offset) >> (self.vector.bit_length() - 1)
        memory[item] = self.builder.vector(parts)

    def word_of_threads(self, value: Operand, dtype: DType) -> Value:
        """The word that the elements of neighbouring threads share, those that run in step: all of these have it."""
        b, bits, share = self.builder, 8 * dtype.itemsize, 4 // dtype.itemsize
        word = self.registers.packed(value, dtype) << ((b.local & (share - 1)) * bits)
        by = 1
        while by < share:
            before = b.let(word, "w")
            word = b.let(before | b.shuffle_xor(before, by), "w")
            by *= 2
        return word
