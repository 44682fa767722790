"""Small helpers that write the IR of contractions: loops, addresses, vectors, storage types.

Loops are written with phi nodes and vectors explicitly, so that the code is good without an optimizer's passes;
code generation is then all that compiling costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ...graph.errors import ArgumentError
from .interleave import collect, is_near, spread
from .lanes import Lane
from .types import ACCUMULATOR, STORAGE_BYTES


def ir() -> Any:
    """Llvmlite's IR module, imported on first use."""
    import llvmlite.ir as module  # type: ignore[import-untyped]

    return module


def accumulator_of(dtype: str) -> str:
    """The type that sums of ``dtype`` are kept in: its own, or f32 for the 16-bit floats."""
    if dtype not in ACCUMULATOR:
        raise ArgumentError(
            f"contractions of {dtype} have no CPU kernel; it has {', '.join(ACCUMULATOR)}"
        )
    return ACCUMULATOR[dtype]


def element_type(dtype: str) -> Any:
    """The IR type of one stored element; bf16 is kept as its 16 bits."""
    types = ir()
    accumulator_of(dtype)
    if dtype == "f64":
        return types.DoubleType()
    if dtype == "f32":
        return types.FloatType()
    return types.HalfType() if dtype == "f16" else types.IntType(16)


@lru_cache(maxsize=4096)
def i64(value: int) -> Any:
    """A 64-bit constant."""
    return ir().Constant(ir().IntType(64), value)


def vector_type(dtype: str, lanes: int) -> Any:
    """``lanes`` elements of ``dtype``, or the element itself for one lane."""
    element = element_type(dtype)
    return ir().VectorType(element, lanes) if lanes > 1 else element


def zero(dtype: str, lanes: int) -> Any:
    """A vector of zeros."""
    return ir().Constant(vector_type(dtype, lanes), None if lanes > 1 else 0.0)


def offset(builder: Any, pointer: Any, dtype: str, *terms: Any) -> Any:
    """``pointer`` moved by the sum of ``terms``, in elements."""
    total = None
    for term in terms:
        term = i64(term) if isinstance(term, int) else term
        total = term if total is None else builder.add(total, term)
    return builder.gep(pointer, [total], source_etype=element_type(dtype))


def minimum(builder: Any, left: Any, right: Any) -> Any:
    """The smaller of two 64-bit values."""
    return builder.select(builder.icmp_signed("<", left, right), left, right)


def maximum(builder: Any, left: Any, right: Any) -> Any:
    """The larger of two 64-bit values."""
    return builder.select(builder.icmp_signed(">", left, right), left, right)


def loop(
    builder: Any,
    start: Any,
    stop: Any,
    step: int,
    body: Callable[[Any, Sequence[Any]], Sequence[Any] | None],
    carried: Sequence[Any] = (),
) -> list[Any]:
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
    values = []
    for value in carried:
        phi = builder.phi(value.type)
        phi.add_incoming(value, before)
        values.append(phi)
    builder.cbranch(builder.icmp_signed("<", index, stop), inside, after)
    builder.position_at_end(inside)
    following = body(index, values) or ()
    last = builder.block
    index.add_incoming(builder.add(index, i64(step)), last)
    for phi, value in zip(values, following, strict=True):
        phi.add_incoming(value, last)
    builder.branch(head)
    builder.position_at_end(after)
    return values


def broadcast(builder: Any, scalar: Any, lanes: int) -> Any:
    """A vector with ``scalar`` in every lane."""
    if lanes == 1:
        return scalar
    types = ir()
    vector = types.Constant(types.VectorType(scalar.type, lanes), types.Undefined)
    vector = builder.insert_element(vector, scalar, types.Constant(types.IntType(32), 0))
    return builder.shuffle_vector(vector, vector, lane_numbers([0] * lanes))


def lane_numbers(numbers: Sequence[int]) -> Any:
    """A constant vector of 32-bit lane numbers."""
    return _lane_numbers(tuple(numbers))


@lru_cache(maxsize=4096)
def _lane_numbers(numbers: tuple[int, ...]) -> Any:
    # A constant belongs to no module, and has its text made once.
    types = ir()
    return types.Constant(types.VectorType(types.IntType(32), len(numbers)), list(numbers))


def constant_words(builder: Any, name: str, numbers: Sequence[int]) -> Any:
    """A constant of the module: 64-bit numbers, one after the other."""
    types = ir()
    kind = types.ArrayType(types.IntType(64), len(numbers))
    table = types.GlobalVariable(builder.module, kind, builder.module.get_unique_name(name))
    table.initializer = types.Constant(kind, list(numbers))
    table.global_constant = True
    table.linkage = "internal"
    return table


def lane_mask(builder: Any, count: Any, lanes: int) -> Any:
    """The lanes below ``count``, a 64-bit value that may exceed ``lanes``."""
    types = ir()
    number = types.VectorType(types.IntType(64), lanes)
    return builder.icmp_signed(
        "<", types.Constant(number, list(range(lanes))), broadcast(builder, count, lanes)
    )


def widen(builder: Any, value: Any, dtype: str) -> Any:
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


