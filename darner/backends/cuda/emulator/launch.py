"""A launch's code for the host's processor: compiled, and called for all blocks, on all cores."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Protocol

from ....graph.errors import ForkError, InternalError
from ....graph.forks import native_call
from ...base.llvm import Target, binding, emitted, run_passes
from ..code import parsed
from ..stage import Grid, Stage
from .blocks import APART, OUTSIDE, REPORT_WORDS, SHUFFLE, STUCK

Pointers = Sequence[tuple[int, int]]
"""Addresses and bytes of what a launch has bound."""
Launch = Callable[[Grid, Pointers], None]
_own = threading.local()
FEW = 1 << 14
"""Threads up to which one core runs all blocks."""


def compile(stage: Stage) -> Launch:
    """What runs a launch: called with its blocks along each axis, and the addresses and bytes of its bindings.

    Raises:
        InternalError: while it runs: a kernel reads or writes outside of what is bound, or not all of its threads come to a barrier.
    """
    code = _loaded(stage.ir)

    def launch(groups: Grid, pointers: Pointers) -> None:
        if len(pointers) != len(stage.bindings):
            raise InternalError(
                f"a kernel with {len(stage.bindings)} bindings is given {len(pointers)}"
            )
        for (address, _), bound in zip(pointers, stage.bindings, strict=True):
            if address % 16:
                raise InternalError(f"{bound} lies at {address:#x}, not at a multiple of 16")
        code.run(groups, pointers, stage)

    return launch


class Loaded(Protocol):
    """Code that was loaded."""

    def close(self) -> None:
        """Free it."""


class Library(Loaded, Protocol):
    """What has functions that can be called."""

    def __getitem__(self, name: str) -> int:
        """The address of one."""


class Code:
    """Loaded code of a launch."""

    def __init__(self, text: str) -> None:
        engine, library = _linked(text)
        kinds = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self._function = ctypes.CFUNCTYPE(None, *kinds)(library["kernel"])
        self._close = weakref.finalize(self, _dispose, [engine, library])
        self._close.atexit = False

    def run(self, groups: Grid, pointers: Pointers, stage: Stage) -> None:
        """Run all blocks."""
        count = groups[0] * groups[1] * groups[2]
        flat = [number for pair in pointers for number in pair]
        bindings = (ctypes.c_uint64 * max(len(flat), 1))(*flat)
        report = (ctypes.c_uint64 * REPORT_WORDS)()
        parts = min(_cores(), count) if count * stage.threads > FEW else 1
        if stage.cooperative:
            parts = 1

        def run_part(part: int) -> None:
            first, last = count * part // parts, count * (part + 1) // parts
            self._function(bindings, first, last, report)

        if parts <= 1:
            run_part(0)
        else:
            list(_workers().map(run_part, range(parts)))
        if report[0]:
            raise InternalError(_told(list(report), stage))


def _told(report: Sequence[int], stage: Stage) -> str:
    """What went wrong, in words."""
    what, group, which, start, size = report[:5]
    where = f"block {group} of {stage.groups}"
    if what == OUTSIDE:
        names = (line.split() for line in stage.ir.splitlines() if line.startswith("; memory "))
        name = next((" ".join(words[3:]) for words in names if int(words[2]) == which), "")
        return f"{where}: a kernel reads or writes {size} bytes from byte {start} on, outside of '{name}'"
    if what == STUCK:
        return f"{where}: all blocks wait for what none of them writes"
    kind = "shuffle" if what != APART or which & SHUFFLE else "barrier"
    return f"{where}: not all threads come to the same {kind} (number {which >> 1} of the kernel)"


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _workers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_cores(), "emulated-blocks")


@lru_cache(maxsize=1024)
def _loaded(text: str) -> Code:
    return Code(text)


def _host() -> Target:
    """The processor as LLVM compiles for it, on this thread."""
    if not hasattr(_own, "machine"):
        _own.machine = _new_host()
    found: Target = _own.machine
    return found


def _new_host() -> Target:
    llvm = binding()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    found: Target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features.flatten(), opt=0, jit=True
    )
    return found


def _linked(text: str) -> tuple[Loaded, Library]:
    llvm = binding()
    with native_call():
        machine = _host()
        module = parsed(text)
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        options = llvm.create_pipeline_tuning_options(speed_level=0)
        builder = llvm.create_pass_builder(machine, options)
        # Kernels are large and run few times here: what takes long to make is not worth it.
        registers = llvm.create_new_module_pass_manager()
        registers.add_always_inliner_pass()
        registers.add_sroa_pass()
        registers.add_simplify_cfg_pass()
        # What splits coroutines is part of every pipeline, and cannot be had by itself.
        for passes in (registers, builder.getModulePassManager()):
            run_passes(passes, module, builder)
        code = emitted(machine, module)
        engine = llvm.create_lljit_compiler(machine, use_jit_link=os.name == "posix")
        made = llvm.JITLibraryBuilder().add_current_process().add_object_img(code)
        return engine, made.export_symbol("kernel").link(engine, "launch")


def _dispose(parts: list[Loaded]) -> None:
    try:
        with native_call():
            while parts:
                parts.pop().close()
    except ForkError:
        return  # LLVM cannot be called in this process any more: the memory stays
