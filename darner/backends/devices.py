"""What this machine has to run sessions on.

>>> import darner
>>> [device.name for device in darner.devices()][:2]
['cpu', 'reference']
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..graph.errors import MissingPackageError


@dataclass(frozen=True)
class DeviceInfo:
    """Something that sessions can run on.

    Attributes:
        name: what ``device=`` takes.
        title: what it is called by who made it.
        kind: ``processor``, ``NumPy``, ``DiscreteGPU``, ``IntegratedGPU``, ``CPU`` (a driver that poses as a GPU) or ``Unknown``.
        driver: what darner reaches it through.
        features: what it can do that others cannot.
        limits: what it allows, in bytes and counts.
    """

    name: str
    title: str
    kind: str
    driver: str = ""
    features: tuple[str, ...] = ()
    limits: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        driver = f", {self.driver}" if self.driver else ""
        return f"{self.name}: {self.title} ({self.kind}{driver})"


def devices() -> tuple[DeviceInfo, ...]:
    """The devices of this machine, with their features and limits; GPUs are found where the extra ``gpu`` is installed.

    ``device="gpu"`` is the first of them, discrete ones before integrated ones before software; ``"gpu:1"`` the second, and ``"gpu:nvidia"`` the first whose
    title has that word.
    """
    return (*_host(), *_gpus())


def _host() -> tuple[DeviceInfo, ...]:
    from .cpu.runtime.jit import host

    machine = host()
    features = tuple(name[1:] for name in machine.features.split(",") if name.startswith("+"))
    limits = {"cores": machine.cores, "vector-bytes": machine.vector_bytes}
    cpu = DeviceInfo("cpu", machine.cpu, "processor", "LLVM", features, limits)
    return cpu, DeviceInfo("reference", "the oracle", "NumPy")


def _gpus() -> tuple[DeviceInfo, ...]:
    from .wgpu.device import machines

    try:
        found = machines()
    except MissingPackageError:
        return ()
    return tuple(
        DeviceInfo(
            "gpu" if number == 0 else f"gpu:{number}",
            machine.name,
            machine.kind,
            f"{machine.api}, {machine.driver}",
            tuple(sorted(machine.features)),
            dict(machine.limits),
        )
        for number, machine in enumerate(found)
    )
