"""All targets, side by side: ``python -m fuzz.run --seconds 60``, or ``python -m fuzz.run graph_text plan --seconds 600``.

Inputs that were new stay in ``build/fuzz/corpus``, and the next run goes on from them. What was found lies in
``build/fuzz/finds``: an input, and the traceback beside it. The exit status is 1 where there is any.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .targets import TARGETS, Target

FOLDER = Path("build/fuzz")
SECONDS = 60
SLOW = 10
"""Seconds that one input may take."""
MEMORY = 2048
"""Megabytes that a process may have."""
_COUNT = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


@dataclass(frozen=True)
class Result:
    """What came of a target."""

    name: str
    executions: int
    corpus: int
    finds: list[Path]


def main() -> int:
    """Run the targets that are named, or all."""
    options = _options()
    names = options.targets or list(TARGETS)
    shutil.rmtree(FOLDER / "finds", ignore_errors=True)
    for name in names:
        _write_seeds(name, TARGETS[name])
    print(
        f"{'target':20} {'executions':>12} {'a second':>9} {'corpus':>7} {'finds':>6}", flush=True
    )
    with ThreadPoolExecutor(options.jobs) as pool:
        results = []
        for result in pool.map(lambda name: _run(name, options.seconds), names):
            rate, found = result.executions // options.seconds, len(result.finds)
            line = f"{result.name:20} {result.executions:12,} {rate:9,} {result.corpus:7} {found:6}"
            print(line, flush=True)
            results.append(result)
    print(f"{'all':20} {sum(result.executions for result in results):12,}")
    finds = [path for result in results for path in result.finds]
    for path in finds:
        print(f"found: {path}")
    return 1 if finds else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="of these readers alone")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each target")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time")
    return parser.parse_args()


def _write_seeds(name: str, target: Target) -> None:
    folder = FOLDER / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, document in enumerate(target.seeds()):
        (folder / f"seed-{number}").write_bytes(document)


def _run(name: str, seconds: int) -> Result:
    folder, finds = FOLDER / "corpus" / name, FOLDER / "finds" / name
    finds.mkdir(parents=True, exist_ok=True)
    executions = 0
    for left in _while_time(seconds):
        options = [
            f"-max_total_time={left}",
            f"-timeout={SLOW}",
            f"-rss_limit_mb={MEMORY}",
            f"-max_len={TARGETS[name].longest}",
            f"-artifact_prefix={finds}/",
            "-print_final_stats=1",
        ]
        command = [sys.executable, "-m", "fuzz.one", name, str(finds), str(folder), *options]
        log = FOLDER / f"{name}.log"
        with log.open("wb") as file:
            subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
        found = _COUNT.search(log.read_text(errors="replace"))
        executions += int(found[1]) if found else 0
        if found is None:
            (finds / "died.txt").write_text(log.read_text(errors="replace")[-4000:])
            break
    kept = [path for path in sorted(finds.iterdir()) if path.suffix != ".input"]
    return Result(name, executions, len(list(folder.iterdir())), kept)


def _while_time(seconds: int) -> Iterator[int]:
    """The seconds that are left, as long as there are any: a target that ended early begins again."""
    from time import monotonic

    end = monotonic() + seconds
    while (left := round(end - monotonic())) > 0:
        yield left


if __name__ == "__main__":
    sys.exit(main())
