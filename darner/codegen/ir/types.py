"""What code is written with: values, types, and the instructions of a builder; and how element types are stored and summed.

llvmlite's ``IRBuilder`` has these instructions and no type hints of its own. A printer of GPU code has those of them that need neither memory nor branches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from ...graph import dtypes
from ...graph.dtypes import DType

STORAGE_BYTES = {"f32": 4, "f64": 8, "bf16": 2, "f16": 2}


def accumulator_type(result: DType) -> DType:
    """The type that running results are kept in: that of the result, or f32 for 16-bit floats."""
    return dtypes.f32 if result.is_half else result


ACCUMULATOR = {name: accumulator_type(dtypes.dtype(name)).name for name in STORAGE_BYTES}
"""The same by name, for the types that contractions have kernels for."""


class Type(Protocol):
    """An IR type; each has the attributes of its kind.

    Attributes:
        width: bits of an integer.
        count: lanes of a vector.
        element: the type of one lane.
    """

    width: int
    count: int
    element: Type

    def __hash__(self) -> int:
        """Equal for equal types."""


class Value(Protocol):
    """What an instruction takes or gives: a scalar or a vector."""

    type: Type


Pointer: TypeAlias = Value
"""A value that is an address."""

LoopBody: TypeAlias = Callable[[Value, Sequence[Value]], Sequence[Value] | None]
"""What ``emit.loop`` repeats: the index and the carried values, to the next carried values."""

Mask: TypeAlias = Value
"""A value with one bit for each lane."""


class Phi(Value, Protocol):
    """A value that depends on the block before."""

    def add_incoming(self, value: Value, block: Block) -> None:
        """What it is after a block."""


class Stored(Value, Protocol):
    """An access to memory."""

    def set_metadata(self, name: str, node: Any) -> None:
        """Mark it; a node is what ``Module.add_metadata`` gave."""


class Room(Value, Protocol):
    """Memory of a function's own."""

    align: int | None


class Block(Protocol):
    """A basic block."""

    @property
    def function(self) -> Function:
        """Whose it is."""

    @property
    def is_terminated(self) -> bool:
        """Whether it ends with a branch or a return."""


class Module(Protocol):
    """Where functions and variables are put.

    Attributes:
        vector_bytes: how wide the vectors of its target are; see ``lanes.note_target``.
        converts_halves: whether that has instructions between f16 and f32.
    """

    vector_bytes: int
    converts_halves: bool

    @property
    def globals(self) -> dict[str, Any]:
        """All of them, by name."""

    @property
    def metadata(self) -> Sequence[object]:
        """All nodes that instructions are marked with."""

    def get_unique_name(self, name: str) -> str:
        """A name that nothing has yet."""

    def add_metadata(self, operands: Sequence[Value]) -> Any:
        """A node that instructions can be marked with."""


class Function(Value, Protocol):
    """A function: declared, or written block by block.

    Attributes:
        name: what it is called.
        linkage: who may call it.
        ftype: its type, which has ``return_type`` and ``args``.
    """

    name: str
    linkage: str
    ftype: Any

    @property
    def module(self) -> Module:
        """Where it is."""

    @property
    def args(self) -> Sequence[Value]:
        """What it is called with."""

    @property
    def attributes(self) -> Any:
        """The set of what is known of it."""

    @property
    def is_declaration(self) -> bool:
        """Whether it has no code yet."""

    def append_basic_block(self, name: str = "") -> Block:
        """A new block after the others."""


Flags: TypeAlias = Sequence[str]