def narrow(builder: Any, value: Any, dtype: str) -> Any:
    """An accumulated vector as ``dtype``, rounded to the nearest, ties to even."""
    types = ir()
    if dtype in ("f32", "f64"):
        return value
    lanes = value.type.count
    if dtype == "f16":
        return Lane(builder, value).refloated(16).value
    wide = types.VectorType(types.IntType(32), lanes)

    def constant(number: int) -> Any:
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
    builder: Any, pointer: Any, dtype: str, lanes: int, mask: Any = None, stride: int = 1
) -> Any:
    """A vector of the accumulator type, its lanes ``stride`` apart; those outside ``mask`` read nothing and are 0."""
    align = STORAGE_BYTES[dtype]
    kind = vector_type(dtype, lanes)
    if mask is None and stride == 1:
        return widen(builder, builder.load(pointer, typ=kind, align=align), dtype)
    types = ir()
    if is_near(stride, lanes, align):

        def read(part: int, begin: int) -> Any:
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
    builder: Any,
    value: Any,
    pointer: Any,
    dtype: str,
    mask: Any = None,
    stride: int = 1,
    alone: bool = False,
    most: int | None = None,
    past: bool = False,
) -> None:
    """Store an accumulated vector, its lanes ``stride`` elements apart, only where ``mask`` is set, in none but the first ``most`` lanes.

    ``past`` has a whole vector go past the cache, to a multiple of its size: where another core has read the line before, a plain store waits until that lets
    go of it. A fence has to come before others are told.

    LLVM 22 turns a store that narrows, under a mask it knows to be the first lane's, into one of the wide element, which
    overwrites the neighbour: so that lane is written by itself. ``alone`` says that the others do not exist.
    """
    types = ir()
    align = STORAGE_BYTES[dtype]
    value = narrow(builder, value, dtype)
    if alone:
        first = builder.extract_element(value, types.Constant(types.IntType(32), 0))
        builder.store(first, pointer, align=align)
        return
    if stride == 1 and mask is None:
        written = builder.store(value, pointer, align=align * value.type.count if past else align)
        if past:
            one = types.Constant(types.IntType(32), 1)
            written.set_metadata("nontemporal", builder.module.add_metadata([one]))
        return
    lanes = value.type.count
    mask = _every_lane(lanes) if mask is None else mask
    if stride == 1 and align < 4:
        zero_lane = types.Constant(types.IntType(32), 0)
        with builder.if_then(builder.extract_element(mask, zero_lane)):
            first = builder.extract_element(value, zero_lane)
            builder.store(first, pointer, align=align)
        mask = builder.insert_element(mask, types.Constant(types.IntType(1), 0), zero_lane)
    if is_near(stride, lanes, align):
        reach = (min(most or lanes, lanes) - 1) * stride
        for part in range(reach // lanes + 1):
            place = offset(builder, pointer, dtype, part * lanes)
            one, some = (spread(builder, item, stride, part) for item in (value, mask))
            store(builder, one, place, dtype, some)
        return
    name, pointer = _masked(builder, "store", pointer, dtype, lanes, stride)
    arguments = [value.type, pointer.type, types.IntType(32), mask.type]
    function = intrinsic(builder.module, name, types.VoidType(), arguments)
    builder.call(function, [value, pointer, types.Constant(types.IntType(32), align), mask])


def _every_lane(lanes: int) -> Any:
    types = ir()
    return types.Constant(types.VectorType(types.IntType(1), lanes), [1] * lanes)


def _masked(
    builder: Any, act: str, pointer: Any, dtype: str, lanes: int, stride: int
) -> tuple[str, Any]:
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


def fused_multiply_add(builder: Any, left: Any, right: Any, total: Any, lanes: int) -> Any:
    """``left * right + total``, rounded once."""
    kind = total.type
    element = "f64" if "double" in str(kind) else "f32"
    name = f"llvm.fma.v{lanes}{element}" if lanes > 1 else f"llvm.fma.{element}"
    function = intrinsic(builder.module, name, kind, [kind, kind, kind])
    return builder.call(function, [left, right, total])


def lane_sum(builder: Any, value: Any) -> Any:
    """The sum of a vector's lanes, added in any order."""
    kind = value.type.element
    element = "f64" if "double" in str(kind) else "f32"
    name = f"llvm.vector.reduce.fadd.v{value.type.count}{element}"
    function = intrinsic(builder.module, name, kind, [kind, value.type])
    return builder.call(function, [ir().Constant(kind, 0.0), value], fastmath=("reassoc",))


def prefetch(builder: Any, pointer: Any, near: int = 3, write: bool = False) -> None:
    """Ask for the cache line of ``pointer``, which need not be a valid address; ``near`` 3 is the first cache, 2 the second.

    ``write`` says that it will be written: no other core may keep it.
    """
    types = ir()
    word = types.IntType(32)
    arguments = [types.PointerType(), word, word, word]
    function = intrinsic(builder.module, "llvm.prefetch.p0", types.VoidType(), arguments)
    numbers = (int(write), near, 1)
    builder.call(function, [pointer, *(types.Constant(word, value) for value in numbers)])


def intrinsic(module: Any, name: str, result: Any, arguments: Sequence[Any]) -> Any:
    """The intrinsic of that name, declared once in a module."""
    types = ir()
    if name in module.globals:
        return module.globals[name]
    return types.Function(module, types.FunctionType(result, arguments), name)


def _suffix(dtype: str) -> str:
    return {"f32": "f32", "f64": "f64", "f16": "f16", "bf16": "i16"}[dtype]
