"""What a GPU computes for each element-wise op, beside NumPy in higher precision.

The samples are those of the CPU's tests. Denormal numbers may count as 0, on the way in and on the way out: devices differ.
"""

import math
import re

import ml_dtypes
import mpmath
import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.kernels import check_types
from darner.codegen.simt import families
from darner.codegen.simt.dispatch import Dispatch, Written
from darner.codegen.simt.families import written
from darner.codegen.simt.template import Template
from darner.graph import dtypes
from darner.graph.build import call
from darner.graph.dtypes import bf16, bool_, f16, f32, f64
from darner.graph.errors import UnsupportedError
from darner.graph.op import OPS
from tests.cpu.test_math import (
    ERROR,
    FULL,
    FUNCTIONS,
    INTEGERS,
    REAL,
    bit_patterns,
    distance,
    grid,
    in_parts,
    integers,
    power,
    reference,
    same,
    special,
    two,
)
from tests.gpu import needs_gpu
from tests.gpu.running import NARROW, device, run, run_graph, run_ops

pytestmark = needs_gpu


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def without_denormals(x):
    """The same numbers, the denormal ones as zeros of their sign."""
    small = np.abs(x) < ml_dtypes.finfo(x.dtype).tiny
    return np.where(small, np.copysign(np.zeros_like(x), x), x)


def check(got, function, bound, *operands):
    """Assert units in the last place; a device may take denormal operands for 0, and give 0 for a denormal result."""
    exact = function(*operands)
    tiny = FULL(np.finfo(got.dtype).tiny)
    off = distance(got, exact)
    flushed = distance(got, function(*map(without_denormals, operands)))
    off = np.minimum(off, flushed)
    off = np.where((np.abs(np.asarray(exact, FULL)) < 2 * tiny) & (got == 0), 0, off)
    worst = int(np.argmax(off))
    where = [operand[worst] for operand in operands]
    assert off[worst] <= bound, f"{off[worst]} at {where}: {got[worst]!r}, not {exact[worst]!r}"
    zero = (np.asarray(exact) == 0) & (got == 0)
    same(np.signbit(got[zero]), np.signbit(exact[zero]))


def exactly(got, op, *operands):
    """Assert the reference's values, bit for bit, or those of denormal numbers as 0."""
    expected = reference(op, *operands)
    if not dtypes.dtype(got.dtype).is_float:
        same(got, expected)
        return
    flushed = reference(op, *map(without_denormals, operands))
    for one in (without_denormals(flushed), flushed, without_denormals(expected)):
        expected = np.where((got == one) & (got != expected), one, expected)
    same(got, expected)
    zero = got == 0
    same(np.signbit(got[zero]), np.signbit(expected[zero]))


# --------------------------------------------------------------------------- functions of one float

# Units in the last place; 2 for the rest.
F32_BOUNDS = {"log10": 2.5, "tan": 4, "asin": 2.5, "atan": 2.5, "acosh": 2.5, "erfc": 4}
F64_BOUNDS = {"tan": 3.5, "sinh": 2.5, "cosh": 2.5, "erfc": 4.5}


@pytest.mark.parametrize("op", [*FUNCTIONS, *ERROR])
def test_f32_functions_are_within_their_bounds_everywhere(op):
    x = grid(f32, 500 if op in ERROR else 5000)
    function = np.vectorize(ERROR[op]) if op in ERROR else FUNCTIONS[op]
    check(run(op, x), lambda x: function(x.astype(np.float64)), F32_BOUNDS.get(op, 2), x)


@pytest.mark.parametrize("op", FUNCTIONS)
def test_f64_functions_are_within_their_bounds(op):
    x = grid(f64, 2000)
    check(run(op, x), lambda x: FUNCTIONS[op](x.astype(FULL)), F64_BOUNDS.get(op, 2), x)


@pytest.mark.parametrize("op", ERROR)
def test_f64_error_functions_are_within_their_bounds(op):
    generator = np.random.default_rng(2)
    x = np.concatenate([generator.uniform(-2, 2, 200), generator.uniform(-7, 27, 200)])

    def exact(x):
        with mpmath.workdps(40):
            return np.array([in_parts(getattr(mpmath, op)(mpmath.mpf(float(v)))) for v in x])

    check(run(op, x), exact, F64_BOUNDS.get(op, 2), x)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300])
    check(run(op, edges), np.vectorize(ERROR[op]), 0, edges)


