"""Kernels: every node once, in an order that works, computing what the graph computes."""

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, optim
from darner.lower.again import Price
from darner.lower.fuse import fuse
from darner.lower.groups import Fusing
from darner.lower.prepare import prepare
from darner.lower.roles import roles
from darner.lower.specs import kernels
from tests import conformance
from tests.optimizer.random_graphs import grown
from tests.zoo import ZOO, gpt2, llama, resnet, trained, values

several = settings(
    max_examples=5 if conformance.QUICK else 60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def run_kernels(graph, given, again):
    """The outputs and updates of a prepared graph, one kernel after another."""
    memory = {}
    for node in graph.nodes:
        if node.name is not None:
            memory[node.id] = np.asarray(given[node.name], node.dtype.numpy)
        elif node.op.name == "constant":
            memory[node.id] = node.attrs["values"].array
    for work in kernels(graph, again=again):
        inputs = {str(i): memory[id] for i, id in enumerate(work.operands)}
        for id, value in zip(work.results, darner.run(work.body, inputs), strict=True):
            memory[id] = value
    ends = [*graph.outputs, *(graph.updates[leaf] for leaf in graph.updates)]
    return [memory[node.id] for node in ends]


def run_graph(graph, given):
    inputs = {name: given[name] for name in graph.inputs}
    params = {name: given[name] for name in graph.parameters}
    state = {name: given[name] for name in graph.states}
    outputs = darner.run(graph, inputs, params, state=state)
    return outputs + [state[str(leaf.name)] for leaf in graph.updates]


def check(graph, given):
    prepared = prepare(graph).verify()
    wanted = run_graph(prepared, given)
    for again in (None, Price(1e6)):
        found = run_kernels(prepared, given, again)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def check_cut(graph):
    """Every node that computes is in one kernel, and each kernel comes after what it reads."""
    found = roles(graph)
    owned = [id for group in fuse(graph) for id in group.nodes]
    computing = [n.id for n in graph.nodes if found[n.id] not in ("leaf", "view", "part")]
    assert sorted(owned) == computing
    made = {n.id for n in graph.nodes if found[n.id] == "leaf"}
    for work in kernels(graph):
        assert made.issuperset(work.operands)
        made.update(work.results)
    assert made.issuperset(n.id for n in graph.outputs)


@pytest.mark.parametrize("name", list(ZOO)[:: 9 if conformance.QUICK else 2])
def test_a_model_by_kernels_is_the_model(name):
    graph = ZOO[name]()
    inputs, params, states = values(graph)
    check_cut(prepare(graph))
    check(graph, {**inputs, **params, **states})


@several
@given(st.integers(0, 2**32))
def test_random_graphs_by_kernels_are_the_graphs(seed):
    graph, given = grown(random.Random(seed), 12)
    check_cut(prepare(graph))
    check(graph, given)


def kinds(graph):
    return Counter(group.kind for group in fuse(prepare(graph)))


def test_a_softmax_is_one_kernel():
    g = Graph()
    g.set_outputs([g.input("x", (4, 8)).softmax()])
    assert kinds(g) == {"rows": 1}


def test_a_layer_norm_is_one_kernel_with_what_is_element_wise_around_it():
    g = Graph()
    x, r = g.input("x", (4, 8)), g.input("r", (4, 8))
    y = g.layer_norm(x.tanh() + r, g.parameter("w", (8,)), g.parameter("b", (8,)))
    g.set_outputs([y.relu()])
    assert kinds(g) == {"rows": 1}


@pytest.mark.parametrize(
    ("length", "wanted"), [(1000, {"rows": 1}), (1 << 20, {"rows": 1, "map": 1})]
)
def test_what_is_scaled_by_the_norm_of_a_long_vector_is_a_kernel_of_its_own(length, wanted):
    # No cache keeps a long one until its norm is known: it is read again in any case.
    g = Graph()
    x, w = g.input("x", (length,)), g.parameter("w", (length,))
    scale = 1.0 / (g.sum(x * x, axis=0, keepdims=True).sqrt() + 1.0)
    g.set_outputs([w - x * scale])
    assert kinds(g) == wanted


def test_a_long_softmax_writes_no_exponentials():
    g = Graph()
    g.set_outputs([g.input("x", (1, 1 << 20)).softmax()])
    prepared = prepare(g)
    nodes = list(prepared.nodes)
    names = [{nodes[id].op.name for id in group.nodes} for group in fuse(prepared)]
    assert names == [{"max", "stop_gradient"}, {"sub", "exp", "sum", "div"}]


def test_bias_activation_and_residual_are_part_of_a_product():
    g = Graph()
    x, w, b = g.input("x", (4, 8)), g.parameter("w", (8, 6)), g.parameter("b", (6,))
    r = g.input("r", (4, 6))
    g.set_outputs([(x @ w + b).gelu() + r])
    (group,) = fuse(prepare(g))
    assert group.kind == "contract"


def test_what_the_residual_needs_may_depend_on_the_product_only_from_outside():
    # h reads the product, and what is added to the product reads h: the sum cannot be its epilogue.
    g = Graph()
    x, w = g.input("x", (4, 4)), g.parameter("w", (4, 4))
    y = x @ w
    g.set_outputs([y + (y @ w)])
    assert kinds(g) == {"contract": 2}
    check(g, {"x": np.eye(4), "w": np.arange(16.0).reshape(4, 4)})


def test_a_column_sum_is_made_by_the_kernel_of_its_rows_where_there_are_enough():
    for count, wanted in ((4, {"rows": 2}), (16, {"rows": 1})):
        g = Graph()
        y = g.input("x", (count, 8)).softmax()
        g.set_outputs([y, y.sum(axis=0)])
        assert kinds(g) == wanted
        check(g, {"x": np.arange(count * 8.0).reshape(count, 8) % 7})


def test_the_gradients_of_a_norm_are_one_kernel():
    gradients = darner.vjp(_norm(), ["x", "w", "b"])
    gradients.set_outputs(gradients.outputs[1:])
    assert kinds(gradients) == {"rows": 1}


def test_a_product_leaves_the_gradients_of_a_norm_to_the_kernel_of_its_rows():
    g = Graph()
    x, gamma, w = (g.input(n, s) for n, s in (("x", (32, 8)), ("gamma", (8,)), ("w", (8, 4))))
    normed = x.rms_norm(gamma)
    g.set_outputs([normed @ w])
    gradients = darner.vjp(g, ["x", "gamma"])
    dx, dgamma = gradients.outputs[1:]
    m = gradients.state("m", (8,))
    gradients.set_update(m, m * 0.5 + dgamma)
    gradients.set_outputs([dx])
    prepared = prepare(gradients)
    assert kinds(gradients) == {"contract": 1, "rows": 1, "map": 1}
    product, rows, update = kernels(prepared)
    assert len(product.results) == 1
    assert {node.shape for node in rows.body.outputs} == {(8,), (32, 8)}
    assert [node.shape for node in update.body.outputs] == [(8,)]
    rng = np.random.default_rng(0)
    leaves = [*prepared.inputs.values(), *prepared.states.values()]
    check_cut(prepared)
    check(
        prepared, {leaf.name: rng.integers(-3, 4, leaf.shape).astype(np.float32) for leaf in leaves}
    )


def _beside(make):
    """The kinds of kernels with small maps side by side, of a graph that computes what it should."""
    g = Graph()
    make(g)
    prepared = prepare(g)
    found = fuse(prepared, fusing=Fusing(beside=True))
    owned = sorted(id for group in found for id in group.nodes)
    assert owned == sorted(id for group in fuse(prepared) for id in group.nodes)
    leaves = [*prepared.inputs.values(), *prepared.states.values()]
    given = {
        leaf.name: np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape) for leaf in leaves
    }
    memory = {leaf.id: given[leaf.name] for leaf in leaves}
    for work in kernels(prepared, fusing=Fusing(beside=True)):
        inputs = {str(i): memory[id] for i, id in enumerate(work.operands)}
        for id, value in zip(work.results, darner.run(work.body, inputs), strict=True):
            memory[id] = value
    ends = [*prepared.outputs, *(prepared.updates[leaf] for leaf in prepared.updates)]
    for end, wanted in zip(ends, run_graph(prepared, given), strict=True):
        np.testing.assert_array_equal(memory[end.id], wanted)
    return sorted(group.kind for group in found)


