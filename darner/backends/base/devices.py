"""What this machine has to run sessions on.

>>> import darner
>>> [device.name for device in darner.devices()][:2]
['cpu', 'reference']
"""

from __future__ import annotations

from .backend import DeviceInfo
from .registry import loadable


def devices() -> tuple[DeviceInfo, ...]:
    """The devices of this machine, with their features and limits; GPUs are found where the extra ``gpu`` is installed.

    ``device="gpu"`` is the first of them, discrete ones before integrated ones before software; ``"gpu:1"`` the second, and ``"gpu:nvidia"`` the first whose
    title has that word. Backends of installed packages that cannot be loaded have none; ``device=`` tells why.
    """
    return tuple(device for backend in loadable()[0] for device in backend.devices())
