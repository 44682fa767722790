"""A case made ready by an engine, and how one call of it is timed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def nothing() -> None:
    """What there is to close, mostly."""


@dataclass(frozen=True)
class Prepared:
    """A case made ready.

    Attributes:
        timed: makes one call, and returns the seconds it took.
        read: the results of the first call.
        close: frees what it holds.
        about: figures of making it ready.
    """

    timed: Callable[[], float]
    read: Callable[[], list[np.ndarray]]
    close: Callable[[], None] = nothing
    about: dict[str, float] = field(default_factory=dict)


def by_clock(call: Callable[[], Any], read: Callable[[Any], list[np.ndarray]]) -> Prepared:
    """A call that is timed from outside."""
    first = [np.array(value) for value in read(call())]

    def timed() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return Prepared(timed, lambda: first)
