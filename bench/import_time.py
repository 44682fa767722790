"""How long ``import darner`` takes in a fresh process: the median of ten, as JSON.

    python bench/import_time.py

NumPy's own import is measured in turn with it, since it is the larger part. Bytecode is compiled before the
first measured run and kept in a folder of its own, so settings of the machine about it do not matter. CPU
time stands beside the time that passed: on a busy machine it is the one to compare.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile

PROGRAM = """
import time
start, start_cpu = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - start, time.process_time() - start_cpu)
"""
MODULES = ("numpy", "darner")


def seconds_to_import(module, cache):
    """One import, timed inside a process of its own: the time that passed, and the CPU time."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(module=module)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    passed, busy = map(float, finished.stdout.split())
    return passed, busy


def measure(runs):
    """For each module, the times that passed and the CPU times of all runs."""
    times = {module: [] for module in MODULES}
    with tempfile.TemporaryDirectory() as cache:
        for module in MODULES:
            seconds_to_import(module, cache)
        for _ in range(runs):
            for module in MODULES:
                times[module].append(seconds_to_import(module, cache))
    return {module: list(zip(*found, strict=True)) for module, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description="Time imports in fresh processes.")
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    times = measure(runs)
    passed, busy = times["darner"]
    report = {
        "bench": "import_time",
        "unit": "seconds",
        "runs": runs,
        "median": round(statistics.median(passed), 4),
        "median_cpu": round(statistics.median(busy), 4),
        "fastest": round(min(passed), 4),
        "slowest": round(max(passed), 4),
        "numpy_median": round(statistics.median(times["numpy"][0]), 4),
        "numpy_median_cpu": round(statistics.median(times["numpy"][1]), 4),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
