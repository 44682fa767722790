"""What sessions on an NVIDIA GPU promise, as functions of the device's name: tests call them on the emulated device, and on a card where there is one."""

import gc
import re
import threading
import weakref

import numpy as np
import pytest

import darner
from darner import Graph, RunError, optim
from darner.backends.cuda.opening import opened
from darner.graph.op import unregister
from tests.leaks import models
from tests.session.failing import CASES, contents
from tests.session.precise import block, values_of

RNG = np.random.default_rng(11)
IMAGES = RNG.standard_normal((6, 10)).astype(np.float32)
LABELS = RNG.integers(0, 5, 6).astype(np.int32)

OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optim.AdamW(1e-2, clip_norm=1.0),
    "accumulating": lambda: optim.Adam(1e-2, accumulate=2),
}


def classifier(layers=1):
    g = Graph("classifier")
    x, labels = g.input("x", (6, 10)), g.input("labels", (6,), "i32")
    for i in range(layers):
        x = (x @ g.parameter(f"w{i}", (10, 10), init="normal(0.4)")).tanh().layer_norm()
    logits = x @ g.parameter("head", (10, 5), init="normal(0.4)") + g.parameter("bias", (5,))
    g.set_outputs([logits.cross_entropy_loss(labels), logits])
    return g


def trained(device, steps, optimizer, start=None, **options):
    """The losses of some steps, and the session."""
    options = {"cache": None, **options}
    session = darner.build(classifier(), device=device, optimizer=optimizer, seed=3, **options)
    if start is not None:
        session.load_checkpoint(start)
    session.set_input("x", IMAGES)
    session.set_input("labels", LABELS)
    losses = []
    for _ in range(steps):
        session.step()
        losses.append(session.read_loss())
    return losses, session


def program_of(session):
    """The program of a session's last step."""
    return session._runner.last.program


def training_has_the_numbers_of_the_cpu(device, name):
    make = OPTIMIZERS[name]
    (wanted, one), (found, other) = (trained(where, 6, make()) for where in ("cpu", device))
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    assert wanted[-1] < wanted[0]
    for parameter in one.graph.parameters:
        np.testing.assert_allclose(
            other.read_param(parameter), one.read_param(parameter), rtol=2e-4, atol=2e-5
        )
    one.close()
    other.close()


def a_checkpoint_goes_on_on_another_device(first, second, folder):
    whole, session = trained("cpu", 8, optim.AdamW(1e-2))
    session.close()
    half, session = trained(first, 4, optim.AdamW(1e-2))
    session.save_checkpoint(folder / "half.safetensors")
    session.close()
    rest, session = trained(second, 4, optim.AdamW(1e-2), folder / "half.safetensors")
    session.close()
    np.testing.assert_allclose(half + rest, whole, rtol=1e-4)


def a_failed_step_changes_nothing(device, name):
    case = CASES[name]()
    with darner.build_session(
        case.graph, optimizer=optim.Adam(1e-2), init="normal", device=device, cache=None
    ) as session:
        session.run(case.good)
        for _ in range(3):  # the first runs launch by launch, the others are graphs
            before = contents(session)
            with pytest.raises(RunError) as caught:
                session.run(case.bad)
            assert re.search(case.says, str(caught.value)), str(caught.value)
            assert contents(session) == before
            session.run(case.good)
            assert contents(session) != before


def an_index_outside_its_axis_is_told_when_results_are_read(device):
    g = Graph("rows")
    x, where = g.input("x", (4, 3)), g.input("where", (2,), "i32")
    g.set_outputs([g.gather(x, where * 2, axis=0)])
    with darner.build_inference_session(g, device=device, cache=None) as session:
        values = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
        for _ in range(3):
            with pytest.raises(RunError, match=r"index 6 is outside 0\.\.3"):
                session.run({**values, "where": np.array([0, 3], np.int32)})
            found = session.run({**values, "where": np.array([0, 1], np.int32)})["output0"]
            np.testing.assert_array_equal(found, values["x"][[0, 2]])


