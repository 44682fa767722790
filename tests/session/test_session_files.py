"""Sessions and files, and what sessions can be asked."""

import re

import numpy as np
import pytest

import darner
from darner import Graph
from darner.session.planfile import PlanFileWarning
from tests.session.opening import (
    CODE,
    DATA,
    OPTIMIZERS,
    START,
    here,
    line,
    opened,
    perceptron,
)
from tests.zoo import mlp, values

# --------------------------------------------------------------------------- checkpoints


SLOWER = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("sgd", "momentum", "adam", "adamw", "lion")
]


@pytest.mark.parametrize("optimizer", [None, "accumulated", *SLOWER])
def test_ten_steps_are_five_and_a_checkpoint_and_five(tmp_path, optimizer):
    graph = mlp(3, dropout=0.25)
    inputs, params, _ = values(graph)
    path = tmp_path / "five.safetensors"
    options = {"optimizer": OPTIMIZERS[optimizer]} if optimizer else {}

    def start():
        session = opened(graph, params=params, level=1, device="cpu", **options)
        if not optimizer:
            session.set_adam(0.01)
        return session

    with start() as session:
        for _ in range(5):
            session.run(inputs)
        session.save_checkpoint(path, metadata={"note": "half way"})
        for _ in range(5):
            session.run(inputs)
        wanted = {**dict(session.parameters().items()), **dict(session.state().items())}
        loss = session.read_loss()
    with start() as session:
        metadata = session.load_checkpoint(path)
        assert metadata["note"] == "half way"
        for _ in range(5):
            session.run(inputs)
        found = {**dict(session.parameters().items()), **dict(session.state().items())}
        assert session.read_loss() == loss
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_moments_wait_for_their_optimizer_and_inference_leaves_them(tmp_path):
    graph = perceptron()
    inputs, params, _ = values(graph)
    path = tmp_path / "adam.safetensors"
    with opened(graph, params=params, level=1) as session:
        session.set_adam(0.01)
        for _ in range(3):
            session.run(inputs)
        session.save_checkpoint(path)
        mean, weights = session.state()["w1/mean"], session.read_param("w1")
    with opened(graph, level=1) as session:
        session.load_checkpoint(path)
        session.set_adam(0.5)
        np.testing.assert_array_equal(session.state()["w1/mean"], mean)
        assert session.state()["optimizer/step"] == 3
        assert session.state()["optimizer/learning_rate"] == np.float32(0.5)
    with opened(graph, level=1) as session:
        session.load_checkpoint(path)
        session.set_learning_rate(0.5)  # another optimizer: what waited was not for it
        assert session.state()["optimizer/step"] == 0
    with opened(graph, level=1, mode="infer") as session:
        session.load_checkpoint(path)
        np.testing.assert_array_equal(session.read_param("w1"), weights)


def test_a_checkpoint_that_does_not_fit_changes_nothing_and_lists_all(tmp_path):
    path = tmp_path / "other.safetensors"
    other = Graph("other")
    w, v = other.parameter("w", (4,)), other.parameter("v", (1,))
    other.set_outputs([(w.sum() * v).mean()])
    with opened(other, level=0) as session:
        session.set_adam()
        session.save_checkpoint(path)
    with opened(line(), params=START, level=0) as session:
        message = here(lambda: session.load_checkpoint(path))
        assert "does not fit this session (it was saved with Adam):" in message
        assert "  parameter 'v' is unexpected" in message
        assert "  parameter 'w' has the shape (4,), but (3,) is needed" in message
        np.testing.assert_array_equal(session.read_param("w"), START["w"])
        session.set_learning_rate(0.1)
        assert "state 'w/mean' is unexpected" in here(lambda: session.load_checkpoint(path))
        missing = tmp_path / "missing.safetensors"
        assert "load_checkpoint: " in here(lambda: session.load_checkpoint(missing))
        path.write_bytes(path.read_bytes()[:-3])
        with pytest.raises(darner.FormatError):
            session.load_checkpoint(path)


