"""The backends by name: those of darner, those that a program registered, and those of installed packages.

    >>> known_devices()[:4]
    ('cpu', 'reference', 'gpu', 'cuda')
    >>> backend_of("gpu:1").target
    'gpu'

A package brings a backend by an entry point, whose name is the device's::

    [project.entry-points."darner.backends"]
    npu = "my_package.backend:BACKEND"

It is imported when the device is first asked for. A program that has a backend at hand calls ``register``. Names of darner's own stay darner's.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...graph.errors import ArgumentError, NameTakenError
from ...graph.habits.hints import hint
from .backend import Backend

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "darner.backends"
"""The group of entry points."""

BUILT_IN = {"cpu": "cpu", "reference": "reference", "gpu": "wgpu", "cuda": "cuda"}
"""Darner's own, and the folder that each is in: its module ``backend`` has the row, ``BACKEND``."""

PREFERRED = {"gpu": "cuda"}
"""Bare names that mean the first device of another backend where that has one that works: a card's own driver can do what the others cannot."""

DEFAULT_DEVICE = next(iter(BUILT_IN))
"""Where sessions run unless told otherwise."""

_loaded: dict[str, Backend] = {}
"""Rows that were asked for, and those that a program registered."""


def register(backend: Backend) -> Backend:
    """Let ``device=`` know a backend by its name, in this process.

    Raises:
        NameTakenError: there is a device of that name.
        ArgumentError: the object is no backend.
    """
    _check(backend, "the object")
    if backend.name in known_devices():
        raise NameTakenError(f"there is a device '{backend.name}' already")
    _loaded[backend.name] = backend
    return backend


def unregister(name: str) -> None:
    """Forget a backend that was registered, or was loaded from an entry point."""
    if name in BUILT_IN:
        raise ArgumentError(f"the device '{name}' is darner's own")
    if _loaded.pop(name, None) is None:
        raise ArgumentError(f"no backend '{name}' is registered")


def known_devices() -> tuple[str, ...]:
    """The names of all devices, those of installed packages among them."""
    return tuple(dict.fromkeys((*BUILT_IN, *_loaded, *(point.name for point in _entry_points()))))


def backend_of(device: Any) -> Backend:
    """The backend of a device, or an error that says which devices there are; one of several may be told by number or name: ``gpu:1``, ``gpu:nvidia``."""
    if isinstance(device, str):
        name, colon, _ = device.partition(":")
        found = _find(name)
        if found is not None and (found.several or not colon):
            return found
    raise ArgumentError(
        f"there is no device {device!r}",
        hint=hint("device", str(device).partition(":")[0]) or _listed(),
    )


def meant(device: str) -> str:
    """What a name of a device stands for in a session, which then says so: ``gpu`` is an NVIDIA GPU by its own driver where there is one that works.

    >>> meant("cpu"), meant("gpu:1")
    ('cpu', 'gpu:1')
    """
    other = PREFERRED.get(device) if isinstance(device, str) else None
    return other if other is not None and backend_of(other).ready() else device


def target_of(device: str) -> str:
    """What a plan for a device is lowered for: the kind of device.

    >>> target_of("gpu:1")
    'gpu'
    """
    return backend_of(device).target


def built_in() -> tuple[Backend, ...]:
    """Darner's own rows."""
    return tuple(backend_of(name) for name in BUILT_IN)


def loadable() -> tuple[tuple[Backend, ...], dict[str, ArgumentError]]:
    """All rows, and the errors of those that cannot be loaded, by name."""
    found, broken = [], {}
    for name in known_devices():
        try:
            found.append(backend_of(name))
        except ArgumentError as error:
            broken[name] = error
    return tuple(found), broken


def _listed() -> str:
    several = [row.name for row in built_in() if row.several]
    numbered = "".join(f"; {name}:1 or {name}:name where there are several" for name in several)
    return f"the devices are {', '.join(known_devices())}{numbered}"


def _find(name: str) -> Backend | None:
    found = _loaded.get(name)
    if found is None:
        if name in BUILT_IN:
            found = import_module(f"...{BUILT_IN[name]}.backend", __name__).BACKEND
        else:
            points = [point for point in _entry_points() if point.name == name]
            if not points:
                return None
            found = _of_package(points)
        _loaded[name] = found
    return found


def _entry_points() -> tuple[EntryPoint, ...]:
    """Those of installed packages; names of darner's own are not theirs to take."""
    from importlib import metadata  # takes longer to import than all of this

    points = metadata.entry_points(group=GROUP)
    return tuple(point for point in points if point.name not in BUILT_IN)


def _of_package(points: list[EntryPoint]) -> Backend:
    """The row that the entry points of one name stand for, or an error that tells whose fault it is."""
    point = points[0]
    values = list(dict.fromkeys(each.value for each in points))
    if len(values) > 1:
        raise ArgumentError(
            f"the device '{point.name}' is brought by several packages: {', '.join(values)}",
            hint="remove all but one of them",
        )
    whose = f"the backend of the device '{point.name}' ({_package(point)}{point.value})"
    try:
        found = point.load()
    except Exception as error:  # code of somebody else: whatever it raises
        raise ArgumentError(
            f"{whose} cannot be loaded: {type(error).__name__}: {error}",
            hint="repair or remove the package that brings it",
        ) from error
    _check(found, whose)
    if found.name != point.name:
        raise ArgumentError(f"{whose} calls itself '{found.name}'")
    return found


def _package(point: EntryPoint) -> str:
    return "" if point.dist is None else f"{point.dist.name} {point.dist.version}, "


def _check(backend: Any, whose: str) -> None:
    if Backend not in type(backend).__mro__:
        raise ArgumentError(
            f"{whose} is {backend!r}", hint="a backend is an object of a class derived from Backend"
        )
    for word in (backend.name, backend.target):
        if not isinstance(word, str) or not word or ":" in word:
            raise ArgumentError(f"{whose} is called {word!r}, but a name has no colon")
