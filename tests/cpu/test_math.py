"""What the CPU computes for each element-wise op, beside NumPy in higher precision."""

import ctypes
import math
import re
from functools import cache

import llvmlite.binding as llvm
import ml_dtypes
import mpmath
import numpy as np
import pytest
from llvmlite import ir

from darner.backends.cpu.runtime.jit import host
from darner.codegen.ir.lanes import note_target
from darner.codegen.ir.math import emit, memory_type
from darner.codegen.ir.remainders import QUADRANT_LIMIT
from darner.graph import dtypes
from darner.graph.dtypes import bf16, bool_, c64, f16, f32, f64, i32
from darner.graph.errors import DarnerError, DTypeError, UnknownNameError
from darner.graph.op import OPS

INTEGERS = (dtypes.i8, dtypes.i16, dtypes.i32, dtypes.i64, dtypes.u8, dtypes.u32)
REAL = tuple(dtype for dtype in dtypes.ALL if dtype is not c64)
FULL = np.longdouble
WIDE = 32
"""Lanes of kernels that are told what vectors this machine has, unless others are too."""


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


# --------------------------------------------------------------------------- running one op


def module_of(op, operands, result, lanes, told):
    """A module whose ``kernel(n, operands..., result)`` applies the op to n elements."""
    module = ir.Module()
    if told or lanes == WIDE:
        note_target(module, host().vector_bytes, True)
    module.triple = llvm.get_process_triple()
    pointer, long = ir.PointerType(), ir.IntType(64)
    signature = ir.FunctionType(ir.VoidType(), [long, *[pointer] * (len(operands) + 1)])
    kernel = ir.Function(module, signature, "kernel")
    entry, loop, end = (kernel.append_basic_block(name) for name in ("entry", "loop", "end"))
    builder = ir.IRBuilder(entry)
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(long)
    index.add_incoming(long(0), entry)
    values = []
    for source, dtype in zip(kernel.args[1:-1], operands, strict=True):
        place = builder.gep(source, [index], source_etype=memory_type(dtype))
        values.append(builder.load(place, typ=memory_type(dtype, lanes), align=1))
    value = emit(op, builder, values, operands, result)
    assert builder.block is loop, "whoever emits keeps the basic block"
    if result is bool_:
        value = builder.zext(value, memory_type(bool_, lanes))
    place = builder.gep(kernel.args[-1], [index], source_etype=memory_type(result))
    builder.store(value, place, align=1)
    following = builder.add(index, long(lanes or 1))
    index.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, kernel.args[0]), loop, end)
    builder.position_at_end(end)
    builder.ret_void()
    return module


class Kernel:
    """A compiled op, to be called with arrays."""

    def __init__(self, op, operands, result, lanes, told):
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module = llvm.parse_assembly(str(module_of(op, operands, result, lanes, told)))
        module.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
        )
        passes = llvm.create_pass_builder(
            machine, llvm.create_pipeline_tuning_options(speed_level=1)
        )
        passes.getModulePassManager().run(module, passes)
        self.assembly = machine.emit_assembly(module)
        self.engine = llvm.create_mcjit_compiler(module, machine)
        self.engine.finalize_object()
        pointers = [ctypes.c_void_p] * (len(operands) + 1)
        address = self.engine.get_function_address("kernel")
        self.function = ctypes.CFUNCTYPE(None, ctypes.c_int64, *pointers)(address)
        self.result, self.lanes = result, lanes or 1

    def __call__(self, *arrays):
        size = arrays[0].size
        padding = -size % self.lanes
        padded = [np.concatenate([array, np.ones(padding, array.dtype)]) for array in arrays]
        out = np.empty(size + padding, self.result.numpy)
        self.function(out.size, *(array.ctypes.data for array in padded), out.ctypes.data)
        return out[:size]


@cache
def kernel(op, operands, result, lanes=16, told=False):
    return Kernel(op, operands, result, lanes, told)


