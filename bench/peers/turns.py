"""Engines take turns, each in a process of its own.

The process of an engine makes its first steps and says what they gave; then it waits for turns through a pipe. The
parent compares what all engines gave, and only then lets them run: round after round, each for a moment, in reversed
order every other round. An engine's time is the median over rounds of the median step of its turn.
"""

import contextlib
import importlib
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from .place import CPU, Place
from .workloads import Weight, from_json, to_json

LOSSES = 3
"""How many losses of training are compared: the first tells of the model, the others of gradients and updates."""

SAMPLE = 1 << 16
"""How many numbers of other results are compared, spread over all of them."""

WARM_UP = 0.1
"""Seconds at the beginning of a turn that do not count: until caches are the engine's own, and other engines' threads sleep."""

DISTURBED = 0.25
"""Cores used by other programs from which on a row is called doubtful."""

LIMIT = 900.0
"""Seconds after which an engine that gives no answer is ended."""

ENGINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "darner": ("darner", "engine_darner", {}),
    "torch": ("torch", "engine_torch", {}),
    "torch-compile": ("torch", "engine_torch", {"compiled": True}),
    "torch-frozen": ("torch", "engine_torch", {"compiled": True, "frozen": True}),
    "jax": ("jax", "engine_jax", {}),
    "numpy": ("numpy", "engine_numpy", {}),
}
"""Name -> the package it needs, the module that prepares it, and its options."""

ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}
"""For peers, which allocate in every step: without it they pay for page faults each time."""


CARD = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Engines share a card: none of them takes all of its memory."""


class NotOfferedError(Exception):
    """An engine does not have this workload, or cannot run here."""


@dataclass(frozen=True)
class Engine:
    """A workload made ready in the process of an engine.

    Attributes:
        step: does one step and returns when it is done; the loss where it trains.
        read: from what ``step`` returned to an array.
        version: of the engine.
        phases: seconds of building by phase, where it knows them.
    """

    step: Callable[[], Any]
    read: Callable[[Any], np.ndarray]
    version: str
    phases: Callable[[], dict[str, float]] = dict


# ------------------------------------------------------------- in the process of an engine


def peak_memory() -> float:
    """The most memory that this process held at once, in MB of 2**20 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        # Unlike ru_maxrss, this one starts anew when a process starts another program.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 1024)


def busy() -> float:
    """Seconds of all cores that were spent at work so far, the host's own included; 0.0 where nobody counts them."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return 0.0
    user, nice, system, _, _, interrupt, soft, steal = map(
        int, counters.read_text().split("\n", 1)[0].split()[1:9]
    )
    return (user + nice + system + interrupt + soft + steal) / os.sysconf("SC_CLK_TCK")


def sample(values: np.ndarray) -> np.ndarray:
    """Some of the numbers, spread over all."""
    flat = np.asarray(values, np.float64).reshape(-1)
    return flat[:: max(1, math.ceil(flat.size / SAMPLE))]


def turn(step: Callable[[], Any], seconds: float, warm_up: float = WARM_UP) -> dict[str, Any]:
    """Steps for some seconds, at least three of them, after some that do not count.

    ``others`` is how many cores other programs used in the meantime.
    """
    clock = time.perf_counter
    end = clock() + warm_up
    step()
    while clock() < end:
        step()
    times: list[float] = []
    watched = clock(), busy(), time.process_time()
    end = clock() + seconds
    while len(times) < 3 or clock() < end:
        start = clock()
        step()
        times.append(clock() - start)
    elapsed, everyone, own = (
        now - before
        for now, before in zip((clock(), busy(), time.process_time()), watched, strict=True)
    )
    found = {"median": statistics.median(times), "best": min(times), "steps": len(times)}
    return found | {"others": max(0.0, (everyone - own) / elapsed)}


def keep_to_cores(count: int) -> None:
    """Let this process run on so many cores."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[:count])


def _prepared(asked: dict[str, Any], answer: Path) -> tuple[Engine, dict[str, Any]]:
    """An engine after its first steps, and what is told of them."""
    workload = from_json(asked["workload"])
    _, module, options = ENGINES[asked["engine"]]
    clock = time.perf_counter
    started = clock()
    prepare = importlib.import_module(f"{__package__}.{module}").prepare
    imported = clock()
    engine = prepare(workload, asked["threads"], Place(**asked["place"]), **options)
    ready = clock()
    result = engine.step()
    first = clock()
    if workload.trains:
        more = 0 if asked["builds"] else LOSSES - 1
        results = np.array([result, *(engine.step() for _ in range(more))], np.float64)
    else:
        results = sample(engine.read(result))
    np.save(answer, results)
    setup = ready - imported - Weight.seconds_spent
    seconds = {"import": imported - started, "setup": setup, "first": first - ready}
    about = {"seconds": seconds, "phases": engine.phases(), "version": engine.version}
    return engine, about


