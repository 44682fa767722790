"""Matrix products and linear layers: values, broadcasting, types, expansions, spellings, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import ArgumentError, DTypeError, Graph, RunError, ShapeError
from darner.testing import assert_close


class Bench:
    """A graph whose inputs come with their arrays."""

    def __init__(self, seed=0):
        self.graph = Graph("bench")
        self.values = {}
        self.rng = np.random.default_rng(seed)

    def put(self, array):
        name = f"v{len(self.values)}"
        self.values[name] = array
        return self.graph.input(name, array.shape, array.dtype), array

    def f64(self, *shape):
        return self.put(self.rng.normal(size=shape))

    def run(self, *nodes):
        self.graph.set_outputs(list(nodes))
        self.graph.verify()
        results = darner.run(self.graph, self.values)
        return results[0] if len(results) == 1 else results


def ops_of(graph):
    """The names of the primitives a graph expands to, leaves left out."""
    return [n.op.name for n in darner.expand(graph).nodes if "leaf" not in n.op.traits]


# --------------------------------------------------------------------------- products


@st.composite
def products(draw):
    """Two shapes that matmul accepts."""
    size = st.integers(0, 3)
    m, k, n = draw(size), draw(size), draw(size)
    full = draw(st.lists(size, max_size=3))
    left = [draw(st.sampled_from([d, 1])) for d in full][draw(st.integers(0, len(full))) :]
    right = [draw(st.sampled_from([d, 1])) for d in full][draw(st.integers(0, len(full))) :]
    a = draw(st.sampled_from([(*left, m, k), (k,)]))
    b = draw(st.sampled_from([(*right, k, n), (k,)]))
    return a, b


@settings(deadline=None, max_examples=150)
@given(products(), st.integers(0, 99))
def test_matmul_broadcasts_as_numpy_does(shapes, seed):
    bench = Bench(seed)
    (a, left), (b, right) = bench.f64(*shapes[0]), bench.f64(*shapes[1])
    wanted = np.matmul(left, right)
    found = bench.run(a @ b)
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    assert ops_of(bench.graph).count("dot_general") == 1
    assert "broadcast_to" not in ops_of(bench.graph)


@settings(deadline=None, max_examples=60)
@given(products(), st.integers(0, 99))
def test_transposed_products_broadcast_as_matmul_does(shapes, seed):
    bench = Bench(seed)
    if min(map(len, shapes)) < 2:
        return
    (a, left), (b, right) = bench.f64(*shapes[0]), bench.f64(*shapes[1])
    at, _ = bench.put(np.swapaxes(left, -1, -2).copy())
    bt, _ = bench.put(np.swapaxes(right, -1, -2).copy())
    for found in bench.run(at.matmul_at(b), a.matmul_bt(bt)):
        np.testing.assert_allclose(found, np.matmul(left, right), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ((3, 5), (5, 4), ["dot_general"]),
        ((7, 3, 5), (5, 4), ["dot_general"]),
        ((2, 7, 3, 5), (5, 4), ["dot_general"]),
        ((7, 3, 5), (7, 5, 4), ["dot_general"]),
        ((7, 3, 5), (5,), ["dot_general"]),
        ((5,), (7, 5, 4), ["dot_general"]),
        ((3, 5), (7, 5, 4), ["dot_general", "transpose"]),
        ((7, 3, 5), (1, 5, 4), ["reshape", "dot_general"]),
        ((7, 1, 3, 5), (2, 5, 4), ["reshape", "dot_general", "transpose"]),
    ],
)
def test_matmul_is_one_contraction_that_copies_nothing(a, b, wanted):
    bench = Bench()
    bench.graph.set_outputs([bench.f64(*a)[0] @ bench.f64(*b)[0]])
    assert ops_of(bench.graph) == wanted


def test_a_weight_without_batch_is_contracted_in_place():
    g = Graph()
    g.set_outputs([g.input("x", (7, 3, 5)) @ g.parameter("w", (5, 4))])
    product = darner.expand(g).outputs[0]
    assert product.op.name == "dot_general"
    assert [operand.name for operand in product.operands] == ["x", "w"]
    assert product.shape == (7, 3, 4)
    assert darner.cost(product).flops == 2 * 7 * 3 * 5 * 4
    assert darner.cost(g.outputs[0]).flops == 2 * 7 * 3 * 5 * 4


@pytest.mark.parametrize("method", ["matmul", "matmul_at", "matmul_bt"])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("i8", "i32"),
        ("u8", "i32"),
        ("i16", "i32"),
        ("i32", "i32"),
        ("i64", "i64"),
        ("bf16", "bf16"),
    ],
)
def test_small_integers_accumulate_in_32_bits(method, dtype, wanted):
    g = Graph()
    a, b = g.input("a", (4, 4), dtype), g.input("b", (4, 4), dtype)
    assert getattr(g, method)(a, b).dtype.name == wanted


def test_int8_products_do_not_wrap():
    bench = Bench()
    a, _ = bench.put(np.full((2, 300), 127, np.int8))
    b, _ = bench.put(np.full((300, 1), -128, np.int8))
    found = bench.run(a @ b)
    assert found.dtype == np.int32
    assert found.tolist() == [[300 * 127 * -128]] * 2


def test_operands_of_two_types_meet_in_the_wider():
    g = Graph()
    half, single = g.input("a", (2, 3), "f16"), g.input("b", (3, 4))
    assert (half @ single).dtype.name == "f32"
    assert (g.input("i", (2, 3), "i32") @ half.T).dtype.name == "f16"


def test_half_precision_sums_in_f32():
    bench = Bench()
    a, _ = bench.put(np.full((1, 4096), 1, np.float16))
    b, _ = bench.put(np.full((4096, 1), 1, np.float16))
    assert bench.run(a @ b).item() == 4096  # f16 itself would stop at 2048


def test_arrays_may_stand_on_either_side():
    bench = Bench()
    x, values = bench.f64(2, 3)
    left, right = np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(3, 2)
    found = bench.run(left @ x, x @ right)
    np.testing.assert_allclose(found[0], left @ values)
    np.testing.assert_allclose(found[1], values @ right)


def test_symbolic_sizes_pass_through_products():
    g = Graph()
    x = g.input("x", ("batch", "seq", 4))
    assert str((x @ g.input("w", (4, 5))).type) == "f32[batch, seq, 5]"
    scores = x.matmul_bt(x)
    assert str(scores.type) == "f32[batch, seq, seq]"
    g.set_outputs([scores])
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    found = darner.run(g, {"x": values, "w": np.zeros((4, 5), np.float32)})[0]
    assert_close(found, values @ np.swapaxes(values, 1, 2), "f32", 4)


def test_dot_vdot_and_outer_agree_with_numpy():
    bench = Bench()
    (a, left), (b, right) = bench.f64(5), bench.f64(5)
    c, third = bench.f64(3)
    dot, vdot, outer = bench.run(bench.graph.dot(a, b), a.vdot(b), a.outer(c))
    np.testing.assert_allclose(dot, np.dot(left, right))
    np.testing.assert_allclose(vdot, np.vdot(left, right))
    np.testing.assert_allclose(outer, np.outer(left, third))
    assert dot.shape == ()


# --------------------------------------------------------------------------- linear layers


def test_a_linear_layer_is_one_contraction_and_one_sum():
    g = Graph()
    x, w, b = g.input("x", (8, 3, 5)), g.parameter("w", (5, 4)), g.parameter("b", (4,))
    for layer in (g.linear_bias(x, w, b), g.linear_fused(x, w, b), g.linear(x, w.T, b)):
        g.set_outputs([layer])
        names = [name for name in ops_of(g.toposort()) if name != "transpose"]
        assert names == ["dot_general", "add"]


def test_linear_layers_compute_what_their_formulas_say():
    bench = Bench()
    g = bench.graph
    (x, xs), (w, ws), (b, bs) = bench.f64(3, 5), bench.f64(5, 4), bench.f64(4)
    plain, biased = xs @ ws, xs @ ws + bs
    wanted = {
        g.linear_bias(x, w): plain,
        g.linear_bias(x, w, None): plain,
        g.linear_bias(x, w, b): biased,
        g.linear_bias_act(x, w, b, None): biased,
        g.linear_bias_act(x, w, None, "relu"): np.maximum(plain, 0),
        g.linear_bias_act(x, w, b, "tanh"): np.tanh(biased),
        g.linear_fused(x, w, b): biased,
        g.linear_fused(x, w, b, darner.Activation.Tanh): np.tanh(biased),
        g.fused_matmul_bias_act(x, w, b, "swish"): biased / (1 + np.exp(-biased)),
        g.linear(x, w.T, b): biased,
        g.linear(x[1], w.T, b): biased[1],
        g.linear(x, w.T): plain,
        g.mm(x, w): plain,
    }
    for found, value in zip(bench.run(*wanted), wanted.values(), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12)


@pytest.mark.parametrize("kind", ["gelu_approx", "GeluApprox", darner.Activation.GeluApprox])
def test_every_spelling_of_an_activation_is_stored_as_one(kind):
    g = Graph()
    x, w, b = g.input("x", (2, 3)), g.parameter("w", (3, 4)), g.parameter("b", (4,))
    fused = g.fused_matmul_bias_act(x, w, b, kind)
    assert fused.attrs == {"activation": "gelu_approx"}
    assert g.fused_matmul_bias_act(x, w, b, "swish").attrs == {"activation": "silu"}


def test_a_fused_layer_of_half_precision_rounds_once():
    bench = Bench()
    x, _ = bench.put(np.array([[1.0, 1.0]], np.float16))
    w, _ = bench.put(np.array([[2048.0], [1.0]], np.float16))
    b, _ = bench.put(np.array([1.0], np.float16))
    fused, separate = bench.run(bench.graph.linear_fused(x, w, b), bench.graph.linear_bias(x, w, b))
    assert fused.item() == 2050
    assert separate.item() == 2048  # 2049 rounds to 2048 before the bias comes


def test_shared_pairs_and_gated_blocks():
    bench = Bench()
    g = bench.graph
    (x, xs), (up, ups), (gate, gates) = bench.f64(3, 5), bench.f64(5, 4), bench.f64(5, 4)
    down, downs = bench.f64(4, 5)
    first, second = g.shared_matmul_pair(x, up, gate)
    plain, fused = g.swiglu_ffn(x, up, gate, down), g.fused_swiglu_ffn(x, up, gate, down, (3, 5))
    results = bench.run(first, second, plain, fused)
    opened = xs @ gates
    wanted = (opened / (1 + np.exp(-opened)) * (xs @ ups)) @ downs
    np.testing.assert_allclose(results[0], xs @ ups)
    np.testing.assert_allclose(results[1], opened)
    np.testing.assert_allclose(results[2], wanted)
    np.testing.assert_allclose(results[3], wanted)
    g.set_outputs([fused])
    assert ops_of(g.toposort()).count("dot_general") == 2


def test_bias_add_and_broadcast_add_take_any_axes_in_front():
    bench = Bench()
    (a, values), (bias, row), (wide, rows) = bench.f64(2, 3, 4), bench.f64(4), bench.f64(1, 4)
    found = bench.run(a.bias_add(bias, (2, 3, 4)), a.broadcast_add(wide))
    np.testing.assert_array_equal(found[0], values + row)
    np.testing.assert_array_equal(found[1], values + rows)


def test_an_adapter_changes_a_product_by_its_low_rank_part():
    bench = Bench()
    (x, xs), (w, ws), (a, left), (b, right) = (
        bench.f64(*shape) for shape in ((3, 5), (5, 4), (5, 2), (2, 4))
    )
    found = bench.run(
        bench.graph.lora_matmul(x, w, a, b, 0.25, (3, 4)), bench.graph.lora_matmul(x, w, a, b, 0.0)
    )
    np.testing.assert_allclose(found[0], xs @ (ws + 0.25 * left @ right))
    np.testing.assert_allclose(found[1], xs @ ws)


def test_an_expert_that_does_not_exist_is_an_error_when_it_runs():
    bench = Bench()
    (x, _), (w, _) = bench.f64(3, 5), bench.f64(2, 5, 4)
    expert, _ = bench.put(np.array([0, 2, 1], np.int32))
    with pytest.raises(RunError, match=r"index 2 is outside 0\.\.1"):
        bench.run(bench.graph.grouped_matmul(x, w, expert))


def test_grouped_products_gather_no_more_than_they_use():
    g = Graph()
    x, w = g.input("x", (6, 5)), g.parameter("w", (3, 5, 4))
    g.set_outputs([g.grouped_matmul(x, w, g.input("expert", (6,), "u32"))])
    assert ops_of(g) == ["gather", "dot_general"]


# --------------------------------------------------------------------------- spellings


CALLS = [
    ("matmul", [(3, 4), (4, 5)], [], (3, 5)),
    ("matmul_at", [(4, 3), (4, 5)], [], (3, 5)),
    ("matmul_bt", [(3, 4), (5, 4)], [], (3, 5)),
    ("mm", [(3, 4), (4, 5)], [], (3, 5)),
    ("linear_fused", [(3, 4), (4, 5), (5,)], ["relu"], (3, 5)),
    ("linear_fused", [(3, 4), (4, 5), (5,)], [None], (3, 5)),
    ("fused_matmul_bias_act", [(3, 4), (4, 5), (5,)], ["relu"], (3, 5)),
    ("fused_swiglu_ffn", [(3, 4), (4, 6), (4, 6), (6, 5)], [], (3, 5)),
    ("lora_matmul", [(3, 4), (4, 5), (4, 2), (2, 5)], [0.5], (3, 5)),
    ("dense_solve", [(3, 3), (3, 5)], [], (3, 5)),
    ("dense_solve", [(3, 3), (3,)], [], (3,)),
    ("batched_dense_solve", [(2, 3, 3), (2, 3)], [], (2, 3)),
]


@pytest.mark.parametrize(("name", "shapes", "rest", "result"), CALLS)
def test_a_stated_shape_is_checked(name, shapes, rest, result):
    g = Graph()
    nodes = [g.input(f"x{i}", shape) for i, shape in enumerate(shapes)]
    method = getattr(g, name)
    assert method(*nodes, *rest, result).shape == result
    assert method(*nodes, *rest, darner.Shape.new(list(result), "f32")).shape == result
    assert method(*[node.id for node in nodes], *rest, result).shape == result
    before = len(g)
    wrong = (*result[:-1], 9)
    with pytest.raises(ShapeError) as caught:
        method(*nodes, *rest, wrong)
    assert f"but {wrong} was stated" in str(caught.value)
    with pytest.raises(DTypeError, match="the result is f32, but f16 was stated"):
        method(*nodes, *rest, darner.Shape.new(list(result), "f16"))
    assert len(g) == before


def test_labels_reach_the_result_of_a_builder():
    g = Graph()
    x, w, b = g.input("x", (2, 3)), g.parameter("w", (3, 4)), g.parameter("b", (4,))
    assert g.linear_bias(x, w, b, label="ffn.up").label == "ffn.up"
    assert g.matmul(x, w, label="q").label == "q"


# --------------------------------------------------------------------------- errors


def f32(*shape):
    return shape, "f32"


ERRORS = [
    ("matmul", [f32(), f32(3)], "a is a scalar; multiply with a * b"),
    ("matmul", [f32(3), f32()], "b is a scalar"),
    (
        "matmul",
        [f32(32, 784), f32(512, 128)],
        "a is f32[32, 784] but b is f32[512, 128]: inner sizes 784 and 512 differ",
    ),
    ("matmul", [f32(3), f32(4)], "inner sizes 3 and 4 differ"),
    ("matmul", [f32(2, 3, 4), f32(3, 4, 5)], "batch sizes 2 and 3 on axis -3 do not broadcast"),
    (
        "matmul",
        [f32(6, 1, 3, 4), f32(5, 2, 4, 5)],
        "batch sizes 6 and 5 on axis -4 do not broadcast",
    ),
    ("matmul", [((3,), "bool"), ((3,), "bool")], "bool has no arithmetic"),
    ("matmul_at", [f32(3, 4), f32(4, 5)], "inner sizes 3 and 4 differ"),
    ("matmul_at", [f32(4), f32(4, 5)], "a must be a matrix or a batch of them, not (4,)"),
    ("matmul_bt", [f32(3, 4), f32(4, 5)], "inner sizes 4 and 5 differ"),
    ("matmul_bt", [f32(3, 4), f32(4)], "b must be a matrix or a batch of them, not (4,)"),
    ("dot", [f32(3, 4), f32(4)], "a must be a vector, not (3, 4)"),
    ("dot", [f32(3), f32(4)], "inner sizes 3 and 4 differ"),
    ("outer", [f32(3), f32()], "b must be a vector, not ()"),
    ("vdot", [((3,), "c64"), f32(4)], "inner sizes 3 and 4 differ"),
    (
        "linear_bias",
        [f32(3, 4), f32(4, 5), f32(4)],
        "bias must be (5,), one number for each column, not (4,)",
    ),
    ("linear_bias", [f32(3, 4), f32(5, 5)], "inner sizes 4 and 5 differ"),
    ("linear_bias", [f32(3, 4), f32(4, 5), f32(1, 5)], "not (1, 5)"),
    ("linear_fused", [f32(3, 4), f32(2, 4, 5), f32(5)], "weight must be a matrix [in, out]"),
    ("linear_fused", [f32(3, 4), f32(4, 5), f32(3, 5)], "not (3, 5)"),
    ("linear_fused", [f32(3, 4), f32(5, 4), f32(5)], "inner sizes 4 and 5 differ"),
    ("linear", [f32(3, 4), f32(5)], "w must be a matrix [out, in], not (5,)"),
    ("linear", [f32(3, 4), f32(4, 5)], "inner sizes 4 and 5 differ"),
    ("linear", [f32(4), f32(5, 3)], "inner sizes 3 and 4 differ"),
    ("linear", [f32(3, 4), f32(5, 4), f32(4)], "bias must be (5,)"),
    ("bias_add", [f32(4), f32(4)], "a must have rows, but it is (4,)"),
    ("bias_add", [f32(3, 4), f32(3)], "bias must be (4,)"),
    ("broadcast_add", [f32(3, 4), f32(4)], "b must be one row (1, 4), not (4,)"),
    ("broadcast_add", [f32(3, 4), f32(3, 4)], "b must be one row (1, 4), not (3, 4)"),
    ("shared_matmul_pair", [f32(3, 4), f32(4, 5), f32(5, 5)], "inner sizes 4 and 5 differ"),
    ("swiglu_ffn", [f32(3, 4), f32(4, 8), f32(4, 6), f32(8, 4)], "gate has shape (3, 6)"),
    ("fused_swiglu_ffn", [f32(3, 4), f32(4, 8), f32(4, 6), f32(8, 4)], "up_w (4, 8) and gate_w"),
    ("fused_swiglu_ffn", [f32(3, 4), f32(4, 8), f32(4, 8), f32(6, 4)], "inner sizes 8 and 6"),
    ("lora_matmul", [f32(3, 4), f32(4, 5), f32(3, 2), f32(2, 5)], "a has 3 rows, w has 4"),
    ("lora_matmul", [f32(3, 4), f32(4, 5), f32(4, 2), f32(3, 5)], "a has rank 2 but b has rank 3"),
    ("lora_matmul", [f32(3, 4), f32(4, 5), f32(4, 2), f32(2, 4)], "b has 4 columns, w has 5"),
    ("lora_matmul", [f32(3, 4), f32(4, 5), f32(4), f32(2, 5)], "a must be a matrix, not (4,)"),
    ("lora_matmul", [f32(3, 3), f32(4, 5), f32(4, 2), f32(2, 5)], "inner sizes 3 and 4 differ"),
    ("grouped_matmul", [f32(3, 4), f32(4, 5), ((3,), "i32")], "w must be one matrix for each"),
    ("grouped_matmul", [f32(3, 4), f32(2, 4, 5), ((4,), "i32")], "x has rows (3,), expert is (4,)"),
    ("grouped_matmul", [f32(3, 4), f32(2, 3, 5), ((3,), "i32")], "inner sizes 4 and 3 differ"),
    ("grouped_matmul", [f32(3, 4), f32(2, 4, 5), f32(3)], "expert must be integers, not f32"),
    ("grouped_matmul", [f32(), f32(2, 4, 5), ((), "i32")], "x is a scalar"),
]


@pytest.mark.parametrize(("name", "operands", "text"), ERRORS)
def test_wrong_operands_are_refused_where_they_are_given(name, operands, text):
    g = Graph()
    nodes = [g.input(f"x{i}", shape, dtype) for i, (shape, dtype) in enumerate(operands)]
    with pytest.raises((ShapeError, DTypeError)) as caught:
        getattr(g, name)(*nodes)
    assert text in str(caught.value)
    assert "test_matrix.py" in str(caught.value)
    assert len(g) == len(nodes)


def test_an_error_names_op_label_and_both_operands():
    g = Graph()
    x, w = g.input("x", (32, 784)), g.parameter("w", (512, 128))
    with pytest.raises(ShapeError) as caught:
        g.matmul(x, w, label="ffn.up")
    assert str(caught.value).startswith(
        "matmul 'ffn.up': a is f32[32, 784] but b is f32[512, 128]: "
        "inner sizes 784 and 512 differ (test_matrix.py:"
    )


@pytest.mark.parametrize("name", ["linear_bias_act", "linear_fused", "fused_matmul_bias_act"])
def test_an_unknown_activation_is_refused(name):
    g = Graph()
    x, w, b = g.input("x", (2, 3)), g.parameter("w", (3, 4)), g.parameter("b", (4,))
    with pytest.raises(ArgumentError, match="no activation is called 'gellu'"):
        getattr(g, name)(x, w, b, "gellu")
    assert len(g) == 3