def run(op, *arrays, result=None, lanes=16, told=False):
    operands = tuple(dtypes.dtype(array.dtype) for array in arrays)
    return kernel(op, operands, result or operands[-1], lanes, told)(*arrays)


def reference(op, *arrays, **attributes):
    return OPS[op].rules.reference(*arrays, **attributes)


def distance(got, exact):
    """How far from the exact value, in units in its last place; infinite where NaN or infinity is wrong."""
    info = np.finfo(got.dtype)
    got, kind = got.astype(FULL), got.dtype
    exact = np.asarray(exact, FULL)
    size = np.clip(np.where(np.isfinite(exact), np.abs(exact), 1), FULL(info.tiny), None)
    unit = np.exp2(np.floor(np.log2(size)) - info.nmant)
    overflow = np.isinf(exact.astype(kind)) & (got == exact.astype(kind))
    off = np.where(overflow | (np.isnan(got) & np.isnan(exact)), 0, np.abs(got - exact) / unit)
    return np.where(np.isnan(off), np.inf, off).astype(float)


def same(got, expected):
    """Equal values, NaN where NaN is; NumPy's own test does not know the NaN of bf16."""
    assert got.dtype == np.asarray(expected).dtype or got.dtype == bool
    expected = np.asarray(expected)
    if got.dtype == bf16.numpy:
        got, expected = got.astype(np.float32), expected.astype(np.float32)
    np.testing.assert_array_equal(got, expected)


def check(got, exact, bound, *operands):
    off = distance(got, exact)
    worst = int(np.argmax(off))
    where = [operand[worst] for operand in operands]
    assert off[worst] <= bound, f"at {where}: {got[worst]!r}, not {exact[worst]!r}"
    zero = (np.asarray(exact) == 0) & (got == 0)
    same(np.signbit(got[zero]), np.signbit(exact[zero]))


def special(dtype):
    info = np.finfo(dtype.numpy)
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.0, 88.7, 89.4, 103.9, 709.7, 710.4, 745.1]
    values += [1e30, 2**24 + 1, math.inf, math.nan]
    edges = [info.smallest_subnormal, info.tiny, info.max, info.eps]
    positive = np.concatenate([np.array(values).astype(dtype.numpy), np.array(edges, dtype.numpy)])
    return np.concatenate([positive, -positive])


def bit_patterns(dtype, count, seed=0):
    generator = np.random.default_rng(seed)
    return np.frombuffer(generator.bytes(count * dtype.itemsize), dtype.numpy)


def grid(dtype, count):
    """Every size of number: even steps in several ranges, all exponents, and the special values."""
    generator = np.random.default_rng(1)
    spans = [generator.uniform(-a, a, count).astype(dtype.numpy) for a in (1, 2, 12, 110, 800, 1e5)]
    return np.concatenate([special(dtype), *spans, bit_patterns(dtype, 4 * count)])


# --------------------------------------------------------------------------- functions of one float

FUNCTIONS = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "recip": lambda x: 1 / x,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
}
ERROR = {"erf": math.erf, "erfc": math.erfc}
# Units in the last place; 2 for the rest.
F64_BOUNDS = {"tan": 3.5, "asin": 2.5, "sinh": 2.5, "erfc": 3.5}


@pytest.mark.parametrize("op", [*FUNCTIONS, *ERROR])
def test_f32_functions_are_within_two_units_everywhere(op):
    x = grid(f32, 2000 if op in ERROR else 10_000)
    function = np.vectorize(ERROR[op]) if op in ERROR else FUNCTIONS[op]
    check(run(op, x), function(x.astype(np.float64)), 2, x)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize("op", ["exp", "cosh", "tanh", "pow"])
def test_a_machine_that_scales_by_powers_of_two_gives_the_same_bits(op, dtype):
    x = grid(dtype, 2000)
    operands = (x, np.roll(x, 7)) if op == "pow" else (x,)
    same(run(op, *operands, lanes=WIDE), run(op, *operands))