@pytest.mark.parametrize("op", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_angles_of_any_size_are_reduced_exactly(op, dtype):
    span = 0.0, np.log(float(np.finfo(dtype.numpy).max))
    x = np.exp(np.random.default_rng(3).uniform(*span, 300)).astype(dtype.numpy)
    # The second of these two is the double that is nearest to a multiple of pi / 2.
    hard = [16367173 * 2.0**72, *([6381956970095103 * 2.0**797] if dtype is f64 else [])]
    x = np.concatenate([x, -x, np.array(hard, dtype.numpy), np.array([np.inf], dtype.numpy)])

    def exact(x):
        with mpmath.workdps(400):
            finite = [in_parts(getattr(mpmath, op)(mpmath.mpf(float(v)))) for v in x[:-1]]
        return np.array([*finite, FULL(np.nan)])

    check(run(op, x), exact, {"tan": 4}.get(op, 2), x)


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_exact_functions_of_floats_equal_the_reference(dtype):
    x = np.concatenate([special(dtype) if not dtype.is_half else [], bit_patterns(dtype, 4000)])
    x = x.astype(dtype.numpy)
    ops = ["neg", "abs", "sign", "square", "floor", "ceil", "trunc", "round"]
    for op, got in zip(ops, run_ops(ops, x), strict=True):
        exactly(got, op, x)


@pytest.mark.parametrize("dtype", dtypes.FLOATS)
def test_kinds_of_floats_are_told_apart(dtype):
    x = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-30, 3e4]).astype(dtype.numpy)
    ops = ["is_nan", "is_inf", "is_finite"]
    for op, got in zip(ops, run_ops(ops, x), strict=True):
        same(got, reference(op, x))


# --------------------------------------------------------------------------- functions of two floats


@pytest.mark.parametrize("dtype", [f32, f64])
def test_arithmetic_of_floats_equals_the_reference(dtype):
    a, b = two(dtype)
    ops = ["add", "sub", "mul", "div", "chain", "remainder", "maximum", "minimum", "floor_divide"]
    for op, got in zip(ops, run_ops(ops, a, b), strict=True):
        bound = 1 if op == "floor_divide" else 0
        check(got, lambda a, b, op=op: reference(op, a, b), bound, a, b)


@pytest.mark.parametrize("dtype", [f32, f64])
@pytest.mark.parametrize(("op", "bound"), [("pow", 2.5), ("atan2", 2.5)])
def test_power_and_angle_are_close_and_treat_edges_as_numpy(op, bound, dtype):
    a, b = two(dtype)
    generator = np.random.default_rng(5)
    far, near = np.exp(generator.uniform(-40, 40, 5000)), generator.uniform(0.5, 2.0, 5000)
    a = np.concatenate([a, far, near]).astype(dtype.numpy)
    steps = [generator.uniform(-limit, limit, 5000) for limit in (3, 200)]
    b = np.concatenate([b, *steps]).astype(dtype.numpy)
    function = power if op == "pow" else np.arctan2
    check(run(op, a, b), lambda a, b: function(a.astype(FULL), b.astype(FULL)), bound, a, b)


def test_zeros_that_a_compiler_knows_hide_neither_nan_nor_infinity():
    x = np.array([1, -2, 0, np.inf, np.nan], np.float32)
    g = Graph()
    node = g.input("x", x.shape, "f32")
    nothing = node - node
    g.set_outputs([node / 0.0, 0.0 / node, node * 0.0, nothing, nothing / 0.0])
    got = run_graph(g, {"x": x})
    for found, expected in zip(
        got, [x / np.float32(0), np.float32(0) / x, x * 0, x - x, (x - x) / 0], strict=True
    ):
        same(found, expected.astype(np.float32))


# --------------------------------------------------------------------------- 16-bit floats


@pytest.mark.parametrize("dtype", [f16, bf16])
@pytest.mark.parametrize("op", ["exp", "tanh", "rsqrt", "recip"])
def test_16_bit_functions_are_rounded_once(op, dtype):
    every = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    same(run(op, every), run(op, every.astype(np.float32)).astype(dtype.numpy))


@pytest.mark.parametrize("lacking", [(), ("shader-f16",)])
@pytest.mark.parametrize("dtype", [f16, bf16])
def test_16_bit_arithmetic_is_that_of_f32_rounded(dtype, lacking):
    a, b = bit_patterns(dtype, 20_001)[:-1].reshape(2, -1)
    ops = ["add", "mul", "div", "maximum", "remainder"]
    for op, got in zip(ops, run_ops(ops, a, b, lacking=lacking), strict=True):
        wide = reference(op, a.astype(np.float32), b.astype(np.float32)).astype(dtype.numpy)
        same(got, wide)


