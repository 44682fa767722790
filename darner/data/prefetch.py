"""Batches prepared ahead, by a thread of their own, while a step computes.

    >>> import numpy as np
    >>> from darner import data
    >>> source = data.Arrays({"x": np.arange(6)}, batch=2, shuffle=False)
    >>> with data.prefetch(source) as batches:
    ...     for batch in batches:
    ...         print(batch["x"], batches.state()["position"])
    [0 1] 1
    [2 3] 2
    [4 5] 0

The source runs ahead, so its own place is not the reader's; ``state()`` of the prefetcher is.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Condition, Thread, current_thread
from typing import Any

from ..graph.errors import ArgumentError, RunError
from .batches import Batch, Batches, whole


@dataclass(frozen=True, slots=True)
class _Item:
    """What the thread hands over: a batch, an error, or (neither) the end; and the source's place after it."""

    state: dict[str, Any] | None
    batch: Batch | None = None
    error: BaseException | None = None


class _Worker:
    """A thread that goes through the rest of an epoch, at most ``depth`` batches ahead of whoever takes them."""

    def __init__(self, source: Batches, depth: int) -> None:
        self.process = os.getpid()
        self._source, self._depth = source, depth
        self._ready: deque[_Item] = deque()
        self._changed = Condition()
        self._stopping = False
        # A daemon, since a thread that waits for a reader must not keep the interpreter from ending.
        self._thread = Thread(target=self._run, name="darner prefetch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            batches = iter(self._source)
            while self._has_room():
                batch = next(batches, None)
                self._put(_Item(self._source.state(), batch))
                if batch is None:
                    return
        except (
            BaseException
        ) as error:  # it is the reader's, who gets it after the batches before it
            self._put(_Item(None, error=error))

    def _has_room(self) -> bool:
        """Wait until another batch is wanted; False when none ever will be."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or len(self._ready) < self._depth)
            return not self._stopping

    def _put(self, item: _Item) -> None:
        with self._changed:
            self._ready.append(item)
            self._changed.notify_all()

    def take(self) -> _Item:
        """The next item, when it is ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._ready)
            if self._stopping:
                raise RunError(
                    "this iteration ended when its Prefetcher was closed, restored or iterated anew"
                )
            item = self._ready.popleft()
            self._changed.notify_all()
            return item

    def stop(self) -> None:
        """End the thread; at the latest when the batch that it prepares is done."""
        if self.process != os.getpid():
            return  # a fork has no such thread, and its lock may be held for ever
        with self._changed:
            self._stopping = True
            self._ready.clear()
            self._changed.notify_all()
        # The garbage collector runs in whatever thread, also in this one; then it ends soon by itself.
        if self._thread is not current_thread():
            self._thread.join()


class Prefetcher:
    """A source of batches that prepares those of another in a thread, ``depth`` ahead.

    It is a source like any other: ``state()`` is the place after the last batch that was handed out here, and an error of the
    source is raised where its batch would have come. The thread lives as long as an iteration: it ends with the
    epoch, when the loop is left, and by ``close()``; the source is then where the reader is. While it runs, the source is its own.
    """

    def __init__(self, batches: Batches, depth: int = 2) -> None:
        if not isinstance(batches, Batches):
            raise ArgumentError(
                f"batches come from a source that says where it is, got {type(batches).__name__}",
                hint="data.Arrays, data.TokenWindows, or one's own with state() and restore(state)",
            )
        self.source = batches
        self.depth = whole("depth", depth, 1)
        self._worker: _Worker | None = None
        self._state: dict[str, Any] = {}
        self._finalizer: weakref.finalize[..., Prefetcher] | None = None

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return len(self.source)

    def __iter__(self) -> Iterator[Batch]:
        """The batches that are left of this epoch; after its end, those of the next."""
        self.close()
        worker = self._start()
        try:
            while True:
                if worker.process != os.getpid():  # forked: the thread stayed in the other process
                    self.close()
                    worker = self._start()
                item = worker.take()
                if item.error is not None:
                    raise item.error
                if item.state is not None:
                    self._state = item.state
                if item.batch is None:
                    return
                yield item.batch
        finally:
            if worker is self._worker:
                self.close()

    def _start(self) -> _Worker:
        self._state = self.source.state()
        self._worker = worker = _Worker(self.source, self.depth)
        # Runs when nobody has the prefetcher any more, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, worker.stop)
        return worker

    def state(self) -> dict[str, Any]:
        """The place after the last batch that was handed out."""
        return self.source.state() if self._worker is None else dict(self._state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a place of the source; an iteration that is under way ends."""
        self.close()
        self.source.restore(state)

    def close(self) -> None:
        """End the thread, and bring the source back to the reader's place. Another iteration may follow."""
        worker, self._worker = self._worker, None
        if worker is None:
            return
        if self._finalizer is not None:
            self._finalizer.detach()
        worker.stop()
        self.source.restore(self._state)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def prefetch(batches: Batches, depth: int = 2) -> Prefetcher:
    """``batches``, prepared ``depth`` ahead by a thread: see ``Prefetcher``."""
    return Prefetcher(batches, depth)
