"""Custom functions: graphs with derivatives of their own, and the decorator that makes them."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, ShapeError

RNG = np.random.default_rng(11)


def graph_of(inputs, build, name="body"):
    """A graph of named inputs: ``{"x": (3,)}`` or ``{"i": ((3,), "i32")}``."""
    g = Graph(name)
    leaves = []
    for key, shape in inputs.items():
        shape, kind = shape if shape and isinstance(shape[0], tuple) else (shape, "f64")
        leaves.append(g.input(key, shape, kind))
    answer = build(*leaves)
    g.set_outputs(list(answer) if isinstance(answer, tuple | list) else [answer])
    return g


SQUARE = {"x": (3,)}
POINT = np.array([1.0, -2.0, 3.0])


def square_body():
    return graph_of(SQUARE, lambda x: x * x)


# Rules that are wrong on purpose, so that a result tells which one was used.
def seven_times():
    return graph_of({**SQUARE, "primal_output": (3,), "d_output": (3,)}, lambda x, y, d: d * 7.0)


def nine_times():
    return graph_of({**SQUARE, "tangent_0": (3,)}, lambda x, t: t * 9.0)


def called(*rules, **named):
    g = Graph("outer")
    x = g.input("v", (3,), "f64")
    g.set_outputs([g.custom_fn([x], square_body(), *rules, **named)])
    return g


def pulled(graph, weight=None):
    weight = np.ones(3) if weight is None else weight
    return darner.run(darner.vjp(graph, "v"), {"v": POINT, "d_output": weight})[-1]


def pushed(graph, tangent=None):
    tangent = np.ones(3) if tangent is None else tangent
    return darner.run(darner.jvp(graph, "v"), {"v": POINT, "tangent_v": tangent})[-1]


# --------------------------------------------------------------------------- what is computed


def test_it_computes_its_body_and_stays_one_node():
    g = called(seven_times(), nine_times())
    assert [node.op.name for node in g.nodes] == ["input", "custom_fn"]
    np.testing.assert_array_equal(darner.run(g, {"v": POINT})[0], POINT**2)
    assert [node.op.name for node in darner.expand(g).nodes] == ["input", "mul"]
    g.verify()
    assert Graph.from_text(g.to_text()) == g
    assert Graph.from_json(g.to_json()) == g


def test_operands_are_matched_in_the_order_of_declaration():
    body = graph_of({"z": (2,), "a": (2,)}, lambda z, a: z - a)
    g = Graph()
    first, second = g.input("first", (2,), "f64"), g.input("second", (2,), "f64")
    g.set_outputs([g.custom_fn([first, second], body)])
    found = darner.run(g, {"first": np.array([5.0, 5.0]), "second": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(found[0], [4.0, 3.0])


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_a_body_of_halves_rounds_where_it_says(kind):
    body = graph_of({"x": ((3,), kind)}, lambda x: (x * 3.0) * 5.0)
    g = Graph()
    x = g.input("x", (3,), kind)
    g.set_outputs([g.custom_fn([x], body), (x * 3.0) * 5.0])
    one, other = darner.run(g, {"x": RNG.normal(size=3)})
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def test_a_body_may_use_another_custom_function():
    inner = square_body()
    body = graph_of(SQUARE, lambda x: x.graph.custom_fn([x], inner, seven_times()) + 1.0)
    g = Graph()
    x = g.input("v", (3,), "f64")
    g.set_outputs([g.custom_fn([x], body)])
    np.testing.assert_array_equal(darner.run(g, {"v": POINT})[0], POINT**2 + 1)
    np.testing.assert_array_equal(pulled(g), 7 * np.ones(3))


def test_symbols_of_a_body_are_bound_with_the_graph_around_it():
    body = graph_of({"x": ("n",)}, lambda x: x.exp())
    g = Graph()
    x = g.input("x", ("n",), "f64")
    g.set_outputs([g.custom_fn([x], body)])
    bound = g.bind(n=2).verify()
    assert bound.outputs[0].shape == (2,)
    np.testing.assert_allclose(darner.run(g, {"x": np.zeros(4)})[0], np.ones(4))


# --------------------------------------------------------------------------- which derivative is used


def test_without_rules_the_derivative_is_that_of_the_body():
    np.testing.assert_array_equal(pulled(called()), 2 * POINT)
    np.testing.assert_array_equal(pushed(called()), 2 * POINT)


def test_with_both_rules_each_mode_uses_its_own():
    g = called(seven_times(), nine_times())
    np.testing.assert_array_equal(pulled(g), 7 * np.ones(3))
    np.testing.assert_array_equal(pushed(g), 9 * np.ones(3))


def test_with_a_vjp_alone_forward_mode_transposes_it():
    np.testing.assert_array_equal(pulled(called(seven_times()), POINT), 7 * POINT)
    np.testing.assert_array_equal(pushed(called(seven_times()), POINT), 7 * POINT)


def test_with_a_jvp_alone_reverse_mode_transposes_it():
    np.testing.assert_array_equal(pushed(called(None, nine_times()), POINT), 9 * POINT)
    np.testing.assert_array_equal(pulled(called(None, nine_times()), POINT), 9 * POINT)


def test_a_rule_survives_inside_other_nodes_and_second_derivatives():
    rule = graph_of({**SQUARE, "d_output": (3,)}, lambda x, d: d * x.exp())
    g = Graph()
    v = g.input("v", (3,), "f64")
    g.set_outputs([(g.custom_fn([v * 2.0], square_body(), rule) * 3.0).sum()])
    first = darner.grad(g, "v")
    np.testing.assert_allclose(darner.run(first, {"v": POINT})[0], 6 * np.exp(2 * POINT))
    found = darner.run(darner.hessian(g, "v"), {"v": POINT})[0]
    np.testing.assert_allclose(found, np.diag(12 * np.exp(2 * POINT)))


def test_the_result_is_handed_to_the_rules():
    vjp = graph_of({**SQUARE, "primal_output": (3,), "d_output": (3,)}, lambda x, y, d: d * y)
    jvp = graph_of({**SQUARE, "tangent_0": (3,), "primal_output": (3,)}, lambda x, t, y: t * y)
    np.testing.assert_array_equal(pulled(called(vjp)), POINT**2)
    np.testing.assert_array_equal(pushed(called(None, jvp)), POINT**2)


def test_an_input_whose_gradient_is_zero_costs_nothing():
    body = graph_of({"x": (3,), "y": (3,)}, lambda x, y: x * y)
    rule = graph_of(
        {"x": (3,), "y": (3,), "d_output": (3,)},
        lambda x, y, d: (d * y, d.graph.zeros((3,), "f64")),
    )
    g = Graph()
    x, y = g.input("x", (3,), "f64"), g.input("y", (3,), "f64")
    g.set_outputs([g.custom_fn([x, y.tanh()], body, rule).sum()])
    graph = darner.grad(g, ["x", "y"])
    assert [node.op.name for node in graph.nodes].count("mul") <= 1
    found = darner.run(graph, {"x": POINT, "y": POINT})
    np.testing.assert_allclose(found[0], np.tanh(POINT))
    np.testing.assert_array_equal(found[1], np.zeros(3))


def scaled_by_index():
    """A float and an integer operand; the rule leaves the integer's gradient out."""
    given = {"x": (3,), "i": ((3,), "i32")}
    body = graph_of(given, lambda x, i: x * i.cast("f64"))
    rule = graph_of({**given, "d_output": (3,)}, lambda x, i, d: d * i.cast("f64"))
    return body, rule


