"""Training that is killed again and again, and goes on each time: every bit as if it had never been killed."""

import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest

import darner
from darner import optim, train
from darner.session.checkpoint import load_checkpoint
from darner.train.checkpoints import BEST, CURVE, checkpoint_name
from darner.train.trainer import LOG
from tests.faults.killing import killed_or_done
from tests.train.examples import Shuffled, classifier, examples, listed

pytestmark = pytest.mark.skipif(os.name != "posix", reason="forks")

STEPS, MOST = 14, 6
LASTING = (".safetensors", ".svg", ".jsonl")
"""How the names of files end that are whole."""
OPTIMIZERS = {
    "adamw": optim.AdamW(0.02, clip_norm=0.5, schedule=optim.warmup(3) >> optim.cosine(9)),
    "accumulated": optim.SGD(0.1, momentum=0.9, accumulate=3),
}
# One thread: a child has none of its parent's others.
SESSION = {"threads": 1, "level": 1, "seed": 3, "progress": False}


class Telling(train.Callback):
    """Tells of every step, before it is saved."""

    def __init__(self, tell):
        self.tell = tell

    def on_step(self, metrics):
        self.tell()


def started(session, validating, folder, tell):
    """A trainer on sessions that are built already; all that it does besides is part of what a kill can meet."""
    return train.Trainer(
        session,
        Shuffled(examples(4 * 5), seed=8),
        steps=STEPS,
        validation=listed(2, 5),
        validation_graph=validating,
        validate_every=4,
        metrics=["accuracy"],
        callbacks=[train.LossHistory(), Telling(tell)],
        early_stop=train.EarlyStop(40),
        checkpoint=folder,
        checkpoint_every=1,
        keep=2,
        log=True,
        log_interval=2,
        resume=True,
        progress=False,
    )


def told(path):
    """What a checkpoint holds: its tensors bit for bit, and how training goes on, without how long it took."""
    found = load_checkpoint(path)
    state = json.loads(found.metadata["trainer"])
    del state["progress"]["seconds"]
    tables = {**found.parameters, **{f"state:{name}": v for name, v in found.states.items()}}
    return {name: value.tobytes() for name, value in tables.items()}, state


def logged(folder):
    """The records of the log, without what depends on the clock."""
    records = [json.loads(line) for line in Path(folder, LOG).read_text().splitlines()]
    clocks = ("seconds", "samples_per_second")
    return [{k: v for k, v in record.items() if k not in clocks} for record in records]


@pytest.fixture(params=sorted(OPTIMIZERS))
def sessions(request):
    """A session that learns and one that validates, compiled before anything is forked."""
    learns = darner.build_session(classifier(), optimizer=OPTIMIZERS[request.param], **SESSION)
    plain = classifier(dropout=0)
    validates = darner.build_inference_session(plain, share=learns, **SESSION)
    with learns, validates:
        learns.compile()
        validates.compile()
        yield learns, validates


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_training_that_is_killed_and_resumed_is_the_same_bit_for_bit(sessions, tmp_path, kills):
    learns, validates = sessions
    fresh = tmp_path / "fresh.safetensors"
    learns.save_checkpoint(fresh)
    wanted, whole = {}, tmp_path / "whole"

    def remember():
        """What is saved after the step before: the newest checkpoint, which the next step leaves as it is."""
        if newest := train.latest(whole):
            wanted[newest.name] = told(newest)

    with started(learns, validates, whole, remember) as made:
        history = made.train()
    remember()
    assert history.steps == len(wanted) == STEPS
    learns.load_checkpoint(fresh)  # the children begin where this one began

    random = np.random.default_rng(kills)
    done = resumed = torn = 0
    folder = tmp_path / "run0"
    while done < kills:

        def work(tell, folder=folder):
            warnings.simplefilter("error")
            with started(learns, validates, folder, tell) as made:
                made.train()

        is_over = killed_or_done(work, random, MOST)
        done += not is_over
        newest = train.latest(folder)
        if newest is not None:
            tensors, state = told(newest)
            assert tensors == wanted[newest.name][0]
            # The last one is saved again when it is validated, which a kill can come before.
            if is_over or newest.name != checkpoint_name(STEPS):
                assert state == wanted[newest.name][1]
            resumed += not is_over
            torn += any(not path.name.endswith(LASTING) for path in folder.iterdir())
        if is_over:
            assert told(folder / BEST) == told(whole / BEST)
            assert logged(folder) == logged(whole)
            assert {path.name for path in folder.iterdir()} == {p.name for p in whole.iterdir()}
            assert (folder / CURVE).read_bytes() == (whole / CURVE).read_bytes()
            folder = tmp_path / f"run{done}"
    assert resumed > kills // 2  # a test of the test: most had something to go on from,
    assert torn > kills // 50  # and some died in the midst of a file
