"""Sizes: polynomials over symbols, as they compute, compare, divide, print and read."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darner import ShapeError, symbol
from darner.graph.dims import (
    SymbolicDim,
    as_dim,
    as_shape,
    bind_dim,
    divide,
    format_shape,
    parse_dim,
    product,
)

NAMES = ("a", "b", "seq")
a, b, seq = map(symbol, NAMES)

bindings = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})
leaves = st.sampled_from([a, b, seq]) | st.integers(-6, 6)


def combine(children):
    pairs = st.tuples(children, children)
    return (
        pairs.map(lambda p: p[0] + p[1])
        | pairs.map(lambda p: p[0] - p[1])
        | pairs.map(lambda p: p[0] * p[1])
        | children.map(lambda x: -x)
    )


dims = st.recursive(leaves, combine, max_leaves=8)
symbolic = dims.filter(lambda d: isinstance(d, SymbolicDim))


def value_of(dim, sizes):
    """An independent evaluation: Python's own arithmetic on the printed form."""
    return eval(str(dim), {"__builtins__": {}}, dict(sizes))


def known(compute):
    """The answer, or None where it depends on sizes that are not bound."""
    try:
        return compute()
    except ShapeError as error:
        if "is not known until" not in str(error):
            raise
        return None


# --------------------------------------------------------------------------- arithmetic


@given(dims, dims, bindings)
def test_arithmetic_commutes_with_substitution(x, y, sizes):
    left, right = value_of(x, sizes), value_of(y, sizes)
    assert value_of(x + y, sizes) == left + right
    assert value_of(x - y, sizes) == left - right
    assert value_of(x * y, sizes) == left * right
    assert value_of(-x, sizes) == -left


@given(dims, dims, dims)
def test_ring_identities_hold_exactly(x, y, z):
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x - x == 0
    assert x + 0 == x
    assert x * 1 == x
    assert x * 0 == 0


@given(dims, dims)
def test_equal_sizes_have_equal_hashes(x, y):
    assert hash(x + y) == hash(y + x)
    assert hash(x - y + y) == hash(x)


def test_constant_results_are_plain_integers():
    assert type(seq - seq + 3) is int
    assert type((seq + 2) - seq) is int
    assert type(seq * 0) is int
    assert (seq + 2) - seq == 2


def test_numpy_integers_take_part():
    assert seq * np.int64(3) == 3 * seq
    assert np.int32(2) * seq == seq + seq
    assert seq + np.int64(1) == seq + 1


@pytest.mark.parametrize("other", [1.5, "a", None, [1]])
def test_arithmetic_with_anything_else_is_refused(other):
    # Text and lists repeat themselves by an index, which a symbol is not.
    for compute in (lambda: seq + other, lambda: seq * other, lambda: seq - other):
        with pytest.raises((TypeError, ShapeError)):
            compute()
    assert seq != other


# --------------------------------------------------------------------------- printing and reading


@pytest.mark.parametrize(
    ("dim", "text"),
    [
        (seq, "seq"),
        (2 * seq + 1, "2*seq+1"),
        (1 - seq, "-seq+1"),
        (seq * b - 3 * a, "b*seq-3*a"),
        (a * a * b + b - 7, "a*a*b+b-7"),
    ],
)
def test_sizes_print_as_polynomials(dim, text):
    assert str(dim) == text
    assert repr(dim) == text


@given(dims)
def test_printed_sizes_read_back_equal(dim):
    again = parse_dim(str(dim))
    assert again == dim
    assert type(again) is type(dim)
    assert str(again) == str(dim)


@pytest.mark.parametrize(
    ("text", "dim"),
    [
        ("7", 7),
        (" seq ", seq),
        ("1 + 2 * seq", 2 * seq + 1),
        ("+seq", seq),
        ("seq*2", 2 * seq),
        ("seq-seq", 0),
        ("_x1", symbol("_x1")),
    ],
)
def test_other_spellings_are_read(text, dim):
    assert parse_dim(text) == dim


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "+",
        "-",
        "seq+",
        "2++3",
        "--2",
        "+-2",
        "2 3",
        "se q",
        "2*",
        "*2",
        "2**seq",
        "seq seq",
        "1.5",
        "1e3",
        "seq/2",
        "(seq)",
        "é",
        "٣",
        "1_000",
        "9" * 5000,
    ],
)
def test_text_that_is_not_a_size_is_refused(text):
    with pytest.raises(ShapeError, match="is not a size: write a number, a name, or"):
        parse_dim(text)


