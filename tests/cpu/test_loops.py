"""Loops by native code: what the interpreter computes, on any number of threads, in either form."""

from dataclasses import replace

import numpy as np
import pytest

import darner
from darner import Graph, nn, optim
from darner.backends.cpu.kernels import template_of
from darner.backends.cpu.loops.layout import cyclic_waits, layout_of, rows_of
from darner.backends.cpu.runtime.jit import host
from darner.graph.attributes import Float
from darner.graph.op import OPS
from darner.lower.lower import lower
from tests.cpu.running import compiled, run_program
from tests.random_loops import nested_loop, random_loop


def forms(graph):
    """The templates of a graph's loops."""
    plan = lower(graph, target="cpu")
    return [template_of(spec).name for spec in plan.specs.values() if spec.kind == "loop"]


def check(graph, values, close=1e-9):
    """Results agree with the interpreter, and are bit-equal on one thread and on three."""
    wanted = darner.run(graph, values)
    found = []
    for threads in (1, 2, 3):
        program = compiled(graph, threads=threads)
        try:
            found.append(run_program(program, values))
        finally:
            program.close()
    for a, b, c, expected in zip(*found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)
        assert a.dtype == expected.dtype
        scale = float(np.abs(expected.astype(np.float64)).max(initial=1.0))
        np.testing.assert_allclose(
            a.astype(np.float64), expected.astype(np.float64), rtol=close, atol=close * scale
        )


# --------------------------------------------------------------------------- any body


