"""The CPU as a row of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.backend import Backend, DeviceInfo, Request

if TYPE_CHECKING:
    from ...lower.plan import Plan, Spec
    from ...optimizer.targets import Target
    from ..base.program import Program
    from ..base.rules import LowerRules
    from .runtime.jit import Machine

FEATURES = ("sse4.2", "avx2", "fma", "avx512f", "avx512bf16", "amx-tile", "neon", "sve", "bf16")
"""Features of processors that make a difference; a processor has hundreds."""


class CpuBackend(Backend):
    """The processor that darner runs on, by native code."""

    name = "cpu"
    target = "cpu"
    required = True

    def devices(self) -> Sequence[DeviceInfo]:
        """The processor."""
        machine = self.machine(self.name)
        features = tuple(name[1:] for name in machine.features.split(",") if name.startswith("+"))
        limits = {"cores": machine.cores, "vector-bytes": machine.vector_bytes}
        return (DeviceInfo(self.name, machine.cpu, "processor", "LLVM", features, limits),)

    def machine(self, device: str) -> Machine:
        """This machine."""
        from .runtime.jit import host

        return host()

    def rules(self, machine: Machine) -> LowerRules:
        """It runs what a template has code for."""
        from ...codegen.problems.conv import CONVOLUTIONS
        from ...lower.groups import Fusing
        from ...lower.roles import ended_ops
        from ...lower.strided import Multipliers, contractions
        from ..base.rules import LowerRules
        from .kernels import template_of

        def has_code(spec: Spec) -> bool:
            return template_of(spec) is not None

        # Convolutions read f32, or all of one 16-bit type.
        multipliers = Multipliers(contractions().difference(CONVOLUTIONS))
        return LowerRules(
            has_code,
            ended=ended_ops(),
            fusing=Fusing(places_parts=True),
            side_by_side=True,
            multipliers=multipliers,
        )

    def compile(self, plan: Plan, request: Request) -> Program:
        """The plan as native code."""
        from .runtime.program import CpuProgram

        return CpuProgram(
            plan,
            threads=request.threads,
            storage=request.storage,
            cache=request.cache,
            fixed=request.fixed,
            saved=request.saved,
            arena=request.arena,
        )

    def target_model(self, machine: Machine) -> Target:
        """A round roofline: plans are the same on every processor."""
        from ...optimizer.targets import find_target

        return find_target("cpu")

    def measured_model(self, program: Program) -> Target:
        """The roofline of this machine with the program's threads."""
        from .runtime.peak import measured_target

        return measured_target(program.threads)

    def versions(self) -> Sequence[str]:
        """LLVM, by what brings it."""
        import llvmlite

        return (f"llvmlite {llvmlite.__version__}",)

    def warm_up(self) -> None:
        """Compile what calls kernels, and what starts threads."""
        from .runtime.steps import make_ahead

        make_ahead()

    def remedy(self) -> str:
        """The compiler."""
        return "reinstall llvmlite"

    def facts(self) -> dict[str, Any]:
        """The processor, its vectors and its caches."""
        machine = self.machine(self.name)
        has = machine.features.split(",")
        return {
            "name": machine.cpu,
            "architecture": machine.architecture,
            "cores": machine.cores,
            "vector_bytes": machine.vector_bytes,
            "features": [name for name in FEATURES if f"+{name}" in has],
            **{name: getattr(machine, name) for name in ("l1", "l2", "l3")},
        }


BACKEND = CpuBackend()