@pytest.mark.parametrize("with_placeholder", [False, True])
def test_integers_need_no_gradient(with_placeholder):
    body, rule = scaled_by_index()
    if with_placeholder:
        rule = rule.copy()
        rule.set_outputs([*rule.outputs, rule.zeros(())])
    g = Graph()
    x, i = g.input("v", (3,), "f64"), g.input("i", (3,), "i32")
    g.set_outputs([g.custom_fn([x, i], body, rule).sum()])
    found = darner.run(darner.grad(g, "v"), {"v": POINT, "i": np.array([4, 5, 6])})
    np.testing.assert_array_equal(found[0], [4.0, 5.0, 6.0])


def test_a_jvp_that_is_not_linear_cannot_be_transposed():
    rule = graph_of({**SQUARE, "tangent_0": (3,)}, lambda x, t: t * t)
    with pytest.raises(ArgumentError, match=r"not linear in 'tangent_0'.*give a vjp_body"):
        darner.grad(_summed(called(None, rule)), "v")


def _summed(graph):
    graph.set_outputs([graph.outputs[0].sum()])
    return graph


# --------------------------------------------------------------------------- batches


def weighted():
    """x times a shared w, with a vjp that is true and another that triples it."""
    given = {"x": (3,), "w": (3,)}
    body = graph_of(given, lambda x, w: x * w)
    vjp = graph_of({**given, "d_output": (3,)}, lambda x, w, d: (3.0 * d * w, 3.0 * d * x))
    jvp = graph_of(
        {**given, "tangent_0": (3,), "tangent_1": (3,)},
        lambda x, w, a, b: 3.0 * (a * w + x * b),
    )
    g = Graph()
    x, w = g.input("x", (3,), "f64"), g.parameter("w", (3,), "f64")
    g.set_outputs([g.custom_fn([x, w], body, vjp, jvp)])
    return g


