"""What instructions look like as WGSL."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir

from darner import Graph
from darner.backends.wgpu.expressions import Text
from darner.backends.wgpu.machine import Machine
from darner.backends.wgpu.spelling import number
from darner.codegen.ir.math import emit, register_type
from darner.codegen.simt.families import written
from darner.graph import dtypes
from darner.graph.dtypes import bf16, f16, f32, f64, i8, i64, u32
from darner.graph.errors import InternalError
from darner.lower.lower import lower

FLOAT, DOUBLE = ir.FloatType(), ir.DoubleType()


GPU = Machine("some", "DiscreteGPU", "Vulkan", "")


@pytest.fixture
def writer():
    return GPU.builder(64)


def values(dtype, count=2):
    return [Text(register_type(dtype), f"a{i}") for i in range(count)]


# --------------------------------------------------------------------------- constants


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_f32_constants_are_read_back_as_they_were(value):
    text = number(value, FLOAT).strip("()")
    assert text.endswith("f")
    assert struct.pack("f", float(text[:-1])) == struct.pack("f", value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_f64_constants_are_read_back_as_they_were(value):
    text = number(value, DOUBLE).strip("()")
    assert text.endswith("lf")
    assert struct.pack("d", float(text[:-2])) == struct.pack("d", value)


@pytest.mark.parametrize(
    ("value", "bits", "text"), [(-1, 8, "255u"), (-2, 64, f"{2**64 - 2}lu"), (1, 1, "true")]
)
def test_integers_are_written_without_signs(value, bits, text):
    assert number(value, ir.IntType(bits)) == text


@pytest.mark.parametrize("kind", [FLOAT, DOUBLE])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_has_no_constant_is_declared_where_it_is_used(writer, kind, value):
    assert not writer.globals
    text = writer.text(ir.Constant(kind, value))
    (name,) = writer.globals
    assert name in text
    assert text.startswith("(-") == (value == -math.inf)


def test_a_number_too_large_for_f32_is_infinite(writer):
    assert writer.text(ir.Constant(FLOAT, 1e300)) == "(bitcast<f32>(infinity_bits))"


# --------------------------------------------------------------------------- instructions


def test_narrow_integers_keep_zeros_above(writer):
    a, b = values(i8)
    writer.add(a, b)
    assert writer.lines[-1] == "  let v1 = (a0 + a1) & 255u;"
    writer.icmp_signed("<", a, b)
    assert writer.lines[-1].count("(bitcast<i32>(a") == 2


def test_bits_of_64_are_moved_by_u32(writer):
    (a,) = values(i64, 1)
    writer.shl(a, ir.Constant(ir.IntType(64), 52))
    writer.lshr(a, a)
    assert writer.lines == ["  let v1 = a0 << 52u;", "  let v2 = a0 >> u32(a0);"]


def test_a_wider_type_that_stands_the_same_takes_no_line(writer):
    (a,) = values(f16, 1)
    assert writer.fpext(a, FLOAT).text == "a0"
    (b,) = values(i8, 1)
    assert writer.zext(b, ir.IntType(32)).text == "a0"
    assert not writer.lines


def test_nan_is_found_by_its_bits(writer):
    emit("is_nan", writer, values(f32, 1), [f32], dtypes.bool_)
    assert writer.lines == ["  let v1 = ((bitcast<u32>(a0) & 0x7fffffffu) > 0x7f800000u);"]


def test_a_known_zero_is_hidden(writer):
    (a,) = values(f32, 1)
    writer.fmul(a, ir.Constant(FLOAT, 0.0))
    assert "^ workgroup.z" in "\n".join(writer.lines)
    assert "0.0f;" not in writer.lines[-1]


def test_what_a_division_by_a_known_zero_gives_is_said(writer):
    (a,) = values(f32, 1)
    writer.fdiv(a, ir.Constant(FLOAT, 0.0))
    product, chosen = writer.lines
    assert product == "  let v1 = a0 * (bitcast<f32>(infinity_bits));"
    assert chosen == "  let v2 = select(v1, bitcast<f32>(nan_bits), a0 == 0.0f);"


def test_a_difference_from_itself_is_computed(writer):
    (a,) = values(f32, 1)
    writer.fsub(a, a)
    assert writer.lines[-1] == "  let v2 = v1 - a0;"


def test_the_bits_of_a_half_are_refused(writer):
    with pytest.raises(InternalError, match="half"):
        writer.bitcast(values(f16, 1)[0], ir.IntType(16))


def test_what_is_no_value_is_refused(writer):
    with pytest.raises(InternalError, match="no value of a shader"):
        writer.text("v1")


def test_a_loop_assigns_what_changes_alone(writer):
    one = ir.Constant(FLOAT, 1.0)
    first, second = writer.loop(
        0, 8, 2, lambda i, held: [writer.fadd(held[0], one), held[1]], [one, one]
    )
    text = "\n".join(writer.lines)
    assert "for (var i3 = 0u; i3 < 8u; i3 += 2u) {" in text
    assert "c1 = v4;" in text
    assert "c2 =" not in text.replace("var c2 =", "")
    assert (first.text, second.text) == ("v5", "v6")


@pytest.mark.parametrize("prefix", ["i", "u", "f", "v"])
def test_names_are_never_those_of_types(writer, prefix):
    names = [writer.name(prefix) for _ in range(70)]
    assert len(set(names)) == 70
    assert not {"i32", "i64", "u32", "u64", "f16", "f32", "f64"}.intersection(names)


# --------------------------------------------------------------------------- functions


def test_an_op_of_many_instructions_is_one_function_and_calls(writer):
    a, b = values(f32)
    for value in (a, b, a):
        emit("tanh", writer, [value], [f32], f32)
    assert [line.count("op_tanh_f32_f32(") for line in writer.lines] == [1, 1, 1]
    head = "fn op_tanh_f32_f32(x0: f32, zero: u32) -> f32 {"
    assert writer.globals["tanh_f32_f32"].startswith(head)
    assert writer.lines[0] == "  let v1 = op_tanh_f32_f32(a0, workgroup.z);"


def test_a_single_instruction_is_written_where_it_stands(writer):
    a, b = values(u32)
    emit("mul", writer, [a, b], [u32, u32], u32)
    emit("mul", writer, [b, a], [u32, u32], u32)
    assert writer.lines == ["  let v1 = a0 * a1;", "  let v2 = a1 * a0;"]
    assert not writer.globals


def test_a_function_brings_what_it_needs(writer):
    (a,) = values(f64, 1)
    emit("sin", writer, [a], [f64], f64)
    text = "\n".join(writer.globals.values())
    for name in ("op_sin_f64_f64", "quadrant_f64", "high_product_u64", "nan64"):
        assert f"fn {name}(" in text


@pytest.mark.parametrize("dtype", [f32, f16, bf16])
def test_bodies_of_many_nodes_are_short_and_the_same_each_time(dtype):
    g = Graph()
    x = h = g.input("x", (64,), dtype)
    for _ in range(60):
        h = ((h + x).tanh() * x).maximum(x).exp()
    g.set_outputs([h])
    plan = lower(g, target="gpu")
    machine = Machine("some", "DiscreteGPU", "Vulkan", "")
    texts = [
        [
            stage.text
            for kernel in plan.kernels
            for stage in written(plan.spec(kernel), machine).stages
        ]
        for _ in range(2)
    ]
    assert texts[0] == texts[1]
    each = 1 if dtype is f32 else 2
    lines = sum(text.count("\n") for text in texts[0])
    assert lines < 300 * each + 190 * len(plan.kernels)
