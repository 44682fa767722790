"""Gradients that read what the forward pass keeps: which do, and that they are the same."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import compile_for
from darner.lower.lower import lower

SHAPE = (1, 4, 6, 8)
KEYS = (1, 2, 9, 8)


def graph_of(precision="f32", other=None, **options):
    """The loss of an attention and the gradients of its operands; ``other`` are options of the gradient's own attention."""
    g = darner.Graph()
    q, k, v = g.input("q", SHAPE), g.input("k", KEYS), g.input("v", KEYS)
    dy = g.input("dy", SHAPE)
    y = g.scaled_dot_attention(q, k, v, **options)
    found = g.scaled_dot_attention_backward(q, k, v, dy, **(options if other is None else other))
    g.set_outputs([(y * 2.0).tanh(), *found])
    return darner.with_precision(g, precision)


def arrays(graph):
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal([int(n) for n in node.shape]).astype(np.float32)
        for name, node in graph.inputs.items()
    }


def ops_of(graph, keeps=True):
    """The ops of each attention's kernel."""
    plan = lower(graph, keeps=keeps)
    return [plan.spec(k).ops for k in plan.kernels if plan.spec(k).kind == "attention"]


@pytest.mark.parametrize("precision", ["f32", "bf16", "tf32"])
@pytest.mark.parametrize(
    "options", [{"causal": True}, {"window": 3, "softcap": 2.0, "scale": -0.7}], ids=str
)
def test_gradients_are_the_same(precision, options):
    graph = graph_of(precision, **options)
    given = arrays(graph)
    wanted = darner.run(graph, given)
    plan = lower(graph, keeps=True)
    assert "attention_statistics" in [op for k in plan.kernels for op in plan.spec(k).ops]
    program = compile_for("reference", plan)
    for name, i in plan.leaves("input").items():
        program.bind(i, given[name])
    program.run()
    # What was rounded is only the result, in the mean of slopes.
    tolerance = {"f32": 1e-5, "tf32": 1e-3, "bf16": 1e-2}[precision]
    for own, i in zip(wanted, plan.outputs, strict=True):
        np.testing.assert_allclose(program.read(i), own, rtol=tolerance, atol=tolerance)


def test_one_kernel_makes_the_result_what_follows_it_and_what_is_kept():
    forward, backward = ops_of(graph_of(causal=True))
    assert forward == ("scaled_dot_attention", "attention_statistics", "mul", "tanh")
    assert backward[0] == "scaled_dot_attention_backward"


def test_a_gradient_whose_call_is_not_there_reads_nothing():
    forward, backward = ops_of(graph_of(causal=True, other={"causal": False}))
    assert "attention_statistics" not in (*forward, *backward)


def test_a_target_that_keeps_nothing_has_no_such_kernels():
    forward, backward = ops_of(graph_of(causal=True), keeps=False)
    assert "attention_statistics" not in (*forward, *backward)
    assert "attention_statistics" not in str(lower(graph_of(causal=True)))


def test_the_result_is_read_as_it_was_rounded_for_others():
    g = darner.Graph()
    q, k, v = g.input("q", SHAPE), g.input("k", KEYS), g.input("v", KEYS)
    w = g.parameter("w", (8, 5))
    g.set_outputs([(g.scaled_dot_attention(q, k, v) @ w).square().sum()])
    gradients = darner.with_precision(darner.value_and_grad(g, ["q", "k", "v", "w"]), "bf16")
    plan = lower(gradients, keeps=True)
    made = [
        [str(output.dtype) for output in plan.spec(kernel).body.outputs]
        for kernel in plan.kernels
        if "attention_statistics" in plan.spec(kernel).ops
    ]
    assert [sorted(kinds) for kinds in made] == [["bf16", "f32"]]


def test_statistics_by_themselves_are_written_out():
    g = darner.Graph()
    g.set_outputs(
        [g.attention_statistics(g.input("q", SHAPE), g.input("k", KEYS), g.input("v", KEYS))]
    )
    assert ops_of(g) == []
    (found,) = darner.run(g, arrays(g))
    assert found.shape == (1, 4, 2, 6)


def test_statistics_and_the_result_are_given_together():
    g = darner.Graph()
    q, k, v = g.input("q", SHAPE), g.input("k", KEYS), g.input("v", KEYS)
    with pytest.raises(darner.ShapeError, match="together"):
        g.scaled_dot_attention_backward(q, k, v, q, out=q)


def test_a_batch_of_gradients_that_are_given_what_was_kept():
    g = darner.Graph()
    q, k, v = g.input("q", SHAPE), g.input("k", KEYS), g.input("v", KEYS)
    options = {"causal": True, "softcap": 2.0}
    kept = {
        "out": g.scaled_dot_attention(q, k, v, **options),
        "statistics": g.attention_statistics(q, k, v, **options),
    }
    dy = g.input("dy", SHAPE)
    g.set_outputs(list(g.scaled_dot_attention_backward(q, k, v, dy, **options, **kept)))
    random = np.random.default_rng(0)
    given = {name: random.standard_normal((3, *node.shape)) for name, node in g.inputs.items()}
    given = {name: value.astype(np.float32) for name, value in given.items()}
    found = darner.run(darner.vmap(g, ["q", "v", "dy"], 3), {**given, "k": given["k"][0]})
    for i in range(3):
        wanted = darner.run(g, {n: x[0 if n == "k" else i] for n, x in given.items()})
        for own, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(own[i], other, rtol=2e-5, atol=2e-6)


def test_derivatives_of_gradients_are_those_of_a_graph_that_keeps_nothing():
    def second(keeps):
        g = darner.Graph()
        q, k, v = g.input("q", SHAPE), g.input("k", KEYS), g.input("v", KEYS)
        g.set_outputs([g.scaled_dot_attention(q, k, v, causal=True).tanh().sum()])
        first = darner.grad(g, ["q"])
        first.set_outputs([first.outputs[0].square().sum()])
        plan = lower(darner.grad(first, ["q", "v"]), keeps=keeps)
        program = compile_for("reference", plan)
        for name, i in plan.leaves("input").items():
            program.bind(i, arrays(first)[name])
        program.run()
        return [np.array(program.read(i)) for i in plan.outputs]

    for own, other in zip(second(True), second(False), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)