def _peak(threads: int, place: Place) -> dict[str, float]:
    """What this machine, or its card, can do at most."""
    if place.is_card:
        from darner.backends.cuda.opening import opened
        from darner.backends.cuda.rates import rates_of

        from .engine_darner import multiplied

        bandwidth = rates_of(opened(place.device)).bandwidth
        return {"flops": multiplied(place), "bandwidth": bandwidth}
    from darner.backends.cpu.runtime.peak import measured_target

    target = measured_target(threads)
    return {"flops": target.flops, "bandwidth": target.bandwidth}


def serve() -> None:
    """The life of an engine's process: one line of JSON comes in for each that goes out."""
    asked = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not lie between the replies

    def reply(**values: Any) -> None:
        replies.write(json.dumps(values) + "\n")
        replies.flush()

    if not Place(**asked["place"]).is_card:
        keep_to_cores(asked["threads"])
    if asked["engine"] == "machine":  # no engine: the machine itself
        reply(**_peak(asked["threads"], Place(**asked["place"])))
        return
    try:
        engine, about = _prepared(asked, Path(asked["answer"]))
    except NotOfferedError as error:
        reply(missing=str(error))
        return
    except Exception as error:
        reply(failed=f"{type(error).__name__}: {error}".splitlines()[0])
        raise
    reply(**about, memory=peak_memory())
    for line in sys.stdin:
        reply(**turn(engine.step, json.loads(line)["seconds"]), memory=peak_memory())


# ------------------------------------------------------------- in the parent


class Process:
    """The process of an engine, as its parent sees it; it starts when the object is made.

    Args:
        engine: a name in ``ENGINES``.
        workload: what it prepares.
        threads: how many threads, and cores, it has.
        folder: for the file of its results and what it says on stderr.
        environment: variables that are its own.
        builds: whether only building is measured, to the end of one step.
        checkout: the folder of the checkout of darner that it runs; this one when left out.
        place: the device it runs on, and the precision of products.
    """

    serves: ClassVar[str] = __name__
    """The module whose ``serve`` the process runs."""

    def __init__(
        self,
        engine: str,
        workload: Any,
        threads: int,
        folder: Path,
        environment: dict[str, str] | None = None,
        builds: bool = False,
        checkout: Path | None = None,
        place: Place = CPU,
    ) -> None:
        self.engine = engine
        self.answer = folder / f"{engine}.npy"
        self._errors = folder / f"{engine}.stderr"
        asked: dict[str, Any] = {"engine": engine, "threads": threads, "answer": str(self.answer)}
        asked |= {"builds": builds, "place": asdict(place)}
        if workload is not None:
            asked["workload"] = to_json(workload)
        counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
        variables = dict.fromkeys(counts, str(threads)) | (
            CARD if place.is_card else {"JAX_PLATFORMS": "cpu"}
        )
        if engine != "darner":
            variables |= ALLOCATOR
        code = f"from {self.serves} import serve; serve()"
        command = [sys.executable, "-c", code, json.dumps(asked)]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **variables, **(environment or {})},
                cwd=checkout or Path(__file__).parents[2],
            )

    def hear(self) -> dict[str, Any]:
        """Its next reply; NotOfferedError or RuntimeError with the reason where there is none."""
        late = threading.Timer(LIMIT, self._process.kill)
        late.daemon = True
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        found = json.loads(line) if line.endswith("\n") else {"failed": self._last_words()}
        if "missing" in found:
            raise NotOfferedError(found["missing"])
        if "failed" in found:
            raise RuntimeError(found["failed"])
        return found

    def take_turn(self, seconds: float) -> dict[str, Any]:
        """Let it run for some seconds."""
        return self.ask({"seconds": seconds})

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Its reply to a request."""
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.hear()

    def close(self) -> None:
        """End it, and wait for the end."""
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(BrokenPipeError):  # it may have ended before
                pipe.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _last_words(self) -> str:
        words = [line for line in self._errors.read_text().splitlines() if line.strip()]
        status = self._process.poll()
        return words[-1] if words else f"it ended without a word (status {status})"


@dataclass
class Times:
    """What was measured of one engine on one workload; seconds, and MB of memory."""

    rounds: list[float] = field(default_factory=list)
    best: float = math.inf
    steps: int = 0
    memory: float = 0.0
    others: list[float] = field(default_factory=list)
    error: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    version: str = ""

    @property
    def median(self) -> float:
        """The median of the rounds' medians."""
        return statistics.median(self.rounds)

    def add(self, found: dict[str, Any]) -> None:
        """One more turn."""
        self.rounds.append(found["median"])
        self.best = min(self.best, found["best"])
        self.steps += found["steps"]
        self.memory = found["memory"]
        self.others.append(found["others"])


