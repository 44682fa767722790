"""What a backend is: the one interface between a device and everything that uses devices.

A backend is a row of the registry (``registry.py``): an object of a class that is derived from ``Backend``. Its module is
imported when the device is first asked for, so it imports whatever is heavy inside its methods.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ...graph.data import Array
    from ...io.memory import Bytes
    from ...lower.plan import Plan
    from ...optimizer.targets import Target
    from .cache import ObjectCache
    from .device_array import DeviceArray
    from .keys import Keyed
    from .program import Program
    from .rules import LowerRules


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


@dataclass(frozen=True)
class Tuning:
    """Whether kernels are timed on the device to choose between ways to write them, and where choices are kept.

    Attributes:
        wanted: whether what is not known yet is timed.
        cache: where choices are kept, under the device, its driver and darner's version.
        progress: is told how many specs are done, of how many, and which comes next.
    """

    wanted: bool = False
    cache: ObjectCache | None = None
    progress: Callable[[int, int, str], None] | None = None


@dataclass(frozen=True)
class Request:
    """What a program is made with, besides its plan.

    Attributes:
        device: its name as the user gave it.
        threads: how many run the program, where the device has threads; as many as there are cores when None.
        storage: memory of parameters and states by name; what is missing is made.
        cache: where compiled code is kept.
        fixed: buffers that change seldom, which the device may keep in an order of its own; see ``Program.prepare``.
        saved: what ``Program.saved`` of an equal program was, on this very machine.
        arena: that of a program that never runs at the same time, for this one to use too.
        tuning: whether kernels are timed to choose between ways to write them, where the device has several.
    """

    device: str
    threads: int | None = None
    storage: Mapping[str, Array] = field(default_factory=dict)
    cache: ObjectCache | None = None
    fixed: Collection[int] = ()
    saved: bytes | None = None
    arena: Bytes | None = None
    tuning: Tuning = field(default_factory=Tuning)


class Backend(Protocol):
    """One kind of device. Methods that have a body here need not be written by those who derive from it.

    Attributes:
        name: what ``device=`` takes: ``cpu``.
        target: what its plans are lowered for (``Plan.target``): its own name, or that of another backend whose plans it runs.
        spelling: how help writes it, where that is not its name: ``gpu, gpu:1``.
        several: whether a machine may have several of them, told apart by what follows a colon: ``gpu:1``.
        required: whether it is to work on every machine; ``darner doctor`` has a problem where it does not.
        compiles: whether it has compiled code, which is worth keeping on disk.
        tunes: whether it can time kernels to choose between ways to write them (``tune=True``).
    """

    name: str
    target: str
    spelling: str = ""
    several: bool = False
    required: bool = False
    compiles: bool = True
    tunes: bool = False

    @abstractmethod
    def devices(self) -> Sequence[DeviceInfo]:
        """Those of this machine, the first of which is meant by the bare name; none where a package or driver is missing."""

    @abstractmethod
    def machine(self, device: str) -> Keyed:
        """What code is made for. Its ``key()`` is part of every cache key, so it tells all that code depends on and darner's own source does not."""

    @abstractmethod
    def rules(self, machine: Any) -> LowerRules:
        """What lowering has to know of such a machine."""

    @abstractmethod
    def compile(self, plan: Plan, request: Request) -> Program:
        """The program of a plan that was lowered for ``target``."""

    @abstractmethod
    def target_model(self, machine: Any) -> Target:
        """The roofline that the optimizer prices with."""

    # ------------------------------------------------------------- with a usual answer

    def measured_model(self, program: Any) -> Target | None:
        """The roofline of the machine that a program runs on, measured, which profiles compare with; None where it is not measured."""
        return None

    def taken(self, device: str, value: object, what: str) -> DeviceArray | None:
        """What another library has on this very device, as a copy there; None where it is not its memory. ``what`` it is for, errors say."""
        return None

    def versions(self) -> Sequence[str]:
        """Packages that take part in making its code, with their versions; part of every key of a build."""
        return ()

    def warm_up(self) -> None:
        """Begin with what the first program needs whatever its plan is, beside the caller who makes the plan."""
        return

    def ready(self) -> bool:
        """Whether this machine has one of its devices that sessions can use."""
        return bool(self.devices())

    def remedy(self) -> str:
        """What would help where there are no ``devices``, or they do not work: a package to install, a driver."""
        return "there is none on this machine"

    def facts(self) -> dict[str, Any]:
        """What ``darner doctor`` tells of the processor that the device is, in values that JSON can hold; empty for what has more than ``DeviceInfo`` to tell."""
        return {}

    def details(self, device: DeviceInfo) -> Sequence[str]:
        """Lines about a device for people, under its name."""
        return ()
