"""Interrupts, other threads, forks, and files that go away: what was going on ends as it should, and nothing is half done."""

import os
import signal
import threading
import warnings

import numpy as np

import darner
from darner import ArgumentError, DarnerError, RunError, optim, train
from darner.io.atomic import FileError
from darner.session import ClosedError
from tests.hostile.rows import Table
from tests.hostile.rows_session import out_of_range, with_input
from tests.hostile.subjects import GOOD, batches, network

ROWS = []


class Failed(DarnerError):
    """What happened elsewhere: in a thread or in a child."""


def table(subject):
    """A table of rows of one subject, all of which are in ``ROWS``."""

    def bad(name, action, error, phrase):
        rows = Table(subject)
        rows(name, action, error, phrase)
        ROWS.extend(rows)

    return bad


class Interrupting:
    """An array that is interrupted while it is read."""

    def __init__(self, value):
        self.value = value

    def __array__(self, *arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return self.value


class Unreliable(dict):
    """Values of which one cannot be had."""

    def items(self):
        yield from list(super().items())[:1]
        raise OSError("the disk is gone")


def in_thread(action):
    """Run an action in another thread, and raise what it raises."""
    found = []

    def run():
        try:
            action()
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    if found:
        raise found[0]


def in_many_threads(action, count=4):
    """Run an action in several threads at once; all must fail alike, and the first error is raised."""
    found = []
    gate = threading.Barrier(count)

    def run():
        gate.wait()
        try:
            action()
        except BaseException as error:
            found.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == count
    assert len({(type(error), str(error)) for error in found}) == 1
    raise found[0]


def in_child(action):
    """Run an action in a forked child, and raise the class and text of what it raised there."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have threads
        child = os.fork()
    if child == 0:
        text = "nothing was raised"
        try:
            signal.alarm(60)
            action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, text.encode()[:4000])
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        text = file.read().decode()
    os.waitpid(child, 0)
    raise Failed(text)


def interrupted_training(m, at):
    """Training that is interrupted in the middle; its history is whole, and its session stands after whole steps."""
    seen = []

    class Source:
        def __iter__(self):
            for number, batch in enumerate(batches(5)):
                if number == at:
                    signal.raise_signal(signal.SIGINT)
                seen.append(number)
                yield batch

    options = {"optimizer": optim.SGD(0.1), "epochs": 1, "device": "reference", "progress": False}
    with train.Trainer(network(), Source(), **options) as made:
        try:
            made.train()
        finally:
            assert int(made.session.state()["count"]) == made.history.steps == len(seen)


def closed_meanwhile():
    """A session that is closed by another thread while it runs."""
    made = darner.build(network(), device="reference", progress=False, optimizer=optim.SGD(0.1))
    for name, value in GOOD.items():
        made.set_input(name, value)
    made.step()
    closer = threading.Thread(target=made.close)
    closer.start()
    try:
        while True:
            made.step()
    finally:
        closer.join()


def gone(m):
    """Save where the folder is taken away."""
    folder = m.folder / "gone"
    folder.mkdir()
    folder.rmdir()
    m.s.save_checkpoint(folder / "x.safetensors")


def failing_callback(m):
    """Training with a callback that raises an error of its own."""

    def callback(metrics):
        raise ZeroDivisionError("of the user's own")

    options = {"optimizer": optim.SGD(0.1), "steps": 3, "device": "reference", "progress": False}
    with train.Trainer(network(), batches(), callbacks=[callback], **options) as made:
        made.train()


# fmt: off
for subject in ("trained_on_cpu", "trained_on_reference", "inferring"):
    bad = table(subject)
    bad("interrupted while an input is read", lambda m: m.s.set_input("x", Interrupting(GOOD["x"])), KeyboardInterrupt, "")
    bad("interrupted while a parameter is read", lambda m: m.s.set_parameter("w", Interrupting(np.ones((6, 5), np.float32))), KeyboardInterrupt, "")
    bad("interrupted at the second of two parameters", lambda m: m.s.parameters().update({"v": np.zeros((5, 3), np.float32), "w": Interrupting(np.ones((6, 5), np.float32))}), KeyboardInterrupt, "")
    bad("interrupted while a run's inputs are read", lambda m: with_input(m.s, x=Interrupting(GOOD["x"])), KeyboardInterrupt, "")
    bad("inputs that fail halfway", lambda m: m.s.run(Unreliable(GOOD)), OSError, "disk is gone")
    bad("bad label in another thread", lambda m: in_thread(lambda: with_input(m.s, labels=out_of_range(4))), RunError, "4")
    bad("bad index in many threads at once", lambda m: in_many_threads(lambda: with_input(m.s, ids=out_of_range(50))), RunError, "50")
    bad("wrong name in many threads at once", lambda m: in_many_threads(lambda: m.s.set_input("z", 1)), DarnerError, "'z'")
    bad("bad label in a child", lambda m: in_child(lambda: with_input(m.s, labels=out_of_range(4))), Failed, "RunError")
    bad("saved where the folder is gone", gone, FileError, "No such file")
    bad("shared with itself, closed", lambda m: shared_with_closed(m), ArgumentError, "open")

bad = table("closed")
bad("used in another thread after the end", lambda m: in_thread(m.s.step), ClosedError, "closed")
bad("used in many threads after the end", lambda m: in_many_threads(m.s.step), ClosedError, "closed")
bad("used in a child after the end", lambda m: in_child(m.s.step), Failed, "ClosedError")
bad("closed by another thread meanwhile", lambda m: closed_meanwhile(), ClosedError, "closed")

bad = table("trainer")
bad("interrupted before the first batch", lambda m: interrupted_training(m, 0), train.TrainingInterrupted, "interrupted")
bad("interrupted in the middle", lambda m: interrupted_training(m, 2), train.TrainingInterrupted, "step 3")
bad("interrupted at the last batch", lambda m: interrupted_training(m, 4), train.TrainingInterrupted, "step 5")
bad("callback that fails", failing_callback, ZeroDivisionError, "user's own")
# fmt: on


def shared_with_closed(m):
    """Share with a session that another thread has closed."""
    other = darner.build(network(), device=m.s.device, mode="infer", progress=False)
    in_thread(other.close)
    m.s.share_parameters(other)
