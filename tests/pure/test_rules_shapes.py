"""Derivatives of reductions and shape ops at their corners, and batching, by value."""

import itertools

import numpy as np
import pytest
import torch

import darner
from darner import Graph, symbol

NAN = float("nan")
INF = float("inf")


def pulled(function, values, cotangent=None, dtype="f64"):
    """The gradient of one op by its operand, mid-graph: between a scaling and a random weight."""
    g = Graph()
    x = g.input("x", np.shape(values), dtype)
    y = function(x * 1.0)
    g.set_outputs([y])
    weight = np.ones(y.shape) if cotangent is None else np.asarray(cotangent)
    both = darner.vjp(g, ["x"]).verify()
    return darner.run(both, {"x": np.array(values), "d_output": weight})[1]


def pushed(function, values, tangent):
    g = Graph()
    x = g.input("x", np.shape(values), "f64")
    g.set_outputs([function(x * 1.0)])
    both = darner.jvp(g, ["x"]).verify()
    return darner.run(both, {"x": np.array(values), "tangent_x": np.array(tangent)})[1]


def hessian(function, values):
    """All second derivatives of ``sum(function(x) * weights)``, one product with a unit vector each."""
    g = Graph()
    x = g.input("x", np.shape(values), "f64")
    y = function(x)
    weights = np.arange(1.0, np.prod(y.shape, dtype=int) + 1).reshape(y.shape)
    g.set_outputs([(y * g.constant(weights)).sum()])
    product = darner.hvp(g, ["x"])
    size = int(np.prod(np.shape(values)))
    rows = [
        darner.run(product, {"x": np.array(values), "tangent_x": unit.reshape(np.shape(values))})[0]
        for unit in np.eye(size)
    ]
    return np.stack(rows).reshape(size, size)


def torch_hessian(function, values):
    def loss(x):
        y = function(x)
        weights = torch.arange(1.0, y.numel() + 1, dtype=torch.float64).reshape(y.shape)
        return (y * weights).sum()

    x = torch.tensor(np.array(values))
    size = x.numel()
    return torch.autograd.functional.hessian(loss, x).numpy().reshape(size, size)


# --------------------------------------------------------------------------- extremes


def test_gradient_of_max_goes_to_the_first_maximum():
    assert pulled(lambda x: x.max(), [1.0, 3, 2, 3]).tolist() == [0, 1, 0, 0]
    assert pulled(lambda x: x.min(), [1.0, 0, 2, 0]).tolist() == [0, 1, 0, 0]
    ties = np.zeros((2, 3))
    assert pulled(lambda x: x.max(1), ties, [5, 7]).tolist() == [[5, 0, 0], [7, 0, 0]]
    assert pulled(lambda x: x.max(0), ties, [5, 6, 7]).tolist() == [[5, 6, 7], [0, 0, 0]]


def test_gradient_of_max_over_several_axes_goes_to_one_element_in_row_major_order():
    values = np.zeros((2, 2, 3))
    values[0, 1, 2] = values[1, 0, 0] = 4.0
    found = pulled(lambda x: x.max(), values, 2.0)
    assert found[0, 1, 2] == 2.0
    assert found.sum() == 2.0
    # Axes 0 and 2 for each index of axis 1, however they are listed.
    for axes in ((0, 2), (2, 0)):
        found = pulled(lambda x, axes=axes: x.max(axes), values, [5, 7])
        wanted = np.zeros((2, 2, 3))
        wanted[1, 0, 0], wanted[0, 1, 2] = 5, 7
        np.testing.assert_array_equal(found, wanted)


def test_gradient_of_max_goes_to_the_first_nan():
    assert pulled(lambda x: x.max(), [1.0, NAN, 9, NAN], 3.0).tolist() == [0, 3, 0, 0]
    assert pulled(lambda x: x.min(), [1.0, NAN, -9, NAN], 3.0).tolist() == [0, 3, 0, 0]


def test_tangent_of_max_ignores_what_does_not_move_it():
    assert pushed(lambda x: x.max(), [1.0, 3, 2], [NAN, 5, INF]) == 5.0


def test_max_of_nothing_to_reduce_passes_its_gradient():
    assert pulled(lambda x: x.max(()), [1.0, 2], [5, 7]).tolist() == [5, 7]
    assert pulled(lambda x: x.max(), 3.0, 4.0) == 4.0


