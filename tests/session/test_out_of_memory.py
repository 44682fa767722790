"""Where there is not enough memory, an error says what was asked for and what would help, and nothing has changed."""

import errno
import mmap

import numpy as np
import pytest

import darner
from darner import DeviceMemoryError, Graph, OutOfMemoryError
from darner.backends.base import memory

HINT = "a smaller batch, remat, or a type of fewer bits such as bf16 takes less"
FREE = r"but [0-9.]+ \w*B are free"


def session_of(graph, **options):
    return darner.build_inference_session(graph, **{"cache": None, "level": 0, **options})


def outer(size):
    """Two values of all pairs, which lie in memory at one time."""
    g = Graph("pairs")
    x = g.input("x", (size,))
    pairs = x.reshape((size, 1)) @ x.reshape((1, size))
    g.set_outputs([pairs, pairs.softmax()])
    return g


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_an_arena_that_is_too_large_is_named(device):
    # A pebibyte: more than addresses of 47 bits reach, whatever the system promises.
    with session_of(outer(2**24), device=device) as session:
        x = np.zeros(2**24, np.float32)
        with pytest.raises(OutOfMemoryError, match=r"the values that a step makes \(the arena\)"):
            session.run({"x": x})
        with pytest.raises(MemoryError, match=r"run: .*iB of memory are asked for") as caught:
            session.run({"x": x})
        assert HINT in str(caught.value)
        assert "test_out_of_memory.py" in str(caught.value)


def test_parameters_that_are_too_large_are_named_when_the_session_is_built():
    g = Graph()
    g.set_outputs([(g.input("x", (1, 2**24)) @ g.parameter("w", (2**24, 2**24))).sum()])
    with pytest.raises(OutOfMemoryError, match="asked for, for parameters and states, " + FREE):
        session_of(g)


def test_an_input_that_is_too_large_is_named():
    g = Graph()
    g.set_outputs([g.input("tokens", (2**50,)).sum()])
    with (
        session_of(g) as session,
        pytest.raises(OutOfMemoryError, match="for input 'tokens', " + FREE),
    ):
        session.compile()


def test_a_session_goes_on_after_a_size_that_was_too_large(monkeypatch):
    g = Graph("sizes")
    x = g.input("x", ("n",))
    pairs = x.reshape(("n", 1)) @ x.reshape((1, "n"))
    g.set_outputs([pairs, pairs.softmax()])
    with session_of(g) as session:
        small = np.linspace(0, 1, 7, dtype=np.float32)
        wanted = list(session.run({"x": small}).values())
        with pytest.raises(OutOfMemoryError, match="the arena"):
            session.run({"x": np.zeros(2**24, np.float32)})
        for found, value in zip(session.run({"x": small}).values(), wanted, strict=True):
            np.testing.assert_array_equal(found, value)
        again = list(session.run({"x": small[:5]}).values())
        np.testing.assert_allclose(again[0], np.outer(small[:5], small[:5]), atol=1e-6)


def test_arrays_that_numpy_has_no_memory_for_are_told_in_the_same_way():
    g = Graph()
    x = g.input("x", (4,))
    g.set_outputs([x.broadcast_to((2**45, 4)).exp().sum()])
    with pytest.raises(OutOfMemoryError, match=r"exp: .*Unable to allocate .*TiB") as caught:
        darner.run(g, {"x": np.zeros(4)})
    assert HINT in str(caught.value)
    with session_of(outer(3)) as session:
        made = session.run({"x": np.ones(3, np.float32)}, copy=False)
        assert made

        class Endless:
            def __array__(self, dtype=None, copy=None):
                return np.zeros(2**50, np.float32)

        with pytest.raises(OutOfMemoryError, match="set_input: Unable to allocate"):
            session.set_input("x", Endless())


def test_a_container_that_allows_less_than_the_system_promises_is_asked(monkeypatch, tmp_path):
    for name, text in {"max": 2**31, "current": 2**30, "swap.max": 0}.items():
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    monkeypatch.setattr(memory, "GROUP", str(tmp_path))
    assert memory.available() <= 2**30
    with pytest.raises(OutOfMemoryError, match=r"3.0 GiB of memory are asked for, for a value, "):
        memory.aligned(3 * 2**30)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._limit() is None


def test_what_is_free_need_not_be_known(monkeypatch):
    def refused(*args, **options):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refused)
    monkeypatch.setattr(memory, "available", lambda: None)
    with pytest.raises(OutOfMemoryError, match=r"4.0 MiB of memory are asked for, for a value; "):
        memory.aligned(4 << 20)


def test_a_gpu_without_memory_is_a_memory_error_too():
    assert issubclass(DeviceMemoryError, OutOfMemoryError)
    assert issubclass(OutOfMemoryError, MemoryError)
