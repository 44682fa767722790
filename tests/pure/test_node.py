"""Nodes as handles: operators on both sides, properties, identity, and what they refuse."""

import operator

import numpy as np
import pytest

import darner
from darner import ArgumentError, DTypeError, Graph, Node, ShapeError
from darner.graph.op import get_op

RNG = np.random.default_rng(3)
A = RNG.uniform(0.5, 2.0, (2, 3)).astype(np.float32)
B = RNG.uniform(0.5, 2.0, (2, 3)).astype(np.float32)
INTS = np.array([7, -7, 5], np.int32)
BOOLS = np.array([True, False, True])

ARITHMETIC = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}
COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
LOGIC = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


def run(build, **arrays):
    """What an expression over inputs computes."""
    g = Graph()
    nodes = {name: g.input(name, value.shape, value.dtype) for name, value in arrays.items()}
    g.set_outputs([build(**nodes)])
    return darner.run(g, arrays)[0]


# --------------------------------------------------------------------------- operators


@pytest.mark.parametrize("sign", ARITHMETIC)
def test_arithmetic_operators_compute_what_python_does(sign):
    compute = ARITHMETIC[sign]
    found = run(lambda a, b: compute(a, b), a=A, b=B)
    np.testing.assert_allclose(found, compute(A, B), rtol=1e-6)
    np.testing.assert_allclose(run(lambda a: compute(a, 1.5), a=A), compute(A, 1.5), rtol=1e-6)
    np.testing.assert_allclose(run(lambda a: compute(1.5, a), a=A), compute(1.5, A), rtol=1e-6)


@pytest.mark.parametrize("sign", ARITHMETIC)
@pytest.mark.parametrize("other", [B, B[0], np.float32(1.5)], ids=["array", "row", "scalar"])
def test_numpy_on_either_side_leaves_the_operator_to_the_node(sign, other):
    compute = ARITHMETIC[sign]
    for build, wanted in (
        (lambda a: compute(a, other), compute(A, other)),
        (lambda a: compute(other, a), compute(other, A)),
    ):
        found = run(build, a=A)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert found.dtype == np.float32


@pytest.mark.parametrize("sign", COMPARISONS)
def test_comparisons_build_bool_nodes(sign):
    compute = COMPARISONS[sign]
    np.testing.assert_array_equal(run(lambda a, b: compute(a, b), a=A, b=B), compute(A, B))
    np.testing.assert_array_equal(run(lambda a: compute(a, 1.0), a=A), compute(A, 1.0))
    np.testing.assert_array_equal(run(lambda a: compute(1.0, a), a=A), compute(1.0, A))
    np.testing.assert_array_equal(run(lambda a: compute(B, a), a=A), compute(B, A))


@pytest.mark.parametrize("sign", LOGIC)
def test_logic_operators_combine_bools(sign):
    compute, flipped = LOGIC[sign], ~BOOLS
    wanted = compute(BOOLS, flipped)
    np.testing.assert_array_equal(run(lambda a, b: compute(a, b), a=BOOLS, b=flipped), wanted)
    np.testing.assert_array_equal(run(lambda a: compute(flipped, a), a=BOOLS), wanted)
    np.testing.assert_array_equal(run(lambda a: compute(True, a), a=BOOLS), compute(True, BOOLS))


@pytest.mark.parametrize(
    ("build", "wanted"),
    [
        (lambda a: -a, -A),
        (lambda a: +a, A),
        (lambda a: abs(a), np.abs(A)),
        (lambda a: a @ B.T, A @ B.T),
        (lambda a: B.T @ a, B.T @ A),
        (lambda a: a.T, A.T),
        (lambda a: a[:, 1:], A[:, 1:]),
        (lambda a: a[1], A[1]),
        (lambda a: a[..., -1], A[..., -1]),
        (lambda a: a * [1.0, 2.0, 3.0], A * np.float32([1, 2, 3])),
        (lambda a: sum(a), A.sum(0)),
    ],
)
def test_other_operators(build, wanted):
    np.testing.assert_allclose(run(build, a=A), wanted, rtol=1e-6)


