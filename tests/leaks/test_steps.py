"""A step allocates nothing, and between steps threads use no processor time."""

import gc
import struct
import sys
import time
import tracemalloc

import numpy as np
import pytest

from darner.backends.base.lowering import lower_for
from darner.backends.cpu.kernels import emit_module, functions_of
from darner.backends.cpu.runtime.jit import compile_module, host
from tests import zoo
from tests.leaks import models, process

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and Linux's objects")

CALLED = {"darner_barrier", "memcpy", "memset", "memmove"}
"""All that native code may call. None of it allocates."""


def undefined(code: bytes) -> set[str]:
    """The symbols that a 64-bit ELF object takes from elsewhere."""
    start, size, count = struct.unpack_from("<Q10xHH", code, 40)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, start + i * size) for i in range(count)]
    found = set()
    for _, kind, _, _, offset, length, link, _, _, entry in sections:
        if kind != 2:  # a table of symbols
            continue
        names = sections[link][4]
        for place in range(offset, offset + length, entry):
            name, _, _, section = struct.unpack_from("<IBBH", code, place)
            if name and section == 0:
                end = code.index(b"\0", names + name)
                found.add(code[names + name : end].decode())
    return found


def test_symbols_that_an_object_takes_from_elsewhere_are_found():
    text = """
    declare ptr @malloc(i64)
    declare void @free(ptr)
    define ptr @f(i64 %n) {
      %p = call ptr @malloc(i64 %n)
      ret ptr %p
    }"""
    assert undefined(compile_module(text, triple="x86_64-unknown-linux-gnu")) == {"malloc"}


@linux
@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("llama", "resnet")),
    ],
)
def test_native_code_calls_nothing_that_allocates(name):
    graph = zoo.trained(zoo.MODELS[name])
    plan = lower_for("cpu", graph)
    code = compile_module(emit_module(plan, functions_of(plan, host()), host()), passes=True)
    assert undefined(code) <= CALLED


@linux
@pytest.mark.parametrize(
    ("make", "threads"),
    [
        (models.training, 1),
        (models.inference, 2),
        pytest.param(models.training, 3, marks=pytest.mark.slow),
    ],
)
def test_a_thousand_steps_allocate_nothing(make, threads, objects):
    with make(threads=threads, cache=objects) as session:
        for name, value in models.values().items():
            session.set_input(name, value)

        def steps(count):
            for _ in range(count):
                session.step()

        steps(20)
        gc.collect()
        gc.disable()
        try:
            heap, blocks = process.allocated(), sys.getallocatedblocks()
            steps(1000)
            # A free list or two of the interpreter may have grown or shrunk meanwhile.
            assert abs(sys.getallocatedblocks() - blocks) < 20
            assert abs(process.allocated() - heap) < 4096
        finally:
            gc.enable()


@pytest.mark.parametrize("make", [models.training, models.inference])
def test_a_step_makes_no_array_even_for_a_moment(make, objects):
    """NumPy tells ``tracemalloc`` of its arrays. The least array of this model that matters has 2 KB, most have 37."""
    with make(cache=objects) as session:
        for name, value in models.values().items():
            session.set_input(name, value)
        session.step()
        tracemalloc.start()
        try:
            session.step()
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            for _ in range(50):
                session.step()
            after, peak = tracemalloc.get_traced_memory()
            assert peak - before < 8192
            assert after - before < 1024
            given = np.ones(5000, np.float32)
            assert tracemalloc.get_traced_memory()[0] - after >= given.nbytes
        finally:
            tracemalloc.stop()


@linux
def test_threads_that_wait_for_a_step_use_no_processor_time(objects):
    with models.inference(threads=3, cache=objects) as session:
        wanted = session.run(models.values())

        def asleep():
            found = process.workers()
            return len(found) >= 2 and {state for state, _, _ in found.values()} == {"S"}

        assert process.eventually(asleep)
        before = process.workers()
        start = time.thread_time()
        while time.thread_time() - start < 0.2:  # a thread that spins would be charged as much
            sum(range(1000))
        assert process.workers() == before
        assert models.same(session.run(models.values()), wanted)
        assert process.workers() != before
