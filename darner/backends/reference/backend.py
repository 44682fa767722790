"""The reference as a row of the registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..base.backend import Backend, DeviceInfo, Request
from ..base.keys import Keyed

if TYPE_CHECKING:
    from ...lower.plan import Plan
    from ...optimizer.targets import Target
    from ..base.program import Program
    from ..base.rules import LowerRules


@dataclass(frozen=True)
class Machine(Keyed):
    """Any machine: nothing is compiled for it."""


class ReferenceBackend(Backend):
    """The oracle: every kernel in NumPy. Who derives from it has a device that runs everything, slowly."""

    name = "reference"
    target = "reference"
    spelling = "reference (slow)"
    required = True
    compiles = False

    def devices(self) -> Sequence[DeviceInfo]:
        """Itself."""
        return (DeviceInfo(self.name, "the oracle", "NumPy"),)

    def machine(self, device: str) -> Keyed:
        """Any machine."""
        return Machine()

    def rules(self, machine: Keyed) -> LowerRules:
        """It runs everything."""
        from ...lower.roles import ended_ops
        from ...lower.strided import Multipliers, contractions
        from ..base.rules import LowerRules

        return LowerRules(
            ended=ended_ops(), multipliers=Multipliers(contractions(), contractions())
        )

    def compile(self, plan: Plan, request: Request) -> Program:
        """The plan with memory."""
        from .program import ReferenceProgram

        return ReferenceProgram(plan, storage=request.storage, arena=request.arena)

    def target_model(self, machine: Keyed) -> Target:
        """The roofline of a CPU: so its plans are those of the device that it is compared with."""
        from ...optimizer.targets import find_target

        return find_target("cpu")

    def remedy(self) -> str:
        """What it computes with."""
        return "reinstall numpy"


BACKEND = ReferenceBackend()
