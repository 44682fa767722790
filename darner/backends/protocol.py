"""What a session asks of a backend, and the backends by name.

A backend makes a plan of a graph (``lower_for``) and a ``Program`` of a plan (``compile_for``). It is imported when it is first asked for.

    >>> known_devices()
    ('cpu', 'reference', 'gpu')
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..graph.data import Array
from ..graph.errors import ArgumentError, UnsupportedError
from ..graph.graph import Graph
from ..lower.plan import ALIGNMENT, Plan, Spec
from .memory import Bytes

if TYPE_CHECKING:
    from .cpu.cache import ObjectCache


class Program(Protocol):
    """A plan, compiled, with memory for its values.

    Attributes:
        plan: what it runs.
        arena: the memory of what a run makes on the way.
        storage: the memory of parameters and states by name; programs may share it.
    """

    plan: Plan
    arena: Bytes
    storage: dict[str, Array]

    @property
    def arrays(self) -> Sequence[Array]:
        """The values of the plan's buffers: their memory, or copies where it is a device's."""

    @property
    def threads(self) -> int:
        """How many threads run it."""

    @property
    def saved(self) -> bytes:
        """What lets an equal program be made without compiling anything, in another process too."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory besides parameters and states."""

    def read(self, buffer: int, out: Array | None = None) -> Array:
        """A buffer's value, as a copy or in ``out``."""

    def write(self, buffer: int, value: Array) -> None:
        """Give a buffer a value of its type and shape."""

    def bind(self, buffer: int, array: Array | None) -> None:
        """Let an input be read from the caller's own memory, or from the program's own again (None)."""

    def prepare(self, buffer: int | None = None) -> None:
        """Make ready what changes seldom, or one buffer of it, as it is now: before the first step, and after every change."""

    @property
    def reads(self) -> frozenset[int]:
        """The buffers that a step reads or changes themselves, and not only what ``prepare`` made of them."""

    def recovery(self, buffer: int) -> Callable[[], Array] | None:
        """What gives the value that a buffer had when it was prepared, if that can be read from what was made of it."""

    def run(
        self, first: int = 0, last: int | None = None, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Start all kernels, or some. Without ``last`` updated leaves take their new values at the end."""

    def sync(self) -> None:
        """Wait until what was started is done."""

    def close(self) -> None:
        """Free threads, code and memory."""


Storage = Mapping[str, Array]


def _reference(
    device: str,
    plan: Plan,
    threads: int | None,
    storage: Storage,
    cache: ObjectCache | None,
    fixed: Collection[int],
    saved: bytes | None,
    arena: Bytes | None,
) -> Program:
    from .host import ReferenceProgram

    return ReferenceProgram(plan, storage=storage, arena=arena)


def _cpu(
    device: str,
    plan: Plan,
    threads: int | None,
    storage: Storage,
    cache: ObjectCache | None,
    fixed: Collection[int],
    saved: bytes | None,
    arena: Bytes | None,
) -> Program:
    from .host import HostCpuProgram

    return HostCpuProgram(
        plan,
        threads=threads,
        storage=storage,
        cache=cache,
        fixed=fixed,
        saved=saved,
        arena=arena,
    )


def _gpu(
    device: str,
    plan: Plan,
    threads: int | None,
    storage: Storage,
    cache: ObjectCache | None,
    fixed: Collection[int],
    saved: bytes | None,
    arena: Bytes | None,
) -> Program:
    from .wgpu.device import opened
    from .wgpu.program import WgpuProgram

    return WgpuProgram(plan, opened(device), storage=storage, saved=saved, fixed=fixed)


_DEVICES: dict[str, Callable[..., Program]] = {"cpu": _cpu, "reference": _reference, "gpu": _gpu}


def known_devices() -> tuple[str, ...]:
    """The names of all devices."""
    return tuple(_DEVICES)


def check_device(device: Any) -> str:
    """A device's name, or an error that says which there are; a GPU may be told by number or name: ``gpu:1``, ``gpu:nvidia``."""
    if isinstance(device, str) and (device in _DEVICES or device.startswith("gpu:")):
        return device
    raise ArgumentError(
        f"there is no device {device!r}",
        hint=f"the devices are {', '.join(_DEVICES)}; gpu:1 or gpu:name where there are several",
    )


def target_of(device: str) -> str:
    """What a plan for a device is lowered for: the kind of device.

    >>> target_of("gpu:1")
    'gpu'
    """
    return check_device(device).partition(":")[0]


def lower_for(device: str, graph: Graph, options: Mapping[str, Any] | None = None) -> Plan:
    """The plan of a graph for a device; what the device cannot run is an error here.

    Composites for which a device has no kernel are written out.
    """
    from ..lower.lower import lower
    from ..lower.roles import WHOLE

    target = target_of(device)
    if target == "reference":
        return lower(graph, target=target, options=options)
    runs, alignment = _kernels_of(device)
    whole = set(WHOLE)
    while True:
        plan = lower(graph, target=target, whole=whole, options=options, alignment=alignment)
        without = {digest for digest, spec in plan.specs.items() if not runs(spec)}
        lacking = [kernel for kernel in plan.kernels if kernel.spec in without]
        if not lacking:
            return plan
        named = {name for kernel in lacking for name in plan.spec(kernel).ops} & whole
        if not named:
            spec = plan.spec(lacking[0])
            ops = ", ".join(dict.fromkeys(spec.ops))
            raise UnsupportedError(
                f"the device '{device}' has no kernel of kind '{spec.kind}' for {ops}"
            ).located(spec.ops[-1], lacking[0].label, "", lacking[0].source)
        whole -= named


def _kernels_of(device: str) -> tuple[Callable[[Spec], bool], int]:
    """Whether a device has code for a spec, and the alignment that its memory wants."""
    if target_of(device) == "cpu":
        from .cpu.kernels import template_of

        return (lambda spec: template_of(spec) is not None), ALIGNMENT
    from .wgpu.device import GRANULE, opened
    from .wgpu.kernels import template_of as shader_of

    machine = opened(device).machine
    return (lambda spec: shader_of(spec, machine) is not None), GRANULE


def compile_for(
    device: str,
    plan: Plan,
    threads: int | None = None,
    storage: Storage | None = None,
    cache: ObjectCache | None = None,
    fixed: Collection[int] = (),
    saved: bytes | None = None,
    arena: Bytes | None = None,
) -> Program:
    """The program of a plan on a device.

    Args:
        device: its name.
        plan: what ``lower_for`` made for this device.
        threads: how many run it, where the device has threads; as many as there are cores when left out.
        storage: memory of parameters and states by name; what is missing is made.
        cache: where compiled code is kept.
        fixed: buffers that change seldom, which the device may keep in an order of its own; see ``Program.prepare``.
        saved: what ``Program.saved`` of an equal program was, on this very machine.
        arena: that of a program that never runs at the same time, for this one to use too.
    """
    if plan.target != target_of(device):
        raise ArgumentError(f"the plan was made for '{plan.target}', not for '{device}'")
    made = _DEVICES[plan.target]
    return made(device, plan, threads, storage or {}, cache, fixed, saved, arena)
