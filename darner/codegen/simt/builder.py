"""What GPU kernels are written against: the code of one thread among many, as arithmetic on values, blocks and memory.

A template reads like the kernel that it makes; ``b`` is the builder of its dispatch:

    tile = b.shared(f32, (SIDE, SIDE + 1), "tile")
    row = b.let(b.group // across * SIDE + b.local // SIDE, "row")
    with b.if_(row < rows):
        tile[b.local // SIDE, b.local % SIDE] = x[row * pitch + column]
    b.barrier()

Python's numbers and conditions are known while the kernel is written and leave no code behind: ``if`` chooses what is written, ``b.if_`` what a thread does. A backend prints this
as WGSL, as LLVM, or whatever it runs; no template knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NoReturn, Protocol, TypeAlias

from ...graph import dtypes
from ...graph.dtypes import DType
from ...graph.errors import InternalError
from ..ir.index import Number
from ..ir.math import register_type
from ..ir.types import Type as Type

Operand: TypeAlias = Any
"""A ``Value``, a constant of the scalar builder, or a number of Python, which takes the other operand's type."""

Index: TypeAlias = Any
"""The number of an item, or a tuple of numbers where a memory has several axes."""


@cache
def value_type(dtype: DType, width: int = 1) -> Type:
    """The type of a value that is computed with: of an element type, or a vector of 2 or 4."""
    return register_type(dtype, None if width == 1 else width)


