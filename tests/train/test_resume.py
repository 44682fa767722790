"""Training that is killed or interrupted at any moment, and goes on: the same weights in the end, bit for bit."""

import signal
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import darner
from darner import train
from darner.train.checkpoints import BEST, checkpoint_name
from tests.train.examples import Shuffled, everything, examples, listed, trainer


class Killed(BaseException):
    """The process is gone: nothing is saved."""


class Moment:
    """Does something when the n-th batch is handed out."""

    def __init__(self, number, act):
        self.left, self.act = number, act

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            self.act()


def kill():
    raise Killed


def interrupt():
    signal.raise_signal(signal.SIGINT)


STEPS, BATCHES = 11, 7


def options(folder, accumulate, ahead, every):
    return {
        "steps": STEPS,
        "accumulate": accumulate,
        "validation": listed(2, 5),
        "metrics": ["accuracy"],
        "early_stop": train.EarlyStop(40),
        "callbacks": [train.LossHistory()],
        "checkpoint": folder,
        "checkpoint_every": every,
        "validate_every": 4,
        "ahead": ahead,
    }


def started(options, before=None, resume=False):
    ahead = options.pop("ahead")
    source = Shuffled(examples(4 * BATCHES), seed=8, ahead=ahead, before=before)
    return trainer(source, resume=resume, **options)


def finished(made):
    """What is the same whether or not training was interrupted."""
    history = made.train()
    (kept,) = [item for item in made.callbacks if isinstance(item, train.LossHistory)]
    return {
        **everything(made.session),
        "losses": list(history.losses),
        "kept": kept.losses,
        "epochs": history.epochs,
        "validations": history.validations,
        "amount": made.progress.amount,
        "best": made.checkpoints.best,
    }


WANTED = {}


def uninterrupted(accumulate):
    if accumulate not in WANTED:
        with (
            tempfile.TemporaryDirectory() as folder,
            started(options(folder, accumulate, 0, 3)) as made,
        ):
            WANTED[accumulate] = finished(made)
    return WANTED[accumulate]


@pytest.mark.slow
@settings(max_examples=25)
@given(st.data())
def test_going_on_is_the_same_as_never_having_stopped(data):
    accumulate = data.draw(st.sampled_from([1, 3]), "accumulate")
    ahead = data.draw(st.sampled_from([0, 2]), "batches made ahead")
    every = data.draw(st.integers(1, 5), "steps between checkpoints")
    wanted = uninterrupted(accumulate)
    with tempfile.TemporaryDirectory() as folder:
        ends = data.draw(
            st.lists(
                st.tuples(st.sampled_from([kill, interrupt]), st.integers(1, 12 * accumulate)),
                min_size=1,
                max_size=3,
            ),
            "ends",
        )
        for act, number in ends:
            with started(options(folder, accumulate, ahead, every), Moment(number, act), True) as m:
                try:
                    m.train()
                except (Killed, train.TrainingInterrupted):
                    continue
        with started(options(folder, accumulate, ahead, every), None, True) as made:
            assert finished(made) == wanted


def test_an_interruption_in_the_middle_of_a_step_goes_on_there(tmp_path):
    chosen = options(tmp_path, 3, 0, 2)
    with started(dict(chosen), Moment(3 * 4 + 2, interrupt)) as made:
        with pytest.raises(train.TrainingInterrupted) as stopped:
            made.train()
        assert (made.step, made.progress.runs) == (4, 2)
    assert stopped.value.checkpoint == tmp_path / checkpoint_name(4, 2)
    assert stopped.value.history.steps == 4
    assert "after step 4 and 2 of 3 runs and saved; to go on: Trainer(..., checkpoint=" in str(
        stopped.value
    )
    with started(dict(chosen), None, True) as made:
        assert (made.step, made.progress.runs, made.epoch) == (4, 2, 2)
        assert finished(made) == uninterrupted(3)


def test_a_hint_of_the_callers_own_says_how_to_go_on(tmp_path):
    chosen = {**options(tmp_path, 1, 0, 2), "resume_hint": "darner train --resume"}
    with (
        started(chosen, Moment(3, interrupt)) as made,
        pytest.raises(train.TrainingInterrupted, match=r"to go on: darner train --resume$"),
    ):
        made.train()