def test_f64_becomes_16_bits_with_one_rounding():
    # Halfway between two neighbours and a little above: by way of f32 it would look like a tie.
    x = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-11, 1 + 2.0**-8 + 2.0**-40, -1e300, 1e-300])
    same(run("cast", x, result=f16), np.array([1 + 2.0**-10, 1, x[2], -np.inf, 0], np.float16))
    assert run("cast", x, result=bf16)[2] == bf16.numpy.type(1 + 2.0**-7)


# --------------------------------------------------------------------------- integers and bools


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_equals_the_reference(dtype):
    a, b = integers(dtype)
    ops = ["add", "sub", "mul", "floor_divide", "remainder", "maximum", "minimum"]
    ops += ["bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right"]
    for op, got in zip(ops, run_ops(ops, a, b), strict=True):
        exactly(got, op, a, b)
    ops = ["neg", "abs", "sign", "square", "floor", "round"]
    for op, got in zip(ops, run_ops(ops, a), strict=True):
        exactly(got, op, a)
    powers = np.abs(b.astype(np.int64) % 70).astype(dtype.numpy)
    exactly(run("pow", a, powers), "pow", a, powers)


@pytest.mark.parametrize("dtype", REAL)
def test_comparisons_and_choices_equal_the_reference(dtype):
    if dtype is bool_:
        a, b = np.array([[False, False, True, True], [False, True, False, True]])
    elif dtype.is_int:
        a, b = integers(dtype, 100)
    else:
        values = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
        a, b = (part.ravel() for part in np.meshgrid(values, values))
    ops = ["eq", "ne", "lt", "le", "gt", "ge"]
    for op, got in zip(ops, run_ops(ops, a, b), strict=True):
        same(got, reference(op, a, b))
    condition = np.arange(a.size) % 3 == 0
    same(run("where", condition, a, b), np.where(condition, a, b))


def test_logic_equals_the_reference():
    a, b = np.array([[False, False, True, True], [False, True, False, True]])
    ops = ["logical_and", "logical_or", "logical_xor"]
    for op, got in zip(ops, run_ops(ops, a, b), strict=True):
        same(got, reference(op, a, b))
    same(run("logical_not", a), ~a)


def castable(source, target):
    """Numbers to cast: every kind of them, and those at the limits of types."""
    if source is bool_:
        return np.array([True, False])
    if source.is_int:
        x = integers(source, 500)[0]
        # NumPy goes to 16 bits from wide integers by a way of its own.
        return x[np.abs(x.astype(np.float64)) <= 2**24] if target.is_half else x
    values = [0, -0.0, 0.4, -0.6, 127.9, -128.9, 255.5, 2**31, -(2**31), 2**32, 2**63, -(2**63)]
    x = np.array([*values, np.inf, -np.inf, np.nan]).astype(source.numpy)
    return np.concatenate([x, bit_patterns(source, 1000)])


@pytest.mark.parametrize("source", REAL)
def test_casts_equal_the_reference(source):
    graph, arrays = Graph(), {}
    targets = [target for target in REAL if target is not source]
    for target in targets:
        arrays[target.name] = castable(source, target)
    nodes = [graph.input(name, x.shape, x.dtype) for name, x in arrays.items()]
    graph.set_outputs([node.cast(target) for node, target in zip(nodes, targets, strict=True)])
    for got, target in zip(run_graph(graph, arrays), targets, strict=True):
        x = arrays[target.name]
        expected = reference("cast", x, to=target)
        if source.is_float and target.is_float:
            flushed = reference("cast", without_denormals(x), to=target)
            expected = np.where(got == flushed, flushed, expected)
        if source.is_float and target is bool_:
            expected = np.where(without_denormals(x) == 0, got, expected)
        same(got, expected)


# --------------------------------------------------------------------------- random numbers, packed elements


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (2**40 + 3, 7)])
def test_random_bits_are_the_reference_s(seed, stream):
    g = Graph()
    step = g.input("step", (), "u32")
    g.set_outputs([g.random_bits((5, 7), seed=seed, stream=stream, step=step)])
    arrays = {"step": np.array(4000000001, np.uint32)}
    same(run_graph(g, arrays)[0], darner.run(g, arrays)[0])


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("size", [1, 7])
def test_elements_that_share_words_are_read_and_written_one_by_one(dtype, size):
    generator = np.random.default_rng(size)
    table = generator.integers(0, 100, (11, size)).astype(dtype.numpy)
    rows = generator.integers(0, 11, 5).astype(np.int32)
    g = Graph()
    x, indices = g.input("x", table.shape, dtype), g.input("rows", rows.shape, "i32")
    g.set_outputs([x.gather(indices), x.flip(0), x.transpose((1, 0))])
    arrays = {"x": table, "rows": rows}
    for got, expected in zip(run_graph(g, arrays), darner.run(g, arrays), strict=True):
        same(got, expected)


