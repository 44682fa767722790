"""Loops: their derivatives and batches beside the same steps written out, and what is left of them when they are tidied."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import ArgumentError, Graph, ShapeError
from darner.ops.loops.loop import loop
from darner.testing import make_case
from darner.transforms.loops.motion import move_products
from darner.transforms.loops.tidy import tidy_loops
from tests.unrolled import loops_of, unrolled

SAMPLES = range(len(loop.samples))


def close(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def filled(graph, values, seed=1):
    """Values for all inputs: those that are there, and random ones."""
    rng = np.random.default_rng(seed)
    return {
        name: values[name] if name in values else rng.standard_normal(leaf.shape)
        for name, leaf in graph.inputs.items()
    }


def floats(graph):
    return [name for name, leaf in graph.inputs.items() if leaf.dtype.is_float]


@pytest.mark.parametrize("index", SAMPLES)
def test_derivatives_are_those_of_the_steps_written_out(index):
    case = make_case(loop, index, "f64")
    ours, theirs = case.graph, unrolled(case.graph)
    close(case.run(), darner.run(theirs, case.arrays))
    moving = floats(ours)
    for transform in (darner.vjp, darner.jvp):
        for names in (moving, *([name] for name in moving)):
            found, wanted = transform(ours, names), transform(theirs, names)
            values = filled(found, case.arrays)
            close(darner.run(found, values), darner.run(wanted, values))


@pytest.mark.parametrize("index", SAMPLES)
def test_second_derivatives_are_those_of_the_steps_written_out(index):
    case = make_case(loop, index, "f64")
    first, first_wanted = (darner.vjp(g, floats(g)) for g in (case.graph, unrolled(case.graph)))
    for transform in (darner.vjp, darner.jvp):
        found = transform(first, floats(first))
        wanted = transform(first_wanted, floats(first))
        values = filled(found, case.arrays)
        close(darner.run(found, values), darner.run(wanted, values))


@pytest.mark.parametrize("index", SAMPLES)
def test_a_batch_is_the_loop_for_each_element(index):
    case = make_case(loop, index, "f64")
    names = list(case.graph.inputs)
    for graph, arrays in (
        (case.graph, case.arrays),
        ((back := darner.vjp(case.graph, floats(case.graph))), filled(back, case.arrays)),
    ):
        for chosen in ([], *([name] for name in names), names):
            whole = darner.vmap(graph, chosen, 3)
            rows = [{n: v + i * (n in chosen) for n, v in arrays.items()} for i in range(3)]
            stacked = {
                n: np.stack([row[n] for row in rows]) if n in chosen else v
                for n, v in arrays.items()
            }
            each = [darner.run(graph, row) for row in rows]
            close(
                darner.run(whole, stacked), [np.stack(parts) for parts in zip(*each, strict=True)]
            )


# --------------------------------------------------------------------------- random bodies


class Bodies:
    """Random bodies over carries, constants and steps of shapes (2, 3), (3, 3), (3,) and ()."""

    SHAPES = ((2, 3), (3, 3), (3,), ())

    def __init__(self, seed, depth):
        self.rng = np.random.default_rng(seed)
        self.depth = depth

    def types(self, most):
        return [self.SHAPES[self.rng.integers(4)] for _ in range(self.rng.integers(most + 1))]

    def operation(self, graph, values):
        """One more value made of others."""
        a, b = (values[self.rng.integers(len(values))] for _ in range(2))
        kind = self.rng.integers(7)
        if kind == 0 and a.rank == 2 and b.shape == (3, 3):
            return a @ b
        if kind == 1 and a.rank:
            return a.sum(int(self.rng.integers(a.rank)), keepdims=True) * a
        if kind == 2 and a.rank and b.shape in ((3,), a.shape):
            return (a + b).tanh()
        if kind == 3:
            return a.sin()
        if kind == 4:
            return (a * 0.5).sigmoid()
        if kind == 5 and self.depth:
            return self.inner(graph, values)
        return a * b.sum() + a

    def inner(self, graph, values):
        nested = Bodies(self.rng.integers(1 << 30), self.depth - 1)
        return nested.loop(graph, values)[0]

    def value(self, graph, values, shape):
        """A value of a shape, made of what there is."""
        fitting = [v for v in values if v.shape == shape]
        if fitting:
            return fitting[-1]
        total = values[-1].sum().tanh()
        return total.broadcast_to(shape) if shape else total

    def loop(self, graph, outer):
        """A random loop over values of a graph; its results."""
        carries = self.types(2) or [(2, 3)]
        constants, xs, written = self.types(2), self.types(2), self.types(2)
        length = int(self.rng.integers(4))
        body = Graph("body")
        leaves = [
            body.input(f"{stem}{i}", shape, "f64")
            for stem, shapes in (("h", carries), ("k", constants), ("x", xs))
            for i, shape in enumerate(shapes)
        ]
        values = list(leaves)
        for _ in range(self.rng.integers(1, 6)):
            values.append(self.operation(body, values))
        self.rng.shuffle(values)
        body.set_outputs(
            [self.value(body, values, shape).tanh() for shape in carries]
            + [self.value(body, values, shape) for shape in written]
        )
        init, fixed, steps = (
            [self.value(graph, outer, shape) for shape in shapes]
            for shapes in (carries, constants, xs)
        )
        stacks = (
            [graph.stack([step * float(t + 1) for t in range(length)], 0) for step in steps]
            if length
            else [graph.zeros((0, *step.shape), "f64") for step in steps]
        )
        reverse = bool(self.rng.integers(2))
        return graph.loop(init, fixed, stacks, body, length, reverse)


def random_graph(seed, depth=1):
    graph = Graph("random")
    leaves = [graph.input(f"in{i}", shape, "f64") for i, shape in enumerate(Bodies.SHAPES)]
    results = Bodies(seed, depth).loop(graph, leaves)
    graph.set_outputs([(value.sin()).sum() for value in results if 0 not in value.shape])
    rng = np.random.default_rng(seed)
    values = {name: rng.uniform(-1, 1, leaf.shape) for name, leaf in graph.inputs.items()}
    return graph, values


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1 << 30))
def test_random_loops_are_their_steps_written_out(seed):
    graph, values = random_graph(seed)
    plain = unrolled(graph)
    wanted = darner.run(plain, values)
    close(darner.run(graph, values), wanted)
    for change in (tidy_loops, move_products):
        changed = change(graph)
        changed.verify()
        close(darner.run(changed, values), wanted)
    names = list(values)
    back, plain_back = darner.vjp(graph, names), darner.vjp(plain, names)
    given_too = filled(back, values)
    gradients = darner.run(plain_back, given_too)
    close(darner.run(back, given_too), gradients)
    close(darner.run(darner.vjp(move_products(graph), names), given_too), gradients)
    close(darner.run(tidy_loops(move_products(back)), given_too), gradients)
    assert Graph.from_text(back.to_text()) == back
    assert Graph.from_json(back.to_json()).digest() == back.digest()


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_optimizer_keeps_what_random_loops_compute(seed):
    graph, values = random_graph(seed)
    back = darner.vjp(graph, list(values))
    given_too = filled(back, values)
    wanted = darner.run(back, given_too)
    for level in (0, 1, 2):
        close(darner.run(darner.optimize(back, level=level), given_too), wanted)
    close(darner.run(darner.optimize(back, mode="inference"), given_too), wanted)


# --------------------------------------------------------------------------- what is left of loops


def recurrent(reverse=False):
    """A recurrent layer by hand: products with x_t and with h, and one that only the output needs."""
    g = Graph("rnn")
    x = g.input("x", (5, 2, 3), "f64")
    w, u, v = (g.parameter(name, (3, 3), "f64") for name in "wuv")

    def step(h, x_t):
        h = (x_t @ w + h @ u).tanh()
        return h, h @ v

    h, y = g.iterate(step, g.zeros((2, 3), "f64"), x, reverse=reverse)
    g.set_outputs([h.square().sum() + y.sin().sum()])
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((3, 3)) for name in "wuv"}
    return g, {"x": rng.standard_normal((5, 2, 3))}, weights


@pytest.mark.parametrize("reverse", [False, True])
def test_a_gradient_is_one_loop_forward_and_one_back_and_carries_no_matrix(reverse):
    g, _values, _weights = recurrent(reverse)
    forward, backward = loops_of(darner.value_and_grad(g, [*"wuv", "x"]))
    assert (forward.reverse, backward.reverse) == (reverse, not reverse)
    assert [node.shape for node in backward.init] == [(2, 3)]  # no sum of gradients of weights


@pytest.mark.parametrize("reverse", [False, True])
def test_products_that_need_not_wait_are_outside_of_the_loop(reverse):
    g, values, weights = recurrent(reverse)
    (found,) = loops_of(darner.optimize(g))
    ops = [node.op.name for node in found.body.nodes if node.inputs]
    assert ops.count("matmul") + ops.count("fused_matmul") + ops.count("matmul_residual") <= 1
    wanted = darner.run(darner.value_and_grad(g, [*"wuv", "x"]), values, weights)
    outside = darner.value_and_grad(move_products(g), [*"wuv", "x"])
    close(darner.run(outside, values, weights), wanted)
    after = darner.optimize(darner.value_and_grad(g, [*"wuv", "x"]))
    close(darner.run(after, values, weights), wanted)


def test_what_no_result_needs_is_dropped():
    g = Graph()
    x, k = g.input("x", (4, 3)), g.input("k", (3,))
    used = g.input("used", (4, 3))

    def step(carry, parts):
        a, b, never = carry
        return ((a + parts[1]).tanh(), b * k, never), (a * 2.0, b, parts[0])

    (a, _, _), (_, _, copied) = g.iterate(step, (g.zeros((3,)), k, k), (x, used))
    g.set_outputs([a, copied])
    (left,) = loops_of(tidy_loops(g))
    assert (len(left.init), len(left.constants), len(left.xs)) == (1, 0, 1)
    assert len(left.body.outputs) == 1
    values = {name: np.ones(leaf.shape, np.float32) for name, leaf in g.inputs.items()}
    close(darner.run(tidy_loops(g), values), darner.run(g, values))


def test_a_loop_that_is_part_of_another_is_not_run_twice():
    g = Graph()
    x = g.input("x", (4, 3))
    h, _ = g.iterate(lambda h, x: ((h + x).silu(), None), g.zeros((3,)), x)
    both, y = g.iterate(lambda h, x: (((h + x).silu()), h.exp()), g.zeros((3,)), x)
    g.set_outputs([h, both, y])
    assert len(loops_of(tidy_loops(g))) == 1


def test_a_loop_of_no_steps_is_its_beginning():
    g = Graph()
    h, y = g.iterate(lambda h, _: (h * 2.0, h), g.input("h", (2,)), length=0)
    g.set_outputs([h, y])
    assert loops_of(tidy_loops(g)) == []
    found = darner.run(tidy_loops(g), {"h": np.ones(2)})
    assert found[0].tolist() == [1, 1]
    assert found[1].shape == (0, 2)


def test_a_gradient_through_a_loop_needs_derivatives_only_where_it_goes():
    """An op without a derivative stands in the way of one operand, and another's gradient does not meet it."""

    @darner.primitive(family="test_loops")
    def opaque(x: darner.graph.attributes.Float) -> darner.TensorType:
        """No derivative."""
        return x

    try:
        opaque.reference(lambda x: np.floor(x))
        g = Graph()
        k, w, x = g.input("k", (3,)), g.parameter("w", (3,)), g.input("x", (4, 3))
        h, _ = g.iterate(lambda h, x: (h * w + x * opaque(k), None), g.zeros((3,)), x)
        g.set_outputs([h.sum()])
        darner.grad(g, ["w", "x"])
        with pytest.raises(ArgumentError, match="has no derivative"):
            darner.grad(g, ["k"])
    finally:
        darner.graph.op.unregister("opaque")


