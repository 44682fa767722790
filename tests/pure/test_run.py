"""darner.run: what goes in is checked, state comes back, and a failure names the node."""

import ml_dtypes
import numpy as np
import pytest

import darner
from darner import Graph, RunError, ShapeError
from darner.graph import dtypes
from darner.graph.attributes import Float
from darner.graph.op import unregister
from darner.graph.types import TensorType

ONES = np.ones((2, 3), np.float32)


def affine():
    g = Graph("affine")
    x = g.input("x", (2, 3))
    w = g.parameter("w", (3, 2))
    b = g.parameter("bias", (2,))
    g.set_outputs([x @ w + b, x])
    return g


PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "bias": np.float32([1, -1])}

# --------------------------------------------------------------------------- values in and out


def test_outputs_come_in_order_with_their_types():
    result = darner.run(affine(), {"x": ONES}, PARAMS)
    assert len(result) == 2
    np.testing.assert_array_equal(result[0], ONES @ PARAMS["w"] + PARAMS["bias"])
    np.testing.assert_array_equal(result[1], ONES)
    assert all(type(value) is np.ndarray and value.dtype == np.float32 for value in result)


def test_values_may_be_lists_numbers_and_arrays_of_other_layouts():
    g = Graph()
    x, s = g.input("x", (2, 3)), g.input("s", ())
    g.set_outputs([x * s])
    wanted = np.arange(6).reshape(2, 3) * 2.0
    for value in (
        [[0, 1, 2], [3, 4, 5]],
        np.arange(6, dtype=np.float64).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(12, dtype=np.int64)[::2].reshape(2, 3) // 2,
    ):
        np.testing.assert_array_equal(darner.run(g, {"x": value, "s": 2})[0], wanted)


def test_results_are_the_callers_own():
    g = Graph()
    x = g.input("x", (3,))
    s = g.state("s", (3,))
    c = g.constant([1.0, 2.0, 3.0])
    g.set_outputs([x, x, s, c])
    g.set_update(s, x)
    given, state = np.zeros(3, np.float32), {"s": np.ones(3, np.float32)}
    results = darner.run(g, {"x": given}, state=state)
    for value in results:
        value += 100.0
    np.testing.assert_array_equal(given, [0, 0, 0])
    np.testing.assert_array_equal(state["s"], [0, 0, 0])
    np.testing.assert_array_equal(darner.run(g, {"x": given})[3], [1, 2, 3])


def test_a_graph_without_outputs_gives_nothing():
    g = Graph()
    g.input("x", (2,)).tanh()
    assert darner.run(g, {"x": [0, 0]}) == []


def test_dead_nodes_are_not_computed():
    darner.unary("exploding", "Fails when it is computed.", lambda x: 1 / 0)
    try:
        g = Graph()
        x = g.input("x", (2,))
        x.exploding()
        g.set_outputs([x + 1.0])
        np.testing.assert_array_equal(darner.run(g, {"x": [0, 1]})[0], [1, 2])
    finally:
        unregister("exploding")


