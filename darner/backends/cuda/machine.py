"""What is known of an NVIDIA GPU before anything is compiled for it: its name, its architecture and its limits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..base.keys import Keyed

if TYPE_CHECKING:
    from ...codegen.simt.dispatch import DispatchBuilder

WARP = 32
"""Threads that run in step, on every NVIDIA GPU there has been."""
STATIC_SHARED = 48 << 10
"""Bytes of shared memory that code can declare; more is asked for at launch."""
MOST_GROUPS = (2**31 - 1, 65535, 65535)
"""Blocks of a grid along each axis."""
ALIGNMENT = 256
"""Every value begins at a multiple of this many bytes, as memory of the driver does."""

Capability = tuple[int, int]

TENSOR_CORES: Capability = (8, 0)
"""The first generation whose tensor cores multiply bf16, f16 and tf32 and add in f32, as code here has them do."""

STARTS_EARLY: Capability = (9, 0)
"""The first generation on which a launch can start before the one ahead of it has ended."""

_CHIPS: dict[Capability, tuple[str, int, int, int, int]] = {
    (7, 0): ("V100", 80, 96, 6, 16),
    (7, 5): ("T4", 40, 64, 4, 16),
    (8, 0): ("A100", 108, 163, 40, 80),
    (8, 6): ("A10", 72, 99, 6, 24),
    (8, 7): ("Orin", 16, 163, 4, 32),
    (8, 9): ("L40", 142, 99, 96, 48),
    (9, 0): ("H200", 132, 227, 50, 141),
    (10, 0): ("B200", 148, 227, 126, 180),
    (10, 3): ("B300", 148, 227, 126, 270),
    (12, 0): ("RTX PRO 6000", 188, 99, 128, 96),
    (12, 1): ("GB10", 48, 99, 24, 128),
}
"""One chip of each generation: processors, KiB of shared memory that a block can ask for, MiB of L2 cache, GB of memory."""


def arch_of(capability: Capability) -> str:
    """The architecture that code is compiled for: the chip's own, with what only it has, where there is such.

    A chip that came after this table runs code of the newest one before it.

    >>> arch_of((9, 0)), arch_of((8, 6)), arch_of((12, 0)), arch_of((8, 8))
    ('sm_90a', 'sm_86', 'sm_120', 'sm_87')
    """
    known = max((chip for chip in _CHIPS if chip <= capability), default=min(_CHIPS))
    own = "a" if known == capability and known[0] in (9, 10) else ""
    return f"sm_{known[0]}{known[1]}{own}"


@dataclass(frozen=True)
class Machine(Keyed):
    """A GPU as kernels see it. ``key()`` is part of the key of everything that is kept on disk of it.

    Attributes:
        name: what its driver calls it.
        capability: the generation, as the driver numbers it.
        arch: what code is compiled for.
        processors: streaming multiprocessors.
        memory: bytes of its memory.
        l2: bytes of its L2 cache.
        most_shared: bytes of shared memory that a block can ask for at launch.
        driver: the CUDA version of its driver: 13000 is 13.0.
        emulated: whether kernels are compiled for the host's processor and run there.
        threads: the most threads of a block.
    """

    name: str
    capability: Capability
    arch: str
    processors: int
    memory: int
    l2: int
    most_shared: int
    driver: int = 0
    emulated: bool = False
    threads: int = 1024

    @staticmethod
    def without_card(arch: str = "sm_90a", *, emulated: bool = False) -> Machine:
        """A machine as if there were a card of an architecture, to write code for.

        >>> machine = Machine.without_card("sm_86")
        >>> machine.capability, machine.processors, machine.wide, machine.emulated
        ((8, 6), 72, True, False)
        """
        number = int("".join(c for c in arch if c.isdigit()))
        capability = number // 10, number % 10
        name, processors, shared, l2, memory = _CHIPS[capability]
        return Machine(
            name=f"{name} (emulated)" if emulated else name,
            capability=capability,
            arch=arch,
            processors=processors,
            memory=memory * 10**9,
            l2=l2 << 20,
            most_shared=shared << 10,
            emulated=emulated,
        )

    @property
    def shared(self) -> int:
        """Bytes of shared memory that code can declare: what the common templates plan with."""
        return STATIC_SHARED

    @property
    def ample(self) -> int:
        """Bytes of shared memory that a launch can ask for."""
        return self.most_shared

    @property
    def wide(self) -> bool:
        """It computes in f64."""
        return True

    @property
    def long(self) -> bool:
        """It has integers of 64 bits."""
        return True

    @property
    def subgroup(self) -> bool:
        """Threads that run in step can hand each other their values."""
        return True

    @property
    def subgroups(self) -> tuple[int, int]:
        """The smallest and largest number of threads that run in step."""
        return WARP, WARP

    @property
    def software(self) -> bool:
        """An emulated device too chooses the kernels that a card would: it is there to test them."""
        return False

    @property
    def most_buffers(self) -> int:
        """The most buffers that a launch can be given: parameters are 4 KB on every card."""
        return 256

    def with_threads(self, most: int) -> Machine:
        """The same GPU with fewer threads in a block."""
        return replace(self, threads=min(most, self.threads))

    def builder(self, threads: int) -> DispatchBuilder:
        """What the code of a launch is written with; the one of an emulated device prints what the host can run."""
        if self.emulated:
            from .emulator.printer import EmulatedPrinter

            return EmulatedPrinter(self, threads)
        from .printer import Printer

        return Printer(self, threads)
