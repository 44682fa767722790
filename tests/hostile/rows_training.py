"""Training that is set up wrongly, fed wrongly, or resumed from what is no checkpoint of it."""

import json
import tempfile
from pathlib import Path

import numpy as np

import darner
from darner import ArgumentError, DarnerError, FormatError, RunError, UnknownNameError, optim, train
from darner.io.atomic import FileError
from tests.hostile.rows import Table
from tests.hostile.rows_files import header
from tests.hostile.rows_session import out_of_range
from tests.hostile.subjects import GOOD, batches, network

bad = Table("trainer")
ROWS = bad


def new(given=None, **options):
    """A trainer with options, which is not run."""
    chosen = {"optimizer": optim.SGD(0.1), "steps": 2, "device": "reference", "progress": False}
    train.Trainer(network(), batches() if given is None else given, **{**chosen, **options}).close()


def trained(given, **options):
    """A trainer with options, run to its end."""
    chosen = {"optimizer": optim.SGD(0.1), "steps": 2, "device": "reference", "progress": False}
    with train.Trainer(network(), given, **{**chosen, **options}) as made:
        made.train()


def fed(**inputs):
    """Batches of which the second is bad."""
    return [dict(GOOD), {**GOOD, **inputs}]


def forged(change):
    """Resume from a copy of the newest checkpoint, with another state of training in it, signed as it should be."""

    def action(m):
        from darner.session import checkpoint

        newest = m.t.last_checkpoint
        found = checkpoint.load_checkpoint(newest)
        state = json.loads(found.metadata["trainer"])
        changed = change(state)
        text = changed if isinstance(changed, str) else json.dumps(changed)
        with tempfile.TemporaryDirectory() as place:
            path = Path(place, "forged.safetensors")
            other = {name: np.array(value) + 1 for name, value in found.parameters.items()}
            made = checkpoint.Checkpoint(other, found.states, {**found.metadata, "trainer": text})
            checkpoint.save_checkpoint(path, made)
            m.t.resume(path)

    return action


def setting(*path, to):
    """A change of one place of the state."""

    def change(state):
        place = state
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to
        return state

    return change


def less(*path):
    """A state from which something was taken."""

    def change(state):
        place = state
        for key in path[:-1]:
            place = place[key]
        del place[path[-1]]
        return state

    return change


def plain():
    """The network as it is validated: it counts nothing."""
    found = network()
    made = darner.Graph.from_text(
        "\n".join(
            line for line in found.to_text().split("\n") if not line.strip().startswith("update")
        )
    )
    made.relabel(made.outputs[1], "logits")
    return made


def matrix():
    """A graph without a loss."""
    g = darner.Graph("matrix")
    g.set_outputs([g.parameter("w", (2, 3)) * 2.0])
    return g


