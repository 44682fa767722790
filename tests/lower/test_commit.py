"""Which kernels can fail, where a plan commits, and what is shown not to fail before anything runs."""

import numpy as np
import pytest

import darner
from darner import Graph, VerifyError, optim
from darner.lower.commit import index_bounds
from darner.lower.lower import lower
from darner.lower.plan import Plan
from darner.lower.ranges import integer_ranges
from darner.optim.step import training_step


def lookup(make):
    """A graph that looks indices up that are made of an input ``i`` and of numbers ``x``, and counts its steps."""
    g = Graph()
    i, x, count = g.input("i", (6,), "i32"), g.input("x", (6, 8)), g.state("count", (), "i32")
    g.set_update(count, count + 1)
    g.set_outputs([g.gather(g.parameter("table", (8, 3)), make(g, i, x), label="rows") * 2.0])
    return g


SAFE = {
    "an input": lambda g, i, x: i,
    "an input in another order": lambda g, i, x: i.reshape((2, 3)).transpose((1, 0)).cast("i64"),
    "an argmax": lambda g, i, x: x.argmax(1),
    "the places of top_k": lambda g, i, x: x.top_k(2)[1],
    "an argsort": lambda g, i, x: x.argsort(1),
    "a counter": lambda g, i, x: g.arange(8),
    "clipped": lambda g, i, x: (i * 3).clip(0, 7),
    "a remainder": lambda g, i, x: (i * 3) % 8,
    "one of two": lambda g, i, x: (x[:, 0] > 0).where(x.argmax(1), 7 - x.argmin(1)),
    "side by side": lambda g, i, x: g.concat([x.argmax(1), x.argmin(1)], 0),
    "an ignored number": lambda g, i, x: (i != -1).where(i, 0),
    "an ignored number the other way": lambda g, i, x: (i == 99).where(3, i),
}
UNSAFE = {
    "computed": lambda g, i, x: i + 1,
    "beyond an argmax": lambda g, i, x: x.argmax(1) + 1,
    "a state": lambda g, i, x: g.nodes[2].reshape((1,)),
    "of floats": lambda g, i, x: x[:, 0].cast("i32"),
    "wrapped": lambda g, i, x: (i.cast("i64") * 2**31).cast("i32"),
    "replaced by what is outside": lambda g, i, x: (i != -1).where(i, 8),
    "another than was compared": lambda g, i, x: (i != -1).where(i * 2, 0),
    "a remainder of either sign": lambda g, i, x: i % (i - 3),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_is_shown_before_the_step_needs_no_commit(name):
    plan = lower(lookup(SAFE[name]))
    assert plan.commit == 0
    assert [k.checks[0][0] for k in plan.kernels if k.checks] == ["rows"]


@pytest.mark.parametrize("name", UNSAFE)
def test_leaves_are_written_after_what_can_fail(name):
    plan = lower(lookup(UNSAFE[name]))
    assert plan.commit > 0
    (failing,) = (k for k, kernel in enumerate(plan.kernels) if kernel.checks)
    assert failing < plan.commit
    leaves = {i for i, buffer in enumerate(plan.buffers) if buffer.place in ("state", "parameter")}
    written = [k for k, kernel in enumerate(plan.kernels) if leaves.intersection(kernel.results)]
    assert all(k >= plan.commit for k in written)


def test_bounds_hold_the_smallest_axis_and_what_every_use_ignores():
    g = Graph()
    i, j = g.input("i", (4,), "i32"), g.input("j", (4,), "i64")
    small, large = g.parameter("small", (5, 2)), g.parameter("large", (9, 2))
    ignored = g.gather(large, (i != -1).where(i, 0)) + g.gather(small, (i == -1).where(2, i))
    g.set_outputs([ignored, g.gather(large, (j != -1).where(j, 0)) + g.gather(large, j)])
    assert index_bounds(g) == {"i": (5, -1), "j": (9,)}


def test_updates_stay_in_place_where_they_can_come_after_the_fault():
    """The counter is ready first, and waits; nothing is copied at the end of a step."""
    g = lookup(UNSAFE["computed"])
    loss = g.outputs[0].square().sum()
    g.set_outputs([loss])
    plan = lower(training_step(g, optim.Adam(1e-3)))
    assert plan.commit > 0
    assert all(old == new for old, new in plan.updates)


def test_an_index_that_was_checked_is_not_checked_again_at_the_end_of_the_backward_pass():
    g = Graph()
    i = g.input("i", (6,), "i32")
    hidden = g.gather(g.parameter("table", (8, 3)), i + 1)
    for k in range(3):
        hidden = (hidden @ g.parameter(f"w{k}", (3, 3))).tanh()
    g.set_outputs([hidden.square().sum()])
    plan = lower(training_step(g, optim.SGD(0.1)))
    failing = [k for k, kernel in enumerate(plan.kernels) if kernel.checks]
    assert len(failing) == 2
    assert failing[0] < plan.commit <= 2 < failing[1]


def test_a_plan_that_writes_a_leaf_before_it_commits_is_refused():
    from dataclasses import replace

    plan = lower(lookup(UNSAFE["computed"]))
    with pytest.raises(VerifyError, match="before the plan commits"):
        replace(plan, commit=len(plan.kernels)).verify()
    with pytest.raises(VerifyError, match="commits after 99 kernels"):
        replace(plan, commit=99).verify()
    with pytest.raises(VerifyError, match="'nobody' is bound by"):
        replace(plan, bounds={"nobody": (3,)}).verify()


def test_commit_bounds_and_checks_are_kept_in_files():
    plan = lower(lookup(lambda g, i, x: (i != -1).where(i, 0) + x.argmax(1)))
    again = Plan.from_json(plan.to_json())
    assert (again.commit, again.bounds) == (plan.commit, plan.bounds)
    assert [k.checks for k in again.kernels] == [k.checks for k in plan.kernels]
    assert any(k.checks for k in again.kernels)


def test_ranges_hold_what_the_values_are():
    rng = np.random.default_rng(0)
    g = Graph()
    x = g.input("x", (5, 9))
    places = x.argmax(1)
    nodes = [
        *(places, places * 3 - 2, places.maximum(4), places.minimum(4), 7 - places),
        *(g.arange(6) * -2, (places * 5) % 7, g.concat([places, g.arange(3)], 0)),
        *(
            x.argmax(),
            x.argsort(1)[:, 1:],
            x.top_k(3)[1],
            (places > 3).where(places, 20),
            places.max(0),
        ),
    ]
    g.set_outputs(nodes)
    ranges = integer_ranges(g)
    for _ in range(20):
        values = darner.run(g, {"x": rng.standard_normal((5, 9)).astype(np.float32)})
        for node, value in zip(g.outputs, values, strict=True):
            low, high = ranges[node.id]
            assert low <= value.min()
            assert value.max() <= high
