"""What comes back from a step on a device: small results are copied to memory that the process can read, as part of the step's own work.

So reading a loss waits for the step, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ...graph.integers import round_up
from ...io.memory import Bytes

MOST = 1 << 20
"""Bytes up to which a result is small."""
APART = 256
"""What every region's copy begins at a multiple of."""


@dataclass(frozen=True, eq=False)
class Region:
    """Bytes of a device's memory.

    Attributes:
        buffer: what the device knows the memory by.
        offset: the first byte in it.
        nbytes: how many there are.
    """

    buffer: Any
    offset: int
    nbytes: int


class Staging(Protocol):
    """Memory that a device writes and the process reads."""

    def read(self) -> Bytes:
        """What the device has written, once it is done."""
        ...

    def close(self) -> None:
        """Give the memory back."""
        ...


S = TypeVar("S", bound=Staging)


class Readback(Generic[S]):
    """Some regions of a device, read together.

    Args:
        regions: by a number that tells them apart.

    Attributes:
        nbytes: what their copies take.
        staging: where their copies are; it is to be set where there are any.
    """

    def __init__(self, regions: Mapping[int, Region]) -> None:
        self._regions = regions
        self._places: dict[int, int] = {}
        self.nbytes = 0
        for key, region in regions.items():
            self._places[key] = self.nbytes
            self.nbytes += round_up(region.nbytes, APART)
        self.staging: S | None = None
        self._bytes: Bytes | None = None
        self._copied = False

    def __contains__(self, key: int) -> bool:
        return self._copied and key in self._places

    def copies(self) -> Iterator[tuple[Region, int]]:
        """What is to be copied at the end of a step, and the byte of ``staging`` where its copy begins."""
        for key, region in self._regions.items():
            if region.nbytes:
                yield region, self._places[key]

    def begin(self) -> None:
        """A step was started that ends with the copies."""
        self._copied = True
        self._bytes = None

    def forget(self) -> None:
        """Something has changed since."""
        self._copied = False

    def read(self, key: int) -> Bytes:
        """The bytes of a region as they were at the end of the last step; waits for it."""
        if self.staging is None:
            return np.empty(0, np.uint8)
        if self._bytes is None:
            self._bytes = self.staging.read()
        start = self._places[key]
        return self._bytes[start : start + self._regions[key].nbytes]

    def close(self) -> None:
        """Give the memory back."""
        if self.staging is not None:
            self.staging.close()
            self.staging = None