def test_small_maps_for_one_kernel_stand_side_by_side():
    def make(g):
        x, y = g.input("x", (4, 6)), g.input("y", (6, 3))
        g.set_outputs(
            [x.transpose((1, 0)).abs().transpose((1, 0)) @ y.reshape((3, 6)).abs().reshape((6, 3))]
        )

    assert _beside(make) == ["contract", "map"]


def test_updates_of_small_leaves_by_one_number_stand_side_by_side():
    def make(g):
        rate = g.input("x", (4, 6)).sum().sqrt()
        for name, shape in (("p", (8,)), ("q", (3, 2)), ("r", (8,))):
            leaf = g.state(name, shape)
            g.set_update(leaf, leaf * 0.5 - rate)
        g.set_outputs([])

    assert _beside(make) == ["map", "rows"]


def test_maps_of_which_one_needs_the_other_stay_apart():
    def make(g):
        x, w = g.input("x", (4, 4)), g.input("w", (4, 4))
        first = x.transpose((1, 0)).abs()
        second = (first @ w).transpose((1, 0)).exp()
        g.set_outputs([first.transpose((1, 0)) @ second])

    assert _beside(make).count("map") == 2


def _norm():
    g = Graph()
    x, w, b = (g.input(name, size) for name, size in (("x", (32, 8)), ("w", (8,)), ("b", (8,))))
    g.set_outputs([g.layer_norm(x, w, b)])
    return g


