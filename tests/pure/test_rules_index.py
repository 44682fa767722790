"""Derivatives and batching of indexing, sorting, products, solves and random ops at their corners, by value."""

import itertools

import numpy as np
import pytest
import torch

import darner
from darner import Graph
from darner.graph.op import OPS
from darner.testing import make_case

NAN = float("nan")


def gradients(function, cotangent, **values):
    """Gradients by the float operands, as the dictionary of their names."""
    graph = traced(function, **values)
    names = [name for name, node in graph.inputs.items() if node.dtype.is_float]
    both = darner.vjp(graph, names).verify()
    given = {name: np.array(value) for name, value in values.items()}
    found = darner.run(both, {**given, "d_output": np.array(cotangent, np.float64)})
    return dict(zip(names, found[1:], strict=True))


def traced(function, **values):
    """A graph of ``function`` over inputs like ``values``, floats as f64."""
    graph = Graph()
    nodes = [graph.input(name, np.shape(v), np.asarray(v).dtype) for name, v in values.items()]
    graph.set_outputs([function(*nodes)])
    return graph


def second_derivatives(function, **values):
    """The Hessian of a sum over one operand, by products with unit vectors."""
    graph = traced(function, **values)
    graph.set_outputs([graph.outputs[0].sum()])
    name = next(name for name, node in graph.inputs.items() if node.dtype.is_float)
    product = darner.hvp(graph, [name])
    shape = np.shape(values[name])
    rows = [
        darner.run(product, {**values, f"tangent_{name}": unit.reshape(shape)})[0].ravel()
        for unit in np.eye(int(np.prod(shape)))
    ]
    return np.stack(rows)


def ops_of(graph):
    return [node.op.name for node in graph.nodes]


# --------------------------------------------------------------------------- reading and writing


def test_gradient_of_gather_adds_up_where_an_index_repeats():
    found = gradients(
        lambda x, i: x.gather(i),
        [[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]],
        x=np.zeros((4, 2)),
        i=np.array([2, 0, 2], np.int32),
    )
    np.testing.assert_array_equal(found["x"], [[10, 20], [0, 0], [101, 202], [0, 0]])


def test_gradient_of_scatter_reaches_only_the_last_slice_written_to_a_place():
    found = gradients(
        lambda x, i, src: x.scatter(i, src),
        [1.0, 2.0, 3.0, 4.0],
        x=np.zeros(4),
        i=np.array([3, 1, 3, 1, 3], np.int32),
        src=np.arange(5.0),
    )
    np.testing.assert_array_equal(found["x"], [1, 0, 3, 0])
    np.testing.assert_array_equal(found["src"], [0, 0, 0, 2, 4])


@pytest.mark.parametrize(("mode", "sign"), [("max", 1.0), ("min", -1.0)])
def test_gradient_of_scatter_extreme_goes_to_the_first_of_equals_and_to_x_before_src(mode, sign):
    found = gradients(
        lambda x, i, src: x.scatter(i, src, 0, mode),
        [1.0, 2.0, 3.0],
        x=sign * np.array([5.0, 0.0, 1.0]),
        i=np.array([0, 1, 1, 1, 2, 2], np.int32),
        src=sign * np.array([5.0, 3.0, 7.0, 7.0, 0.0, -2.0]),
    )
    np.testing.assert_array_equal(found["x"], [1, 0, 3])
    np.testing.assert_array_equal(found["src"], [0, 0, 2, 0, 0, 0])


