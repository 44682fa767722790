"""Sessions used in any order, rightly and wrongly, beside twins that only see what was right.

Hypothesis makes sequences of calls. Every call that succeeds is also made to a twin, a session that was built in the same way;
a call that fails is not. After each call both must hold the same, bit for bit: parameters, moments, states, counters, inputs.
"""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import darner
from darner import Graph, optim
from tests.session import opening

ROWS, WIDTH, CLASSES, WORDS = 3, 4, 3, 5
OPTIMIZERS = {
    "none": None,
    "sgd": optim.SGD(0.1),
    "momentum": optim.SGD(0.05, momentum=0.9, nesterov=True),
    "adamw": optim.AdamW(0.02, clip_norm=1.0, schedule=optim.warmup(3)),
    "accumulated": optim.Adam(0.02, accumulate=3),
    "lion": optim.Lion(0.01, multipliers={"table": 0.5}),
}
CHOICES = [("cpu", 1), ("cpu", 2), ("reference", 1)]


def network() -> Graph:
    """A classifier that looks rows up, solves a small system, and counts its runs: it can fail in three ways."""
    g = Graph("machine")
    x, labels = g.input("x", (ROWS, WIDTH)), g.input("labels", (ROWS,), "i32")
    ids, system = g.input("ids", (ROWS,), "i32"), g.input("system", (2, 2))
    rows = g.gather(g.parameter("table", (WORDS, WIDTH), init="normal(0.5)"), ids)
    logits = (x + rows) @ g.parameter("w", (WIDTH, CLASSES), init="normal(0.5)")
    solved = g.dense_solve(system, g.parameter("right", (2,), init="ones"))
    runs = g.state("runs", (), "i32")
    g.set_update(runs, runs + 1)
    seen = g.state("seen", (WIDTH,))
    g.set_update(seen, 0.5 * seen + x.mean(0))
    loss = g.cross_entropy_loss(logits, labels) + solved.square().mean()
    g.relabel(loss, "loss")
    g.set_outputs([loss, logits])
    return g


def other_network() -> Graph:
    """Of another shape, so that its checkpoints do not fit."""
    g = Graph("other")
    g.set_outputs([g.parameter("w", (WIDTH, CLASSES + 1), init="ones").sum()])
    return g


SEEDS = st.integers(0, 9)


