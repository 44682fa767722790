"""Symbolic sizes: a session binds them by what it is given, and keeps a bounded number of programs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import Graph, optim
from tests.conformance import examples


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    return tmp_path_factory.mktemp("code")


def model():
    """Rows of any number, and a second input whose size follows from it."""
    g = Graph("rows")
    n = darner.symbol("n")
    x, y = g.input("x", (n, 3)), g.input("y", (2 * n + 1,))
    w = g.parameter("w", (3, 2))
    h = (x @ w).relu(label="hidden")
    g.set_outputs([(h.square().sum() + y.square().sum()).reshape((1,)), h])
    return g


WEIGHTS = {"w": np.array([[1, -1], [2, 0.5], [-1, 1]], np.float32)}


def data(n, seed=0):
    rng = np.random.default_rng([seed, n])
    return {
        "x": rng.normal(size=(n, 3)).astype(np.float32),
        "y": rng.normal(size=2 * n + 1).astype(np.float32),
    }


def message_of(call):
    with pytest.raises(darner.DarnerError) as error:
        call()
    return str(error.value)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_each_size_gives_what_the_reference_gives(device, code):
    graph = model()
    with darner.build(
        graph, mode="infer", level=1, threads=2, device=device, cache=code
    ) as session:
        session.parameters().update(WEIGHTS)
        for n in (1, 5, 2, 5):
            wanted = darner.run(graph, data(n), WEIGHTS, float64=True)
            found = session.run(data(n))
            np.testing.assert_allclose(found["output0"], wanted[0], rtol=1e-5)
            np.testing.assert_allclose(found["hidden"], wanted[1], rtol=1e-5, atol=1e-6)
            assert session.read_output_by_index(1).shape == (n, 2)
        assert len(session._runner.kept) == 3


@settings(max_examples=examples(6))
@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_inputs_that_were_set_bind_too(counts):
    with darner.build(model(), mode="infer", device="reference", level=0) as session:
        session.parameters().update(WEIGHTS)
        for n in counts:
            for name, value in data(n).items():
                session.set_input(name, value)
            session.step()
            wanted = darner.run(model(), data(n), WEIGHTS)
            np.testing.assert_allclose(session.output("hidden"), wanted[1], rtol=1e-5, atol=1e-6)


def test_only_so_many_are_kept_and_they_share_parameters(code):
    options = {"mode": "infer", "level": 0, "threads": 1, "specialisations": 2, "cache": code}
    with darner.build(model(), **options) as session:
        session.parameters().update(WEIGHTS)
        for n in (1, 2, 3):
            session.run(data(n))
        assert len(session._runner.kept) == 2
        first = session._runner.kept.get((("n", 2),))
        session.set_parameter("w", WEIGHTS["w"] * 2)
        for n in (2, 3):
            wanted = darner.run(model(), data(n), {"w": WEIGHTS["w"] * 2})
            np.testing.assert_allclose(session.run(data(n))["output0"], wanted[0], rtol=1e-5)
        assert session._runner.kept.get((("n", 2),)) is first
        session.run(data(1))
        assert first.program is not None
        assert (
            session._runner.kept.get((("n", 2),)) is None
            or session._runner.kept.get((("n", 3),)) is None
        )


def test_training_goes_on_across_sizes(code):
    graph, optimizer = model(), optim.Adam(0.01)
    step = optim.training_step(graph, optimizer)
    state = {}
    params = dict(WEIGHTS)
    with darner.build(graph, optimizer=optimizer, level=1, threads=2, cache=code) as session:
        session.parameters().update(WEIGHTS)
        assert {"optimizer/step", "w/mean", "w/variance"} <= set(session.state())
        for n in (2, 3, 2, 4):
            loss, _ = darner.run(step, data(n), params, state=state)
            params = {"w": state.pop("w")}
            session.run(data(n))
            assert session.read_loss() == pytest.approx(float(loss[0]), rel=1e-5)
        np.testing.assert_allclose(session.read_param("w"), params["w"], rtol=1e-4)
        assert session.state()["optimizer/step"] == 4
        session.set_adam(0.02)
        assert session.state()["optimizer/step"] == 4


def test_a_symbolic_session_saves_and_loads_before_it_has_run(tmp_path, code):
    path = tmp_path / "x.safetensors"
    options = {"optimizer": optim.Adam(0.01), "level": 1, "cache": code}
    with darner.build(model(), **options) as session:
        session.parameters().update(WEIGHTS)
        session.run(data(2))
        session.save_checkpoint(path)
        mean = session.state()["w/mean"]
    with darner.build(model(), **options) as session:
        session.load_checkpoint(path)
        np.testing.assert_array_equal(session.state()["w/mean"], mean)


def test_plans_are_asked_for_by_size():
    with darner.build(model(), mode="infer", level=0) as session:
        message = message_of(session.plan)
        assert "the sizes n are not known before the first step; plan(n=...)" in message
        assert session.plan(n=3).leaves("input").keys() == {"x", "y"}
        assert "there is no symbol 'm'" in message_of(lambda: session.plan(n=1, m=2))


def test_sizes_that_do_not_fit_are_told():
    with darner.build(model(), mode="infer", level=0) as session:
        wrong = {"x": data(3)["x"], "y": data(2)["y"]}
        assert "'n' is 3 in 'x' but 2 in 'y'" in message_of(lambda: session.run(wrong))
        wrong = {"x": data(3)["x"], "y": np.zeros(6, np.float32)}
        message = message_of(lambda: session.run(wrong))
        assert "input 'y' is (2*n+1,), with n=3 (7,), but it is given (6,)" in message
        message = message_of(lambda: session.set_input("x", np.zeros(9, np.float32)))
        assert "input 'x' is (n, 3), but it is given 9 values" in message
        message = message_of(lambda: session.set_input("x", np.zeros((2, 4), np.float32)))
        assert "input 'x' is (n, 3), but it is given the shape (2, 4)" in message


def test_what_is_kept_between_runs_has_known_sizes():
    g = Graph()
    n = darner.symbol("n")
    w = g.parameter("w", (n,))
    g.set_outputs([w.sum()])
    message = message_of(lambda: darner.build(g))
    assert "parameter 'w' has the size n, but it is kept between runs; bind the graph" in message
