"""GPUs through wgpu as a row of the registry."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...graph.errors import MissingPackageError
from ..base.backend import Backend, DeviceInfo, Request

if TYPE_CHECKING:
    from ...graph.graph import Graph
    from ...lower.plan import Plan
    from ...optimizer.targets import Target
    from ..base.program import Program
    from ..base.rules import LowerRules
    from .machine import Machine
    from .program import WgpuProgram

ADDITIONS = 5.0
"""Of element-wise code, in the time that a GPU of the roofline ``wgpu`` moves a byte."""


class WgpuBackend(Backend):
    """Any GPU that Vulkan, Metal or DX12 knows."""

    name = "gpu"
    target = "gpu"
    spelling = "gpu, gpu:1"
    several = True
    tunes = True

    def devices(self) -> Sequence[DeviceInfo]:
        """The GPUs of this machine; none where the package is not installed."""
        from ..base.registry import meant
        from .device import machines

        try:
            found = machines()
        except MissingPackageError:
            return ()
        first = self.name if meant(self.name) == self.name else f"{self.name}:0"
        return tuple(
            DeviceInfo(
                first if number == 0 else f"{self.name}:{number}",
                machine.name,
                machine.kind,
                f"{machine.api}, {machine.driver}",
                tuple(sorted(machine.features)),
                dict(machine.limits),
            )
            for number, machine in enumerate(found)
        )

    def machine(self, device: str) -> Machine:
        """The GPU of that name, with what was measured of it; it is opened for that."""
        from .device import opened

        return opened(device).machine

    def rules(self, machine: Machine) -> LowerRules:
        """It runs what a template has code for, within the limits of its buffers."""
        from ...codegen.simt.families import template_of
        from ...codegen.simt.machine import GRANULE
        from ...lower.again import Price
        from ...lower.groups import Fusing
        from ..base.limits import check_loops, check_values
        from ..base.rules import LowerRules
        from .kernels import check_types
        from .machine import limits_of, segment_of

        def check(plan: Plan, graph: Graph) -> None:
            check_types(plan, machine)
            check_loops(plan)
            check_values(plan, graph, limits_of(machine))

        return LowerRules(
            lambda spec: template_of(spec, machine) is not None,
            alignment=GRANULE,
            largest=segment_of(machine),
            fusing=Fusing(joins=True),
            side_by_side=True,
            again=Price(ADDITIONS, 1 << 16),
            check=check,
        )

    def compile(self, plan: Plan, request: Request) -> Program:
        """The plan as shaders, tuned where that is asked for."""
        from .device import opened
        from .program import WgpuProgram
        from .tuning import keep_choices, known_choices, tune

        gpu, tuning, saved = opened(request.device), request.tuning, request.saved
        choices = {} if saved else known_choices(gpu.machine, tuning.cache)
        if tuning.wanted and not saved:
            found = tune(plan, gpu, known=choices, progress=tuning.progress)
            keep_choices(gpu.machine, found.choices, tuning.cache)
            choices |= found.choices
        return WgpuProgram(plan, gpu, storage=request.storage, saved=saved, choices=choices)

    def target_model(self, machine: Machine) -> Target:
        """A round roofline: plans are the same on every GPU."""
        from ...optimizer.targets import find_target

        return find_target("wgpu")

    def measured_model(self, program: WgpuProgram) -> Target:
        """The roofline of the program's GPU."""
        from .rates import measured_rates

        return measured_rates(program.device).target

    def versions(self) -> Sequence[str]:
        """What shaders are written with."""
        import llvmlite

        return (f"llvmlite {llvmlite.__version__}",)

    def remedy(self) -> str:
        """The package, or a driver."""
        missing = importlib.util.find_spec("wgpu") is None
        return "pip install 'darner[gpu]'" if missing else "no driver of Vulkan, Metal or DX12"

    def details(self, device: DeviceInfo) -> Sequence[str]:
        """Its name, driver, limit and features."""
        from ...io.memory import format_size

        limit = format_size(device.limits.get("max-storage-buffer-binding-size", 0))
        return (
            f"{device.title}, {device.kind}, {device.driver}",
            f"tensors of up to {limit}; {', '.join(device.features)}",
        )


BACKEND = WgpuBackend()