def test_a_loss_by_labels_reads_the_logits_in_one_kernel_and_writes_their_gradient_once():
    g = Graph()
    x, t = g.input("x", (32, 100)), g.input("t", (32,), "i32")
    g.set_outputs([g.cross_entropy_loss(x, t)])
    works = kernels(prepare(darner.value_and_grad(g, ["x"])))
    large = [work for work in works if any(n.shape == (32, 100) for n in work.body.nodes)]
    assert len(large) == 1
    (work,) = large
    assert sum(output.shape == (32, 100) for output in work.body.outputs) == 1


def _summed(rows=40, count=5):
    g = Graph()
    src, i = g.input("src", (count, 8)), g.input("i", (count,), "i32")
    given = {"src": np.arange(count * 8.0).reshape(count, 8), "i": np.arange(count) * 7 % 3}
    return g, g.scatter_add(i, src, rows), given


def test_the_update_by_sums_of_an_index_is_part_of_their_kernel():
    g, sums, given = _summed()
    p, m = g.state("p", (40, 8)), g.state("m", (40, 8))
    moved = m * 0.9 + sums
    g.set_update(m, moved)
    g.set_update(p, p - moved)
    g.set_outputs([])
    (group,) = fuse(prepare(g))
    assert group.kind == "index"
    assert len(fuse(prepare(g), ended=())) == 2
    check(g, {**given, "p": np.ones((40, 8)), "m": np.ones((40, 8))})


def test_sums_of_an_index_that_something_else_reads_are_a_kernel_of_their_own():
    for other in (lambda sums: sums, lambda sums: sums.sum(), lambda sums: sums.transpose() @ sums):
        g, sums, given = _summed()
        g.set_outputs([(sums * 2.0 + 1.0).tanh(), other(sums)])
        assert [group.nodes for group in fuse(prepare(g)) if group.kind == "index"] == [[2]]
        check_cut(prepare(g))
        check(g, given)