def test_numbers_that_an_optimizer_refuses_are_refused_before_anything_is_read(tmp_path):
    path = tmp_path / "wrong.safetensors"
    with opened(line(), params=START, level=0) as session:
        session.set_adam(0.1)
        session.state()["optimizer/beta1"] = 2.0
        session.save_checkpoint(path)
    with opened(line(), level=0) as session:
        session.set_adam(0.1)
        with pytest.raises(darner.ArgumentError, match="beta1"):
            session.load_checkpoint(path)
        np.testing.assert_array_equal(session.read_param("w"), np.zeros(3))
        assert session.optimizer.beta1 == 0.9


def test_the_seeds_flat_layout_loads(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "flat.safetensors"
    graph = perceptron()
    rng = np.random.default_rng(0)
    sizes = {name: int(leaf.size) for name, leaf in graph.parameters.items()}
    flat = {name: rng.random(size).astype(np.float32) for name, size in sizes.items()}
    flat |= {f"adam_m.{name}": np.full(size, 2, np.float32) for name, size in sizes.items()}
    flat |= {f"adam_v.{name}": np.full(size, 3, np.float32) for name, size in sizes.items()}
    save_file(flat, path, metadata={"adam_step": "11"})
    with opened(graph, level=1) as session:
        session.load_checkpoint(path)
        session.set_adam()
        np.testing.assert_array_equal(session.read_param("w1"), flat["w1"].reshape(6, 5))
        assert session.state()["optimizer/step"] == 11
        assert (session.state()["w2/mean"] == 2).all()
        assert (session.state()["b1/variance"] == 3).all()


# --------------------------------------------------------------------------- plans, reports, memory


def test_a_cached_plan_is_used_again_and_a_stale_one_is_not(tmp_path, monkeypatch):
    path = tmp_path / "model.plan"
    graph = perceptron()
    inputs, params, _ = values(graph)
    with darner.build_session_cached(graph, path, device="reference") as session:
        session.parameters().update(params)
        wanted = session.run(inputs)["output0"]
        assert session.report.passes
        plan = session.plan()
    with monkeypatch.context() as patched:
        patched.setattr(
            "darner.optimizer.optimize_training", lambda *a, **k: pytest.fail("searched")
        )
        with darner.build_session_cached(graph, path, device="reference") as session:
            assert session.plan() == plan
            assert session.report.passes == []
            session.parameters().update(params)
            np.testing.assert_array_equal(session.run(inputs)["output0"], wanted)
            assert session.has_param_grad("w1")
    with (
        pytest.warns(PlanFileWarning, match="is of another graph, machine or version"),
        darner.build_session_cached(perceptron(hidden=4), path, device="reference") as session,
    ):
        assert session.plan().leaves("parameter").keys() == graph.parameters.keys()
    text, digest = path.read_text(), darner.Plan.load(path).digest()
    for damaged in (text[: len(text) // 2], text.replace("mnist", "mnisT"), "no plan"):
        path.write_text(damaged)
        with (
            pytest.warns(PlanFileWarning, match="cannot be used, and is made again"),
            darner.build_session_cached(perceptron(hidden=4), path, device="reference"),
        ):
            pass
        assert darner.Plan.load(path).digest() == digest
    with darner.build_session_cached(graph, tmp_path / "adam.plan", level=1) as session:
        session.set_adam()
        assert (tmp_path / "adam.adam.plan").exists()
    with pytest.warns(PlanFileWarning, match="cannot be kept in"):
        darner.build_session_cached(graph, tmp_path / "no folder" / "x.plan").close()


def test_a_cached_inference_session_keeps_its_setup_too(tmp_path):
    g = Graph()
    x, w = g.input("x", (2, 3)), g.parameter("w", (3, 3))
    g.set_outputs([x @ (w * (w.abs().max() + 1.0))])
    inputs, params, _ = values(g)
    path = tmp_path / "model.plan"
    (wanted,) = darner.run(g, inputs, params)
    for _ in range(2):
        with darner.build_session_cached(g, path, mode="infer", **CODE) as session:
            session.parameters().update(params)
            np.testing.assert_allclose(session.run(inputs)["output0"], wanted, rtol=1e-5)
    assert (tmp_path / "model.setup.plan").exists()


def test_compiled_code_is_kept_in_the_folder_given(tmp_path):
    with opened(line(), params=START, level=0, cache=tmp_path, device="cpu") as session:
        session.run(DATA)
    assert len(list(tmp_path.glob("*.object"))) == 1


def test_the_report_and_the_phases_are_there():
    session, report = darner.build_session_with_report(
        perceptron(), threads=1, cache=None, init="normal"
    )
    with session:
        assert report is session.report
        assert [item.name for item in report.passes] == ["forward", "training"]
        assert report.nodes_before > 0
        assert {"optimize", "lower"} <= session.build_seconds.keys()
        session.set_learning_rate(0.1)
        session.run({"x": np.zeros((8, 6)), "labels": np.zeros((8, 3))})
        assert "compile" in session.build_seconds
        assert session.plan().target == "cpu"
        assert "4 parameters" in repr(session)
        assert "training by SGD" in repr(session)


def test_building_tells_the_terminal_what_it_does(capsys, monkeypatch):
    opened(line(), level=1, progress=True).close()
    shown = capsys.readouterr().err
    assert "built 'line' in" in shown
    assert "lower 0." in shown
    opened(line(), level=1, progress=False).close()
    opened(line(), level=1).close()  # not a terminal
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("darner.session.progress.PATIENCE", 1000.0)
    opened(line(), level=1).close()  # a terminal, but too quick
    assert capsys.readouterr().err == ""


def test_inference_has_no_dropout_at_any_level():
    graph, plain = mlp(3, dropout=0.5, loss=False), mlp(3, loss=False)
    inputs, params, _ = values(plain)
    (wanted,) = darner.run(plain, inputs, params)
    for level in (0, 1, 2):
        with opened(graph, mode="infer", level=level, params=params) as session:
            (found,) = session.run(inputs).values()
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_the_memory_summary_counts_what_there_is():
    graph = perceptron(8, 6, 5, 3)
    parameters = 4 * (30 + 5 + 15 + 3)
    with opened(graph, level=1) as session:
        plain = session.memory_summary()
        assert plain.adam_state_bytes == 0
        arena = session.plan().arena_bytes
        assert plain.largest_buffer_bytes == max(arena, 4 * 48, 4 * 30)
        constants = [b for b in session.plan().buffers if b.place == "constant"]
        inputs = 4 * 8 * (6 + 3)
        known = parameters + arena + inputs + sum(b.nbytes for b in constants)
        assert plain.total_buffer_bytes == known
        assert plain.num_buffers == 4 + 1 + 2 + len(constants)
        session.set_adam()
        learned = session.memory_summary()
        assert learned.adam_state_bytes == 2 * parameters
        assert re.fullmatch(
            r"\d+ buffers, \d+\.\d MB total \(\d+\.\d MB adam state\), largest \d+\.\d MB",
            str(learned),
        )


def test_profiles_traces_and_summaries_are_asked_of_the_session():
    graph = perceptron()
    inputs, params, _ = values(graph)
    with opened(graph, params=params, level=1, device="cpu") as session:
        assert "profiling was off" in here(lambda: session.run(inputs) and session.profile())
        session.set_profiling(True)
        for _ in range(3):
            session.run(inputs)
        found = session.profile("cpu")
        assert found.steps == 3
        assert len(found.kernels) >= len(session.plan().kernels)
        assert "w1" in str(session.dump_grad_summary(2))
        assert not session.trace_dispatches(inputs=inputs)
        session.set_parameter("b1", np.full(5, np.nan))
        before = session.read_loss()
        trace = session.trace_dispatches(inputs=inputs)
        assert session.read_loss() == before
        assert trace
        assert "nan" in str(trace).lower()
        session.set_profiling(False)
        session.run(inputs)
        assert "profiling was off" in here(session.profile)
