"""libcuda: its functions by name, and every error as one that names the call."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import cache
from typing import Any, Final

from ....graph.forks import Origin
from ..interface import DriverError
from .structures import LaunchConfig

_OUT = POINTER(c_void_p)
SIGNATURES: Final[dict[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_char_p, c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDeviceTotalMem_v2": (POINTER(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (_OUT, c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (_OUT,),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemHostAlloc": (_OUT, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, ctypes.c_ubyte, c_size_t, c_void_p),
    "cuStreamCreate": (_OUT, c_uint),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, _OUT),
    "cuGraphInstantiateWithFlags": (_OUT, c_void_p, c_uint64),
    "cuGraphGetNodes": (c_void_p, c_void_p, POINTER(c_size_t)),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGraphExecDestroy": (c_void_p,),
    "cuGraphDestroy": (c_void_p,),
    "cuEventCreate": (_OUT, c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuModuleLoadData": (_OUT, c_void_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_OUT, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuFuncGetAttribute": (POINTER(c_int), c_int, c_void_p),
    "cuLaunchKernelEx": (POINTER(LaunchConfig), c_void_p, _OUT, c_void_p),
    "cuLinkCreate_v2": (c_uint, POINTER(c_int), _OUT, _OUT),
    "cuLinkAddData_v2": (
        *(c_void_p, c_int, c_void_p, c_size_t, c_char_p),
        *(c_uint, POINTER(c_int), _OUT),
    ),
    "cuLinkComplete": (c_void_p, _OUT, POINTER(c_size_t)),
    "cuLinkDestroy": (c_void_p,),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (POINTER(c_int), c_void_p, c_int, c_size_t),
    "cuOccupancyMaxActiveClusters": (POINTER(c_int), c_void_p, POINTER(LaunchConfig)),
    "cuTensorMapEncodeTiled": (
        *(c_void_p, c_int, c_uint, c_void_p, POINTER(c_uint64), POINTER(c_uint64)),
        *(POINTER(c_uint), POINTER(c_uint), c_int, c_int, c_int, c_int),
    ),
    "cuTensorMapEncodeIm2col": (
        *(c_void_p, c_int, c_uint, c_void_p, POINTER(c_uint64), POINTER(c_uint64)),
        *(POINTER(c_int), POINTER(c_int), c_uint, c_uint, POINTER(c_uint)),
        *(c_int, c_int, c_int, c_int),
    ),
}
"""What is called of the driver: the types of arguments. All return a number, 0 where they did their work."""

MISSING = 500
"""CUDA's number for a function that is not there."""


ORIGIN = Origin("NVIDIA's driver")
"""A driver's threads, memory and streams are those of the process that opened it."""


class NoDriverError(Exception):
    """There is no driver, or none that works; the text says which."""


class Library:
    """The driver's functions.

    Args:
        functions: the library as ctypes loaded it.
    """

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self._found: dict[str, Callable[..., int]] = {}

    def function(self, name: str) -> Callable[..., int]:
        """A function that returns CUDA's number for what happened."""
        found = self._found.get(name)
        if found is None:
            try:
                found = getattr(self._functions, name)
            except AttributeError:
                text = "the driver is too old for it: 12.3 (545) is the first that will do"
                raise DriverError(name, MISSING, "CUDA_ERROR_NOT_FOUND", text) from None
            found.argtypes, found.restype = SIGNATURES[name], c_int
            self._found[name] = found
        return found

    def call(self, name: str, *arguments: object) -> None:
        """Call a function; an error is a ``DriverError``."""
        code = self.function(name)(*arguments)
        if code:
            self.fail(name, code, arguments)

    def fail(self, name: str, code: int, arguments: tuple[object, ...], log: str = "") -> None:
        """Raise what a function's number says."""
        shown = ", ".join(_shown(argument) for argument in arguments)
        call = f"{name.removesuffix('_v2')}({shown})"
        raise DriverError(call, code, *self._words(code), log)

    def _words(self, code: int) -> tuple[str, str]:
        found = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            known = self.function(name)(code, byref(text)) == 0
            found.append(text.value.decode("utf-8", "replace") if known and text.value else "")
        return found[0] or "an error that CUDA has no name for", found[1]

    def number(self, name: str, *arguments: object) -> int:
        """What a function gives by its first argument, a number of 32 bits."""
        found = c_int()
        self.call(name, byref(found), *arguments)
        return found.value

    def handle(self, name: str, *arguments: object) -> c_void_p:
        """What a function gives by its first argument, something that it made."""
        found = c_void_p()
        self.call(name, byref(found), *arguments)
        return found


def _shown(argument: object) -> str:
    """An argument as an error shows it."""
    if isinstance(argument, bytes):
        return repr(argument[:40].decode("ascii", "replace"))
    if isinstance(argument, c_void_p):
        return hex(argument.value or 0)
    if isinstance(argument, int | str | None):
        return (
            str(argument) if not isinstance(argument, int) or argument < 1 << 40 else hex(argument)
        )
    value = getattr(argument, "value", None)
    return "..." if value is None else str(value)


@cache
def library() -> Library:
    """The driver of this machine, loaded once.

    Raises:
        NoDriverError: there is none, or it finds no device that works.
    """
    windows = sys.platform == "win32"
    name = "nvcuda.dll" if windows else "libcuda.so.1"
    try:
        loaded = getattr(ctypes, "WinDLL" if windows else "CDLL")(name)
    except OSError as error:
        raise NoDriverError(f"there is no NVIDIA driver ({error})") from None
    ORIGIN.begin()
    found = Library(loaded)
    try:
        found.call("cuInit", 0)
    except DriverError as error:
        raise NoDriverError(f"NVIDIA's driver does not work: {error}") from None
    return found
