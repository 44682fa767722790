"""Loops as plans: one step is lowered once, its carries change in place where they can, and the plan knows where all lies."""

import dataclasses
import json

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.reference.plan import run_plan
from darner.graph.errors import FormatError, VerifyError
from darner.lower.loops import loop_of
from darner.lower.lower import lower
from darner.lower.plan import Plan
from darner.lower.plan_compact import from_rows, sources_of, to_rows
from darner.lower.plan_json import signed
from tests.random_loops import nested_loop, random_loop


def looped(body, init, xs=(), constants=(), length=3, reverse=False):
    """A graph that is one loop of inputs of these shapes, whose body is a function of them."""
    inside, shapes = Graph("inside"), [*init, *constants, *(shape[1:] for shape in xs)]
    leaves = [inside.input(f"leaf{i}", shape) for i, shape in enumerate(shapes)]
    inside.set_outputs(body(*leaves))
    graph = Graph("outside")
    kinds = {"init": init, "constants": constants, "xs": xs}
    given = {
        kind: [graph.input(f"{kind}{i}", shape) for i, shape in enumerate(found)]
        for kind, found in kinds.items()
    }
    results = graph.loop(
        given["init"], given["constants"], given["xs"], inside.freeze(), length, reverse
    )
    graph.set_outputs(list(results))
    return graph


def recurrent(length, reverse=False):
    def body(h, w, x):
        following = (h @ w + x).tanh()
        return [following, following * 2.0]

    return looped(body, [(2, 4)], [(length, 2, 4)], [(4, 4)], length, reverse)


def step_of(graph):
    """The loop of the one kernel that is one."""
    plan = lower(graph)
    (spec,) = [spec for spec in plan.specs.values() if spec.kind == "loop"]
    return loop_of(spec)


def check_plan(graph, values, close=1e-9):
    wanted = darner.run(graph, values)
    for found, expected in zip(run_plan(lower(graph), values), wanted, strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=close, atol=close)


@pytest.mark.parametrize("seed", range(40))
def test_plans_of_random_loops_compute_what_the_interpreter_computes(seed):
    check_plan(*random_loop(seed))


def test_a_plan_of_a_loop_in_a_loop_computes_what_the_interpreter_computes():
    check_plan(*nested_loop())


def test_the_oracle_in_float64_goes_through_steps_as_the_interpreter_does():
    graph, rng = recurrent(5), np.random.default_rng(0)
    values = {n: rng.normal(size=leaf.shape) for n, leaf in graph.inputs.items()}
    wanted = darner.run(graph, values, float64=True)
    for found, expected in zip(run_plan(lower(graph), values, float64=True), wanted, strict=True):
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_plan_is_as_large_for_4_steps_as_for_4000():
    few, many = lower(recurrent(4)), lower(recurrent(4000))
    assert [len(plan.kernels) for plan in (few, many)] == [1, 1]
    steps = [next(iter(plan.specs.values())).inner for plan in (few, many)]
    assert steps[0] == steps[1]
    assert abs(len(few.to_json()) - len(many.to_json())) < 40


def test_a_carry_that_is_read_before_changes_in_place_without_a_copy():
    loop = step_of(looped(lambda h, c, x: [(c * x).tanh(), c + h], [(8,), (8,)], [(3, 8)]))
    assert loop.plan.updates == tuple((i, i) for i, _ in loop.plan.updates)
    exchanged = step_of(looped(lambda h, x: [h * x + 1.0], [(8,)], [(3, 8)]))
    assert [exchanged.plan.spec(k).kind for k in exchanged.plan.kernels] == ["map"]
    assert exchanged.plan.arena_bytes == 0


def test_carries_that_are_exchanged_are_copied_and_none_is_lost():
    graph = looped(lambda a, b: [b, a], [(3,), (3,)], length=5)
    values = {"init0": np.arange(3.0), "init1": -np.arange(3.0)}
    first, second = run_plan(lower(graph), {n: v.astype("f4") for n, v in values.items()})
    np.testing.assert_array_equal(first, values["init1"])
    np.testing.assert_array_equal(second, values["init0"])


def test_a_carry_that_a_product_reads_whole_is_not_written_while_it_is_read():
    loop = step_of(looped(lambda h, w: [(h @ w).tanh()], [(4, 4)], constants=[(4, 4)]))
    kinds = [loop.plan.spec(kernel).kind for kernel in loop.plan.kernels]
    assert kinds == ["contract", "map"]
    assert loop.plan.arena_bytes == 64
    # Who repeats it may have both change places instead.
    carry, value = loop.plan.kernels[1].results[0], loop.plan.kernels[1].operands[0]
    assert loop.exchanged == {carry: value}
    assert [loop.is_left_out(number) for number in (0, 1)] == [False, True]
    assert [loop.lies_at_home(number) for number in (0, 1, 2, 3)] == [False, True, False, True]


