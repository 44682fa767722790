"""How long building takes, phase by phase, and a line on the terminal when that is long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..graph.forks import watch

PATIENCE = 1.0
"""Seconds after which a terminal is told what is going on."""


class Phases:
    """Seconds of each phase, in the order they were met.

    Args:
        name: of what is built.
        show: always (True), never (False), or on a terminal when it takes more than a second (None).

    >>> phases = Phases("mlp", show=False)
    >>> with phases.timed("lower"):
    ...     pass
    >>> list(phases.seconds)
    ['lower']
    """

    def __init__(self, name: str, show: bool | None = None) -> None:
        self.name = name
        self.seconds: dict[str, float] = {}
        self._show = show
        self._status: Any = None
        self._lock = threading.Lock()
        self._current: list[str] = []
        self._counted = ""
        self._open = False
        watch(self)

    def after_fork(self) -> None:
        """What another thread showed, and its lock, are not a forked child's."""
        self._lock = threading.Lock()
        self._status = None

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure what is done inside."""
        start = time.perf_counter()
        self._current.append(phase)
        self._say()
        try:
            yield
        finally:
            self._current.pop()
            self._counted = ""
            spent = time.perf_counter() - start
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent

    def counted(self, done: int, of: int, what: str) -> None:
        """Tell how far the current phase is."""
        self._counted = f" {done} of {of} ({what})" if done < of else ""
        self._say()

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Tell the terminal while what is inside goes on."""
        wanted = sys.stderr.isatty() if self._show is None else self._show
        if not wanted or self._open:
            yield
            return
        self._open = True
        before = dict(self.seconds)
        timer = threading.Timer(PATIENCE, self._begin)
        timer.daemon = True
        if self._show:
            self._begin()
        else:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()
            self._open = False
            self._end(before)

    def _begin(self) -> None:
        from rich.console import Console

        with self._lock:
            if self._open and self._status is None:
                self._status = Console(stderr=True).status(self._text())
                self._status.start()

    def _end(self, before: dict[str, float]) -> None:
        with self._lock:
            status, self._status = self._status, None
            if status is None:
                return
            status.stop()
            spent = {name: t - before.get(name, 0.0) for name, t in self.seconds.items()}
            parts = [f"{name} {t:.1f} s" for name, t in spent.items() if t > 0]
            total = sum(spent.values())
            status.console.print(f"built '{self.name}' in {total:.1f} s: {', '.join(parts)}")

    def _say(self) -> None:
        with self._lock:
            if self._status is not None:
                self._status.update(self._text())

    def _text(self) -> str:
        phase = self._current[-1] if self._current else "..."
        return f"building '{self.name}': {phase}{self._counted}"
