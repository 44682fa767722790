"""Ten steps are five, a checkpoint, a new process and five more, bit for bit, whatever the optimizer."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import darner
from darner import optim
from darner.session.checkpoint import load_checkpoint

from . import resuming
from .resuming import CASES, FROZEN, HALF, PRECISE, STEPS, everything_in, opened, train

ROOT = Path(__file__).parents[2]
ALWAYS = ("adam", "adamw with everything")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A place for checkpoints and compiled code."""
    return tmp_path_factory.mktemp("resuming")


@pytest.fixture(scope="module")
def chosen(request):
    """The cases that tests of this run ask for: compiling all of them takes a while."""
    asked = {
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    }
    return [name for name in CASES if name in {*asked, *ALWAYS}]


@pytest.fixture(scope="module")
def trained(chosen, folder):
    """For each case: what a session holds at first, its losses, and what it holds after ten steps; a checkpoint is at five."""
    found = {}
    for name in chosen:
        with opened(name, folder, threads=1) as session:
            first = {**session.parameters()}, {**session.state()}
            losses = train(session, 0, STEPS)
            finished = everything_in(session)
            session.parameters().update(first[0])
            session.state().update(first[1])
            assert train(session, 0, HALF) == losses[:HALF], name
            session.save_checkpoint(resuming.checkpoint_of(folder, name))
        found[name] = first, losses, finished
    return found


@pytest.fixture(scope="module")
def resumed(trained, folder):
    """What another process, with more threads, made of the checkpoints."""
    command = [sys.executable, "-m", "tests.session.resuming", str(folder), "2"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return {name: load_checkpoint(resuming.finished_of(folder, name)) for name in trained}


@pytest.mark.parametrize("name", CASES)
def test_a_new_process_goes_on_bit_for_bit(name, trained, resumed):
    _, losses, finished = trained[name]
    found = resumed[name]
    assert ast.literal_eval(found.metadata["losses"]) == losses[HALF:]
    values = {**found.parameters, **found.states}
    assert sorted(values) == sorted(finished)
    for leaf, value in values.items():
        assert value.tobytes() == finished[leaf], leaf


@pytest.mark.parametrize("name", CASES)
def test_training_is_that_of_the_reference(name, trained, folder):
    _, losses, finished = trained[name]
    with opened(name, folder, device="reference", level=0) as session:
        wanted = train(session, 0, STEPS)
        half = name.startswith("16 bits")
        tolerance = {"rtol": 0.05, "atol": 0.02} if half else PRECISE
        np.testing.assert_allclose(losses, wanted, **tolerance)
        for leaf, value in {**session.parameters(), **session.state()}.items():
            found = np.frombuffer(finished[leaf], value.dtype).reshape(value.shape)
            wide = [np.asarray(array, np.float64) for array in (found, value)]
            np.testing.assert_allclose(*wide, **tolerance, err_msg=leaf)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_case_trains_what_is_not_frozen(name, trained):
    (parameters, _), _, finished = trained[name]
    frozen = name.endswith("everything")
    for leaf, value in parameters.items():
        assert (value.tobytes() == finished[leaf]) == (frozen and leaf == FROZEN), leaf
    assert not frozen or not any(leaf.startswith(f"{FROZEN}/") for leaf in finished)
    made = STEPS // CASES[name].accumulate
    assert np.frombuffer(finished["optimizer/step"], np.int32) == made


def test_the_optimizer_may_be_set_after_loading(trained, folder):
    _, losses, finished = trained["adam"]
    with darner.build_session(resuming.classifier(), threads=1, cache=folder / "code") as session:
        session.load_checkpoint(resuming.checkpoint_of(folder, "adam"))
        session.set_adam(0.01, 0.9, 0.999, 1e-8)
        assert train(session, HALF, STEPS) == losses[HALF:]
        assert everything_in(session) == finished


def test_a_changed_rate_is_part_of_a_checkpoint(trained, folder):
    path = folder / "rate.safetensors"
    with opened("adam", folder, threads=1) as session:
        train(session, 0, HALF)
        session.set_learning_rate(0.0025)
        session.save_checkpoint(path)
        losses = train(session, HALF, STEPS)
        finished = everything_in(session)
    assert losses != trained["adam"][1][HALF:]
    with opened("adam", folder, threads=1) as session:
        session.load_checkpoint(path)
        assert session.optimizer.learning_rate == pytest.approx(0.0025)
        assert train(session, HALF, STEPS) == losses
        assert everything_in(session) == finished


def test_a_checkpoint_of_another_optimizer_is_refused_and_changes_nothing(trained, folder):
    with opened("sgd momentum", folder, device="reference", level=0) as session:
        before = everything_in(session)
        with pytest.raises(darner.FormatError) as raised:
            session.load_checkpoint(resuming.checkpoint_of(folder, "adam"))
        assert "it was saved with Adam" in str(raised.value)
        assert "state 'encoder.weight/momentum' is missing" in str(raised.value)
        assert "state 'encoder.weight/mean' is unexpected" in str(raised.value)
        assert everything_in(session) == before


def test_steps_between_updates_are_resumed_within_their_sum(trained, folder):
    """The checkpoint at five steps stands two runs after an update of three: the sum is in it."""
    found = load_checkpoint(resuming.checkpoint_of(folder, "adamw with everything"))
    assert int(found.states["optimizer/accumulated"]) == HALF % 3 == 2
    assert int(found.states["optimizer/step"]) == 1
    assert np.abs(found.states["head.weight/gradient_sum"]).max() > 0


def test_numbers_of_a_rule_are_resumed_and_change_without_a_new_program(tmp_path):
    path = tmp_path / "custom.safetensors"
    with opened("custom rule", tmp_path, device="reference", level=0) as session:
        train(session, 0, 2)
        program = session._runner.last.program
        session.set_optimizer(replace(session.optimizer, friction=0.75))
        session.save_checkpoint(path)
        losses = train(session, 2, 4)
        assert session._runner.last.program is program
    with opened("custom rule", tmp_path, device="reference", level=0) as session:
        metadata = session.load_checkpoint(path)
        assert metadata["session.optimizer"] == "heavy_ball"
        assert session.optimizer.friction == 0.75
        assert train(session, 2, 4) == losses


def test_another_function_is_another_schedule():
    """Two that print the same: a session that took one for the other would go on at the old rate."""
    rising, falling = (
        optim.from_function(lambda step, by=by: 0.5 + by * step) for by in (0.1, -0.05)
    )
    start = optim.SGD(0.1, schedule=rising)
    losses = []
    for optimizer in (start, replace(start, schedule=falling)):
        graph = resuming.classifier()
        with darner.build(graph, device="reference", level=0, optimizer=start) as session:
            session.initialize(resuming.start)
            session.set_optimizer(optimizer)
            losses.append(train(session, 0, 4))
    assert losses[0][:1] == losses[1][:1]
    assert losses[0][2] != losses[1][2]
