"""Transforms of transforms, in any order, over random small graphs: against ``torch.func``.

A random function is built twice, as a graph and in PyTorch, and changed by the same transforms. What a transform
adds to the inputs has the same names in both.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph

# What PyTorch's forward mode says of itself when it is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")

SIZE = 3
BATCH = 2

# --------------------------------------------------------------------------- functions


def wave(x):
    return (-(x * x)).exp() * x


def layer_norm(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)


STEPS = {
    "tanh": (lambda g, x, w: x.tanh(), lambda x, w: x.tanh()),
    "sin": (lambda g, x, w: x.sin(), lambda x, w: x.sin()),
    "square": (lambda g, x, w: x.square() * 0.5, lambda x, w: x * x * 0.5),
    "wave": (lambda g, x, w: wave(x), lambda x, w: wave(x)),
    "ratio": (lambda g, x, w: x / (1.0 + x * x), lambda x, w: x / (1.0 + x * x)),
    "gelu": (
        lambda g, x, w: x.gelu(),
        lambda x, w: 0.5 * x * (1 + torch.erf(x * 0.5**0.5)),
    ),
    "silu": (lambda g, x, w: x.silu(), lambda x, w: x * torch.sigmoid(x)),
    "relu": (lambda g, x, w: x.relu(), lambda x, w: torch.where(x > 0, x, 0.0)),
    "abs": (lambda g, x, w: x.abs(), lambda x, w: torch.where(x > 0, x, -x)),
    "vector by matrix": (lambda g, x, w: x @ w, lambda x, w: x @ w),
    "matrix by vector": (lambda g, x, w: w @ x, lambda x, w: w @ x),
    "gram": (lambda g, x, w: (w.T @ w) @ x * 0.3, lambda x, w: (w.mT @ w) @ x * 0.3),
    "softmax": (lambda g, x, w: x.softmax(), lambda x, w: torch.softmax(x, -1)),
    "log_softmax": (lambda g, x, w: x.log_softmax(), lambda x, w: torch.log_softmax(x, -1)),
    "layer_norm": (lambda g, x, w: g.layer_norm(x), lambda x, w: layer_norm(x)),
    "attention": (
        lambda g, x, w: (w @ w.T).softmax() @ x,
        lambda x, w: torch.softmax(w @ w.mT, -1) @ x,
    ),
    "cumsum": (lambda g, x, w: x.cumsum() * 0.5, lambda x, w: x.cumsum(-1) * 0.5),
    "sort": (lambda g, x, w: x.sort(), lambda x, w: torch.sort(x, -1).values),
    "max": (lambda g, x, w: x * x.max(), lambda x, w: x * x.max()),
    "gather": (
        lambda g, x, w: x.gather([2, 0, 0]),
        lambda x, w: x.index_select(0, torch.tensor([2, 0, 0])),
    ),
    "row": (lambda g, x, w: x + w[1], lambda x, w: x + w[1]),
    "maximum": (
        lambda g, x, w: g.maximum(x, w[0]),
        lambda x, w: torch.where(x >= w[0], x, w[0]),
    ),
    "where": (
        lambda g, x, w: g.where(x > 0.1, x, x * x),
        lambda x, w: torch.where(x > 0.1, x, x * x),
    ),
    "concat": (
        lambda g, x, w: g.concat([x[1:], x[:1].exp()]),
        lambda x, w: torch.cat([x[1:], x[:1].exp()]),
    ),
    "outer": (
        lambda g, x, w: (x.reshape((SIZE, 1)) * x * w).sum(0),
        lambda x, w: (x[:, None] * x * w).sum(0),
    ),
    "norm": (
        lambda g, x, w: x / (1.0 + x.square().sum()).sqrt(),
        lambda x, w: x / torch.sqrt(1.0 + (x * x).sum()),
    ),
}
"""Functions from a vector and a matrix to a vector: in darner, and in PyTorch."""


@dataclass
class Pair:
    """The same function twice."""

    graph: Graph
    torch: object
    """Values by name to a list of results."""

    def names(self):
        return list(self.graph.inputs)

    def is_scalar(self):
        return self.graph.outputs[0].shape == ()

    def results(self):
        return sum(int(node.size) for node in self.graph.outputs)


def start(steps):
    graph = Graph("random")
    x, w = graph.input("x", (SIZE,), "f64"), graph.input("w", (SIZE, SIZE), "f64")
    y = x
    for step in steps:
        y = STEPS[step][0](graph, y, w)
    graph.set_outputs([y])

    def function(values):
        y = values["x"]
        for step in steps:
            y = STEPS[step][1](y, values["w"])
        return [y]

    return Pair(graph, function)


# --------------------------------------------------------------------------- transforms


def total(pair):
    """One number from all outputs, so that there is a gradient."""
    graph = pair.graph.copy()
    parts = [(node * 0.7 + node * node * 0.1).sum() for node in graph.outputs]
    graph.set_outputs([sum(parts[1:], parts[0])])

    def function(values):
        return [sum((y * 0.7 + y * y * 0.1).sum() for y in pair.torch(values))]

    return Pair(graph, function)


def loss(pair, values):
    return lambda chosen: pair.torch({**values, **chosen})[0]


def outputs(pair, values):
    return lambda chosen: pair.torch({**values, **chosen})


def pick(values, names):
    return {name: values[name] for name in names}


def added(before, after):
    return [name for name in after.inputs if name not in before.inputs]


def grad(pair, wrt):
    def function(values):
        return list(torch.func.grad(loss(pair, values))(pick(values, wrt)).values())

    return Pair(darner.grad(pair.graph, wrt), function)


def value_and_grad(pair, wrt):
    def function(values):
        found = torch.func.grad(loss(pair, values))(pick(values, wrt))
        return [*pair.torch(values), *found.values()]

    return Pair(darner.value_and_grad(pair.graph, wrt), function)


def hvp(pair, wrt):
    graph = darner.hvp(pair.graph, wrt)
    new = added(pair.graph, graph)

    def function(values):
        moved = torch.func.jvp(
            torch.func.grad(loss(pair, values)),
            (pick(values, wrt),),
            ({name: values[t] for name, t in zip(wrt, new, strict=True)},),
        )[1]
        return list(moved.values())

    return Pair(graph, function)


def vjp(pair, wrt):
    graph = darner.vjp(pair.graph, wrt)
    new = added(pair.graph, graph)

    def function(values):
        found, pull = torch.func.vjp(outputs(pair, values), pick(values, wrt))
        (gradients,) = pull([values[name] for name in new])
        return [*found, *gradients.values()]

    return Pair(graph, function)


def jvp(pair, wrt):
    graph = darner.jvp(pair.graph, wrt)
    new = added(pair.graph, graph)

    def function(values):
        tangents = {name: values[t] for name, t in zip(wrt, new, strict=True)}
        found, moved = torch.func.jvp(outputs(pair, values), (pick(values, wrt),), (tangents,))
        return [*found, *moved]

    return Pair(graph, function)


def jacobian(ours, theirs):
    def transform(pair, wrt):
        def function(values):
            found = theirs(outputs(pair, values))(pick(values, wrt))
            return [part for row in found for part in row.values()]

        return Pair(ours(pair.graph, wrt), function)

    return transform


def hessian(pair, wrt):
    def function(values):
        found = torch.func.hessian(loss(pair, values))(pick(values, wrt))
        return [part for row in found.values() for part in row.values()]

    return Pair(darner.hessian(pair.graph, wrt), function)


def vmap(pair, axes, out_axis):
    graph = darner.vmap(pair.graph, axes, BATCH, out_axis=out_axis)

    def function(values):
        found = torch.func.vmap(outputs(pair, values), in_dims=(axes,))(pick(values, axes))
        return [y.movedim(0, out_axis) for y in found]  # out_dims fails where nothing is batched

    return Pair(graph, function)


NEEDS_ONE_NUMBER = {
    "grad": grad,
    "value_and_grad": value_and_grad,
    "hvp": hvp,
    "hessian": hessian,
}
OF_ANYTHING = {
    "vjp": vjp,
    "jvp": jvp,
    "jacfwd": jacobian(darner.jacfwd, torch.func.jacfwd),
    "jacrev": jacobian(darner.jacrev, torch.func.jacrev),
}
LARGE = {"hessian", "jacfwd", "jacrev"}


@st.composite
def transformed(draw, names=(*NEEDS_ONE_NUMBER, *OF_ANYTHING, "vmap"), depth=3):
    """A random function under up to ``depth`` random transforms."""
    pair = start(draw(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3)))
    applied = []
    for _ in range(draw(st.integers(1, depth))):
        allowed = [name for name in names if pair.results() <= 40 or name not in LARGE]
        name = draw(st.sampled_from(allowed))
        known = pair.names()
        chosen = draw(st.lists(st.sampled_from(known), min_size=1, max_size=2, unique=True))
        if name == "vmap":
            axes = {key: draw(st.integers(0, pair.graph.inputs[key].rank)) for key in chosen}
            lowest = min(node.rank for node in pair.graph.outputs)
            pair = vmap(pair, axes, draw(st.integers(0, lowest)))
        elif name in NEEDS_ONE_NUMBER:
            pair = pair if pair.is_scalar() else total(pair)
            pair = NEEDS_ONE_NUMBER[name](pair, chosen)
        else:
            pair = OF_ANYTHING[name](pair, chosen)
        applied.append((name, chosen))
    return pair, applied, draw(st.integers(0, 2**16))


def assert_same(pair, seed):
    rng = np.random.default_rng(seed)
    values = {name: rng.uniform(-1.2, 1.2, node.shape) for name, node in pair.graph.inputs.items()}
    found = darner.run(pair.graph.verify(), values)
    wanted = pair.torch({name: torch.from_numpy(value) for name, value in values.items()})
    assert len(found) == len(wanted)
    scale = max(float(theirs.abs().max()) for theirs in wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            ours, theirs.numpy(force=True), rtol=1e-8, atol=1e-11 * max(scale, 1.0)
        )


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(transformed())
def test_random_compositions_agree_with_torch(drawn):
    pair, _, seed = drawn
    assert_same(pair, seed)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(transformed(names=("grad", "jvp", "vjp", "hvp"), depth=3))
def test_random_towers_of_derivatives_agree_with_torch(drawn):
    pair, _, seed = drawn
    assert_same(pair, seed)


@pytest.mark.parametrize("step", STEPS)
def test_each_function_under_gradient_of_batch_of_tangent(step):
    pair = jvp(start([step]), ["x"])
    pair = vmap(pair, {"x": 1, "tangent_x": 0}, 0)
    assert_same(grad(total(pair), ["x", "w"]), 1)


@pytest.mark.parametrize("step", STEPS)
def test_each_function_has_a_hessian_over_a_batch(step):
    pair = hessian(total(start([step, "tanh"])), ["x", "w"])
    assert_same(vmap(pair, {"x": 0}, 0), 2)


def test_gradients_for_each_example():
    pair = grad(total(start(["vector by matrix", "gelu"])), ["w"])
    assert_same(vmap(pair, {"x": 0}, 0), 3)


def test_hessian_is_the_forward_jacobian_of_the_gradient():
    pair = total(start(["vector by matrix", "softmax", "outer"]))
    nested = jacobian(darner.jacfwd, torch.func.jacfwd)(grad(pair, ["x"]), ["x"])
    assert_same(nested, 4)
    value = {"x": np.array([0.1, -0.4, 0.3]), "w": np.eye(3) * 0.7}
    np.testing.assert_allclose(
        darner.run(nested.graph, value)[0],
        darner.run(darner.hessian(pair.graph, "x"), value)[0],
        rtol=1e-12,
    )
