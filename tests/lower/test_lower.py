"""Whole plans: the numbers of the graph, in little memory, with as many kernels as one layer has."""

import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, ShapeError
from darner.backends.reference.plan import run_plan
from darner.lower.lower import lower
from darner.lower.plan import Plan
from tests import conformance
from tests.optimizer.random_graphs import grown
from tests.zoo import ZOO, llama, mlp_step, trained, values

several = settings(
    max_examples=5 if conformance.QUICK else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def check(graph, inputs, params, states):
    """The plan gives what the graph gives, to the bit, and leaves the same state behind."""
    plan = lower(graph)
    wanted_state, found_state = dict(states), dict(states)
    wanted = darner.run(graph, inputs, params, state=wanted_state)
    found = run_plan(plan, inputs, params, state=found_state)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
    assert found_state.keys() == wanted_state.keys()
    for name, value in wanted_state.items():
        np.testing.assert_array_equal(found_state[name], value)
    return plan


@pytest.mark.parametrize("name", list(ZOO)[:: 11 if conformance.QUICK else 3])
def test_a_plan_computes_what_its_graph_computes(name):
    graph = ZOO[name]()
    plan = check(graph, *values(graph))
    again = Plan.from_json(plan.to_json())
    assert again.digest() == plan.digest()
    assert plan.arena_bytes <= plan.naive_bytes


@several
@given(st.integers(0, 2**32))
def test_plans_of_random_graphs_compute_what_the_graphs_compute(seed):
    graph, given = grown(random.Random(seed), 12)
    inputs = {name: given[name] for name in graph.inputs}
    params = {name: given[name] for name in graph.parameters}
    check(graph, inputs, params, {})


def test_an_optimized_step_keeps_its_numbers_and_updates_in_place():
    graph = darner.optimize(mlp_step(optimizer="adam", dtype="f64"))
    plan = check(graph, *values(graph))
    assert len(plan.updates) == len(graph.updates)
    # Matrices all; a bias is updated where its gradient is summed, and shares no memory there.
    in_place = {plan.buffers[old].name for old, new in plan.updates if old == new}
    matrices = {str(leaf.name) for leaf in graph.updates if leaf.rank == 2}
    assert matrices <= in_place


def test_two_states_that_change_places_are_not_written_in_place():
    g = Graph()
    a, b = g.state("a", (3,), init=1.0), g.state("b", (3,), init=2.0)
    g.set_update(a, b * 1.5)
    g.set_update(b, a * 3.0)
    g.set_outputs([a + b])
    check(g, {}, {}, {"a": np.full(3, 5.0, np.float32), "b": np.full(3, 7.0, np.float32)})


def test_a_state_that_is_read_after_its_update_is_read_as_it_was():
    g = Graph()
    x, s = g.input("x", (3,)), g.state("s", (3,))
    g.set_update(s, s + x)
    g.set_outputs([(s.exp() @ g.constant(np.eye(3), dtype="f32")).tanh()])
    check(g, {"x": np.ones(3, np.float32)}, {}, {"s": np.arange(3, dtype=np.float32)})


def test_outputs_may_be_views_leaves_constants_and_twice_the_same():
    g = Graph()
    x = g.input("x", (2, 3))
    y = x * 2.0
    g.set_outputs([y.transpose(), x, y, y, g.constant([1.0, 2.0]), x.reshape((3, 2)), g.iota((4,))])
    check(g, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}, {}, {})


def test_the_arena_is_near_the_least_that_is_alive_at_once():
    for make in (lambda: trained(llama, layers=6), lambda: llama(6)):
        plan = lower(darner.optimize(make()))
        alive = [0] * (len(plan.kernels) + 1)
        for buffer, life in zip(plan.buffers, plan.lifetimes(), strict=True):
            if life is not None:
                for step in range(life[0], life[1] + 1):
                    alive[step] += -(-buffer.nbytes // 64) * 64
        assert plan.arena_bytes <= 1.05 * max(alive)
        assert plan.arena_bytes < 0.8 * plan.naive_bytes


def test_the_number_of_specs_does_not_depend_on_depth():
    few, many = (lower(darner.optimize(trained(llama, layers=n))) for n in (3, 9))
    assert set(many.specs) == set(few.specs)
    assert len(many.kernels) > 2 * len(few.kernels)


def test_symbolic_sizes_are_refused_with_the_way_out():
    g = Graph()
    g.set_outputs([g.input("x", (darner.symbol("n"), 3)).exp()])
    with pytest.raises(ShapeError, match="the sizes n are not known"):
        lower(g)
    assert lower(g.bind(n=4)).buffers[0].type.shape == (4, 3)


def test_a_kernel_names_the_users_label_and_line():
    g = Graph()
    x = g.input("x", (4, 8))
    g.set_outputs([g.softmax(x, label="attention")])
    (kernel,) = lower(g).kernels
    assert kernel.label == "attention"
    assert kernel.source is not None
    assert kernel.source.file == __file__