# fmt: off
# ---- options
bad("steps of none", lambda m: new(steps=0), ArgumentError, "steps")
bad("steps of a half", lambda m: new(steps=1.5), ArgumentError, "steps")
bad("steps of true", lambda m: new(steps=True), ArgumentError, "steps")
bad("epochs below 0", lambda m: new(epochs=-1), ArgumentError, "epochs")
bad("validation every 0 steps", lambda m: new(validate_every=0), ArgumentError, "validate_every")
bad("log every half step", lambda m: new(log_interval=0.5), ArgumentError, "log_interval")
bad("accumulating none", lambda m: new(accumulate=0), ArgumentError, "accumulate")
bad("accumulating text", lambda m: new(accumulate="3"), ArgumentError, "accumulate")
bad("no optimizer", lambda m: new(optimizer=None), ArgumentError, "optimizer")
bad("optimizer by its name", lambda m: new(optimizer="adam"), ArgumentError, "optimizer")
bad("metric that is none", lambda m: new(metrics=["acuracy"]), UnknownNameError, "accuracy")
bad("metric that is a number", lambda m: new(metrics=[3]), ArgumentError, "metric")
bad("metrics of a number", lambda m: new(metrics=3), ArgumentError, "metrics")
bad("callback that is a number", lambda m: new(callbacks=[3]), ArgumentError, "callback")
bad("callbacks that are a number", lambda m: new(callbacks=3), ArgumentError, "callbacks")
bad("checkpoints every 0 steps", lambda m: new(checkpoint="x", checkpoint_every=0), ArgumentError, "checkpoint_every")
bad("no checkpoint kept", lambda m: new(checkpoint="x", keep=0), ArgumentError, "keep")
bad("checkpoints in a number", lambda m: new(checkpoint=3), ArgumentError, "checkpoint")
bad("log without a folder", lambda m: new(log=True), ArgumentError, "checkpoint")
bad("early end without validation", lambda m: new(early_stop=train.EarlyStop(3)), ArgumentError, "validation")
bad("early end by a metric that is none", lambda m: new(validation=batches(), early_stop=train.EarlyStop(3, "speed")), UnknownNameError, "speed")
bad("patience of 0", lambda m: train.EarlyStop(0), ArgumentError, "patience")
bad("patience of a half", lambda m: train.EarlyStop(1.5), ArgumentError, "patience")
bad("progress of NaN", lambda m: train.EarlyStop(1, minimum=float("nan")), ArgumentError, "minimum")
bad("option that is none", lambda m: new(learning_rate=0.1), ArgumentError, "learning_rate")
bad("option for a session that is made", lambda m: train.Trainer(m.s, batches(), threads=1), ArgumentError, "threads")
bad("training of a text", lambda m: train.Trainer("network", batches(), optimizer=optim.SGD(0.1)), ArgumentError, "Graph")
bad("training without a loss", lambda m: train.Trainer(matrix(), [{}], optimizer=optim.SGD(0.1), device="reference"), (ArgumentError, ValueError), "loss")
bad("begun in a folder that another trainer uses", lambda m: new(checkpoint=m.run), train.FolderInUseError, "another trainer of this process")
# ---- batches
bad("batches of nothing", lambda m: new(given=[]), ArgumentError, "no batches")
bad("batches that are a number", lambda m: new(given=3), ArgumentError, "batches")
bad("batches that are one batch", lambda m: new(given=dict(GOOD)), ArgumentError, "list")
bad("batches that are text", lambda m: new(given="batches"), ArgumentError, "batches")
bad("batches that end", lambda m: trained((dict(GOOD) for _ in range(1)), steps=3), RunError, "exhausted")
bad("batches that cannot be resumed", lambda m: new(given=iter([dict(GOOD)]), checkpoint="x"), ArgumentError, "where they are")
bad("batch that is a number", lambda m: trained([3]), ArgumentError, "batch")
bad("batch of three arrays", lambda m: trained([(1, 2, 3)]), ArgumentError, "batch")
bad("batch without an input", lambda m: trained([{"x": GOOD["x"]}]), RunError, "labels")
bad("batch with a stranger", lambda m: trained(fed(y=1)), UnknownNameError, "'y'")
bad("batch with a wrong shape", lambda m: trained(fed(x=np.ones((9, 6), np.float32))), DarnerError, "'x'")
bad("batch with a label out of range", lambda m: trained(fed(labels=out_of_range(9))), RunError, "9")
bad("batch with NaN", lambda m: trained(fed(x=np.full((4, 6), np.nan, np.float32))), train.DivergedError, "nan")
bad("batch without bound", lambda m: trained(fed(x=np.full((4, 6), np.inf, np.float32))), train.DivergedError, "nan")
bad("validation of nothing", lambda m: new(validation=[]), ArgumentError, "no batches")
bad("validation by a graph of others", lambda m: trained(batches(), validation=[{"q": 1}], validation_graph=plain()), DarnerError, "'q'")
bad("metric that fails", lambda m: trained(batches(), validation=batches(), validation_graph=plain(), metrics={"mine": lambda outputs, batch: "good"}), DarnerError, "mine")
bad("metric of an output that is none", lambda m: trained(batches(), validation=batches(), validation_graph=plain(), metrics=[train.accuracy("nothing")]), DarnerError, "nothing")
# ---- of the trainer at hand
bad("train without an end", lambda m: m.t.train(epochs=0), ArgumentError, "epochs")
bad("train on nothing", lambda m: m.t.train([]), ArgumentError, "no batches")
bad("validated without validation", lambda m: m.t.validate(), ArgumentError, "validation")
bad("metric asked for that is none", lambda m: m.t.metric("speed"), UnknownNameError, "speed")
bad("saved in a folder that is not there", lambda m: m.t.save(m.folder / "no" / "x.safetensors"), FileError, "No such file")
bad("resumed from nothing", lambda m: m.t.resume(m.folder / "nothing"), ArgumentError, "no checkpoint")
bad("resumed from a text", lambda m: resumed_from(m, b"hello"), FormatError, "bad.safetensors")
bad("resumed from weights alone", lambda m: resumed_from(m, header({})), FormatError, "goes on")
bad("resumed from a checkpoint of a session", lambda m: resumed_from_session(m), FormatError, "goes on")
bad("resumed from a state of nothing", forged(lambda state: ""), FormatError, "trainer of")
bad("resumed from a state of a list", forged(lambda state: "[]"), FormatError, "trainer of")
bad("resumed from a state of a number", forged(lambda state: "3"), FormatError, "trainer of")
bad("resumed from a state that is deep", forged(lambda state: "[" * 9999), FormatError, "trainer of")
bad("resumed from a state without progress", forged(less("progress")), FormatError, "progress")
bad("resumed from a state without batches", forged(less("batches")), FormatError, "batches")
bad("resumed from a state without callbacks", forged(less("callbacks")), FormatError, "callbacks")
bad("resumed from a state without a history", forged(less("progress", "history")), FormatError, "history")
bad("resumed from a state with a word too many", forged(setting("progress", "colour", to=3)), FormatError, "colour")
bad("resumed from a step of text", forged(setting("progress", "step", to="2")), FormatError, "step")
bad("resumed from a step below 0", forged(setting("progress", "step", to=-2)), FormatError, "step")
bad("resumed from a step that is none", forged(setting("progress", "step", to=None)), FormatError, "step")
bad("resumed from losses that are no bytes", forged(setting("progress", "history", "losses", to="?")), FormatError, "losses")
bad("resumed from losses of half a number", forged(setting("progress", "history", "losses", to="AAAA")), FormatError, "losses")
bad("resumed from losses of a list", forged(setting("progress", "history", "losses", to=[1.0])), FormatError, "losses")
bad("resumed from epochs of a number", forged(setting("progress", "history", "epochs", to=3)), FormatError, "epochs")
bad("resumed from epochs of four", forged(setting("progress", "history", "epochs", to=[[1, 2, 3, 4]])), FormatError, "epochs")
bad("resumed from validations of text", forged(setting("progress", "history", "validations", to="x")), FormatError, "validations")
bad("resumed from a batch beyond the last", forged(setting("batches", "source", "position", to=99)), FormatError, "position")
bad("resumed from a batch below the first", forged(setting("batches", "source", "position", to=-1)), FormatError, "position")
bad("resumed from an epoch of text", forged(setting("batches", "epoch", to="x")), FormatError, "epoch")
bad("resumed from a source of nothing", forged(setting("batches", "source", to=None)), FormatError, "table")
bad("resumed from callbacks of a list", forged(setting("callbacks", to=[])), FormatError, "callbacks")
bad("resumed from a best of text", forged(setting("callbacks", "Checkpoints", to={"best": "x"})), FormatError, "best")
bad("resumed from a callback's state of a number", forged(setting("callbacks", "Checkpoints", to=3)), FormatError, "Checkpoints")
bad("resumed from the middle of another step", forged(lambda state: setting("progress", "accumulate", to=4)(setting("progress", "runs", to=2)(state))), ArgumentError, "accumulate=4")
# fmt: on


def resumed_from(m, content):
    """Resume from a file of these bytes."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "bad.safetensors")
        path.write_bytes(content)
        m.t.resume(path)


def resumed_from_session(m):
    """Resume from a checkpoint that fits, but is of no training; its parameters are others."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "session.safetensors")
        made = darner.build_session(
            network(), device="reference", seed=99, optimizer=optim.SGD(0.1, momentum=0.9)
        )
        with made:
            made.save_checkpoint(path)
        m.t.resume(path)