def test_sums_of_an_index_that_are_scaled_by_their_own_norm_are_a_kernel_of_their_own():
    g, sums, given = _summed()
    g.set_outputs([sums * 2.0 / sums.square().sum()])
    assert kinds(g) == {"index": 1, "rows": 1}
    check_cut(prepare(g))
    check(g, given)


def test_one_of_two_sums_of_an_index_ends_with_what_reads_both():
    g, sums, given = _summed()
    other = g.scatter_add(g.inputs["i"], g.inputs["src"] * 2.0, 40)
    g.set_outputs([(sums + other).tanh()])
    assert kinds(g) == {"map": 1, "index": 2}
    check_cut(prepare(g))
    check(g, given)


def test_many_indices_for_few_elements_are_a_kernel_of_their_own():
    for rows, count, wanted in ((4, 5, {"index": 1, "map": 1}), (20, 5, {"index": 1})):
        g, sums, given = _summed(rows, count)
        g.set_outputs([sums * 2.0])
        assert kinds(g) == wanted
        check(g, given)


def test_a_sum_of_a_product_and_sums_of_an_index_is_part_of_the_product():
    g, sums, given = _summed()
    product = g.input("x", (40, 3)) @ g.input("w", (3, 8))
    g.set_outputs([(sums + product) * 2.0])
    assert kinds(g) == {"index": 1, "contract": 1}
    check(g, {**given, "x": np.ones((40, 3)), "w": np.ones((3, 8))})


def test_views_and_counters_cost_no_kernel():
    g = Graph()
    x = g.input("x", (4, 8))
    mask = g.iota((4, 8), axis=0) >= g.iota((4, 8), axis=1)
    g.set_outputs([g.where(mask, x.transpose().reshape((4, 8)), 0.0)])
    assert kinds(g) == {"map": 1}


def test_equal_layers_have_equal_kernels():
    few, many = (
        {work.body.digest() for work in kernels(prepare(darner.optimize(trained(llama, layers=n))))}
        for n in (3, 9)
    )
    assert many == few


def test_a_value_used_by_two_kernels_is_made_once():
    graph = prepare(trained(gpt2))
    results = [id for work in kernels(graph) for id in work.results]
    assert len(set(results)) == len(results)


def test_the_backward_pass_of_a_conv_net_is_cut_legally():
    check_cut(prepare(trained(resnet)))


def test_a_product_writes_the_gradient_of_a_norm_once_for_its_rows_and_its_weight():
    g = Graph()
    h = (g.input("x", (32, 12)) @ g.parameter("w", (12, 16))).rms_norm(g.parameter("b", (16,)))
    g.set_outputs([(h @ g.parameter("v", (16, 8))).tanh().square().mean()])
    step = optim.training_step(g, optim.AdamW(1e-2))
    works = kernels(prepare(step))
    large = [[n.shape for n in work.body.outputs].count((32, 16)) for work in works]
    found = [(work, count) for work, count in zip(works, large, strict=True) if count]
    # The product, the norm, the product's gradient, and the norm's.
    assert [(work.kind, count) for work, count in found] == [
        ("contract", 1),
        ("rows", 2),
        ("contract", 1),
        ("rows", 1),
    ]
    gradient = found[-1][0]
    assert [n.shape for n in gradient.body.outputs if n.op.name == "sum"] == [(16,)]
    inputs, parameters, states = values(step)
    check(step, {**inputs, **parameters, **states})


def test_sums_over_rows_are_read_by_another_kernel_also_where_there_are_as_many_rows():
    # A sum over 16 rows has as many elements as there are rows, and is none of them.
    g = Graph()
    x = g.input("x", (16, 16))
    y = x.softmax()
    total = (y * 2.0).sum(axis=0)
    g.set_outputs([y, total * 3.0, total.exp()])
    assert kinds(g)["rows"] == 1
    check(g, {"x": np.arange(256.0).reshape(16, 16) % 7})