BATCH, WEIGHTS = RNG.normal(size=(4, 3)), RNG.normal(size=3)


def test_a_rule_is_kept_over_a_batch_and_what_is_shared_gets_the_sum():
    g = darner.vmap(weighted(), ["x"], 4)
    assert "custom_fn" in {node.op.name for node in g.nodes}
    np.testing.assert_allclose(darner.run(g, {"x": BATCH}, {"w": WEIGHTS})[0], BATCH * WEIGHTS)
    cotangent = RNG.normal(size=(4, 3))
    _, dx, dw = darner.run(
        darner.vjp(g, ["x", "w"]), {"x": BATCH, "d_output": cotangent}, {"w": WEIGHTS}
    )
    np.testing.assert_allclose(dx, 3 * cotangent * WEIGHTS)
    np.testing.assert_allclose(dw, (3 * cotangent * BATCH).sum(0))


def test_the_forward_rule_is_kept_over_a_batch():
    g = darner.jvp(darner.vmap(weighted(), ["x"], 4), ["x", "w"])
    a, b = RNG.normal(size=(4, 3)), RNG.normal(size=3)
    found = darner.run(g, {"x": BATCH, "tangent_x": a, "tangent_w": b}, {"w": WEIGHTS})[-1]
    np.testing.assert_allclose(found, 3 * (a * WEIGHTS + BATCH * b))


def test_per_example_gradients_use_the_rule():
    g = weighted()
    g.set_outputs([g.outputs[0].sum()])
    found = darner.run(darner.vmap(darner.grad(g), ["x"], 4), {"x": BATCH}, {"w": WEIGHTS})[0]
    np.testing.assert_allclose(found, 3 * BATCH)


# --------------------------------------------------------------------------- several results


def several(*rules):
    body = graph_of({"a": (3,), "b": ()}, lambda a, b: (a * b, a.argmax(), a.sum().cast("f32")))
    g = Graph()
    a, b = g.input("a", (3,), "f64"), g.input("b", (), "f64")
    return g, g.custom_fn_multi([a, b], body, *rules)


