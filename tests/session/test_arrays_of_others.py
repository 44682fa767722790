"""Arrays of other libraries and of other kinds, at every door where values come in."""

import array
import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch

import darner
from darner import ArgumentError, DarnerError, Graph, data, load
from darner.graph import dlpack, dtypes
from darner.graph.arrays import as_array
from darner.graph.data import as_data
from darner.io.tensorfile import stored

from .opening import opened

BF16 = np.dtype(ml_dtypes.bfloat16)


def at_input(value, shape, dtype):
    g = Graph()
    g.set_outputs([g.input("x", shape, dtype).stop_gradient()])
    with opened(g, mode="infer", device="cpu") as session:
        return session.run({"x": value})["output0"]


def at_set_input(value, shape, dtype):
    g = Graph()
    g.set_outputs([g.input("x", shape, dtype).stop_gradient()])
    with opened(g, mode="infer", device="cpu") as session:
        session.set_input("x", value)
        session.step()
        return session.read_output().reshape(shape)


def at_parameter(value, shape, dtype):
    g = Graph()
    g.set_outputs([g.parameter("x", shape, dtype).stop_gradient()])
    with opened(g, mode="infer", device="cpu") as session:
        session.set_parameter("x", value)
        return session.read_param("x").reshape(shape)


def at_reference(value, shape, dtype):
    g = Graph()
    g.set_outputs([g.input("x", shape, dtype).stop_gradient()])
    return darner.run(g, {"x": value})[0]


def at_constant(value, shape, dtype):
    g = Graph()
    g.set_outputs([g.constant(value).cast(dtype)])
    return darner.run(g)[0]


def at_operand(value, shape, dtype):
    g = Graph()
    g.set_outputs([g.input("x", shape, dtype) + value])
    zeros = np.zeros(shape, dtypes.dtype(dtype).numpy)
    return darner.run(g, {"x": zeros})[0]


def at_weights(value, shape, dtype):
    return load.Weights.of({"x": value})["x"]


def at_checkpoint(value, shape, dtype):
    return stored("x", value)


def at_data(value, shape, dtype):
    if not shape:
        return as_array(value, "'x'")[0]  # a row for each example
    batches = data.Arrays({"x": value}, batch=shape[0], shuffle=False)
    return next(iter(batches))["x"] if shape[0] else np.empty(shape, BF16)


DOORS = {
    door.__name__: door
    for door in (
        *(at_input, at_set_input, at_parameter, at_reference, at_constant, at_operand),
        *(at_weights, at_checkpoint, at_data),
    )
}
doors = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)

TENSORS = {
    "plain": lambda: torch.tensor([[1.5, -2.25], [3.0, 1e30]], dtype=torch.bfloat16),
    "transposed": lambda: torch.arange(6.0).to(torch.bfloat16).reshape(3, 2).T,
    "strided": lambda: torch.arange(20.0).to(torch.bfloat16)[3::4],
    "repeated": lambda: torch.tensor([[2.5]], dtype=torch.bfloat16).expand(2, 3),
    "scalar": lambda: torch.tensor(0.15625, dtype=torch.bfloat16),
    "special": lambda: torch.tensor([np.nan, np.inf, -np.inf, -0.0], dtype=torch.bfloat16),
}


@doors
@pytest.mark.parametrize("name", TENSORS)
def test_bf16_tensors_of_torch_come_in_everywhere(door, name):
    tensor = TENSORS[name]()
    found = door(tensor, tuple(tensor.shape), "bf16")
    assert found.dtype == BF16
    if name == "special" and door is at_operand:
        np.testing.assert_array_equal(found.astype(np.float32), tensor.float().numpy())
        return  # -0.0 + 0.0 is 0.0
    wanted = tensor.contiguous().view(torch.int16).numpy()
    np.testing.assert_array_equal(
        np.ascontiguousarray(found).reshape(wanted.shape).view(np.int16), wanted
    )


