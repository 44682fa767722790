"""Batches ahead of time: the same ones, at the same places, and nothing left behind."""

import gc
import os
import subprocess
import sys
import threading
import weakref
from itertools import islice

import numpy as np
import pytest

from darner import ArgumentError, RunError, data


class Watched(data.Epochs):
    """Tells which batches were made, lets each be made when it may, and fails where asked."""

    def __init__(self, count=6, fails_at=None):
        super().__init__()
        self.count, self.fails_at = count, fails_at
        self.made = []
        self.made_some = threading.Condition()
        self.allowed = None

    def __len__(self):
        return self.count

    def batch_at(self, epoch, position):
        if self.allowed is not None:
            self.allowed.acquire()
        if position == self.fails_at:
            raise ZeroDivisionError(f"batch {position}")
        with self.made_some:
            self.made.append(position)
            self.made_some.notify_all()
        return {"x": np.array([epoch, position])}

    def wait_for(self, count):
        with self.made_some:
            assert self.made_some.wait_for(lambda: len(self.made) >= count, timeout=60)


def positions(batches):
    return [int(batch["x"][1]) for batch in batches]


def threads():
    return [each for each in threading.enumerate() if each.name == "darner prefetch"]


@pytest.fixture(autouse=True)
def _none_left():
    yield
    gc.collect()
    assert threads() == []


@pytest.mark.parametrize("depth", [1, 2, 7])
def test_batches_are_those_of_the_source(depth):
    source = data.prefetch(Watched(), depth)
    for epoch in range(3):
        assert [batch["x"].tolist() for batch in source] == [[epoch, i] for i in range(6)]
        assert threads() == []
    assert len(source) == 6


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_are_made_ahead(depth):
    source = Watched(10)
    batches = iter(data.prefetch(source, depth))
    for taken in range(1, 6):
        next(batches)
        # As far as it may go it goes; whether it goes further shows when all is over.
        source.wait_for(taken + depth)
        assert len(source.made) == taken + depth
    batches.close()
    assert len(source.made) == 5 + depth


def test_the_place_is_that_of_the_reader():
    source = Watched()
    fetcher = data.prefetch(source, depth=3)
    assert fetcher.state()["position"] == 0
    batches = iter(fetcher)
    next(batches)
    source.wait_for(4)  # the source is three ahead
    assert fetcher.state()["position"] == 1
    next(batches)
    assert fetcher.state()["position"] == 2
    # Left in the middle, both are where the reader is.
    batches.close()
    assert source.state() == fetcher.state() == {"epoch": 0, "position": 2, "seed": 0, "batches": 6}
    assert positions(fetcher) == [2, 3, 4, 5]
    assert fetcher.state() == {"epoch": 1, "position": 0, "seed": 0, "batches": 6}


def test_leaving_a_loop_ends_the_thread_at_once():
    fetcher = data.prefetch(Watched())
    for _ in fetcher:
        assert len(threads()) == 1
        break
    assert threads() == []
    assert positions(fetcher) == [1, 2, 3, 4, 5]


def test_an_error_comes_where_its_batch_would_have():
    source = Watched(fails_at=3)
    fetcher, found = data.prefetch(source, depth=2), []
    with pytest.raises(ZeroDivisionError, match="batch 3") as caught:
        found.extend(int(batch["x"][1]) for batch in fetcher)
    assert found == [0, 1, 2]
    # The error still says where in the source it arose.
    assert caught.traceback[-1].name == "batch_at"
    assert fetcher.state()["position"] == 3
    assert threads() == []
    source.fails_at = None
    assert positions(fetcher) == [3, 4, 5]


def test_restoring_and_closing_end_an_iteration():
    fetcher = data.prefetch(Watched())
    start = fetcher.state()
    for end, follows in (
        (fetcher.close, [1, 2, 3, 4, 5]),
        (lambda: fetcher.restore(start), [0, 1, 2, 3, 4, 5]),
        (lambda: next(iter(fetcher)), [2, 3, 4, 5]),
    ):
        batches = iter(fetcher)
        next(batches)
        end()
        assert threads() == []
        with pytest.raises(RunError, match="closed, restored or iterated anew"):
            next(batches)
        assert positions(fetcher) == follows


def test_closing_while_a_batch_is_made_waits_for_no_more_than_it():
    source = Watched()
    source.allowed = threading.Semaphore(2)
    fetcher = data.prefetch(source, depth=5)
    batches = iter(fetcher)
    next(batches)
    source.wait_for(2)
    # The thread is in batch 2, which may end only after close() has begun.
    closing = threading.Thread(target=fetcher.close)
    closing.start()
    source.allowed.release()
    closing.join(timeout=60)
    assert not closing.is_alive()
    assert source.made in ([0, 1], [0, 1, 2])
    assert source.state()["position"] == 1


def test_a_context_closes():
    with data.prefetch(Watched()) as fetcher:
        batches = iter(fetcher)
        next(batches)
        assert len(threads()) == 1
    assert threads() == []


def test_what_nobody_holds_ends():
    fetcher = data.prefetch(Watched())
    batches = iter(fetcher)
    next(batches)
    gone = weakref.ref(fetcher)
    del fetcher, batches
    gc.collect()
    assert gone() is None
    assert threads() == []


def test_a_source_of_lazy_epochs_is_at_the_next_one_afterwards():
    """A source of the user's own may move to the next epoch only when its end is reached."""

    class Lazy:
        epoch = position = 0

        def __len__(self):
            return 2

        def __iter__(self):
            while self.position < 2:
                self.position += 1
                yield {"x": np.array([self.epoch, self.position - 1])}
            self.epoch, self.position = self.epoch + 1, 0

        def state(self):
            return {"epoch": self.epoch, "position": self.position}

        def restore(self, state):
            self.epoch, self.position = state["epoch"], state["position"]

    fetcher = data.prefetch(Lazy())
    assert [batch["x"].tolist() for batch in (*fetcher, *fetcher)] == [
        [0, 0],
        [0, 1],
        [1, 0],
        [1, 1],
    ]


def test_prefetchers_of_prefetchers():
    fetcher = data.prefetch(data.prefetch(Watched(), 2), 3)
    assert positions(islice(fetcher, 2)) == [0, 1]
    assert fetcher.state()["position"] == 2
    assert positions(fetcher) == [2, 3, 4, 5]


@pytest.mark.parametrize("depth", [0, -1, 1.5])
def test_depths_are_positive(depth):
    with pytest.raises(ArgumentError, match="depth is a whole number, at least 1"):
        data.prefetch(Watched(), depth)


def ran(program):
    process = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.split()


HEAD = """
import os
import numpy as np
from darner import data
batches = iter(data.prefetch(data.Arrays({"x": np.arange(6)}, batch=1, shuffle=False), depth=2))
print(next(batches)["x"][0], flush=True)
"""


def test_the_interpreter_ends_with_a_thread_that_waits():
    assert ran(HEAD) == ["0"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_goes_on_from_the_same_place():
    forked = """
child = os.fork()
rest = [int(batch["x"][0]) for batch in batches]
if child:
    assert os.waitpid(child, 0)[1] == 0
print(*rest, flush=True)
os._exit(0) if not child else None
"""
    assert ran(HEAD + forked) == ["0", *"12345" * 2]
