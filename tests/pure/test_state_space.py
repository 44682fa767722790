"""Selective scans and the gated delta rule: laws, states that are carried, and what is refused."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.testing import assert_close

RNG = np.random.default_rng(3)


def scan_arrays(batch=2, steps=9, channels=5, size=4):
    return {
        "x": RNG.normal(size=(batch, steps, channels)).astype(np.float32),
        "delta": RNG.uniform(0.1, 1, (batch, steps, channels)).astype(np.float32),
        "a": -RNG.uniform(0.1, 2, (channels, size)).astype(np.float32),
        "b": RNG.normal(size=(batch, steps, size)).astype(np.float32),
        "c": RNG.normal(size=(batch, steps, size)).astype(np.float32),
    }


def net_arrays(batch=2, steps=9, heads=3, width=4):
    def unit():
        rows = RNG.normal(size=(batch, steps, heads, width))
        return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)

    return {
        "q": unit(),
        "k": unit(),
        "v": RNG.normal(size=(batch, steps, heads, width)).astype(np.float32),
        "g": -RNG.uniform(0, 2, (batch, steps, heads)).astype(np.float32),
        "beta": RNG.uniform(0, 1, (batch, steps, heads)).astype(np.float32),
    }


def graph_of(arrays):
    graph = Graph()
    return graph, [graph.input(name, a.shape, a.dtype) for name, a in arrays.items()]


def delta_rule(q, k, v, g, beta, state):
    """One step after another, in float64."""
    rows = []
    for t in range(q.shape[1]):
        state = state * np.exp(g[:, t], dtype=np.float64)[..., None, None]
        known = np.einsum("bhkv,bhk->bhv", state, k[:, t])
        written = (v[:, t] - known) * beta[:, t, :, None]
        state = state + k[:, t, :, :, None] * written[:, :, None]
        rows.append(np.einsum("bhkv,bhk->bhv", state, q[:, t]) / np.sqrt(q.shape[-1]))
    return np.stack(rows, 1), state


def test_a_sequence_at_once_is_its_tokens_one_after_another():
    arrays = net_arrays()
    graph = Graph()
    leaves = [graph.input(n, (2, 1, *a.shape[2:]), a.dtype) for n, a in arrays.items()]
    state = graph.state("m", (2, 3, 4, 4))
    graph.set_outputs([graph.gated_delta_net_carry(*leaves, state)])
    held, rows = {"m": np.zeros((2, 3, 4, 4), np.float32)}, []
    for t in range(9):
        token = {name: array[:, t : t + 1] for name, array in arrays.items()}
        rows += darner.run(graph, token, state=held)
    wanted, final = delta_rule(*arrays.values(), np.zeros((2, 3, 4, 4)))
    assert_close(np.concatenate(rows, 1), wanted, "f32", 36)
    assert_close(held["m"], final, "f32", 36)


def test_a_prompt_and_the_rest_are_the_whole():
    arrays = net_arrays()
    graph, leaves = graph_of(arrays)
    start = graph.zeros((2, 3, 4, 4))
    head, state = graph.gated_delta_net_carry(
        *(leaf[:, :5] for leaf in leaves), start, return_state=True
    )
    tail, state = graph.gated_delta_net_carry(
        *(leaf[:, 5:] for leaf in leaves), state, return_state=True
    )
    graph.set_outputs([graph.concat([head, tail], 1), state, graph.gated_delta_net(*leaves)])
    joined, state, whole = darner.run(graph, arrays)
    _, final = delta_rule(*arrays.values(), np.zeros((2, 3, 4, 4)))
    assert_close(joined, whole, "f32", 36)
    assert_close(state, final, "f32", 36)


def test_a_gate_of_minus_infinity_forgets_everything():
    arrays = net_arrays(steps=6)
    arrays["g"][:, 3] = -np.inf
    graph, leaves = graph_of(arrays)
    graph.set_outputs([graph.gated_delta_net(*leaves)])
    (found,) = darner.run(graph, arrays)
    (alone,) = darner.run(_net(3), {name: array[:, 3:] for name, array in arrays.items()})
    assert_close(found[:, 3:], alone, "f32", 24)


def _net(steps):
    graph, leaves = graph_of(net_arrays(steps=steps))
    graph.set_outputs([graph.gated_delta_net(*leaves)])
    return graph


def test_what_a_node_learned_is_not_lost_by_mistake():
    arrays = net_arrays()
    graph, leaves = graph_of(arrays)
    start = graph.zeros((2, 3, 4, 4))
    before = len(graph)
    with pytest.raises(darner.ArgumentError, match="return_state=True"):
        graph.gated_delta_net_carry(*leaves, start)
    assert len(graph) == before


def test_a_state_is_written_once():
    arrays = net_arrays()
    graph, leaves = graph_of(arrays)
    state = graph.state("m", (2, 3, 4, 4))
    _o, after = graph.gated_delta_net_carry(*leaves, state, return_state=True)
    assert graph.updates[state] is after
    with pytest.raises(darner.ArgumentError, match="already updated"):
        graph.gated_delta_net_carry(*leaves, state)


def test_a_state_keeps_its_own_type():
    arrays = net_arrays()
    graph, leaves = graph_of(arrays)
    narrow = [leaf.cast("bf16") for leaf in leaves]
    state = graph.state("m", (2, 3, 4, 4), "f32")
    o, after = graph.gated_delta_net_carry(*narrow, state, return_state=True)
    assert (o.dtype.name, after.dtype.name) == ("bf16", "f32")


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("x", (9, 5), "x has rank 2"),
        ("delta", (2, 9, 4), r"delta is \(2, 9, 4\): with x \(2, 9, 5\)"),
        ("a", (4, 4), r"a is \(4, 4\): .* 5 channels of x \(2, 9, 5\)"),
        ("b", (2, 9, 3), r"b is \(2, 9, 3\): with x \(2, 9, 5\) and a \(5, 4\)"),
        ("c", (1, 9, 4), r"c is \(1, 9, 4\)"),
    ],
)
def test_operands_of_a_scan_that_do_not_fit_are_told_with_both_shapes(name, shape, said):
    arrays = scan_arrays()
    arrays[name] = np.zeros(shape, np.float32)
    graph, leaves = graph_of(arrays)
    with pytest.raises(darner.ShapeError, match=f"selective_scan.*{said}"):
        graph.selective_scan(*leaves)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("q", (9, 3, 4), "q has rank 3"),
        ("k", (2, 9, 3, 5), r"k is \(2, 9, 3, 5\): with q \(2, 9, 3, 4\)"),
        ("g", (2, 9, 4), r"g is \(2, 9, 4\)"),
        ("beta", (2, 8, 3), r"beta is \(2, 8, 3\)"),
        ("state", (2, 3, 4, 5), r"state is \(2, 3, 4, 5\): .* \(2, 3, 4, 4\)"),
    ],
)
def test_operands_of_the_rule_that_do_not_fit_are_told_with_both_shapes(name, shape, said):
    arrays = net_arrays() | {"state": np.zeros((2, 3, 4, 4), np.float32)}
    arrays[name] = np.zeros(shape, np.float32)
    graph, leaves = graph_of(arrays)
    with pytest.raises(darner.ShapeError, match=said):
        graph.gated_delta_net_carry(*leaves, return_state=True)


def test_a_stated_size_or_type_must_be_the_one_found():
    graph, leaves = graph_of(scan_arrays())
    with pytest.raises(
        darner.ShapeError, match="state_size is 3, but the operands have states of 4"
    ):
        graph.selective_scan(*leaves, 3)
    with pytest.raises(darner.DTypeError, match="f64 was stated"):
        graph.selective_scan(*leaves, 4, darner.Shape.new([2, 9, 5], "f64"))
    with pytest.raises(darner.ShapeError, match="was stated"):
        graph.selective_scan(*leaves, 4, [2, 9, 6])
    net, operands = graph_of(net_arrays())
    with pytest.raises(darner.ShapeError, match="was stated"):
        net.gated_delta_net(*operands, 4, [2, 9, 3, 5])
    with pytest.raises(darner.ShapeError, match="state_size is 5"):
        net.gated_delta_net(*operands, 5)


def test_complex_operands_are_refused():
    graph, leaves = graph_of(scan_arrays())
    with pytest.raises(darner.DTypeError, match="selective_scan"):
        graph.selective_scan(graph.input("z", (2, 9, 5), "c64"), *leaves[1:])


def test_a_state_is_updated_where_it_lies():
    graph, leaves = graph_of(net_arrays(steps=1))
    state = graph.state("m", (2, 3, 4, 4))
    graph.set_outputs([graph.gated_delta_net_carry(*leaves, state)])
    with darner.build_inference_session(graph, device="cpu") as session:
        plan = session.plan()
        assert [old == new for old, new in plan.updates] == [True]
        assert [kernel.kind for kernel in map(plan.spec, plan.kernels)] == ["library"]


def test_a_long_sequence_is_written_out_in_pieces_and_gives_the_same():
    arrays = {n: a.astype(np.float64) for n, a in net_arrays(1, 300, 1, 3).items()}
    state, dstate = RNG.normal(size=(2, 1, 1, 3, 3))
    dy = RNG.normal(size=(1, 300, 1, 3))
    graph, leaves = graph_of({**arrays, "state": state, "dy": dy, "dstate": dstate})
    operands, (start, cotangent, later) = leaves[:5], leaves[5:]
    o, final = graph.gated_delta_net_carry(*operands, start, return_state=True)
    found = graph.gated_delta_net_backward(*operands, cotangent, start, later)
    plain = graph.gated_delta_net_backward(*operands, cotangent)
    graph.set_outputs([o, final, graph.gated_delta_net(*operands), *found, *plain])
    given = {**arrays, "state": state, "dy": dy, "dstate": dstate}
    results = darner.run(graph, given)
    wanted, last = delta_rule(*arrays.values(), state)
    without, _ = delta_rule(*arrays.values(), np.zeros((1, 1, 3, 3)))
    for a, b in zip(results, (wanted, last, without), strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    most = max(node.size for node in darner.expand(graph).nodes if node.rank)
    assert most <= 300 * 300 // 2

    def loss(values, begin):
        rows, end = delta_rule(*values.values(), begin)
        return (rows * dy).sum() + (end * dstate).sum()

    for name, gradient in zip([*arrays, "state"], results[3:9], strict=True):
        way = RNG.normal(size=gradient.shape)
        both = []
        for sign in (1e-6, -1e-6):
            moved = {n: a + sign * way if n == name else a for n, a in arrays.items()}
            both.append(loss(moved, state + sign * way if name == "state" else state))
        np.testing.assert_allclose((gradient * way).sum(), (both[0] - both[1]) / 2e-6, rtol=1e-6)
    short = graph.gated_delta_net_backward(*operands, cotangent, graph.zeros((1, 1, 3, 3), "f64"))
    graph.set_outputs(list(short)[:5])
    for a, b in zip(darner.run(graph, given), results[9:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