@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)])
def test_tensors_without_elements(shape):
    tensor = torch.zeros(shape, dtype=torch.bfloat16)
    for door in (at_input, at_parameter, at_reference, at_constant, at_weights, at_checkpoint):
        found = door(tensor, shape, "bf16")
        assert (found.shape, found.dtype) == (shape, BF16)


def test_the_memory_is_shared_and_kept_until_the_last_array_goes():
    tensor = torch.arange(6.0).to(torch.bfloat16)
    found = dlpack.read(tensor)
    tensor[0] = 7
    assert found[0] == 7
    part = found[2:4].reshape(2, 1)
    del found, tensor
    gc.collect()
    np.testing.assert_array_equal(part.astype(np.float32), [[2], [3]])


# --------------------------------------------------------------------------- capsules made by hand

DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Exporter:
    """Memory given away by DLPack, which counts how often it was given back."""

    def __init__(self, values, code, bits, *, versioned, flags=0, device=1, offset=0, strides=None):
        self.values = values
        self.device = device
        self.given_back = []
        self._deleter = DELETER(self.given_back.append)
        layout = dlpack._Versioned if versioned else dlpack._Managed
        self.managed = managed = layout()
        tensor = managed.tensor
        tensor.data = values.ctypes.data
        tensor.device_type, tensor.ndim = device, values.ndim
        tensor.code, tensor.bits, tensor.lanes = code, bits, 1
        self._shape = (ctypes.c_int64 * values.ndim)(*values.shape)
        tensor.shape = ctypes.cast(self._shape, ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            self._strides = (ctypes.c_int64 * values.ndim)(*strides)
            tensor.strides = ctypes.cast(self._strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = offset
        managed.deleter = ctypes.cast(self._deleter, ctypes.c_void_p).value
        if versioned:
            managed.major, managed.flags = 1, flags
        self.name = b"dltensor_versioned" if versioned else b"dltensor"

    def __dlpack__(self, **keywords):
        if keywords and self.name == b"dltensor":
            raise TypeError("no such argument")
        return new_capsule(ctypes.addressof(self.managed), self.name, None)

    def __dlpack_device__(self):
        return (self.device, 0)


def words(*values):
    return np.array(values, np.float32).astype(BF16).view(np.uint16)


@pytest.mark.parametrize("versioned", [False, True])
def test_memory_is_given_back_once_when_the_last_array_goes(versioned):
    exporter = Exporter(words(1, 2, 3), 4, 16, versioned=versioned)
    found = dlpack.read(exporter)
    assert found.astype(np.float32).tolist() == [1, 2, 3]
    alive = weakref.ref(found)
    view = found[1:]
    del found
    gc.collect()
    assert not exporter.given_back
    assert view.astype(np.float32).tolist() == [2, 3]
    del view
    gc.collect()
    assert exporter.given_back == [ctypes.addressof(exporter.managed)]
    assert alive() is None


def test_offsets_and_negative_strides_are_followed():
    exporter = Exporter(words(1, 2, 3), 4, 16, versioned=True, offset=4, strides=(-1,))
    assert dlpack.read(exporter).astype(np.float32).tolist() == [3, 2, 1]


@pytest.mark.parametrize(
    ("versioned", "flags", "writable"), [(True, 0, True), (True, 1, False), (False, 0, False)]
)
def test_memory_that_may_not_be_written_is_not(versioned, flags, writable):
    found = dlpack.read(Exporter(words(1), 4, 16, versioned=versioned, flags=flags))
    assert found.flags.writeable is writable


def test_an_element_type_that_darner_has_not_is_named_and_nothing_is_taken():
    exporter = Exporter(np.zeros(3, np.uint8), 10, 8, versioned=True)
    with pytest.raises(
        DarnerError, match="input 'x' cannot be read: its elements are float8_e4m3fn"
    ):
        as_array(exporter, "input 'x'")
    gc.collect()
    assert not exporter.given_back  # the capsule was never taken over


def test_memory_of_a_gpu_says_what_to_call():
    exporter = Exporter(words(1), 4, 16, versioned=True, device=2)
    with pytest.raises(
        DarnerError, match=r"input 'x' is given memory of another device .* \.cpu\(\)"
    ):
        as_array(exporter, "input 'x'")


def test_pinned_memory_of_the_host_is_read():
    exporter = Exporter(words(1, 2), 4, 16, versioned=True, device=3)
    assert as_array(exporter, "input 'x'")[0].astype(np.float32).tolist() == [1, 2]


# --------------------------------------------------------------------------- what is refused

REFUSED = {
    "gradient": (lambda: torch.ones(3, requires_grad=True), r"\.detach\(\)"),
    "gradient of bf16": (lambda: torch.nn.Parameter(torch.ones(3).bfloat16()), r"\.detach\(\)"),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), r"\.resolve_conj\(\)"),
    "negative": (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, r"\.resolve_neg\(\)"),
    "sparse": (lambda: torch.ones(3).to_sparse(), r"\.to_dense\(\)"),
    "no memory": (lambda: torch.ones(3, device="meta"), "cannot be read"),
    "float8": (lambda: torch.ones(3).to(torch.float8_e5m2), r"float8_e5m2.*\.float\(\)"),
    "mask": (
        lambda: np.ma.array(np.ones(3, np.float32), mask=[0, 1, 0]),
        r"1 of 3 .*\.filled\(value\)",
    ),
    "objects": (lambda: np.array([1.0, None, 2.0]), "objects of Python .*not numbers"),
    "text": (lambda: np.array(["a", "b", "c"]), "text .*not numbers"),
    "dates": (lambda: np.array(["2020", "2021", "2022"], "datetime64[Y]"), "dates .*timedelta64"),
    "records": (lambda: np.zeros(3, [("a", "f4"), ("b", "f4")]), r"records .*x\['name'\]"),
}