@pytest.mark.parametrize("zeros", [(), (1,), (1, 3), (0, 1, 3)])
def test_derivatives_of_scatter_product_are_exact_at_zeros(zeros):
    src = np.array([2.0, 3.0, 5.0, 7.0, 11.0])
    src[list(zeros)] = 0.0
    x, i = np.array([13.0, 17.0]), np.array([0, 1, 0, 1, 1], np.int32)

    def ours(s, x, i):
        return x.scatter(i, s, 0, "mul")

    def theirs(s):
        parts = [x[0] * s[0] * s[2], x[1] * s[1] * s[3] * s[4]]
        return torch.stack(parts)

    weights = torch.tensor([1.0, 2.0], dtype=torch.float64)
    leaf = torch.tensor(src, requires_grad=True)
    (wanted,) = torch.autograd.grad(theirs(leaf), leaf, weights)
    found = gradients(ours, weights.tolist(), s=src, x=x, i=i)
    np.testing.assert_allclose(found["s"], wanted, rtol=1e-14)
    twice = torch.autograd.functional.hessian(lambda s: theirs(s).sum(), leaf)
    np.testing.assert_allclose(second_derivatives(ours, s=src, x=x, i=i), twice, rtol=1e-14)


def test_gradient_of_scatter_product_by_x_is_the_product_of_src():
    found = gradients(
        lambda x, i, src: x.scatter(i, src, 0, "mul"),
        [1.0, 10.0, 100.0],
        x=np.array([0.0, 2.0, 3.0]),
        i=np.array([0, 0, 2], np.int32),
        src=np.array([2.0, 3.0, 0.0]),
    )
    np.testing.assert_array_equal(found["x"], [6, 10, 0])


def test_scatter_product_over_a_symbolic_number_of_indices_says_that_it_has_no_gradient_yet():
    graph = Graph()
    x, i, src = graph.input("x", (4,)), graph.input("i", ("N",), "i32"), graph.input("src", ("N",))
    graph.set_outputs([x.scatter(i, src, 0, "mul")])
    with pytest.raises(darner.ShapeError, match="N indices are not known until they are bound"):
        darner.vjp(graph, ["src"])
    assert darner.vjp(graph.bind(N=3), ["src"]).outputs[1].shape == (3,)


def test_masked_fill_stops_whatever_comes_back_to_what_it_covers():
    found = gradients(
        lambda x, mask: x.masked_fill(mask, NAN),
        [NAN, 4.0],
        x=np.zeros(2),
        mask=np.array([True, False]),
    )
    np.testing.assert_array_equal(found["x"], [0, 4])


def test_gradient_of_dynamic_slice_lands_where_the_block_was_moved_to():
    found = gradients(
        lambda x, s: x.dynamic_slice(s, (2,)), [1.0, 2.0], x=np.zeros(5), s=np.array([9], np.int32)
    )
    np.testing.assert_array_equal(found["x"], [0, 0, 0, 1, 2])


def test_gradient_of_dynamic_update_slice_is_split_between_the_block_and_the_rest():
    found = gradients(
        lambda x, u, s: x.dynamic_update_slice(u, s),
        [1.0, 2.0, 3.0, 4.0],
        x=np.zeros(4),
        u=np.zeros(2),
        s=np.array([-7], np.int32),
    )
    np.testing.assert_array_equal(found["x"], [0, 0, 3, 4])
    np.testing.assert_array_equal(found["u"], [1, 2])


# --------------------------------------------------------------------------- order


@pytest.mark.parametrize(
    ("descending", "wanted"), [(False, [20, 1, 3, 10]), (True, [10, 1000, 100, 1])]
)
def test_gradient_of_sort_follows_the_order_of_equal_elements(descending, wanted):
    weights = [1.0, 3.0, 10.0, 20.0] if not descending else [1000.0, 100.0, 10.0, 1.0]
    values = [5.0, 2.0, 2.0, 4.0] if not descending else [2.0, 5.0, 5.0, 1.0]
    found = gradients(lambda x: x.sort(-1, descending), weights, x=np.array(values))
    np.testing.assert_array_equal(found["x"], wanted)


def test_gradient_of_top_k_goes_to_the_lower_index_among_equals():
    found = gradients(lambda x: x.top_k(2)[0], [1.0, 2.0], x=np.array([7.0, 3.0, 7.0, 7.0]))
    np.testing.assert_array_equal(found["x"], [1, 0, 2, 0])


