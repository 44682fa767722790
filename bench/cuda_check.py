"""Everything that only a card can show, in a few minutes: that its driver does what is asked of it, sessions, conformance, memory errors; and how long calls take.

    python -m bench.cuda_check                              all of it; exit code 1 where something fails
    python -m bench.cuda_check driver sessions              some parts: driver, sessions, conformance, memcheck, times
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from darner.backends.cuda.stage import Stage

PARTS = ("driver", "sessions", "conformance", "memcheck", "times")
CHUNK = 24
"""Ops of one process."""
RESULT = "result: "


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

    def check(self, name: str, body: Callable[[], object]) -> None:
        """Do something; a failure is told and the next thing tried."""
        started = time.perf_counter()
        try:
            said = body()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            self.failure(name, traceback.format_exc())
            return
        took = time.perf_counter() - started
        self.line(f"ok {name} ({took:.1f} s)" + (f": {said}" if said else ""))


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


def checks_of_driver(name: str) -> Iterator[tuple[str, Callable[[], object]]]:
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


def checks_of_sessions(name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """The promises of ``tests/cuda/promises.py``."""
    from tests.cuda import promises
    from tests.session.failing import CASES
    from tests.whole_models import MODELS, check_model

    class Patch:
        """What pytest's monkeypatch does, as far as it is needed."""

        def __init__(self) -> None:
            self.before: list[tuple[object, str, object]] = []

        def setattr(self, owner: object, attribute: str, value: object) -> None:
            self.before.append((owner, attribute, getattr(owner, attribute)))
            setattr(owner, attribute, value)

    def second_build() -> None:
        patch = Patch()
        with tempfile.TemporaryDirectory() as folder:
            try:
                promises.the_second_build_writes_no_kernel(name, Path(folder), patch)
            finally:
                for change in patch.before:
                    setattr(*change)

    def checkpoint(first: str, second: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            promises.a_checkpoint_goes_on_on_another_device(first, second, Path(folder))

    for optimizer in promises.OPTIMIZERS:
        yield (
            f"training by {optimizer}",
            partial(promises.training_has_the_numbers_of_the_cpu, name, optimizer),
        )
    for case in CASES:
        yield f"a failed step: {case}", partial(promises.a_failed_step_changes_nothing, name, case)
    yield "a checkpoint to the card", lambda: checkpoint("cpu", name)
    yield "a checkpoint from the card", lambda: checkpoint(name, "cpu")
    yield "the second build", second_build
    for title, function in vars(promises).items():
        plain = inspect.isfunction(function) and function.__module__ == promises.__name__
        if plain and [*inspect.signature(function).parameters] == ["device"] and title != "held":
            yield title.replace("_", " "), partial(function, name)
    for model in MODELS:
        yield f"a model: {model}", partial(check_model, model, name, "cuda")
    yield (
        "50 sessions leave nothing",
        partial(promises.sessions_that_come_and_go_leave_nothing, name, 25),
    )


# ----------------------------------------------------------------------------- conformance


def programs(types: tuple[str, ...]) -> dict[str, object]:
    """What devices are tried with, by name."""
    from tests.conformance.devices import PROGRAMS

    return {program.id: program for program in PROGRAMS if program.values[1] in types}


def try_ops(device: str, names: list[str], careful: bool) -> None:
    """Try ops in this process; a line for each."""
    from darner.backends.cuda.opening import opened
    from tests.conformance.devices import check_on

    known = programs(("f32", "f64", "f16", "bf16"))
    opened(device).careful = careful
    for name in names:
        op, dtype = known[name].values  # type: ignore[attr-defined]
        told, started = "", time.perf_counter()
        try:
            check_on(device, op, dtype, tangents_of=1)
        except BaseException:
            told = traceback.format_exc()
        lost = bool(opened(device).lost)
        took = time.perf_counter() - started
        print(RESULT + json.dumps([name, told, took, lost]), flush=True)
        if lost:
            return


def tried(device: str, names: list[str], careful: bool = False) -> Iterator[tuple[str, str, float]]:
    """What became of ops: name, traceback and seconds; a process that ends is followed by another with the rest."""
    while names:
        command = [sys.executable, "-W", "ignore", "-m", "bench.cuda_check", "--device", device]
        command += ["--careful"] * careful + ["--ops", *names]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        found = [
            json.loads(line.removeprefix(RESULT))
            for line in run.stdout.splitlines()
            if line.startswith(RESULT)
        ]
        for name, told, took, _ in found:
            yield name, told, took
        rest = names[len(found) :]
        if rest and not (found and found[-1][3]):
            yield rest[0], f"its process ended with {run.returncode}\n{run.stderr[-4000:]}", 0.0
            rest = rest[1:]
        names = rest


def check_conformance(report: Report, device: str, types: tuple[str, ...], until: float) -> None:
    """All ops in processes of their own, several at a time."""
    names = list(programs(types))
    chunks = [names[i : i + CHUNK] for i in range(0, len(names), CHUNK)]
    workers = max(1, min(8, (os.cpu_count() or 1) // 2))
    passed, failed, left = 0, [], 0

    def results(chunk: list[str]) -> list[tuple[str, str, float]] | None:
        return None if time.time() > until else list(tried(device, chunk))

    with ThreadPoolExecutor(workers) as pool:
        for chunk, found in zip(chunks, pool.map(results, chunks), strict=True):
            if found is None:
                left += len(chunk)
                continue
            passed += sum(not told for _, told, _ in found)
            failed += [(name, told) for name, told, _ in found if told]
    report.line(
        f"conformance: {passed} of {len(names)} pass, {len(failed)} fail, {left} not reached"
    )
    for name, told in failed:
        again = next(tried(device, [name], careful=True))[1] if time.time() < until else ""
        report.failure(
            f"conformance {name}", f"{told}\nwith each launch waited for:\n{again or 'it passes'}"
        )


def check_memory(report: Report, device: str) -> None:
    """A session under compute-sanitizer."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        report.line("memcheck: there is no compute-sanitizer here")
        return
    code = f"from tests.leaks import models; s = models.training(device={device!r}, cache=None); models.learned(s, 3); s.close()"
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    if run.returncode:
        report.failure("memcheck", run.stdout[-6000:] + run.stderr[-2000:])
    else:
        report.line(f"ok memcheck: {run.stdout.strip().splitlines()[-1]}")


# ----------------------------------------------------------------------------- times


def seconds_of(body: Callable[[], object], repeats: int = 20) -> float:
    """The median time of a call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        body()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 2]


def checks_of_times(name: str) -> Iterator[tuple[str, Callable[[], object]]]:
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
    parser.add_argument("--ops", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--careful", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ops:
        try_ops(options.device, options.ops, options.careful)
        return 0
    wanted = options.parts or PARTS
    report = Report(options.report)
    until = time.time() + 60 * options.minutes
    report.line(f"darner on {options.device}, Python {platform.python_version()}, {time.ctime()}")
    simple = {
        "driver": checks_of_driver,
        "sessions": checks_of_sessions,
        "times": checks_of_times,
    }
    for part in wanted:
        report.line(f"--- {part}")
        if part in simple:
            for name, body in simple[part](options.device):
                if time.time() > until:
                    report.line(f"not reached: {name}")
                    continue
                report.check(name, body)
        elif part == "conformance":
            types = tuple(options.types.split(","))
            check_conformance(report, options.device, types, until)
        else:
            check_memory(report, options.device)
    report.line(f"{report.failed} failed" if report.failed else "all is well")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
