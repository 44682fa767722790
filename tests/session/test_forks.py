"""Processes that fork: a child builds and runs as its parent did, or is told at once that it cannot."""

import ast
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
import warnings
from pathlib import Path

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.backends.cpu.runtime.jit import compile_module
from darner.graph import forks
from darner.graph.cached import cached_property
from darner.graph.errors import ForkError
from darner.optimizer import library

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
SPAWN = r'multiprocessing.get_context\("spawn"\)'
NOTHING = "define void @nothing() { ret void }"
searches = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="egglog is loaded a second time on Linux alone"
)


def graph(size):
    g = Graph("forked")
    x, w = g.input("x", (4, size)), g.parameter("w", (size, 3))
    g.set_outputs([(x @ w).tanh().square().mean()])
    return g


def learned(session, size, steps=3):
    """What a session learns from now on."""
    session.set_input("x", np.linspace(-1, 1, 4 * size).reshape(4, size))
    for _ in range(steps):
        session.step()
    return session.get_parameter("w")


def built(size, **options):
    """A session whose plan was searched for and whose code was compiled here."""
    options = {"optimizer": optim.Adam(0.1), "cache": None, "threads": 2, **options}
    session = darner.build_session(graph(size), **options)
    session.set_parameter("w", np.full((size, 3), 0.25))
    return session


def trained(size, **options):
    with built(size, **options) as session:
        return learned(session, size)


def child_of(action):
    """The id of a forked child, which exits with 0 where an action returns True, and is killed where it waits for ever."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads is the point
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os._exit(0 if action() else 1)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    return child


def in_child(action):
    return os.waitstatus_to_exitcode(os.waitpid(child_of(action), 0)[1])


def refused(action, *words):
    """Whether an action raises a ``ForkError`` of these words, and names spawn."""
    with pytest.raises(ForkError, match=SPAWN) as caught:
        action()
    return all(word in str(caught.value) for word in words)


# --------------------------------------------------------------------------- what works


@searches
def test_a_child_builds_and_runs_and_goes_on_with_its_parents_session():
    wanted = {size: trained(size) for size in (5, 6)}
    with built(5) as session, built(5) as other:
        learned(other, 5)
        further = learned(other, 5)
        np.testing.assert_array_equal(learned(session, 5), wanted[5])

        def child():
            mine = np.array_equal(trained(6), wanted[6])
            return mine and np.array_equal(learned(session, 5), further)

        assert in_child(child) == 0
        np.testing.assert_array_equal(learned(session, 5), further)
        assert in_child(lambda: np.array_equal(trained(6), wanted[6])) == 0


@searches
def test_a_child_of_a_child_builds_too():
    wanted = {size: trained(size) for size in (5, 6, 7)}

    def child():
        mine = np.array_equal(trained(6), wanted[6])
        below = in_child(lambda: np.array_equal(trained(7), wanted[7]))
        return mine and below == 0 and np.array_equal(trained(5), wanted[5])

    assert in_child(child) == 0
    assert in_child(lambda: in_child(lambda: np.array_equal(trained(5), wanted[5])) == 0) == 0


@searches
def test_processes_of_multiprocessing_build():
    wanted = trained(6)
    fork = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with fork.Pool(2) as pool:
            found = pool.map_async(trained, [6, 6]).get(100)
    for value in found:
        np.testing.assert_array_equal(value, wanted)


@searches
def test_a_child_forked_while_other_threads_build_and_run_builds():
    wanted = trained(6)
    ended, begun = threading.Event(), threading.Event()

    def busy():
        with built(5) as session:
            while not ended.is_set():
                learned(session, 5, 1)
                built(7).close()
                begun.set()

    threads = [threading.Thread(target=busy, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    children = [child_of(lambda: np.array_equal(trained(6), wanted)) for _ in range(3)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    ended.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert codes == [0, 0, 0]


ENDING = """
    import os, signal, sys
    import darner
    g = darner.Graph()
    g.set_outputs([(g.input("x", (3,)).tanh() * 2.0).sum()])
    session = darner.build_inference_session(g, cache=None, threads=2)
    session.run({"x": [1.0, 2.0, 3.0]})
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        session.run({"x": [1.0, 2.0, 3.0]})
        sys.exit(3)
    sys.exit(0 if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3 else 1)
