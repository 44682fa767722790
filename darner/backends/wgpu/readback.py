"""What comes back from a step: small results are copied to memory that the process can read, as part of the step's own submission.

So reading a loss waits for the step, and for nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...codegen.simt.machine import GRANULE
from ...graph.integers import round_up
from .device import Device, Region

MOST = 1 << 20
"""Bytes up to which a result is small."""


class Readback:
    """Some regions of a device, read together.

    Args:
        device: where they are.
        regions: by a number that tells them apart.
    """

    def __init__(self, device: Device, regions: dict[int, Region]) -> None:
        self._device = device
        self._regions = regions
        self._places: dict[int, int] = {}
        size = 0
        for key, region in regions.items():
            self._places[key] = size
            size += round_up(region.nbytes, GRANULE)
        self._buffer = device.staging(size) if size else None
        self._bytes: npt.NDArray[np.uint8] | None = None
        self._copied = False

    def __contains__(self, key: int) -> bool:
        return self._copied and key in self._places

    def record(self, encoder: Any) -> None:
        """Copy everything once what was recorded so far is done."""
        for key, region in self._regions.items():
            size = round_up(region.nbytes, 4)
            if size:
                encoder.copy_buffer_to_buffer(
                    region.buffer, region.offset, self._buffer, self._places[key], size
                )
        self._copied = True
        self._bytes = None

    def forget(self) -> None:
        """Something has changed since."""
        self._copied = False

    def read(self, key: int) -> npt.NDArray[np.uint8]:
        """The bytes of a region as they were at the end of the last step; waits for it."""
        if self._buffer is None:
            return np.empty(0, np.uint8)
        if self._bytes is None:
            self._bytes = self._device.mapped(self._buffer)
        start = self._places[key]
        return self._bytes[start : start + self._regions[key].nbytes]

    def close(self) -> None:
        """Give the memory back."""
        if self._buffer is not None:
            self._device.free(self._buffer)
