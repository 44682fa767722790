"""Schedules in Python, in a graph, and against PyTorch's."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import darner
from darner import ArgumentError, optim

SCHEDULES = {
    "constant": optim.constant(0.5),
    "warmup": optim.linear_warmup(7),
    "warmup from a start": optim.linear_warmup(7, start=0.25),
    "cosine": optim.cosine(20, end=0.1),
    "exponential": optim.exponential(0.97),
    "exponential over many": optim.exponential(0.5, every=9),
    "step decay": optim.step_decay(6, factor=0.3),
    "one cycle": optim.one_cycle(30),
    "piecewise": optim.piecewise({5: 0.5, 12: 0.25, 13: 2.0}),
    "polynomial": optim.polynomial(15, power=2.0, end=0.05),
    "warmup then cosine": optim.warmup(5) >> optim.cosine(12),
    "three": optim.warmup(3) >> optim.constant(1.0, steps=4) >> optim.exponential(0.9),
    "scaled": 0.5 * optim.cosine(11),
    "product": optim.warmup(6) * optim.step_decay(4),
    "own": optim.from_function(lambda step: (1 + step) ** -0.5),
}


def in_graph(schedule, step, dtype="f64"):
    graph = darner.Graph()
    graph.set_outputs([schedule.node(graph.input("step", (), dtype))])
    return float(darner.run(graph, {"step": np.asarray(step, graph.inputs["step"].dtype.numpy)})[0])


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_the_same_in_python_and_in_a_graph(name):
    schedule = SCHEDULES[name]
    for step in range(40):
        assert in_graph(schedule, step) == pytest.approx(schedule(step), rel=1e-13, abs=1e-16)
        assert in_graph(schedule, step, "f32") == pytest.approx(schedule(step), rel=1e-5, abs=1e-7)


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0, 1), st.integers(0, 200))
def test_any_sequence_is_its_parts_one_after_the_other(first, second, end, step):
    schedule = optim.warmup(first) >> optim.cosine(second, end=end)
    by_hand = (
        step / first
        if step < first
        else end + (1 - end) * (1 + math.cos(math.pi * min(step - first, second) / second)) / 2
    )
    assert schedule(step) == pytest.approx(by_hand, rel=1e-12, abs=1e-15)
    assert in_graph(schedule, step) == pytest.approx(by_hand, rel=1e-12, abs=1e-15)


def torch_rates(make, steps, rate=0.2):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


PEERS = {
    "cosine": (
        optim.cosine(20, end=0.05),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.01),
    ),
    "exponential": (
        optim.exponential(0.9),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    ),
    "step decay": (
        optim.step_decay(6, 0.5),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 6, 0.5),
    ),
    "warmup": (
        optim.linear_warmup(8, start=0.25),
        lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.25, total_iters=8),
    ),
    "polynomial": (
        optim.polynomial(20, power=2.0),
        lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 20, 2.0),
    ),
    "piecewise": (
        optim.piecewise({4: 0.5, 9: 0.25}),
        lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [4, 9], 0.5),
    ),
    "one cycle": (
        optim.one_cycle(20),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, 20, cycle_momentum=False),
    ),
    "one cycle with a late peak": (
        optim.one_cycle(20, warmup_share=0.45, start=0.1, end=0.001),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(
            o, 0.2, 20, pct_start=0.45, cycle_momentum=False, div_factor=10, final_div_factor=100
        ),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_a_schedule_gives_the_rates_of_torch(name):
    schedule, make = PEERS[name]
    found = [0.2 * schedule(step) for step in range(20)]
    np.testing.assert_allclose(found, torch_rates(make, 20), rtol=1e-12, atol=1e-16)


def test_schedules_stay_at_their_end():
    assert optim.cosine(10, end=0.1)(10_000) == pytest.approx(0.1)
    assert optim.polynomial(10, end=0.2)(11) == pytest.approx(0.2)
    assert optim.warmup(10)(10_000) == 1.0
    assert optim.one_cycle(10)(500) == pytest.approx(4e-6)


def test_step_decay_drops_exactly_at_its_multiples_in_f32():
    schedule = optim.step_decay(3, 0.5)
    for step in (2, 3, 2_999_999, 3_000_000 - 3):
        exponent = min(step // 3, 60)
        if exponent == step // 3:
            assert in_graph(schedule, step, "f32") == 0.5**exponent
    assert in_graph(optim.step_decay(300_000, 0.5), 2_999_999, "f32") == 0.5**9
    assert in_graph(optim.step_decay(300_000, 0.5), 3_000_000, "f32") == 0.5**10


def test_a_schedule_prints_as_it_is_written_and_compares_by_that():
    schedule = optim.warmup(500) >> optim.cosine(10_000)
    assert repr(schedule) == "linear_warmup(500) >> cosine(10000)"
    assert schedule == optim.join([optim.linear_warmup(500), optim.cosine(10_000)])
    assert schedule != optim.warmup(500) >> optim.cosine(9_000)
    assert schedule.steps == 10_500


def test_schedules_of_different_functions_differ_though_they_print_the_same():
    flat, steep = (optim.from_function(lambda step, by=by: 1.0 - by * step) for by in (0.1, 0.2))
    assert repr(flat) == repr(steep)
    assert flat == optim.from_function(flat.formula)
    for change in (lambda s: s, lambda s: optim.warmup(3) >> s, lambda s: s * 0.5, lambda s: s * s):
        assert change(flat) == change(flat)
        assert change(flat) != change(steep)


MISTAKES = {
    "no steps": (lambda: optim.warmup(0), "steps must be at least 1"),
    "half a step": (lambda: optim.cosine(2.5), "steps is a whole number"),
    "negative end": (lambda: optim.cosine(5, end=-1.0), "end must be at least 0"),
    "factor of 0": (lambda: optim.exponential(0.0), "factor must be above 0"),
    "infinite": (lambda: optim.constant(math.inf), "must be finite"),
    "no pieces": (lambda: optim.piecewise({}), "mapping from steps"),
    "a share of 1": (lambda: optim.one_cycle(20, warmup_share=1.0), r"\[0, 1\)"),
    "a peak before the start": (lambda: optim.one_cycle(3), "peak"),
    "after what has no end": (
        lambda: optim.exponential(0.9) >> optim.cosine(5),
        r"exponential\(0.9\) has no end",
    ),
    "joined with a number": (lambda: optim.cosine(5) >> 0.5, "join takes schedules"),
    "a negative step": (lambda: optim.cosine(5)(-1), "a step must be at least 0"),
    "not a function": (lambda: optim.from_function(0.5), "function of the step"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named(name):
    make, said = MISTAKES[name]
    with pytest.raises(ArgumentError, match=said):
        make()


def test_a_schedule_wants_its_step_as_a_float():
    graph = darner.Graph()
    with pytest.raises(ArgumentError, match="as a float, got i32"):
        optim.cosine(5).node(graph.input("step", (), "i32"))
