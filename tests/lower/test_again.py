"""Values that are computed again where they are read: which, from what, and that nothing else changes."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.reference.plan import run_plan
from darner.lower.again import Price
from darner.lower.cut import least_cut
from darner.lower.lower import lower

CHEAP = Price(1000.0)
"""Where arithmetic costs next to nothing."""


def values_of(graph, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {name: rng.normal(size=leaf.shape).astype(np.float32) for name, leaf in leaves.items()}
        for leaves in (graph.inputs, graph.parameters)
    ]


def both(graph, price=CHEAP):
    """The plans of a graph that stores everything, and that computes again; both compute the same."""
    plans = lower(graph), lower(graph, again=price)
    found = [run_plan(plan, *values_of(graph)) for plan in plans]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    return plans


def moved(plan):
    """Bytes of the operands and results of all kernels."""
    kernels = [(*kernel.operands, *kernel.results) for kernel in plan.kernels]
    return sum(plan.buffers[i].nbytes for buffers in kernels for i in buffers)


def written(plan, kind="contract"):
    """How many values each kernel of a kind writes."""
    return [len(k.results) for k in plan.kernels if plan.spec(k).kind == kind]


def gradients(graph):
    """A graph of the loss and all gradients."""
    return darner.value_and_grad(graph)


def gated():
    """A SwiGLU, whose backward pass needs the gate, its sigmoid and its slope."""
    g = Graph("gated")
    x = g.input("x", (16, 8))
    gate, up = (x @ g.parameter(name, (8, 32)) for name in ("gate", "up"))
    h = gate.swiglu(up) @ g.parameter("down", (32, 8))
    g.set_outputs([h.square().mean()])
    return gradients(g)


def test_the_backward_pass_of_a_swiglu_begins_with_the_products():
    plain, again = both(gated())
    assert max(written(plain)) == 3
    # The gate's product, and what the next product reads.
    assert max(written(again)) == 2
    assert moved(again) < 0.85 * moved(plain)
    assert again.arena_bytes <= plain.arena_bytes


def test_what_a_norm_has_scaled_is_made_again_of_what_it_read():
    g = Graph("norm")
    x = g.input("x", (16, 24)) @ g.parameter("w", (24, 32))
    y = x.rms_norm(g.parameter("gamma", (32,))) @ g.parameter("v", (32, 8))
    g.set_outputs([y.square().mean()])
    plain, again = both(gradients(g))
    # Beside one value a row it writes what is multiplied.
    sizes = [
        [int(p.buffers[i].type.size) for i in kernel.results]
        for p in (plain, again)
        for kernel in p.kernels
        if "rsqrt" in p.spec(kernel).ops
    ]
    assert sizes == [[16, 512, 512], [16, 512]]
    assert moved(again) < moved(plain)


@pytest.mark.parametrize("price", [Price(0.01), Price(1000.0, 1 << 20)])
def test_what_is_dear_or_small_is_stored(price):
    graph = gated()
    assert lower(graph, again=price).digest() == lower(graph).digest()


def test_a_value_that_somebody_wants_whole_is_stored_and_read():
    g = Graph("wanted")
    x = g.input("x", (16, 8)) @ g.parameter("w", (8, 32))
    h = x.exp()
    g.set_outputs([h, (h * 2.0).sum(), h @ g.parameter("v", (32, 4))])
    plain, again = both(g)
    assert plain.digest() == again.digest()


def test_what_is_read_through_a_view_is_stored():
    g = Graph("viewed")
    x = g.input("x", (16, 32)) @ g.parameter("w", (32, 32))
    h = x.exp()
    total = (x * h).sum(1)
    g.set_outputs([total, (h.transpose((1, 0)) @ g.parameter("v", (16, 4))).sum()])
    both(g)


def test_numbers_drawn_at_random_are_drawn_once():
    g = Graph("drawn")
    x = g.input("x", (16, 8)) @ g.parameter("w", (8, 32))
    h = (x.dropout(0.5) * 2.0) @ g.parameter("v", (32, 4))
    g.set_outputs([h.square().mean()])
    full = gradients(g)
    inputs, parameters = values_of(full)
    state = {name: np.array(3, np.uint32) for name in full.states}
    found = [
        run_plan(plan, inputs, parameters, state=dict(state))
        for plan in (lower(full), lower(full, again=CHEAP))
    ]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_a_parameter_that_is_updated_is_not_read_again_after_that():
    g = Graph("updated")
    w, x = g.parameter("w", (16, 32)), g.input("x", (8, 16))
    h = x @ w
    scaled = (w * 3.0).exp()
    g.set_outputs([h.sum(), (scaled * 2.0).sum(0)])
    g.set_update(w, w - 0.1)
    plan = lower(g, again=CHEAP)
    assert all(old == new for old, new in plan.updates)
    inputs, parameters = values_of(g)
    state = dict(parameters)
    found = run_plan(plan, inputs, parameters, state=state)
    wanted = darner.run(g, inputs, parameters)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    np.testing.assert_allclose(state["w"], parameters["w"] - 0.1, rtol=1e-6)


def test_a_cut_is_the_cheapest_and_nearest_to_the_ends():
    price = {1: 3.0, 2: 1.0, 3: 1.0, 4: 2.0}
    ways = {1: [2, 3], 2: [4], 3: [4]}
    assert least_cut(price, ways, [1], [4]) == (2.0, frozenset([4]))
    assert least_cut({**price, 4: 2.5}, ways, [1], [4]) == (2.0, frozenset([2, 3]))
    assert least_cut({**price, 4: 9.0, 2: 9.0}, ways, [1], [4]) == (3.0, frozenset([1]))
    infinite = dict.fromkeys(price, float("inf"))
    assert least_cut(infinite, ways, [1], [4])[0] == float("inf")


def test_random_cuts_are_least():
    rng = np.random.default_rng(5)
    for _ in range(20):
        count = 6
        price = {i: float(rng.integers(1, 9)) for i in range(count)}
        ways = {i: [j for j in range(i + 1, count) if rng.random() < 0.5] for i in range(count)}
        sources, ends = [0, 1], [4, 5]
        least = min(
            sum(price[i] for i in range(count) if chosen >> i & 1)
            for chosen in range(1 << count)
            if not _passes(ways, sources, ends, {i for i in range(count) if chosen >> i & 1})
        )
        found, cut = least_cut(price, ways, sources, ends)
        assert found == least == sum(price[i] for i in cut)
        assert not _passes(ways, sources, ends, cut)


def _passes(ways, sources, ends, cut):
    stack = [i for i in sources if i not in cut]
    while stack:
        node = stack.pop()
        if node in ends:
            return True
        stack += [i for i in ways[node] if i not in cut]
    return False