"""


def test_a_child_ends_as_any_process_does():
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(ENDING)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_another_thread_has_locked_is_free_in_a_child():
    @darner.function
    def doubled(x):
        return x * 2.0

    x = np.ones(3, np.float32)
    doubled(x)
    import llvmlite.binding.ffi as ffi

    held, leave = threading.Event(), threading.Event()

    def hold():
        with doubled._lock, ffi.lib._lock:
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(60)
    child = child_of(lambda: doubled(x).sum() == 6.0 and bool(compile_module(NOTHING)))
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_waits_for_a_compiler_in_another_thread():
    inside, order = threading.Event(), []

    def compiling():
        with forks.native_call():
            inside.set()
            # The fork has begun when nobody can register any more.
            while forks._registering.acquire(blocking=False):
                forks._registering.release()
            order.append("compiled")

    thread = threading.Thread(target=compiling, daemon=True)
    thread.start()
    assert inside.wait(60)
    child = child_of(lambda: order == ["compiled"])
    thread.join(60)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert compile_module(NOTHING)


# --------------------------------------------------------------------------- what does not


def held_elsewhere(session):
    """A thread that uses a session until it is told to leave."""
    held, leave = threading.Event(), threading.Event()

    def hold():
        with session._using("step"):
            held.set()
            leave.wait(60)

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(60)
    return leave


def test_a_training_session_that_was_in_the_middle_of_a_step_is_refused_in_a_child():
    with built(5, level=0) as session:
        learned(session, 5)
        leave = held_elsewhere(session)

        def child():
            words = ("another thread used the session of graph 'forked'", "half a step")
            told = refused(session.step, *words) and refused(
                lambda: session.get_parameter("w"), *words
            )
            session.close()
            return told and trained(5, level=0) is not None

        found = child_of(child)
        leave.set()
        assert os.waitstatus_to_exitcode(os.waitpid(found, 0)[1]) == 0
        learned(session, 5)


def test_a_library_that_cannot_be_loaded_twice_is_an_error_at_once(monkeypatch):
    wanted = trained(6, level=0)
    trained(5)

    def missing(*args):
        raise OSError("no such call")

    monkeypatch.setattr(os, "memfd_create", missing, raising=False)

    def child():
        told = refused(lambda: built(6), "egglog", "forked from", "no such call")
        return told and np.array_equal(trained(6, level=0), wanted)

    assert in_child(child) == 0


def test_a_compiler_that_does_not_come_to_an_end_is_an_error_in_the_child_alone(monkeypatch):
    monkeypatch.setattr(forks, "PATIENCE", 0.01)
    inside, leave = threading.Event(), threading.Event()

    def compiling():
        with forks.native_call():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=compiling, daemon=True)
    thread.start()
    assert inside.wait(60)
    child = child_of(lambda: refused(lambda: compile_module(NOTHING), "was compiling"))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert compile_module(NOTHING)
    leave.set()
    thread.join()
    assert code == 0


def test_a_gpu_of_the_process_that_it_was_forked_from_is_refused(monkeypatch):
    from darner.backends.wgpu import device

    monkeypatch.setattr(device, "DRIVER", forks.Origin("the driver of the GPU"))
    monkeypatch.setattr(device, "_adapters", None)
    device.DRIVER.begin()

    class Buffer:
        def destroy(self):
            raise AssertionError("it is the other process's")

    class Lost(device.Device):
        def __init__(self):
            self.lost = ""

    def child():
        told = refused(device.adapters, "the driver of the GPU", "forked from")
        told = told and refused(lambda: device.opened("gpu"))
        told = told and refused(lambda: darner.build_session(graph(5), device="gpu", cache=None))
        told = told and refused(Lost().check)
        device.Device.free(Lost(), Buffer())
        return told

    assert in_child(child) == 0


def test_the_parts_of_a_library_that_are_loaded_are_found():
    place = library._place()
    if not sys.platform.startswith("linux"):
        pytest.skip("libraries have another form here")
    assert 0 < library._loaded_bytes(place) <= os.path.getsize(place)
    with pytest.raises(OSError, match="no library of Linux"):
        library._loaded_bytes(__file__)


def test_nothing_asks_for_a_lock_of_a_class():
    """Python 3.11's ``cached_property`` has one, which a child cannot renew."""
    package = Path(darner.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "functools":
                assert "cached_property" not in {name.name for name in node.names}, path


def test_a_child_asks_for_what_another_thread_was_computing_when_it_was_forked():
    inside, leave = threading.Event(), threading.Event()
    waits = [True]

    class Slow:
        @cached_property
        def answer(self):
            if waits:
                inside.set()
                leave.wait(60)
            return 42

    thread = threading.Thread(target=lambda: Slow().answer, daemon=True)
    thread.start()
    assert inside.wait(60)
    waits.clear()
    child = child_of(lambda: Slow().answer == 42)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