@given(st.text("0123456789ab+-* ()._", max_size=12))
def test_reading_gives_a_size_or_a_shape_error(text):
    try:
        dim = parse_dim(text)
    except ShapeError:
        return
    assert parse_dim(str(dim)) == dim


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "é", None, 3])
def test_symbols_need_a_plain_name(name):
    with pytest.raises(ShapeError, match="is not a name for a dimension"):
        symbol(name)


# --------------------------------------------------------------------------- substitution


@given(dims, bindings)
def test_binding_gives_the_value(dim, sizes):
    wanted = value_of(dim, sizes)
    if wanted < 0 and isinstance(dim, SymbolicDim):
        with pytest.raises(ShapeError, match="which is negative"):
            bind_dim(dim, sizes)
    else:
        assert bind_dim(dim, sizes) == wanted


@given(dims, dims, bindings)
def test_binding_to_an_expression_composes(dim, inner, sizes):
    try:
        found = bind_dim(dim, {"a": inner})
    except ShapeError:  # only a number can be negative
        assert bind_dim(-dim, {"a": inner}) > 0
        return
    assert value_of(found, sizes) == value_of(dim, {**sizes, "a": value_of(inner, sizes)})


def test_binding_is_simultaneous_and_partial():
    assert bind_dim(a + 2 * b, {"a": b, "b": a}) == b + 2 * a
    assert bind_dim(a * b, {"a": 3}) == 3 * b
    assert bind_dim(5, {"a": 3}) == 5


def test_binding_to_a_negative_size_is_refused():
    with pytest.raises(ShapeError, match=r"size seq-3 becomes -1, which is negative"):
        bind_dim(seq - 3, {"seq": 2})


# --------------------------------------------------------------------------- comparison


@given(dims, dims)
def test_comparisons_hold_for_every_size_or_say_they_cannot(x, y):
    tries = [dict.fromkeys(NAMES, n) for n in (0, 1, 2, 5, 40)]
    tries += [{"a": i, "b": 3 - i, "seq": 2 * i} for i in range(4)]
    for compare, python in (
        (lambda: x < y, lambda p, q: p < q),
        (lambda: x <= y, lambda p, q: p <= q),
        (lambda: x > y, lambda p, q: p > q),
        (lambda: x >= y, lambda p, q: p >= q),
    ):
        answer = known(compare)
        for sizes in tries if answer is not None else ():
            assert python(value_of(x, sizes), value_of(y, sizes)) == answer


def test_sizes_are_never_negative_when_compared():
    assert seq >= 0
    assert seq + 1 > 0
    assert not seq < 0
    assert seq < seq + 1
    assert 2 * seq + 3 >= seq + 3


def test_unknown_comparisons_name_the_symbols():
    with pytest.raises(
        ShapeError, match=r"whether 3 < seq is not known until 'seq' is bound; bind it first"
    ):
        seq > 3
    with pytest.raises(ShapeError, match=r"'a', 'b' is bound"):
        a < b


def test_truth_of_a_size_is_that_it_is_positive():
    assert bool(seq + 1)
    with pytest.raises(ShapeError, match="not known until 'seq' is bound"):
        bool(seq)


def test_equality_never_raises():
    assert seq == symbol("seq")
    assert seq != a
    assert seq != 3
    assert seq + 1 - 1 == seq
    assert seq != "seq"


def test_a_symbolic_size_is_not_an_index():
    for use in (int, range, lambda d: [1, 2][d]):
        with pytest.raises(ShapeError, match="size seq is not a number yet; bind 'seq' first"):
            use(seq)


# --------------------------------------------------------------------------- division


@given(dims, dims.filter(lambda d: d != 0))
def test_division_undoes_multiplication(x, y):
    assert divide(x * y, y) == x


