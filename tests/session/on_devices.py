"""What sessions on every compiled device promise. A module of a device's tests imports all of these tests, and says which device in its fixture ``device_name``.

They can be called, too: ``bench.cuda_check`` does so where there is no pytest.
"""

import gc
import re
import threading

import numpy as np
import pytest

import darner
from darner import Graph, RunError, optim
from darner.graph.op import unregister
from tests.leaks import models
from tests.session.failing import CASES, contents
from tests.whole_models import MODELS, check_model

RNG = np.random.default_rng(11)
IMAGES = RNG.standard_normal((6, 10)).astype(np.float32)
LABELS = RNG.integers(0, 5, 6).astype(np.int32)

OPTIMIZERS = {
    "sgd": lambda: optim.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: optim.AdamW(1e-2, clip_norm=1.0),
    "lion": lambda: optim.Lion(1e-3),
    "adafactor": lambda: optim.Adafactor(1e-2),
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


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_has_the_numbers_of_the_cpu(device_name, name):
    make = OPTIMIZERS[name]
    (wanted, one), (found, other) = (trained(where, 6, make()) for where in ("cpu", device_name))
    np.testing.assert_allclose(found, wanted, rtol=2e-5)
    assert wanted[-1] < wanted[0]
    for parameter in one.graph.parameters:
        np.testing.assert_allclose(
            other.read_param(parameter), one.read_param(parameter), rtol=2e-4, atol=2e-5
        )
    one.close()
    other.close()


@pytest.mark.parametrize("direction", ["to the device", "from the device"])
def test_a_checkpoint_of_one_device_goes_on_on_another(device_name, direction, tmp_path):
    first, second = "cpu", device_name
    if direction.startswith("from"):
        first, second = second, first
    whole, session = trained("cpu", 8, optim.AdamW(1e-2))
    session.close()
    half, session = trained(first, 4, optim.AdamW(1e-2))
    session.save_checkpoint(tmp_path / "half.safetensors")
    session.close()
    rest, session = trained(second, 4, optim.AdamW(1e-2), tmp_path / "half.safetensors")
    session.close()
    np.testing.assert_allclose(half + rest, whole, rtol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_failed_step_changes_nothing_and_names_op_label_line_and_place(device_name, name):
    case = CASES[name]()
    with darner.build_session(
        case.graph, optimizer=optim.Adam(1e-2), init="normal", device=device_name, cache=None
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


def test_an_index_outside_its_axis_is_told_when_the_results_are_read(device_name):
    g = Graph("rows")
    x, where = g.input("x", (4, 3)), g.input("where", (2,), "i32")
    g.set_outputs([g.gather(x, where * 2, axis=0)])
    with darner.build_inference_session(g, device=device_name, cache=None) as session:
        values = {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}
        for _ in range(3):
            with pytest.raises(RunError, match=r"index 6 is outside 0\.\.3"):
                session.run({**values, "where": np.array([0, 3], np.int32)})
            found = session.run({**values, "where": np.array([0, 1], np.int32)})["output0"]
            np.testing.assert_array_equal(found, values["x"][[0, 2]])


def test_inference_computes_what_depends_on_parameters_once_and_anew_when_they_change(device_name):
    g = Graph("scaled")
    x, w = g.input("x", (3, 8)), g.parameter("w", (8, 4), init="normal(1)")
    g.set_outputs([x @ (w / w.abs().max())])
    with darner.build_inference_session(g, device=device_name, cache=None) as session:
        x = RNG.standard_normal((3, 8)).astype(np.float32)
        for scale in (1.0, 3.0, 0.5):
            w = scale * RNG.standard_normal((8, 4)).astype(np.float32)
            session.set_parameter("w", w)
            for _ in range(3):
                found = session.run({"x": x})["output0"]
                np.testing.assert_allclose(found, x @ (w / np.abs(w).max()), rtol=1e-5, atol=1e-6)


def test_states_stay_on_the_device_and_can_be_read_and_written(device_name):
    g = Graph("counter")
    count = g.state("count", (3,), init=2.0)
    g.set_update(count, count + g.input("x", (3,)))
    g.set_outputs([count * 10.0])
    with darner.build_inference_session(g, device=device_name, cache=None) as session:
        session.set_input("x", np.ones(3, np.float32))
        for _ in range(4):
            session.step()
        np.testing.assert_array_equal(session.state()["count"], [6, 6, 6])
        np.testing.assert_array_equal(session.read_output_by_index(0), [50, 50, 50])
        session.state()["count"] = np.zeros(3, np.float32)
        session.step()
        np.testing.assert_array_equal(session.state()["count"], [1, 1, 1])


def test_states_that_take_each_others_values_swap_them(device_name):
    g = Graph("swap")
    a, b = g.state("a", (5,), init=1.0), g.state("b", (5,), init=2.0)
    g.set_update(a, b)
    g.set_update(b, a)
    g.set_outputs([a + b * 10.0])
    with darner.build_inference_session(g, device=device_name, cache=None) as session:
        for _ in range(4):
            session.step()
        np.testing.assert_array_equal(session.read_output_by_index(0), np.full(5, 12.0))
        np.testing.assert_array_equal(session.state()["a"], np.ones(5))


def test_inputs_of_all_sizes_arrive_and_change(device_name):
    g = Graph("inputs")
    sizes = {"tiny": (3,), "none": (0, 4), "small": (1000,), "large": (700, 500), "bytes": (77,)}
    given = {n: g.input(n, s, "u8" if n == "bytes" else "f32") for n, s in sizes.items()}
    whole = given["bytes"].cast("f32").sum() + given["none"].sum()
    outputs = [given["tiny"] * 2.0 + whole, given["small"] + 1.0, given["large"].sum(axis=1)]
    g.set_outputs(outputs)
    with darner.build_inference_session(g, device=device_name, cache=None) as session:
        for seed in range(6):
            rng = np.random.default_rng(seed)
            values = {n: rng.random(s, np.float32) for n, s in sizes.items()}
            values["bytes"] = rng.integers(0, 255, 77).astype(np.uint8)
            found = list(session.run(values).values())
            total = values["bytes"].astype(np.float64).sum()
            np.testing.assert_allclose(found[0], values["tiny"] * 2 + total, rtol=1e-6)
            np.testing.assert_array_equal(found[1], values["small"] + np.float32(1))
            np.testing.assert_allclose(found[2], values["large"].sum(1), rtol=1e-5)


def test_steps_that_are_not_waited_for_have_their_own_inputs(device_name):
    g = Graph("sums")
    total = g.state("total", (4,))
    g.set_update(total, total + g.input("x", (4,)))
    g.set_outputs([total * 2.0])
    with darner.build_inference_session(g, device=device_name, cache=None) as session:
        for number in range(40):
            session.set_input("x", np.full(4, float(number), np.float32))
            session.step()
        np.testing.assert_array_equal(session.state()["total"], np.full(4, sum(range(40))))


def test_training_and_inference_share_their_parameters_on_the_device(device_name):
    losses, session = trained(device_name, 1, optim.SGD(0.5))
    values = {"x": IMAGES, "labels": LABELS}
    options = {"device": device_name, "mode": "infer", "cache": None}
    with darner.build(classifier(), share=session, **options) as other:
        seen = []
        for _ in range(5):
            seen.append(other.run(values)["output0"].item())
            session.step()
        seen.append(other.run(values)["output0"].item())
    assert seen[0] < losses[0]
    assert seen == sorted(seen, reverse=True)
    session.close()


def test_sessions_of_several_threads_have_the_numbers_of_one(device_name):
    wanted, one = trained(device_name, 6, optim.Adam(1e-2))
    one.close()
    found = {}

    def work(number):
        found[number], session = trained(device_name, 6, optim.Adam(1e-2))
        session.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(4)] == [wanted] * 4


def test_a_session_runs_in_another_thread_than_it_was_built_in(device_name):
    _, session = trained(device_name, 1, optim.Adam(1e-2))
    found = []
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: (session.step(), found.append(session.read_loss()))
        )
        thread.start()
        thread.join()
    session.close()
    wanted, session = trained(device_name, 3, optim.Adam(1e-2))
    session.close()
    assert found == wanted[1:]


def test_kernels_are_timed_one_by_one(device_name):
    _, session = trained(device_name, 3, optim.SGD(0.1))
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


def test_a_value_that_outlives_its_session_can_still_be_read(device_name):
    session = models.inference(device=device_name, cache=None)
    view = session.run(models.values(), copy=False)["prediction"]
    wanted = view.copy()
    session.close()
    del session
    gc.collect()
    with models.inference(device=device_name, cache=None) as other:
        other.run(models.values(1))
    assert (view == wanted).all()


def test_a_function_of_numpy_arrays_is_refused_by_the_name_of_its_op(device_name):
    op = darner.unary("cubed_by_numpy", "x * x * x.", lambda x: x**3)
    try:
        g = Graph("host")
        g.set_outputs([g.input("x", (4,)).tanh().cubed_by_numpy(label="mine")])
        told = f"cubed_by_numpy 'mine': the device '{device_name}' cannot run it: darner knows only its NumPy function"
        with pytest.raises(darner.UnsupportedError, match=told) as caught:
            darner.build_inference_session(g, device=device_name, cache=None).step()
        assert "build for device='cpu'" in str(caught.value)
    finally:
        unregister(op.name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_the_reference_computes(device_name, name):
    check_model(name, device_name)
