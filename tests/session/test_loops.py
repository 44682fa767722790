"""Loops in sessions: training beside PyTorch, the size of plans, and the memory of gradients."""

import itertools

import numpy as np
import pytest
import torch

import darner
from darner import Graph, nn
from darner.testing import assert_close
from tests.pure.test_loops import random_graph


def lstm_by_hand(batch, time, inputs, width, dtype):
    g = Graph("lstm")
    x = g.input("x", (time, batch, inputs), dtype)
    w_ih = g.parameter("weight_ih_l0", (4 * width, inputs), dtype)
    w_hh = g.parameter("weight_hh_l0", (4 * width, width), dtype)
    bias = g.parameter("bias_ih_l0", (4 * width,), dtype)

    def cell(carry, x_t):
        h, c = carry
        gates = x_t @ w_ih.T + h @ w_hh.T + bias
        enter, forget, new, leave = gates.chunk(4, axis=1)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = leave.sigmoid() * c.tanh()
        return (h, c), h

    zero = g.zeros((batch, width), dtype)
    (h, c), y = g.iterate(cell, (zero, zero), x)
    g.set_outputs([y.square().sum() + h.sum() + c.sum()])
    return g


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_an_lstm_by_hand_has_the_gradients_of_pytorch(dtype):
    batch, time, inputs, width = 3, 13, 5, 7
    g = lstm_by_hand(batch, time, inputs, width, dtype)
    module = torch.nn.LSTM(inputs, width, dtype=torch.float64)
    x = np.random.default_rng(0).normal(size=(time, batch, inputs))
    with torch.no_grad():
        module.bias_hh_l0.zero_()
    y, (h, c) = module(torch.tensor(x))
    (y.square().sum() + h.sum() + c.sum()).backward()
    wanted = dict(module.named_parameters())
    with darner.build_session(g, threads=1) as session:
        for name in g.parameters:
            session.set_parameter(name, wanted[name].detach().numpy())
        session.run({"x": x})
        for name in g.parameters:
            assert_close(session.read_grad(name), wanted[name].grad.numpy(), dtype, 1000)


def kinds_of(graph):
    with darner.build_session(graph, threads=1) as session:
        plan = session.plan()
        return [plan.spec(kernel).kind for kernel in plan.kernels], plan


def test_a_plan_has_one_size_for_any_number_of_steps():
    def build(time):
        g = Graph("rnn")
        x = g.input("x", (time, 2, 8))
        y, _ = nn.RNN("rnn", 8, 8)(x.transpose((1, 0, 2)))
        g.set_outputs([y.square().sum()])
        return g

    (few, _), (many, _) = kinds_of(build(4)), kinds_of(build(4000))
    assert few == many
    assert few.count("loop") == 2


STEPS, WIDTH = 64, 2000


def checkpointed(count):
    """The gradient of 64 steps, and the bytes that it needs."""
    body = Graph("body")
    body.set_outputs([(body.input("h", (WIDTH,)) * 1.01).sin()])
    g = Graph("kept")
    h = g.parameter("h", (WIDTH,))
    last = g.scan(h, body, STEPS) if count is None else g.scan_checkpointed(h, body, STEPS, count)
    g.set_outputs([last.square().sum()])
    with darner.build_session(g, threads=1) as session:
        session.set_parameter("h", np.linspace(-2, 2, WIDTH))
        session.run({})
        plan = session.plan()
        assert session.memory_summary().total_buffer_bytes >= plan.arena_bytes + plan.step_bytes
        return session.read_loss(), session.read_grad("h"), plan.arena_bytes + plan.step_bytes


def test_checkpoints_save_memory_and_change_no_bit():
    row = 4 * WIDTH
    loss, gradient, whole = checkpointed(None)
    assert whole >= STEPS * row
    for count in (1, 3, 8, 13, 64):
        found_loss, found, size = checkpointed(count)
        assert found_loss == loss
        assert np.array_equal(found, gradient)
        assert size <= (count + -(-STEPS // count) + 6) * row


def test_checkpoints_save_memory_where_a_weight_is_shared():
    """Its gradient is added up segment by segment: what it is made of is not kept for all steps."""

    def found(count):
        g = Graph("rnn")
        w, x = g.parameter("w", (16, 16)), g.input("x", (STEPS, 32, 16))
        start = g.zeros((32, 16))
        h, _ = g.iterate(lambda h, x: ((h @ w + x).tanh(), None), start, x, checkpoints=count)
        g.set_outputs([h.square().sum()])
        rng = np.random.default_rng(0)
        with darner.build_session(g, threads=1) as session:
            session.set_parameter("w", rng.normal(size=(16, 16)) / 4)
            session.run({"x": rng.normal(size=(STEPS, 32, 16))})
            plan = session.plan()
            return session.read_grad("w"), plan.arena_bytes + plan.step_bytes

    (whole, large), (kept, small) = found(None), found(8)
    assert_close(kept, whole, "f32", 2000)
    assert small < large / 3


@pytest.mark.parametrize("seed", [*range(6), 105])  # 105: a carry that no step reads
def test_random_loops_and_their_gradients_in_sessions(seed):
    graph, values = random_graph(seed, depth=2)
    back = darner.vjp(graph, list(values))
    given = {**values, **{n: np.ones(()) for n in back.inputs if n not in values}}
    with darner.build_inference_session(back, threads=1) as session:
        found = session.run(given).values()
    for a, b in zip(found, darner.run(back, given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_an_optimizer_updates_what_a_loop_shares():
    g = Graph("decay")
    x, w = g.input("x", (6, 3)), g.parameter("w", (3,), init="ones")
    h, _ = g.iterate(lambda h, x: ((h * w + x) * 0.5, None), g.zeros((3,)), x)
    g.set_outputs([h.square().sum(label="loss")])
    values = {"x": np.full((6, 3), 0.7, np.float32)}
    with darner.build_session(g, optimizer=darner.optim.AdamW(1e-2), threads=1) as session:
        losses = [session.run(values)["loss"].item() for _ in range(20)]
    assert all(b < a for a, b in itertools.pairwise(losses))


def test_two_threads_give_the_bits_of_one():
    g = lstm_by_hand(9, 11, 16, 24, "f32")
    x = np.random.default_rng(1).normal(size=(11, 9, 16)).astype(np.float32)
    found = []
    for threads in (1, 2):
        with darner.build_session(g, threads=threads, seed=3) as session:
            session.run({"x": x})
            found.append([session.read_grad(name) for name in g.parameters])
    for one, two in zip(*found, strict=True):
        assert np.array_equal(one, two)