def test_a_value_that_two_carries_take_is_written_to_both():
    graph = looped(lambda a, b, w: 2 * [(a @ w + b @ w).tanh()], [(4, 4)] * 2, constants=[(4, 4)])
    # The second product reads one of them whole; the other changes in place.
    assert len(step_of(graph).exchanged) == 1
    rng = np.random.default_rng(0)
    check_plan(graph, {n: rng.normal(size=(4, 4)).astype("f4") for n in graph.inputs}, 1e-6)


def test_what_is_stacked_and_carried_is_computed_once():
    loop = step_of(looped(lambda h, x: [*[(h + x).exp()] * 2], [(8,)], [(3, 8)]))
    ops = [loop.plan.spec(kernel).ops for kernel in loop.plan.kernels]
    assert ops == [("add", "exp", "stop_gradient")]


def test_results_that_nobody_reads_are_not_computed():
    graph = looped(lambda h, x: [h + x, (h * x).sum(), x.exp()], [(8,)], [(3, 8)])
    graph.set_outputs([graph.outputs[0]])
    loop = step_of(graph)
    assert set(loop.places) == {"c0", "x0"}
    assert [loop.plan.spec(k).ops for k in loop.plan.kernels] == [("add",)]


def test_steps_are_read_and_written_where_they_lie():
    loop = step_of(recurrent(6, reverse=True))
    assert loop.places["x0"].stride == loop.places["y0"].stride == 2 * 4 * 4
    assert [loop.step(number) for number in (0, 5)] == [5, 0]


def test_views_whose_steps_have_no_gaps_are_read_without_a_copy():
    graph = Graph()
    body = Graph()
    h, x = body.input("h", (4,)), body.input("x", (4,))
    body.set_outputs([h + x])
    whole = graph.input("whole", (7, 3, 4))
    steps = whole.flip((0,))[1:4, 1]
    start = whole.reshape((21, 4))[2].reshape((4,))
    graph.set_outputs([graph.loop([start], [], [steps], body.freeze(), 3)[0]])
    plan = lower(graph)
    assert [plan.spec(k).kind for k in plan.kernels] == ["loop"]
    places = loop_of(plan.spec(0)).places
    assert (places["x0"].offset, places["x0"].stride) == (4 * (5 * 12 + 4), -4 * 12)
    assert places["c0"].offset == 4 * 8
    values = {"whole": np.arange(84, dtype=np.float32).reshape(7, 3, 4)}
    np.testing.assert_array_equal(run_plan(plan, values)[0], darner.run(graph, values)[0])


def test_a_carry_may_lie_where_it_begins_if_nothing_else_reads_that():
    graph = looped(lambda h, x: [h + x], [(64,)], [(3, 64)])
    body_of = graph.nodes[-2].attrs["body"]
    other = Graph()
    start = other.input("start", (64,)).exp()
    xs = other.input("xs", (3, 64))
    other.set_outputs([other.loop([start], [], [xs], body_of, 3)[0]])
    plan = lower(other)
    assert plan.arena_bytes == 256
    other.set_outputs([other.outputs[0], start])
    assert lower(other).arena_bytes == 512


def test_a_state_is_a_carry_that_is_updated_in_place():
    body = Graph()
    h, x = body.input("h", (4,)), body.input("x", (4,))
    body.set_outputs([h * 0.5 + x])
    graph = Graph()
    state = graph.state("memory", (4,))
    last = graph.loop([state], [], [graph.input("xs", (3, 4))], body.freeze(), 3)[0]
    graph.set_update(state, last)
    plan = lower(graph)
    assert plan.updates == ((0, 0),)
    kept = {"memory": np.ones(4, np.float32)}
    run_plan(plan, {"xs": np.ones((3, 4), np.float32)}, state=kept)
    np.testing.assert_allclose(kept["memory"], 0.125 + 1.75)


# --------------------------------------------------------------------------- saving and checking


def test_plans_with_loops_are_read_back_as_they_were():
    for graph in (recurrent(3), nested_loop()[0]):
        plan = lower(graph)
        for again in (
            Plan.from_json(plan.to_json()),
            from_rows(json.loads(json.dumps(to_rows(plan))), sources_of(plan)),
        ):
            assert again == plan
            assert again.digest() == plan.digest()