def test_several_results_of_different_types():
    g, handle = several()
    assert (handle.n_outputs(), len(handle)) == (3, 3)
    assert [str(node.type) for node in handle] == ["f64[3]", "i32[]", "f32[]"]
    assert handle.output(g, 2) is handle[2]
    with pytest.raises(ArgumentError, match=r"output 3 is outside 0\.\.2"):
        handle.output(g, 3)
    g.set_outputs(list(handle))
    found = darner.run(g, {"a": POINT, "b": np.array(2.0)})
    np.testing.assert_array_equal(found[0], 2 * POINT)
    assert (int(found[1]), float(found[2])) == (2, 2.0)
    np.testing.assert_array_equal(
        darner.run(_first_summed(g), {"a": POINT, "b": np.array(2.0)})[0], [2.0, 2.0, 2.0]
    )


def _first_summed(graph):
    graph.set_outputs([graph.outputs[0].sum()])
    return darner.grad(graph, "a")


def test_rules_of_several_results_have_numbered_inputs():
    vjp = graph_of(
        {"a": (3,), "b": (), "d_output_0": (3,), "d_output_2": ((), "f32")},
        lambda a, b, d, e: (5.0 * d + e.cast("f64"), (d * a).sum()),
    )
    g, handle = several(vjp)
    g.set_outputs([handle[0].sum() + handle[2].cast("f64")])
    da, db = darner.run(darner.grad(g, ["a", "b"]), {"a": POINT, "b": np.array(2.0)})
    np.testing.assert_array_equal(da, 6 * np.ones(3))
    assert float(db) == POINT.sum()
    g.set_outputs([handle[0].sum()])  # no cotangent comes from the others
    found = darner.run(darner.grad(g, "a"), {"a": POINT, "b": np.array(2.0)})
    np.testing.assert_array_equal(found[0], 5 * np.ones(3))


# --------------------------------------------------------------------------- mistakes


def refused(error, text, inputs=None, body=None, *rules):
    g = Graph()
    x = g.input("v", (3,), "f64")
    with pytest.raises(error, match=text) as caught:
        g.custom_fn([x] if inputs is None else inputs(x), body or square_body(), *rules)
    assert str(caught.value).startswith("custom_fn: ")
    assert "test_custom.py" in str(caught.value)
    assert [node.op.name for node in g.nodes][1:] == []


def test_a_body_must_fit_its_operands():
    refused(ArgumentError, r"the body has 1 input \('x'\) for 2 operands", lambda x: [x, x])
    refused(ArgumentError, "it needs an operand", lambda x: [])
    refused(
        ShapeError,
        r"input 'x' of the body is f64\[2\], but operand 0 is f64\[3\]",
        None,
        graph_of({"x": (2,)}, lambda x: x),
    )
    refused(
        ArgumentError,
        "the body has 2 outputs, not 1; custom_fn_multi takes several",
        None,
        graph_of(SQUARE, lambda x: (x, x)),
    )
    refused(ArgumentError, "body: expected a Graph, got int", None, 3)


def test_a_body_has_nothing_of_its_own():
    body = Graph("body")
    body.set_outputs([body.input("x", (3,), "f64") * body.parameter("w", (3,), "f64")])
    refused(ArgumentError, "has a parameter 'w' of its own; declare it as an input", None, body)
    body = Graph("body")
    body.set_outputs([body.input("x", (3,), "f64") * body.state("s", (3,), "f64")])
    refused(ArgumentError, "has a state 's' of its own", None, body)
    body = graph_of(SQUARE, lambda x: x * x.graph.random_uniform((3,), dtype="f64"))
    refused(ArgumentError, r"draws random numbers \(random_uniform\)", None, body)