@pytest.mark.parametrize("lanes", [WIDE, 3, None])
def test_a_machine_that_looks_up_has_erf_within_two_units_in_every_lane(lanes):
    x = np.concatenate([grid(f32, 2000), np.linspace(-4.1, 4.1, 60_001, dtype=np.float32)])
    found = run("erf", x, lanes=lanes, told=True)
    check(found, np.vectorize(math.erf)(x.astype(np.float64)), 2, x)
    same(found, run("erf", x, lanes=16, told=True))


@pytest.mark.parametrize("op", FUNCTIONS)
def test_f64_functions_are_within_their_bounds(op):
    x = grid(f64, 5000)
    check(run(op, x), FUNCTIONS[op](x.astype(FULL)), F64_BOUNDS.get(op, 2), x)


def in_parts(number):
    """An mpmath number as a long double."""
    high = float(number)
    return FULL(high) + FULL(float(number - high)) if math.isfinite(high) else FULL(high)


@pytest.mark.parametrize("op", ERROR)
def test_f64_error_functions_are_within_their_bounds(op):
    generator = np.random.default_rng(2)
    x = np.concatenate([generator.uniform(-2, 2, 500), generator.uniform(-7, 27, 500)])
    with mpmath.workdps(40):
        exact = np.array([in_parts(getattr(mpmath, op)(mpmath.mpf(float(v)))) for v in x])
    check(run(op, x), exact, F64_BOUNDS.get(op, 2), x)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300, 5e-324])
    check(run(op, edges), np.vectorize(ERROR[op])(edges), 0, edges)


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_large_angles_are_reduced_exactly(op, dtype):
    limit = QUADRANT_LIMIT[dtype.bits]
    span = np.log(limit), np.log(float(np.finfo(dtype.numpy).max))
    x = np.exp(np.random.default_rng(3).uniform(*span, 300)).astype(dtype.numpy)
    hard = np.array([limit, np.nextafter(limit, np.inf), 2.0**60 + 2**20, 16367173 * 2.0**72])
    x = np.concatenate([x, -x, hard.astype(dtype.numpy), np.ones(5, dtype.numpy)])
    with mpmath.workdps(400):
        exact = np.array([in_parts(getattr(mpmath, op)(mpmath.mpf(float(v)))) for v in x])
    check(run(op, x), exact, F64_BOUNDS.get(op, 2), x)


@pytest.mark.parametrize("op", ["neg", "abs", "sign", "square", "floor", "ceil", "trunc", "round"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_exact_functions_of_floats_equal_the_reference(op, dtype):
    x = np.concatenate([special(dtype) if not dtype.is_half else [], bit_patterns(dtype, 4000)])
    x = x.astype(dtype.numpy)
    same(run(op, x), reference(op, x))


@pytest.mark.parametrize("op", ["is_nan", "is_inf", "is_finite"])
@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_kinds_of_floats_are_told_apart(op, dtype):
    x = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-30, 3e4]).astype(dtype.numpy)
    same(run(op, x, result=bool_), reference(op, x))


# --------------------------------------------------------------------------- functions of two floats


def two(dtype):
    """Pairs: every special value with every other, ordinary numbers, and random bits."""
    values = special(dtype)
    ordinary = np.random.default_rng(4).normal(size=(2, 4000)).astype(dtype.numpy) * 50
    bits = bit_patterns(dtype, 8000).reshape(2, -1)
    a, b = np.meshgrid(values, values)
    return np.concatenate([[a.ravel(), b.ravel()], ordinary, bits], axis=1)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize(
    ("op", "bound"),
    [
        *[
            (op, 0)
            for op in ["add", "sub", "mul", "div", "chain", "remainder", "maximum", "minimum"]
        ],
        ("floor_divide", 1),
    ],
)
def test_arithmetic_of_floats_equals_the_reference(op, bound, dtype):
    a, b = two(dtype)
    check(run(op, a, b), reference(op, a, b), bound, a, b)


