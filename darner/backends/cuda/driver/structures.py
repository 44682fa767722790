"""What the driver takes by address, and its numbers for things."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_uint, c_void_p
from enum import IntEnum


class LaunchAttribute(Structure):
    """An attribute of a launch: its number, 4 bytes of nothing, and 64 bytes of values."""

    _fields_ = (("number", c_uint), ("padding", c_uint), ("values", c_uint * 16))


class LaunchConfig(Structure):
    """A launch's grid, blocks, shared memory, stream and attributes."""

    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("count", c_uint),
    )


class Launching(IntEnum):
    """Attributes of launches."""

    COOPERATIVE = 2
    CLUSTER = 4
    EARLY = 6


class About(IntEnum):
    """Attributes of devices."""

    THREADS = 1
    PROCESSORS = 16
    L2 = 38
    MAJOR = 75
    MINOR = 76
    MOST_SHARED = 97


class OfKernel(IntEnum):
    """Attributes of kernels."""

    STATIC_SHARED = 1
    LOCAL = 3
    REGISTERS = 4
    MOST_SHARED = 8
    LARGE_CLUSTERS = 14


NON_BLOCKING = 1
"""Of a stream: it does not wait for the stream that has no name."""
DEFAULT_STREAM = 1
"""The stream without a name."""
RELAXED = 2
"""Of recording: other calls go on as usual, of finalizers too."""
PTX = 1
"""Of a link: what it is given."""
ERROR_LOG, ERROR_LOG_BYTES = 5, 6
"""Options of a link."""

MAP_TYPES = {
    "bool": 0,
    "u8": 0,
    "i8": 0,
    "u16": 1,
    "u32": 2,
    "i32": 3,
    "u64": 4,
    "i64": 5,
    "f16": 6,
    "f32": 7,
    "f64": 8,
    "bf16": 9,
    "tf32": 11,
}
"""The element types of tensor maps."""
MAP_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
MAP_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
MAP_BYTES = 128
MAP_ALIGNMENT = 64
