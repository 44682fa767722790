"""NVIDIA's GPUs by their own driver as a row of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..base.backend import Backend, DeviceInfo, Request

if TYPE_CHECKING:
    from ...graph.graph import Graph
    from ...lower.plan import Plan
    from ...optimizer.targets import Target
    from ..base.device_array import DeviceArray
    from ..base.program import Program
    from ..base.rules import LowerRules
    from .machine import Machine
    from .program import CudaProgram


class CudaBackend(Backend):
    """NVIDIA's GPUs, by nothing but the driver."""

    name = "cuda"
    target = "cuda"
    spelling = "cuda, cuda:1"
    several = True
    tunes = True

    def devices(self) -> Sequence[DeviceInfo]:
        """The GPUs of this machine; none where there is no driver. Emulated ones are not listed."""
        from .opening import machines

        return tuple(
            DeviceInfo(
                self.name if number == 0 else f"{self.name}:{number}",
                machine.name,
                "DiscreteGPU",
                f"CUDA {machine.driver // 1000}.{machine.driver % 1000 // 10}",
                (machine.arch,),
                {
                    "memory": machine.memory,
                    "processors": machine.processors,
                    "shared-memory": machine.most_shared,
                },
            )
            for number, machine in enumerate(machines())
        )

    def machine(self, device: str) -> Machine:
        """The GPU of that name; it is opened for that."""
        from .opening import opened

        return opened(device).machine

    def rules(self, machine: Machine) -> LowerRules:
        """It runs what a template has code for, as far as its memory goes."""
        from ...lower.groups import Fusing
        from ..base.limits import check_loops, check_values
        from ..base.rules import LowerRules
        from .conv.template import wanted
        from .kernels import AGAIN, limits_of, multipliers_of, runs
        from .machine import ALIGNMENT, TENSOR_CORES

        limits = limits_of(machine)
        cores = machine.capability >= TENSOR_CORES

        def check(plan: Plan, graph: Graph) -> None:
            check_loops(plan)
            check_values(plan, graph, limits)

        return LowerRules(
            lambda spec: runs(spec, machine),
            alignment=ALIGNMENT,
            keeps=True,
            largest=limits.segment,
            fusing=Fusing(joins=True, halves=cores, blocks=True, beside=True),
            side_by_side=True,
            multipliers=multipliers_of(machine),
            channels_last=lambda node: wanted(node, machine),
            again=AGAIN,
            check=check,
        )

    def compile(self, plan: Plan, request: Request) -> Program:
        """The plan as kernels, tuned where that is asked for, and loaded."""
        from .opening import opened
        from .program import CudaProgram
        from .tuning import keep_choices, known_choices, tune

        device, tuning, saved = opened(request.device), request.tuning, request.saved
        choices = {} if saved else known_choices(device.machine, tuning.cache)
        if tuning.wanted and not saved:
            found = tune(plan, device, known=choices, progress=tuning.progress)
            keep_choices(device.machine, found.choices, tuning.cache)
            choices |= found.choices
        return CudaProgram(
            plan,
            device,
            storage=request.storage,
            saved=saved,
            cache=request.cache,
            choices=choices,
        )

    def taken(self, device: str, value: object, what: str) -> DeviceArray | None:
        """What lies in memory of CUDA, and on this GPU, as a copy there."""
        from .sharing import is_cuda, taken

        if not is_cuda(value):
            return None
        from .opening import opened

        return taken(opened(device), value, what)

    def target_model(self, machine: Machine) -> Target:
        """A round roofline: plans are the same on every GPU."""
        from ...optimizer.targets import find_target

        return find_target("cuda")

    def measured_model(self, program: CudaProgram) -> Target:
        """The roofline of the program's GPU."""
        from .rates import rates_of

        return rates_of(program.device)

    def versions(self) -> Sequence[str]:
        """What code is made with."""
        import llvmlite

        return (f"llvmlite {llvmlite.__version__}",)

    def ready(self) -> bool:
        """Whether there is a GPU, and neither it nor its driver is too old."""
        from .opening import ready

        return ready()

    def remedy(self) -> str:
        """The driver."""
        from .opening import reason

        return reason() or "NVIDIA's driver, 545 or newer"

    def details(self, device: DeviceInfo) -> Sequence[str]:
        """Its name, driver, architecture and memory."""
        from ...io.memory import format_size

        memory = format_size(device.limits.get("memory", 0))
        processors = device.limits.get("processors", 0)
        return (
            f"{device.title}, {device.driver}",
            f"{', '.join(device.features)}, {processors} multiprocessors, {memory}",
        )


BACKEND = CudaBackend()
