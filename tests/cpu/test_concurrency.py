"""Sessions in several threads and processes at once, across forks, and when they are interrupted."""

import os
import signal
import sys
import threading
import traceback
import warnings

import numpy as np
import pytest

import darner
from darner.backends.cpu.runtime import steps as steps_module
from darner.backends.cpu.runtime import threads as threads_module
from darner.backends.cpu.runtime.jit import compile_module, load_object
from tests.leaks import models, process

pytestmark = pytest.mark.skipif(os.name != "posix", reason="teams need POSIX threads")


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """A folder for compiled code, so that each model is compiled once."""
    return tmp_path_factory.mktemp("objects")


def at_once(works):
    """Run functions at the same time, each in a thread; what they return, in order."""
    results, start = [None] * len(works), threading.Barrier(len(works))

    def run(number):
        start.wait(60)
        try:
            results[number] = works[number]()
        except BaseException as error:
            traceback.print_exc()
            results[number] = error

    found = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(works))]
    for thread in found:
        thread.start()
    for thread in found:
        thread.join(120)
        assert not thread.is_alive(), "a thread waits for ever"
    return results


def child_of(action):
    """The id of a forked child, which exits with 0 where an action returns True."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)  # a child that waits for ever is killed, and seen
            os._exit(0 if action() else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    return child


def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def in_child(action):
    return ended(child_of(action))


def predicted(session, seed):
    return session.run(models.values(seed))["prediction"]


# Threads


def test_eight_threads_build_and_train_sessions_of_their_own(objects):
    def work(seed):
        with models.training(threads=1 + seed % 3, seed=seed, cache=objects) as session:
            return models.learned(session, 12, seed)

    wanted = [work(seed) for seed in range(8)]
    # As in a process where no thread has compiled anything yet: what all share is made at once too.
    threads_module._runtime.cache_clear()
    steps_module._made_runtime.cache_clear()
    found = at_once([lambda seed=seed: work(seed) for seed in range(8)])
    assert [models.same(a, b) for a, b in zip(found, wanted, strict=True)] == [True] * 8
    assert len({float(one["loss"]) for one in found}) == 8


@pytest.mark.slow
def test_eight_sessions_at_once_give_what_the_reference_gives(objects):
    sessions = [models.inference(threads=2, seed=seed, cache=objects) for seed in range(8)]
    graph = models.graph()

    def work(seed):
        return [predicted(sessions[seed], 10 * seed + i) for i in range(20)]

    found = at_once([lambda seed=seed: work(seed) for seed in range(8)])
    for seed, session in enumerate(sessions):
        parameters = dict(session.parameters())
        for i in (0, 19):
            given = models.values(10 * seed + i)
            _, wanted = darner.run(graph, given, parameters, float64=True)
            np.testing.assert_allclose(found[seed][i], wanted, rtol=0, atol=2e-6)
        session.close()


def test_runs_of_one_session_from_several_threads_do_not_mix(objects):
    with models.inference(threads=2, cache=objects) as session:
        wanted = [predicted(session, seed) for seed in range(6)]

        def work(seed):
            return all(np.array_equal(predicted(session, seed), wanted[seed]) for _ in range(60))

        assert at_once([lambda seed=seed: work(seed) for seed in range(6)]) == [True] * 6


def test_steps_of_one_session_from_several_threads_are_all_made(objects):
    with models.training(threads=2, cache=objects) as session:
        wanted = models.learned(session, 60)
    with models.training(threads=2, cache=objects) as session:
        for name, value in models.values().items():
            session.set_input(name, value)

        def work():
            for _ in range(15):
                session.step()

        assert at_once([work] * 4) == [None] * 4
        assert int(session.state()["optimizer/step"]) == 60
        found = {**session.parameters(), "loss": np.float32(session.read_loss())}
    assert models.same(found, wanted)


def test_closing_while_others_run_ends_them_with_an_error_that_says_so(objects):
    session = models.inference(threads=2, cache=objects)
    wanted = predicted(session, 0)
    begun = threading.Semaphore(0)

    def work():
        count = 0
        try:
            while True:
                assert np.array_equal(predicted(session, 0), wanted)
                count += 1
                begun.release()
        except darner.DarnerError as error:
            return count, str(error)

    def close():
        for _ in range(30):
            begun.acquire()
        session.close()

    *found, _ = at_once([work, work, close])
    assert sum(count for count, _ in found) >= 30
    assert all("is closed" in text for _, text in found)


# Forks


def test_a_session_goes_on_in_a_forked_child_and_in_the_parent(objects):
    with models.training(threads=3, cache=objects) as reference:
        wanted = [models.learned(reference, 4), models.learned(reference, 4)]
    with models.training(threads=3, cache=objects) as session:
        assert models.same(models.learned(session, 4), wanted[0])
        parent = process.workers().keys()

        def work():
            right = models.same(models.learned(session, 4), wanted[1])
            mine = process.workers().keys()
            return right and len(mine) == 2 and not mine & parent

        assert in_child(work) == 0
        assert models.same(models.learned(session, 4), wanted[1])
        assert process.workers().keys() == parent


def test_a_child_builds_closes_and_drops_sessions_of_its_own(objects):
    session = models.inference(threads=2, cache=objects)
    wanted = predicted(session, 1)

    def work():
        other = models.inference(threads=2, cache=None)
        right = np.array_equal(predicted(other, 1), wanted)
        session.close()
        other.close()
        return right and process.eventually(lambda: not process.workers())

    assert in_child(work) == 0
    assert np.array_equal(predicted(session, 1), wanted)
    session.close()


def test_a_child_forked_while_another_thread_uses_the_session_can_use_it(objects):
    with models.inference(threads=2, cache=objects) as session:
        wanted = predicted(session, 1)
        held, leave = threading.Event(), threading.Event()

        def hold():
            with session._using("run"):
                held.set()
                leave.wait(60)

        thread = threading.Thread(target=hold, daemon=True)
        thread.start()
        held.wait(60)
        child = child_of(lambda: np.array_equal(predicted(session, 1), wanted))
        leave.set()
        thread.join()
        assert ended(child) == 0
        assert np.array_equal(predicted(session, 1), wanted)


@pytest.mark.slow
def test_two_processes_with_one_cold_cache_both_give_right_results(objects, tmp_path):
    with models.training(cache=objects) as session:
        wanted = models.learned(session, 3)
    reading, writing = os.pipe()

    def work():
        os.read(reading, 1)  # both start together
        warnings.simplefilter("error")
        with models.training(cache=tmp_path) as session:
            return models.same(models.learned(session, 3), wanted)

    children = [child_of(work) for _ in range(2)]
    os.write(writing, b"..")
    assert [ended(child) for child in children] == [0, 0]
    os.close(reading)
    os.close(writing)
    assert {path.suffix for path in tmp_path.iterdir()} == {".object"}


# Interrupts

INTERRUPTED = """
@original = external global ptr
declare i32 @raise(i32)
define void @interrupted(i64 %thread, i64 %threads, ptr %arguments) {
  %first = icmp eq i64 %thread, 0
  br i1 %first, label %signal, label %work
signal:
  %ignored = call i32 @raise(i32 2)
  br label %work
work:
  %function = load ptr, ptr @original
  call void %function(i64 %thread, i64 %threads, ptr %arguments)
  ret void
}
"""


@pytest.fixture
def interruptible():
    """Interrupts raise KeyboardInterrupt here, whatever the test runner has made of them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def mask():
    """Raising at every line also raises where signals are blocked, which no interrupt does: they are let through again."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("threads", [1, 2])
def test_an_interrupt_inside_native_code_comes_after_the_step_and_harms_nothing(objects, threads):
    with models.training(threads=threads, cache=objects) as reference:
        wanted = [models.learned(reference, 3) for _ in range(3)]
    with models.training(threads=threads, cache=objects) as session:
        assert models.same(models.learned(session, 3), wanted[0])
        rows = session._runner.last.program._steps._rows
        original = rows[:1, 0].copy()
        code = load_object(compile_module(INTERRUPTED), symbols={"original": original.ctypes.data})
        rows[0, 0] = code.address("interrupted")
        for _ in range(3):  # each of these is a whole step
            with pytest.raises(KeyboardInterrupt):
                session.step()
        rows[0, 0] = original[0]
        assert models.same(models.learned(session, 0), wanted[1])
        assert models.same(models.learned(session, 3), wanted[2])


def interrupted(action, point):
    """Interrupt an action where Python would take a signal: as it enters a function, or after a call of one in C.

    Returns False where the action is over before the point is reached.
    """
    left = point

    def look(frame, event, argument):
        nonlocal left
        if event in ("call", "c_return") and frame.f_globals.get("__name__") != __name__:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("threads", [1, 3])
def test_an_inference_session_is_right_after_an_interrupt_at_any_point(objects, threads):
    with models.inference(threads=threads, cache=objects) as session:
        given = [models.values(seed) for seed in (0, 1)]
        wanted = [session.run(one) for one in given]
        point = 0
        while interrupted(lambda: session.run(given[1]), point):
            assert models.same(session.run(given[point % 2]), wanted[point % 2])
            point += 1
        assert point > 20
        # The lock is free: another thread can go on.
        assert models.same(at_once([lambda: session.run(given[0])])[0], wanted[0])


def test_a_training_step_that_is_interrupted_was_made_whole_or_not_at_all(objects):
    with models.training(threads=2, cache=objects) as reference:
        wanted = {n: models.learned(reference, 1) for n in range(1, 200)}
    with models.training(threads=2, cache=objects) as session:
        models.learned(session, 1)
        point = 0
        while interrupted(session.step, point):
            made = int(session.state()["optimizer/step"])
            assert all(
                np.array_equal(value, wanted[made][name])
                for name, value in session.parameters().items()
            )
            point += 1
        assert point > 10
        assert models.same(
            models.learned(session, 1), wanted[int(session.state()["optimizer/step"])]
        )


@pytest.mark.usefixtures("mask")
@pytest.mark.parametrize("threads", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_workers_interrupted_as_they_start_are_not_lost(threads):
    counting = """
    define void @count(i64 %thread, i64 %threads, ptr %counters) {
      %mine = getelementptr i64, ptr %counters, i64 %thread
      %before = load i64, ptr %mine
      %after = add i64 %before, 1
      store i64 %after, ptr %mine
      ret void
    }"""
    code = load_object(compile_module(counting))
    counters = np.zeros(threads, np.int64)
    before = len(process.workers())
    point, more = 0, True
    while more:
        with threads_module.Team(threads) as team:
            run = lambda: team.run(code.address("count"), counters.ctypes.data)  # noqa: E731
            more = interrupted(run, point)
            counters[:] = 0
            run()
            assert counters.tolist() == [1] * threads
            if sys.platform == "linux":
                assert process.eventually(lambda: len(process.workers()) == before + threads - 1)
        point += 2
    assert point > 20
