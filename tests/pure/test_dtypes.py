"""Element types: their names, and the one promotion table."""

import copy
import pickle
from enum import IntEnum
from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch

from darner import DType, DTypeError, Graph, promote
from darner.graph import dtypes
from darner.graph.dtypes import (
    ALL,
    FLOATS,
    bf16,
    bool_,
    c64,
    dtype,
    f16,
    f32,
    f64,
    i8,
    i32,
    u8,
    u32,
)

TORCH = {
    f64: torch.float64,
    f32: torch.float32,
    f16: torch.float16,
    bf16: torch.bfloat16,
    dtypes.i64: torch.int64,
    i32: torch.int32,
    dtypes.i16: torch.int16,
    i8: torch.int8,
    u8: torch.uint8,
    u32: torch.uint32,
    bool_: torch.bool,
    c64: torch.complex64,
}
PAIRS = list(product(ALL, ALL))
FROM_TORCH = {value: key for key, value in TORCH.items()}


def promoted(a, b):
    """The promotion, or None where there is none."""
    try:
        return promote(a, b)
    except DTypeError:
        return None


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_promotion_is_that_of_torch_but_for_what_is_documented(a, b):
    found = promoted(a, b)
    if {a, b} == {f64, c64}:
        assert found is None  # torch has a 128-bit complex to go to
    elif u32 in (a, b) and a is not b:
        # torch leaves u32 out of its table; here it follows the rule of the others.
        other = b if a is u32 else a
        wider = other if other.kind in ("float", "complex") else dtypes.i64
        assert found is (u32 if other in (u8, bool_) else wider)
    else:
        assert found is FROM_TORCH[torch.promote_types(TORCH[a], TORCH[b])]


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=str)
def test_promotion_commutes_and_is_idempotent(a, b):
    found = promoted(a, b)
    assert found is promoted(b, a)
    if found is not None:
        assert promote(found, a) is found
        assert promote(found, b) is found
    assert promote(a, a) is a


def test_promotion_associates_where_it_is_defined():
    for a, b, c in product(ALL, ALL, ALL):
        left = None if (ab := promoted(a, b)) is None else promoted(ab, c)
        right = None if (bc := promoted(b, c)) is None else promoted(a, bc)
        assert left is right or None in (left, right)


def test_promotion_holds_all_values_of_two_integers():
    integers = [t for t in ALL if t.is_int]
    for a, b in product(integers, integers):
        (low_a, high_a), (low_b, high_b) = a.limits, b.limits
        low, high = promote(a, b).limits
        assert low <= min(low_a, low_b)
        assert high >= max(high_a, high_b)


def test_float_beats_wide_integers_and_halves_meet_in_f32():
    assert promote(dtypes.i64, f16) is f16
    assert promote(f16, bf16) is f32
    assert promote(bool_, u8) is u8
    assert promote(c64, f32) is c64


def test_f64_with_c64_says_there_is_no_wider_complex():
    with pytest.raises(DTypeError, match="f64 and c64 have no common type"):
        promote(f64, c64)


@pytest.mark.parametrize(
    ("spelling", "wanted"),
    [
        ("f32", f32),
        ("float32", f32),
        (np.float32, f32),
        (np.dtype("float32"), f32),
        (float, f32),
        (int, i32),
        (bool, bool_),
        (complex, c64),
        ("bf16", bf16),
        ("bfloat16", bf16),
        (ml_dtypes.bfloat16, bf16),
        ("complex64", c64),
        ("i8", i8),
        ("u8", u8),
        ("uint32", u32),
        (np.bool_, bool_),
        (DType.BF16, bf16),
        (DType.Bool, bool_),
    ],
)
def test_spellings_of_element_types(spelling, wanted):
    assert dtype(spelling) is wanted


@pytest.mark.parametrize(
    "value",
    [
        None,
        "f8",
        "i4",
        "float",
        "f4",
        ">f4",
        ",",
        "(2,)f4",
        "",
        "F32",
        3,
        [],
        object,
        str,
        np.uint16,
    ],
)
def test_other_values_are_not_element_types(value):
    with pytest.raises(DTypeError, match="is not an element type"):
        dtype(value)


def test_near_misses_get_a_hint():
    with pytest.raises(DTypeError, match="'f33' is not an element type; did you mean 'f32'"):
        dtype("f33")
    with pytest.raises(DTypeError, match="the types are f64, f32"):
        dtype("zzz")


def test_there_is_one_object_per_type():
    for t in ALL:
        assert pickle.loads(pickle.dumps(t)) is t
        assert copy.deepcopy(t) is t
        assert dtype(t.name) is dtype(t.numpy) is t
        assert str(t) == t.name


@pytest.mark.parametrize("t", ALL, ids=str)
def test_facts_agree_with_numpy(t):
    assert t.itemsize == np.zeros((), t.numpy).nbytes
    assert t.is_float == (t in FLOATS)
    assert t.is_half == (t in (f16, bf16))
    if t.is_int:
        assert t.limits == (np.iinfo(t.numpy).min, np.iinfo(t.numpy).max)
        assert t.signed == (t.limits[0] < 0)
        assert t.bits == 8 * t.itemsize
    assert bool_.limits == (0, 1)


@pytest.mark.parametrize(
    ("value", "beside", "wanted"),
    [
        (2, f16, f16),
        (2, i8, i8),
        (2.5, bf16, bf16),
        (2.5, i32, f32),
        (True, u8, u8),
        (1j, f32, c64),
        (2, None, i32),
        (2.5, None, f32),
        (2, bool_, i32),
    ],
)
def test_bare_numbers_take_the_type_beside_them(value, beside, wanted):
    assert dtypes.of_python(value, beside) is wanted


class Level(IntEnum):
    low = 1
    high = 7


def test_enumerations_of_integers_count_as_integers():
    g = Graph()
    x = g.input("x", (3,))
    y = x + Level.high
    assert y.dtype is f32
    assert y.operands[1].attrs["values"].array == 7.0


def test_accumulators_widen_small_integers_only():
    assert [dtypes.accumulator(t) for t in (bool_, i8, u8, dtypes.i16)] == [i32] * 4
    for t in (i32, dtypes.i64, u32, f16, f32, c64):
        assert dtypes.accumulator(t) is t


def test_at_least_float_leaves_floats_alone():
    assert dtypes.at_least_float(i8) is f32
    assert dtypes.at_least_float(bool_) is f32
    for t in (*FLOATS, c64):
        assert dtypes.at_least_float(t) is t
