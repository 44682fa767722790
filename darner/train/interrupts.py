"""Ctrl-C during training: the first one ends it after the run that goes on, the second one at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

WARNING = "stopping after this run; Ctrl-C once more stops at once, and saves nothing"


class Interrupts:
    """While it is entered, the first interrupt only sets ``pending``; the second one raises KeyboardInterrupt.

    Other threads than the main one never get interrupts, and may not say what becomes of them: there it does nothing.
    ``warn`` is called in the middle of whatever goes on, so it must not write to a file: that may be being written to.

    >>> with Interrupts() as interrupts:
    ...     signal.raise_signal(signal.SIGINT)
    ...     interrupts.pending
    True
    """

    def __init__(self, warn: Callable[[str], None] | None = None) -> None:
        self.pending = False
        self._warn = warn
        self._before: Any = None
        self._installed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.pending:
            raise KeyboardInterrupt
        self.pending = True
        if self._warn is not None:
            self._warn(WARNING)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            # None: it was set by something that is not Python, which cannot be set again from here.
            signal.signal(signal.SIGINT, self._before or signal.default_int_handler)
            self._installed = False
