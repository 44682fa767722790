"""Tensor types: how they print, read and broadcast; and constants, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darner import (
    ArgumentError,
    DType,
    DTypeError,
    FormatError,
    Shape,
    ShapeError,
    TensorType,
    symbol,
)
from darner.graph import dtypes
from darner.graph.data import Data, as_data
from darner.graph.types import TupleType, broadcast, parse_type
from tests.strategies import arrays, element_types

sizes = st.integers(0, 9) | st.sampled_from([symbol("n"), 2 * symbol("n") + 1])
tensor_types = st.builds(
    lambda shape, dtype: TensorType(tuple(shape), dtype), st.lists(sizes, max_size=4), element_types
)

# --------------------------------------------------------------------------- types


@given(tensor_types)
def test_tensor_types_read_back_as_they_print(type_):
    assert parse_type(str(type_)) == type_
    assert parse_type(f"  {type_} ") == type_


@given(st.lists(tensor_types, max_size=3))
def test_tuple_types_read_back_as_they_print(items):
    type_ = TupleType(tuple(items))
    assert parse_type(str(type_)) == type_


def test_types_print_dtype_and_sizes():
    assert str(TensorType.new((32, 784))) == "f32[32, 784]"
    assert str(TensorType.new((), "bool")) == "bool[]"
    assert str(TensorType.new(("2*n+1", 3), "bf16")) == "bf16[2*n+1, 3]"
    assert str(TupleType((TensorType.new(2), TensorType.new((), "i32")))) == "(f32[2], i32[])"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "f32",
        "f32[",
        "f32]",
        "[3]",
        "f32[3]]",
        "f32[3] x",
        "x f32[3]",
        "f99[3]",
        "f32[1.5]",
        "f32[-1]",
        "f32[3,]",
        "f32[3,,4]",
        "f32[,]",
        "(f32[3]",
        "f32[3])",
        "(f32[3] f32[3])",
        "(f32[3], junk)",
        "((f32[3]))",
        "f32[3 4]",
        "F32[3]",
    ],
)
def test_text_that_is_not_a_type_is_refused(text):
    with pytest.raises((FormatError, ShapeError, DTypeError)):
        parse_type(text)


def test_the_rlx_spelling_makes_the_same_type():
    assert Shape.new([4, 15, 384], DType.F32) == TensorType((4, 15, 384), dtypes.f32)


def test_sizes_bytes_and_symbols():
    type_ = TensorType.new(("n", 3), "f16")
    assert type_.rank == 2
    assert type_.size == 3 * symbol("n")
    assert type_.nbytes == 6 * symbol("n")
    assert type_.symbols == {"n"}
    assert type_.bind({"n": 4}) == TensorType.new((4, 3), "f16")
    assert TensorType.new((2, 3), "i64").nbytes == 48
    both = TupleType((type_, TensorType.new((5,))))
    assert both.nbytes == 6 * symbol("n") + 20
    assert both.symbols == {"n"}
    assert both.bind({"n": 1}).nbytes == 26


def test_with_shape_and_with_dtype_change_one_thing():
    type_ = TensorType.new((2, 3))
    assert type_.with_shape([6]) == TensorType.new((6,))
    assert type_.with_dtype(dtypes.i8) == TensorType.new((2, 3), "i8")


def test_a_type_needs_a_type():
    with pytest.raises(DTypeError, match="None is not an element type"):
        TensorType.new((3,), None)


# --------------------------------------------------------------------------- broadcasting


@given(st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), min_size=1, max_size=4))
def test_broadcasting_is_that_of_numpy(shapes):
    try:
        wanted = np.broadcast_shapes(*shapes)
    except ValueError:
        with pytest.raises(ShapeError, match=r"sizes \d and \d on axis -\d do not broadcast"):
            broadcast(*shapes)
    else:
        assert broadcast(*shapes) == wanted


def test_broadcasting_of_symbols_needs_equal_ones():
    n = symbol("n")
    assert broadcast((n, 1), (1, 3)) == (n, 3)
    assert broadcast((n,), (n,), ()) == (n,)
    assert broadcast() == ()
    with pytest.raises(ShapeError, match="sizes n and 3 on axis -1 do not broadcast"):
        broadcast((n,), (3,))
    with pytest.raises(ShapeError, match=r"sizes n and n\+1 on axis -2 do not broadcast"):
        broadcast((n, 2), (n + 1, 2))


# --------------------------------------------------------------------------- constants


@given(element_types.flatmap(lambda t: arrays(t)))
def test_constants_survive_json_bit_for_bit(array):
    data = Data(array)
    again = Data.from_json(data.to_json())
    assert again == data
    assert again.digest == data.digest
    assert again.array.tobytes() == array.tobytes()
    assert again.array.shape == array.shape
    assert again.array.dtype == array.dtype


@pytest.mark.parametrize("kind", dtypes.FLOATS, ids=str)
def test_literals_round_to_the_same_bits(kind):
    rng = np.random.default_rng(0)
    width = {16: np.uint16, 32: np.uint32, 64: np.uint64}[kind.bits]
    raw = rng.integers(0, np.iinfo(width).max, 20_000, dtype=width, endpoint=True)
    values = raw.view(kind.numpy)
    assert Data(values).literal() is None  # some are NaN, perhaps signalling ones
    with np.errstate(invalid="ignore"):
        values = values[np.isfinite(values)]
    literal = Data(values).literal()
    assert as_data(literal, kind).array.tobytes() == values.tobytes()


def test_constants_are_told_apart_by_their_bits():
    nan = float("nan")
    assert as_data(nan) == as_data(nan)
    assert as_data(0.0) != as_data(-0.0)
    assert as_data(-0.0).array.tobytes() == np.float32(-0.0).tobytes()
    assert as_data(0.0).array.tobytes() == np.float32(0.0).tobytes()
    assert as_data(1.0) != as_data(1)
    assert as_data(True) != as_data(1)
    assert as_data([1.0]) != as_data(1.0)
    assert hash(as_data([2.0])) == hash(as_data(np.float32([2.0])))


def test_constants_cannot_be_written_to():
    source = np.ones(3, np.float32)
    data = as_data(source)
    source[0] = 9.0
    assert data.array.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="read-only"):
        data.array[0] = 2.0


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (2, "i32[]"),
        (2.5, "f32[]"),
        (True, "bool[]"),
        (1j, "c64[]"),
        ([[1, 2]], "i32[1, 2]"),
        ([1, 2.5], "f32[2]"),
        (np.zeros(2, np.float64), "f64[2]"),
        (np.int8(3), "i8[]"),
        ([], "f32[0]"),
    ],
)
def test_constants_take_the_type_of_their_values(value, type_):
    assert str(as_data(value).type) == type_


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (300, dtypes.u8, "300 does not fit in u8 (0 to 255)"),
        (-1, dtypes.u32, "-1 does not fit in u32"),
        (2.0**63, dtypes.i64, "does not fit in i64"),
        (float("nan"), dtypes.i32, "nan does not fit in i32"),
        (2.5, dtypes.i32, "fractions do not fit in i32; round or cast them first"),
        (1e10, dtypes.f16, "10000000000.0 is too large for f16"),
        ([1.0, 1e39], dtypes.f32, "1e+39 is too large for f32"),
        (1j, dtypes.f32, "complex values do not fit in f32"),
        ("abc", None, "cannot make a constant of 'abc': it is given text (<U3), not numbers"),
        (None, None, "of None: it is given objects of Python (object), not numbers"),
        ([1, [2, 3]], None, "cannot make a constant of [1, [2, 3]]"),
        ({"a": 1}, None, "(object), not numbers"),
        (10**400, dtypes.f32, "0000... is too large for f32"),
        (2**40, None, "1099511627776 does not fit in i32"),
    ],
)
def test_values_that_do_not_fit_are_refused(value, kind, text):
    with pytest.raises(ArgumentError) as caught:
        as_data(value, kind)
    assert text in str(caught.value)


def test_infinities_and_exact_conversions_fit():
    assert np.isinf(as_data(float("inf"), dtypes.f16).array)
    assert as_data(65504.0, dtypes.f16).array == 65504.0
    assert as_data(2.0, dtypes.u8).array == 2
    assert as_data(10**30, dtypes.f64).array == 1e30
    assert as_data(np.array([2**53 + 1]), dtypes.i64).array == 2**53 + 1
    assert as_data([], dtypes.i8).array.dtype == np.int8


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "no field 'type'"),
        ({"type": "f32[2]"}, "no field 'raw'"),
        ({"type": "f99[2]", "raw": ""}, "'f99' is not an element type"),
        ({"type": "f32[n]", "raw": ""}, "size 4*n is not a number yet"),
        ({"type": "(f32[2])", "raw": ""}, "it is not one tensor"),
        ({"type": "f32[2]", "raw": "AAAA"}, "f32[2] needs 8 bytes"),
        ({"type": "f32[2]", "raw": "%%%"}, "cannot be read"),
        ({"type": "f32[2]", "raw": 5}, "cannot be read"),
        ({"type": "f32[2]", "zlib": "AAAA"}, "cannot be read"),
        ({"type": 5, "raw": ""}, "cannot be read"),
        ({"type": "f32[999999999999999999]", "raw": ""}, "needs 3999999999999999996 bytes"),
        ([], "cannot be read"),
        (None, "cannot be read"),
        ("f32[2]", "cannot be read"),
    ],
)
def test_stored_constants_that_are_damaged_are_refused(document, text):
    with pytest.raises(FormatError) as caught:
        Data.from_json(document)
    assert text in str(caught.value)


def test_a_small_packed_constant_cannot_fill_the_memory():
    bomb = as_data(np.zeros(10_000_000, np.uint8)).to_json()
    with pytest.raises(FormatError, match=r"u8\[4\] needs 4 bytes"):
        Data.from_json({**bomb, "type": "u8[4]"})
