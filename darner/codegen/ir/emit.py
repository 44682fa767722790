"""Loops, addresses, vectors and storage types: the helpers that kernels are written with.

Loops have phi nodes and vectors are explicit, so that the code is good without an optimizer's passes;
code generation is then all that compiling costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...graph.errors import ArgumentError
from .index import Index, i64
from .interleave import collect, is_near, spread
from .lanes import Lane
from .types import (
    ACCUMULATOR,
    STORAGE_BYTES,
    Builder,
    Function,
    LoopBody,
    Mask,
    Module,
    Pointer,
    Type,
    Value,
)


def ir() -> Any:
    """Llvmlite's IR module, imported on first use."""
    import llvmlite.ir as module

    return module


def accumulator_of(dtype: str) -> str:
    """The type that sums of ``dtype`` are kept in: its own, or f32 for the 16-bit floats."""
    if dtype not in ACCUMULATOR:
        raise ArgumentError(
            f"contractions of {dtype} have no CPU kernel; it has {', '.join(ACCUMULATOR)}"
        )
    return ACCUMULATOR[dtype]


def element_type(dtype: str) -> Type:
    """The IR type of one stored element; bf16 is kept as its 16 bits."""
    types = ir()
    accumulator_of(dtype)
    if dtype == "f64":
        return types.DoubleType()
    if dtype == "f32":
        return types.FloatType()
    return types.HalfType() if dtype == "f16" else types.IntType(16)


def vector_type(dtype: str, lanes: int) -> Type:
    """``lanes`` elements of ``dtype``, or the element itself for one lane."""
    element = element_type(dtype)
    return ir().VectorType(element, lanes) if lanes > 1 else element


def zero(dtype: str, lanes: int) -> Value:
    """A vector of zeros."""
    return ir().Constant(vector_type(dtype, lanes), None if lanes > 1 else 0.0)


def offset(builder: Builder, pointer: Pointer, dtype: str, *terms: Index) -> Pointer:
    """``pointer`` moved by the sum of ``terms``, in elements."""
    first, *others = terms
    total = i64(first)
    for term in others:
        total = builder.add(total, i64(term))
    return builder.gep(pointer, [total], source_etype=element_type(dtype))


def minimum(builder: Builder, left: Value, right: Value) -> Value:
    """The smaller of two 64-bit values."""
    return builder.select(builder.icmp_signed("<", left, right), left, right)


def maximum(builder: Builder, left: Value, right: Value) -> Value:
    """The larger of two 64-bit values."""
    return builder.select(builder.icmp_signed(">", left, right), left, right)


def loop(
    builder: Builder,
    start: Value,
    stop: Value,
    step: int,
    body: LoopBody,
    carried: Sequence[Value] = (),
) -> list[Value]:
    """``for index in range(start, stop, step)``; ``body`` maps the carried values to their next ones."""
    types = ir()
    before = builder.block
    head = builder.append_basic_block("head")
    inside = builder.append_basic_block("body")
    after = builder.append_basic_block("after")
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(types.IntType(64))
    index.add_incoming(start, before)
    phis = [builder.phi(value.type) for value in carried]
    for phi, value in zip(phis, carried, strict=True):
        phi.add_incoming(value, before)
    values: list[Value] = list(phis)
    builder.cbranch(builder.icmp_signed("<", index, stop), inside, after)
    builder.position_at_end(inside)
    following = body(index, values) or ()
    last = builder.block
    index.add_incoming(builder.add(index, i64(step)), last)
    for phi, value in zip(phis, following, strict=True):
        phi.add_incoming(value, last)
    builder.branch(head)
    builder.position_at_end(after)
    return values


def broadcast(builder: Builder, scalar: Value, lanes: int) -> Value:
    """A vector with ``scalar`` in every lane."""
    if lanes == 1:
        return scalar
    types = ir()
    vector = types.Constant(types.VectorType(scalar.type, lanes), types.Undefined)
    vector = builder.insert_element(vector, scalar, types.Constant(types.IntType(32), 0))
    return builder.shuffle_vector(vector, vector, lane_numbers([0] * lanes))


def lane_numbers(numbers: Sequence[int]) -> Value:
    """A constant vector of 32-bit lane numbers."""
    return _lane_numbers(tuple(numbers))


@lru_cache(maxsize=4096)
def _lane_numbers(numbers: tuple[int, ...]) -> Value:
    # A constant belongs to no module, and has its text made once.
    types = ir()
    return types.Constant(types.VectorType(types.IntType(32), len(numbers)), list(numbers))


def constant_words(builder: Builder, name: str, numbers: Sequence[int]) -> Pointer:
    """A constant of the module: 64-bit numbers, one after the other."""
    types = ir()
    kind = types.ArrayType(types.IntType(64), len(numbers))
    table = types.GlobalVariable(builder.module, kind, builder.module.get_unique_name(name))
    table.initializer = types.Constant(kind, list(numbers))
    table.global_constant = True
    table.linkage = "internal"
    return table


