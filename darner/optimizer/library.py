"""egglog's native library, loaded once, and once more in a forked child.

egglog computes with a pool of threads, which a forked child does not have: in it, the library would wait for them for ever, even to free an e-graph. So
a child that searches loads a copy of the library, which starts threads of its own (40 ms, and 9 MB for egglog 13), and never frees what it inherited.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import os
import struct
import sys
from collections.abc import Callable
from typing import Any

from ..graph.errors import DarnerError, ForkError
from ..graph.forks import SPAWN, watch

NAME = "egglog.bindings"
_LOADED = 1
"""What the table of an ELF file calls its parts that are loaded."""


class EngineError(DarnerError):
    """egglog cannot be loaded, or refuses a program."""


class Library:
    """egglog's extension module, the one of this process.

    Attributes:
        forget: what is to be called in a forked child, where what was made by the parent's library is of no use.
    """

    def __init__(self) -> None:
        self.forget: list[Callable[[], None]] = []
        self._module: Any = None
        self._forked = False
        watch(self)

    def module(self) -> Any:
        """The module, loaded where it is not.

        Raises:
            EngineError: egglog is not installed.
            ForkError: the process was forked from one that had it, and there is no way to load it a second time.
        """
        if self._module is None:
            place = _place()
            self._module = _loaded_copy(place) if self._forked else _loaded(place)
        return self._module

    def after_fork(self) -> None:
        """What this process was forked from has the threads of the library."""
        if self._module is not None:
            self._module, self._forked = None, True
            for each in self.forget:
                each()


LIBRARY = Library()


class Inherited:
    """An e-graph. In a forked child it stays for ever: to free it takes threads that the child does not have.

    A child drops the frames of its parent's other threads before anything else, and with them whoever has this; the e-graph itself is held in one more place.
    """

    def __init__(self) -> None:
        self.graph = LIBRARY.module().EGraph()
        self._process = os.getpid()
        _alive[id(self)] = self.graph

    def __del__(self) -> None:
        # The module may have gone before, at the end of the process.
        if os is not None and os.getpid() == self._process:
            _alive.pop(id(self), None)


_alive: dict[int, object] = {}
"""The e-graphs that there are, by whose they are."""


def _keep_for_ever() -> None:
    for graph in _alive.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(graph))  # at the end of the process too
    _alive.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_keep_for_ever)


def _place() -> str:
    """The file of the extension module: egglog's package would import ten times as much."""
    package = importlib.util.find_spec("egglog")
    if package is None or package.submodule_search_locations is None:
        raise EngineError("egglog is not installed", hint="pip install egglog==13.2.0")
    places = list(package.submodule_search_locations)
    spec = importlib.machinery.PathFinder.find_spec("bindings", places)
    if spec is None or spec.loader is None or spec.origin is None:
        raise EngineError(f"egglog in {places} has no extension module 'bindings'")
    return spec.origin


def _loaded(place: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(NAME, place)
    spec = importlib.util.spec_from_loader(NAME, loader)
    if spec is None:
        raise EngineError(f"egglog's extension {place} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _loaded_copy(place: str) -> Any:
    """The module of a library that is in memory already: from a copy, which the system takes for another one."""
    try:
        size = _loaded_bytes(place)
        copy = os.memfd_create("egglog")
        try:
            with open(place, "rb") as file:
                done = 0
                while done < size:
                    done += os.sendfile(copy, file.fileno(), done, size - done)
            # The number of the process is in the name: a library of the same name would be the one that is there.
            return _loaded(f"/proc/{os.getpid()}/fd/{copy}")
        finally:
            os.close(copy)
    except (AttributeError, OSError, ImportError, struct.error) as error:
        raise ForkError(
            "egglog, which searches for the best form of a graph, works with threads of the process that this one was forked from, "
            f"and cannot be loaded here again ({error})",
            hint=f"{SPAWN}, or build before the fork, or with a cache",
        ) from error


def _loaded_bytes(place: str) -> int:
    """Where in a library's file ends what is loaded of it: what only debuggers read is behind, and ten times as much."""
    with open(place, "rb") as file:
        head = file.read(64)
        if head[:6] != b"\x7fELF\x02\x01" or sys.byteorder != "little":
            raise OSError(f"{place} is no library of Linux on 64 bits")
        (table,) = struct.unpack_from("<Q", head, 32)
        each, count = struct.unpack_from("<HH", head, 54)
        file.seek(table)
        rows = file.read(each * count)
    ends = [0]
    for number in range(count):
        kind, _, offset, _, _, nbytes, _, _ = struct.unpack_from("<IIQQQQQQ", rows, number * each)
        if kind == _LOADED:
            ends.append(offset + nbytes)
    return max(ends)
