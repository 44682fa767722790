"""Elements of rows in a shader: several that lie side by side are read and written as one vector, or as whole words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....backends.wgpu.writer import Text, spelled
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.node import Node
from ....lower.specs import sizes
from ...ir.index import Number, identity
from ...ir.math import register_type
from ..elements import Memory, ShaderElements, is_packed

PARTS = "xyzw"


def has_whole_words(dtype: DType, vector: int) -> bool:
    """Whether so many elements side by side are whole words."""
    return dtype.itemsize * vector % 4 == 0


class RowElements(ShaderElements):
    """Elements of which a thread has several side by side.

    Attributes:
        beside: for an index along the last axis, known by its identity: the index, that of the vector's first element, and how many elements it is after that.
        vector: elements side by side.
    """

    beside: dict[int, tuple[Text, Number, int]]
    vector: int = 1

    def along(self, first: Number) -> list[Number]:
        """The indices along the last axis of a vector's elements."""
        if self.vector == 1:
            return [first]
        found = []
        for place in range(self.vector):
            text = self.builder.let(
                register_type(dtypes.u32), f"{self.places.text(first)} + {place}u"
            )
            self.beside[id(text)] = text, first, place
            found.append(text)
        return found

    def _element(self, node: Node, index: list[Number]) -> Any:
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

    def _loaded(self, memory: Memory, leaf: Node, index: Sequence[Number]) -> list[Text]:
        """A vector's elements."""
        offset = self.places.text(self.places.offset(index, sizes(leaf)))
        kind = register_type(leaf.dtype)
        name = self.builder.name("q")
        by = self.vector.bit_length() - 1
        self.builder.line(f"let {name} = {memory.name}[{offset} >> {by}u];")
        if not is_packed(leaf.dtype):
            return [Text(kind, f"{name}.{PARTS[place]}") for place in range(self.vector)]
        return [
            self.registers.unpacked(part, f"{place}u", leaf.dtype)
            for part in (
                [name] if memory.words == 1 else [f"{name}.{p}" for p in PARTS[: memory.words]]
            )
            for place in range(4 // leaf.dtype.itemsize)
        ]

    def store_vector(
        self, values: Sequence[Any], memory: Memory, offset: Number, dtype: DType
    ) -> None:
        """Write a vector's elements, the first of them at an offset."""
        if memory.vector == 1:
            for place, value in enumerate(values):
                self.registers.store(value, memory, self.places.add(offset, place), dtype)
            return
        kind, count = spelled(register_type(dtype)), self.vector
        parts = [self.builder.text(value) for value in values]
        if is_packed(dtype):
            kind, count = "u32", memory.words
            share = len(parts) // count
            parts = [
                self.word(values[share * word : share * (word + 1)], dtype) for word in range(count)
            ]
        at = f"{self.places.text(offset)} >> {self.vector.bit_length() - 1}u"
        whole = parts[0] if count == 1 else f"vec{count}<{kind}>({', '.join(parts)})"
        self.builder.line(f"{memory.name}[{at}] = {whole};")

    def word(self, values: Sequence[Any], dtype: DType) -> str:
        """The elements that share a word, as that word."""
        return " | ".join(
            f"({self.registers.packed(value, dtype)} << {8 * dtype.itemsize * place}u)"
            for place, value in enumerate(values)
        )

    def word_of_threads(self, value: Any, dtype: DType) -> str:
        """The word that the elements of neighbouring threads share, those that run in step: all of these have it."""
        bits, share = 8 * dtype.itemsize, 4 // dtype.itemsize
        text = f"{self.registers.packed(value, dtype)} << ((local & {share - 1}u) * {bits}u)"
        by = 1
        while by < share:
            before, after = self.builder.name("w"), self.builder.name("w")
            self.builder.line(f"let {before} = {text};")
            self.builder.line(f"let {after} = {before} | subgroupShuffleXor({before}, {by}u);")
            text, by = after, 2 * by
        return text
