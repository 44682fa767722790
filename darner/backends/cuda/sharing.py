"""Arrays that sessions share with other libraries on the same GPU, by DLPack: nothing goes by way of the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from ...graph.dlpack import Borrowed, Exporter, device_of
from ...graph.errors import ArgumentError, DarnerError
from ..base.device_array import DeviceArray
from ..base.readback import Region
from .device import Device, address_of

CUDA, MANAGED = 2, 13
"""DLPack's numbers for memory of a GPU, and for memory that moves there."""
DEFAULT_STREAM = 1
"""DLPack's number for the stream without a name: whoever gives memory lets that wait for its own work."""


def is_cuda(value: object) -> TypeGuard[Exporter]:
    """Whether the values of an object are in memory of CUDA, by what it says itself."""
    found = device_of(value)
    return found is not None and found[0] in (CUDA, MANAGED)


def taken(device: Device, value: Exporter, what: str) -> DeviceArray:
    """A copy on a GPU of what another library has there; its own memory is free when this returns.

    Raises:
        ArgumentError: it is on another GPU, or not contiguous.
    """
    device.check()
    try:
        found = Borrowed(value, stream=DEFAULT_STREAM)
    except DarnerError as reason:
        raise ArgumentError(f"{what} cannot be read: {reason.rule}", hint=reason.hint) from None
    if found.device[1] != device.context.number:
        raise ArgumentError(
            f"{what} is given an array on GPU {found.device[1]}, but the session is on GPU {device.context.number}",
            hint="copy it there, or to the host, first",
        )
    if found.strides is not None:
        raise ArgumentError(
            f"{what} is given an array that is not contiguous", hint="write .contiguous()"
        )
    nbytes = int(np.prod(found.shape, dtype=np.int64)) * found.dtype.itemsize
    region = device.region(nbytes, what)
    if nbytes:
        device.copy_foreign(region, found.address)
    return array_of(device, region, found.shape, found.dtype)


def array_of(
    device: Device, region: Region, shape: Sequence[int], dtype: np.dtype[np.generic]
) -> DeviceArray:
    """A region of a GPU as an array that others can read."""
    return DeviceArray(
        address_of(region),
        tuple(shape),
        dtype,
        (CUDA, device.context.number),
        region.buffer,
        lambda: device.read(region),
    )