def test_gradient_of_cummax_goes_to_the_first_holder_of_each_maximum():
    values = [2.0, 1, 2, 3, 3, 0]
    weights = [1.0, 10, 100, 1000, 10_000, 100_000]
    found = pulled(lambda x: x.cummax(), values, weights)
    assert found.tolist() == [111, 0, 0, 111_000, 0, 0]
    found = pulled(lambda x: x.cummin(), [-v for v in values], weights)
    assert found.tolist() == [111, 0, 0, 111_000, 0, 0]


def test_gradient_of_reversed_cummax_counts_from_the_end():
    found = pulled(lambda x: x.cummax(reverse=True), [3.0, 1, 3, 2, 2], [1, 10, 100, 1000, 10_000])
    assert found.tolist() == [0, 0, 111, 0, 11_000]


def test_gradient_of_cummax_stays_at_the_first_nan():
    found = pulled(lambda x: x.cummax(), [1.0, NAN, 5, NAN], [1, 10, 100, 1000])
    assert found.tolist() == [1, 1110, 0, 0]


def test_cummax_along_an_inner_axis_agrees_with_torch():
    values = np.random.default_rng(0).permutation(24).reshape(2, 4, 3).astype(float)
    weights = np.random.default_rng(1).normal(size=(2, 4, 3))
    x = torch.tensor(values, requires_grad=True)
    (torch.cummax(x, 1).values * torch.tensor(weights)).sum().backward()
    np.testing.assert_array_equal(pulled(lambda n: n.cummax(1), values, weights), x.grad.numpy())
    moved = pushed(lambda n: n.cummax(1), values, weights)
    places = torch.cummax(torch.tensor(values), 1).indices
    np.testing.assert_array_equal(moved, np.take_along_axis(weights, places.numpy(), 1))


# --------------------------------------------------------------------------- products


@pytest.mark.parametrize("zeros", [(), (1,), (0, 2), (0, 1, 3)])
def test_derivatives_of_prod_are_exact_at_zeros(zeros):
    values = np.array([2.0, 3, 5, 7])
    values[list(zeros)] = 0
    others = [np.prod(np.delete(values, i)) for i in range(4)]
    assert pulled(lambda x: x.prod(), values).tolist() == others
    wanted = np.zeros((4, 4))
    for i, j in itertools.permutations(range(4), 2):
        wanted[i, j] = np.prod(np.delete(values, [i, j]))
    np.testing.assert_array_equal(hessian(lambda x: x.prod(), values), wanted)


def test_prod_over_several_axes_keeps_its_gradient_in_place():
    values = np.random.default_rng(2).uniform(-2, 2, (2, 3, 4))
    values[0, 1, 2] = values[1, 2, 3] = 0
    weights = np.random.default_rng(3).normal(size=3)
    x = torch.tensor(values, requires_grad=True)
    (x.prod(2).prod(0) * torch.tensor(weights)).sum().backward()
    for axes in ((0, 2), (2, 0)):
        found = pulled(lambda n, axes=axes: n.prod(axes), values, weights)
        np.testing.assert_allclose(found, x.grad.numpy(), rtol=1e-13)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("zeros", [(), (0,), (2,), (1, 3), (0, 1, 4)])
def test_derivatives_of_cumprod_are_exact_at_zeros(zeros, reverse):
    values = np.array([2.0, -3, 5, 7, 11])
    values[list(zeros)] = 0
    weights = np.array([1.0, 2, 4, 8, 16])

    def products(x):
        x = x.flip(0) if reverse else x
        rows = [x[0]]
        for k in range(1, 5):
            rows.append(rows[-1] * x[k])
        return torch.stack(rows[::-1] if reverse else rows)

    x = torch.tensor(values, requires_grad=True)
    (products(x) * torch.tensor(weights)).sum().backward()
    found = pulled(lambda n: n.cumprod(reverse=reverse), values, weights)
    np.testing.assert_array_equal(found, x.grad.numpy())
    found = hessian(lambda n: n.cumprod(reverse=reverse), values)
    np.testing.assert_array_equal(found, torch_hessian(products, values))


