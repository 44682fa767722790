"""LLVM by way of llvmlite, on several threads at a time.

LLVM lets threads work on modules of contexts of their own at the same time; llvmlite lets one thread in at a time, whatever it does. A target machine belongs to one thread.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from types import ModuleType
from typing import Protocol

from ...graph.forks import watch


class Parsed(Protocol):
    """A module of LLVM.

    Attributes:
        triple: for which processor it is.
        data_layout: how its values lie in memory.
    """

    triple: str
    data_layout: str

    def verify(self) -> None:
        """Raise where it is not valid."""


class Target(Protocol):
    """A processor that LLVM makes code for."""

    @property
    def triple(self) -> str:
        """Its name."""

    @property
    def target_data(self) -> object:
        """How values lie in its memory."""


class Passes(Protocol):
    """What LLVM does with a module, pass after pass."""

    def add_always_inliner_pass(self) -> None:
        """Functions that are to be part of those that call them."""

    def add_sroa_pass(self) -> None:
        """Variables as registers."""

    def add_simplify_cfg_pass(self) -> None:
        """Blocks that are one."""

    def add_instruction_combine_pass(self) -> None:
        """Instructions that amount to fewer."""

    def detach(self) -> None:
        """It is freed."""


class _LlvmliteLock:
    """llvmlite lets one thread in at a time, whoever uses it; in a forked child that thread is gone."""

    def after_fork(self) -> None:
        import llvmlite.binding.ffi as ffi

        ffi.lib._lock._lock = threading.RLock()


_LOCK = _LlvmliteLock()


@cache
def binding() -> ModuleType:
    """The binding of llvmlite, whose lock is free in forked children too."""
    import llvmlite.binding as llvm

    watch(_LOCK)
    return llvm


def run_passes(passes: Passes, module: Parsed, builder: object) -> None:
    """Run passes on a module, and free them."""
    try:
        _without_lock("LLVMPY_RunNewModulePassManager", passes, module, builder)
    finally:
        # llvmlite 0.50's own way to free them is hidden by the empty one of its first base.
        from llvmlite.binding.newpassmanagers import NewPassManager

        NewPassManager._dispose(passes)
        passes.detach()


def emitted(machine: Target, module: Parsed, *, text: bool = False) -> bytes:
    """Object code of a module, or what an assembler reads.

    Raises:
        RuntimeError: LLVM makes no code of it.
    """
    import llvmlite.binding.ffi as ffi

    name = "LLVMPY_TargetMachineEmitToMemory"
    with ffi.OutputString() as message:
        buffer = _without_lock(name, machine, module, int(not text), message)
        if not buffer:
            raise RuntimeError(str(message))
    try:
        start = ffi.lib.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _without_lock(name: str, *arguments: object) -> object:
    """Call a function of llvmlite's library without its lock."""
    import llvmlite.binding.ffi as ffi

    locked = getattr(ffi.lib, name)
    found: object = getattr(locked, "_cfn", locked)(*arguments)
    return found