def test_integer_floor_and_remainder_follow_the_sign_of_the_divisor():
    for divisor in (3, -3):
        np.testing.assert_array_equal(run(lambda a, d=divisor: a // d, a=INTS), INTS // divisor)
        np.testing.assert_array_equal(run(lambda a, d=divisor: a % d, a=INTS), INTS % divisor)


def test_inverting_a_bool_negates_it():
    np.testing.assert_array_equal(run(lambda a: ~a, a=BOOLS), ~BOOLS)
    with pytest.raises(DTypeError, match=r"logical_not: x is f32.*must be bool"):
        ~Graph().input("x", (2,))


# --------------------------------------------------------------------------- element types


@pytest.mark.parametrize(
    ("dtype", "other", "result"),
    [
        ("f16", 2, "f16"),
        ("bf16", 2.5, "bf16"),
        ("i8", 2, "i8"),
        ("i8", 2.5, "f32"),
        ("bool", 2, "i32"),
        ("f32", 1j, "c64"),
        ("f16", np.float32(1), "f32"),
        ("f32", np.float64(1), "f64"),
        ("i32", np.ones(2, np.float16), "f16"),
        ("u8", np.int8(1), "i16"),
    ],
)
def test_bare_numbers_follow_and_arrays_promote(dtype, other, result):
    g = Graph()
    x = g.input("x", (2,), dtype)
    assert (x * other).dtype.name == result
    assert (other * x).dtype.name == result


def test_casts_are_nodes_that_carry_the_users_line():
    g = Graph()
    x, n = g.input("x", (2,)), g.input("n", (2,), "i32")
    y = x + n
    cast = y.operands[1]
    assert cast.op.name == "cast"
    assert cast.attrs["to"].name == "f32"
    assert cast.operands == (n,)
    assert cast.source == y.source


def test_division_of_integers_is_float():
    g = Graph()
    n = g.input("n", (2,), "i32")
    assert (n / 2).dtype.name == "f32"
    assert n.exp().dtype.name == "f32"


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda x: x + 1e40, "1e+40 is too large for f32"),
        (lambda x: x.cast("i8") + 300, "300 does not fit in i8"),
        (lambda x: (x > 0.0) + (x > 0.0), "bool has no arithmetic"),
        (lambda x: x & x, "must be bool, not f32"),
        (lambda x: x + "one", "'b' must be a node, a number or an array, got str"),
        (lambda x: x + None, "argument 'b' is missing"),
        (lambda x: x + object(), "got object"),
        (lambda x: x == "one", "'b' must be a node, a number or an array, got str"),
        (lambda x: x * [1.0, [2.0]], "cannot make a constant"),
        (lambda x: x + np.ones(5, np.float32), "sizes 2 and 5 on axis -1 do not broadcast"),
        (lambda x: x + np.array(["a", "b"]), "'b' is given text (<U1), not numbers"),
        (lambda x: x + np.zeros(2, np.uint16), "dtype('uint16') is not an element type"),
        (lambda x: x.cast("f64") + 1j, "f64 and c64 have no common type"),
        (lambda x: x.cast("f64") * [1j, 2.0], "f64 and c64 have no common type"),
        (lambda x: x.add([x]), "must be a node, a number or an array, got list"),
        (lambda x: x.maximum(1j), "complex values (c64) have no meaning here"),
    ],
)
def test_operands_that_make_no_sense_are_refused(build, text):
    g = Graph()
    x = g.input("x", (2,))
    before = len(g)
    with pytest.raises(darner.DarnerError) as caught:
        build(x)
    assert text in str(caught.value)
    assert all(node.op.name in ("input", "cast", "constant", "gt") for node in g.nodes[before:])
    g.verify()


# --------------------------------------------------------------------------- properties


def test_properties_describe_the_value():
    g = Graph("g")
    x = g.input("x", (2, "n"), "f16")
    y = x.tanh(label="act")
    assert x.shape == (2, darner.symbol("n"))
    assert x.rank == 2
    assert x.size == 2 * darner.symbol("n")
    assert x.dtype is darner.DType.F16
    assert (y.id, y.inputs, y.slots, y.attrs) == (1, (0,), ("x",), {})
    assert y.operands == (x,)
    assert y.graph is g
    assert repr(y) == "<%1 = tanh 'act' : f16[2, n]>"
    assert repr(x) == "<%0 = input : f16[2, n]>"
    assert x.attrs["name"] == x.name == "x"


def test_fields_cannot_be_assigned():
    x = Graph().input("x", (2,))
    for name in ("type", "inputs", "label", "anything"):
        with pytest.raises(
            ArgumentError, match=f"a node's {name} cannot be assigned; use graph.set"
        ):
            setattr(x, name, None)