@pytest.mark.parametrize(
    ("inputs", "params", "text"),
    [
        ({}, PARAMS, "no value was given for input 'x'"),
        (None, PARAMS, "no value was given for input 'x'"),
        ({"x": ONES}, {}, "no value was given for parameter 'w', 'bias'"),
        ({"x": ONES}, None, "no value was given for parameter 'w', 'bias'"),
        ({"x": ONES, "y": 1}, PARAMS, "graph 'affine' has no input 'y'"),
        ({"x": ONES}, {**PARAMS, "biass": 1}, "has no parameter 'biass'; did you mean 'bias'?"),
        ({"x": ONES, "w": 1}, PARAMS, "has no input 'w'"),
        ({"x": ONES.T}, PARAMS, "input 'x' is (2, 3), but the value is (3, 2)"),
        ({"x": 1.0}, PARAMS, "input 'x' is (2, 3), but the value is ()"),
        ({"x": ONES}, {**PARAMS, "bias": [1]}, "parameter 'bias' is (2,), but the value is (1,)"),
        ({"x": ONES + 1j}, PARAMS, "input 'x' is f32, but the value is c64"),
        ({"x": np.full((2, 3), "a")}, PARAMS, "input 'x' is given text (<U1), not numbers"),
        (
            {"x": np.full((2, 3), None)},
            PARAMS,
            "input 'x' is given objects of Python (object), not",
        ),
        ({"x": [[1, 2], [3]]}, PARAMS, "input 'x' is not given an array"),
        ({"x": ONES.astype(np.uint64)}, PARAMS, "input 'x' cannot take values of uint64"),
    ],
)
def test_wrong_values_are_refused(inputs, params, text):
    with pytest.raises((RunError, darner.DTypeError)) as caught:
        darner.run(affine(), inputs, params)
    assert text in str(caught.value)
    assert str(caught.value).startswith("run: ")
    assert "(test_run.py:" in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("i8", [300], "input 'x' is i8: some values do not fit"),
        ("u8", [-1], "input 'x' is u8: some values do not fit"),
        ("u32", np.int64([2**33]), "input 'x' is u32: some values do not fit"),
        ("i32", [1.5], "input 'x' is i32, but the value is f64"),
        ("bool", [1], "input 'x' is bool, but the value is i64"),
        ("f32", [1j], "input 'x' is f32, but the value is c128"),
    ],
)
def test_values_must_fit_the_element_type(dtype, value, text):
    g = Graph()
    g.set_outputs([g.input("x", (1,), dtype)])
    with pytest.raises(RunError) as caught:
        darner.run(g, {"x": value})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value", "wanted"),
    [
        ("f32", np.int64([3]), np.float32([3])),
        ("f32", [True], np.float32([1])),
        ("i8", [True], np.int8([1])),
        ("f16", [1e9], np.float16([np.inf])),
        ("f32", np.float64([0.1]), np.float32([0.1])),
        ("u8", np.int64([255]), np.uint8([255])),
        ("c64", [2.0], np.complex64([2])),
        ("bf16", np.float32([1.00390625]), np.array([1.0], ml_dtypes.bfloat16)),
    ],
)
def test_values_of_a_narrower_kind_are_widened(dtype, value, wanted):
    g = Graph()
    g.set_outputs([g.input("x", (1,), dtype)])
    found = darner.run(g, {"x": value})[0]
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found, wanted)


# --------------------------------------------------------------------------- state


def counter():
    g = Graph("counter")
    count = g.state("count", (2,), "i32", init=5)
    mean = g.state("mean", (2,), init=0.5)
    x = g.input("x", (2,))
    g.set_update(count, count + 1)
    g.set_outputs([mean * 0.9 + x * 0.1, count])
    g.set_update(mean, g.outputs[0])
    return g


def test_state_starts_at_its_init_and_carries_on():
    g, state, mean = counter(), {}, np.float32([0.5, 0.5])
    for step in range(3):
        x = np.float32([step, -step])
        found, count = darner.run(g, {"x": x}, state=state)
        mean = mean * np.float32(0.9) + x * np.float32(0.1)
        np.testing.assert_array_equal(found, mean)
        np.testing.assert_array_equal(count, [5 + step] * 2)  # as it was before the run
        np.testing.assert_array_equal(state["mean"], mean)
        np.testing.assert_array_equal(state["count"], [6 + step] * 2)
    assert state["count"].dtype == np.int32


def test_without_a_mapping_state_is_forgotten():
    g = counter()
    for _ in range(2):
        np.testing.assert_array_equal(darner.run(g, {"x": [0, 0]})[1], [5, 5])


def test_states_may_be_given_some_or_all():
    state = {"count": np.int32([1, 2])}
    darner.run(counter(), {"x": [0, 0]}, state=state)
    np.testing.assert_array_equal(state["count"], [2, 3])
    np.testing.assert_allclose(state["mean"], [0.45, 0.45], rtol=1e-6)


