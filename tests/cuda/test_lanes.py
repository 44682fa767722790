"""Kernels on streams beside each other: each waits for all that it must follow, and independent ones for little else."""

import random
from itertools import pairwise

import numpy as np
import pytest

import darner
from darner.backends.cuda.lanes import BEGIN, schedule


def waited_for(turns, lanes):
    """For each kernel all those that are done when it begins, by what streams promise."""
    told = [set() for _ in range(lanes)]
    found = {BEGIN: set()}
    for turn in turns:
        done = told[turn.lane].union(*(found[i] | {i} for i in turn.after)) - {BEGIN}
        found[turn.kernel] = done
        told[turn.lane] = done | {turn.kernel}
    return found


@pytest.mark.parametrize("seed", range(40))
def test_a_kernel_begins_after_all_that_it_must_follow(seed):
    rng = random.Random(seed)
    count, lanes = rng.randrange(2, 60), rng.randrange(1, 6)
    hazards = [
        tuple(sorted(rng.sample(range(k), rng.randrange(min(k, 3) + 1)))) for k in range(count)
    ]
    alone = {k for k in range(count) if rng.random() < 0.2}
    part = range(rng.randrange(count // 2 + 1), count)
    turns = schedule(hazards, part, alone, lanes)
    assert [turn.kernel for turn in turns] == [*part]
    found = waited_for(turns, lanes)
    for kernel in part:
        assert {i for i in hazards[kernel] if i in part} <= found[kernel]
    in_turn = [kernel for kernel in part if kernel in alone]
    for before, after in pairwise(in_turn):
        assert before in found[after]
    # A stream is part of a recording from the moment on when it waits for one that is.
    begun = {0}
    for turn in turns:
        assert turn.lane in begun or turn.after
        begun.add(turn.lane)


def test_independent_kernels_do_not_wait_for_each_other():
    hazards = [(), (0,), (0,), (0,), (0,), (1, 2, 3, 4)]
    turns = schedule(hazards, range(6), lanes=4)
    assert len({turn.lane for turn in turns[1:5]}) == 4
    found = waited_for(turns, 4)
    assert [sorted(found[k]) for k in range(1, 6)] == [[0], [0], [0], [0], [0, 1, 2, 3, 4]]


def test_a_chain_stays_on_one_lane():
    turns = schedule([(), (0,), (1,), (2,)], range(4))
    assert {(turn.lane, turn.after) for turn in turns} == {(0, ())}


def test_steps_in_lanes_have_the_numbers_of_one_after_another():
    """The emulated device does work as late as it may, so a wait that is missing shows."""
    g = darner.Graph("wide")
    x = g.input("x", (8, 16))
    parts = [
        (x @ g.parameter(f"w{i}", (16, 16))).tanh() * g.parameter(f"s{i}", (16,)) for i in range(3)
    ]
    g.set_outputs([sum(part.square().mean() for part in parts)])
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=leaf.shape) for name, leaf in g.parameters.items()}
    data = {"x": rng.normal(size=(8, 16)).astype(np.float32)}
    losses = {}
    for device in ("cuda:emulated", "cpu"):
        optimizer = darner.optim.Adam(0.01)
        with darner.build(g, device=device, optimizer=optimizer, cache=None) as session:
            session.parameters().update(params)
            losses[device] = [float(session.run(data)["output0"].reshape(())) for _ in range(5)]
    np.testing.assert_allclose(losses["cuda:emulated"], losses["cpu"], rtol=2e-5)
