"""Engines take turns with one kernel after another; each has one process for all of them.

A process is told of a case, makes it ready, calls it once and leaves the result in a file. Results are compared before
anything is timed: whose is wrong does not count. Then engines are called in turns, a few milliseconds each.
"""

import importlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..peers import turns
from ..peers.turns import NotOfferedError, in_turns, relative_error, sample
from .cases import from_json, to_json

ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "darner": ("with_darner", "prepare", {}),
    "before": ("with_darner", "prepare", {}),
    "torch": ("with_torch", "prepare", {}),
    "torch-compile": ("with_torch", "prepare", {"compiled": True}),
    "numpy": ("with_numpy", "prepare", {}),
    "mkl": ("with_numpy", "prepare_mkl", {}),
}
"""Name -> the module and the function that make a case ready, and its options. ``before`` is another checkout of darner."""

OURS = ("darner", "before")

CHECKOUT = "BENCH_BEFORE"
"""The variable that says where ``before`` lies."""

WARM_UP = 0.006
"""Seconds at the beginning of a turn that do not count: until the threads of the engine before sleep."""

SLEEPY = {"KMP_BLOCKTIME": "1", "OPENBLAS_THREAD_TIMEOUT": "20"}
"""Intel's threads would spin for a fifth of a second after a call, OpenBLAS' for 2**26 cycles: into the turns of others.

These are a millisecond, and 2**20 cycles: enough from one call to the next.
"""

TOLERANCE = 1e-4
"""How far results may differ, relative to the largest number."""

LEAST = 3
"""Calls of a turn that count, at least."""


def turn(timed: Callable[[], float], seconds: float, warm_up: float = WARM_UP) -> float:
    """The median of the calls of some seconds, after some that do not count.

    One call that takes ten times as long tells enough.
    """
    clock = time.perf_counter
    end = clock() + warm_up
    first = timed()
    if first > 10 * seconds:
        return first
    while clock() < end:
        timed()
    spent: list[float] = []
    end = clock() + seconds
    while len(spent) < LEAST or clock() < end:
        spent.append(timed())
    return statistics.median(spent)


# ------------------------------------------------------------- in the process of an engine


def serve() -> None:
    """The life of an engine's process: one line of JSON comes in for each that goes out."""
    asked = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not lie between the replies
    turns.keep_to_cores(asked["threads"])
    if asked["engine"] == "before":
        sys.path.insert(0, os.environ[CHECKOUT])
    module, function, options = ENGINES[asked["engine"]]
    prepare = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    ready = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "case" in request:
                if ready is not None:
                    ready.close()
                    ready = None
                case = from_json(request["case"])
                ready = prepare(case, case.inputs(), asked["threads"], **options)
                np.savez(asked["answer"], *map(sample, ready.read()))
                reply = ready.about
            else:
                reply = {"seconds": turn(ready.timed, request["seconds"])}
        except NotOfferedError as error:
            reply = {"missing": str(error)}
        except Exception as error:
            reply = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


# ------------------------------------------------------------- in the parent


class Engine(turns.Process):
    """The process of an engine, which lives as long as there are cases."""

    serves = __name__

    def __init__(self, name: str, threads: int, folder: Path) -> None:
        super().__init__(name, None, threads, folder, SLEEPY)
        self.answer = self.answer.with_name(self.answer.name + ".npz")  # as NumPy calls it

    def prepare(self, case: Any) -> dict[str, float]:
        """Make a case ready; what is told of that."""
        return self.ask({"case": to_json(case)})

    def results(self) -> list[np.ndarray]:
        """What the first call gave: some of its numbers."""
        with np.load(self.answer) as found:
            return [found[name] for name in found.files]


@dataclass
class Point:
    """A case beside all engines that have it: seconds of rounds; ``notes`` say why others are missing."""

    case: Any
    threads: int
    rounds: dict[str, list[float]] = field(default_factory=dict)
    about: dict[str, dict[str, float]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def seconds(self, engine: str) -> float:
        """The median of rounds."""
        return statistics.median(self.rounds[engine])

    @property
    def best_peer(self) -> str | None:
        """The fastest engine that is not darner."""
        peers = [name for name in self.rounds if name not in OURS]
        return min(peers, key=self.seconds, default=None)

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the best peer darner is: the median over rounds."""
        return self.ratio_to(self.best_peer)

    def ratio_to(self, peer: str | None) -> float | None:
        """The same beside one peer."""
        if peer not in self.rounds or "darner" not in self.rounds:
            return None
        pairs = zip(self.rounds[str(peer)], self.rounds["darner"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


class Table:
    """Engines at work; a context that ends their processes."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._engines: dict[str, Engine] = {}
        self._room = tempfile.TemporaryDirectory()

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, *_: Any) -> None:
        for name in list(self._engines):
            self._drop(name)
        self._room.cleanup()

    def _engine(self, name: str) -> Engine:
        """Its process, started when it is needed."""
        if name not in self._engines:
            self._engines[name] = Engine(name, self.threads, Path(self._room.name))
        return self._engines[name]

    def _drop(self, name: str) -> None:
        """End a process that failed: the next case has a new one."""
        self._engines.pop(name).close()

    def build(self, case: Any) -> float:
        """Have darner compile a case, whose code is then in the cache; the seconds that took."""
        return self._engine("darner").prepare(case).get("build", 0.0)

    def measure(self, case: Any, names: Sequence[str], rounds: int, seconds: float) -> Point:
        """One point: results compared, then turns taken."""
        point = Point(case, self.threads)
        found: dict[str, list[np.ndarray]] = {}
        for name in names:
            try:
                point.about[name] = self._engine(name).prepare(case)
                found[name] = self._engine(name).results()
            except NotOfferedError as error:
                point.notes.append(f"{case.name}: {name} is not measured: {error}")
            except (RuntimeError, OSError) as error:
                point.notes.append(f"{case.name}: {name} failed: {error}")
                self._drop(name)
        for name in agreeing(point, found):
            point.rounds[name] = []
        self.again(point, rounds, seconds)
        return point

    def again(self, point: Point, rounds: int, seconds: float) -> None:
        """More rounds of a case that the engines hold."""
        for name in in_turns(list(point.rounds), rounds):
            if name not in point.rounds:
                continue
            try:
                spent = self._engine(name).ask({"seconds": seconds})["seconds"]
            except (RuntimeError, OSError) as error:
                point.notes.append(f"{point.case.name}: {name} failed: {error}")
                del point.rounds[name]
                self._drop(name)
            else:
                point.rounds[name].append(spent)


def agreeing(point: Point, found: dict[str, list[np.ndarray]]) -> Iterator[str]:
    """The engines whose results are the first peer's."""
    peers = [name for name in found if name not in OURS] or [*found][1:]
    if not peers:
        point.notes.append(f"{point.case.name}: there is no peer to compare results with")
        return
    wanted = found[peers[0]]
    for name, results in found.items():
        pairs = zip(results, wanted, strict=False)
        error = max(relative_error(*pair) for pair in pairs)
        if len(results) != len(wanted):
            error = math.inf
        if error <= TOLERANCE:
            yield name
        else:
            reason = f"its result is {error:.1e} off {peers[0]}'s"
            point.notes.append(f"{point.case.name}: {name} is not measured: {reason}")
