"""Every op over a batch, against a loop over its elements."""

import zlib

import numpy as np
import pytest

import darner
from darner.graph import dtypes
from darner.testing import assert_close, make_array, make_case
from tests import conformance
from tests.conformance.test_derivatives import specs_of
from tests.conformance.test_reference import BUILTIN

SIZE = 3


def has_operands(op, index):
    sample = op.samples[index]
    return bool(specs_of([*sample.args, *sample.kwargs.values()]))


CALLS = [
    (op, index)
    for op in conformance.ops_to_differentiate(BUILTIN)
    for index in conformance.sample_indices(op)
    if has_operands(op, index)
]


def batches(op, index):
    """A case, and for each of its operands ``SIZE`` arrays as the sample asks."""
    case = make_case(op, index, "f64")
    sample = op.samples[index]
    specs = specs_of([*sample.args, *sample.kwargs.values()])
    rng = np.random.default_rng(zlib.crc32(f"{op.name}/{index}/batch".encode()))
    values = {
        name: [make_array(spec, dtypes.f64, rng) for _ in range(SIZE)]
        for name, spec in zip(case.arrays, specs, strict=True)
    }
    for name, spec in zip(case.arrays, specs, strict=True):
        if spec.kind == "bool":  # any and all of random ones hardly differ
            values[name][0][...], values[name][1][...] = False, True
    return case, values


def steps_of(case):
    """The operands that number the draws of random ops: a batch draws the same numbers, so they are shared."""
    return {
        operand.name
        for node in case.graph.nodes
        for operand, slot in zip(node.operands, node.slots, strict=True)
        if slot == "step" and operand.name is not None
    }


def check(case, values, axes, out_axis=0):
    """Compare a batched graph with a loop; operands without an axis keep the case's value."""
    graph = darner.vmap(case.graph, axes, SIZE, out_axis=out_axis).verify()
    given = {
        name: np.stack(values[name], axes[name]) if name in axes else array
        for name, array in case.arrays.items()
    }
    found = darner.run(graph, given)
    each = [
        darner.run(case.graph, {**case.arrays, **{name: values[name][i] for name in axes}})
        for i in range(SIZE)
    ]
    for node, ours, theirs in zip(case.graph.outputs, found, zip(*each, strict=True), strict=True):
        assert ours.dtype == node.dtype.numpy
        assert_close(ours, np.stack(theirs, out_axis), node.dtype, case.length)


@conformance.per_op(CALLS)
def test_vmap_agrees_with_a_loop(op, index):
    case, values = batches(op, index)
    names = [name for name in case.arrays if name not in steps_of(case)]
    for name in names:
        check(case, values, {name: 0})
    check(case, values, dict.fromkeys(names, 0))
    check(case, values, {name: case.arrays[name].ndim for name in names}, out_axis=-1)


@pytest.mark.parametrize(
    "name", ["random_uniform", "random_normal", "random_permutation", "dropout"]
)
def test_vmap_refuses_a_step_for_each_element(name):
    graph = darner.Graph()
    step = graph.input("step", (), "u32")
    operand = {"random_permutation": 4, "dropout": graph.input("x", (4,))}.get(name, (4,))
    graph.set_outputs([getattr(graph, name)(operand, step=step)])
    with pytest.raises(
        darner.ArgumentError, match="the step of a random op differs along the batch"
    ):
        darner.vmap(graph, "step", SIZE)


NESTED = ["add", "softmax", "matmul", "conv", "gather", "sort", "rms_norm", "max_pool", "where"]


@pytest.mark.parametrize("name", [*NESTED, "scaled_dot_attention", "cholesky", "cumsum"])
def test_vmap_of_vmap_agrees_with_two_loops(name):
    op = darner.graph.op.OPS[name]
    index = len(op.samples) // 2
    case, values = batches(op, index)
    inner = darner.vmap(case.graph, dict.fromkeys(case.arrays, 0), SIZE)
    # The first operand varies along both axes, the rest along the inner one only.
    first = next(iter(case.arrays))
    graph = darner.vmap(inner, {first: 1}, 2, out_axis=1)
    swapped = values[first][::-1]
    given = {name: np.stack(arrays) for name, arrays in values.items()}
    given[first] = np.stack([np.stack(values[first]), np.stack(swapped)], 1)
    found = darner.run(graph, given)
    for i in range(SIZE):
        for j, source in enumerate((values[first], swapped)):
            one = {name: arrays[i] for name, arrays in values.items()} | {first: source[i]}
            for ours, theirs in zip(found, darner.run(case.graph, one), strict=True):
                assert_close(ours[i, j], theirs, theirs.dtype, case.length)


# --------------------------------------------------------------------------- the whole transform


