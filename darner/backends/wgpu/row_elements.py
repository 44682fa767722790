"""Elements of rows in a shader: several that lie side by side are read and written as one vector, or as whole words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.node import Node
from ..cpu.math import register_type
from ..cpu.places import Number, identity
from ..cpu.template import sizes
from .elements import Memory, ShaderElements, is_packed
from .writer import Text, spelled

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
        apart = sizes(leaf)[-1] % self.vector != 0
        whole = has_whole_words(leaf.dtype, self.vector)
        if apart or (not whole if is_packed(leaf.dtype) else memory.vector != self.vector):
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
        if not is_packed(leaf.dtype):
            name = self.builder.name("q")
            by = self.vector.bit_length() - 1
            self.builder.line(f"let {name} = {memory.name}[{offset} >> {by}u];")
            return [Text(kind, f"{name}.{PARTS[place]}") for place in range(self.vector)]
        share = 4 // leaf.dtype.itemsize
        values = []
        for word in range(self.vector // share):
            name = self.builder.name("w")
            at = f"({offset} >> {share.bit_length() - 1}u) + {word}u"
            self.builder.line(f"let {name} = {memory.name}[{at}];")
            values += [
                self.registers.unpacked(name, f"{place}u", leaf.dtype) for place in range(share)
            ]
        return values

    def store_vector(
        self, values: Sequence[Any], memory: Memory, offset: Number, dtype: DType
    ) -> None:
        """Write a vector's elements, the first of them at an offset."""
        if memory.atomic or (memory.vector == 1 and not is_packed(dtype)):
            for place, value in enumerate(values):
                self.registers.store(value, memory, self.places.add(offset, place), dtype)
            return
        text = self.places.text(offset)
        if not is_packed(dtype):
            kind, by = spelled(register_type(dtype)), self.vector.bit_length() - 1
            parts = ", ".join(self.builder.text(value) for value in values)
            self.builder.line(
                f"{memory.name}[{text} >> {by}u] = vec{self.vector}<{kind}>({parts});"
            )
            return
        bits = 8 * dtype.itemsize
        share = 32 // bits
        for word in range(self.vector // share):
            own = values[word * share : (word + 1) * share]
            parts = " | ".join(
                f"({self.registers.packed(value, dtype)} << {bits * place}u)"
                for place, value in enumerate(own)
            )
            at = f"({text} >> {share.bit_length() - 1}u) + {word}u"
            self.builder.line(f"{memory.name}[{at}] = {parts};")