def what_depends_on_parameters_is_computed_once_and_anew_when_they_change(device):
    g = Graph("scaled")
    x, w = g.input("x", (3, 8)), g.parameter("w", (8, 4), init="normal(1)")
    g.set_outputs([x @ (w / w.abs().max())])
    with darner.build_inference_session(g, device=device, cache=None) as session:
        x = RNG.standard_normal((3, 8)).astype(np.float32)
        for scale in (1.0, 3.0, 0.5):
            w = scale * RNG.standard_normal((8, 4)).astype(np.float32)
            session.set_parameter("w", w)
            for _ in range(3):
                found = session.run({"x": x})["output0"]
                np.testing.assert_allclose(found, x @ (w / np.abs(w).max()), rtol=1e-5, atol=1e-6)


def a_step_in_16_bits_casts_no_weight_and_computes_again_what_is_cheap(device):
    graph = block()
    inputs, parameters = values_of(graph)
    found = {}
    for name in (device, "reference"):
        options = {"precision": "bf16", "optimizer": optim.AdamW(1e-3), "cache": None}
        with darner.build_session(graph, device=name, **options) as session:
            session.parameters().update(parameters)
            for _ in range(3):
                session.run(inputs)
            found[name] = {**session.parameters(), "loss": np.asarray(session.read_loss())}
            plan = session.plan()
        if name == device:
            for kernel in plan.kernels:
                read = [plan.buffers[i].place for i in kernel.operands]
                assert not (plan.spec(kernel).ops == ("cast",) and "parameter" in read)
            exponentials = [plan.spec(kernel).ops.count("exp") for kernel in plan.kernels]
            assert sum(exponentials) == 2  # of the gate, forward and backward
    for name, value in found["reference"].items():
        np.testing.assert_allclose(found[device][name], value, atol=3e-3, err_msg=name)


def states_stay_and_can_be_read_and_written(device):
    g = Graph("counter")
    count = g.state("count", (3,), init=2.0)
    g.set_update(count, count + g.input("x", (3,)))
    g.set_outputs([count * 10.0])
    with darner.build_inference_session(g, device=device, cache=None) as session:
        session.set_input("x", np.ones(3, np.float32))
        for _ in range(4):
            session.step()
        np.testing.assert_array_equal(session.state()["count"], [6, 6, 6])
        np.testing.assert_array_equal(session.read_output_by_index(0), [50, 50, 50])
        session.state()["count"] = np.zeros(3, np.float32)
        session.step()
        np.testing.assert_array_equal(session.state()["count"], [1, 1, 1])


def states_swap(device):
    g = Graph("swap")
    a, b = g.state("a", (5,), init=1.0), g.state("b", (5,), init=2.0)
    g.set_update(a, b)
    g.set_update(b, a)
    g.set_outputs([a + b * 10.0])
    with darner.build_inference_session(g, device=device, cache=None) as session:
        for _ in range(4):
            session.step()
        np.testing.assert_array_equal(session.read_output_by_index(0), np.full(5, 12.0))
        np.testing.assert_array_equal(session.state()["a"], np.ones(5))


def inputs_of_all_sizes_arrive_and_change(device):
    g = Graph("inputs")
    sizes = {"tiny": (3,), "none": (0, 4), "small": (1000,), "large": (700, 500), "bytes": (77,)}
    given = {n: g.input(n, s, "u8" if n == "bytes" else "f32") for n, s in sizes.items()}
    whole = given["bytes"].cast("f32").sum() + given["none"].sum()
    outputs = [given["tiny"] * 2.0 + whole, given["small"] + 1.0, given["large"].sum(axis=1)]
    g.set_outputs(outputs)
    with darner.build_inference_session(g, device=device, cache=None) as session:
        for seed in range(6):
            rng = np.random.default_rng(seed)
            values = {n: rng.random(s, np.float32) for n, s in sizes.items()}
            values["bytes"] = rng.integers(0, 255, 77).astype(np.uint8)
            found = list(session.run(values).values())
            total = values["bytes"].astype(np.float64).sum()
            np.testing.assert_allclose(found[0], values["tiny"] * 2 + total, rtol=1e-6)
            np.testing.assert_array_equal(found[1], values["small"] + np.float32(1))
            np.testing.assert_allclose(found[2], values["large"].sum(1), rtol=1e-5)