def test_nothing_comes_through_the_indices_of_top_k():
    graph = Graph()
    values, indices = graph.input("x", (4,), "f64").top_k(2)
    graph.set_outputs([values * indices.cast("f64")])
    both = darner.vjp(graph, ["x"])
    x = np.array([1.0, 9.0, 4.0, 5.0])
    found = darner.run(both, {"x": x, "d_output": np.ones(2)})[1]
    np.testing.assert_array_equal(found, [0, 1, 0, 3])


def test_gradient_through_argsort_alone_is_refused():
    graph = Graph()
    graph.set_outputs([graph.input("x", (4,)).argsort().cast("f32").sum()])
    with pytest.raises(darner.ArgumentError, match="through argsort, which has no derivative"):
        darner.grad(graph, ["x"])


# --------------------------------------------------------------------------- products


def pulled_product(op, a, b):
    graph = Graph()
    left, right = graph.input("a", a), graph.input("b", b)
    graph.set_outputs([op(left, right)])
    return darner.vjp(graph, ["a", "b"])


@pytest.mark.parametrize(
    ("name", "a", "b", "backward"),
    [
        ("matmul", (3, 5), (5, 4), ["matmul_bt", "matmul_at"]),
        ("matmul", (2, 3, 5), (2, 5, 4), ["matmul_bt", "matmul_at"]),
        ("matmul_at", (5, 3), (5, 4), ["matmul_bt", "matmul"]),
        ("matmul_bt", (3, 5), (4, 5), ["matmul", "matmul_at"]),
        ("matmul", (2, 3, 5), (5, 4), ["matmul_bt", "dot_general"]),
        ("matmul_bt", ("B", "T", 5), (4, 5), ["matmul", "dot_general"]),
        ("matmul", (5,), (5, 4), ["dot_general", "dot_general"]),
        ("matmul", (3, 5), (5,), ["dot_general", "dot_general"]),
    ],
)
def test_backward_of_a_product_is_two_products_and_nothing_else(name, a, b, backward):
    graph = pulled_product(OPS[name], a, b)
    assert ops_of(graph) == ["input", "input", name, "input", *backward]


def test_gradient_of_a_shared_weight_is_one_contraction_over_batch_and_rows():
    graph = pulled_product(OPS["matmul"], ("B", "T", 8), (8, 5))
    assert graph.outputs[2].attrs["a_contract"] == (0, 1)
    assert graph.outputs[2].shape == (8, 5)


def test_only_the_wanted_side_of_a_product_is_built():
    graph = Graph()
    a, b = graph.input("a", (3, 5)), graph.parameter("b", (5, 4))
    graph.set_outputs([a @ b])
    assert ops_of(darner.vjp(graph)).count("matmul_at") == 1
    assert "matmul_bt" not in ops_of(darner.vjp(graph))


def test_tangent_of_a_product_needs_no_transposes_either():
    graph = Graph()
    a, b = graph.input("a", (2, 3, 5)), graph.input("b", (5, 4))
    graph.set_outputs([a @ b])
    assert set(ops_of(darner.jvp(graph, ["a", "b"]))) <= {"input", "matmul", "dot_general", "add"}


def test_gradient_of_einsum_agrees_with_autograd():
    rng = np.random.default_rng(0)
    a, b, c = rng.normal(size=(2, 3, 3)), rng.normal(size=(3, 4)), rng.normal(size=(4, 5))
    equation = "bii,ij,jk->kb"
    weights = rng.normal(size=(5, 2))
    found = gradients(lambda *n: n[0].graph.einsum(equation, *n), weights, a=a, b=b, c=c)
    leaves = [torch.tensor(value, requires_grad=True) for value in (a, b, c)]
    wanted = torch.autograd.grad(torch.einsum(equation, *leaves), leaves, torch.tensor(weights))
    for ours, theirs in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_backward_of_grouped_matmul_makes_no_matrix_for_each_row():
    graph = Graph()
    x, w = graph.input("x", (64, 32)), graph.input("w", (4, 32, 16))
    graph.set_outputs([x.grouped_matmul(w, graph.input("e", (64,), "i32"))])
    both = darner.vjp(graph, ["x", "w"])
    assert max(node.size for node in both.nodes) == 64 * 4 * 32
    assert ops_of(both).count("grouped_matmul") == 2


