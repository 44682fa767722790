"""A step that fails leaves every parameter, moment, state and counter bit for bit as it was."""

import re

import numpy as np
import pytest

import darner
from darner import Graph, optim
from tests.session.failing import CASES, contents

OPTIMIZERS = {
    "sgd": optim.SGD(0.1),
    "momentum": optim.SGD(0.1, momentum=0.9),
    "adam": optim.Adam(1e-2),
    "adamw, clipped": optim.AdamW(1e-2, clip_norm=0.5),
    "lion": optim.Lion(1e-3),
    "adafactor": optim.Adafactor(1e-2),
    "accumulated": optim.Adam(1e-2, accumulate=2),
}


def check(case, **options):
    """Steps that fail between others: the session learns what one does that never saw them."""
    with (
        darner.build_session(case.graph, init="normal", seed=3, **options) as session,
        darner.build_session(case.graph, init="normal", seed=3, **options) as twin,
    ):
        for number in range(4):
            before = contents(session)
            with pytest.raises(darner.RunError) as caught:
                session.run(case.bad)
            assert re.search(case.says, str(caught.value)), str(caught.value)
            assert contents(session) == before
            found, expected = session.run(case.good), twin.run(case.good)
            assert found["output0"].tobytes() == expected["output0"].tobytes()
            assert contents(session) == contents(twin)
            # With accumulation every second step changes parameters; the counters move in each.
            assert contents(session) != before, f"step {number} did nothing"


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("name", CASES)
def test_a_failed_step_changes_nothing_and_names_op_label_line_and_place(name, device):
    check(CASES[name](), optimizer=optim.Adam(1e-2), device=device)


@pytest.mark.parametrize("name", ["embedding", "solve"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_failed_step_changes_nothing_with_any_optimizer(optimizer, name):
    check(CASES[name](), optimizer=OPTIMIZERS[optimizer])


@pytest.mark.parametrize("threads", [1, 3, 8])
@pytest.mark.parametrize("level", [0, 2])
def test_a_failed_step_changes_nothing_on_any_number_of_threads(threads, level):
    check(CASES["embedding"](), optimizer=optim.Adam(1e-2), threads=threads, level=level)


def test_a_failed_step_changes_nothing_while_it_is_profiled():
    case = CASES["embedding"]()
    with darner.build_session(case.graph, optimizer=optim.Adam(1e-2), init="normal") as session:
        session.set_profiling(True)
        before = contents(session)
        with pytest.raises(darner.RunError, match="index 20"):
            session.run(case.bad)
        assert contents(session) == before
        session.run(case.good)
        assert contents(session) != before


def test_an_early_update_waits_for_a_late_fault():
    """The state's new value depends on nothing that can fail, and is ready before that is looked at."""
    g = Graph()
    count = g.state("count", (), "i32")
    row = g.state("row", (3,))
    x, at = g.input("x", (3,)), g.input("at", (2,), "i32")
    g.set_update(count, count + 1)
    g.set_update(row, row + x)
    g.set_outputs([g.gather(x.exp() @ g.parameter("w", (3, 5)), at + count)])
    with darner.build_inference_session(g, init="ones") as session:
        given = {"x": np.ones(3, np.float32), "at": np.array([0, 3], np.int32)}
        session.run(given)
        session.run(given)
        before = contents(session)
        for _ in range(2):
            with pytest.raises(darner.RunError, match=r"index 5 is outside 0\.\.4"):
                session.run(given)
            assert contents(session) == before
        assert session.state()["count"] == 2
        np.testing.assert_array_equal(session.state()["row"], [2, 2, 2])


def test_a_failed_step_has_no_outputs_to_read():
    case = CASES["embedding"]()
    with darner.build_session(case.graph, optimizer=optim.Adam(1e-2), init="normal") as session:
        session.run(case.good)
        session.read_output_by_index(0)
        with pytest.raises(darner.RunError, match="index 20"):
            session.run(case.bad)
        with pytest.raises(darner.RunError, match="the last step failed, and has no outputs"):
            session.read_output_by_index(0)
        session.run(case.good)
        session.read_output_by_index(0)


def test_sessions_that_share_parameters_see_nothing_of_a_failed_step():
    case = CASES["embedding"]()
    with darner.build_session(case.graph, optimizer=optim.Adam(1e-1), init="normal") as session:
        session.run(case.good)
        with darner.build_inference_session(case.graph, share=session) as reader:
            before = reader.run(case.good)["output0"]
            with pytest.raises(darner.RunError):
                session.run(case.bad)
            assert reader.run(case.good)["output0"].tobytes() == before.tobytes()
            session.run(case.good)
            assert reader.run(case.good)["output0"] != before


def test_what_a_users_op_raises_on_the_reference_changes_nothing(monkeypatch):
    g = Graph()
    w, x = g.parameter("w", (3,)), g.input("x", (3,))
    g.set_outputs([((w * x).tan()).sum()])
    given = {"x": np.ones(3, np.float32)}
    op = g.nodes[g.outputs[0].inputs[0]].op
    with darner.build_session(
        g, optimizer=optim.Adam(0.1), init="ones", device="reference"
    ) as session:
        session.run(given)
        before, calls = contents(session), []

        def fails(x):
            calls.append(1)
            raise KeyboardInterrupt

        monkeypatch.setattr(op.rules, "reference", fails)
        with pytest.raises(KeyboardInterrupt):
            session.run(given)
        assert calls
        assert contents(session) == before


def test_an_index_that_was_computed_names_the_inputs_it_comes_from():
    case = CASES["embedding"]()
    says = r"0\.\.19, and comes from input 'tokens' \("
    with (
        darner.build_session(case.graph, optimizer=optim.SGD(0.1), init="normal") as session,
        pytest.raises(darner.RunError, match=says),
    ):
        session.run(case.bad)