def test_cumprod_of_a_symbolic_size_is_differentiated_before_the_size_is_known():
    g = Graph()
    x = g.input("x", (symbol("n"),), "f64")
    g.set_outputs([x.cumprod().sum()])
    gradient = darner.grad(g, ["x"])
    found = darner.run(gradient, {"x": np.array([2.0, 0, 3])})[0]
    assert found.tolist() == [1, 2 + 2 * 3, 0]


def test_linear_recurrence_walks_from_either_end():
    g = Graph()
    a, b = g.input("a", (4,), "f64"), g.input("b", (4,), "f64")
    g.set_outputs([a.linear_recurrence(b), a.linear_recurrence(b, reverse=True)])
    # The factor at the start is not used, not even an infinite one.
    up, _ = darner.run(g, {"a": [INF, 2, 0, 3], "b": [1.0, 2, 3, 4]})
    assert up.tolist() == [1, 4, 3, 13]
    _, down = darner.run(g, {"a": [3.0, 0, 2, INF], "b": [4.0, 3, 2, 1]})
    assert down.tolist() == [13, 3, 4, 1]


def test_linear_recurrence_refuses_operands_of_different_shapes():
    g = Graph()
    with pytest.raises(darner.ShapeError, match=r"a is \(3,\), b is \(4,\)"):
        g.linear_recurrence(g.input("a", (3,)), g.input("b", (4,)))


def test_second_derivatives_of_linear_recurrence_agree_with_a_loop():
    values = np.random.default_rng(4).uniform(-2, 2, (2, 5))
    values[0, 2] = 0

    def loop(x):
        total, rows = torch.zeros((), dtype=torch.float64), []
        for i in range(5):
            total = x[0, i] * total + x[1, i]
            rows.append(total)
        return torch.stack(rows)

    found = hessian(lambda x: x[0].linear_recurrence(x[1]), values)
    np.testing.assert_allclose(found, torch_hessian(loop, values), rtol=1e-13, atol=1e-13)


# --------------------------------------------------------------------------- means and norms


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.std(-1),
        lambda x: x.std(-1, correction=1),
        lambda x: x.norm(-1),
        lambda x: x.norm(-1, order=1),
        lambda x: x.norm(-1, order=INF),
    ],
)
def test_gradient_at_the_tip_of_std_and_norm_is_zero(function):
    flat = np.zeros((2, 3))
    np.testing.assert_array_equal(pulled(function, flat), flat)
    np.testing.assert_array_equal(pushed(function, flat, np.ones((2, 3))), np.zeros(2))
    assert np.isfinite(hessian(function, flat)).all()


def test_std_of_equal_rows_does_not_spoil_the_others():
    values = np.array([[1.0, 1, 1], [1, 2, 4]])
    x = torch.tensor(values[1], requires_grad=True)
    torch.std(x, correction=0).backward()
    found = pulled(lambda n: n.std(1), values)
    assert found[0].tolist() == [0, 0, 0]
    np.testing.assert_allclose(found[1], x.grad.numpy(), rtol=1e-14)


def test_gradient_of_the_largest_absolute_value_goes_to_the_first():
    found = pulled(lambda x: x.norm(order=INF), [1.0, -3, 3], 2.0)
    assert found.tolist() == [0, -2, 0]


def test_gradient_of_logsumexp_is_zero_where_all_is_minus_infinity():
    values = np.array([[-INF, -INF], [-INF, 2.0], [0, 0]])
    found = pulled(lambda x: x.logsumexp(1), values, [3, 5, 8])
    assert found.tolist() == [[0, 0], [0, 5], [4, 4]]
    assert np.isfinite(hessian(lambda x: x.logsumexp(1), values)).all()


def test_second_derivatives_of_logsumexp_var_std_and_norm_agree_with_torch():
    values = np.random.default_rng(5).normal(size=(2, 3))
    pairs = [
        (lambda x: x.logsumexp(1), lambda x: torch.logsumexp(x, 1)),
        (lambda x: x.logsumexp(), lambda x: torch.logsumexp(x, (0, 1))),
        (lambda x: x.var(0, correction=1), lambda x: torch.var(x, 0)),
        (lambda x: x.std(1, True), lambda x: torch.std(x, 1, correction=0, keepdim=True)),
        (lambda x: x.norm(), lambda x: torch.linalg.vector_norm(x)),
    ]
    for ours, theirs in pairs:
        np.testing.assert_allclose(
            hessian(ours, values), torch_hessian(theirs, values), rtol=1e-10, atol=1e-12
        )