@dataclass
class Row:
    """A workload beside all engines that could run it; ``notes`` say why others could not; ``floor`` is in seconds, 0.0 unknown."""

    workload: Any
    threads: int
    engines: dict[str, Times] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    floor: float = 0.0
    place: Place = CPU

    @property
    def where(self) -> str:
        """The threads, or the card and its precision."""
        return self.place.told(self.threads)


def in_turns(names: Sequence[str], rounds: int) -> list[str]:
    """Whose turn it is: everyone once a round, in reversed order every other round."""
    order = list(names)
    return [name for i in range(rounds) for name in (order[::-1] if i % 2 else order)]


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference, by the largest number; infinite where the shapes differ or a number is not finite."""
    if found.shape != wanted.shape or not np.isfinite(found).all():
        return math.inf
    return float(np.abs(found - wanted).max() / max(np.abs(wanted).max(), 1e-30))


def available(engine: str) -> str | None:
    """Why an engine cannot run here, or None."""
    package = ENGINES[engine][0]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    return None


def machine(threads: int, place: Place = CPU) -> dict[str, float]:
    """The peak of this machine, measured in a process of its own: flops and bandwidth, of seconds."""
    with tempfile.TemporaryDirectory() as folder:
        process = Process("machine", None, threads, Path(folder), place=place)
        try:
            return process.hear()
        finally:
            process.close()


def measure(
    workload: Any,
    engines: Sequence[str],
    threads: int,
    *,
    rounds: int,
    seconds: float,
    place: Place = CPU,
) -> Row:
    """One row: start the engines, compare their first results, take turns."""
    row = Row(workload, threads, place=place)
    running: dict[str, Process] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name in engines:
                _start(row, name, running, Path(folder))
            _compare(row, running)
            for name in in_turns(list(row.engines), rounds):
                if name in row.engines:
                    _let(row, name, running[name], seconds)
            _doubt(row)
        finally:
            for process in running.values():
                process.close()
    return row


def _start(row: Row, name: str, running: dict[str, Process], folder: Path) -> None:
    reason = available(name)
    if reason is None:
        running[name] = Process(name, row.workload, row.threads, folder, place=row.place)
        try:
            found = running[name].hear()
        except NotOfferedError as error:
            reason = str(error)
        except RuntimeError as error:
            reason = f"failed: {error}"
    if reason is None:
        row.engines[name] = Times(
            seconds=found["seconds"], phases=found["phases"], version=found["version"]
        )
    else:
        row.notes.append(f"{row.workload.name}: {name} is not measured: {reason}")


def _let(row: Row, name: str, process: Process, seconds: float) -> None:
    """One turn; an engine that ends in it leaves the row."""
    try:
        row.engines[name].add(process.take_turn(seconds))
    except (RuntimeError, OSError) as error:
        del row.engines[name]
        row.notes.append(f"{row.workload.name}: {name} is not measured: failed: {error}")


def _doubt(row: Row) -> None:
    """Say so where other programs were at work."""
    others = {name: statistics.median(times.others) for name, times in row.engines.items()}
    worst = max(others, key=others.__getitem__, default=None)
    if worst is not None and others[worst] > DISTURBED and not row.place.is_card:
        row.notes.append(
            f"{row.workload.name}: doubtful: other programs used {others[worst]:.1f} cores beside {worst}"
        )


def _compare(row: Row, running: dict[str, Process]) -> None:
    """Leave out who gives another result than the first peer."""
    answers = {name: np.load(running[name].answer) for name in row.engines}
    peers = [name for name in answers if name != "darner"]
    if not peers:
        row.notes.append(f"{row.workload.name}: there is no peer to compare results with")
        return
    for name, answer in answers.items():
        error = relative_error(answer, answers[peers[0]])
        row.engines[name].error = error
        if error > row.place.tolerance:
            del row.engines[name]
            row.notes.append(
                f"{row.workload.name}: {name} is not measured: its result is {error:.1e} off {peers[0]}'s"
            )


def build(workload: Any, engine: str, threads: int) -> dict[str, dict[str, Any]]:
    """Seconds to the end of the first step with empty caches of compiled code, and with those that this left."""
    reason = available(engine)
    if reason is not None:
        raise NotOfferedError(reason)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        caches = {"BENCH_CACHE": f"{folder}/code", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        for state in ("cold", "warm"):
            process = Process(engine, workload, threads, Path(folder), caches, builds=True)
            try:
                found[state] = process.hear()
            finally:
                process.close()
    return found
