"""Devices by name: those that the driver knows, and the emulated ones that tests run on."""

from __future__ import annotations

import threading

from ...graph.errors import ArgumentError, DeviceMemoryError, RunError, UnsupportedError
from ...graph.forks import watch
from .device import Device
from .driver.context import CudaContext
from .driver.context import machines as machines_of
from .driver.library import NoDriverError, library
from .emulator.context import EmulatedContext
from .interface import MEMORY_ERROR, DriverError
from .machine import Machine

EMULATED = "emulated"
"""What follows the colon where a device in software is meant; an architecture may stand behind it: ``cuda:emulated-sm_80``."""

OLDEST = (7, 0)
"""The least compute capability that code is made for."""
OLDEST_DRIVER = 12030
"""The least version of CUDA whose driver knows all that is called, and reads the PTX."""

_lock = threading.RLock()
_machines: list[Machine] | None = None
_open: dict[int | str, Device] = {}
_reason = ""


class _Locked:
    """The lock above, which another thread may have when a process is forked."""

    def after_fork(self) -> None:
        global _lock
        _lock = threading.RLock()


_LOCKED = _Locked()
watch(_LOCKED)


def machines() -> list[Machine]:
    """The GPUs of this machine, in the order of their numbers; found once."""
    global _machines, _reason
    with _lock:
        if _machines is None:
            try:
                _machines = machines_of(library())
                _reason = "" if _machines else "NVIDIA's driver knows no GPU"
            except (NoDriverError, DriverError) as error:
                _machines, _reason = [], str(error)
        return list(_machines)


def reason() -> str:
    """Why there is no GPU, where there is none."""
    machines()
    return _reason


def opened(name: str = "cuda") -> Device:
    """The GPU that ``cuda``, ``cuda:1`` or ``cuda:some name`` means, opened where it is not yet.

    Raises:
        ArgumentError: there is none of that name.
    """
    wanted = name.partition(":")[2]
    key = wanted if _is_emulated(wanted) else find(name)
    with _lock:
        device = _open.get(key)
        if device is None:
            device = _open[key] = Device(_context(key))
        return device


def _context(key: int | str) -> CudaContext | EmulatedContext:
    if isinstance(key, int):
        machine = machines()[key]
        _check(machine)
        try:
            return CudaContext(library(), key)
        except DriverError as error:
            kind = DeviceMemoryError if error.code == MEMORY_ERROR else RunError
            raise kind(
                f"the GPU '{machine.name}' cannot be opened: {error}",
                hint="nvidia-smi shows which other processes use it, and whether one has it to itself",
            ) from error
    arch = key.removeprefix(EMULATED).removeprefix("-")
    return EmulatedContext(Machine.without_card(arch or "sm_90a", emulated=True))


def _check(machine: Machine) -> None:
    """Refuse a card or a driver that is too old."""
    if machine.capability < OLDEST:
        capability, oldest = (".".join(map(str, one)) for one in (machine.capability, OLDEST))
        raise UnsupportedError(
            f"the GPU '{machine.name}' has compute capability {capability}, and code is made for {oldest} and newer",
            hint="device='gpu' reaches it through Vulkan",
        )
    if machine.driver < OLDEST_DRIVER:
        raise UnsupportedError(
            f"the driver of '{machine.name}' is for CUDA {machine.driver // 1000}.{machine.driver % 1000 // 10}, which is too old",
            hint="install 545 (CUDA 12.3) or newer; device='gpu' works with this one",
        )


def ready() -> bool:
    """Whether the first GPU, if there is one, can be used."""
    found = machines()[:1]
    try:
        for machine in found:
            _check(machine)
    except UnsupportedError:
        return False
    return bool(found)


def _is_emulated(wanted: str) -> bool:
    return wanted == EMULATED or wanted.startswith(f"{EMULATED}-sm_")


def find(name: str) -> int:
    """The number of the GPU that a name means."""
    found = machines()
    if not found:
        raise ArgumentError(
            f"there is no NVIDIA GPU: {_reason}",
            hint="install NVIDIA's driver, 545 or newer; device='gpu' takes any GPU with Vulkan, Metal or DX12, and device='cpu' works everywhere",
        )
    wanted = name.partition(":")[2]
    if not wanted:
        return 0
    count = "1 NVIDIA GPU" if len(found) == 1 else f"{len(found)} NVIDIA GPUs"
    listed = "; ".join(f"cuda:{i} is {machine.name}" for i, machine in enumerate(found))
    if wanted.isdecimal():
        if int(wanted) >= len(found):
            raise ArgumentError(
                f"there is no NVIDIA GPU {wanted}: this machine has {count}", hint=listed
            )
        return int(wanted)
    fits = [i for i, machine in enumerate(found) if wanted.lower() in machine.name.lower()]
    if not fits:
        raise ArgumentError(
            f"no NVIDIA GPU is called '{wanted}': this machine has {count}", hint=listed
        )
    return fits[0]
