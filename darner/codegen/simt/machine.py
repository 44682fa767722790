"""What templates ask of a machine: its limits, what it can do, and a builder for code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from ...graph.integers import ceil_div

if TYPE_CHECKING:
    from .dispatch import DispatchBuilder

GRANULE = 256
"""What every part of scratch memory begins at a multiple of: a distance that every device can bind at."""
PROCESSORS = 132
"""Those of an NVIDIA H200: what is assumed of a GPU that was not measured."""


class Machine(Protocol):
    """A GPU as templates see it."""

    @property
    def name(self) -> str:
        """What its driver calls it."""
        ...

    @property
    def wide(self) -> bool:
        """Whether it computes in f64."""
        ...

    @property
    def long(self) -> bool:
        """Whether it has integers of 64 bits."""
        ...

    @property
    def subgroup(self) -> bool:
        """Whether threads that run in step can hand each other their values."""
        ...

    @property
    def subgroups(self) -> tuple[int, int]:
        """The smallest and largest number of threads that run in step."""
        ...

    @property
    def software(self) -> bool:
        """Whether it is the CPU, posing as a GPU."""
        ...

    @property
    def processors(self) -> int:
        """Workgroups that run side by side without slowing each other down."""
        ...

    @property
    def threads(self) -> int:
        """The most threads of a workgroup."""
        ...

    @property
    def shared(self) -> int:
        """Bytes of memory that a workgroup shares."""
        ...

    @property
    def ample(self) -> int:
        """Bytes of memory that a workgroup can share where it has a processor to itself."""
        ...

    @property
    def most_buffers(self) -> int:
        """The most buffers that a dispatch can have bound."""
        ...

    def with_threads(self, most: int) -> Self:
        """The same GPU with fewer threads in a workgroup."""
        ...

    def builder(self, threads: int) -> DispatchBuilder:
        """What the code of a dispatch with workgroups of so many threads is written with."""
        ...


FEW_TURNS = 4
"""Turns up to which it counts that the last one may not be full."""


def turns(count: int, processors: int) -> float:
    """How many workgroups one processor has, one after the other, of so many in all.

    Of few turns the last one counts whole; of many it is lost in the others, and how many processors there are need not be known exactly.

    >>> turns(133, 132), round(turns(1024, 132), 2)
    (2, 7.76)
    """
    exact = count / processors
    return ceil_div(count, processors) if exact <= FEW_TURNS else exact


def power_above(number: int) -> int:
    """The least power of two that is not below a number.

    >>> [power_above(n) for n in (0, 1, 5, 8)]
    [1, 1, 8, 8]
    """
    return 1 << max(number - 1, 0).bit_length()


def power_below(number: int) -> int:
    """The largest power of two that is not above a number, and at least 1.

    >>> [power_below(n) for n in (0, 1, 5, 8)]
    [1, 1, 4, 8]
    """
    return 1 << (max(number, 1).bit_length() - 1)