@pytest.mark.parametrize("seed", range(12))
def test_random_loops_compute_what_the_interpreter_computes(seed):
    check(*random_loop(100 + seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_many_random_loops_compute_what_the_interpreter_computes(seed):
    check(*random_loop(1000 + seed))


def test_a_loop_in_a_loop_computes_what_the_interpreter_computes():
    check(*nested_loop())


def recurrent(length, batch=3, width=20, reverse=False, sums=True):
    """h = tanh(h @ w + x), the ``sums`` of all h, and what they were before each step."""
    body = Graph("body")
    h, w = body.input("h", (batch, width)), body.input("w", (width, width))
    x = body.input("x", (batch, width))
    following = (h @ w + x).tanh()
    body.set_outputs([following, following.sum(-1) if sums else following * 2.0, h])
    graph = Graph("recurrent")
    leaves = [
        graph.input("init", (batch, width)),
        graph.input("w", (width, width)),
        graph.input("xs", (length, batch, width)),
    ]
    results = graph.loop([leaves[0]], [leaves[1]], [leaves[2]], body.freeze(), length, reverse)
    graph.set_outputs(list(results))
    rng = np.random.default_rng(length)
    values = {
        name: (rng.normal(size=leaf.shape) * 0.15).astype(np.float32)
        for name, leaf in graph.inputs.items()
    }
    return graph, values


@pytest.mark.parametrize("length", [0, 1, 2, 4000])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_recurrence_of_any_length_computes_what_the_interpreter_computes(length, reverse):
    # Rounding is forgotten: each step makes differences smaller.
    check(*recurrent(length, reverse=reverse), close=5e-6)


def test_threads_share_the_steps_of_a_large_recurrence():
    graph, values = recurrent(5, batch=64, width=256)
    plan = lower(graph, target="cpu")
    (spec,) = plan.specs.values()
    layout = layout_of(spec, host())
    assert not layout.alone or host().cores == 1
    check(graph, values, close=2e-5)


def test_one_thread_goes_through_the_steps_of_a_small_recurrence():
    (spec,) = lower(recurrent(5)[0], target="cpu").specs.values()
    assert layout_of(spec, host()).alone


def test_a_weight_is_packed_before_the_first_step():
    (spec,) = lower(recurrent(5, batch=64, width=256)[0], target="cpu").specs.values()
    layout = layout_of(spec, host())
    assert len(layout.packed) == 1
    assert [step.packing is not None for step in layout.steps].count(True) == 1


def test_a_carry_that_is_read_whole_changes_places_with_its_new_value():
    (spec,) = lower(recurrent(5)[0], target="cpu").specs.values()
    layout = layout_of(spec, host())
    assert len(layout.loop.exchanged) == 1
    assert len(layout.steps) == len(spec.inner.kernels) - 1


def two_cores():
    return replace(host(), cores=2)


def test_threads_take_rows_of_their_own_where_rows_know_nothing_of_each_other():
    (spec,) = lower(recurrent(20, batch=7, width=96, sums=False)[0], target="cpu").specs.values()
    found = rows_of(spec, two_cores())
    assert found.counts == (4, 3)
    assert {
        n: layout.loop.plan.buffers[0].type.shape[0] for n, layout in found.layouts.items()
    } == {
        4: 4,
        3: 3,
    }
    assert rows_of(spec, replace(host(), cores=1)) is None


@pytest.mark.parametrize(("batch", "width"), [(2, 33), (7, 96), (13, 40), (30, 17)])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_that_threads_take_are_bit_equal_to_all_rows_together(batch, width, reverse):
    check(*recurrent(20, batch, width, reverse, sums=False), close=1e-4)


@pytest.mark.parametrize(
    ("step", "apart"),
    [
        (lambda h, x, w: (h @ w + x).tanh(), True),
        (lambda h, x, w: (h @ w).reshape((8, 2, 32)).reshape((8, 64)) + x, True),
        (lambda h, x, w: w[:8, :8] @ h + x, False),
        (lambda h, x, w: (h @ w).flip(0) + x, False),
        (lambda h, x, w: h @ w + x.sum(0), False),
        (lambda h, x, w: h @ w + x * w[:8], False),
    ],
    ids=["product", "reshape", "mixed", "flipped", "summed", "rows of a constant"],
)
def test_rows_go_apart_only_where_a_step_mixes_none_of_them(step, apart):
    g = Graph()
    w = g.input("w", (64, 64))
    last, _ = g.iterate(
        lambda h, x: (step(h, x, w), None), g.input("h", (8, 64)), g.input("x", (20, 8, 64))
    )
    g.set_outputs([last])
    (spec,) = (s for s in lower(g, target="cpu").specs.values() if s.kind == "loop")
    assert (rows_of(spec, two_cores()) is not None) == apart


def test_rows_stay_together_where_their_weights_are_larger_than_a_core_keeps():
    (large,) = lower(recurrent(20, 8, 1024, sums=False)[0], target="cpu").specs.values()
    assert rows_of(large, two_cores()) is None


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers_and_their_gradients_are_bit_equal_on_any_number_of_threads(kind):
    found = []
    for threads in (1, 2):
        g = Graph()
        y, _ = getattr(nn, kind)("rnn", 9, 37)(g.input("x", (5, 11, 9)))
        g.set_outputs([y.square().sum()])
        rng = np.random.default_rng(0)
        with darner.build_session(g, threads=threads) as session:
            for name, leaf in g.parameters.items():
                session.set_parameter(name, rng.normal(size=leaf.shape) * 0.2)
            result = session.run({"x": rng.normal(size=(5, 11, 9))})["output0"]
            found.append([result, *(session.read_grad(name) for name in g.parameters)])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_few_rows_meet_packed_weights_where_these_would_be_packed_in_every_step():
    """The weight's columns lie apart: as they are, they would be dot products, or panels that each step makes anew."""

    def packed(length, batch):
        g = Graph()
        w, x = g.input("w", (64, 64)), g.input("x", (length, batch, 64))

        def step(h, x_t):
            return h.dot_general(w, 1, 1) + x_t, None

        last, _ = g.iterate(step, g.zeros((batch, 64)), x)
        g.set_outputs([last])
        found = [s for s in lower(g, target="cpu").specs.values() if s.kind == "loop"]
        return len(layout_of(found[0], host()).packed)

    assert [packed(20, 3), packed(20, 1), packed(4, 3)] == [1, 0, 0]


def test_two_carries_that_take_one_value_are_those_of_the_interpreter():
    body = Graph()
    a, b, w = body.input("a", (4, 4)), body.input("b", (4, 4)), body.input("w", (4, 4))
    body.set_outputs(2 * [(a @ w + b @ w).tanh()] + [a - b])
    graph = Graph()
    leaves = [graph.input(name, (4, 4)) for name in "abw"]
    graph.set_outputs(list(graph.loop(leaves[:2], leaves[2:], [], body.freeze(), 4)))
    rng = np.random.default_rng(0)
    check(graph, {name: rng.normal(size=(4, 4)).astype(np.float32) for name in "abw"}, 1e-5)


def test_threads_wait_wherever_the_next_step_needs_it():
    (spec,) = lower(recurrent(5)[0], target="cpu").specs.values()
    plan = spec.inner
    count = len(plan.kernels)
    waits = cyclic_waits(plan, [False] * count)
    hazards = plan.hazards()
    for k in range(count):
        assert all(any(waits[earlier:k]) for earlier in hazards[k])
    assert any(waits)


def test_kernels_that_share_scratch_memory_wait_for_each_other_across_steps():
    (spec,) = lower(recurrent(5)[0], target="cpu").specs.values()
    count = len(spec.inner.kernels)
    waits = cyclic_waits(spec.inner, [True] * count)
    assert waits == [True] * count


# --------------------------------------------------------------------------- by elements


def elementwise(shape, length, dtype="f32", *, reverse=False, counted=False, scale=None):
    """h = tanh(h * k + x) + h / 2, and a number of the step where it is ``counted``."""
    graph = Graph("elements")
    start, xs = graph.input("start", shape, dtype), graph.input("xs", (length, *shape), dtype)
    k = graph.input("k", shape if scale is None else scale, dtype)
    count = graph.input("count", (), "i32")

    def step(carry, x):
        h, number = carry
        following = (h * k + x).tanh() + h * 0.5
        if counted:
            following = following + number.cast(dtype) * 0.01
        return (following, number + 1), (following * 2.0, number)

    (last, number), (written, numbers) = graph.iterate(step, (start, count), xs, reverse=reverse)
    graph.set_outputs([last, written] + ([number, numbers] if counted else []))
    rng = np.random.default_rng(0)
    values = {"start": rng.normal(size=shape), "xs": rng.normal(size=(length, *shape))}
    values["k"] = rng.normal(size=k.shape) * 0.3
    values = {name: value.astype(start.dtype.numpy) for name, value in values.items()}
    return graph, {**values, "count": np.int32(3)}


CLOSE = {"f16": 8e-3, "f32": 5e-6, "f64": 1e-12}


@pytest.mark.parametrize("dtype", ["f16", "f32", "f64"])
@pytest.mark.parametrize("shape", [(), (3,), (17,), (3, 5), (4, 33), (2, 3, 64)])
def test_loops_by_elements_compute_what_the_interpreter_computes(shape, dtype):
    graph, values = elementwise(shape, 4, dtype, reverse=len(shape) == 1, counted=shape != (17,))
    assert forms(graph) == ["element loops"]
    check(graph, values, CLOSE[dtype])


@pytest.mark.parametrize("length", [0, 1, 2, 4000])
def test_loops_by_elements_of_any_length(length):
    graph, values = elementwise((5,), length, counted=True)
    assert forms(graph) == ["element loops"]
    check(graph, values, 2e-5)


@pytest.mark.parametrize("scale", [(), (5,), (3, 1)])
def test_constants_of_loops_by_elements_are_broadcast(scale):
    graph, values = elementwise((3, 5), 3, scale=scale)
    assert forms(graph) == ["element loops"]
    check(graph, values, 5e-6)


def test_elements_that_meet_others_are_no_loop_by_elements():
    body = Graph()
    h = body.input("h", (6,))
    body.set_outputs([h.flip((0,)) * 0.5 + 1.0])
    graph = Graph()
    graph.set_outputs([graph.loop([graph.input("start", (6,))], [], [], body.freeze(), 3)[0]])
    assert forms(graph) == ["loops"]
    check(graph, {"start": np.arange(6, dtype=np.float32)}, 1e-6)


def test_a_number_for_all_elements_that_some_element_changes_is_no_loop_by_elements():
    body = Graph()
    h, s = body.input("h", (6,)), body.input("s", ())
    body.set_outputs([h * s, s + h.mean()])
    graph = Graph()
    leaves = [graph.input("start", (6,)), graph.input("sum", ())]
    graph.set_outputs(list(graph.loop(leaves, [], [], body.freeze(), 3)))
    assert forms(graph) == ["loops"]
    check(graph, {"start": np.arange(6, dtype=np.float32), "sum": np.float32(0.5)}, 1e-6)


def test_a_carry_that_no_step_changes_is_a_result():
    body = Graph()
    h, s = body.input("h", (6,)), body.input("s", (6,))
    body.set_outputs([h * s, s])
    graph = Graph()
    leaves = [graph.input("start", (6,)), graph.input("kept", (6,))]
    graph.set_outputs(list(graph.loop(leaves, [], [], body.freeze(), 3)))
    values = {"start": np.arange(6, dtype=np.float32), "kept": np.full(6, 0.5, np.float32)}
    check(graph, values, 1e-6)


# --------------------------------------------------------------------------- faults


def looked_up(length=4):
    """A loop that adds rows of a table to a state, which the session keeps."""
    body = Graph()
    h, table, i = body.input("h", (4,)), body.input("table", (5, 4)), body.input("i", (), "i32")
    body.set_outputs([h + body.gather(table, i, label="row")])
    graph = Graph("looked up")
    memory = graph.state("memory", (4,))
    table = graph.parameter("table", (5, 4))
    # Not the input itself, which would be checked before the step.
    steps = graph.input("steps", (length,), "i32") + 1
    last = graph.loop([memory], [table], [steps], body.freeze(), length, label="turns")[0]
    graph.set_update(memory, last)
    graph.set_outputs([last * 2.0])
    return graph


@pytest.mark.parametrize("threads", [1, 2])
def test_a_body_that_fails_leaves_all_states_as_they_were(threads):
    with darner.build_inference_session(looked_up(), threads=threads) as session:
        session.set_parameter("table", np.arange(20, dtype=np.float32).reshape(5, 4))
        session.run({"steps": np.array([0, 1, 2, 3], "i4")})
        before = np.array(session.state()["memory"])
        with pytest.raises(darner.RunError, match=r"gather 'row'.*index 9 is outside 0\.\.4"):
            session.run({"steps": np.array([0, 8, 2, 3], "i4")})
        np.testing.assert_array_equal(session.state()["memory"], before)
        session.run({"steps": np.array([0, 0, 0, 0], "i4")})
        np.testing.assert_array_equal(session.state()["memory"], before + 4 * np.arange(4.0, 8.0))


def test_a_fault_in_a_loop_in_a_loop_is_told_with_its_label():
    within = Graph()
    h, i = within.input("h", (4,)), within.input("i", (), "i32")
    within.set_outputs([h + h.take_along_axis(i.reshape((1,)), 0, label="picked")])
    body = Graph()
    total, many = body.input("total", (4,)), body.input("many", (2,), "i32")
    body.set_outputs([body.loop([total], [], [many], within.freeze(), 2)[0].tanh()])
    graph = Graph()
    start, steps = graph.input("start", (4,)), graph.input("steps", (3, 2), "i32")
    graph.set_outputs([graph.loop([start], [], [steps + 1], body.freeze(), 3)[0]])
    program = compiled(graph, threads=2)
    try:
        given = {"start": np.ones(4), "steps": np.array([[0, 1], [2, 3], [1, 0]])}
        with pytest.raises(darner.RunError, match=r"take_along_axis 'picked'.*4 is outside 0\.\.3"):
            run_program(program, given)
        given["steps"][1, 1] = 0
        np.testing.assert_allclose(
            run_program(program, given)[0], darner.run(graph, given)[0], rtol=1e-6
        )
    finally:
        program.close()


# --------------------------------------------------------------------------- sessions


def summed(length):
    """The loss of a recurrence with a weight to train."""
    graph = Graph("summed")
    w = graph.parameter("w", (20, 20))
    xs = graph.input("xs", (length, 3, 20))
    start = graph.constant(np.zeros((3, 20), np.float32))
    last, every = graph.iterate(lambda h, x: 2 * ((h @ w + x).tanh(),), start, xs)
    graph.set_outputs([(every * every).mean() + last.sum()])
    return graph


def test_a_loop_is_trained_as_the_reference_trains_it():
    values = np.random.default_rng(0).normal(size=(6, 3, 20)).astype(np.float32)
    start = np.random.default_rng(1).normal(size=(20, 20)).astype(np.float32) * 0.2
    found = []
    for device in ("cpu", "reference"):
        with darner.build_session(summed(6), optimizer=optim.Adam(1e-2), device=device) as session:
            session.set_parameter("w", start)
            losses = [session.run({"xs": values}) for _ in range(3)]
            found.append((session.get_parameter("w"), losses))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=2e-5)
    assert not np.allclose(found[0][0], start)


def test_a_session_says_what_its_loop_takes():
    with darner.build_session(summed(6), optimizer=None) as session:
        session.set_parameter("w", np.eye(20, dtype=np.float32))
        inputs = {"xs": np.ones((6, 3, 20), np.float32)}
        session.run(inputs)
        session.set_profiling(True)
        session.run(inputs)
        profile = session.profile()
        kinds = [kernel.kind for kernel in profile.kernels]
        assert kinds.count("loop") == 2
        loops = [kernel for kernel in profile.kernels if kernel.kind == "loop"]
        # A product in each step, and one for the gradient towards the carry.
        assert [loop.work.contraction_flops for loop in loops] == [6 * 2 * 3 * 20 * 20] * 2
        assert not session.trace_dispatches(inputs=inputs)
        assert session.memory_summary().total_buffer_bytes > session.plan().arena_bytes


def test_a_second_session_of_a_loop_compiles_nothing(tmp_path):
    inputs, found = {"xs": np.ones((6, 3, 20), np.float32)}, []
    for _ in range(2):
        with darner.build_session(summed(6), optimizer=optim.SGD(0.1), cache=tmp_path) as session:
            session.set_parameter("w", np.eye(20, dtype=np.float32) * 0.5)
            session.run(inputs)
            session.save_checkpoint(tmp_path / "trained.darner")
            session.run(inputs)
            found.append((session.plan(), session.get_parameter("w"), session.build_seconds))
            session.load_checkpoint(tmp_path / "trained.darner")
            session.run(inputs)
            np.testing.assert_array_equal(session.get_parameter("w"), found[-1][1])
    (first, before, _), (second, after, seconds) = found
    assert first.digest() == second.digest()
    assert "optimize" not in seconds
    np.testing.assert_array_equal(before, after)


def test_the_memory_map_tells_of_the_arena_of_a_loop():
    graph, _ = recurrent(3)
    with darner.build_inference_session(graph) as session:
        found = session.memory_map()
        ((number, nbytes),) = found.steps
        assert nbytes == session.plan().spec(number).inner.arena_bytes > 0
    assert f"k{number} is a loop" in str(found)


def test_steps_of_any_size_are_specialised():
    graph = Graph("symbolic")
    xs = graph.input("xs", (3, "batch", 4))
    graph.set_outputs([graph.iterate(lambda h, x: (h * 0.5 + x, None), xs[0] * 0.0, xs)[0]])
    with darner.build_inference_session(graph) as session:
        for batch in (1, 5, 3):
            values = np.random.default_rng(batch).normal(size=(3, batch, 4)).astype(np.float32)
            (found,) = session.run({"xs": values}).values()
            (wanted,) = darner.run(graph, {"xs": values})
            np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_users_function_may_be_the_body_of_a_loop():
    @darner.primitive(family="mine", samples=[])
    def halved_by_numpy(x: Float) -> darner.TensorType:
        """Half of it."""
        return x

    @halved_by_numpy.reference
    def _(x):
        return x * 0.5

    try:
        body = Graph()
        h, x = body.input("h", (4,)), body.input("x", (4,))
        body.set_outputs([halved_by_numpy(h) + x])
        graph = Graph()
        start, xs = graph.input("start", (4,)), graph.input("xs", (3, 4))
        graph.set_outputs([graph.loop([start], [], [xs], body.freeze(), 3)[0].sin()])
        values = {"start": np.ones(4, np.float32), "xs": np.ones((3, 4), np.float32)}
        with darner.build_inference_session(graph) as session:
            (found,) = session.run(values).values()
        np.testing.assert_allclose(found, np.full(4, np.sin(0.125 + 1.75)), rtol=1e-6)
    finally:
        OPS.pop("halved_by_numpy")