def test_a_plan_prints_the_step_of_a_loop():
    text = str(lower(recurrent(9)))
    assert "repeated 9 times" in text
    assert all(leaf in text for leaf in ("'c0'", "'k0'", "'x0'", "'y0'"))


def test_equal_loops_share_a_spec_and_others_do_not():
    def two(other):
        graph = Graph()
        body = Graph()
        h = body.input("h", (4,))
        body.set_outputs([h.tanh()])
        second = Graph()
        k = second.input("k", (4,))
        second.set_outputs([k.tanh() if not other else k.sin()])
        a, b = graph.input("a", (4,)), graph.input("b", (4,))
        first = graph.loop([a], [], [], body.freeze(), 3)[0]
        graph.set_outputs([first, graph.loop([b], [], [], second.freeze(), 3)[0]])
        return len(lower(graph).specs)

    assert (two(False), two(True)) == (1, 2)


def changed(plan, **fields):
    """The plan with another step in its loop."""
    (spec,) = plan.specs.values()
    spec = dataclasses.replace(spec, inner=dataclasses.replace(spec.inner, **fields))
    kernel = dataclasses.replace(plan.kernels[0], spec=spec.digest)
    return dataclasses.replace(plan, specs={spec.digest: spec}, kernels=(kernel,))


def named(buffer, old, new):
    return dataclasses.replace(buffer, name=new) if buffer.name == old else buffer


def test_a_step_that_is_not_the_one_of_its_body_is_refused():
    plan = lower(recurrent(3))
    step = plan.spec(0).inner
    with pytest.raises(VerifyError, match="no update says so"):
        changed(plan, updates=step.updates[:1]).verify()
    with pytest.raises(VerifyError, match="other leaves of kind input"):
        changed(plan, buffers=tuple(named(b, "x0", "x1") for b in step.buffers)).verify()
    with pytest.raises(VerifyError, match="outside the arena"):
        changed(plan, arena_bytes=0).verify()
    with pytest.raises(VerifyError, match="outputs or a commit point"):
        changed(plan, outputs=(0,), output_names=(None,)).verify()
    alone = dataclasses.replace(plan.spec(0), inner=None)
    kernel = dataclasses.replace(plan.kernels[0], spec=alone.digest)
    with pytest.raises(VerifyError, match="loops alone have the plan of a step"):
        dataclasses.replace(plan, specs={alone.digest: alone}, kernels=(kernel,)).verify()


def test_a_damaged_step_in_a_file_is_refused():
    content = json.loads(lower(recurrent(3)).to_json())["plan"]
    (spec,) = content["specs"].values()
    spec["step"]["arena_bytes"] = 0
    with pytest.raises(FormatError, match="outside the arena"):
        Plan.from_json(signed(content))
    del spec["step"]
    with pytest.raises(FormatError):
        Plan.from_json(signed(content))


# --------------------------------------------------------------------------- faults


def test_a_fault_in_a_body_is_told_with_its_label_and_line():
    def body(h, i):
        return [h + h.graph.gather(h.graph.constant(np.ones((5, 4), np.float32)), i, label="row")]

    inside = Graph()
    h, i = inside.input("h", (4,)), inside.input("i", (), "i32")
    inside.set_outputs(body(h, i))
    graph = Graph()
    start, steps = graph.input("start", (4,)), graph.input("steps", (3,), "i32")
    graph.set_outputs([graph.loop([start], [], [steps], inside.freeze(), 3, label="turns")[0]])
    plan = lower(graph)
    assert [label for kernel in plan.kernels for label, _ in kernel.checks] == ["row"]
    assert plan.commit == 1
    with pytest.raises(darner.RunError, match=r"gather 'row'.*index 7 is outside 0\.\.4"):
        run_plan(plan, {"start": np.zeros(4, "f4"), "steps": np.array([1, 7, 2], "i4")})


def test_a_large_constant_of_a_body_is_an_operand_and_a_small_one_is_part_of_it():
    def step(size):
        values = np.arange(size * size, dtype=np.float32).reshape(size, size) / size**3
        body = Graph()
        h = body.input("h", (size,))
        product = body.constant(values) @ h.reshape((size, 1))
        body.set_outputs([product.reshape((size,)).tanh()])
        graph = Graph()
        graph.set_outputs([graph.loop([graph.input("h", (size,))], [], [], body.freeze(), 3)[0]])
        start = {"h": np.ones(size, np.float32)}
        (found,), (wanted,) = run_plan(lower(graph), start), darner.run(graph, start)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
        plan = lower(graph)
        return [len(p.constants) for p in (plan, plan.spec(0).inner)]

    assert step(4) == [0, 1]
    assert step(40) == [1, 0]
