"""LLVM's types of values: what they are made of, and constants."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from ....codegen.ir.types import Block, Builder, Function
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Type
from ....graph import dtypes
from ....graph.dtypes import DType

GLOBAL, SHARED = 1, 3
"""Address spaces of NVPTX: memory of the card, and of a block."""


class CodeBlock(Block, Protocol):
    """A block, as it is written."""

    instructions: list[Raw]
    terminator: Raw | None


class CodeFunction(Function, Protocol):
    """A function, as it is written.

    Attributes:
        args: its parameters, of which there may come more.
        blocks: of its code.
    """

    args: tuple[Raw, ...]
    blocks: list[CodeBlock]

    def append_basic_block(self, name: str = "") -> CodeBlock:
        """A new block after the others."""


class Shared(Raw, Protocol):
    """Shared memory.

    Attributes:
        value_type: an array of its items.
        linkage: who may see it.
        align: what it begins at a multiple of.
    """

    value_type: Type
    linkage: str
    align: int


class Branch(Raw, Protocol):
    """The end of a block.

    Attributes:
        operands: a condition, and where it goes on.
    """

    operands: list[Block | Raw]

    def add_case(self, value: Raw, block: Block) -> None:
        """Where it goes on of one more value."""


class CodeBuilder(Builder, Protocol):
    """llvmlite's builder, as far as printers need more of it than scalar code."""

    @property
    def block(self) -> CodeBlock:
        """Where it continues."""

    def position_before(self, instruction: Raw | None) -> None:
        """Continue before an instruction."""

    def switch(self, value: Raw, default: Block) -> Branch:
        """Go on with the block of a value."""

    def branch(self, target: Block) -> Branch:
        """Go on with another block."""

    def cbranch(self, condition: Raw, chosen: Block, otherwise: Block) -> Branch:
        """Go on with one of two blocks."""


def element(type_: Type) -> Type:
    """The type of a vector's parts; a scalar's own."""
    return getattr(type_, "element", type_)


def width(type_: Type) -> int:
    """The bits of an integer type; 0 of others."""
    return int(getattr(type_, "width", 0))


def is_float(type_: Type) -> bool:
    """Whether values of a type, or its parts, are floats."""
    return not width(element(type_))


@lru_cache(maxsize=64)
def integer(bits: int, count: int = 1) -> Type:
    """The type of integers, or of vectors of them."""
    from llvmlite import ir

    return vector(ir.IntType(bits), count)


@lru_cache(maxsize=64)
def floating(bits: int, count: int = 1) -> Type:
    """The type of floats, or of vectors of them."""
    from llvmlite import ir

    kinds = {16: ir.HalfType, 32: ir.FloatType, 64: ir.DoubleType}
    return vector(kinds[bits](), count)


def vector(type_: Type, count: int) -> Type:
    """The type of so many scalars of a type."""
    from llvmlite import ir

    return type_ if count == 1 else ir.VectorType(type_, count)


def count_of(type_: Type) -> int:
    """Parts of a vector; 1 of a scalar."""
    return int(getattr(type_, "count", 1))


@lru_cache(maxsize=8)
def pointer(space: int) -> Type:
    """The type of addresses of a space."""
    from llvmlite import ir

    return ir.PointerType(addrspace=space)


def constant(type_: Type, number: float) -> Raw:
    """A number as a constant, in every part of a vector."""
    from llvmlite import ir

    kind, count = element(type_), count_of(type_)
    bits = width(kind)
    plain: float = float(number)
    if bits:
        plain = int(number) % (1 << bits)
        if bits > 1 and plain >> (bits - 1):
            plain -= 1 << bits
    return ir.Constant(type_, plain if count == 1 else [plain] * count)


def dtype_of(type_: Type) -> DType:
    """The element type that values of a type, or the parts of a vector, are computed in."""
    kind = element(type_)
    names = {1: "bool", 8: "u8", 16: "bf16", 32: "u32", 64: "i64"}
    if width(kind):
        return dtypes.dtype(names[width(kind)])
    return dtypes.dtype({"half": "f16", "float": "f32", "double": "f64"}[str(kind)])


def bytes_of(type_: Type) -> int:
    """Bytes of a value in memory, a truth taking one."""
    kind = element(type_)
    bits = width(kind) or {"half": 16, "float": 32, "double": 64}[str(kind)]
    return max(1, bits // 8) * count_of(type_)