def test_states_without_an_update_are_there_after_a_run():
    g = Graph()
    g.state("kept", (2,), init=3.0)
    state = {}
    darner.run(g, state=state)
    np.testing.assert_array_equal(state["kept"], [3.0, 3.0])


def test_updated_parameters_come_back_through_the_state():
    g = Graph()
    w = g.parameter("w", (2,))
    g.set_update(w, w * 0.5)
    g.set_outputs([w])
    params, state = {"w": np.float32([4, 8])}, {}
    darner.run(g, None, params, state=state)
    np.testing.assert_array_equal(state["w"], [2, 4])
    np.testing.assert_array_equal(params["w"], [4, 8])
    np.testing.assert_array_equal(darner.run(g, None, params, state=state)[0], [2, 4])
    np.testing.assert_array_equal(state["w"], [1, 2])


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"counts": 1}, "graph 'counter' has no state 'counts'; did you mean 'count'?"),
        ({"x": 1}, "has no state 'x'"),
        ({"count": [1, 2, 3]}, "state 'count' is (2,), but the value is (3,)"),
        ({"count": [0.5, 1]}, "state 'count' is i32, but the value is f64"),
    ],
)
def test_wrong_states_are_refused_and_nothing_is_written(state, text):
    before = dict(state)
    with pytest.raises(RunError) as caught:
        darner.run(counter(), {"x": [0, 0]}, state=state)
    assert text in str(caught.value)
    assert state == before


def test_an_init_that_does_not_fit_its_type_is_refused():
    def build_and_run():
        g = Graph()
        g.set_outputs([g.state("s", (2,), "i32", init=0.5)])
        darner.run(g)

    with pytest.raises(darner.DarnerError, match="fractions do not fit in i32"):
        build_and_run()


# --------------------------------------------------------------------------- symbolic sizes


def test_sizes_are_settled_by_the_values():
    g = Graph()
    x, y = g.input("x", ("n", "m")), g.input("y", ("m",))
    g.set_outputs([x * y])
    for n, m in ((2, 3), (0, 4), (1, 1)):
        a = np.ones((n, m), np.float32)
        np.testing.assert_array_equal(darner.run(g, {"x": a, "y": a[0] if n else np.ones(m)})[0], a)


def test_sizes_are_settled_by_parameters_states_and_expressions():
    g = Graph()
    p = g.parameter("p", ("n",))
    x = g.input("x", ("2*k+1",))
    s = g.state("s", ("k", "n"))
    g.set_outputs([x, s + p])
    found = darner.run(g, {"x": np.ones(7)}, {"p": np.ones(4)})
    assert [value.shape for value in found] == [(7,), (3, 4)]


@pytest.mark.parametrize(
    ("shapes", "values", "text"),
    [
        ([("n",), ("n",)], [3, 4], "'n' is 3 in 'x0' but 4 in 'x1'"),
        ([("n*m",)], [6], "no input settles the size m, n; bind it first"),
        ([("n",), ("n+1",)], [3, 3], "'n' is 3 in 'x0' but 2 in 'x1'"),
        ([("2*n",)], [7], "no input settles the size n"),
        ([("n+5",)], [2], "no input settles the size n"),
        ([("n",), ("n*n",)], [3, 8], "input 'x1' is (9,), but the value is (8,)"),
        ([("n", 2)], [3], "input 'x0' is (3, 2), but the value is (3,)"),
    ],
)
def test_sizes_that_disagree_are_refused(shapes, values, text):
    g = Graph()
    g.set_outputs([g.input(f"x{i}", shape) for i, shape in enumerate(shapes)])
    with pytest.raises(RunError) as caught:
        darner.run(g, {f"x{i}": np.ones(n) for i, n in enumerate(values)})
    assert text in str(caught.value)


def test_sizes_that_break_a_rule_once_known_name_the_node():
    g = Graph()
    x, y = g.input("x", ("n",)), g.input("y", ("n-2",))
    g.set_outputs([x, y])
    assert darner.run(g, {"x": np.ones(3), "y": np.ones(1)})[1].shape == (1,)
    with pytest.raises(ShapeError, match="size n-2 becomes -1, which is negative"):
        g.bind(n=1)