# --------------------------------------------------------------------------- linear algebra


def test_gradient_of_cholesky_stands_in_the_triangle_that_is_read():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(4, 4))
    a, weights = root @ root.T + np.eye(4), rng.normal(size=(4, 4))
    found = gradients(lambda x: x.cholesky(), weights, a=a)["a"]
    assert not np.triu(found, 1).any()
    leaf = torch.tensor(a, requires_grad=True)
    factor = torch.linalg.cholesky(leaf)
    (wanted,) = torch.autograd.grad(factor, leaf, torch.tensor(weights))
    np.testing.assert_allclose(found + found.T, wanted + wanted.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("lower", "unit"), list(itertools.product([True, False], repeat=2)))
def test_triangular_solve_has_no_gradient_where_it_does_not_read(lower, unit):
    a, b = np.arange(1.0, 10).reshape(3, 3) + np.eye(3), np.ones((3, 2))
    found = gradients(
        lambda a, b: a.triangular_solve(b, lower=lower, unit_diagonal=unit),
        np.ones((3, 2)),
        a=a,
        b=b,
    )
    read = np.tril(np.ones((3, 3)), -unit) if lower else np.triu(np.ones((3, 3)), unit)
    assert not found["a"][read == 0].any()
    assert found["a"][read == 1].any()
    leaves = [torch.tensor(value, requires_grad=True) for value in (a, b)]
    solved = torch.linalg.solve_triangular(*leaves, upper=not lower, unitriangular=unit)
    wanted = torch.autograd.grad(solved.sum(), leaves)
    np.testing.assert_allclose(found["a"], wanted[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found["b"], wanted[1], rtol=1e-12, atol=1e-12)


def test_gradient_of_the_determinant_is_its_cofactors():
    a = np.array([[2.0, 3.0], [5.0, -7.0]])
    found = gradients(lambda x: x.det(), 1.0, a=a)["a"]
    np.testing.assert_allclose(found, [[-7, -5], [-3, 2]], rtol=1e-12)


def test_the_sign_of_a_determinant_passes_no_gradient():
    graph = Graph()
    sign, _ = graph.input("a", (2, 2), "f64").slogdet()
    graph.set_outputs([sign])
    both = darner.vjp(graph, ["a"])
    found = darner.run(both, {"a": np.eye(2), "d_output": np.ones(())})[1]
    np.testing.assert_array_equal(found, np.zeros((2, 2)))


@pytest.mark.parametrize("name", ["solve", "triangular_solve"])
def test_one_shared_matrix_is_solved_once_for_a_whole_batch(name):
    graph = Graph()
    a, b = graph.input("a", (4, 4)), graph.input("b", (4, 3))
    graph.set_outputs([OPS[name](a, b)])
    batched = darner.vmap(graph, ["b"], 5)
    (solve,) = [node for node in batched.nodes if node.op.name == name]
    assert [operand.shape for operand in solve.operands] == [(4, 4), (4, 15)]


# --------------------------------------------------------------------------- random


def test_gradient_of_dropout_has_the_mask_and_scale_of_the_result():
    graph = Graph()
    x = graph.input("x", (1000,), "f64")
    graph.set_outputs([x.dropout(0.25, seed=3, step=graph.input("step", (), "u32"))])
    both = darner.vjp(graph, ["x"])
    weights = np.arange(1.0, 1001)
    values = {"x": np.ones(1000), "d_output": weights}
    result, found = darner.run(both, {**values, "step": np.uint32(7)})
    assert not np.array_equal(result, darner.run(both, {**values, "step": np.uint32(8)})[0])
    np.testing.assert_array_equal(found, weights * result)
    assert set(np.unique(result)) == {0.0, 1 / 0.75}


def test_a_step_that_differs_along_the_batch_is_refused():
    graph = Graph()
    step = graph.input("step", (), "u32")
    graph.set_outputs([graph.input("x", (4,)).dropout(0.5, step=step)])
    with pytest.raises(darner.ArgumentError, match="the step of a random op differs along"):
        darner.vmap(graph, ["step"], 3)


@pytest.mark.parametrize("index", range(10))
def test_sampling_over_a_batch_draws_what_each_of_its_elements_would(index):
    case = make_case(OPS["sample"], index, "f32")
    logits = np.stack([np.roll(case.arrays["arg0"], shift, -1) for shift in range(3)])
    batched = darner.vmap(case.graph, ["arg0"], 3)
    found = darner.run(batched, {**case.arrays, "arg0": logits})[0]
    wanted = [darner.run(case.graph, {**case.arrays, "arg0": one})[0] for one in logits]
    np.testing.assert_array_equal(found, wanted)


# --------------------------------------------------------------------------- batches

NAMES = [
    "gather",
    "scatter_add",
    "take_along_axis",
    "scatter_add_along_axis",
    "dynamic_slice",
    "dynamic_update_slice",
    "scatter",
    "sort",
    "argsort",
    "top_k",
    "embedding",
    "masked_fill",
    "dot_general",
    "matmul",
    "matmul_at",
    "matmul_bt",
    "windows",
    "fold",
    "solve",
    "triangular_solve",
    "cholesky",
    "slogdet",
    "inverse",
    "dense_solve",
    "batched_dense_solve",
    "lora_matmul",
    "grouped_matmul",
    "fused_matmul_bias_act",
    "dropout",
]


def batch_like(array, count, rng, definite):
    """Values of the same kind: shuffled integers, scaled matrices, or moved floats."""
    if array.dtype.kind != "f":
        shuffled = [rng.permutation(array.reshape(-1)) for _ in range(count)]
        return np.array(shuffled, array.dtype).reshape((count, *array.shape))
    if definite:
        return np.stack([array * (i + 1) for i in range(count)])
    return array + 0.01 * rng.normal(size=(count, *array.shape))


def batched_calls():
    for name in NAMES:
        for index in range(len(OPS[name].samples)):
            arrays = make_case(OPS[name], index, "f64").arrays
            # A step must be shared.
            names = [n for n in arrays if not (name == "dropout" and n == "arg1")]
            for count in range(1, len(names) + 1):
                for chosen in itertools.combinations(names, count):
                    yield pytest.param(name, index, chosen, id=f"{name}-{index}-{'+'.join(chosen)}")


@pytest.mark.parametrize(("name", "index", "chosen"), list(batched_calls()))
def test_batch_agrees_with_a_loop(name, index, chosen):
    case, rng = make_case(OPS[name], index, "f64"), np.random.default_rng(index)
    batches = {
        key: batch_like(case.arrays[key], 3, rng, definite=name == "cholesky") for key in chosen
    }
    batched = darner.vmap(case.graph, list(chosen), 3).verify()
    found = darner.run(batched, {**case.arrays, **batches})
    each = [
        darner.run(case.graph, {**case.arrays, **{key: batches[key][i] for key in chosen}})
        for i in range(3)
    ]
    for ours, *wanted in zip(found, *each, strict=True):
        assert ours.dtype == wanted[0].dtype
        np.testing.assert_allclose(ours, np.stack(wanted), rtol=1e-12, atol=1e-12)


def test_batch_inside_a_batch_agrees_with_two_loops():
    rng = np.random.default_rng(2)
    x, i = rng.normal(size=(2, 3, 5, 4)), rng.integers(0, 5, (2, 3, 6)).astype(np.int32)
    graph = traced(lambda x, i: x.gather(i), x=x[0, 0], i=i[0, 0])
    twice = darner.vmap(darner.vmap(graph, ["x", "i"], 3), ["x", "i"], 2)
    wanted = [[x[a, b][i[a, b]] for b in range(3)] for a in range(2)]
    np.testing.assert_array_equal(darner.run(twice, {"x": x, "i": i})[0], wanted)


def test_gradients_of_single_examples_agree_with_torch_func():
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 7, (4, 5)).astype(np.int32)
    table, w = rng.normal(size=(7, 3)), rng.normal(size=(3, 2))

    def loss(tokens, table, w):
        return (tokens.embedding(table) @ w).tanh().sum()

    graph = traced(loss, tokens=tokens[0], table=table, w=w)
    each = darner.vmap(darner.grad(graph, ["table", "w"]), ["tokens"], 4)
    found = darner.run(each, {"tokens": tokens, "table": table, "w": w})
    arrays = [torch.tensor(value) for value in (table, w)]
    wanted = torch.func.vmap(
        torch.func.grad(lambda t, w, i: torch.tanh(t[i] @ w).sum(), argnums=(0, 1)),
        in_dims=(None, None, 0),
    )(*arrays, torch.tensor(tokens).long())
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["set", "add", "mul", "max", "min"])
def test_gradient_of_a_batch_of_scatters_is_the_batch_of_gradients(mode):
    rng = np.random.default_rng(4)
    values = {
        "x": rng.normal(size=(3, 4, 2)),
        "i": rng.integers(0, 4, (3, 6)).astype(np.int32),
        "src": rng.normal(size=(3, 6, 2)),
    }
    one = {name: value[0] for name, value in values.items()}
    graph = traced(lambda x, i, src: x.scatter(i, src, 0, mode), **one)
    outer = darner.vjp(darner.vmap(graph, list(values), 3), ["x", "src"])
    inner = darner.vmap(darner.vjp(graph, ["x", "src"]), [*values, "d_output"], 3)
    weights = rng.normal(size=(3, 4, 2))
    for ours, theirs in zip(
        darner.run(outer, {**values, "d_output": weights}),
        darner.run(inner, {**values, "d_output": weights}),
        strict=True,
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_index_outside_its_own_element_of_a_batch_stays_an_error():
    graph = traced(
        lambda x, i, s: x.scatter(i, s), x=np.zeros(4), i=np.zeros(1, np.int32), s=np.ones(1)
    )
    batched = darner.vmap(graph, ["x", "i", "s"], 2)
    values = {"x": np.zeros((2, 4)), "s": np.ones((2, 1))}
    for wrong in ([[4], [0]], [[0], [-1]]):
        with pytest.raises(darner.RunError, match="outside"):
            darner.run(batched, {**values, "i": np.array(wrong, np.int32)})


def test_small_index_types_hold_places_in_a_large_batch():
    i = np.full((300, 1), 2, np.uint8)
    graph = traced(lambda x, i, s: x.scatter(i, s), x=np.zeros(3), i=i[0], s=np.ones(1))
    batched = darner.vmap(graph, ["x", "i", "s"], 300)
    src = np.arange(300.0).reshape(300, 1)
    found = darner.run(batched, {"x": np.zeros((300, 3)), "i": i, "s": src})[0]
    np.testing.assert_array_equal(found[:, 2], np.arange(300.0))


def test_batches_over_symbolic_sizes_agree_with_fixed_ones():
    rng = np.random.default_rng(5)
    x, starts = rng.normal(size=(3, 6, 4)), np.array([[1, 9], [5, 0], [-2, 0]], np.int32)
    update, i = rng.normal(size=(3, 2, 4)), rng.integers(0, 6, (3, 2)).astype(np.int32)

    def program(rows, block):
        graph = Graph()
        a, s = graph.input("x", (rows, 4), "f64"), graph.input("s", (2,), "i32")
        u, j = graph.input("u", (block, 4), "f64"), graph.input("i", (block,), "i32")
        graph.set_outputs(
            [
                a.dynamic_slice(s, (block, 4)),
                a.dynamic_update_slice(u, s),
                a.scatter(j, u, 0, "max"),
            ]
        )
        return graph

    values = {"x": x, "s": starts, "u": update, "i": i}
    symbolic = darner.vmap(program("N", "K"), list(values), "B").bind(N=6, K=2, B=3)
    found = darner.run(symbolic, values)
    for k in range(3):
        one = {name: value[k] for name, value in values.items()}
        for ours, theirs in zip(found, darner.run(program(6, 2), one), strict=True):
            np.testing.assert_array_equal(ours[k], theirs)