def linear():
    graph = darner.Graph("linear")
    x, w = graph.input("x", (4,), "f64"), graph.parameter("w", (4, 2), "f64")
    graph.set_outputs([(x @ w).tanh()])
    return graph


def arrays_of(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape) for shape in shapes]


def test_parameters_can_have_a_batch_axis_anywhere():
    xs, ws = arrays_of((4, 5), (4, 5, 2))
    graph = darner.vmap(linear(), {"x": 1, "w": 1}, 5)
    assert graph.inputs["x"].shape == (4, 5)
    assert graph.parameters["w"].shape == (4, 5, 2)
    (found,) = darner.run(graph, {"x": xs}, {"w": ws})
    np.testing.assert_allclose(found, np.tanh(np.einsum("ib,ibo->bo", xs, ws)), rtol=1e-14)


def test_axes_count_from_the_end_and_none_means_shared():
    (ws,) = arrays_of((4, 2, 3))
    graph = darner.vmap(linear(), {"x": None, "w": -1}, 3, out_axis=-1)
    (found,) = darner.run(graph, {"x": np.ones(4)}, {"w": ws})
    np.testing.assert_allclose(found, np.tanh(ws.sum(0)), rtol=1e-14)


def test_all_inputs_are_batched_by_default_and_parameters_shared():
    xs, w = arrays_of((6, 4), (4, 2))
    graph = darner.vmap(linear(), size=6)
    assert graph.parameters["w"].shape == (4, 2)
    np.testing.assert_allclose(
        darner.run(graph, {"x": xs}, {"w": w})[0], np.tanh(xs @ w), rtol=1e-14
    )


def test_the_size_can_be_a_symbol():
    xs, w = arrays_of((6, 4), (4, 2))
    graph = darner.vmap(linear(), ["x"], "batch")
    assert graph.dynamic_symbols() == ["batch"]
    np.testing.assert_allclose(
        darner.run(graph, {"x": xs}, {"w": w})[0], np.tanh(xs @ w), rtol=1e-14
    )


def test_outputs_that_do_not_depend_on_the_batch_are_repeated():
    graph = linear()
    graph.set_outputs([*graph.outputs, graph.parameters["w"] * 2.0])
    (w,) = arrays_of((4, 2))
    found = darner.run(darner.vmap(graph, "x", 3), {"x": np.ones((3, 4))}, {"w": w})
    np.testing.assert_array_equal(found[1], np.stack([2 * w] * 3))


def test_a_shared_weight_stays_one_product_and_is_not_repeated():
    graph = darner.vmap(linear(), "x", 64)
    weight = graph.parameters["w"]
    assert [
        user.op.is_composite or user.op.name == "dot_general" for user in graph.users(weight)
    ] == [True]
    assert all(node.size <= 64 * 4 for node in graph.nodes)


@pytest.mark.parametrize(
    "name", ["softmax", "layer_norm", "rms_norm", "gelu", "swiglu", "conv", "scaled_dot_attention"]
)
def test_composites_stay_whole_under_vmap(name):
    op = darner.graph.op.OPS[name]
    case = make_case(op, 0)
    graph = darner.vmap(case.graph, [next(iter(case.arrays))], SIZE)
    assert name in {node.op.name for node in graph.nodes}


def counter():
    graph = darner.Graph()
    x, total = graph.input("x", (2,), "f64"), graph.state("total", (2,), "f64")
    graph.set_update(total, total + x)
    graph.set_outputs([x * 2.0])
    return graph


def test_updates_of_batched_states_are_kept():
    graph = darner.vmap(counter(), {"x": 0, "total": 1}, 3)
    state = {"total": np.ones((2, 3))}
    (xs,) = arrays_of((3, 2))
    darner.run(graph, {"x": xs}, state=state)
    np.testing.assert_array_equal(state["total"], 1 + xs.T)


def test_a_shared_state_that_would_differ_along_the_batch_is_an_error():
    with pytest.raises(darner.ArgumentError, match="'total' is shared by the batch") as caught:
        darner.vmap(counter(), "x", 3)
    assert "give 'total' a batch axis too" in str(caught.value)


def test_mistakes_say_what_to_do():
    with pytest.raises(darner.ArgumentError, match="size of the batch is missing"):
        darner.vmap(linear(), "x")
    with pytest.raises(darner.UnknownNameError, match=r"has no leaf 'xx'.*did you mean 'x'"):
        darner.vmap(linear(), "xx", 3)
    with pytest.raises(darner.ShapeError, match="'x' has rank 1: its batch axis cannot be 2"):
        darner.vmap(linear(), {"x": 2}, 3)
    with pytest.raises(darner.ArgumentError, match="out_axis 2 does not fit an output of rank 2"):
        darner.vmap(linear(), "x", 3, out_axis=2)