class Builder(Protocol):
    """Writes instructions at the end of a block: the part of llvmlite's ``IRBuilder`` that is in use."""

    @property
    def module(self) -> Module:
        """Where the code goes."""

    @property
    def function(self) -> Function:
        """What is written."""

    @property
    def block(self) -> Block:
        """Where it continues."""

    def add(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A + b."""

    def sub(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A - b."""

    def mul(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A * b."""

    def shl(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A shifted to the left."""

    def udiv(self, a: Value, b: Value) -> Value:
        """A / b of numbers without a sign, rounded towards zero."""

    def sdiv(self, a: Value, b: Value) -> Value:
        """A / b of numbers with a sign, rounded towards zero."""

    def urem(self, a: Value, b: Value) -> Value:
        """The remainder of ``udiv``."""

    def srem(self, a: Value, b: Value) -> Value:
        """The remainder of ``sdiv``."""

    def lshr(self, a: Value, b: Value) -> Value:
        """A shifted to the right, zeros from above."""

    def ashr(self, a: Value, b: Value) -> Value:
        """A shifted to the right, its sign from above."""

    def and_(self, a: Value, b: Value) -> Value:
        """The bits that both have."""

    def or_(self, a: Value, b: Value) -> Value:
        """The bits that either has."""

    def xor(self, a: Value, b: Value) -> Value:
        """The bits that one of both has."""

    def fadd(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A + b of floats."""

    def fsub(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A - b of floats."""

    def fmul(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A * b of floats."""

    def fdiv(self, a: Value, b: Value, name: str = "", flags: Flags = ()) -> Value:
        """A / b of floats."""

    def neg(self, a: Value) -> Value:
        """0 - a."""

    def not_(self, a: Value) -> Value:
        """All bits the other way."""

    def fneg(self, a: Value) -> Value:
        """A float with the other sign."""

    def icmp_signed(self, sign: str, a: Value, b: Value) -> Value:
        """Whether ``a sign b``, of numbers with a sign."""

    def icmp_unsigned(self, sign: str, a: Value, b: Value) -> Value:
        """Whether ``a sign b``, of numbers without a sign."""

    def fcmp_ordered(self, sign: str, a: Value, b: Value) -> Value:
        """Whether ``a sign b``, false where either is NaN."""

    def fcmp_unordered(self, sign: str, a: Value, b: Value) -> Value:
        """Whether ``a sign b``, true where either is NaN."""

    def select(self, condition: Value, chosen: Value, otherwise: Value) -> Value:
        """One of two, lane by lane where the condition has lanes."""

    def trunc(self, value: Value, kind: Type) -> Value:
        """An integer of fewer bits."""

    def zext(self, value: Value, kind: Type) -> Value:
        """An integer of more bits, zeros above."""

    def sext(self, value: Value, kind: Type) -> Value:
        """An integer of more bits, its sign above."""

    def sitofp(self, value: Value, kind: Type) -> Value:
        """A signed integer as a float."""

    def uitofp(self, value: Value, kind: Type) -> Value:
        """An unsigned integer as a float."""

    def fpext(self, value: Value, kind: Type) -> Value:
        """A wider float."""

    def fptrunc(self, value: Value, kind: Type) -> Value:
        """A narrower float."""

    def bitcast(self, value: Value, kind: Type) -> Value:
        """The same bits as another type."""

    def ptrtoint(self, value: Value, kind: Type) -> Value:
        """An address as an integer."""

    def inttoptr(self, value: Value, kind: Type) -> Value:
        """An integer as an address."""

    def extract_element(self, vector: Value, lane: Value) -> Value:
        """One lane."""

    def insert_element(self, vector: Value, value: Value, lane: Value) -> Value:
        """A vector with another value in one lane."""

    def shuffle_vector(self, a: Value, b: Value, lanes: Value) -> Value:
        """Lanes of two vectors, by number."""

    def extract_value(self, aggregate: Value, index: int) -> Value:
        """A part of a structure."""

    def insert_value(self, aggregate: Value, value: Value, index: int) -> Value:
        """A structure with another part."""

    def gep(self, pointer: Pointer, indices: Sequence[Value], *, source_etype: Type) -> Pointer:
        """The address of an element of that type."""

    def load(
        self, pointer: Pointer, name: str = "", align: int | None = None, typ: Type | None = None
    ) -> Value:
        """What stands at an address."""

    def store(self, value: Value, pointer: Pointer, align: int | None = None) -> Stored:
        """Write to an address."""

    def alloca(self, kind: Type, size: Value | int | None = None) -> Room:
        """Memory of the function's own."""

    def load_atomic(
        self, pointer: Pointer, ordering: str, align: int, typ: Type | None = None
    ) -> Value:
        """What stands at an address that other threads write."""

    def atomic_rmw(self, operation: str, pointer: Pointer, value: Value, ordering: str) -> Value:
        """Change what stands at an address in one piece; what it was before."""

    def cmpxchg(
        self, pointer: Pointer, expected: Value, value: Value, ordering: str, failordering: str
    ) -> Value:
        """Write where what was expected stands; what stood there, and whether it did."""

    def fence(self, ordering: str) -> Value:
        """What is before it is seen by other threads before what is after it."""

    def phi(self, kind: Type) -> Phi:
        """A value that depends on the block before."""

    def call(
        self,
        function: Value,
        arguments: Sequence[Value],
        *,
        fastmath: Flags = (),
        tail: bool = False,
    ) -> Value:
        """The result of a function."""

    def ret(self, value: Value) -> Value:
        """Return a value."""

    def ret_void(self) -> Value:
        """Return."""

    def branch(self, target: Block) -> Value:
        """Go on with another block."""

    def cbranch(self, condition: Value, chosen: Block, otherwise: Block) -> Value:
        """Go on with one of two blocks."""

    def append_basic_block(self, name: str = "") -> Block:
        """A new block of the function."""

    def position_at_end(self, block: Block) -> None:
        """Continue in a block."""

    def goto_entry_block(self) -> AbstractContextManager[None]:
        """A context that writes into the function's first block."""

    def if_then(
        self, condition: Value, likely: bool | None = None
    ) -> AbstractContextManager[Block]:
        """A context that runs where a condition holds."""

    def if_else(
        self, condition: Value, likely: bool | None = None
    ) -> AbstractContextManager[
        tuple[AbstractContextManager[Block], AbstractContextManager[Block]]
    ]:
        """Two contexts, of which one runs."""


ElementBuilder: TypeAlias = Any
"""A ``Builder``, or a printer of GPU code, which has its instructions for values, none for memory and branches, and text of its own."""

Memory: TypeAlias = Any
"""An address, or the buffer that a printer of GPU code has bound instead of one."""