def test_gradient_of_a_long_mean_in_f16_does_not_overflow_its_count():
    g = Graph()
    x = g.input("x", (90_000,), "f16")
    g.set_outputs([x.mean() * 30_000.0])
    found = darner.run(darner.grad(g, ["x"]), {"x": np.zeros(90_000, np.float16)})[0]
    assert found.dtype == np.float16
    np.testing.assert_allclose(found[:3].astype(float), 1 / 3, rtol=1e-3)


def test_gradient_of_logsumexp_in_bf16_is_as_exact_as_bf16():
    values = np.array([100.0, 99, 98, 60])
    g = Graph()
    x = g.input("x", (4,), "bf16")
    g.set_outputs([x.logsumexp()])
    found = darner.run(darner.grad(g, ["x"]), {"x": values})[0].astype(float)
    np.testing.assert_allclose(found, torch.softmax(torch.tensor(values), 0), rtol=2**-8)


def test_mean_of_no_elements_has_no_nan_in_its_gradient():
    assert pulled(lambda x: x.mean(1), np.zeros((2, 0))).shape == (2, 0)
    assert pushed(lambda x: x.mean(1), np.zeros((2, 0)), np.zeros((2, 0))).tolist() == [0, 0]


# --------------------------------------------------------------------------- moves


PADDINGS = [
    (low, high, gap, size)
    for low, high, gap, size in itertools.product((-4, -1, 0, 2), (-1, 0, 3), (0, 1, 2), (0, 1, 4))
    if size + max(size - 1, 0) * gap + low + high >= 0
]


@pytest.mark.parametrize(("low", "high", "gap", "size"), PADDINGS)
def test_gradient_of_pad_reads_every_element_from_its_place(low, high, gap, size):
    spread = size + max(size - 1, 0) * gap
    weights = np.arange(1.0, spread + low + high + 1)
    wanted = [
        weights[low + i * (gap + 1)] if 0 <= low + i * (gap + 1) < len(weights) else 0
        for i in range(size)
    ]
    found = pulled(lambda x: x.pad(((low, high),), 9.0, interior=gap), np.zeros(size), weights)
    assert found.tolist() == wanted


@pytest.mark.parametrize("start", [0, 1, 3])
@pytest.mark.parametrize("stop", [3, 6, 7])
@pytest.mark.parametrize("step", [1, 2, 3, 9])
def test_gradient_of_slice_puts_every_element_back_in_its_place(start, stop, step):
    count = len(range(start, stop, step))
    weights = np.arange(1.0, count + 1)
    wanted = np.zeros(7)
    wanted[start:stop:step] = weights
    found = pulled(lambda x: x.slice((start,), (stop,), (step,)), np.zeros(7), weights)
    np.testing.assert_array_equal(found, wanted)


def test_slice_and_pad_stay_small_in_the_gradient_graph():
    g = Graph()
    x = g.input("x", (1000, 1000), "f32")
    g.set_outputs([x[10:20, ::3].pad(1).sum()])
    gradient = darner.grad(g, ["x"])
    constants = [node for node in gradient.nodes if node.op.name == "constant"]
    assert all(node.size == 1 for node in constants)


def test_gradient_of_a_slice_at_a_symbolic_place_is_zero_elsewhere():
    n = symbol("n")
    g = Graph()
    x = g.input("x", (n,), "f64")
    g.set_outputs([(x[n - 2 :] * np.array([3.0, 5])).sum()])
    found = darner.run(darner.grad(g, ["x"]), {"x": np.zeros(5)})[0]
    assert found.tolist() == [0, 0, 0, 3, 5]


def test_gradient_of_concat_gives_each_operand_its_part_and_nothing_to_the_others():
    g = Graph()
    a, b = g.input("a", (2, 1), "f64"), g.input("b", (2, 2), "f64")
    g.set_outputs([g.concat([a, b, a], 1)])
    both = darner.vjp(g, ["a"])
    assert "pad" not in {node.op.name for node in both.nodes}
    weights = np.arange(8.0).reshape(2, 4)
    values = {"a": np.zeros((2, 1)), "b": np.zeros((2, 2)), "d_output": weights}
    assert darner.run(both, values)[1].tolist() == [[3], [11]]


