"""Attention as native code: forward, decoding and gradients against the float64 reference, on any number of threads."""

import dataclasses
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import darner
from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.attention import backward as attention_backward
from darner.backends.cpu.attention import plan as attention_plan
from darner.backends.cpu.kernels import template_of
from darner.backends.cpu.runtime import jit
from darner.backends.cpu.runtime.program import CpuProgram
from darner.lower.lower import lower
from darner.testing import tolerance
from tests.conformance import examples
from tests.cpu.running import run_program

WHOLE = ("scaled_dot_attention", "scaled_dot_attention_backward")


class Made:
    """A graph over random inputs."""

    def __init__(self, dtype="f32", seed=0):
        self.graph, self.given, self.dtype = Graph(), {}, dtype
        self.random = np.random.default_rng(seed)

    def input(self, name, shape, dtype=None, low=-3, high=6):
        node = self.graph.input(name, shape, dtype or self.dtype)
        if node.dtype.kind == "bool":
            array = self.random.random(shape) < 0.6
        elif node.dtype.kind == "int":
            array = self.random.integers(low if node.dtype.signed else 0, high, shape)
        else:
            array = self.random.standard_normal(shape)
        self.given[name] = np.asarray(array).astype(node.dtype.numpy)
        return node

    def attention(self, shape, options):
        """Queries, keys, values and the operands that are options."""
        batch, heads, queries, width, kv_heads, keys, value_width = shape
        sizes = {
            "q": (batch, heads, queries, width),
            "k": (batch, kv_heads, keys, width),
            "v": (batch, kv_heads, keys, value_width),
        }
        if options.get("layout") == "bshd":
            sizes = {name: (b, s, h, d) for name, (b, h, s, d) in sizes.items()}
        nodes = [self.input(name, size) for name, size in sizes.items()]
        kinds = {"mask": "bool", "bias": self.dtype, "offset": "i32"}
        return nodes, {
            name: self.input(name, value, kinds[name]) if name in kinds else value
            for name, value in options.items()
        }


def check(made, outputs, tmp_path, length, threads=(1, 2, 3)):
    """Assert that threads agree to the bit, and with the reference to the tolerance."""
    made.graph.set_outputs(outputs)
    plan = lower(made.graph, target="cpu", whole=WHOLE)
    results = []
    for count in threads:
        program = CpuProgram(plan, threads=count, cache=ObjectCache(tmp_path))
        try:
            # Twice: nothing may depend on what a run leaves behind.
            run_program(program, made.given)
            results.append(run_program(program, made.given))
        finally:
            program.close()
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))
    limit = tolerance(made.dtype, length)
    wanted = darner.run(made.graph, made.given, float64=True)
    # Over all of them: a gradient of 0 is a sum of numbers as large as the others.
    scale = max(float(np.abs(array).max(initial=0.0)) for array in wanted)
    for node, a, b in zip(outputs, results[0], wanted, strict=True):
        assert a.shape == b.shape
        assert a.dtype == node.dtype.numpy
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=limit, atol=limit * scale)
    kernels = [plan.spec(kernel) for kernel in plan.kernels]
    assert any(template_of(spec).name == "attention" for spec in kernels)


def forward(shape, options, tmp_path, dtype="f32", threads=(1, 2, 3)):
    made = Made(dtype, zlib.crc32(repr((shape, options)).encode()))
    nodes, rest = made.attention(shape, options)
    check(made, [made.graph.scaled_dot_attention(*nodes, **rest)], tmp_path, shape[5], threads)


def backward(shape, options, tmp_path, dtype="f32", threads=(1, 2, 3)):
    made = Made(dtype, zlib.crc32(repr((shape, options)).encode()))
    nodes, rest = made.attention(shape, options)
    y = made.graph.scaled_dot_attention(*nodes, **rest)
    dy = made.input("dy", tuple(y.shape))
    found = list(made.graph.scaled_dot_attention_backward(*nodes, dy, **rest))
    check(made, found, tmp_path, max(shape[2], shape[5]), threads)


