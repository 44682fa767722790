"""When kernels began and ended, by the GPU's own clock, as times of the process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from ..base.readback import Region
from .device import Device
from .native import timestamp, timestamp_period

MOST = 2048
"""Timestamps of one set; devices allow 4096 at least."""


class Clock:
    """Timestamps between the kernels of a step.

    Args:
        device: which has the feature ``timestamp-query-inside-passes``.
        count: how many there are in a step.
    """

    def __init__(self, device: Device, count: int) -> None:
        self._device = device
        self._count = count
        sizes = [min(MOST, count - first) for first in range(0, count, MOST)]
        self._sets = [device.raw.create_query_set(type="timestamp", count=size) for size in sizes]
        self._room = device.query_room(8 * count)

    def write(self, compute_pass: Any, number: int) -> None:
        """Note the time once what was recorded so far is done."""
        timestamp(compute_pass, self._sets[number // MOST], number % MOST)

    def resolve(self, encoder: Any) -> None:
        """Let the times be read, after the pass."""
        for place, query in enumerate(self._sets):
            count = min(MOST, self._count - place * MOST)
            encoder.resolve_query_set(query, 0, count, self._room.buffer, place * MOST * 8)

    def read(self) -> npt.NDArray[np.int64]:
        """The times in nanoseconds of the process's clock: the last is now."""
        ticks = self._device.read(self._room).view(np.uint64).astype(np.int64)
        now = _now()
        period = timestamp_period(self._device.raw)
        return now - ((ticks[-1] - ticks) * period).astype(np.int64)

    @property
    def room(self) -> Region:
        """Where times are put."""
        return self._room


def _now() -> int:
    if hasattr(time, "CLOCK_MONOTONIC"):
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()
