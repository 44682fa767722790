"""What is known of a GPU before anything is compiled for it: its name, what it can do, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...codegen.simt.machine import GRANULE, PROCESSORS
from ..base.keys import Keyed
from ..base.limits import Limits

if TYPE_CHECKING:
    from ...codegen.simt.dispatch import DispatchBuilder

ASKED = (
    "shader-f16",
    "shader-f64",
    "shader-int64",
    "subgroup",
    "subgroup-barrier",
    "timestamp-query",
    "timestamp-query-inside-encoders",
    "timestamp-query-inside-passes",
)
"""Features that are used where a device has them.

Cooperative matrices are not among them: adapters announce them, but wgpu 0.32 opens no device with an experimental feature.
"""

LIMITS = (
    "max-bindings-per-bind-group",
    "max-buffer-size",
    "max-compute-invocations-per-workgroup",
    "max-compute-workgroup-size-x",
    "max-compute-workgroup-storage-size",
    "max-compute-workgroups-per-dimension",
    "max-storage-buffer-binding-size",
    "max-storage-buffers-per-shader-stage",
    "min-storage-buffer-offset-alignment",
)
"""The limits that matter here."""


@dataclass(frozen=True)
class Machine(Keyed):
    """A GPU as kernels see it. ``key()`` is part of the key of everything that is kept on disk of it.

    Attributes:
        name: what its driver calls it.
        kind: discrete, integrated, software, or not known.
        api: Vulkan, Metal or DX12.
        driver: the driver's name and version.
        features: what it can do, of ``ASKED``.
        limits: of ``LIMITS``.
        subgroups: the smallest and largest number of threads that run in step.
        processors: workgroups that run side by side without slowing each other down; measured (see ``rates``).
    """

    name: str
    kind: str
    api: str
    driver: str
    features: frozenset[str] = frozenset()
    limits: Mapping[str, int] = field(default_factory=dict)
    subgroups: tuple[int, int] = (1, 128)
    processors: int = PROCESSORS

    def __hash__(self) -> int:
        return hash(self.key())

    @property
    def unmeasured(self) -> Machine:
        """The same GPU as it is known before anything was measured: what measurements themselves are kept under."""
        return replace(self, processors=PROCESSORS)

    @property
    def wide(self) -> bool:
        """Whether it computes in f64."""
        return "shader-f64" in self.features and self.long

    @property
    def long(self) -> bool:
        """Whether it has integers of 64 bits."""
        return "shader-int64" in self.features

    @property
    def half(self) -> bool:
        """Whether it reads and writes f16 as such."""
        return "shader-f16" in self.features

    @property
    def subgroup(self) -> bool:
        """Whether threads that run in step can add up their values."""
        return "subgroup" in self.features

    @property
    def software(self) -> bool:
        """Whether it is the CPU, posing as a GPU."""
        return self.kind == "CPU"

    @property
    def threads(self) -> int:
        """The most threads of a workgroup."""
        sizes = ("max-compute-invocations-per-workgroup", "max-compute-workgroup-size-x")
        return min(self.limits.get(name, 256) for name in sizes)

    @property
    def shared(self) -> int:
        """Bytes of memory that a workgroup shares."""
        return self.limits.get("max-compute-workgroup-storage-size", 16384)

    @property
    def ample(self) -> int:
        """The same: there is no more."""
        return self.shared

    @property
    def most_groups(self) -> int:
        """The most workgroups along one dimension of a dispatch."""
        return self.limits.get("max-compute-workgroups-per-dimension", 65535)

    @property
    def most_buffers(self) -> int:
        """The most buffers that a shader can have bound."""
        of_shader = self.limits.get("max-storage-buffers-per-shader-stage", 8)
        return min(of_shader, self.limits.get("max-bindings-per-bind-group", 640))

    @property
    def most_bound(self) -> int:
        """The most bytes of one buffer that a shader can see."""
        return self.limits.get("max-storage-buffer-binding-size", 128 << 20)

    @property
    def most_bytes(self) -> int:
        """The most bytes of a buffer."""
        return self.limits.get("max-buffer-size", 256 << 20)

    @property
    def alignment(self) -> int:
        """What the first byte of a bound range is a multiple of."""
        return self.limits.get("min-storage-buffer-offset-alignment", 256)

    def without(self, *features: str, **limits: int) -> Machine:
        """The same GPU with less: for tests, and to see what a smaller one would do.

        >>> Machine("some", "DiscreteGPU", "Vulkan", "", frozenset({"shader-f64", "shader-int64"})).without("shader-f64").wide
        False
        """
        less = {name.replace("_", "-"): value for name, value in limits.items()}
        return replace(self, features=self.features - set(features), limits={**self.limits, **less})

    def with_threads(self, most: int) -> Machine:
        """The same GPU with fewer threads in a workgroup."""
        return self.without(max_compute_invocations_per_workgroup=most)

    def builder(self, threads: int) -> DispatchBuilder:
        """What the code of a dispatch is written with."""
        from .printer import Printer

        return Printer(self, threads)

    def to_json(self) -> dict[str, Any]:
        """What JSON can hold."""
        return {
            "name": self.name,
            "kind": self.kind,
            "api": self.api,
            "driver": self.driver,
            "features": sorted(self.features),
            "limits": dict(sorted(self.limits.items())),
            "subgroups": list(self.subgroups),
        }

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Machine:
        """What ``to_json`` gave."""
        return Machine(
            **{
                **content,
                "features": frozenset(content["features"]),
                "subgroups": tuple(content["subgroups"]),
            }
        )


def segment_of(machine: Machine) -> int:
    """Bytes of the largest buffer, as a multiple of what every value begins at."""
    # One granule is left for what is bound past the last value.
    return machine.most_bytes // GRANULE * GRANULE - GRANULE


def limits_of(machine: Machine) -> Limits:
    """How much its buffers hold."""
    holder = f"a buffer of '{machine.name}'"
    return Limits(holder, machine.most_bytes, segment_of(machine), "max-buffer-size")