@given(symbolic, st.integers(-6, 6).filter(bool), bindings)
def test_floor_division_and_remainder_agree_with_python(dim, divisor, sizes):
    quotient, remainder = known(lambda: dim // divisor), known(lambda: dim % divisor)
    assert (quotient is None) == (remainder is None)
    if quotient is not None:
        number = value_of(dim, sizes)
        assert value_of(quotient, sizes) == number // divisor
        assert remainder == number % divisor


@pytest.mark.parametrize(
    ("quotient", "wanted"),
    [
        (lambda: (2 * seq + 2) // 2, seq + 1),
        (lambda: (2 * seq + 3) // 2, seq + 1),
        (lambda: (2 * seq - 1) // 2, seq - 1),
        (lambda: (4 * seq * b) // (2 * b), 2 * seq),
        (lambda: (a * seq + a * b) // (seq + b), a),
        (lambda: (seq * seq - 1) // (seq + 1), seq - 1),
        (lambda: seq // seq, 1),
        (lambda: 0 // seq, 0),
        (lambda: (2 * seq + 3) % 2, 1),
        (lambda: (6 * seq) % 3, 0),
        (lambda: 0 % seq, 0),
        (lambda: (seq * b) % b, 0),
    ],
)
def test_division_of_sizes_where_it_is_known(quotient, wanted):
    assert quotient() == wanted


@pytest.mark.parametrize(
    ("compute", "text"),
    [
        (lambda: seq // 2, "seq // 2 is not known until 'seq' is bound"),
        (lambda: seq % 2, "seq % 2 is not known until 'seq' is bound"),
        (lambda: 4 // seq, "4 // seq is not known until 'seq' is bound"),
        (lambda: 4 % seq, "4 % seq is not known until 'seq' is bound"),
        (lambda: a // b, "a // b is not known until 'a', 'b' is bound"),
        (lambda: seq // 0, "seq // 0 divides by zero"),
        (lambda: seq % 0, "seq % 0 divides by zero"),
    ],
)
def test_unknown_division_says_so(compute, text):
    with pytest.raises(ShapeError) as caught:
        compute()
    assert text in str(caught.value)


def test_exact_division_of_numbers():
    assert divide(12, 4) == 3
    assert divide(12, 5) is None
    assert divide(12, 0) is None
    assert divide(0, seq) == 0
    assert divide(3, seq) is None
    assert divide(2 * seq + 1, 2) is None


# --------------------------------------------------------------------------- shapes


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (3, (3,)),
        (np.int64(3), (3,)),
        (np.array(3), (3,)),
        ("seq", (seq,)),
        (seq, (seq,)),
        ((), ()),
        ([2, "seq+1", np.int32(4)], (2, seq + 1, 4)),
        (np.array([2, 3]), (2, 3)),
        (range(2, 5), (2, 3, 4)),
    ],
)
def test_shapes_from_loose_spellings(value, shape):
    found = as_shape(value)
    assert found == shape
    assert all(type(size) in (int, SymbolicDim) for size in found)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None is not a shape: write a tuple of sizes"),
        (1.5, "1.5 is not a shape: write a tuple of sizes"),
        ((2, -3), "size -3 is negative"),
        ((2, 1.5), "size 1.5 is not an integer"),
        ((2, None), "size None is not an integer; a size that varies has a name: 'batch'"),
        ((-1, 2), "size -1 is negative; a size that varies has a name: 'batch'"),
        ((True,), "size True is not an integer"),
        (True, "size True is not an integer"),
        ((np.array([1, 2]),), "size array([1, 2]) is not an integer"),
        ("-3", "size -3 is negative"),
        ("-seq-1", "size -seq-1 is negative"),
        ((2, (3,)), "size (3,) is not an integer"),
    ],
)
def test_values_that_are_not_shapes_are_refused(value, text):
    with pytest.raises(ShapeError) as caught:
        as_shape(value)
    assert str(caught.value) == text


def test_a_size_may_become_zero_by_subtraction():
    assert as_dim("seq-1") == seq - 1
    assert as_dim("-seq") == -seq


@given(st.lists(st.integers(0, 5) | st.sampled_from([a, b]), max_size=4), bindings)
def test_product_counts_the_elements(sizes, bound):
    wanted = int(np.prod([bind_dim(size, bound) for size in sizes], dtype=np.int64))
    assert bind_dim(product(sizes), bound) == wanted


def test_shapes_print_as_python_writes_tuples():
    assert format_shape(()) == "()"
    assert format_shape((3,)) == "(3,)"
    assert format_shape((32, 2 * seq)) == "(32, 2*seq)"
