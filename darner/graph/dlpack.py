"""Arrays of other libraries, by DLPack: those that NumPy itself does not read, above all bfloat16.

A capsule of DLPack holds a C structure: an address, a shape, strides, an element type, and a function that gives the
memory back. The array made here lies in that memory, and the function is called once, when the last array that needs
it is gone.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

from . import dtypes
from .errors import RunError

HOSTS = {1: "CPU", 3: "CUDA's host memory", 11: "ROCm's host memory"}
"""DLPack's numbers for memory that the processor reads."""

_KINDS = (
    *("int", "uint", "float", "opaque", "bfloat", "complex", "bool"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
"""Element types by DLPack's numbers; those of the first row have their bits beside them."""
_OF_NUMPY = {
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
}
_READ_ONLY = 1


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


# With the interpreter's lock held: an exporter may touch Python's objects.
_DELETER = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_CAPSULES = {
    b"dltensor": (_Managed, ctypes.c_char_p(b"used_dltensor")),
    b"dltensor_versioned": (_Versioned, ctypes.c_char_p(b"used_dltensor_versioned")),
}

_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype, _name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]


class _Memory:
    """Memory of another library, which NumPy reads by ``__array_interface__`` and keeps alive."""

    def __init__(self, interface: dict[str, Any]) -> None:
        self.__array_interface__ = interface


def read(value: Any) -> npt.NDArray[Any]:
    """The array of an object with ``__dlpack__``, in the object's own memory. Errors are ``RunError``."""
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:  # from before versions
        capsule = value.__dlpack__()
    name = _name_of(capsule)
    if name not in _CAPSULES:
        raise RunError(f"it gave a capsule of {name!r}, which is none of DLPack")
    layout, used = _CAPSULES[name]
    address = _pointer_of(capsule, name)
    managed = layout.from_address(address)
    tensor: _Tensor = managed.tensor
    # Until it is renamed the capsule owns the memory, so that an error here loses nothing.
    kind = _element_type(tensor)
    if tensor.device_type not in HOSTS:
        raise RunError(
            f"it lies in memory of another device (DLPack's number {tensor.device_type})"
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if 0 in shape:
        return np.empty(shape, kind)
    itemsize = kind.itemsize
    strides = None
    if tensor.strides:
        strides = tuple(tensor.strides[i] * itemsize for i in range(tensor.ndim))
    read_only = layout is _Managed or bool(managed.flags & _READ_ONLY)
    memory = _Memory(
        {
            "version": 3,
            "data": ((tensor.data or 0) + tensor.byte_offset, read_only),
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{itemsize}" if kind == dtypes.bf16.numpy else kind.str,
        }
    )
    if managed.deleter:
        release = _DELETER(managed.deleter)
        finish = weakref.finalize(memory, release, address)
        finish.atexit = False  # the process ends, and so does its memory
    _rename(capsule, used)
    return np.asarray(memory).view(kind)


def _element_type(tensor: _Tensor) -> np.dtype[Any]:
    name = _KINDS[tensor.code] if tensor.code < len(_KINDS) else f"type {tensor.code}"
    if name in ("int", "uint", "float", "bfloat", "complex"):
        name = f"{name}{tensor.bits}"
    if name == "bfloat16" and tensor.lanes == 1:
        return dtypes.bf16.numpy
    if tensor.lanes == 1 and name in _OF_NUMPY and 8 * np.dtype(name).itemsize == tensor.bits:
        return np.dtype(name)
    lanes = f" in vectors of {tensor.lanes}" if tensor.lanes != 1 else ""
    raise RunError(
        f"its elements are {name}{lanes}, which darner does not have",
        hint="convert it first, in PyTorch by .float()",
    )