def lane_mask(builder: Builder, count: Value, lanes: int) -> Value:
    """The lanes below ``count``, a 64-bit value that may exceed ``lanes``."""
    types = ir()
    number = types.VectorType(types.IntType(64), lanes)
    return builder.icmp_signed(
        "<", types.Constant(number, list(range(lanes))), broadcast(builder, count, lanes)
    )


def widen(builder: Builder, value: Value, dtype: str) -> Value:
    """A loaded value of ``dtype`` as its accumulator type."""
    types = ir()
    if dtype in ("f32", "f64"):
        return value
    lanes = value.type.count if isinstance(value.type, types.VectorType) else 1
    if dtype == "f16":
        return Lane(builder, value).refloated(32).value
    wide = types.VectorType(types.IntType(32), lanes) if lanes > 1 else types.IntType(32)
    shift = types.Constant(wide, [16] * lanes if lanes > 1 else 16)
    return builder.bitcast(builder.shl(builder.zext(value, wide), shift), vector_type("f32", lanes))


def narrow(builder: Builder, value: Value, dtype: str) -> Value:
    """An accumulated vector as ``dtype``, rounded to the nearest, ties to even."""
    types = ir()
    if dtype in ("f32", "f64"):
        return value
    lanes = value.type.count
    if dtype == "f16":
        return Lane(builder, value).refloated(16).value
    wide = types.VectorType(types.IntType(32), lanes)

    def constant(number: int) -> Value:
        return types.Constant(wide, [number] * lanes)

    bits = builder.bitcast(value, wide)
    odd = builder.and_(builder.lshr(bits, constant(16)), constant(1))
    rounded = builder.add(bits, builder.add(odd, constant(0x7FFF)))
    # Rounding could carry a NaN into infinity: it keeps its upper half, made quiet.
    quiet = builder.or_(bits, constant(0x400000))
    chosen = builder.select(builder.fcmp_unordered("uno", value, value), quiet, rounded)
    return builder.trunc(
        builder.lshr(chosen, constant(16)), types.VectorType(types.IntType(16), lanes)
    )


def load(
    builder: Builder,
    pointer: Pointer,
    dtype: str,
    lanes: int,
    mask: Value | None = None,
    stride: int = 1,
) -> Value:
    """A vector of the accumulator type, its lanes ``stride`` apart; those outside ``mask`` read nothing and are 0."""
    align = STORAGE_BYTES[dtype]
    kind = vector_type(dtype, lanes)
    if mask is None and stride == 1:
        return widen(builder, builder.load(pointer, typ=kind, align=align), dtype)
    types = ir()
    if is_near(stride, lanes, align):

        def read(part: int, begin: int) -> Value:
            some = None if mask is None else spread(builder, mask, stride, part)
            return load(builder, offset(builder, pointer, dtype, begin), dtype, lanes, some)

        return collect(builder, kind, stride, read, mask is None)
    mask = _every_lane(lanes) if mask is None else mask
    name, pointer = _masked(builder, "load", pointer, dtype, lanes, stride)
    arguments = [pointer.type, types.IntType(32), mask.type, kind]
    function = intrinsic(builder.module, name, kind, arguments)
    alignment, nothing = types.Constant(types.IntType(32), align), types.Constant(kind, None)
    return widen(builder, builder.call(function, [pointer, alignment, mask, nothing]), dtype)


def store(
    builder: Builder,
    value: Value,
    pointer: Pointer,
    dtype: str,
    mask: Mask | None = None,
    non_temporal: bool = False,
) -> None:
    """Store an accumulated vector, only where ``mask`` is set.

    A ``non_temporal`` store of a whole vector goes past the cache, to a multiple of its size: where another core has read the line before, a plain store
    waits until that lets go of it. A fence has to come before others are told.

    LLVM 22 turns a store that narrows, under a mask it knows to be the first lane's, into one of the wide element, which
    overwrites the neighbour: so that lane is written by itself.
    """
    types = ir()
    align = STORAGE_BYTES[dtype]
    value = narrow(builder, value, dtype)
    if mask is None:
        whole = align * value.type.count if non_temporal else align
        written = builder.store(value, pointer, align=whole)
        if non_temporal:
            one = types.Constant(types.IntType(32), 1)
            written.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return
    if align < 4:
        zero_lane = types.Constant(types.IntType(32), 0)
        with builder.if_then(builder.extract_element(mask, zero_lane)):
            first = builder.extract_element(value, zero_lane)
            builder.store(first, pointer, align=align)
        mask = builder.insert_element(mask, types.Constant(types.IntType(1), 0), zero_lane)
    _store_masked(builder, value, pointer, dtype, mask, 1)