def test_half_precision_carries_stay_what_they_are():
    g = Graph()
    x = g.input("x", (3, 2), "bf16")
    h, y = g.iterate(lambda h, x: ((h + x).tanh(), h.sum()), g.zeros((2,), "bf16"), x)
    g.set_outputs([h, y])
    values = {"x": np.full((3, 2), 0.3, np.float32)}
    found = darner.run(g, values)
    assert [str(node.dtype) for node in g.outputs] == ["bf16", "bf16"]
    for a, b in zip(found, darner.run(unrolled(g), values), strict=True):
        np.testing.assert_array_equal(a, b)


# --------------------------------------------------------------------------- mistakes


def body_of(build, **inputs):
    g = Graph("body")
    g.set_outputs(build(*(g.input(name, shape) for name, shape in inputs.items())))
    return g


def test_a_body_that_does_not_fit_is_told_by_its_input_and_the_operand():
    g = Graph()
    h, x = g.input("h", (3,)), g.input("x", (4, 3))
    body = body_of(lambda a, b: [a + b.sum()], a=(3,), b=(2,))
    with pytest.raises(
        ShapeError, match=r"input 'b' of the body is f32\[2\], but one step of xs\[0\] is f32\[3\]"
    ):
        g.loop([h], [], [x], body, 4)
    with pytest.raises(
        ShapeError, match=r"input 'b' of the body is f32\[2\], but constants\[0\] is f32\[3\]"
    ):
        g.loop([h], [h], [], body, 4)
    with pytest.raises(
        ShapeError, match=r"xs\[0\] is f32\[4, 3\], but its first axis must be the 5 steps"
    ):
        g.loop([h], [], [x], body, 5)
    with pytest.raises(ShapeError, match=r"the body has 2 inputs \('a', 'b'\) for 1 operands"):
        g.loop([h], [], [], body, 4)
    grows = body_of(lambda a: [g_stack(a)], a=(3,))
    with pytest.raises(
        ShapeError, match=r"output 0 of the body is f32\[2, 3\], but carry 'a' is f32\[3\]"
    ):
        g.loop([h], [], [], grows, 4)
    with pytest.raises(ArgumentError, match="length must be 0 or more"):
        g.loop([h], [], [], body_of(lambda a: [a], a=(3,)), -1)


def g_stack(a):
    return a.graph.stack([a, a], 0)


def test_a_body_with_a_parameter_of_its_own_is_refused():
    g = Graph()
    body = Graph("body")
    body.set_outputs([body.input("h", (3,)) * body.parameter("w", (3,))])
    with pytest.raises(ArgumentError, match="the body has a parameter 'w' of its own"):
        g.loop([g.input("h", (3,))], [], [], body, 2)