def test_a_vjp_body_must_follow_the_convention():
    rule = graph_of(SQUARE, lambda x: x)
    refused(ArgumentError, "the vjp_body has no input 'd_output'", None, None, rule)
    rule = graph_of({"d_output": (3,)}, lambda d: d)
    refused(ArgumentError, "the vjp_body has no input for 1 operand", None, None, rule)
    rule = graph_of({**SQUARE, "d_output": (2,)}, lambda x, d: x)
    refused(
        ShapeError, r"input 'd_output' of the vjp_body is f64\[2\], not f64\[3\]", None, None, rule
    )
    rule = graph_of({**SQUARE, "d_output": (3,)}, lambda x, d: d.sum())
    refused(ShapeError, r"the gradient of operand 0 in the vjp_body is f64\[\]", None, None, rule)
    rule = graph_of({**SQUARE, "d_output": (3,)}, lambda x, d: (d, d))
    refused(ArgumentError, "has 2 outputs: one gradient is needed for each", None, None, rule)


def test_a_jvp_body_must_follow_the_convention():
    rule = graph_of(SQUARE, lambda x: x)
    refused(ArgumentError, "the jvp_body has no input 'tangent_0'", None, None, None, rule)
    rule = graph_of({**SQUARE, "tangent_0": (3,), "d_output": (3,)}, lambda x, t, d: t)
    refused(ArgumentError, "'d_output' is not an input of a jvp_body", None, None, None, rule)
    rule = graph_of({**SQUARE, "tangent_0": (3,)}, lambda x, t: t.sum())
    refused(ShapeError, "the tangent of output 0 in the jvp_body", None, None, None, rule)


# --------------------------------------------------------------------------- the decorator


def graph_calling(function, *extra, **settings):
    g = Graph("outer")
    x = g.input("v", (3,), "f64")
    g.set_outputs([function(x, *extra, **settings)])
    return g


def test_a_decorated_function_has_the_derivative_it_was_given():
    @darner.custom_gradient
    def clipped(x):
        """The identity."""
        return x

    @clipped.vjp
    def _(g, out, x):
        return g.clip(-1.0, 1.0)

    assert (clipped.__name__, clipped.__doc__) == ("clipped", "The identity.")
    g = graph_calling(clipped, label="here")
    assert (g.outputs[0].op.name, g.outputs[0].label) == ("custom_fn", "here")
    assert "test_custom.py" in str(g.outputs[0].source)
    np.testing.assert_array_equal(darner.run(g, {"v": POINT})[0], POINT)
    np.testing.assert_array_equal(pulled(g, np.array([0.5, 2.0, -3.0])), [0.5, 1.0, -1.0])
    assert Graph.from_json(g.to_json()) == g


def test_a_function_without_rules_is_differentiated_as_written():
    square = darner.custom_gradient(lambda x: x * x)
    np.testing.assert_array_equal(pulled(graph_calling(square)), 2 * POINT)


def test_a_forward_rule_serves_both_modes():
    @darner.custom_gradient
    def square(x):
        return x * x

    @square.jvp
    def _(tangent, out, x):
        return 9.0 * tangent * x

    np.testing.assert_array_equal(pushed(graph_calling(square)), 9 * POINT)
    np.testing.assert_array_equal(pulled(graph_calling(square)), 9 * POINT)


def test_what_is_not_a_node_is_passed_on():
    @darner.custom_gradient
    def power(x, n, *, scale=1.0):
        return scale * x**n

    @power.vjp
    def _(g, out, x, n, *, scale=1.0):
        return g * (scale * n) * x ** (n - 1)

    g = graph_calling(power, 3, scale=2.0)
    np.testing.assert_allclose(darner.run(g, {"v": POINT})[0], 2 * POINT**3)
    np.testing.assert_allclose(pulled(g), 6 * POINT**2)


def test_residuals_in_the_manner_of_jax_allow_second_derivatives():
    @darner.custom_gradient
    def cube(x):
        return x * x * x

    cube.defvjp(lambda x: (x * x * x, x * x), lambda square, g: 3.0 * g * square)
    g = Graph()
    x = g.input("v", (3,), "f64")
    g.set_outputs([cube(x).sum()])
    np.testing.assert_allclose(darner.run(darner.grad(g, "v"), {"v": POINT})[0], 3 * POINT**2)
    np.testing.assert_allclose(
        darner.run(darner.hessian(g, "v"), {"v": POINT})[0], np.diag(6 * POINT)
    )