def one_thread_each(spec, machine):
    """A kernel whose threads write one element each, those that share a word too."""
    dispatch = Dispatch(spec, machine)
    (node,) = spec.body.outputs
    (count,) = node.shape
    b, elements = dispatch.builder, dispatch.elements()
    with b.if_(b.thread < count):
        value = elements.at(node, [b.thread])
        elements.registers.store(value, dispatch.results[0], b.thread, node.dtype)
    return Written((dispatch.finish(-(-count // dispatch.threads)),))


@pytest.mark.parametrize("dtype", [dtype for dtype in REAL if dtype.itemsize < 4])
def test_threads_that_share_a_word_write_their_own_bits(dtype, monkeypatch):
    template = Template("alone", lambda spec, machine: True, one_thread_each)
    monkeypatch.setattr(families, "TEMPLATES", (template,))
    x = np.random.default_rng(1).integers(-100, 100, 1003).astype(np.float32)
    same(run("cast", x, result=dtype), reference("cast", x, to=dtype))


# --------------------------------------------------------------------------- GPUs that can do less


ATTRIBUTES = {"cast": {"to": f32}, "reduce_precision": {"exponent_bits": 5, "mantissa_bits": 7}}


def plan_of(op, dtype):
    """A plan of one op on a few elements."""
    g = Graph()
    count = len(OPS[op].operands)
    nodes = [g.input(str(i), (3,), dtype) for i in range(count)]
    if op == "where":
        nodes[0] = g.input("condition", (3,), "bool")
    g.set_outputs([call(OPS[op], g, nodes, ATTRIBUTES.get(op, {}))])
    return lower_for("gpu", g)


@pytest.mark.parametrize(
    "op",
    [
        name
        for name, op in OPS.items()
        if op.rules.emit is not None and not name.startswith(("logical", "bitwise", "shift"))
    ],
)
def test_code_of_32_bits_is_the_same_with_and_without_types_of_64(op):
    for dtype in (f32, bf16, dtypes.i32, dtypes.u8):
        if dtype.is_int and op not in ("add", "floor_divide", "pow", "cast", "lt"):
            continue
        plan = plan_of(op, dtype)
        for kernel in plan.kernels:
            texts = [
                written(plan.spec(kernel), device(*lacking).machine).stages[0].text
                for lacking in ((), NARROW)
            ]
            assert texts[0] == texts[1]
            assert not re.search(r"\b[fui]64\b|\dl[fui]\b", texts[0])


@pytest.mark.parametrize(("dtype", "help_"), [("f64", "f32"), ("i64", "i32")])
def test_types_of_64_bits_are_refused_by_name_where_a_gpu_has_none(dtype, help_, monkeypatch):
    g = Graph()
    x = g.input("x", (3,), dtype)
    g.set_outputs([x.square(label="squares")])
    plan = lower_for("gpu", g)
    machine = device(*NARROW).machine
    expected = f"square 'squares'.*has no {dtype}.*cast to {help_} first"
    with pytest.raises(UnsupportedError, match=expected):
        check_types(plan, machine)
    with pytest.raises(UnsupportedError, match=expected):
        run_graph(g, {"x": np.ones(3)}, lacking=NARROW)
    check_types(plan, device().machine)
    monkeypatch.setattr(opened(), "machine", machine)
    with pytest.raises(UnsupportedError, match=expected):
        lower_for("gpu", g)


def test_a_cast_from_64_bits_is_named_where_a_gpu_has_none():
    g = Graph()
    g.set_outputs([g.input("x", (3,), "i64").cast("f32")])
    with pytest.raises(UnsupportedError, match=r"cast.*has no i64"):
        check_types(lower_for("gpu", g), device(*NARROW).machine)


def test_mean_of_nothing_is_nan():
    g = Graph()
    x = g.input("x", (4, 1), "f32")
    g.set_outputs([x.var(1, correction=1)])
    assert all(math.isnan(v) for v in run_graph(g, {"x": np.ones((4, 1), np.float32)})[0])