def test_without_a_folder_an_interruption_says_that_nothing_is_saved():
    with trainer(Shuffled(examples(20), before=Moment(3, interrupt)), steps=6) as made:
        with pytest.raises(train.TrainingInterrupted, match="nothing is saved without checkpoint="):
            made.train()
        assert made.step == 3
        assert made.train().steps == 6  # the same process goes on


def test_a_second_interrupt_ends_at_once():
    def twice():
        interrupt()
        interrupt()

    before = signal.getsignal(signal.SIGINT)
    with trainer(Shuffled(examples(20), before=Moment(3, twice)), steps=6) as made:
        with pytest.raises(KeyboardInterrupt) as stopped:
            made.train()
        assert not isinstance(stopped.value, train.TrainingInterrupted)
        assert made.step == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_the_newest_checkpoints_are_kept_and_the_best(tmp_path):
    worse = iter([3.0, 1.0, 2.0, 4.0, 5.0, 6.0])

    def falling(outputs, batch):
        return next(worse)

    with trainer(
        checkpoint=tmp_path,
        checkpoint_every=2,
        keep=2,
        steps=6,
        validation=listed(1, 5),
        validate_every=1,
        metrics={"loss": falling},
    ) as made:
        made.train()
        assert made.history.best().step == 2
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [BEST, "curve.svg", checkpoint_name(4), checkpoint_name(6)]
    with trainer(checkpoint=tmp_path, resume=tmp_path / BEST, steps=6) as made:
        assert (made.step, made.checkpoints.best) == (2, 1.0)


def test_a_checkpoint_is_saved_after_every_epoch_where_nothing_else_is_said(tmp_path):
    with trainer(listed(3), steps=7, checkpoint=tmp_path, keep=9) as made:
        made.train()
    assert [path.name for path in train.checkpoints(tmp_path)] == [
        checkpoint_name(3),
        checkpoint_name(6),
        checkpoint_name(7),
    ]


def test_a_folder_with_checkpoints_is_not_written_over(tmp_path):
    with trainer(checkpoint=tmp_path, steps=2) as made:
        made.train()
    with pytest.raises(
        darner.ArgumentError, match="has checkpoints of an earlier training; resume=True"
    ):
        trainer(checkpoint=tmp_path, steps=2)
    with trainer(checkpoint=tmp_path, steps=5, resume=True) as made:
        assert made.step == 2
        assert made.train().steps == 5


def test_resume_says_what_it_cannot_go_on_from(tmp_path):
    with trainer() as made:
        with pytest.raises(darner.ArgumentError, match="no checkpoint in"):
            made.resume(tmp_path)
        with pytest.raises(darner.ArgumentError, match="there is no folder of checkpoints"):
            made.resume()
        path = tmp_path / "plain.safetensors"
        made.session.save_checkpoint(path)
        with pytest.raises(darner.FormatError, match="does not say how training goes on"):
            made.resume(path)


def test_resume_true_starts_where_there_is_nothing_yet(tmp_path):
    with trainer(checkpoint=Path(tmp_path) / "new", steps=2, resume=True) as made:
        assert made.step == 0
        made.train()
    assert train.latest(tmp_path / "new").name == checkpoint_name(2)


def test_an_interrupted_folder_has_no_traces_of_half_a_file(tmp_path):
    with (
        started(options(tmp_path, 1, 2, 1), Moment(5, kill)) as made,
        pytest.raises(Killed),
    ):
        made.train()
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors"}
    assert train.latest(tmp_path).name == checkpoint_name(4)


def test_another_number_of_batches_a_step_begins_with_a_step(tmp_path):
    chosen = {**options(tmp_path, 3, 0, 2), "steps": 4}
    with started(dict(chosen)) as made:
        made.train()
    with started({**chosen, "accumulate": 4, "steps": 6}, None, True) as made:
        assert made.train().steps == 6
    with (
        started({**chosen, "accumulate": 4, "steps": 9}, Moment(3, interrupt), True) as made,
        pytest.raises(train.TrainingInterrupted),
    ):
        made.train()
    with pytest.raises(darner.ArgumentError, match="middle of a step of 4 batches, not of 3"):
        started({**chosen, "steps": 9}, None, True)


def test_threads_of_a_source_end_with_training():
    before = threading.active_count()
    with trainer(Shuffled(examples(40), ahead=2), steps=3) as made:
        made.train()
        assert threading.active_count() == before
        made._steps = 6
        again = list(made.train().losses)
    with trainer(Shuffled(examples(40)), steps=6) as made:
        assert list(made.train().losses) == again
