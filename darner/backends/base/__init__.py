"""What is the same for every backend, and the registry in which each of them is one row.

    backend     what a backend is: ``Backend``, ``DeviceInfo``, ``Request``
    registry    the backends by name, those of installed packages among them
    rules       what lowering has to know of a device
    lowering    from a graph to a plan for a device, and from a plan to a program
    program     what a session asks of a compiled plan
    devices     what this machine has: ``darner.devices()``
    host        programs whose memory is the process's own
    memory      memory of the process for values
    mirrors     values that a device has a copy of, and which of the two is newer
    blocks      parameters and states side by side in one block, as mirrors
    cache       compiled code on disk
    keys        what everything on disk is keyed by
    trust       who can have written a file
    sections    several pieces of bytes as one

Begin with ``backend``; ``darner/backends/reference/backend.py`` is the shortest row there is. Nothing here imports from a device's folder: the registry
imports a row when its device is first asked for.
"""

from .backend import Backend, DeviceInfo, Request
from .registry import backend_of, known_devices, register, unregister

__all__ = [
    "Backend",
    "DeviceInfo",
    "Request",
    "backend_of",
    "known_devices",
    "register",
    "unregister",
]
