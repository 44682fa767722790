"""What sessions on an NVIDIA GPU promise besides what those on every device do (``tests.session.on_devices``): one graph a step, kernels kept on disk, memory given back, arrays on the device."""

import gc
import weakref

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.backends.cuda import kernels
from darner.backends.cuda.opening import opened
from tests.leaks import models
from tests.session.on_devices import IMAGES, LABELS, classifier, trained
from tests.session.precise import block, values_of


def program_of(session):
    """The program of a session's last step."""
    return session._runner.last.program


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


def test_a_step_in_16_bits_casts_no_weight_and_computes_again_what_is_cheap(device_name):
    graph = block()
    inputs, parameters = values_of(graph)
    found = {}
    for name in (device_name, "reference"):
        options = {"precision": "bf16", "optimizer": optim.AdamW(1e-3), "cache": None}
        with darner.build_session(graph, device=name, **options) as session:
            session.parameters().update(parameters)
            for _ in range(3):
                session.run(inputs)
            found[name] = {**session.parameters(), "loss": np.asarray(session.read_loss())}
            plan = session.plan()
        if name == device_name:
            for kernel in plan.kernels:
                read = [plan.buffers[i].place for i in kernel.operands]
                assert not (plan.spec(kernel).ops == ("cast",) and "parameter" in read)
            exponentials = [plan.spec(kernel).ops.count("exp") for kernel in plan.kernels]
            assert sum(exponentials) == 2  # of the gate, forward and backward
    for name, value in found["reference"].items():
        np.testing.assert_allclose(found[device_name][name], value, atol=3e-3, err_msg=name)


def test_a_step_is_one_graph_and_kernels_do_not_grow_with_depth(device_name):
    counts = {}
    for layers in (2, 5):
        session = darner.build(
            classifier(layers), device=device_name, optimizer=optim.Adam(1e-3), cache=None
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


def test_the_second_build_writes_no_kernel(device_name, tmp_path, monkeypatch):
    wanted, session = trained(device_name, 3, optim.SGD(0.1), cache=tmp_path)
    session.close()

    def refuse(spec, machine):
        raise AssertionError("a kernel was written again")

    monkeypatch.setattr(kernels, "written", refuse)
    found, session = trained(device_name, 3, optim.SGD(0.1), cache=tmp_path)
    assert found == wanted
    session.close()


@pytest.mark.parametrize("count", [4, pytest.param(25, marks=pytest.mark.slow)])
def test_sessions_that_come_and_go_leave_nothing_on_the_device(device_name, count):
    for number in range(3):
        turn(device_name, number)
    before = held(device_name)
    for number in range(count):
        turn(device_name, number)
    assert held(device_name) == before


def test_a_session_gives_its_memory_back_with_its_last_reference(device_name):
    turn(device_name, 0)
    before = held(device_name)
    session = models.training(device=device_name, cache=None)
    models.learned(session, 3)
    assert held(device_name) > before
    program = weakref.ref(program_of(session))
    gc.disable()  # no cycle leads back to it: nothing waits for a collection
    try:
        del session
        assert program() is None
        assert opened(device_name).bytes_held == before
    finally:
        gc.enable()


def test_arrays_are_given_and_taken_on_the_device(device_name):
    g = Graph("scores")
    x, bias, rows = g.input("x", (6, 10)), g.input("bias", ("n",)), g.input("rows", (2,), "i32")
    found = g.gather(x, rows, axis=0) @ g.parameter("w", (10, 4), init="normal(1)")
    g.set_outputs([found.mul(2.0, label="scores"), bias.add(1.0, label="moved")])
    make = {"mode": "infer", "device": device_name, "cache": None}
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
