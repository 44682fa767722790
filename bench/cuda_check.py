"""Everything that only a card can show, in a few minutes: that its driver does what is asked of it, sessions, conformance, memory errors; and how long calls take.

    python -m bench.cuda_check                              all of it; exit code 1 where something fails
    python -m bench.cuda_check driver sessions              some parts: driver, sessions, conformance, memcheck, racecheck, times
    python -m bench.cuda_check --report DIR --minutes 8     where the report and its details go, and when to stop
    python -m bench.cuda_check --device cuda:emulated       the script itself, without a card

The report is short. Every failure is in ``details.txt`` with its call and arguments; a fault of a kernel ends all CUDA of a process, so ops are tried in processes of their own, and those
that fail once more with each launch waited for: the error then names the kernel.
"""

import argparse
import inspect
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from darner.backends.cuda.stage import Stage

SANITIZERS = ("memcheck", "racecheck")
PARTS = ("driver", "sessions", "conformance", *SANITIZERS, "times")
CHUNK = 24
"""Ops of one process."""
MARK = "check: "
"""What the lines of a child begin with that its parent reads."""
PATIENCE = 120.0
"""Seconds for one check: a kernel that waits for itself never ends."""
Checks = Iterator[tuple[str, Callable[[], object]]]


class Report:
    """What was found: a line for each check, and the whole of every failure."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._short = (folder / "report.txt").open("w")
        self._details = (folder / "details.txt").open("w")
        self.failed = 0

    def line(self, text: str) -> None:
        """A line for the reader."""
        print(text, flush=True)
        print(text, file=self._short, flush=True)

    def failure(self, name: str, told: str) -> None:
        """Something that does not work."""
        self.failed += 1
        last = told.strip().splitlines()[-1] if told.strip() else "no message"
        self.line(f"FAILED {name}: {last[:400]}")
        print(f"{'=' * 20} {name}\n{told}\n", file=self._details, flush=True)


# ----------------------------------------------------------------------------- the driver


def adding(name: str, number: float = 1.0, threads: int = 256, **options: object) -> "Stage":
    """A launch that adds a number to 1024 others, written as templates write theirs."""
    from darner.backends.cuda.opening import opened
    from darner.codegen.simt.builder import Memory
    from darner.codegen.simt.dispatch import Binding
    from darner.graph.dtypes import f32

    b = opened(name).machine.builder(threads)
    memory = Memory("x", f32, builder=b)
    b.store(b.load(memory, b.thread) + number, memory, b.thread)
    stage: Stage = b.finish(1024 // threads, [(memory, Binding("operand"))])
    return replace(stage, **options)  # type: ignore[arg-type]


def idle(name: str, **options: object) -> "Stage":
    """A launch that does nothing."""
    from darner.backends.cuda.opening import opened

    return replace(opened(name).machine.builder(32).finish(1, []), **options)


def checks_of_driver(name: str) -> Checks:
    """Calls by themselves, the simplest first."""
    from darner.backends.cuda.device import address_of
    from darner.backends.cuda.opening import opened

    def open_device() -> str:
        return str(opened(name).machine)

    def copies() -> str:
        device = opened(name)
        values = np.random.default_rng(0).integers(0, 255, 1 << 20).astype(np.uint8)
        region = device.region(values.nbytes, "a copy")
        if device.read(region).any():
            raise RuntimeError("new memory is not zero")
        device.write(region, values)
        if not np.array_equal(device.read(region), values):
            raise RuntimeError("what came back is not what was sent")
        device.give_back(region)
        return f"{device.bytes_held} bytes held"

    def run(times: int = 1, recorded: bool = False, **options: object) -> str:
        device = opened(name)
        stage = adding(name, **options)
        region = device.region(4096, "a launch")
        kernel, code = device.kernels([stage])[stage.digest]
        with device.guard:
            launch = kernel.launch(stage, [(address_of(region), 4096)], [])
            stream = device.transfers.stream
            if recorded:

                def all_launches() -> None:
                    for _ in range(times):
                        launch.start(stream)

                graph = stream.record(all_launches)
                graph.start(stream)
                told = f"{graph.count} nodes"
                stream.wait()
                graph.close()
            else:
                launch.start(stream)
                told = f"{len(code)} bytes of object code"
            stream.wait()
        found = device.read(region).view(np.float32)
        if not (found == times).all():
            raise RuntimeError(f"{times} additions of 1 gave {found[:8]}")
        device.give_back(region)
        return told

    def tensor_map() -> str:
        from darner.backends.cuda.stage import TensorMap
        from darner.codegen.simt.dispatch import Binding

        device = opened(name)
        region = device.region(1 << 20, "a tensor map")
        about = TensorMap(Binding("operand"), 0, "bf16", (64, 256), (1536,), (64, 64), swizzle=128)
        with device.guard:
            found = device.context.tensor_map(about, address_of(region))
        device.give_back(region)
        return f"{len(found)} bytes"

    yield "opening a device", open_device
    yield "memory and copies", copies
    yield "a launch", run
    yield "a graph of 100 launches", lambda: run(100, recorded=True)
    if "emulated" in name:
        return
    yield "a launch that starts early", lambda: run(early=True)
    yield "a launch of clusters of 2", lambda: run(cluster=(2, 1, 1))
    yield "a cooperative launch", lambda: run(cooperative=True)
    yield "a launch with 100 KB of shared memory", lambda: run(shared=100 << 10)
    yield "a tensor map", tensor_map


# ----------------------------------------------------------------------------- sessions


def checks_of_sessions(name: str) -> Checks:
    """The promises of ``tests/session/on_devices.py`` and ``tests/cuda/promises.py``: each function, with each value of the parameter that its mark lists."""
    from tests.cuda import promises
    from tests.session import on_devices

    class Patch:
        """What pytest's monkeypatch does, as far as it is needed."""

        def __init__(self) -> None:
            self.before: list[tuple[object, str, object]] = []

        def setattr(self, owner: object, attribute: str, value: object) -> None:
            self.before.append((owner, attribute, getattr(owner, attribute)))
            setattr(owner, attribute, value)

    def call(function: Callable[..., object], given: dict[str, object]) -> None:
        wanted, patch = inspect.signature(function).parameters, Patch()
        with tempfile.TemporaryDirectory() as folder:
            offered = {"device_name": name, "tmp_path": Path(folder), "monkeypatch": patch, **given}
            try:
                function(**{parameter: offered[parameter] for parameter in wanted})
            finally:
                for change in patch.before:
                    setattr(*change)

    for module in (on_devices, promises):
        for title, function in vars(module).items():
            if not title.startswith("test_") or function.__module__ != module.__name__:
                continue
            plain = title.removeprefix("test_").replace("_", " ")
            for given in _values_of(function):
                told = ", ".join(str(value) for value in given.values())
                yield f"{plain}{told and f': {told}'}", partial(call, function, given)


