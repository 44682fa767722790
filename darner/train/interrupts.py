"""Ctrl-C during training: the first one ends it after the run that goes on, the second one at once.

SIGTERM, by which batch systems and containers tell a process to end, is the same, where nothing else was made of it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

WARNING = "stopping after this run; Ctrl-C once more stops at once, and saves nothing"


class Interrupts:
    """While it is entered, the first interrupt only sets ``pending`` to its number; the second one raises KeyboardInterrupt.

    Other threads than the main one never get interrupts, and may not say what becomes of them: there it does nothing.
    ``warn`` is called in the middle of whatever goes on, so it must not write to a file: that may be being written to.

    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.pending == signal.SIGINT
    True
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self.pending: int | None = None
        self._warn = warn
        self._before: dict[int, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            raise KeyboardInterrupt
        self.pending = number
        if self._warn is not None:
            self._warn(WARNING)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT]
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                numbers.append(signal.SIGTERM)
            for number in numbers:
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, before in self._before.items():
            # None: it was set by something that is not Python, which cannot be set again from here.
            signal.signal(number, signal.default_int_handler if before is None else before)
        self._before = {}
