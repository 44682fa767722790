"""Sessions on a GPU: the same numbers as on the CPU, one submission a step, values that move only when they are read."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, RunError, optim
from darner.backends.base.cache import ObjectCache
from darner.backends.base.lowering import lower_for
from darner.backends.wgpu.device import opened
from darner.backends.wgpu.tuning import known_choices, tune
from tests.gpu import needs_gpu

pytestmark = needs_gpu

RNG = np.random.default_rng(7)
IMAGES = RNG.standard_normal((6, 10)).astype(np.float32)
LABELS = RNG.integers(0, 5, 6).astype(np.int32)


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


OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optim.AdamW(1e-2, clip_norm=1.0),
    "lion": lambda: optim.Lion(1e-3),
    "adafactor": lambda: optim.Adafactor(1e-2),
    "accumulating": lambda: optim.Adam(1e-2, accumulate=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_has_the_numbers_of_the_cpu(name):
    make = OPTIMIZERS[name]
    (wanted, one), (found, other) = (trained(device, 5, make()) for device in ("cpu", "gpu"))
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    assert wanted[-1] < wanted[0]
    for parameter in one.graph.parameters:
        np.testing.assert_allclose(
            other.read_param(parameter), one.read_param(parameter), rtol=2e-4, atol=2e-5
        )
    one.close()
    other.close()


@pytest.mark.parametrize(("first", "second"), [("cpu", "gpu"), ("gpu", "cpu"), ("gpu", "gpu")])
def test_a_checkpoint_of_one_device_goes_on_on_another(first, second, tmp_path):
    whole, session = trained("cpu", 10, optim.AdamW(1e-2))
    session.close()
    half, session = trained(first, 5, optim.AdamW(1e-2))
    session.save_checkpoint(tmp_path / "half.safetensors")
    session.close()
    rest, session = trained(second, 5, optim.AdamW(1e-2), tmp_path / "half.safetensors")
    session.close()
    np.testing.assert_allclose(half + rest, whole, rtol=1e-4)


def test_inference_computes_what_depends_on_parameters_once_and_anew_when_they_change():
    g = Graph("scaled")
    x, w = g.input("x", (3, 8)), g.parameter("w", (8, 4), init="normal(1)")
    g.set_outputs([x @ (w / w.abs().max())])
    with darner.build_inference_session(g, device="gpu") as session:
        x = RNG.standard_normal((3, 8)).astype(np.float32)
        for scale in (1.0, 3.0):
            w = scale * RNG.standard_normal((8, 4)).astype(np.float32)
            session.set_parameter("w", w)
            found = session.run({"x": x})["output0"]
            np.testing.assert_allclose(found, x @ (w / np.abs(w).max()), rtol=1e-5, atol=1e-6)


def test_states_stay_on_the_device_and_can_be_read_and_written():
    g = Graph("counter")
    count = g.state("count", (3,), init=2.0)
    g.set_update(count, count + g.input("x", (3,)))
    g.set_outputs([count * 10.0])
    with darner.build_inference_session(g, device="gpu") as session:
        session.set_input("x", np.ones(3, np.float32))
        session.step()
        session.step()
        np.testing.assert_array_equal(session.state()["count"], [4, 4, 4])
        np.testing.assert_array_equal(session.read_output_by_index(0), [30, 30, 30])
        session.state()["count"] = np.zeros(3, np.float32)
        session.step()
        np.testing.assert_array_equal(session.state()["count"], [1, 1, 1])


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


def test_training_and_inference_share_their_parameters_on_the_device():
    losses, session = trained("gpu", 1, optim.SGD(0.5))
    with darner.build(classifier(), device="gpu", mode="infer", share=session) as other:
        values = {"x": IMAGES, "labels": LABELS}
        before = other.run(values)["output0"].item()
        session.step()
        after = other.run(values)["output0"].item()
    assert before < losses[0]
    assert after < before
    session.close()


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
        program = session._compiled(session._chosen({}))
        counts[layers] = program.pipelines, len(program.plan.kernels)
        session.close()
    assert counts[6][1] > counts[2][1]
    assert counts[6][0] == counts[2][0]


def test_an_index_outside_its_axis_is_told_when_the_results_are_read():
    g = Graph("rows")
    x, where = g.input("x", (4, 3)), g.input("where", (2,), "i32")
    g.set_outputs([g.gather(x, where * 2, axis=0)])
    with darner.build_inference_session(g, device="gpu") as session:
        values = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
        with pytest.raises(RunError, match=r"index 6 is outside 0\.\.3"):
            session.run({**values, "where": np.array([0, 3], np.int32)})
        found = session.run({**values, "where": np.array([0, 1], np.int32)})["output0"]
        np.testing.assert_array_equal(found, values["x"][[0, 2]])


def test_kernels_are_timed_by_the_gpu_and_traced_one_by_one():
    _, session = trained("gpu", 2, optim.SGD(0.1))
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