def power(a, b):
    """NumPy's, with the roots that ``sqrt`` gives at -0 and -inf too."""
    root = np.sqrt(a)
    return np.where(b == 0.5, root, np.where(b == -0.5, 1 / root, np.power(a, b)))


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize(("op", "bound"), [("pow", 2), ("atan2", 2.5)])
def test_power_and_angle_are_close_and_treat_edges_as_numpy(op, bound, dtype):
    a, b = two(dtype)
    generator = np.random.default_rng(5)
    size = np.exp(generator.uniform(-40, 40, 20_000))
    a = np.concatenate([a, size]).astype(dtype.numpy)
    b = np.concatenate([b, generator.uniform(-3, 3, 20_000)]).astype(dtype.numpy)
    function = power if op == "pow" else np.arctan2
    check(run(op, a, b), function(a.astype(FULL), b.astype(FULL)), bound, a, b)


def test_chain_lets_nothing_through_a_zero():
    a = np.array([0.0, -0.0, 0.0, 2.0], np.float32)
    b = np.array([np.inf, np.nan, 3.0, np.inf], np.float32)
    same(run("chain", a, b), np.array([0, 0, 0, np.inf], np.float32))


# --------------------------------------------------------------------------- 16-bit floats


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("op", ["exp", "tanh", "log", "erf", "rsqrt", "sin", "recip"])
def test_16_bit_functions_are_rounded_once(op, dtype):
    every = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    wide = run(op, every.astype(np.float32)).astype(dtype.numpy)
    same(run(op, every), wide)


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("op", ["add", "mul", "div", "maximum", "remainder"])
def test_16_bit_arithmetic_is_that_of_f32_rounded(op, dtype):
    a, b = bit_patterns(dtype, 20_000).reshape(2, -1)
    wide = reference(op, a.astype(np.float32), b.astype(np.float32)).astype(dtype.numpy)
    same(run(op, a, b), wide)


def test_f64_becomes_16_bits_with_one_rounding():
    # Halfway between two neighbours and a little above: by way of f32 it would look like a tie.
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 2.0**-8 + 2.0**-40, -1e300, 1e-300])
    assert run("cast", x, result=f16)[0] == np.float16(1 + 2.0**-10)
    assert run("cast", x, result=f16)[1] == 1
    assert run("cast", x, result=bf16)[2] == ml_dtypes.bfloat16(1 + 2.0**-7)
    same(run("cast", x, result=f16)[3:], np.float16([-np.inf, 0]))


# --------------------------------------------------------------------------- integers and bools


