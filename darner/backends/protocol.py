"""What a session asks of a backend, and the backends by name.

A backend makes a plan of a graph (``lower_for``) and a ``Program`` of a plan (``compile_for``). It is imported when it is first asked for.

    >>> known_devices()
    ('cpu', 'reference', 'gpu')
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from sys import maxsize
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..graph.data import Array
from ..graph.errors import ArgumentError, UnsupportedError
from ..graph.graph import Graph
from ..graph.habits import hint
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

    @property
    def on_host(self) -> bool:
        """Whether its memory is the process's own."""

    def take(self, buffer: int, other: Any, output: int) -> None:
        """Let an input be the output of another program on the same device, where it lies; not for programs on the host."""

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


@dataclass(frozen=True)
class Tuning:
    """Whether kernels are timed on the device to choose between ways to write them, and who remembers.

    Attributes:
        wanted: whether what is not known yet is timed.
        cache: where choices are kept, under the device, its driver and darner's version.
        progress: is told how many specs are done, of how many, and which comes next.
    """

    wanted: bool = False
    cache: ObjectCache | None = None
    progress: Callable[[int, int, str], None] | None = None


class _Asked(NamedTuple):
    """What a program is made of; see ``compile_for``."""

    device: str
    plan: Plan
    threads: int | None
    storage: Storage
    cache: ObjectCache | None
    fixed: Collection[int]
    saved: bytes | None
    arena: Bytes | None
    tuning: Tuning


def _reference(asked: _Asked) -> Program:
    from .host import ReferenceProgram

    return ReferenceProgram(asked.plan, storage=asked.storage, arena=asked.arena)


def _cpu(asked: _Asked) -> Program:
    from .host import HostCpuProgram

    return HostCpuProgram(
        asked.plan,
        threads=asked.threads,
        storage=asked.storage,
        cache=asked.cache,
        fixed=asked.fixed,
        saved=asked.saved,
        arena=asked.arena,
    )


def _gpu(asked: _Asked) -> Program:
    from .wgpu.device import opened
    from .wgpu.program import WgpuProgram
    from .wgpu.tuning import keep_choices, known_choices, tune

    gpu, tuning = opened(asked.device), asked.tuning
    choices = {} if asked.saved else known_choices(gpu.machine, tuning.cache)
    if tuning.wanted and not asked.saved:
        found = tune(asked.plan, gpu, known=choices, progress=tuning.progress)
        keep_choices(gpu.machine, found.choices, tuning.cache)
        choices |= found.choices
    return WgpuProgram(asked.plan, gpu, storage=asked.storage, saved=asked.saved, choices=choices)


_DEVICES: dict[str, Callable[[_Asked], Program]] = {
    "cpu": _cpu,
    "reference": _reference,
    "gpu": _gpu,
}


def known_devices() -> tuple[str, ...]:
    """The names of all devices."""
    return tuple(_DEVICES)


def check_device(device: Any) -> str:
    """A device's name, or an error that says which there are; a GPU may be told by number or name: ``gpu:1``, ``gpu:nvidia``."""
    if isinstance(device, str) and (device in _DEVICES or device.startswith("gpu:")):
        return device
    raise ArgumentError(
        f"there is no device {device!r}",
        hint=hint("device", str(device).partition(":")[0])
        or f"the devices are {', '.join(_DEVICES)}; gpu:1 or gpu:name where there are several",
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
    device_kernels = _kernels_of(device)
    whole, ended, segment = set(WHOLE), set(device_kernels.ended), None
    while True:
        plan = lower(
            graph,
            target=target,
            whole=whole,
            ended=ended,
            options=options,
            alignment=device_kernels.alignment,
            segment=segment,
        )
        device_kernels.check(plan, graph)
        without = {digest for digest, spec in plan.specs.items() if not device_kernels.runs(spec)}
        lacking = [kernel for kernel in plan.kernels if kernel.spec in without]
        if not lacking:
            if segment is not None or plan.arena_bytes <= device_kernels.most:
                return plan
            segment = device_kernels.most
            continue
        named = {name for kernel in lacking for name in plan.spec(kernel).ops}
        named &= whole | ended
        if not named:
            spec = plan.spec(lacking[0])
            ops = ", ".join(dict.fromkeys(spec.ops))
            raise UnsupportedError(
                f"the device '{device}' has no kernel of kind '{spec.kind}' for {ops}"
            ).located(spec.ops[-1], lacking[0].label, "", lacking[0].source)
        whole -= named
        ended -= named


class _Kernels(NamedTuple):
    """What lowering has to know of a device.

    Attributes:
        runs: whether it has code for a spec.
        alignment: where every value of the arena begins at a multiple of.
        most: bytes of its largest piece of memory; a larger arena lies in several.
        check: raises where a value of a plan, made of a graph, is more than the device can hold.
        ended: the ops by index whose kernels may end with what is element-wise after them.
    """

    runs: Callable[[Spec], bool]
    alignment: int
    most: int
    check: Callable[[Plan, Graph], None]
    ended: Collection[str] = ()


def _kernels_of(device: str) -> _Kernels:
    if target_of(device) == "cpu":
        from ..lower.roles import ENDED
        from .cpu.kernels import template_of

        def has_code(spec: Spec) -> bool:
            return template_of(spec) is not None

        return _Kernels(has_code, ALIGNMENT, maxsize, lambda plan, graph: None, ENDED)
    from ..codegen.simt.families import template_of as shader_of
    from ..codegen.simt.machine import GRANULE
    from .wgpu.device import opened
    from .wgpu.kernels import check_types
    from .wgpu.limits import check_values, segment_of

    machine = opened(device).machine

    def check(plan: Plan, graph: Graph) -> None:
        check_types(plan, machine)
        check_values(plan, graph, machine)

    return _Kernels(
        lambda spec: shader_of(spec, machine) is not None, GRANULE, segment_of(machine), check
    )


def start_for(device: str) -> None:
    """Begin with what the first program on a device needs whatever its plan is, beside the caller who makes the plan."""
    if target_of(device) == "cpu":
        from .cpu.runtime.steps import make_ahead

        make_ahead()


def compile_for(
    device: str,
    plan: Plan,
    threads: int | None = None,
    storage: Storage | None = None,
    cache: ObjectCache | None = None,
    fixed: Collection[int] = (),
    saved: bytes | None = None,
    arena: Bytes | None = None,
    tuning: Tuning | None = None,
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
        tuning: whether kernels are timed to choose between ways to write them, where the device has several.
    """
    if plan.target != target_of(device):
        raise ArgumentError(f"the plan was made for '{plan.target}', not for '{device}'")
    given = (device, plan, threads, storage or {}, cache, fixed, saved, arena)
    return _DEVICES[plan.target](_Asked(*given, tuning or Tuning()))
