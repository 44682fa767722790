"""Python's search for unreachable cycles, and when it is better left alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep Python from looking for cycles: a pass makes many objects and leaves few, and each look walks the whole graph."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