@doors
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_numbers_is_refused_with_a_way_out(door, name):
    make, text = REFUSED[name]
    with pytest.raises(DarnerError, match=text):
        door(make(), (3,), "f32")


def test_masked_arrays_in_a_list_are_refused():
    with pytest.raises(ArgumentError, match=r"\.filled\(value\)"):
        as_data([np.ma.array([1.0, 2.0], mask=[True, False])])


def test_complex_values_for_a_real_input_are_not_cast_away():
    with pytest.raises(
        darner.DTypeError, match=r"is f32, but it is given c64; give its real part, x\.real"
    ):
        at_input(np.ones(3, np.complex64), (3,), "f32")


# --------------------------------------------------------------------------- what is accepted


@doors
@pytest.mark.parametrize("dtype", ["f4", "f2"])
def test_other_orders_of_bytes_are_converted(door, dtype):
    values = np.array([1.5, -2.0, 3.25], f">{dtype}")
    found = door(values, (3,), "f32" if dtype == "f4" else "f16")
    assert found.dtype == np.dtype(f"={dtype}")
    np.testing.assert_array_equal(found, [1.5, -2.0, 3.25])


class Frame:
    """What pandas and others have: values through ``__array__`` alone."""

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0, 3.0], np.float32)


ACCEPTED = {
    "frame": Frame,
    "unmasked": lambda: np.ma.array(np.array([1, 2, 3], np.float32)),
    "buffer": lambda: memoryview(np.array([1, 2, 3], np.float32)),
    "array of the standard library": lambda: array.array("f", [1, 2, 3]),
    "tensor": lambda: torch.tensor([1.0, 2.0, 3.0]),
}


@doors
@pytest.mark.parametrize("name", ACCEPTED)
def test_arrays_of_other_kinds_come_in_everywhere(door, name):
    found = door(ACCEPTED[name](), (3,), "f32")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [1, 2, 3])


def test_small_integers_that_graphs_do_not_have_fit_a_wider_input():
    found = at_input(np.array([1, 2, 65535], np.uint16), (3,), "i32")
    assert found.tolist() == [1, 2, 65535]
    with pytest.raises(darner.DTypeError, match="is f32, but it is given uint16; convert it"):
        at_input(np.array([1, 2, 3], np.uint16), (3,), "f32")
