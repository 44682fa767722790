"""Arrays of other libraries on the same GPU: taken and given by DLPack, without the process."""

import gc

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, ShapeError
from darner.backends.cuda.device import address_of
from darner.backends.cuda.opening import opened
from darner.graph.dlpack import _CAPSULES, Borrowed, Lent, _name_of, _rename, lend

DEVICE = "cuda:emulated"


class Foreign:
    """A tensor of another library on the emulated device."""

    def __init__(self, array, number=0, kind=2, versioned=True):
        self.array, self.number, self.kind, self.versioned = array, number, kind, versioned
        self.region = opened(DEVICE).region(array.nbytes)
        opened(DEVICE).write(self.region, array)
        self.streams = []

    def __dlpack_device__(self):
        return self.kind, self.number

    def __dlpack__(self, *, stream=None, max_version=None):
        if max_version is not None and not self.versioned:
            raise TypeError("max_version")
        self.streams.append(stream)
        where = (self.kind, self.number)
        memory = Lent(address_of(self.region), self.array.shape, self.array.dtype, where, self)
        return lend(memory, versioned=self.versioned)


def doubled(dtype="f32", shape=("n", 3)):
    g = Graph("doubled")
    x = g.input("x", shape, dtype)
    g.set_outputs([x.add(x, label="twice")])
    return darner.build(g, mode="infer", device=DEVICE, cache=None)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "c64"])
def test_an_array_of_another_library_is_copied_on_the_device_and_let_go(dtype, versioned):
    kind = darner.graph.dtypes.dtype(dtype).numpy
    values = np.arange(12).reshape(4, 3).astype(kind)
    tensor = Foreign(values, versioned=versioned)
    with doubled(dtype) as session:
        found = session.run({"x": tensor})["twice"]
        np.testing.assert_array_equal(found, values + values)
        assert tensor.streams == [1]  # the stream without a name waits for whoever gives it
        before = opened(DEVICE).bytes_held
        session.run({"x": tensor})
        assert opened(DEVICE).bytes_held == before


def test_integers_may_be_indices_and_come_to_the_process():
    g = Graph("rows")
    g.set_outputs([g.gather(g.input("x", (4, 2)), g.input("rows", (2,), "i32"), axis=0)])
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    with darner.build(g, mode="infer", device=DEVICE, cache=None) as session:
        found = session.run({"x": Foreign(x), "rows": Foreign(np.array([3, 1], np.int32))})
        np.testing.assert_array_equal(found["output0"], x[[3, 1]])
        with pytest.raises(darner.RunError, match=r"input 'rows' has the index 7"):
            session.run({"x": Foreign(x), "rows": Foreign(np.array([3, 7], np.int32))})


def test_another_type_is_converted_as_that_of_an_array_of_the_process():
    with doubled("f64") as session:
        found = session.run({"x": Foreign(np.full((2, 3), 1.5, np.float32))})["twice"]
        np.testing.assert_array_equal(found, np.full((2, 3), 3.0))


def test_a_wrong_shape_is_refused_by_the_name_of_the_input():
    with doubled() as session, pytest.raises(ShapeError, match=r"input 'x' is \[n, 3\]|input 'x'"):
        session.run({"x": Foreign(np.ones((3, 4), np.float32))})


def test_an_array_on_another_device_says_which():
    with doubled() as session:
        with pytest.raises(ArgumentError, match="on GPU 1, but the session is on GPU 0"):
            session.run({"x": Foreign(np.ones((2, 3), np.float32), number=1)})
        with pytest.raises(darner.RunError, match=r"another device \(DLPack's number 10\)"):
            session.run({"x": Foreign(np.ones((2, 3), np.float32), kind=10)})


def test_a_session_on_the_cpu_asks_for_a_copy_on_the_host():
    g = Graph()
    g.set_outputs([g.input("x", (2, 3)) * 2.0])
    tensor = Foreign(np.ones((2, 3), np.float32))
    with (
        darner.build(g, mode="infer", cache=None) as session,
        pytest.raises(darner.RunError, match=r"another device .*copy it to the host first"),
    ):
        session.run({"x": tensor})
    with darner.build(g, mode="infer", cache=None) as session:
        session.run({"x": tensor.array})
        with pytest.raises(ArgumentError, match=r"'output0' is not in memory of a device"):
            session.output_on_device("output0")


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_has_the_values_and_keeps_them_until_it_is_given_back(version):
    with doubled() as session:
        session.run({"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
        array = session.output_on_device("twice")
    held = opened(DEVICE).bytes_held
    capsule = array.__dlpack__(stream=None, max_version=version)
    assert _name_of(capsule) == (b"dltensor_versioned" if version else b"dltensor")
    address = array.address
    borrowed = Borrowed(_Given(capsule))
    assert (borrowed.address, borrowed.shape, borrowed.device) == (address, (2, 3), (2, 0))
    assert borrowed.dtype == np.float32
    assert borrowed.strides is None
    del array, capsule
    gc.collect()
    assert opened(DEVICE).bytes_held == held
    del borrowed
    gc.collect()
    assert opened(DEVICE).bytes_held < held


def test_a_capsule_that_nobody_takes_gives_its_memory_back():
    with doubled() as session:
        session.run({"x": np.ones((2, 3), np.float32)})
        before = opened(DEVICE).bytes_held
        for _ in range(3):
            session.output_on_device("twice").__dlpack__()
        gc.collect()
        assert opened(DEVICE).bytes_held == before
        array = session.output_on_device("twice")
        with pytest.raises(BufferError, match="given where it lies"):
            array.__dlpack__(copy=True)


class _Given:
    """An object with a capsule that was made before."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **options):
        return self._capsule


def test_a_capsule_that_was_taken_is_not_given_back_twice():
    array = Foreign(np.ones(4, np.float32))
    capsule = array.__dlpack__()
    name = _name_of(capsule)
    _rename(capsule, _CAPSULES[name][1])
    assert _name_of(capsule).startswith(b"used_")
    del capsule  # whoever renamed it gives it back, and here nobody does
    assert any(array in kept for kept in darner.graph.dlpack._given.values())
    darner.graph.dlpack._given.clear()
