"""Sessions that are made and dropped by the hundred: memory, threads and open files stay as they are."""

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from darner.backends.base.lowering import lower_for
from darner.backends.cpu.kernels import emit_module, functions_of
from darner.backends.cpu.runtime.jit import compile_module, host
from tests.leaks import models, process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20


def sampled(first: int, count: int, folder) -> list[dict[str, int]]:
    command = [sys.executable, "-W", "error", "-m", "tests.leaks.many_sessions"]
    done = subprocess.run(
        [*command, str(first), str(count), str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_two_hundred_sessions_leave_nothing(objects):
    """Training and inference, closed, dropped and in cycles, with one, two and three threads; two sessions a turn.

    Memory is that in use by the process after garbage is collected and free memory given back; the first 24 turns, two of
    each kind, fill caches of bounded size. A session that stayed would be 200 KB (its parameters, moments and arena; its
    code; its engine), a stack 8 MB of address space, so that one kind of turn out of twelve that leaks is seen.
    """
    before, after = sampled(24, 100, objects)
    assert after["workers"] == before["workers"] == 0
    assert after["threads"] == before["threads"]
    assert after["descriptors"] == before["descriptors"]
    assert after["resident"] - before["resident"] < 2 * MEGABYTE
    assert after["reserved"] - before["reserved"] < 32 * MEGABYTE


@pytest.mark.slow
def test_compiling_leaves_nothing():
    """What ``malloc`` has given out and not got back; passes that stayed would be 80 KB each time."""
    plan = lower_for("cpu", models.graph())
    text = str(emit_module(plan, functions_of(plan, host()), host()))

    def allocated_after(times):
        for _ in range(times):
            compile_module(text, passes=True)
        gc.collect()
        return process.allocated()

    before = allocated_after(5)
    assert allocated_after(25) - before < MEGABYTE // 2


@pytest.mark.parametrize("make", [models.training, models.inference])
def test_a_session_dies_with_its_last_reference_and_so_do_its_threads(make, objects):
    session = make(threads=3, cache=objects)
    session.run(models.values())
    program = weakref.ref(session._last.program)
    memory = [weakref.ref(array.base) for array in session._storage.values()]
    found = weakref.ref(session)
    assert len(process.workers()) >= 2
    mine = process.workers().keys()
    gc.disable()  # no cycle leads back to it: nothing waits for a collection
    try:
        del session
        assert found() is None
        assert program() is None
        assert [one() for one in memory] == [None] * len(memory)
        assert process.eventually(lambda: not mine & process.workers().keys())
    finally:
        gc.enable()


def test_a_session_in_a_cycle_is_collected(objects):
    session = models.training(threads=2, cache=objects)
    models.learned(session, 1)
    before = process.workers().keys()
    session.itself = session
    found = weakref.ref(session)
    del session
    gc.collect()
    assert found() is None
    assert process.eventually(lambda: len(process.workers()) < len(before))


def test_what_a_closed_session_gave_away_stays_valid(objects):
    session = models.inference(threads=2, cache=objects)
    view = session.run(models.values(), copy=False)["prediction"]
    wanted = view.copy()
    session.close()
    del session
    gc.collect()
    others = [models.inference(threads=2, cache=objects) for _ in range(3)]
    for other in others:
        other.run(models.values(1))
    assert (view == wanted).all()


def test_closing_frees_memory_threads_and_code_at_once(objects):
    session = models.training(threads=3, cache=objects)
    models.learned(session, 1)
    arena = weakref.ref(session._last.program.arena.base)
    before = process.workers().keys()
    session.close()
    session.close()
    assert arena() is None
    assert process.eventually(lambda: len(before - process.workers().keys()) == 2)