def test_gradient_of_broadcasting_to_no_elements_is_zero():
    assert pulled(lambda x: x.broadcast_to((0, 3)), np.ones((1, 3))).tolist() == [[0, 0, 0]]


def test_gradient_of_triangles_does_not_leak_nan():
    weights = np.full((2, 2), NAN)
    weights[1, 0] = 4.0
    assert pulled(lambda x: x.tril(-1), np.ones((2, 2)), weights).tolist() == [[0, 0], [4, 0]]


def test_gradient_of_reflection_sums_the_copies():
    found = pulled(
        lambda x: x.pad_with(((2, 1),), "reflect"), [1.0, 2, 3], [1, 10, 100, 1000, 10_000, 100_000]
    )
    assert found.tolist() == [100, 10 + 1000 + 100_000, 1 + 10_000]


# --------------------------------------------------------------------------- batches


def batched(function, values, axis=0):
    g = Graph()
    shape = list(np.shape(values))
    size = shape.pop(axis)
    g.set_outputs([function(g.input("x", shape, "f64"))])
    return darner.run(darner.vmap(g, {"x": axis}, size), {"x": np.array(values)})[0]


def test_argmax_of_the_flattened_tensor_is_found_for_each_of_a_batch():
    values = np.array([[[1.0, 5], [3, 4]], [[9, 1], [2, 9]]])
    assert batched(lambda x: x.argmax(), values).tolist() == [1, 0]
    assert batched(lambda x: x.argmin(None, True), values).tolist() == [[[0]], [[1]]]
    assert batched(lambda x: x.argmax(), [3.0, 4.0]).tolist() == [0, 0]


def test_reductions_of_scalars_keep_the_batch():
    for name in ("sum", "prod", "max", "min", "mean", "var", "std", "norm", "logsumexp"):
        found = batched(lambda x, name=name: getattr(x, name)(), [2.0, 4.0])
        wanted = [0, 0] if name in ("var", "std") else [2, 4]
        np.testing.assert_allclose(found, wanted)


def test_concat_repeats_what_the_batch_shares():
    g = Graph()
    a, b = g.input("a", (2,), "f64"), g.input("b", (1,), "f64")
    g.set_outputs([g.concat([a, b, b])])
    found = darner.run(darner.vmap(g, ["b"], 2), {"a": [1.0, 2], "b": [[7.0], [8]]})[0]
    assert found.tolist() == [[1, 2, 7, 7], [1, 2, 8, 8]]


def test_reductions_stay_whole_in_a_batch():
    g = Graph()
    x = g.input("x", (3, 4))
    g.set_outputs([x.logsumexp(1), x.std(), x.tril(), x.norm(0), x.cumprod(1)])
    names = [node.op.name for node in darner.vmap(g, ["x"], 5).nodes]
    assert names == ["input", "logsumexp", "std", "tril", "norm", "cumprod"]


@pytest.mark.parametrize("chosen", [["a"], ["b"], ["a", "b"]])
def test_linear_recurrence_in_a_batch_agrees_with_a_loop(chosen):
    rng = np.random.default_rng(6)
    g = Graph()
    a, b = g.input("a", (2, 3), "f64"), g.input("b", (2, 3), "f64")
    g.set_outputs([a.linear_recurrence(b, 0)])
    values = {n: rng.normal(size=(4, 2, 3) if n in chosen else (2, 3)) for n in ("a", "b")}
    found = darner.run(darner.vmap(g, chosen, 4), values)[0]
    for i in range(4):
        one = {n: v[i] if n in chosen else v for n, v in values.items()}
        np.testing.assert_array_equal(found[i], darner.run(g, one)[0])


def test_per_example_gradients_of_max_and_prod_agree_with_a_loop():
    values = np.random.default_rng(7).permutation(24).reshape(4, 2, 3).astype(float) - 11
    for function in (lambda x: x.max(), lambda x: x.prod(), lambda x: x.cumprod(1).sum()):
        g = Graph()
        g.set_outputs([function(g.input("x", (2, 3), "f64"))])
        gradient = darner.grad(g, ["x"])
        found = darner.run(darner.vmap(gradient, ["x"], 4), {"x": values})[0]
        for i in range(4):
            np.testing.assert_array_equal(found[i], darner.run(gradient, {"x": values[i]})[0])
