"""Arrays of other libraries, by DLPack: those that NumPy itself does not read, above all bfloat16.

A capsule of DLPack holds a C structure: an address, a shape, strides, an element type, and a function that gives the
memory back. The array made here lies in that memory, and the function is called once, when the last array that needs
it is gone.
"""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

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
        self.owner: Borrowed | None = None


class Exporter(Protocol):
    """What gives memory away by DLPack."""

    def __dlpack__(self, **options: object) -> object:
        """A capsule."""
        ...


class Borrowed:
    """Memory of another library, wherever it is. It is given back with its last reference.

    Attributes:
        address: where it begins.
        shape: of the array.
        strides: in elements; None where it is contiguous.
        dtype: of the elements.
        device: DLPack's number for the kind of device, and which of them.
        read_only: whether it must not be written.
    """

    def __init__(self, value: Exporter, **options: int) -> None:
        capsule = _capsule_of(value, options)
        name = _name_of(capsule)
        if name not in _CAPSULES:
            raise RunError(f"it gave a capsule of {name!r}, which is none of DLPack")
        layout, used = _CAPSULES[name]
        address = _pointer_of(capsule, name)
        managed = layout.from_address(address)
        tensor: _Tensor = managed.tensor
        # Until it is renamed the capsule owns the memory, so that an error here loses nothing.
        self.dtype = _element_type(tensor)
        self.address = (tensor.data or 0) + tensor.byte_offset
        self.device = int(tensor.device_type), int(tensor.device_id)
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = _strides(tensor, self.shape)
        self.read_only = layout is _Managed or bool(managed.flags & _READ_ONLY)
        if managed.deleter:
            finish = weakref.finalize(self, _DELETER(managed.deleter), address)
            finish.atexit = False  # the process ends, and so does its memory
        _rename(capsule, used)


def _capsule_of(value: Exporter, options: dict[str, int]) -> object:
    try:
        return value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # from before versions
        return value.__dlpack__(**options)


def _strides(tensor: _Tensor, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    if not tensor.strides:
        return None
    found = tuple(tensor.strides[i] for i in range(tensor.ndim))
    dense = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
    alike = all(n <= 1 or a == b for n, a, b in zip(shape, found, dense, strict=True))
    return None if alike or 0 in shape else found


def device_of(value: object) -> tuple[int, int] | None:
    """Where the values of an object with ``__dlpack__`` are, by DLPack's numbers; None where it does not say."""
    asked = getattr(value, "__dlpack_device__", None)
    if asked is None or isinstance(value, np.ndarray):
        return None
    kind, number = asked()
    return int(kind), int(number)


def read(value: Any) -> npt.NDArray[Any]:
    """The array of an object with ``__dlpack__``, in the object's own memory. Errors are ``RunError``."""
    found = Borrowed(value)
    kind, itemsize = found.dtype, found.dtype.itemsize
    if found.device[0] not in HOSTS:
        raise RunError(f"it lies in memory of another device (DLPack's number {found.device[0]})")
    if 0 in found.shape:
        return np.empty(found.shape, kind)
    strides = None if found.strides is None else tuple(n * itemsize for n in found.strides)
    memory = _Memory(
        {
            "version": 3,
            "data": (found.address, found.read_only),
            "shape": found.shape,
            "strides": strides,
            "typestr": f"|V{itemsize}" if kind == dtypes.bf16.numpy else kind.str,
        }
    )
    memory.owner = found
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


# --------------------------------------------------------------------------- giving memory away

# Whoever has the memory may give it back without the interpreter's lock.
_GIVE_BACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DESTROY = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _DESTROY]
# Of a capsule that is going there is no reference any more, and none must be made.
_dying_has = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_given: dict[int, tuple[object, ...]] = {}
"""What others have: by the address of the structure, all that it needs to stay."""


def _forget(address: int | None) -> None:
    _given.pop(address or 0, None)


def _destroy(capsule: int) -> None:
    """A capsule that nobody has taken gives its memory back itself."""
    for name in _CAPSULES:
        if _dying_has(capsule, name):
            _forget(_dying_pointer(capsule, name))


_give_back, _destructor = _GIVE_BACK(_forget), _DESTROY(_destroy)


@dataclass(frozen=True)
class Lent:
    """Memory that another library may use.

    Attributes:
        address: where it begins.
        shape: of the array, which is contiguous.
        dtype: of the elements.
        device: DLPack's number for the kind of device, and which of them.
        owner: what has the memory, kept as long as somebody else uses it.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    device: tuple[int, int]
    owner: object


def lend(memory: Lent, *, versioned: bool) -> object:
    """A capsule of DLPack, of the form from before versions or of 1.0."""
    shape = (ctypes.c_int64 * max(1, len(memory.shape)))(*memory.shape)
    code, bits = _code_of(memory.dtype)
    tensor = _Tensor(memory.address, *memory.device, len(memory.shape), code, bits, 1, shape, None)
    back = ctypes.cast(_give_back, ctypes.c_void_p)
    made = _Versioned(1, 0, None, back, 0, tensor) if versioned else _Managed(tensor, None, back)
    address = ctypes.addressof(made)
    _given[address] = made, shape, memory.owner
    name = b"dltensor_versioned" if versioned else b"dltensor"
    return _new_capsule(address, next(n for n in _CAPSULES if n == name), _destructor)


def _code_of(kind: np.dtype[np.generic]) -> tuple[int, int]:
    name = "bfloat16" if kind == dtypes.bf16.numpy else kind.name
    word = name.rstrip("0123456789")
    return _KINDS.index(word), 8 * kind.itemsize