def steps_that_are_not_waited_for_have_their_own_inputs(device):
    g = Graph("sums")
    total = g.state("total", (4,))
    g.set_update(total, total + g.input("x", (4,)))
    g.set_outputs([total * 2.0])
    with darner.build_inference_session(g, device=device, cache=None) as session:
        for number in range(40):
            session.set_input("x", np.full(4, float(number), np.float32))
            session.step()
        np.testing.assert_array_equal(session.state()["total"], np.full(4, sum(range(40))))


def training_and_inference_share_parameters(device):
    losses, session = trained(device, 1, optim.SGD(0.5))
    values = {"x": IMAGES, "labels": LABELS}
    options = {"device": device, "mode": "infer", "cache": None}
    with darner.build(classifier(), share=session, **options) as other:
        seen = []
        for _ in range(5):
            seen.append(other.run(values)["output0"].item())
            session.step()
        seen.append(other.run(values)["output0"].item())
    assert seen[0] < losses[0]
    assert seen == sorted(seen, reverse=True)
    session.close()


def sessions_of_several_threads_have_the_numbers_of_one(device):
    wanted, one = trained(device, 6, optim.Adam(1e-2))
    one.close()
    found = {}

    def work(number):
        found[number], session = trained(device, 6, optim.Adam(1e-2))
        session.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(4)] == [wanted] * 4


def a_session_runs_in_another_thread_than_it_was_built_in(device):
    _, session = trained(device, 1, optim.Adam(1e-2))
    found = []
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: (session.step(), found.append(session.read_loss()))
        )
        thread.start()
        thread.join()
    session.close()
    wanted, session = trained(device, 3, optim.Adam(1e-2))
    session.close()
    assert found == wanted[1:]


def a_step_is_one_graph_and_kernels_do_not_grow_with_depth(device):
    counts = {}
    for layers in (2, 5):
        session = darner.build(
            classifier(layers), device=device, optimizer=optim.Adam(1e-3), cache=None
        )
        session.set_input("x", IMAGES)
        session.set_input("labels", LABELS)
        for _ in range(3):
            session.step()
        session.read_loss()
        program = program_of(session)
        graphs = [graph for graph in program._graphs.values() if graph is not None]
        assert len(graphs) == 1
        assert graphs[0].count >= len(program.plan.kernels)
        counts[layers] = program.kernels, len(program.plan.kernels)
        session.close()
    assert counts[5][1] > counts[2][1]
    assert counts[5][0] == counts[2][0]


def kernels_are_timed_one_by_one(device):
    _, session = trained(device, 3, optim.SGD(0.1))
    session.set_profiling()
    session.step()
    session.step()
    told = str(session.profile())
    before = session.read_param("head")
    trace = session.trace_dispatches()
    np.testing.assert_array_equal(session.read_param("head"), before)
    assert "kernels on 1 thread, 2 steps" in told
    assert not any(dispatch.made for dispatch in trace.dispatches)
    session.close()


def the_second_build_writes_no_kernel(device, folder, monkeypatch):
    wanted, session = trained(device, 3, optim.SGD(0.1), cache=folder)
    session.close()
    from darner.backends.cuda import kernels

    def refuse(spec, machine):
        raise AssertionError("a kernel was written again")

    monkeypatch.setattr(kernels, "written", refuse)
    found, session = trained(device, 3, optim.SGD(0.1), cache=folder)
    assert found == wanted
    session.close()


