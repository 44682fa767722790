"""Arrays that lie on a device: what sessions give and take without a copy to the process, by DLPack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ...graph.data import Array
from ...graph.dlpack import Lent, lend
from ...io.memory import Bytes


@dataclass(frozen=True, eq=False)
class DeviceArray:
    """An array in the memory of a device, contiguous, which PyTorch, JAX and CuPy read where it lies: ``torch.from_dlpack(array)``.

    Attributes:
        address: where it begins.
        shape: its sizes.
        dtype: its elements, as NumPy knows them.
        device: DLPack's number for the kind of device, and which of them.
        owner: what has the memory.
        fetch: gives its bytes.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    device: tuple[int, int]
    owner: object = field(repr=False)
    fetch: Callable[[], Bytes] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def numpy(self) -> Array:
        """A copy in the process."""
        return self.fetch().view(self.dtype).reshape(self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of DLPack. The values are there already: no stream has to wait for them."""
        if dl_device not in (None, self.device) or copy:
            raise BufferError("the array is given where it lies, and not copied")
        memory = Lent(self.address, self.shape, self.dtype, self.device, self)
        return lend(memory, versioned=max_version is not None and max_version[0] >= 1)

    def __array__(self, dtype: object = None, copy: bool | None = None) -> Array:
        """What ``numpy.asarray`` asks for: a copy in the process."""
        return self.numpy()


Value = Array | DeviceArray
"""What an input is given."""
