"""The optimizer as a whole: equal results, the same plan in every process, no cliff, honest reports."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import ArgumentError, Graph
from darner.optimizer import Budget, rule, target, variables
from darner.optimizer.declare import remove_rule
from darner.optimizer.targets import remove_target
from tests import conformance
from tests.optimizer.random_graphs import grown, run, with_loss
from tests.strategies import built_graphs
from tests.zoo import llama, mlp, mlp_step, trained
from tests.zoo import run as run_zoo

several = settings(
    max_examples=3 if conformance.QUICK else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


few = settings(several, max_examples=3 if conformance.QUICK else 16)
"""Where an example takes half a second: two optimisations and gradients."""


def assert_equal(found, wanted):
    """Equal to rounding in f64, on one scale for all results of a graph."""
    scale = max([1.0, *(np.abs(array).max(initial=0.0) for array in wanted)])
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * scale)


# --------------------------------------------------------------------------- equal results


@few
@given(st.integers(0, 2**32), st.sampled_from(["train", "inference"]))
def test_an_optimized_graph_computes_the_same(seed, mode):
    graph, values = grown(random.Random(seed))
    result = darner.optimize(graph, mode=mode)
    assert [n.type for n in result.outputs] == [n.type for n in graph.outputs]
    assert list(result.parameters) == list(graph.parameters)
    assert list(result.inputs) == list(graph.inputs)
    assert_equal(run(result, values), run(graph, values))


@few
@given(st.integers(0, 2**32))
def test_gradients_are_the_same_optimized_before_after_or_not_at_all(seed):
    graph, values = grown(random.Random(seed), 10)
    loss = with_loss(graph)
    if not loss.parameters:
        return
    wanted = run(darner.value_and_grad(loss), values)
    both, _ = darner.optimize_training(loss)
    assert_equal(run(both, values), wanted)
    after = darner.optimize(darner.value_and_grad(loss))
    assert_equal(run(after, values), wanted)


@several
@given(built_graphs())
def test_any_graph_keeps_its_types_and_its_leaves(built):
    for mode in ("train", "inference"):
        result = darner.optimize(built.graph, mode=mode)
        assert [n.type for n in result.outputs] == [n.type for n in built.graph.outputs]
        assert list(result._names) == list(built.graph._names)
        assert {str(leaf.name): value.type for leaf, value in result.updates.items()} == {
            str(leaf.name): value.type for leaf, value in built.graph.updates.items()
        }


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_level_gives_the_same_numbers(level):
    graph = trained(llama, dtype="f64")
    result = darner.optimize(graph, level=level)
    assert_equal(run_zoo(result), run_zoo(graph))


def test_updates_of_states_and_parameters_are_kept():
    graph = mlp_step(optimizer="adam", dtype="f64")
    result = darner.optimize(graph)
    assert {str(leaf.name) for leaf in result.updates} == {str(leaf.name) for leaf in graph.updates}
    assert_equal(run_zoo(result), run_zoo(graph))


def test_an_unused_parameter_keeps_its_name_and_dead_nodes_go():
    g = Graph()
    x = g.input("x", (3,))
    g.parameter("unused", (5,))
    x.exp()
    g.set_outputs([x + 1.0])
    result = darner.optimize(g)
    assert list(result.parameters) == ["unused"]
    assert [n.op.name for n in result.nodes if n.name is None] == ["constant", "add"]


def test_the_graph_given_is_not_changed():
    graph = trained(llama)
    before = graph.digest()
    darner.optimize(graph)
    assert graph.digest() == before


def test_sizes_may_be_symbols():
    g = Graph()
    n = darner.symbol("n")
    x = g.input("x", (n, 4))
    h = x @ g.parameter("a", (4, 3)) + g.parameter("b", (3,))
    g.set_outputs([h * h.sigmoid(), h])
    result = darner.optimize(g)
    values = {"x": np.ones((5, 4))}
    params = {"a": np.full((4, 3), 0.25), "b": np.arange(3.0)}
    for a, b in zip(darner.run(result, values, params), darner.run(g, values, params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


# --------------------------------------------------------------------------- no cliff


def joint_products(graph):
    """Concats of parameters that a product reads, by the names of the parameters."""
    found = []
    for node in graph.nodes:
        if node.op.name == "concat" and all(n.op.name == "parameter" for n in node.operands):
            found.append([str(n.name).rpartition(".")[2] for n in node.operands])
    return found


@pytest.mark.parametrize("kind", ["forward", "training", "gradients"])
def test_fusions_are_linear_in_depth_and_every_layer_has_its_joint_products(kind):
    counts = {}
    for layers in (1, 2, 17) if conformance.QUICK else (1, 2, 17, 30, 60, 120):
        graph = llama(layers, loss=True)
        if kind == "forward":
            result, report = darner.optimize_inference(graph)
        elif kind == "training":
            result, report = darner.optimize_training(graph)
        else:
            result, report = darner.optimize(darner.value_and_grad(graph), report=True)
        sizes = sorted(map(len, joint_products(result)))
        assert sizes == [2] * layers + [3] * layers
        assert not any(item.budgets_hit for item in report.passes)
        assert all(block.exact for item in report.passes for block in item.blocks)
        last = report.passes[-1]
        counts[layers] = (len(last.fusions), last.nodes_after)
    (a, b), (c, d) = counts[1], counts[2]
    slope = (c - a, d - b)
    for layers, found in counts.items():
        assert found == (a + slope[0] * (layers - 1), b + slope[1] * (layers - 1)), counts


def test_a_deep_model_is_optimized_in_few_blocks():
    _, report = darner.optimize(trained(llama, layers=40), report=True)
    (only,) = report.passes
    assert only.coverage > 0.9
    assert max(block.instances for block in only.blocks) >= 38
    assert len(only.blocks) < 10


# --------------------------------------------------------------------------- the same plan everywhere


@pytest.mark.slow
def test_two_processes_give_the_same_bytes():
    program = (
        "import hashlib, darner\n"
        "from tests.zoo import llama, unet, trained\n"
        "for graph in (trained(llama, layers=3), trained(unet), llama(2, spelling='primitive')):\n"
        "    result, report = darner.optimize(graph, report=True)\n"
        "    print(hashlib.sha256(result.to_json().encode()).hexdigest())\n"
        "    print(hashlib.sha256(report.egglog_program.encode()).hexdigest())\n"
    )
    answers = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", program], check=True, capture_output=True, env=environment
        )
        answers.add(found.stdout)
    assert len(answers) == 1


def test_what_was_optimized_before_does_not_matter():
    first = darner.optimize(trained(llama)).to_json()
    darner.optimize(trained(mlp))
    assert darner.optimize(trained(llama)).to_json() == first


# --------------------------------------------------------------------------- budgets and mistakes


@pytest.mark.parametrize(
    ("budget", "text"),
    [
        (Budget(iterations=1), "1 iterations"),
        (Budget(nodes=10), "10 e-nodes"),
        (Budget(seconds=0.0), "0.0 seconds"),
    ],
)
def test_a_budget_that_is_reached_is_reported_and_what_was_found_is_used(budget, text):
    graph = trained(llama, dtype="f64")
    result, report = darner.optimize(graph, budget=budget, report=True)
    assert text in report.passes[0].budgets_hit
    assert f"stopped by its budget of {text}" in str(report)
    assert_equal(run_zoo(result), run_zoo(graph))


def test_without_time_to_extract_the_graph_is_no_worse_and_the_report_says_so():
    graph = trained(llama, dtype="f64")
    result, report = darner.optimize(graph, budget=Budget(extract_seconds=0.0), report=True)
    (only,) = report.passes
    assert only.after.seconds <= only.before.seconds
    assert_equal(run_zoo(result), run_zoo(graph))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"level": 9}, "there is no level 9"),
        ({"target": "cpuu"}, "there is no target 'cpuu'"),
        ({"mode": "fast"}, "mode must be 'train' or 'inference', not 'fast'"),
    ],
)
def test_mistakes_are_named(options, text):
    g = Graph()
    g.set_outputs([g.input("x", (3,)) + 1.0])
    with pytest.raises(ArgumentError, match=text):
        darner.optimize(g, **options)


# --------------------------------------------------------------------------- rules and targets from outside


def test_a_user_adds_a_rule_in_one_declaration():
    from darner.optimizer import T

    x = variables("x")
    g = Graph()
    g.set_outputs([g.input("x", (3,)).sin().asin()])
    rule("asin of sin, for small angles", T.asin(T.sin(x)), x)
    try:
        assert [n.op.name for n in darner.optimize(g).nodes] == ["input"]
    finally:
        remove_rule("asin of sin, for small angles")
    assert len(darner.optimize(g).nodes) == 3


def test_a_rule_whose_sides_differ_in_type_is_an_error_that_names_it():
    from darner.optimizer import RuleError, T

    x = variables("x")
    g = Graph()
    g.set_outputs([g.input("x", (3,)).sin()])
    rule("wrong", T.sin(x), T.sum(x))
    try:
        with pytest.raises(RuleError, match="rule 'wrong' makes f32\\[\\] of f32\\[3\\]"):
            darner.optimize(g)
    finally:
        remove_rule("wrong")


def test_the_target_decides():
    # One product of all three costs a launch; where launches are free and memory is slow, nothing is gained by it.
    graph = llama(1)
    target("free launches", flops=1e9, bandwidth=1e30, launch=0.0)
    try:
        result, report = darner.optimize(graph, target="free launches", report=True)
        assert report.passes[0].target == "free launches"
        assert result.verify() is result
    finally:
        remove_target("free launches")


# --------------------------------------------------------------------------- reports


def test_the_report_has_the_promised_lines_and_reads_as_json():
    _, report = darner.optimize_training(llama(3))
    text = str(report)
    for line in ("=== Optimization Report ===", "--- forward ---", "--- training ---"):
        assert line in text
    for start in ("Egglog saturation: ", "Rules fired:", "Graph: ", "Fusions: ", "Extract time: "):
        assert any(line.startswith(start) for line in text.splitlines())
    document = json.loads(json.dumps(report.to_dict()))
    assert [item["name"] for item in document["passes"]] == ["forward", "training"]
    assert document["num_enodes"] == report.num_enodes > document["num_eclasses"] > 0
    assert all(item["after"]["seconds"] <= item["before"]["seconds"] for item in document["passes"])
    assert all(item["phases"]["saturate"] > 0 for item in document["passes"])


def test_the_egglog_program_can_be_replayed():
    from darner.optimizer.engine import bindings

    _, report = darner.optimize_inference(llama(3))
    engine = bindings().EGraph()
    for line in report.egglog_program.splitlines():
        engine.run_program(*engine.parse_program(line))
    rows = engine.freeze().functions["node"].rows
    last = report.passes[0].blocks[-1]
    assert len(report.passes[0].blocks) > 1
    assert len(rows) == last.enodes
    assert len({row.output for row in rows}) == last.classes