# --------------------------------------------------------------------------- element types


def test_float64_computes_and_returns_wide():
    g = Graph()
    x = g.input("x", (1000,))
    g.set_outputs([(x * 0.1).sum(), x.cast("f16")])
    values = np.random.default_rng(0).normal(size=1000)
    found = darner.run(g, {"x": values}, float64=True)
    assert [value.dtype for value in found] == [np.float64, np.float64]
    exact = (values * np.float64(np.float32(0.1))).sum()  # the constant is the graph's own
    np.testing.assert_allclose(found[0], exact, rtol=1e-13)
    np.testing.assert_array_equal(found[1], values)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_halves_are_stored_narrow_and_computed_wide(dtype):
    kind = dtypes.dtype(dtype).numpy
    g = Graph()
    x = g.input("x", (4096,), dtype)
    g.set_outputs([x.sum(), x * x])
    values = np.full(4096, 0.1).astype(kind)
    total, square = darner.run(g, {"x": values})
    exact = values.astype(np.float64)
    assert total.dtype == square.dtype == kind
    np.testing.assert_array_equal(total, exact.sum().astype(np.float32).astype(kind))
    np.testing.assert_array_equal(square, (exact * exact).astype(np.float32).astype(kind))


def test_overflow_and_invalid_values_are_silent():
    g = Graph()
    x = g.input("x", (3,))
    g.set_outputs([x.log(), 1.0 / x, (x * 1e30) * 1e30])
    found = darner.run(g, {"x": np.float32([0, -1, 2])})
    np.testing.assert_array_equal(found[0], np.float32([-np.inf, np.nan, np.log(np.float32(2))]))
    np.testing.assert_array_equal(found[1], [np.inf, -1, 0.5])
    np.testing.assert_array_equal(found[2], [0, -np.inf, np.inf])


# --------------------------------------------------------------------------- quantised parameters


def decode_q8(values):
    """One scale per 32 values of a column: the largest magnitude is 127 steps."""
    out = np.empty_like(values)
    for column in range(values.shape[1]):
        for start in range(0, values.shape[0], 32):
            block = values[start : start + 32, column].astype(np.float64)
            scale = float(np.float16(max(abs(v) for v in block) / 127))
            for i, v in enumerate(block):
                code = 0 if scale == 0 else min(127, max(-127, round(v / scale)))
                out[start + i, column] = code * scale
    return out


def decode_q4(values):
    """A scale and a minimum per 32 values of a column: 15 steps from the least to the largest."""
    out = np.empty_like(values)
    for column in range(values.shape[1]):
        for start in range(0, values.shape[0], 32):
            block = values[start : start + 32, column].astype(np.float64)
            low = float(np.float16(min(block)))
            scale = float(np.float16((max(block) - low) / 15))
            for i, v in enumerate(block):
                code = 0 if scale == 0 else min(15, max(0, round((v - low) / scale)))
                out[start + i, column] = code * scale + low
    return out


@pytest.mark.parametrize(("storage", "decode"), [("q8", decode_q8), ("q4", decode_q4)])
def test_quantised_parameters_compute_with_what_they_decode_to(storage, decode):
    rng = np.random.default_rng(7)
    values = rng.normal(size=(96, 5)).astype(np.float32)
    values[:32, 1] = 0.0
    values[32:64, 2] = 3.5
    values[:, 3] *= 1e-3
    g = Graph()
    w = g.parameter("w", (96, 5), storage=storage)
    g.set_outputs([w, w * 2.0])
    plain, doubled = darner.run(g, None, {"w": values})
    wanted = decode(values)
    np.testing.assert_array_equal(plain, wanted)
    np.testing.assert_array_equal(doubled, wanted * 2)
    step = np.abs(values).max() / (127 if storage == "q8" else 7)
    assert np.abs(plain - values).max() < step
    assert not np.array_equal(plain, values)