def integers(dtype, count=3000):
    """Random bits, small numbers, and the limits."""
    low, high = dtype.limits
    small = np.arange(-5 if dtype.signed else 0, 7)
    edges = np.array([low, low + 1, high - 1, high, 0])
    chosen = np.concatenate([small, edges]).astype(dtype.numpy)
    a, b = (part.ravel() for part in np.meshgrid(chosen, chosen))
    bits = bit_patterns(dtype, 2 * count).reshape(2, -1)
    return np.concatenate([[a, b], bits], axis=1)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "op",
    [
        *["add", "sub", "mul", "floor_divide", "remainder", "maximum", "minimum"],
        *["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"],
    ],
)
def test_integer_arithmetic_equals_the_reference(op, dtype):
    a, b = integers(dtype)
    same(run(op, a, b), reference(op, a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_powers_wrap_around(dtype):
    a, b = integers(dtype, 500)
    b = np.abs(b.astype(np.int64) % 70).astype(dtype.numpy)
    same(run("pow", a, b), reference("pow", a, b))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ["neg", "abs", "sign", "square", "floor", "round"])
def test_integer_functions_equal_the_reference(op, dtype):
    x = integers(dtype)[0]
    same(run(op, x), reference(op, x))


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("op", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons_equal_the_reference(op, dtype):
    if dtype is bool_:
        a, b = np.array([[False, False, True, True], [False, True, False, True]])
    elif dtype.is_int:
        a, b = integers(dtype, 100)
    else:
        values = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
        a, b = (part.ravel() for part in np.meshgrid(values, values))
    same(run(op, a, b, result=bool_), reference(op, a, b))


@pytest.mark.parametrize("op", ["logical_and", "logical_or", "logical_xor", "add", "mul"])
def test_logic_equals_the_reference(op):
    a, b = np.array([[False, False, True, True], [False, True, False, True]])
    same(run(op, a, b), reference(op, a, b))


def test_not_turns_bools_around():
    same(run("logical_not", np.array([True, False])), [False, True])


@pytest.mark.parametrize("dtype", REAL)
def test_where_selects_and_never_mixes(dtype):
    condition = np.array([True, False, True, False])
    a, b = np.array([[1, 1, 0, 0], [0, 0, 1, 1]]).astype(dtype.numpy)
    same(run("where", condition, a, b), np.where(condition, a, b))


@pytest.mark.parametrize("target", REAL)
@pytest.mark.parametrize("source", REAL)
def test_casts_equal_the_reference(source, target):
    if source is bool_:
        x = np.array([True, False])
    elif source.is_int:
        x = integers(source)[0]
        if target.is_half:  # NumPy goes to 16 bits from wide integers by a way of its own
            x = x[np.abs(x.astype(np.float64)) <= 2**24]
    else:
        values = [0, -0.0, 0.4, -0.6, 127.9, -128.9, 255.5, 2**31, -(2**31), 2**32, 2**63, -(2**63)]
        x = np.array([*values, np.inf, -np.inf, np.nan]).astype(source.numpy)
        x = np.concatenate([x, bit_patterns(source, 4000)])
    got, expected = run("cast", x, result=target), reference("cast", x, to=target)
    same(got, expected)


def test_integers_are_divided_as_f32():
    a, b = np.array([[7, 1, -8], [2, 3, 0]], np.int32)
    expected = a.astype(np.float32) / b.astype(np.float32)
    same(run("div", a, b, result=f32), expected)


# --------------------------------------------------------------------------- the table


def test_every_element_wise_primitive_has_scalar_code():
    primitives = [
        op
        for op in OPS.values()
        if "elementwise" in op.traits and not op.is_composite and op.builtin
    ]
    assert len(primitives) > 60
    without = [op for op in primitives if op.rules.emit is None]
    # Those of complex numbers alone say what the parts of the result are.
    assert [op.name for op in without if op.rules.pairs is None] == []
    assert {op.family for op in without} == {"complex numbers"}


@pytest.mark.parametrize("lanes", [None, 1, 3, 4, 8])
@pytest.mark.parametrize("op", ["exp", "sin", "erf", "tan"])
def test_any_number_of_lanes_computes_the_same_bits(op, lanes):
    x = np.concatenate([grid(f32, 50), np.float32([1e30, 2e20])])
    same(run(op, x, lanes=lanes), run(op, x))


# What is called by name or by an address loaded into a register; constants and labels start with a dot.
SYMBOLS = r"(?:\bcallq?\s+|\bbl\s+|movabsq\s+\$)([A-Za-z_][\w.]*)"


@pytest.mark.parametrize("op", [*FUNCTIONS, *ERROR, "pow", "atan2", "remainder", "floor", "round"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_no_library_is_called(op, dtype):
    operands = (dtype,) * len(OPS[op].operands)
    called = re.findall(SYMBOLS, kernel(op, operands, dtype).assembly)
    assert all(name.startswith("darner.") for name in called), called


def test_an_unknown_op_is_refused_by_name():
    builder = ir.IRBuilder()
    with pytest.raises(UnknownNameError, match="'tanhh'; did you mean 'tanh'"):
        emit("tanhh", builder, [], [], f32)


@pytest.mark.parametrize(
    ("op", "operands"), [("exp", [c64]), ("bitwise_and", [f32, f32]), ("add", [f32, i32])]
)
def test_types_without_code_are_refused(op, operands):
    values = [ir.Constant(ir.FloatType(), 1.0)] * len(operands)
    with pytest.raises(DTypeError, match=op) as raised:
        emit(op, ir.IRBuilder(), values, operands, operands[0])
    assert isinstance(raised.value, DarnerError)
