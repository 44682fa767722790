"""Corners of the optimizer: kinks and ties, NaN and infinity, odd element types and sizes, odd outputs and updates."""

import hashlib
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest

import darner
from darner import Graph
from darner.optimizer import RULES, RuleError, T, rule, variables
from darner.optimizer.declare import remove_rule
from tests.optimizer.random_graphs import grown
from tests.strategies import snapshot
from tests.zoo import llama, mlp, mlp_step, trained
from tests.zoo import run as run_zoo
from tests.zoo import values as zoo_values

WAYS = {
    "train": {},
    "inference": {"mode": "inference"},
    "before gradient": {"before_gradient": True},
    "canonical": {"level": 1},
    "dead nodes only": {"level": 0},
    "one piece, cuda": {"level": 3, "target": "cuda"},
    "wgpu": {"target": "wgpu"},
}
every_way = pytest.mark.parametrize("way", WAYS)


def run(graph, values):
    """The outputs, then all states and updated parameters by name."""
    state = {name: np.array(values[name]) for name in graph.states}
    inputs = {name: values[name] for name in graph.inputs}
    params = {name: values[name] for name in graph.parameters}
    results = darner.run(graph, inputs, params, state=state)
    return results + [np.asarray(state[name]) for name in sorted(state)]


def assert_equal(found, wanted, limit=1e-9):
    """Equal up to rounding; NaN and infinities stand where they stood."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=limit, atol=limit)


def assert_kept(graph, values, way, limit=1e-9):
    """Numbers, types, names and updates are those of the graph, which is not changed."""
    before = snapshot(graph)
    result = darner.optimize(graph, **WAYS[way])
    assert snapshot(graph) == before
    assert [n.type for n in result.outputs] == [n.type for n in graph.outputs]
    assert list(result._names) == list(graph._names)
    assert [leaf.name for leaf in result.updates] == [leaf.name for leaf in graph.updates]
    with np.errstate(all="ignore"):
        assert_equal(run(result, values), run(graph, values), limit)
    return result


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


# --------------------------------------------------------------------------- kinks and ties

TIES = np.array([[-1.0, -0.0, 0.0, 1.0, 1.0, 6.0], [2.0, 2.0, 0.0, 0.0, 6.0, -2.0]])

KINKS = {
    "relu": lambda g, x, y: x.relu(),
    "maximum with 0": lambda g, x, y: g.maximum(x, 0.0),
    "maximum of 0": lambda g, x, y: g.maximum(0.0, x),
    "maximum of two": lambda g, x, y: g.maximum(x, y) + g.maximum(y, x),
    "minimum of two": lambda g, x, y: g.minimum(y, x) * 2.0,
    "maximum with itself": lambda g, x, y: g.maximum(x, x),
    "above 0": lambda g, x, y: g.where(x > 0.0, x, 0.0),
    "0 and above": lambda g, x, y: g.where(x >= 0.0, x, 0.0),
    "not below 0": lambda g, x, y: g.where(x < 0.0, 0.0, x),
    "clip": lambda g, x, y: x.clip(0.0, 6.0),
    "clip by minimum": lambda g, x, y: g.minimum(g.maximum(x, 0.0), 6.0),
    "clip by maximum": lambda g, x, y: g.maximum(g.minimum(x, 6.0), 0.0),
    "clip of the other order": lambda g, x, y: g.minimum(6.0, g.maximum(0.0, x)),
    "clip of clip": lambda g, x, y: x.clip(-1.0, 2.0).clip(0.0, 6.0),
    "abs": lambda g, x, y: x.abs() + x.abs().abs(),
    "x + abs(x)": lambda g, x, y: x + x.abs(),
    "leaky": lambda g, x, y: g.where(x > 0.0, x, x * 0.1) + g.maximum(x, x * 0.5),
    "mask by product": lambda g, x, y: (x > 0.0).cast("f64") * x,
    "max": lambda g, x, y: x.max(-1) * 3.0,
    "max of max": lambda g, x, y: x.max(-1).max(0),
    "max of transpose": lambda g, x, y: x.transpose().max((0, 1)),
    "min over all": lambda g, x, y: x.min(),
    "max of broadcast": lambda g, x, y: x.broadcast_to((3, 2, 6)).max((0, 2)),
    "sort": lambda g, x, y: x.sort(-1) * np.arange(6.0),
    "top_k": lambda g, x, y: g.top_k(x, 3)[0] * np.arange(3.0),
    "stop_gradient": lambda g, x, y: x * x.stop_gradient() + (x + y).stop_gradient() * y,
    "round straight through": lambda g, x, y: x + (x.round() - x).stop_gradient(),
}


@pytest.mark.parametrize("kink", KINKS)
def test_gradients_at_kinks_and_ties_do_not_depend_on_when_the_graph_is_optimized(kink):
    g = Graph()
    x, y = g.parameter("x", (2, 6), "f64"), g.parameter("y", (2, 6), "f64")
    made = KINKS[kink](g, x, y)
    weights = np.arange(1.0, 1.0 + int(made.size)).reshape(made.shape)
    g.set_outputs([(made * g.constant(weights, dtype="f64")).sum()])
    values = {"x": TIES, "y": TIES[::-1].copy()}
    wanted = run(darner.value_and_grad(g), values)
    first = darner.value_and_grad(darner.optimize(g, before_gradient=True))
    assert_equal(run(first, values), wanted, 0)
    assert_equal(run(darner.optimize(darner.value_and_grad(g)), values), wanted, 0)
    assert_equal(run(darner.optimize_training(g)[0], values), wanted, 0)


# --------------------------------------------------------------------------- NaN, infinity, zeros


@every_way
def test_nan_and_infinity_stay_where_they_are(way):
    g = Graph()
    x = g.input("x", (3, 3), "f64")
    inf, nan = np.inf, np.nan
    results = [x * 0.0, x - x, x / x, x.relu(), g.maximum(x, 0.0), g.minimum(x, 0.0), x.sign()]
    results += [x.clip(-1.0, 1.0), x.clip(-inf, inf), x.clip(nan, 1.0), x.softmax(-1)]
    results += [x + inf, (x + inf) - inf, x * nan, x * inf, x**0.0, x**2.0, 1.0 / x]
    results += [(x > 0.0).logical_not(), (x <= 0.0).logical_not(), x.eq(x), x.ne(x)]
    results += [g.where(x.ne(x), 0.0, x), g.where((x > 0.0).logical_not(), x, 0.0)]
    results += [x.max(-1), x.min(0), x.sum(-1), x * x.sigmoid(), x.log_softmax(-1), x.sort(-1)]
    g.set_outputs(results)
    values = np.array([[nan, 1, -inf], [inf, -0.0, 0.0], [1e308, -1e308, 5e-324]])
    assert_kept(g, {"x": values}, way)


@every_way
@pytest.mark.parametrize("fill", [-np.inf, -1e9])
def test_a_softmax_of_masked_scores_is_that_of_the_scores_left(way, fill):
    g = Graph()
    x, mask = g.input("x", (3, 4), "f64"), g.input("mask", (3, 4), "bool")
    scores = g.where(mask, x, fill)
    powers = (scores - scores.max(-1, keepdims=True)).exp()
    g.set_outputs([scores.softmax(-1), powers / powers.sum(-1, keepdims=True)])
    left = np.array([[1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 1]], bool)
    hidden = np.where(left, normal(3, 4), np.nan)
    assert_kept(g, {"x": hidden, "mask": left}, way)


def test_keys_that_a_mask_hides_may_hold_anything():
    g = Graph()
    q, k, v = (g.input(name, (2, 4, 8), "f64") for name in "qkv")
    mask = g.input("mask", (4,), "bool")
    for fill in (-np.inf, -1e9):
        scores = g.where(mask, q @ k.transpose((0, 2, 1)), fill)
        g.set_outputs([*g.outputs, scores.softmax(-1) @ v])
    keys = normal(2, 4, 8, seed=1)
    keys[:, 3] = np.nan
    values = {"q": normal(2, 4, 8), "k": keys, "v": normal(2, 4, 8, seed=2)}
    values["mask"] = np.array([1, 1, 1, 0], bool)
    result = assert_kept(g, values, "train")
    assert np.isfinite(run(result, values)[0]).all()


@every_way
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_has_sums_products_and_means(way, shape):
    g = Graph()
    x = g.input("x", shape, "f64")
    weight, bias = g.parameter("w", (shape[1], 4), "f64"), g.parameter("b", (4,), "f64")
    results = [x + 1.0, x.sum(), (x / 2.0).sum(-1), x.mean(-1), x.exp().sum(0), x @ weight + bias]
    results += [x.transpose().reshape((-1,)), g.concat([x, x], 0), x.relu() * x.sigmoid()]
    g.set_outputs([*results, x.broadcast_to((2, *shape)).sum(0), x[..., :0]])
    values = {"x": np.zeros(shape), "w": normal(shape[1], 4), "b": normal(4)}
    assert_kept(g, values, way)


# --------------------------------------------------------------------------- element types


@every_way
def test_integers_wrap_around_and_divide_as_before(way):
    g = Graph()
    x, y = g.input("x", (5,), "i32"), g.input("y", (5,), "i32")
    results = [
        x * y,
        x + x,
        x * 2,
        x - y - y,
        x.neg().neg(),
        0 - x,
        x * -1,
        x.square(),
        x.abs(),
        x**2,
    ]
    results += [(x + 10**9) + 2 * 10**9, (x * 10**5) * 10**5, x // y, x % y, x / y, x // 2]
    results += [x.cast(kind).cast("i32") for kind in ("u8", "i8", "f32", "f64")]
    results += [x.cast("i8") * y.cast("i8"), x * y + x * y, (x > y).logical_not(), x.sum()]
    g.set_outputs([*results, g.minimum(g.maximum(x, y), 3), x.sign(), x.abs().sqrt()])
    values = {
        "x": np.array([2**31 - 1, -(2**31), 0, 7, -5], np.int32),
        "y": np.array([3, -1, 0, 2, -2], np.int32),
    }
    assert_kept(g, values, way)


@every_way
def test_complex_numbers_keep_their_rules(way):
    g = Graph()
    x = g.input("x", (4,), "c64")
    g.set_outputs([x * x + x * 2.0, x.neg().neg(), (x * 2.0) * 3.0, x - 0.0, x.sum()])
    values = np.array([1 + 2j, -1.5 - 0.5j, 0.1j, -3], np.complex64)
    assert_kept(g, {"x": values}, way, 1e-5)


# --------------------------------------------------------------------------- outputs and updates


@every_way
def test_outputs_may_be_leaves_constants_equal_or_become_equal(way):
    g = Graph()
    x, p = g.input("x", (3,), "f64"), g.parameter("p", (3,), "f64")
    g.set_outputs(
        [x, x, p, g.constant(np.ones(3)), x * p, p * x, x.neg().neg() * p, x + 0.0, p * 1.0]
    )
    assert_kept(g, {"x": normal(3), "p": normal(3, seed=1)}, way)


@every_way
def test_every_value_of_a_fused_region_may_be_an_output(way):
    g = Graph()
    x, w = g.input("x", (4, 6), "f64"), g.parameter("w", (6, 5), "f64")
    steps = [x @ w]
    steps.append(steps[-1] + g.parameter("b", (5,), "f64"))
    steps.append(steps[-1].sigmoid())
    steps.append(steps[1] * steps[2])
    steps.append(steps[-1].max(-1, keepdims=True))
    steps.append((steps[3] - steps[4]).exp())
    steps.append(steps[-1].sum(-1, keepdims=True))
    steps.append(steps[5] / steps[6])
    g.set_outputs(steps)
    assert_kept(g, {"x": normal(4, 6), "w": normal(6, 5), "b": normal(5)}, way)


@every_way
def test_leaves_may_take_the_values_of_one_another(way):
    g = Graph()
    x = g.input("x", (2, 4), "f64")
    a, b = g.state("a", (3,), "f64"), g.state("b", (3,), "f64")
    weights = [g.parameter(f"w{i}", (4, 3), "f64") for i in range(3)]
    g.set_outputs([a, *(x @ weight for weight in weights)])
    g.set_update(b, a)
    g.set_update(a, b)
    for i, weight in enumerate(weights):
        g.set_update(weight, weights[(i + 1) % 3])
    values = {"x": normal(2, 4), "a": normal(3), "b": normal(3, seed=1)}
    values |= {f"w{i}": normal(4, 3, seed=i) for i in range(3)}
    result = assert_kept(g, values, way)
    pairs = [(leaf.name, value.name) for leaf, value in result.updates.items()]
    assert pairs == [("b", "a"), ("a", "b"), ("w0", "w1"), ("w1", "w2"), ("w2", "w0")]


@every_way
def test_a_step_of_decoding_writes_its_caches(way):
    g = Graph()
    keys, rows = g.state("keys", (16, 4), "f64"), g.state("rows", (16, 4), "f64")
    position, x = g.input("position", (1,), "u32"), g.input("x", (1, 4), "f64")
    q, k, v = (x @ g.parameter(name, (4, 4), "f64") for name in "qkv")
    written, values = g.cache_write(k, keys, position), g.cache_write(v, rows, position)
    seen = g.iota((16,), 0, "u32") <= position
    scores = g.where(seen, q @ written.transpose() * 0.5, -np.inf)
    g.set_outputs([scores.softmax(-1) @ values, keys, written])
    given = {name: normal(4, 4, seed=i) for i, name in enumerate("qkv")}
    given |= {"keys": normal(16, 4), "rows": normal(16, 4, seed=9), "x": normal(1, 4)}
    assert_kept(g, {**given, "position": np.array([5], np.uint32)}, way)


# --------------------------------------------------------------------------- sizes that are symbols


@pytest.mark.parametrize("count", [1, 5])
def test_a_training_graph_of_open_size_can_be_bound_after_it_was_optimized(count):
    g = Graph()
    x = g.input("x", (darner.symbol("n"), 4), "f64")
    w, b = g.parameter("w", (4, 4), "f64"), g.parameter("b", (4,), "f64")
    h = ((x @ w + b).gelu() @ w.transpose() + b).relu()
    g.set_outputs([(h * h).mean()])
    values = {"x": normal(count, 4), "w": normal(4, 4, seed=1), "b": normal(4, seed=2)}
    wanted = run(darner.value_and_grad(g), values)
    result, _ = darner.optimize_training(g)
    assert_equal(run(result, values), wanted)
    assert_equal(run(result.bind(n=count), values), wanted)
    assert_equal(run(darner.optimize(result.bind(n=count)), values), wanted)


# --------------------------------------------------------------------------- random numbers, own gradients, recomputing


@pytest.mark.parametrize("step", [0, 3])
def test_dropout_draws_what_it_drew_in_values_and_gradients_and_counts_its_runs(step):
    g = Graph()
    x, w = g.input("x", (8, 8), "f64"), g.parameter("w", (8, 8), "f64")
    h = g.dropout(x @ w, 0.5, step=True)
    noise = g.random_uniform((8, 8), dtype="f64", step=True)
    g.set_outputs([(h * g.dropout(h.relu(), 0.25, step=True) + noise).sum()])
    values = {"x": normal(8, 8), "w": normal(8, 8, seed=1), "random_step": np.uint32(step)}
    wanted = run(darner.value_and_grad(g), values)
    assert wanted[-1] == step + 1
    both, _ = darner.optimize_training(g)
    assert_equal(run(both, values), wanted)
    assert_equal(run(darner.optimize(both), values), wanted)


def test_a_random_op_that_is_added_later_draws_from_a_stream_of_its_own():
    g = Graph()
    g.random_uniform((4,))  # unused: its stream stays taken
    g.set_outputs([g.random_uniform((4,))])
    result = darner.optimize(g)
    later = result.random_uniform((4,))
    assert [node.attrs["stream"] for node in (result.outputs[0], later)] == [1, 2]


def test_a_gradient_of_ones_own_is_kept():
    @darner.custom_gradient
    def rounded(x):
        return x.round()

    @rounded.vjp
    def _(g, out, x):
        return g * 3.0

    g = Graph()
    w = g.parameter("w", (4,), "f64")
    g.set_outputs([(rounded(rounded(w * 2.0)) * np.arange(4.0)).sum()])
    first = darner.grad(darner.optimize(g, before_gradient=True))
    np.testing.assert_array_equal(run(first, {"w": normal(4)})[0], 18.0 * np.arange(4.0))


def test_what_is_computed_again_is_not_merged_with_what_was_computed_before():
    g = Graph()
    h = g.input("x", (4, 6), "f64")
    for i in range(4):
        with g.remat(f"layer{i}"):
            h = h + (h @ g.parameter(f"w{i}", (6, 6), "f64")).gelu().tanh()
    g.set_outputs([(h * h).sum()])
    both = darner.value_and_grad(g)
    result = darner.optimize(both)
    for graph in (both, result):
        assert sum(n.op.name == "recompute_barrier" for n in graph.nodes) == 4
        assert sum(n.op.name == "tanh" for n in graph.nodes) == 8
    values = {"x": normal(4, 6), **{f"layer{i}.w{i}": normal(6, 6, seed=i) for i in range(4)}}
    assert_equal(run(result, values), run(both, values))


# --------------------------------------------------------------------------- whole models


@pytest.mark.parametrize("transform", [darner.jvp, darner.hvp])
def test_derivatives_of_other_kinds_are_the_same_optimized(transform):
    graph = transform(mlp(3, dtype="f64"))
    assert_equal(run_zoo(darner.optimize(graph)), run_zoo(graph))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_steps_of_a_deep_model_update_every_leaf_as_before(optimizer):
    graph = mlp_step(layers=30, optimizer=optimizer, dtype="f64")
    values = {name: value for group in zoo_values(graph) for name, value in group.items()}
    assert_kept(graph, values, "train")


@pytest.mark.parametrize("make", [mlp, llama])
def test_what_is_optimized_again_is_no_worse(make):
    once, first = darner.optimize(trained(make), report=True)
    _, second = darner.optimize(once, report=True)
    assert second.passes[0].after.seconds <= first.passes[0].after.seconds * (1 + 1e-9)


def test_a_graph_may_be_deeper_than_the_stack_of_python():
    g = Graph()
    x = h = g.input("x", (3,), "f64")
    for i in range(3 * sys.getrecursionlimit()):
        h = (h + x).tanh() if i % 3 else h.sin()
    g.set_outputs([h])
    assert_kept(g, {"x": normal(3)}, "train")


def test_many_products_of_one_operand_are_one():
    g = Graph()
    x = g.input("x", (4, 4), "f64")
    g.set_outputs([x @ g.parameter(f"w{i}", (4, 1 + i % 3), "f64") for i in range(100)])
    values = {"x": normal(4, 4), **{f"w{i}": normal(4, 1 + i % 3, seed=i) for i in range(100)}}
    result = assert_kept(g, values, "train")
    assert sum(n.op.name == "matmul" for n in result.nodes) == 1


# --------------------------------------------------------------------------- processes, threads, users' rules

PROGRAM = """
import hashlib, random, darner
from tests.optimizer.test_corners import fingerprint
print(fingerprint())
"""


def fingerprint():
    """The results for some random graphs, as one text."""
    found = hashlib.sha256()
    for seed in range(8):
        graph, _ = grown(random.Random(seed), 10)
        for way in ("train", "inference", "one piece, cuda"):
            found.update(darner.optimize(graph, **WAYS[way]).to_json().encode())
    return found.hexdigest()


@pytest.mark.slow
def test_random_graphs_are_the_same_whatever_the_hashes_of_texts():
    environment = {**os.environ, "PYTHONHASHSEED": "4321"}
    command = [sys.executable, "-c", PROGRAM]
    other = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert other.stdout.strip() == fingerprint()


def test_threads_do_not_disturb_one_another():
    graphs = [trained(llama), trained(mlp)]
    wanted = [darner.optimize(graph).to_json() for graph in graphs]
    found = {}

    def work(number):
        found[number] = darner.optimize(graphs[number % 2]).to_json()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(number) for number in range(6)] == wanted * 3


@pytest.fixture
def sine():
    """A graph of one sine; rules that a test declares are gone after it."""
    before = dict(RULES)
    g = Graph()
    g.set_outputs([g.input("x", (3,), "f64").sin()])
    yield g
    for name in [name for name in RULES if name not in before]:
        remove_rule(name)


def test_a_rule_that_always_finds_more_is_stopped_and_named(sine):
    x = variables("x")
    rule("more", T.sin(x), T.sin(x * 2.0) + T.sin(x * 3.0))
    result, report = darner.optimize(sine, report=True)
    assert any("rule 'more' was stopped" in note for note in report.passes[0].notes)
    assert [n.op.name for n in result.nodes] == ["input", "sin"]


def test_simplifications_that_undo_each_other_come_to_an_end(sine):
    x = variables("x")
    rule("there", T.sin(x), T.cos(x), simplify=True)
    rule("and back", T.cos(x), T.sin(x), simplify=True)
    assert darner.optimize(sine, level=1).outputs[0].op.name in ("sin", "cos")


def test_a_simplification_that_goes_on_for_ever_is_an_error_that_names_it(sine):
    x = variables("x")
    rule("further", T.sin(x), T.sin(T.tanh(x)), simplify=True)
    with pytest.raises(RuleError, match="rule 'further' is applied for ever"):
        darner.optimize(sine)


@pytest.mark.parametrize("simplify", [False, True])
def test_a_rule_that_changes_the_element_type_is_an_error_that_names_it(sine, simplify):
    x = variables("x")
    rule("narrow", T.sin(x), T.cast(x, to="f32"), simplify=simplify)
    with pytest.raises(RuleError, match=r"rule 'narrow' makes f32\[3\] of f64\[3\]"):
        darner.optimize(sine)


# --------------------------------------------------------------------------- found by review


def test_a_sum_of_one_value_twice_does_not_grow():
    g = Graph()
    x = g.input("x", (4, 4))
    g.set_outputs([((x + x) * 0.5).sum()])
    _, report = darner.optimize(g, report=True)
    (block,) = report.passes[0].blocks
    assert block.enodes < 40
    assert block.exact


def test_what_remat_saves_is_not_lost():
    from darner import peak_live_bytes

    g = Graph()
    x = g.input("x", (64, 32))
    for i in range(8):
        with g.remat(f"block{i}"):
            h = (x @ g.parameter(f"a{i}", (32, 128))).gelu()
            x = x + h @ g.parameter(f"b{i}", (128, 32))
    g.set_outputs([x.square().sum()])
    gradient = darner.grad(g)
    assert peak_live_bytes(darner.optimize(gradient)) <= 1.1 * peak_live_bytes(gradient)


def test_a_function_with_its_own_derivative_is_not_merged_with_its_equal():
    @darner.custom_gradient
    def clipped(x):
        return x

    @clipped.vjp
    def _(g, out, x):
        return g.clip(-1.0, 1.0)

    g = Graph()
    w = g.parameter("w", (3,), "f64")
    g.set_outputs([(clipped(w) * 0.75 + clipped(w) * 0.75).sum()])
    wanted = darner.run(darner.grad(g), {}, {"w": np.ones(3)})
    for level in (1, 2, 3):
        first = darner.optimize(g, before_gradient=True, level=level)
        found = darner.run(darner.grad(first), {}, {"w": np.ones(3)})
        np.testing.assert_array_equal(found[0], wanted[0])
    both, _ = darner.optimize_training(g)
    np.testing.assert_array_equal(darner.run(both, {}, {"w": np.ones(3)})[1], wanted[0])


def test_rounding_on_purpose_is_kept():
    g = Graph()
    x = g.input("x", (3,))
    g.set_outputs([(x + 12582912.0) - 12582912.0])
    values = {"x": np.array([0.4, 1.6, -2.7], np.float32)}
    np.testing.assert_array_equal(darner.run(darner.optimize(g), values)[0], [0.0, 2.0, -3.0])


def test_a_guard_that_fails_is_named():
    from darner.optimizer import Condition, T, rule, variables
    from darner.optimizer.declare import remove_rule

    x = variables("x")
    g = Graph()
    g.set_outputs([g.input("x", (3,)).sin()])
    rule("broken", T.sin(x), T.sin(x), when=Condition("never", lambda m: m.y.rank == 1))
    try:
        with pytest.raises(
            darner.RuleError, match="the guard or the result of rule 'broken' failed"
        ):
            darner.optimize(g)
    finally:
        remove_rule("broken")


def test_a_rule_that_makes_what_it_matched_changes_nothing():
    from darner.optimizer import T, rule, variables
    from darner.optimizer.declare import remove_rule

    x = variables("x")
    g = Graph()
    g.set_outputs([g.input("x", (3,)).sin()])
    rule("same", T.sin(x), T.sin(x), simplify=True)
    try:
        assert str(darner.optimize(g)) == str(g)
    finally:
        remove_rule("same")


def test_a_constant_that_cannot_be_computed_is_left_to_the_run():
    g = Graph()
    table = g.constant([1.0, 2.0])
    bad = g.gather(table, g.constant(np.array([5], np.int32)))
    g.set_outputs([bad + 1.0])
    result = darner.optimize(g)
    with pytest.raises(darner.RunError):
        darner.run(result)


def test_a_leaf_does_not_take_the_label_of_what_became_it():
    g = Graph()
    p = g.parameter("p", (3,))
    g.set_outputs([g.mul(p, 1.0, label="scaled")])
    result = darner.optimize(g)
    assert result.outputs[0].name == "p"
    assert result.outputs[0].label is None


def test_optimizing_keeps_no_large_constant_alive():
    import gc
    import weakref

    def optimized():
        g = Graph()
        constant = g.constant(np.arange(100_000.0), dtype="f32")
        g.set_outputs([g.input("x", (100_000,)) + constant])
        darner.optimize(g)
        return weakref.ref(g)

    kept = optimized()
    gc.collect()
    assert kept() is None