def held(device):
    """Bytes of the device that are in use, after a collection."""
    gc.collect()
    return opened(device).bytes_held


def turn(device, number):
    """Build, use and drop two sessions; some are closed, some shared, some in cycles, some never run."""
    first = models.training(device=device, cache=None)
    models.learned(first, 3)
    share = {"share": first} if number % 2 else {}
    predicts = models.inference(device=device, cache=None, **share)
    if number % 5:
        predicts.run(models.values())
    if number % 3 == 0:
        first.close()
        predicts.close()
    elif number % 3 == 1:
        first.itself, predicts.itself = first, predicts


def sessions_that_come_and_go_leave_nothing(device, count):
    for number in range(3):
        turn(device, number)
    before = held(device)
    for number in range(count):
        turn(device, number)
    assert held(device) == before


def a_session_gives_its_memory_back_with_its_last_reference(device):
    turn(device, 0)
    before = held(device)
    session = models.training(device=device, cache=None)
    models.learned(session, 3)
    assert held(device) > before
    program = weakref.ref(program_of(session))
    gc.disable()  # no cycle leads back to it: nothing waits for a collection
    try:
        del session
        assert program() is None
        assert opened(device).bytes_held == before
    finally:
        gc.enable()


def a_value_outlives_its_session(device):
    session = models.inference(device=device, cache=None)
    view = session.run(models.values(), copy=False)["prediction"]
    wanted = view.copy()
    session.close()
    del session
    gc.collect()
    with models.inference(device=device, cache=None) as other:
        other.run(models.values(1))
    assert (view == wanted).all()


def a_function_of_numpy_arrays_is_refused_by_the_name_of_its_op(device):
    op = darner.unary("cubed_by_numpy", "x * x * x.", lambda x: x**3)
    try:
        g = Graph("host")
        g.set_outputs([g.input("x", (4,)).tanh().cubed_by_numpy(label="mine")])
        told = f"cubed_by_numpy 'mine': the device '{device}' cannot run it: darner knows only its NumPy function"
        with pytest.raises(darner.UnsupportedError, match=told) as caught:
            darner.build_inference_session(g, device=device, cache=None).step()
        assert "build for device='cpu'" in str(caught.value)
    finally:
        unregister(op.name)


def arrays_are_given_and_taken_on_the_device(device):
    g = Graph("scores")
    x, bias, rows = g.input("x", (6, 10)), g.input("bias", ("n",)), g.input("rows", (2,), "i32")
    found = g.gather(x, rows, axis=0) @ g.parameter("w", (10, 4), init="normal(1)")
    g.set_outputs([found.mul(2.0, label="scores"), bias.add(1.0, label="moved")])
    make = {"mode": "infer", "device": device, "cache": None}
    with darner.build(g, **make) as session:
        values = {"x": IMAGES, "rows": np.array([1, 4], np.int32), "bias": np.ones(3, np.float32)}
        wanted = session.run(values)
        there = session.output_on_device("scores")
        assert there.shape == (2, 4)
        assert there.device[0] == 2
        np.testing.assert_array_equal(there.numpy(), wanted["scores"])
        again = session.output_on_device("moved", copy=False)
        for _ in range(3):  # what a step gives is what the next is given
            session.run({**values, "bias": again})
            again = session.output_on_device("moved", copy=False)
        np.testing.assert_array_equal(again.numpy(), np.full(3, 5, np.float32))
        assert there.numpy().tobytes() == wanted["scores"].tobytes()
        del again
        session.set_input("bias", session.output_on_device("moved"))
        for name in ("x", "rows"):
            session.set_input(name, values[name])
        session.step()
        np.testing.assert_array_equal(session.output("moved"), np.full(3, 6, np.float32))
    np.testing.assert_array_equal(there.numpy(), wanted["scores"])
