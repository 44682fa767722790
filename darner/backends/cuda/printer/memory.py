"""Buffers, shared memory, tables and arrays of the SIMT builder as LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ....codegen.ir.index import Number
from ....codegen.ir.types import Pointer
from ....codegen.ir.types import Value as Raw
from ....codegen.simt.builder import Index, Memory, Operand, Type
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.errors import InternalError
from .blocks import Blocks
from .instructions import Held
from .types import (
    GLOBAL,
    SHARED,
    CodeFunction,
    bytes_of,
    constant,
    dtype_of,
    element,
    integer,
    pointer,
)

SCOPE = 'syncscope("device") '
"""Whose threads see an atomic operation as one step: those of the card."""


LINE = 16
"""What every memory begins at a multiple of."""


def alignment_of(item: Type) -> int:
    """What items lie at multiples of."""
    return min(bytes_of(item), LINE)


def item_of(memory: Memory) -> Type:
    """The type of a memory's items."""
    if memory.packed:
        return integer(32, memory.words)
    # A truth takes a byte.
    return integer(8) if memory.dtype is dtypes.bool_ else memory.type


class Memories(Blocks):
    """Reads and writes memory; see ``codegen.simt.builder.Simt``.

    Args:
        function: what is written.

    Attributes:
        bases: the addresses of other memory than buffers.
        sizes: the items of shared memory: their type, and how many.
        parts: names that stand for a part of other memory, from a byte on.
        space: where buffers and tables lie.
    """

    space = GLOBAL

    def __init__(self, function: CodeFunction) -> None:
        super().__init__(function)
        self.bases: dict[str, Pointer] = {}
        self.sizes: dict[str, tuple[Type, int]] = {}
        self.parts: dict[str, tuple[str, int]] = {}

    # ------------------------------------------------------------- where it lies

    def parameter(self, type_: Type, name: str) -> Raw:
        """One more parameter of the function."""
        from llvmlite import ir

        found = ir.Argument(self.function_ir, type_, name)
        if type_ == pointer(GLOBAL):
            found.attributes.align = LINE
        self.function_ir.args = (*self.function_ir.args, found)
        return found

    def buffer(self, name: str) -> Pointer:
        """The address of a buffer, which becomes a parameter where it is first met."""
        if name not in self.buffers:
            self.buffers[name] = self.parameter(pointer(self.space), name)
        return self.buffers[name]

    def passed(self, child: Blocks) -> list[Raw]:
        """See ``Blocks``."""
        return [self.buffer(name) for name in child.buffers]

    def _linear(self, memory: Memory, at: Sequence[Number]) -> Held:
        """The number of an item, counted along all axes."""
        first, *rest = at or (0,)
        total = self.index(first)
        for number, size in zip(rest, memory.shape[1:], strict=True):
            total = self.operate("+", self.operate("*", total, size), self.index(number))
        return total

    def _split(self, memory: Memory, index: Index) -> tuple[list[Number], Operand]:
        """The indices of an item, and the part of it that is meant."""
        given = list(index) if isinstance(index, tuple) else [index]
        axes = 1 if memory.space == "buffer" else len(memory.shape)
        if len(given) not in (axes, axes + 1):
            raise InternalError(f"'{memory.name}' takes {axes} indices, not {len(given)}")
        return given[:axes], given[axes] if len(given) > axes else None

    def wide(self, number: Operand) -> Raw:
        """An index as addresses are counted."""
        raw = self.raw(self.index(number))
        if hasattr(raw, "constant"):
            return constant(integer(64), raw.constant % (1 << 32))
        return self.ir.zext(raw, integer(64))

    def whole(self, memory: Memory, item: Type, number: Held) -> tuple[str, Held]:
        """The memory that a memory is a part of, and the number of an item there."""
        name, start = self.parts.get(memory.name, (memory.name, 0))
        return name, self.operate("+", number, start // bytes_of(item)) if start else number

    def part_of(
        self, memory: Memory, start: int, dtype: DType, shape: int | Sequence[int], name: str
    ) -> Memory:
        """Shared memory that is a part of other shared memory, from a byte on that is a multiple of 16."""
        found = f"{name}.{len(self.parts)}"
        self.parts[found] = memory.name, start
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        return Memory(found, dtype, False, 1, sizes, "shared", builder=self)

    def found_at(self, name: str, address: Operand, nbytes: Operand) -> None:
        """Let a buffer be where the code has found that it lies, and has so many bytes."""
        self.buffers[name] = self.ir.inttoptr(self.raw(address), pointer(self.space))

    def address(self, memory: Memory, item: Type, number: Held) -> Pointer:
        """Where an item lies."""
        name, number = self.whole(memory, item, number)
        base = self.buffer(name) if memory.space == "buffer" else self.bases[name]
        return self.moved(base, self.wide(number), item)

    def moved(self, base: Pointer, number: Raw, item: Type) -> Pointer:
        """An address some items further."""
        found = self.ir.gep(base, [number], source_etype=item)
        # llvmlite takes it for the address of what the first address is that of.
        found.type = pointer(getattr(base.type, "addrspace", 0))
        return found

    def _place(self, memory: Memory, index: Index) -> tuple[Pointer, Type]:
        """Where an item, or a part of one, lies, and its type."""
        at, part = self._split(memory, index)
        item = item_of(memory)
        found = self.address(memory, item, self._linear(memory, at))
        if part is None:
            return found, item
        own = element(item)
        return self.moved(found, self.wide(part), own), own

    # ------------------------------------------------------------- reading and writing

    def load(self, memory: Memory, index: Index) -> Held:
        """See ``Simt``."""
        address, kind = self._place(memory, index)
        if memory.atomic and memory.space == "buffer" and memory.packed:
            raw = self.ir.load_atomic(address, f"{SCOPE}monotonic", 4, typ=kind)
        else:
            raw = self.ir.load(address, typ=kind, align=alignment_of(kind))
        if memory.dtype is dtypes.bool_ and not memory.packed:
            raw = self.ir.icmp_unsigned("!=", raw, constant(kind, 0))
        return self.held(raw, memory.signed)

    def store(self, value: Operand, memory: Memory, index: Index) -> None:
        """See ``Simt``."""
        like = self._constant(0, integer(32), memory.signed)
        if not memory.packed:
            like = self._constant(0, element(memory.type), memory.signed)
        held = self.literal(value, like)
        address, kind = self._place(memory, index)
        raw = self.fitted(held, kind)
        self.ir.store(raw, address, align=alignment_of(kind))

    def atomic(self, op: str, memory: Memory, index: Index, value: Operand) -> None:
        """See ``Simt``."""
        address, kind = self._place(memory, index)
        raw = self.fitted(self.literal(value, self._constant(0, kind)), kind)
        name = op if op not in ("max", "min") or memory.signed else f"u{op}"
        self.ir.atomic_rmw(name, address, raw, f"{SCOPE}monotonic")

    # ------------------------------------------------------------- memory of blocks and threads

    def shared(
        self,
        dtype: DType,
        shape: int | Sequence[int],
        name: str,
        width: int = 1,
        *,
        signed: bool = False,
    ) -> Memory:
        """See ``Simt``."""
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        found = self.module.get_unique_name(name)
        memory = Memory(found, dtype, False, width, sizes, "shared", signed, builder=self)
        self.sizes[found] = item_of(memory), prod(sizes)
        self.bases[found] = self.declared(memory, prod(sizes))
        return memory

    def declared(self, memory: Memory, count: int) -> Pointer:
        """The address of shared memory for so many items."""
        from llvmlite import ir

        kind = ir.ArrayType(item_of(memory), count)
        found = ir.GlobalVariable(self.module, kind, memory.name, addrspace=SHARED)
        found.linkage = "internal"
        found.align = LINE
        return found

    def resize(self, memory: Memory, count: int) -> None:
        """See ``Simt``."""
        item, _ = self.sizes[memory.name]
        self.sizes[memory.name] = item, count

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory that the code declares."""
        return sum(count * bytes_of(item) for item, count in self.sizes.values())

    def table(self, words: Sequence[int], name: str) -> Memory:
        """See ``Simt``."""
        from llvmlite import ir

        found = self.module.get_unique_name(name)
        kind = ir.ArrayType(integer(32), len(words))
        table = ir.GlobalVariable(self.module, kind, found, addrspace=self.space)
        table.initializer = ir.Constant(kind, [constant(integer(32), word) for word in words])
        table.global_constant = True
        table.linkage = "internal"
        self.bases[found] = table
        return Memory(found, dtypes.u32, False, 1, (len(words),), "local", builder=self)

    def array(self, values: Sequence[Operand], name: str) -> Memory:
        """See ``Simt``."""
        from llvmlite import ir

        raw = [self.raw(value) for value in values]
        type_ = raw[0].type
        dtype, count = dtype_of(type_), int(getattr(type_, "count", 1))
        signed = bool(getattr(values[0], "signed", False))
        found = f"{name}.{len(self.bases)}"
        memory = Memory(found, dtype, False, count, (len(values),), "local", signed, builder=self)
        self.bases[found] = self.room(ir.ArrayType(item_of(memory), len(values)))
        for number, value in enumerate(values):
            self.store(value, memory, number)
        return memory