# batch, heads, queries, width, key heads, keys, width of values; then options
CASES = {
    "plain": ((2, 2, 70, 24, 2, 130, 24), {}),
    "causal with shared heads": ((1, 6, 100, 40, 2, 77, 19), {"causal": True}),
    "more queries than keys": ((2, 2, 70, 16, 2, 30, 16), {"causal": True}),
    "a window both ways": ((1, 4, 67, 16, 2, 90, 8), {"layout": "bshd", "window": 4}),
    "a causal window and a bias": (
        (2, 4, 70, 16, 4, 90, 16),
        {"causal": True, "window": 9, "bias": (4, 70, 90)},
    ),
    "everything": (
        (2, 4, 35, 5, 1, 30, 7),
        {"mask": (2, 1, 35, 30), "bias": (1, 30), "softcap": 2.0, "scale": -0.7},
    ),
    "offsets of a cache": ((2, 4, 20, 16, 2, 200, 16), {"causal": True, "offset": (2,)}),
    "one query": ((2, 6, 1, 33, 2, 517, 65), {"softcap": 1.5, "mask": (2, 1, 1, 517)}),
    "a few queries": ((2, 4, 3, 16, 4, 50, 8), {"layout": "bshd", "window": 4, "bias": (3, 50)}),
    "two queries": ((2, 6, 2, 19, 2, 290, 7), {"causal": True, "bias": (1, 290), "window": 200}),
    "one query in a cache": ((2, 4, 1, 16, 2, 300, 16), {"causal": True, "offset": ()}),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_the_references(name, tmp_path):
    forward(*CASES[name], tmp_path)


@pytest.mark.parametrize(
    "name", ["plain", "everything", "offsets of a cache", "one query", "one query in a cache"]
)
def test_gradients_are_the_references(name, tmp_path):
    backward(*CASES[name], tmp_path)


# The same, of heads that share keys and have few queries each.
STACKS = {
    "three in a vector": ((2, 12, 5, 23, 4, 67, 19), {}),
    "causal in a cache": ((2, 12, 5, 16, 4, 90, 8), {"causal": True, "offset": (2,)}),
    "a window": ((3, 9, 7, 40, 3, 131, 17), {"layout": "bshd", "window": 11, "softcap": 2.0}),
    "causal, more queries than keys": ((8, 6, 21, 5, 1, 13, 33), {"causal": True}),
    "three queries of four": ((2, 16, 3, 19, 4, 77, 7), {"causal": True}),
    "several panels": ((1, 96, 9, 8, 8, 37, 8), {"layout": "bshd"}),
}


@pytest.mark.parametrize("name", STACKS)
def test_heads_that_share_keys_are_stacked(name, tmp_path):
    shape, options = STACKS[name]
    made = Made()
    nodes, rest = made.attention(shape, options)
    y = made.graph.scaled_dot_attention(*nodes, **rest)
    wide = dataclasses.replace(jit.host(), vector_bytes=64)
    one = attention_plan.stacked(attention_plan.describe(y, wide), wide)
    assert (one.heads, one.stack) == (shape[4], shape[1] // shape[4])
    # With what follows, which reads an operand by the graph's own heads.
    check(made, [y * made.input("gate", y.shape)], tmp_path, shape[5])


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_stacked_heads_of_other_types(dtype, tmp_path):
    forward(*STACKS["a window"], tmp_path, dtype, (2,))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
def test_every_case_in_every_type(name, dtype, tmp_path):
    forward(*CASES[name], tmp_path, dtype, (2,))
    backward(*CASES[name], tmp_path, dtype, (2,))


@pytest.mark.parametrize("dtype", ["f64", "bf16", "f16"])
def test_other_types(dtype, tmp_path):
    shape, options = (1, 4, 37, 21, 2, 45, 17), {"causal": True, "bias": (4, 1, 45)}
    made = Made(dtype)
    nodes, rest = made.attention(shape, options)
    y = made.graph.scaled_dot_attention(*nodes, **rest)
    one = made.graph.scaled_dot_attention(nodes[0][:, :, :1], *nodes[1:])
    found = made.graph.scaled_dot_attention_backward(*nodes, made.input("dy", y.shape), **rest)
    check(made, [y, one, *found], tmp_path, 45, (1, 2))


@pytest.mark.parametrize("vector_bytes", [16, 32])
def test_processors_with_narrower_vectors(vector_bytes, tmp_path, monkeypatch):
    narrower = dataclasses.replace(jit.host(), vector_bytes=vector_bytes)
    monkeypatch.setattr("darner.backends.cpu.runtime.program.host", lambda: narrower)
    made = Made()
    nodes, rest = made.attention((1, 4, 37, 21, 2, 45, 17), {"causal": True, "mask": (37, 45)})
    y = made.graph.scaled_dot_attention(*nodes, **rest)
    one = made.graph.scaled_dot_attention(nodes[0][:, :, :1], *nodes[1:])
    found = made.graph.scaled_dot_attention_backward(*nodes, made.input("dy", y.shape), **rest)
    check(made, [(y * 2.0).relu(), one, *found], tmp_path, 45, (1, 2))


@pytest.mark.parametrize("bias", [(2, 4, 9, 30), (9, 1), (4, 1, 30), (2, 1, 1, 1), (1, 9, 30)])
def test_the_gradient_of_a_bias_is_summed_where_it_was_repeated(bias, tmp_path):
    options = {"bias": bias, "causal": True, "softcap": 1.5}
    backward((2, 4, 9, 5, 2, 30, 3), options, tmp_path, threads=(1, 3))


def test_gradients_of_more_keys_than_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(attention_backward, "STRIP_BYTES", 4096)
    monkeypatch.setattr(attention_plan, "BLOCK_BYTES", 2048)
    options = {"causal": True, "bias": (40, 100), "softcap": 2.0}
    backward((1, 2, 40, 5, 1, 100, 6), options, tmp_path)


@pytest.mark.parametrize(
    "shape",
    [
        (0, 2, 3, 4, 2, 3, 4),
        (1, 2, 3, 4, 2, 0, 4),
        (1, 2, 40, 4, 1, 0, 2),
        (2, 2, 0, 4, 2, 5, 4),
        (1, 2, 20, 0, 2, 20, 3),
        (1, 2, 20, 3, 2, 20, 0),
        (1, 2, 20, 1, 1, 20, 1),
    ],
)
def test_sizes_of_nothing_and_of_one(shape, tmp_path):
    made = Made()
    nodes, _ = made.attention(shape, {})
    y = made.graph.scaled_dot_attention(*nodes)
    few = made.graph.scaled_dot_attention(nodes[0][:, :, :1], *nodes[1:])
    found = made.graph.scaled_dot_attention_backward(*nodes, made.input("dy", tuple(y.shape)))
    check(made, [y, few, *found], tmp_path, 20, (2,))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_gradients_of_a_few_queries_but_not_of_their_bias(dtype, tmp_path):
    made = Made(dtype)
    shape, options = CASES["two queries"]
    nodes, rest = made.attention(shape, options)
    dy = made.input("dy", (2, 6, 2, 7))
    dq, dk, dv, _ = made.graph.scaled_dot_attention_backward(*nodes, dy, **rest)
    check(made, [dv, dq, dk], tmp_path, 290, (1, 2, 3))
    check(made, [dk], tmp_path, 290, (2,))


def test_a_query_that_sees_nothing_gives_zeros_and_has_no_gradient(tmp_path):
    made = Made()
    nodes, _ = made.attention((1, 2, 33, 8, 2, 20, 8), {})
    mask = made.graph.constant(np.arange(33)[:, None] % 3 > np.zeros((1, 20)))
    y = made.graph.scaled_dot_attention(*nodes, mask)
    hidden = made.graph.constant(np.where(np.arange(20) > -1, -np.inf, 0).astype(np.float32))
    one = made.graph.scaled_dot_attention(nodes[0][:, :, :1], *nodes[1:], bias=hidden)
    dy = made.input("dy", tuple(y.shape))
    dq, dk, dv = made.graph.scaled_dot_attention_backward(*nodes, dy, mask)
    check(made, [y, one, dq, dk, dv], tmp_path, 33, (2,))
    program = CpuProgram(lower(made.graph, target="cpu", whole=WHOLE), cache=ObjectCache(tmp_path))
    y, one, dq, *_ = run_program(program, made.given)
    program.close()
    for hidden in (y[:, :, ::3], dq[:, :, ::3], one):
        assert not hidden.any()
    assert y[:, :, 1].all()


@settings(max_examples=examples(6), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_attentions(tmp_path, data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    kv_heads = draw(1, 2)
    heads = kv_heads * draw(1, 3)
    queries, keys = data.draw(st.sampled_from([1, 2, 5, 17, 50, 97])), draw(1, 110)
    shape = (draw(1, 2), heads, queries, draw(1, 35), kv_heads, keys, draw(1, 35))
    options = {"layout": data.draw(st.sampled_from(["bhsd", "bshd"])), "causal": draw(0, 1) == 1}

    def maybe(name, strategy):
        if data.draw(st.booleans()):
            options[name] = data.draw(strategy)

    def spread():
        whole = (shape[0], heads, queries, keys)
        kept = tuple(n if data.draw(st.booleans()) else 1 for n in whole)
        return kept[draw(0, 3) :]

    maybe("window", st.integers(1, 40))
    maybe("scale", st.floats(-1, 1, width=16))
    maybe("softcap", st.floats(0.5, 8, width=16))
    for name in ("mask", "bias"):
        if data.draw(st.booleans()):
            options[name] = spread()
    if options["causal"] or "window" in options:
        maybe("offset", st.sampled_from([(), (1,), (shape[0],)]))
    if data.draw(st.booleans()):
        backward(shape, options, tmp_path, threads=(1, 2))
    else:
        forward(shape, options, tmp_path, threads=(1, 2))


def test_operands_are_read_as_they_lie_and_what_follows_is_done_at_once(tmp_path):
    made = Made()
    x = made.input("x", (2, 21, 3 * 4 * 8))
    q, k, v = (
        x[:, :, i * 32 : (i + 1) * 32].reshape((2, 21, 4, 8)).transpose((0, 2, 1, 3))
        for i in range(3)
    )
    y = made.graph.scaled_dot_attention(q, k[:, ::3].flip((2,)), v[:, 1:3], causal=True)
    r = made.input("r", (2, 4, 21, 8))
    gate = made.input("gate", (8,))
    outputs = [(y * gate + r).tanh(), y]
    check(made, outputs, tmp_path, 21, (1, 2))
    plan = lower(made.graph, target="cpu", whole=WHOLE)
    assert [plan.spec(kernel).kind for kernel in plan.kernels] == ["attention"]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_what_follows_a_few_queries(dtype, tmp_path):
    made = Made(dtype)
    nodes, _ = made.attention((2, 2, 2, 8, 1, 40, 19), {})
    y = made.graph.scaled_dot_attention(*nodes)
    r = made.input("r", (2, 2, 2, 19))
    check(made, [y.cast("f32") * 2.0, (y + r).relu()], tmp_path, 40, (1, 2))


def test_masks_and_operands_made_of_counters_and_constants(tmp_path):
    made = Made()
    g = made.graph
    q, v = made.input("q", (1, 2, 20, 1)), made.input("v", (1, 2, 30, 6))
    k = (g.iota((30,)).cast("f32") * 0.1).reshape((1, 1, 30, 1)).broadcast_to((1, 2, 30, 1))
    mask = g.iota((20, 1)) * 2 >= g.iota((1, 30))
    check(made, [g.scaled_dot_attention(q, k, v, mask)], tmp_path, 30, (1, 3))


def test_gradients_in_the_middle_of_a_graph(tmp_path):
    """Through projections on either side, with a random cotangent: what training does."""
    made = Made()
    g = made.graph
    x, c = made.input("x", (2, 19, 12)), made.input("c", (2, 19, 12))
    w = {name: g.parameter(name, (12, n)) for name, n in (("q", 24), ("k", 12), ("v", 12))}
    out = g.parameter("o", (24, 12))
    q = (x @ w["q"]).reshape((2, 19, 4, 6))
    k, v = ((x @ w[name]).reshape((2, 19, 2, 6)) for name in "kv")
    y = g.scaled_dot_attention(q, k, v, layout="bshd", causal=True)
    g.set_outputs([((y.reshape((2, 19, 24)) @ out + x).tanh() * c).sum()])
    step = darner.grad(g)
    random = np.random.default_rng(3)
    params = {
        name: random.standard_normal(tuple(leaf.shape)).astype(np.float32) / 3
        for name, leaf in step.parameters.items()
    }
    plan = lower(step, target="cpu")
    assert "attention" in {plan.spec(kernel).kind for kernel in plan.kernels}
    wanted = darner.run(step, made.given, params, float64=True)
    results = []
    for threads in (1, 2, 3):
        program = CpuProgram(plan, threads=threads, cache=ObjectCache(tmp_path))
        results.append(run_program(program, made.given, params))
        program.close()
    for found in results:
        for a, b, same in zip(found, wanted, results[0], strict=True):
            np.testing.assert_array_equal(a, same)
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1.0, np.abs(b).max()))