def test_several_operands_and_results():
    @darner.custom_gradient
    def both(a, b):
        return a * b, a + b

    @both.vjp
    def _(g, out, a, b):
        product, total = g
        return 2.0 * product * b + total, None

    g = Graph()
    a, b = g.input("a", (3,), "f64"), g.input("b", (3,), "f64")
    product, total = both(a, b)
    g.set_outputs([product.sum() + (total * 5.0).sum()])
    da, db = darner.run(darner.grad(g, ["a", "b"]), {"a": POINT, "b": 2 * POINT})
    np.testing.assert_allclose(da, 4 * POINT + 5.0)
    np.testing.assert_array_equal(db, np.zeros(3))


def test_integers_among_the_operands_are_left_out_of_the_answer():
    @darner.custom_gradient
    def chosen(table, rows):
        return table.gather(rows, 0)

    @chosen.vjp
    def _(g, out, table, rows):
        return 10.0 * table

    g = Graph()
    table, rows = g.input("v", (3,), "f64"), g.input("rows", (2,), "i32")
    g.set_outputs([chosen(table, rows).sum()])
    found = darner.run(darner.grad(g, "v"), {"v": POINT, "rows": np.array([2, 0])})
    np.testing.assert_array_equal(found[0], 10 * POINT)


def test_a_decorated_function_keeps_its_rule_over_a_batch():
    @darner.custom_gradient
    def scaled(x, w):
        return x * w

    @scaled.vjp
    def _(g, out, x, w):
        return g * w, 100.0 * g * x

    g = Graph()
    x, w = g.input("x", (3,), "f64"), g.parameter("w", (3,), "f64")
    g.set_outputs([scaled(x, w)])
    batch = darner.vmap(g, ["x"], 4)
    batch.set_outputs([batch.outputs[0].sum()])
    found = darner.run(darner.grad(batch), {"x": BATCH}, {"w": WEIGHTS})[0]
    np.testing.assert_allclose(found, 100 * BATCH.sum(0))


def test_a_rule_carries_a_gradient_past_what_has_none():
    @darner.custom_gradient
    def rounded(x):
        return x.round().cast("i32").cast("f64")

    @rounded.vjp
    def _(g, out, x):
        return g

    g = Graph()
    x = g.input("v", (3,), "f64")
    g.set_outputs([(rounded(x) * POINT).sum()])
    np.testing.assert_array_equal(darner.run(darner.grad(g, "v"), {"v": POINT + 0.3})[0], POINT)


def test_mistakes_name_the_function_and_the_line():
    @darner.custom_gradient
    def broken(x, answer):
        return answer(x)

    g = Graph()
    x, y = g.input("x", (3,)), g.input("y", (3,))
    with pytest.raises(ArgumentError, match=r"^broken: no argument is a node \(test_custom"):
        broken(3.0, None)
    with pytest.raises(ArgumentError, match=r"broken: .*tuple of nodes must be returned, not 3"):
        broken(x, lambda x: 3)
    with pytest.raises(ArgumentError, match="'b' is a node of graph 'graph', not of 'broken'"):
        broken(x, lambda x: x * y)
    with pytest.raises(ArgumentError, match=r"a result is a node of graph.*pass what it is made"):
        broken(x, lambda x: y)

    @broken.vjp
    def _(g, out, x, answer):
        return g, g

    with pytest.raises(ArgumentError, match="its rule gave 2 gradients where 1 are needed"):
        broken(x, lambda x: x)
    broken.defvjp(lambda x, answer: x, lambda residuals, g: g)
    with pytest.raises(ArgumentError, match="forward must return the result and the residuals"):
        broken(x, lambda x: x)
    assert [node.name for node in g.nodes] == ["x", "y"]
