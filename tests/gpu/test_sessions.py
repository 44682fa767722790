"""Sessions on a GPU: the same numbers as on the CPU, one submission a step, values that move only when they are read."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, optim
from darner.backends.base.cache import ObjectCache
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.tuning import known_choices, tune
from tests.gpu import needs_gpu
from tests.session.on_devices import *  # noqa: F403
from tests.session.on_devices import IMAGES, LABELS, RNG, classifier, trained

pytestmark = needs_gpu


@pytest.fixture
def device_name():
    return "gpu"


def test_sizes_that_are_symbols_are_bound_by_what_is_given():
    g = Graph("any")
    x = g.input("x", ("n", 4))
    g.set_outputs([x.softmax(-1).sum(axis=0)])
    with darner.build_inference_session(g, device="gpu") as session:
        for count in (1, 5, 3):
            x = RNG.standard_normal((count, 4)).astype(np.float32)
            powers = np.exp(x - x.max(1, keepdims=True))
            wanted = (powers / powers.sum(1, keepdims=True)).sum(0)
            np.testing.assert_allclose(session.run({"x": x})["output0"], wanted, rtol=1e-5)


def test_a_step_is_one_submission_and_pipelines_do_not_grow_with_depth(monkeypatch):
    device = opened()
    submitted = []
    submit = device.submit
    monkeypatch.setattr(device, "submit", lambda encoder: submitted.append(submit(encoder)))
    counts = {}
    for layers in (2, 6):
        session = darner.build(
            classifier(layers), device="gpu", optimizer=optim.Adam(1e-3), cache=False
        )
        session.set_input("x", IMAGES)
        session.set_input("labels", LABELS)
        session.step()
        submitted.clear()
        session.step()
        session.step()
        session.read_loss()
        assert len(submitted) == 2
        program = session._runner.loaded(session._runner.chosen({})).program
        counts[layers] = program.pipelines, len(program.plan.kernels)
        session.close()
    assert counts[6][1] > counts[2][1]
    assert counts[6][0] == counts[2][0]


def test_the_second_build_writes_no_shader(tmp_path, monkeypatch):
    wanted, session = trained("gpu", 2, optim.SGD(0.1), cache=tmp_path)
    session.close()
    from darner.backends.wgpu import program

    def refuse(spec, machine):
        raise AssertionError("a shader was written again")

    monkeypatch.setattr(program, "written", refuse)
    found, session = trained("gpu", 2, optim.SGD(0.1), cache=tmp_path)
    assert found == wanted
    session.close()


def test_a_gpu_is_told_by_number_or_name_and_what_is_not_there_is_an_error():
    name = opened().machine.name
    assert opened("gpu:0") is opened() is opened(f"gpu:{name.split()[0].lower()}")
    listed = [device for device in darner.devices() if device.name.startswith("gpu")]
    assert listed[0].title == name
    assert listed[0].limits["max-storage-buffer-binding-size"] >= 1 << 27
    with pytest.raises(
        ArgumentError, match=r"there is no GPU 77: this machine has \d+ GPUs?; gpu:0 is "
    ):
        darner.build(classifier(), device="gpu:77", mode="infer")
    with pytest.raises(ArgumentError, match="no GPU is called 'nothing like it'"):
        darner.build(classifier(), device="gpu:nothing like it", mode="infer")
    with pytest.raises(ArgumentError, match="there is no device 'vulkan'"):
        darner.build(classifier(), device="vulkan", mode="infer")


def test_the_plan_file_of_a_gpu_told_by_number_is_used_again(tmp_path):
    g, path = classifier(), tmp_path / "model.plan"
    for _ in range(2):  # the second has nothing to warn of
        with darner.build_session_cached(g, path, device="gpu:0", cache=None) as session:
            assert session.plan().target == "gpu"
        written = path.stat().st_mtime_ns
    with darner.build_session_cached(g, path, device="gpu:0", cache=None):
        assert path.stat().st_mtime_ns == written


def test_tuning_chooses_among_ways_to_write_a_product_and_remembers(tmp_path):
    g = Graph("product")
    x, w = g.input("x", (70, 96)), g.parameter("w", (96, 40), init="normal(1)")
    g.set_outputs([(x @ w).relu()])
    device, cache = opened(), ObjectCache(tmp_path)
    values = RNG.standard_normal((70, 96)).astype(np.float32)
    with darner.build(g, device="gpu", mode="infer", tune=True, cache=tmp_path) as session:
        found = session.run({"x": values})["output0"]
        wanted = np.maximum(values @ session.read_param("w"), 0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
    plan = lower_for("gpu", g)
    (digest,) = known_choices(device.machine, cache)
    assert digest in plan.specs
    told = []
    again = tune(plan, device, seconds=5.0, progress=lambda *about: told.append(about))
    assert list(again.choices) == [digest]
    assert len(again.times[digest]) > 1
    assert told == [(0, 1, "maximum")]
    assert tune(plan, device, known=again.choices).times == {}
    with pytest.raises(ArgumentError, match="kernels of 'cpu' are not tuned"):
        darner.build(g, mode="infer", tune=True)


def test_states_that_take_each_others_values_swap_them_and_hold_no_more_memory():
    g = Graph("swap")
    a, b = g.state("a", (5,), init=1.0), g.state("b", (5,), init=2.0)
    g.set_update(a, b)
    g.set_update(b, a)
    g.set_outputs([a + b * 10.0])
    with darner.build_inference_session(g, device="gpu") as session:
        session.step()
        held = opened().bytes_held
        for _ in range(3):
            session.step()
        np.testing.assert_array_equal(session.read_output_by_index(0), np.full(5, 12.0))
        np.testing.assert_array_equal(session.state()["a"], np.ones(5))
        assert opened().bytes_held == held