def store_first_lane(builder: Builder, value: Value, pointer: Pointer, dtype: str) -> None:
    """Store the first lane of an accumulated vector, where there are no others."""
    types = ir()
    value = narrow(builder, value, dtype)
    first = builder.extract_element(value, types.Constant(types.IntType(32), 0))
    builder.store(first, pointer, align=STORAGE_BYTES[dtype])


class Spacing(NamedTuple):
    """How lanes lie in memory: ``stride`` elements apart, and none behind the first ``most``."""

    stride: int
    most: int | None = None


def store_strided(
    builder: Builder,
    value: Value,
    pointer: Pointer,
    dtype: str,
    spacing: Spacing,
    mask: Mask | None = None,
) -> None:
    """Store an accumulated vector whose lanes lie apart, only where ``mask`` is set."""
    stride, most = spacing
    if stride == 1:
        store(builder, value, pointer, dtype, mask)
        return
    value = narrow(builder, value, dtype)
    lanes = value.type.count
    mask = _every_lane(lanes) if mask is None else mask
    if is_near(stride, lanes, STORAGE_BYTES[dtype]):
        reach = (min(most or lanes, lanes) - 1) * stride
        for part in range(reach // lanes + 1):
            address = offset(builder, pointer, dtype, part * lanes)
            held, some = (spread(builder, item, stride, part) for item in (value, mask))
            store(builder, held, address, dtype, some)
        return
    _store_masked(builder, value, pointer, dtype, mask, stride)


def _store_masked(
    builder: Builder, value: Value, pointer: Pointer, dtype: str, mask: Mask, stride: int
) -> None:
    """Store a narrowed vector where a mask is set."""
    types = ir()
    name, pointer = _masked(builder, "store", pointer, dtype, value.type.count, stride)
    arguments = [value.type, pointer.type, types.IntType(32), mask.type]
    function = intrinsic(builder.module, name, types.VoidType(), arguments)
    align = types.Constant(types.IntType(32), STORAGE_BYTES[dtype])
    builder.call(function, [value, pointer, align, mask])


def _every_lane(lanes: int) -> Value:
    types = ir()
    return types.Constant(types.VectorType(types.IntType(1), lanes), [1] * lanes)


def _masked(
    builder: Builder, act: str, pointer: Pointer, dtype: str, lanes: int, stride: int
) -> tuple[str, Value]:
    """The name of a masked access and what it takes: a pointer, or one for each strided lane."""
    types = ir()
    suffix = f"v{lanes}{_suffix(dtype)}"
    if stride == 1:
        return f"llvm.masked.{act}.{suffix}.p0", pointer
    number = types.VectorType(types.IntType(64), lanes)
    steps = types.Constant(number, [lane * stride for lane in range(lanes)])
    places = builder.gep(pointer, [steps], source_etype=element_type(dtype))
    # A gep by a vector gives a vector of pointers, which llvmlite does not infer.
    places.type = types.VectorType(types.PointerType(), lanes)
    spread = {"load": "gather", "store": "scatter"}[act]
    return f"llvm.masked.{spread}.{suffix}.v{lanes}p0", places


def fused_multiply_add(
    builder: Builder, left: Value, right: Value, total: Value, lanes: int
) -> Value:
    """``left * right + total``, rounded once."""
    kind = total.type
    element = "f64" if "double" in str(kind) else "f32"
    name = f"llvm.fma.v{lanes}{element}" if lanes > 1 else f"llvm.fma.{element}"
    function = intrinsic(builder.module, name, kind, [kind, kind, kind])
    return builder.call(function, [left, right, total])


def lane_sum(builder: Builder, value: Value) -> Value:
    """The sum of a vector's lanes, added in any order."""
    kind = value.type.element
    element = "f64" if "double" in str(kind) else "f32"
    name = f"llvm.vector.reduce.fadd.v{value.type.count}{element}"
    function = intrinsic(builder.module, name, kind, [kind, value.type])
    return builder.call(function, [ir().Constant(kind, 0.0), value], fastmath=("reassoc",))


def prefetch(builder: Builder, pointer: Pointer, near: int = 3, write: bool = False) -> None:
    """Ask for the cache line of ``pointer``, which need not be a valid address; ``near`` 3 is the first cache, 2 the second.

    ``write`` says that it will be written: no other core may keep it.
    """
    types = ir()
    word = types.IntType(32)
    arguments = [types.PointerType(), word, word, word]
    function = intrinsic(builder.module, "llvm.prefetch.p0", types.VoidType(), arguments)
    numbers = (int(write), near, 1)
    builder.call(function, [pointer, *(types.Constant(word, value) for value in numbers)])


def intrinsic(module: Module, name: str, result: Type, arguments: Sequence[Type]) -> Function:
    """The intrinsic of that name, declared once in a module."""
    types = ir()
    if name in module.globals:
        return module.globals[name]
    return types.Function(module, types.FunctionType(result, arguments), name)


def _suffix(dtype: str) -> str:
    return {"f32": "f32", "f64": "f64", "f16": "f16", "bf16": "i16"}[dtype]
