"""How far a specialisation is: which state follows which, and what can be read in each."""

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.graph.errors import InternalError
from darner.session.programs import _MOVES, State
from tests.session.failing import CASES


def network(rows=4):
    g = Graph("states")
    x, w = g.input("x", (rows, 3)), g.parameter("w", (3,), init="ones")
    g.set_outputs([(x * w).square().mean(label="loss")])
    return g


X = np.arange(12, dtype=np.float32).reshape(4, 3)


def special_of(session):
    (special,) = session._runner.kept.values()
    return special


def test_building_plans_compiling_loads_and_a_step_runs():
    with darner.build_inference_session(network()) as session:
        special = special_of(session)
        assert special.state is State.PLANNED
        assert special.loaded is None
        assert special.program is None
        session.compile()
        assert special.state is State.LOADED
        with pytest.raises(darner.RunError, match="nothing has run yet"):
            session.read_output()
        session.run({"x": X})
        assert special.state is State.RAN
        session.run({"x": X})
        assert special.state is State.RAN


def test_a_failed_step_has_no_results_and_the_next_one_has():
    case = CASES["embedding"]()
    with darner.build_session(case.graph, optimizer=optim.SGD(0.1), init="normal") as session:
        special = special_of(session)
        assert special.state is State.LOADED
        session.run(case.good)
        program = special.program
        with pytest.raises(darner.RunError, match="index 20"):
            session.run(case.bad)
        assert special.state is State.LOADED
        assert not special.has_results
        session.run(case.good)
        assert special.state is State.RAN
        assert special.program is program


def test_another_optimizer_retires_the_last_step_whose_results_are_still_read():
    with darner.build_session(network(), optimizer=optim.SGD(0.1)) as session:
        session.set_input("x", X)
        session.step()
        loss, old = session.read_loss(), special_of(session)
        session.set_optimizer(optim.Adam(0.1))
        assert old.state is State.RETIRED
        assert old.loaded is None
        assert session.read_loss() == loss
        assert special_of(session) is not old
        assert special_of(session).state is State.PLANNED
        old.close()  # stays what it is
        assert old.state is State.RETIRED
        session.step()
        assert special_of(session).state is State.RAN


def test_another_optimizer_before_any_step_closes():
    with darner.build_session(network(), optimizer=optim.SGD(0.1)) as session:
        old = special_of(session)
        assert old.state is State.LOADED
        session.set_optimizer(optim.Adam(0.1))
        assert old.state is State.PLANNED


def test_sharing_frees_programs_that_are_made_again():
    with (
        darner.build_session(network(), optimizer=optim.SGD(0.1)) as learner,
        darner.build_inference_session(network()) as reader,
    ):
        before = reader.run({"x": X})["loss"]
        special = special_of(reader)
        reader.share_parameters(learner)
        assert special.state is State.PLANNED
        with pytest.raises(darner.RunError, match="no outputs"):
            reader.read_loss()
        np.testing.assert_array_equal(reader.run({"x": X})["loss"], before)
        assert special.state is State.RAN


def test_one_that_leaves_the_table_is_closed():
    g = Graph("symbolic")
    n = darner.symbol("n")
    g.set_outputs([g.input("x", (n,)) + 1.0])
    with darner.build_inference_session(g, specialisations=1) as session:
        session.run({"x": np.ones(2, np.float32)})
        first = special_of(session)
        session.run({"x": np.ones(3, np.float32)})
        assert first.state is State.PLANNED
        assert special_of(session).state is State.RAN


def test_closing_a_session_frees_what_ran():
    session = darner.build_inference_session(network())
    session.run({"x": X})
    special = special_of(session)
    session.close()
    assert special.state is State.PLANNED
    assert special.loaded is None


@pytest.mark.parametrize("state", State)
def test_moves_that_are_not_listed_are_errors(state):
    with darner.build_inference_session(network()) as session:
        special = special_of(session)
        for other in State:
            special.state = state
            if other in _MOVES[state]:
                special._move(other)
                assert special.state is other
            else:
                with pytest.raises(InternalError, match=f"{state.value} cannot be {other.value}"):
                    special._move(other)
                assert special.state is state
        special.state = State.PLANNED


def test_an_interrupt_while_programs_are_freed_leaves_nothing_half_done(monkeypatch):
    """What is retired is in no table then: the next step makes its programs anew."""
    with darner.build_session(network(), optimizer=optim.SGD(0.1), level=0) as session:
        session.set_input("x", X)
        session.step()
        old = special_of(session)
        before = session.get_parameter("w")

        def interrupted():
            raise KeyboardInterrupt

        monkeypatch.setattr(old.loaded.program, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.set_optimizer(optim.Adam(0.1))
        monkeypatch.undo()
        assert old.state is State.RETIRED
        assert isinstance(session.optimizer, optim.SGD)
        session.step()
        assert special_of(session) is not old
        assert not np.array_equal(session.get_parameter("w"), before)