def _values_of(function: Callable[..., object]) -> list[dict[str, object]]:
    """The values of the parameter that a test's mark lists; one empty set where there is none."""
    for mark in getattr(function, "pytestmark", ()):
        if mark.name == "parametrize":
            parameter, values = mark.args
            return [{parameter: getattr(value, "values", (value,))[0]} for value in values]
    return [{}]


# ----------------------------------------------------------------------------- conformance


def programs(types: tuple[str, ...]) -> dict[str, object]:
    """What devices are tried with, by name."""
    from tests.conformance.devices import PROGRAMS

    return {program.id: program for program in PROGRAMS if program.values[1] in types}


def checks_of_ops(device: str, names: Sequence[str]) -> Checks:
    """The conformance of some ops."""
    from tests.conformance.devices import check_on

    known = programs(("f32", "f64", "f16", "bf16"))
    for name in names:
        op, dtype = known[name].values  # type: ignore[attr-defined]
        yield name, partial(check_on, device, op, dtype, tangents_of=1)


def check_conformance(report: Report, device: str, types: tuple[str, ...], until: float) -> None:
    """All ops in processes of their own, several at a time."""
    names = list(programs(types))
    chunks = [names[i : i + CHUNK] for i in range(0, len(names), CHUNK)]
    workers = max(1, min(8, (os.cpu_count() or 1) // 2))
    failed: list[Result] = []
    passed = left = 0

    def results(chunk: list[str]) -> list[Result] | None:
        return None if time.time() > until else list(tried("conformance", device, chunk))

    with ThreadPoolExecutor(workers) as pool:
        for chunk, found in zip(chunks, pool.map(results, chunks), strict=True):
            left += len(chunk) if found is None else 0
            passed += sum(not one.told for one in found or ())
            failed += [one for one in found or () if one.told]
    report.line(
        f"conformance: {passed} of {len(names)} pass, {len(failed)} fail, {left} not reached"
    )
    for one in failed:
        again = (
            [*tried("conformance", device, [one.name], careful=True)] if time.time() < until else []
        )
        report.failure(f"conformance {one.name}", f"{one.told}{again_told(again)}")


# ----------------------------------------------------------------------------- processes


@dataclass(frozen=True)
class Result:
    """What became of a check: what it said, or the traceback that it ended with."""

    name: str
    said: str = ""
    told: str = ""
    seconds: float = 0.0


def again_told(results: Sequence[Result]) -> str:
    """What was told when a check was tried once more."""
    told = "\n".join(one.told or "it passes" for one in results)
    return f"\nwith each launch waited for:\n{told}" if told else ""


def run_checks(part: str, device: str, names: Sequence[str], first: int, careful: bool) -> None:
    """Try checks in this process, a line before and after each, until one has lost the device."""
    if careful or part != "driver":
        from darner.backends.cuda.opening import opened

        opened(device).careful = careful
    checks = checks_of_ops(device, names) if part == "conformance" else CHECKS[part](device)
    for number, (name, body) in enumerate(checks):
        if number < first or (names and name not in names):
            continue
        print(MARK + json.dumps(["begin", number, name]), flush=True)
        said, told, started = "", "", time.perf_counter()
        try:
            said = str(body() or "")
        except BaseException:
            told = traceback.format_exc()
        took = time.perf_counter() - started
        print(MARK + json.dumps(["end", number, name, said, told, took]), flush=True)
        if "DeviceLostError" in told:
            return
    print(MARK + json.dumps(["done"]), flush=True)


def tried(
    part: str, device: str, names: Sequence[str] = (), careful: bool = False
) -> Iterator[Result]:
    """What became of checks: where their process ends, or says nothing for too long, another goes on with the next."""
    first, done = 0, False
    while not done:
        command = [sys.executable, "-W", "ignore", "-m", "bench.cuda_check", "--child", part]
        command += ["--device", device, "--first", str(first)]
        command += ["--careful"] * careful + ["--names", *names] * bool(names)
        with tempfile.TemporaryFile("w+") as errors:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            begun: tuple[int, str] | None = None
            for kind, *about in lines_of(child):
                if kind == "begin":
                    begun = about[0], about[1]
                    first = about[0] + 1
                elif kind == "end":
                    begun = None
                    yield Result(*about[1:])
                done = kind == "done"
            code = child.wait()
            errors.seek(0)
            last = errors.read()[-4000:]
        if begun is not None:
            why = "said nothing for too long" if code == -9 else f"ended with {code}"
            yield Result(begun[1], told=f"its process {why}\n{last}")
        elif not done and code:
            yield Result(f"{part} from check {first} on", told=f"ended with {code}\n{last}")
            return


def lines_of(child: subprocess.Popen[str]) -> Iterator[list]:
    """What a child says, until it ends; one that hangs is ended."""
    said: Queue[str | None] = Queue()

    def listen() -> None:
        for line in child.stdout or ():
            said.put(line)
        said.put(None)

    Thread(target=listen, daemon=True).start()
    while True:
        try:
            line = said.get(timeout=PATIENCE)
        except Empty:
            child.kill()
            continue
        if line is None:
            return
        if line.startswith(MARK):
            yield json.loads(line.removeprefix(MARK))


def check_part(report: Report, part: str, device: str, until: float) -> None:
    """A part whose checks are one after another."""
    for one in tried(part, device):
        if one.told:
            again = [*tried(part, device, [one.name], careful=True)] if part == "sessions" else []
            report.failure(one.name, one.told + again_told(again))
        else:
            report.line(
                f"ok {one.name} ({one.seconds:.1f} s)" + (f": {one.said}" if one.said else "")
            )
        if time.time() > until:
            report.line("the rest was not reached")
            return


SANITIZED = {
    "a perceptron": "from tests.leaks import models; s = models.training(device={device!r}, cache=None); models.learned(s, 3); s.close()",
    "a Llama in bf16": "from bench.cuda_models import llama_steps; llama_steps({device!r}, 'bf16')",
}
"""Python that runs under compute-sanitizer: kernels of every device, and those on tensor cores."""


def check_sanitized(report: Report, tool: str, device: str) -> None:
    """Training steps under one of compute-sanitizer's tools."""
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).exists():
        report.line(f"{tool}: there is no compute-sanitizer here")
        return
    for name, code in SANITIZED.items():
        command = [found, "--tool", tool, "--error-exitcode", "9"]
        command += [sys.executable, "-c", code.format(device=device)]
        run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
        said = run.stdout.strip().splitlines()
        if run.returncode:
            report.failure(f"{tool} of {name}", run.stdout[-6000:] + run.stderr[-2000:])
        else:
            report.line(f"ok {tool} of {name}: {said[-1] if said else 'nothing said'}")


# ----------------------------------------------------------------------------- times


def seconds_of(body: Callable[[], object], repeats: int = 20) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        body()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def checks_of_times(name: str) -> Checks:
    """How long calls take; nothing is judged."""
    from darner.backends.cuda.opening import opened
    from darner.backends.cuda.rates import rates_of

    def compiling() -> str:
        device = opened(name)
        told = []
        for number in range(3):
            stage = adding(name, number + 3.0)
            with device.guard:
                built = seconds_of(partial(device.context.assemble, stage), 1)
            loaded = seconds_of(partial(device.kernels, [stage]), 1)
            told.append(f"PTX and object code {built * 1e3:.1f} ms, loaded too {loaded * 1e3:.1f}")
        return "; ".join(told)

    def nodes(early: bool) -> str:
        device = opened(name)
        stage = idle(name, early=early)
        kernel = device.kernels([stage])[stage.digest][0]
        with device.guard:
            stream = device.transfers.stream
            launch = kernel.launch(stage, [], [])

            def all_nodes() -> None:
                for _ in range(500):
                    launch.start(stream)

            def replayed() -> None:
                graph.start(stream)
                stream.wait()

            graph = stream.record(all_nodes)
            took = seconds_of(replayed)
            started = seconds_of(partial(launch.start, stream))
            stream.wait()
            graph.close()
        return f"{took / 500 * 1e6:.2f} us of 500 in a graph; a launch by itself {started * 1e6:.1f} us of the host"

    def steps() -> str:
        from tests.leaks import models

        session = models.training(device=name, cache=None)
        models.learned(session, 5)
        alone = seconds_of(lambda: (session.step(), session.wait()), 50)
        read = seconds_of(lambda: (session.step(), session.read_loss()), 50)
        started = seconds_of(session.step, 50)
        session.wait()
        kernels = len(session._runner.last.program.plan.kernels)
        session.close()
        return f"{kernels} kernels: step and wait {alone * 1e6:.0f} us, step and loss {read * 1e6:.0f} us, step alone {started * 1e6:.0f} us"

    def transfers() -> str:
        device = opened(name)
        values = np.ones(64 << 20, np.uint8)
        region = device.region(values.nbytes, "a time")
        sent = seconds_of(lambda: (device.write(region, values), device.wait()), 5)
        read = seconds_of(lambda: device.read(region), 5)
        device.give_back(region)
        gigabytes = values.nbytes / 1e9
        return f"to the device {gigabytes / sent:.1f} GB/s, from it {gigabytes / read:.1f} GB/s"

    yield "roofline", lambda: str(rates_of(opened(name)))
    yield "transfers", transfers
    yield "compiling a small kernel", compiling
    yield "a node of a graph", partial(nodes, False)
    yield "a node that starts early", partial(nodes, True)
    yield "a small training step", steps


# ----------------------------------------------------------------------------- the command


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--report", type=Path, default=Path(os.environ.get("OUT", "build/cuda")))
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--types", default="f32,f64,f16,bf16", help="element types of conformance")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--careful", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_checks(options.child, options.device, options.names, options.first, options.careful)
        return 0
    report = Report(options.report)
    until = time.time() + 60 * options.minutes
    report.line(f"darner on {options.device}, Python {platform.python_version()}, {time.ctime()}")
    for part in options.parts or PARTS:
        report.line(f"--- {part}")
        try:
            if part in CHECKS:
                check_part(report, part, options.device, until)
            elif part == "conformance":
                types = tuple(options.types.split(","))
                check_conformance(report, options.device, types, until)
            else:
                check_sanitized(report, part, options.device)
        except Exception:  # above all a package of the tests that is not there
            report.failure(part, traceback.format_exc())
    report.line(f"{report.failed} failed" if report.failed else "all is well")
    return 1 if report.failed else 0


CHECKS: dict[str, Callable[[str], Checks]] = {
    "driver": checks_of_driver,
    "sessions": checks_of_sessions,
    "times": checks_of_times,
}


if __name__ == "__main__":
    sys.exit(main())