def values(seed):
    """Good inputs."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(ROWS, WIDTH)).astype(np.float32),
        "labels": rng.integers(0, CLASSES, ROWS).astype(np.int32),
        "ids": rng.integers(0, WORDS, ROWS).astype(np.int32),
        "system": (np.eye(2) * 2 + rng.normal(size=(2, 2)) * 0.3).astype(np.float32),
    }


def bad_values(kind):
    """One bad input, and the phrase that the error has."""
    return {
        "label above": {"labels": np.array([0, CLASSES, 1], np.int32)},
        "label below": {"labels": np.array([0, 1, -1], np.int32)},
        "index above": {"ids": np.array([WORDS, 0, 1], np.int32)},
        "index far below": {"ids": np.array([0, -(2**31), 1], np.int32)},
        "singular": {"system": np.zeros((2, 2), np.float32)},
        "shape": {"x": np.ones((ROWS + 1, WIDTH), np.float32)},
        "type": {"labels": np.ones(ROWS, np.float32)},
        "name": {"y": np.ones(3, np.float32)},
        "text": {"x": "hello"},
    }[kind]


BAD = (
    *("label above", "label below", "index above", "index far below", "singular"),
    *("shape", "type", "name", "text"),
)
STAGED = ("shape", "type", "name", "text")
"""What is refused when an input is set; the others only show in a step."""


def held(session):
    """All that a session holds, bit for bit."""
    tables = {**session.parameters(), **session.state()}
    found = {name: (value.shape, value.tobytes()) for name, value in tables.items()}
    staged = {name: value.tobytes() for name, value in session._runner.staged.items()}
    return found, staged, repr(session.optimizer)


class Sessions(RuleBasedStateMachine):
    """A session and its twin."""

    @initialize(choice=st.sampled_from(CHOICES), optimizer=st.sampled_from(sorted(OPTIMIZERS)))
    def build(self, choice, optimizer):
        self.folder = tempfile.TemporaryDirectory()
        self.options = {"device": choice[0], "threads": choice[1], "level": 1, "progress": False}
        self.options |= {"optimizer": OPTIMIZERS[optimizer], **opening.CODE}
        self.session, self.twin = self.made(), self.made()
        self.extra = []
        self.saved = []

    def made(self):
        return darner.build_session(network(), **self.options)

    def both(self, action):
        """Do something right to the session, and to its twin."""
        return action(self.session), action(self.twin)

    def refused(self, action, error=darner.DarnerError):
        """Do something wrong to the session alone."""
        with pytest.raises(error):
            action(self.session)

    # ---- what is right

    @rule(seed=SEEDS)
    def set_inputs(self, seed):
        for name, value in values(seed).items():
            self.both(lambda s, n=name, v=value: s.set_input(n, v))

    @rule(seed=SEEDS)
    def run(self, seed):
        one, other = self.both(lambda s: s.run(values(seed)))
        assert {k: v.tobytes() for k, v in one.items()} == {
            k: v.tobytes() for k, v in other.items()
        }

    @precondition(lambda self: len(self.session._runner.staged) == 4)
    @rule()
    def step(self):
        self.both(lambda s: s.step())
        one, other = self.both(lambda s: s.read_loss())
        assert one == other

    @rule(seed=SEEDS, name=st.sampled_from(["w", "table", "right"]))
    def set_parameter(self, seed, name):
        shape = self.session.parameters()[name].shape
        value = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        self.both(lambda s: s.set_parameter(name, value))

    @rule(number=st.integers(0, 5))
    def set_state(self, number):
        self.both(lambda s: s.state().update(runs=np.int32(number)))

    @precondition(lambda self: self.session.optimizer is not None)
    @rule(rate=st.sampled_from([0.0, 0.01, 0.3]))
    def set_rate(self, rate):
        self.both(lambda s: s.set_learning_rate(rate))

    @rule(seed=SEEDS)
    def initialise(self, seed):
        self.both(lambda s: s.initialize("normal(0.3)", seed=seed))

    @rule()
    def save(self):
        path = Path(self.folder.name, f"{len(self.saved)}.safetensors")
        self.session.save_checkpoint(path)
        twin = Path(self.folder.name, "twin.safetensors")
        self.twin.save_checkpoint(twin)
        assert twin.read_bytes() == path.read_bytes()
        self.saved.append(path)

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load(self, data):
        path = data.draw(st.sampled_from(self.saved))
        self.both(lambda s: s.load_checkpoint(path))

    @precondition(lambda self: not self.extra)
    @rule()
    def share(self):
        """Another session uses the parameters of this one: it reads and writes the same memory."""
        pair = []
        for one in (self.session, self.twin):
            made = self.made()
            made.share_parameters(one)
            pair.append(made)
        self.extra = pair

    @precondition(lambda self: self.extra)
    @rule(seed=SEEDS)
    def run_the_other(self, seed):
        for made in self.extra:
            made.run(values(seed))
        for one, made in zip((self.session, self.twin), self.extra, strict=True):
            shared = {**made.parameters(), **made.state()}
            own = {**one.parameters(), **one.state()}
            assert {k: v.tobytes() for k, v in shared.items()} == {
                k: v.tobytes() for k, v in own.items()
            }

    @precondition(lambda self: self.extra)
    @rule(kind=st.sampled_from(BAD))
    def fail_in_the_other(self, kind):
        with pytest.raises(darner.DarnerError):
            self.extra[0].run({**values(0), **bad_values(kind)})

    @precondition(lambda self: self.extra)
    @rule()
    def close_the_other(self):
        for made in self.extra:
            made.close()
        with pytest.raises(darner.DarnerError, match="closed"):
            self.extra[0].step()
        self.extra = []

    @rule()
    def go_on_in_a_new_one(self):
        """Save, close, and go on in a session that was built anew: nothing is lost but the inputs."""
        path = Path(self.folder.name, "moved.safetensors")
        fresh = []
        for one in (self.session, self.twin):
            one.save_checkpoint(path)
            made = self.made()
            made.load_checkpoint(path)
            one.close()
            fresh.append(made)
        gone = self.session
        self.session, self.twin = fresh
        with pytest.raises(darner.DarnerError, match="closed"):
            gone.run(values(0))
        for made in self.extra:
            made.close()
        self.extra = []

    # ---- what is wrong

    @rule(kind=st.sampled_from(BAD), seed=SEEDS)
    def run_wrongly(self, kind, seed):
        self.refused(lambda s: s.run({**values(seed), **bad_values(kind)}))

    @rule(kind=st.sampled_from(STAGED))
    def set_wrongly(self, kind):
        ((name, value),) = bad_values(kind).items()
        self.refused(lambda s: s.set_input(name, value))

    @rule(kind=st.sampled_from([kind for kind in BAD if kind not in STAGED]))
    def step_wrongly(self, kind):
        """Inputs that can be set, and with which a step fails; then the good ones again."""
        for name, value in values(1).items():
            self.both(lambda s, n=name, v=value: s.set_input(n, v))
        ((name, value),) = bad_values(kind).items()
        self.session.set_input(name, value)
        self.refused(lambda s: s.step())
        self.session.set_input(name, values(1)[name])

    @precondition(lambda self: not self.session._runner.staged)
    @rule()
    def step_without_inputs(self):
        self.refused(lambda s: s.step())

    @rule()
    def set_parameters_wrongly(self):
        some = {"w": np.zeros((WIDTH, CLASSES), np.float32), "table": np.zeros(7, np.float32)}
        self.refused(lambda s: s.parameters().update(some))
        self.refused(lambda s: s.set_parameter("nobody", 1))
        self.refused(lambda s: s.state().update(runs=np.float32(1)))

    @rule(rate=st.sampled_from([-1.0, float("nan"), "fast", None]))
    def set_rate_wrongly(self, rate):
        self.refused(lambda s: s.set_learning_rate(rate))

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load_what_is_cut_or_flipped(self, data):
        content = self.saved[0].read_bytes()
        at = data.draw(st.integers(0, len(content) - 1), "at")
        flip = data.draw(st.booleans(), "flip")
        changed = bytearray(content)
        if flip:
            changed[at] ^= 1 << data.draw(st.integers(0, 7), "bit")
        else:
            del changed[at:]
        path = Path(self.folder.name, "damaged.safetensors")
        path.write_bytes(changed)
        self.refused(lambda s: s.load_checkpoint(path))

    @rule()
    def load_what_is_foreign(self):
        path = Path(self.folder.name, "foreign.safetensors")
        with darner.build_session(other_network(), device="reference", progress=False) as other:
            other.save_checkpoint(path)
        self.refused(lambda s: s.load_checkpoint(path))

    @rule()
    def save_where_nothing_can_be(self):
        self.refused(lambda s: s.save_checkpoint(Path(self.folder.name, "no", "x.safetensors")))

    # ---- what holds after each of them

    @invariant()
    def is_as_its_twin(self):
        assert held(self.session) == held(self.twin)

    def teardown(self):
        for one in (*self.extra, self.session, self.twin):
            one.close()
        self.folder.cleanup()


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large]


@pytest.mark.parametrize(
    "examples", [10, pytest.param(40, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_sessions_hold_what_the_calls_that_succeeded_made_of_them(examples):
    chosen = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=CHECKS
    )
    run_state_machine_as_test(Sessions, settings=chosen)