class Value:
    """A number, a truth or a vector that a thread has. Immutable: a name for what was computed.

    Operators continue the code. ``//``, ``%`` and ``>>`` go by whether the value is ``signed``; ``&``, ``|`` and ``~`` of truths are and, or and not. ``v[k]`` is a part of a vector.

    Attributes:
        builder: where the code goes.
        type: see ``value_type``.
        signed: whether it is an integer with a sign. Indices have none, and differences of them wrap around.
    """

    __slots__ = ("builder", "signed", "type")

    builder: Operators

    def __init__(self, builder: Operators, type_: Type, signed: bool = False) -> None:
        self.builder = builder
        self.type = type_
        self.signed = signed

    def __bool__(self) -> NoReturn:
        raise InternalError(
            "a value of a kernel is not known while the kernel is written: 'if_' asks for it"
        )

    # ------------------------------------------------------------- arithmetic

    def __add__(self, other: Operand) -> Value:
        return self.builder.operate("+", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.builder.operate("+", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.builder.operate("-", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.builder.operate("-", other, self)

    def __mul__(self, other: Operand) -> Value:
        return self.builder.operate("*", self, other)

    def __rmul__(self, other: Operand) -> Value:
        return self.builder.operate("*", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.builder.operate("/", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.builder.operate("/", other, self)

    def __floordiv__(self, other: Operand) -> Value:
        return self.builder.operate("//", self, other)

    def __rfloordiv__(self, other: Operand) -> Value:
        return self.builder.operate("//", other, self)

    def __mod__(self, other: Operand) -> Value:
        return self.builder.operate("%", self, other)

    def __neg__(self) -> Value:
        return self.builder.apply("-", self)

    # ------------------------------------------------------------- bits and truths

    def __and__(self, other: Operand) -> Value:
        return self.builder.operate("&", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.builder.operate("|", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.builder.operate("^", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.builder.operate("<<", self, other)

    def __rlshift__(self, other: Operand) -> Value:
        return self.builder.operate("<<", other, self)

    def __rshift__(self, other: Operand) -> Value:
        return self.builder.operate(">>", self, other)

    def __invert__(self) -> Value:
        return self.builder.apply("~", self)

    # ------------------------------------------------------------- comparison

    def __lt__(self, other: Operand) -> Value:
        return self.builder.operate("<", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.builder.operate("<=", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.builder.operate(">", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.builder.operate(">=", self, other)

    # Two values compared are code that compares them, as in NumPy; 'is' tells whether they are the same.

    def __eq__(self, other: Operand) -> Value:  # type: ignore[override]
        return self.builder.operate("==", self, other)

    def __ne__(self, other: Operand) -> Value:  # type: ignore[override]
        return self.builder.operate("!=", self, other)

    __hash__ = object.__hash__

    # ------------------------------------------------------------- vectors

    @property
    def width(self) -> int:
        """Parts of a vector; 1 of a scalar."""
        return int(getattr(self.type, "count", 1))

    def __getitem__(self, part: int | Value) -> Value:
        return self.builder.part(self, part)

    @property
    def parts(self) -> list[Value]:
        """The parts of a vector; of a scalar, itself."""
        return [self] if self.width == 1 else [self[k] for k in range(self.width)]

    @property
    def x(self) -> Value:
        """The first part."""
        return self[0]

    @property
    def y(self) -> Value:
        """The second part."""
        return self[1]

    @property
    def z(self) -> Value:
        """The third part."""
        return self[2]

    @property
    def w(self) -> Value:
        """The fourth part."""
        return self[3]


class Variable(Value):
    """A value that changes: where it stands in an expression, it is what it is there.

    An expression of it is to be used, or given a name (``let``), before the variable is set again.
    """

    __slots__ = ()

    builder: Simt

    def set(self, value: Operand) -> None:
        """Give it another value."""
        self.builder.assign(self, value)

    def __setitem__(self, part: int, value: Operand) -> None:
        self.builder.assign_part(self, part, value)

    def __iadd__(self, other: Operand) -> Variable:
        self.set(self + other)
        return self

    def __isub__(self, other: Operand) -> Variable:
        self.set(self - other)
        return self

    def __imul__(self, other: Operand) -> Variable:
        self.set(self * other)
        return self


@dataclass(frozen=True)
class Memory:
    """Memory that a dispatch sees: a buffer, what a workgroup shares, or an array of one thread.

    ``memory[i]`` reads an item and ``memory[i] = value`` writes it; arrays of more axes take an index for each, and one more stands for a part of an item that is a vector.
    The items of a buffer whose elements are smaller than a word are whole words: ``Elements`` know how elements lie in them.

    Attributes:
        name: what it is called.
        dtype: of its elements.
        atomic: whether it is written by atomic operations, because elements of several threads share words.
        vector: elements of each item.
        shape: of an array; empty of a buffer, whose size is no concern of the code.
        space: ``buffer``, ``shared`` or ``local``.
        signed: whether its integers have a sign.
        builder: where code goes that reads and writes it.
        single: whether elements smaller than a word are items of their own; see ``Simt.narrow``.
    """

    name: str
    dtype: DType
    atomic: bool = False
    vector: int = 1
    shape: tuple[int, ...] = ()
    space: str = "buffer"
    signed: bool = False
    builder: Any = field(default=None, compare=False, repr=False)
    single: bool = False

    @property
    def packed(self) -> bool:
        """Whether elements share words."""
        return self.space == "buffer" and is_packed(self.dtype) and not self.single

    @property
    def singles(self) -> Memory:
        """The same buffer, whose items are its elements, however small."""
        return replace(self, single=True, atomic=False, vector=1)

    @property
    def words(self) -> int:
        """Words of each item, where elements share them."""
        return max(1, self.vector * self.dtype.itemsize // 4)

    @property
    def type(self) -> Type:
        """Of an item that is read."""
        if self.packed:
            return value_type(dtypes.u32, self.words)
        return value_type(self.dtype, self.vector)

    def __getitem__(self, index: Index) -> Value:
        found: Value = self.builder.load(self, index)
        return found

    def __setitem__(self, index: Index, value: Operand) -> None:
        self.builder.store(value, self, index)


def is_packed(dtype: DType) -> bool:
    """Whether several elements share a word of memory."""
    return dtype.itemsize < 4


class Operators(Protocol):
    """What the operators of values come to."""

    def operate(self, sign: str, a: Operand, b: Operand) -> Value:
        """``a sign b``: one of ``+ - * / // % & | ^ << >> < <= > >= == !=``. A number of Python takes the type of the other; a scalar meets a vector in every part."""
        ...

    def apply(self, sign: str, a: Operand) -> Value:
        """``-a`` or ``~a``; not ``a``, of truths."""
        ...

    def part(self, a: Operand, which: Operand) -> Value:
        """A part of a vector, known or not."""
        ...


class ScalarBuilder(Protocol):
    """The instructions that code for one element is written with: those of llvmlite's ``IRBuilder`` that ``codegen.ir`` needs.

    Only those that templates call themselves are listed; the others are met through ``Lane`` and ``Registers``.
    """

    lane: Any

    def fadd(self, a: Operand, b: Operand) -> Value:
        """``a + b`` of floats."""
        ...

    def fmul(self, a: Operand, b: Operand) -> Value:
        """``a * b`` of floats; 0 times infinity is NaN."""
        ...

    def fdiv(self, a: Operand, b: Operand) -> Value:
        """``a / b`` of floats."""
        ...

    def and_(self, a: Operand, b: Operand) -> Value:
        """Bits that both have."""
        ...

    def or_(self, a: Operand, b: Operand) -> Value:
        """Bits that one of them has."""
        ...

    def not_(self, a: Operand) -> Value:
        """The other bits."""
        ...

    def icmp_unsigned(self, sign: str, a: Operand, b: Operand) -> Value:
        """Whether ``a sign b`` of integers without signs."""
        ...

    def fcmp_ordered(self, sign: str, a: Operand, b: Operand) -> Value:
        """Whether ``a sign b``, and neither is NaN."""
        ...

    def select(self, condition: Operand, chosen: Operand, otherwise: Operand) -> Value:
        """One of two values, under a name; see ``Simt.choose``."""
        ...

    def bitcast(self, a: Operand, type_: Type) -> Value:
        """The same bits as another type."""
        ...

    def trunc(self, a: Operand, type_: Type) -> Value:
        """The low bits of an integer."""
        ...

    def zext(self, a: Operand, type_: Type) -> Value:
        """An integer with zeros above."""
        ...


class Simt(ScalarBuilder, Operators, Protocol):
    """The code of one dispatch: what every one of its threads does.

    Attributes:
        threads: of a workgroup (a block, in CUDA's words).
        group: the number of the workgroup.
        local: the number of the thread in it.
        thread: its number among all: ``group * threads + local``.
        narrow: whether elements smaller than a word are read and written by themselves (``Memory.singles``), without touching those beside them.
        scopes: what is entered with every block: those who remember values forget at its end what they learned in it.
    """

    threads: int
    narrow: bool
    scopes: list[Callable[[], AbstractContextManager[None]]]
    group: Value
    local: Value
    thread: Value

    # ------------------------------------------------------------- values

    def let(self, value: Operand, name: str = "v") -> Value:
        """Compute a value here, once, under a name that tells a reader of the kernel what it is."""
        ...

    def constant(self, number: float, dtype: DType, width: int = 1) -> Value:
        """A number, in every part of a vector."""
        ...

    def index(self, number: Number) -> Value:
        """An index as a value, known or not."""
        ...

    def narrowed(self, value: Operand) -> Value:
        """An integer of 64 bits as an index: the nearest of 32 bits."""
        ...

    def vector(self, parts: Sequence[Operand], like: Value | None = None) -> Value:
        """A vector of scalars, or of shorter vectors one after the other; numbers of Python take the type of ``like``, or of the first value."""
        ...

    def splat(self, value: Operand, width: int) -> Value:
        """A vector with the same in every part."""
        ...

    def as_signed(self, value: Operand) -> Value:
        """The same bits as an integer with a sign."""
        ...

    def as_unsigned(self, value: Operand) -> Value:
        """The same bits as one without."""
        ...

    def bits(self, value: Operand) -> Value:
        """The bits of a number as an integer without a sign; a truth as 0 or 1."""
        ...

    def of_bits(self, bits: Operand, dtype: DType) -> Value:
        """What has these bits."""
        ...

    def words(self, value: Operand) -> list[Value]:
        """The bits of a value as words of 32 bits, the low one first: what memory of words and other threads take, whatever its type."""
        ...

    def of_words(self, words: Sequence[Operand], dtype: DType) -> Value:
        """What ``words`` gave."""
        ...

    def half_bits(self, value: Operand) -> Value:
        """The 16 bits of a number of f16, zeros above them."""
        ...

    def of_half_bits(self, bits: Operand) -> Value:
        """The number of f16 that has these bits, of which the low 16 count."""
        ...

    def halves(self, word: Operand) -> Value:
        """The two numbers of f16 in a word, as a vector of f32."""
        ...

    def min(self, a: Operand, b: Operand) -> Number:
        """The smaller of two numbers; of floats that are not NaN. Known numbers give a known number."""
        ...

    def max(self, a: Operand, b: Operand) -> Number:
        """The larger of two numbers, likewise."""
        ...

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """``a * b + c`` of floats, or of vectors part by part; rounded once where the device can."""
        ...

    def choose(self, condition: Operand, chosen: Operand, otherwise: Operand) -> Value:
        """One of two values, both of which are computed; of vectors part by part."""
        ...

    def call(self, name: str, *values: Operand) -> Value:
        """``exp``, ``abs`` or ``tanh`` of floats, or ``dot`` of two vectors, as exact as the device has it."""
        ...

    def random_bits(self, offset: Operand, step: Operand, seed: int, stream: int) -> Value:
        """32 bits of Philox 4x32-10."""
        ...

    # ------------------------------------------------------------- variables and blocks

    def variable(
        self, initial: Operand, name: str = "v", dtype: DType | None = None, width: int = 1
    ) -> Variable:
        """A value that changes; ``dtype`` and ``width`` where ``initial`` is a number of Python."""
        ...

    def assign(self, variable: Variable, value: Operand) -> None:
        """What ``Variable.set`` writes."""
        ...

    def assign_part(self, variable: Variable, part: int, value: Operand) -> None:
        """What ``variable[part] = value`` writes."""
        ...

    def if_(self, *conditions: Operand | None) -> AbstractContextManager[None]:
        """Code for threads that all the conditions hold for; None always holds, and takes no code."""
        ...

    def else_(self) -> AbstractContextManager[None]:
        """Code for the others, right after the block of an ``if_``."""
        ...

    def for_(
        self, first: Number, last: Number, step: Number = 1, name: str = "i"
    ) -> AbstractContextManager[Value]:
        """``for i in range(first, last, step)``, of numbers without signs."""
        ...

    def iterate(
        self,
        first: Number,
        condition: Callable[[Value], Value],
        following: Callable[[Value], Value],
        name: str = "i",
    ) -> AbstractContextManager[Value]:
        """A loop over ``first``, ``following(first)``, ... as long as ``condition`` holds of it: halves, doubles."""
        ...

    def while_(self, condition: Callable[[], Value]) -> AbstractContextManager[None]:
        """A loop as long as ``condition()`` holds, which is asked before each time."""
        ...

    def loop(
        self,
        first: Number,
        last: Number,
        step: int,
        body: Callable[[Value, list[Value]], Sequence[Operand]],
        carried: Sequence[Operand],
    ) -> list[Value]:
        """``for_`` as a function: ``body`` maps the carried values to their next ones; returns the last."""
        ...

    def switch(self, value: Value, count: int, body: Callable[[int], None]) -> None:
        """``body(k)`` where the value is ``k``, which is below ``count``."""
        ...

    def scope(self) -> AbstractContextManager[None]:
        """Code that nothing after it makes use of; no branch."""
        ...

    def trial(self, body: Callable[[], None]) -> int:
        """How many statements ``body`` writes; they are taken back."""
        ...

    def break_(self) -> None:
        """Leave the innermost loop."""
        ...

    def return_(self) -> None:
        """Let this thread end."""
        ...

    def function(
        self,
        name: str,
        parameters: Sequence[tuple[str, DType, int]],
        body: Callable[..., Operand],
    ) -> Callable[..., Value]:
        """A function of the dispatch, written once: ``body(builder, *arguments)`` gives its result. Parameters have a name, an element type and a width."""
        ...

    # ------------------------------------------------------------- memory

    def load(self, memory: Memory, index: Index) -> Value:
        """What ``memory[index]`` writes."""
        ...

    def store(self, value: Operand, memory: Memory, index: Index) -> None:
        """What ``memory[index] = value`` writes."""
        ...

    def atomic(self, op: str, memory: Memory, index: Operand, value: Operand) -> None:
        """``memory[index] op= value`` as one step, ``op`` being ``add``, ``and``, ``or``, ``max`` or ``min``. Gives nothing back: no result depends on the order of threads."""
        ...

    def shared(
        self,
        dtype: DType,
        shape: int | Sequence[int],
        name: str,
        width: int = 1,
        *,
        signed: bool = False,
    ) -> Memory:
        """Memory that the threads of a workgroup share: an array, or one item (``memory[()]``) where the shape is empty."""
        ...

    def resize(self, memory: Memory, count: int) -> None:
        """Let shared memory have so many items: for what is known only when all is written. None where there are none."""
        ...

    def table(self, words: Sequence[int], name: str) -> Memory:
        """Known words of 32 bits, which every thread can read."""
        ...

    def array(self, values: Sequence[Operand], name: str) -> Memory:
        """An array of this thread alone that begins with these values."""
        ...

    # ------------------------------------------------------------- threads among each other

    def barrier(self, *, buffers: bool = False) -> None:
        """Wait until every thread of the workgroup has come here: what any wrote to shared memory, and to ``buffers``, is then seen by all."""
        ...

    def uniform(self, memory: Memory) -> Value:
        """The item of shared memory that has but one, and a barrier: compilers then know that all threads have the same."""
        ...

    def shuffle_xor(self, value: Operand, mask: int) -> Value:
        """The value of the thread whose number differs in these bits, of those that run in step."""
        ...