def test_several_results_have_no_one_shape():
    g = Graph()
    values, indices = g.input("x", (4,)).top_k(2)
    both = values.operands[0]
    assert (values.shape, indices.dtype.name) == ((2,), "i32")
    for read in (lambda: both.shape, lambda: both.dtype, lambda: both.rank, lambda: both.size):
        with pytest.raises(ArgumentError, match="has 2 results: project one first"):
            read()
    with pytest.raises(ArgumentError, match="project one of its items first"):
        both + 1.0
    with pytest.raises(ArgumentError, match="has several results: project one first"):
        g.set_outputs([both])
    with pytest.raises(ArgumentError, match="must be a node with several results"):
        values.project(0)


# --------------------------------------------------------------------------- identity


def test_nodes_are_keys_by_identity_and_lookups_build_nothing():
    g = Graph()
    x, y = g.input("x", (2,)), g.input("y", (2,))
    table = {x: "x", y: "y"}
    assert table[x] == "x"
    assert table[g.node(1)] == "y"
    assert len({x, y, g.node(0)}) == 2
    assert x in {x, y}
    assert len(g) == 2


def test_equality_builds_a_node_without_a_truth_value():
    g = Graph()
    x, y = g.input("x", (2,)), g.input("y", (2,))
    same = x == y
    assert isinstance(same, Node)
    assert (same.op.name, same.dtype.name) == ("eq", "bool")
    assert isinstance(x != y, Node)
    for use in (lambda: bool(same), lambda: not x, lambda: x and y, lambda: 0.0 < x < 1.0):
        with pytest.raises(ArgumentError, match=r"a node has no truth value.*; use where\("):
            use()


def test_membership_in_a_node_is_refused_without_building():
    g = Graph()
    x = g.input("x", (2,))
    with pytest.raises(ArgumentError, match="contains a value is not known until the graph runs"):
        1.0 in x
    assert len(g) == 1


def test_nodes_are_not_arrays():
    x = Graph().input("x", (2,))
    for use in (lambda: np.asarray(x), lambda: np.array([x, x]), lambda: float(np.asarray(x))):
        with pytest.raises(ArgumentError, match="a node is not an array"):
            use()
    with pytest.raises(TypeError):
        np.sinc(x)
    with pytest.raises(TypeError):
        float(x)


def test_iteration_walks_the_first_axis():
    g = Graph()
    x = g.input("x", (3, 2))
    rows = list(x)
    assert [row.shape for row in rows] == [(2,)] * 3
    assert len(x) == 3
    first, _, third = x
    g.set_outputs([third, first])
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    found = darner.run(g, {"x": values})
    np.testing.assert_array_equal(found[0], values[2])
    np.testing.assert_array_equal(found[1], values[0])


def test_iteration_needs_a_known_first_axis():
    g = Graph()
    with pytest.raises(TypeError, match="a scalar node has no length"):
        list(g.input("s", ()))
    with pytest.raises(ShapeError, match="len: size n is not a number yet; bind 'n' first"):
        len(g.input("x", ("n", 2)))


# --------------------------------------------------------------------------- scopes and methods


def test_methods_and_operators_and_functions_are_one_thing():
    graphs = []
    for build in (
        lambda g, x, w: (x @ w).relu() + 1.0,
        lambda g, x, w: g.add(g.relu(g.matmul(x, w)), 1.0),
        lambda g, x, w: x.matmul(w).relu().add(1.0),
        lambda g, x, w: g.add_node("add", [g.add_node("relu", [x @ w]), g.constant(1.0)]),
    ):
        g = Graph()
        g.set_outputs([build(g, g.input("x", (2, 3)), g.parameter("w", (3, 4)))])
        graphs.append(g)
    assert graphs[0] == graphs[1] == graphs[2]
    values = {"x": A, "w": RNG.normal(size=(3, 4)).astype(np.float32)}
    results = [darner.run(g, {"x": values["x"]}, {"w": values["w"]})[0] for g in graphs]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_a_call_without_nodes_asks_for_a_graph():
    with pytest.raises(
        ArgumentError, match="tanh: no argument is a node; call it as a method of a"
    ):
        get_op("tanh")(1.0)
    with pytest.raises(ArgumentError, match="no argument is a node"):
        get_op("add")(1.0, 2.0)