def test_quantised_parameters_of_no_columns_are_empty():
    g = Graph()
    g.set_outputs([g.parameter("w", (32, 0), storage="q4"), g.parameter("v", (0, 3), storage="q8")])
    found = darner.run(g, None, {"w": np.ones((32, 0)), "v": np.ones((0, 3))})
    assert [value.shape for value in found] == [(32, 0), (0, 3)]


# --------------------------------------------------------------------------- failures while running


@pytest.fixture
def fragile():
    """A primitive that fails on negative numbers, and a composite made of it."""

    @darner.primitive(family="test", name="fragile")
    def fragile(x: Float) -> TensorType:
        """x, unless some of it is negative."""
        return x

    @fragile.reference
    def _(x):
        if (x < -10).any():
            raise ValueError("far too negative")
        if (x < 0).any():
            raise RunError("negative values", hint="take abs first")
        return x

    @darner.composite(family="test", name="fragile_pair")
    def fragile_pair(x: Float) -> TensorType:
        """fragile(x) + 1."""
        return x

    @fragile_pair.expand
    def _(x):
        return x.fragile() + 1.0

    yield
    unregister("fragile")
    unregister("fragile_pair")


@pytest.mark.usefixtures("fragile")
def test_a_failure_names_the_op_its_label_operands_and_line():
    g = Graph()
    with g.scope("block"):
        y = g.input("x", (2,)).fragile(label="weak")
    g.set_outputs([y])
    with pytest.raises(RunError) as caught:
        darner.run(g, {"block.x": [-1, 1]})
    assert str(caught.value) == (
        f"fragile 'block.weak': x is f32[2]: negative values; take abs first (test_run.py:{y.source.line})"
    )


@pytest.mark.usefixtures("fragile")
def test_errors_of_numpy_are_named_too():
    g = Graph()
    y = g.input("x", (2,)).fragile(label="weak")
    g.set_outputs([y])
    with pytest.raises(
        RunError, match=r"fragile 'weak': .* cannot compute: far too negative"
    ) as caught:
        darner.run(g, {"x": [-11, 1]})
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.source == y.source


@pytest.mark.usefixtures("fragile")
def test_a_failure_inside_a_composite_names_the_users_node():
    for _ in range(2):  # the expansion is made once, by whoever comes first
        g = Graph()
        y = g.input("x", (2,)).fragile_pair(label="outer")
        g.set_outputs([y])
        with pytest.raises(RunError) as caught:
            darner.run(g, {"x": [-1, 1]})
        assert str(caught.value) == (
            "fragile_pair 'outer': x is f32[2]: in its expansion, fragile: x is f32[2]: "
            f"negative values; take abs first (test_run.py:{y.source.line})"
        )


@pytest.mark.usefixtures("fragile")
def test_state_is_untouched_when_a_run_fails():
    g = Graph()
    s = g.state("s", (2,))
    g.set_update(s, s + 1.0)
    g.set_outputs([g.input("x", (2,)).fragile()])
    state = {"s": np.float32([1, 2])}
    with pytest.raises(RunError):
        darner.run(g, {"x": [-1, 1]}, state=state)
    np.testing.assert_array_equal(state["s"], [1, 2])


def test_too_few_results_are_a_fault_of_the_op():
    @darner.primitive(family="test", name="short")
    def short(x: Float):
        """Two results."""
        return x, x

    short.reference(lambda x: (x,))
    try:
        g = Graph()
        g.set_outputs([g.input("x", (2,)).short()[0]])
        with pytest.raises(RunError, match=r"short: .*its function gave 1 results, not 2"):
            darner.run(g, {"x": [0, 0]})
    finally:
        unregister("short")


def test_a_node_is_not_a_value():
    g = Graph()
    x = g.input("x", (2,))
    g.set_outputs([x])
    with pytest.raises(RunError, match="run: input 'x' is given a node of a graph, not values"):
        darner.run(g, {"x": x})
