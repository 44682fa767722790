"""This checkout beside another one of darner: whether results and plans are the same to the bit, and what steps take.

    python -m bench.checkouts ../before                     outputs, gradients and plans of the zoo
    python -m bench.checkouts ../before --devices cpu gpu   on several devices
    python -m bench.checkouts ../before --time mlp llama-s  steps of workloads, the two in turns
    python -m bench.checkouts ../before --import            how long `import darner` takes, in turns

Both checkouts run on this interpreter, each in a process of its own that starts in its folder.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
SPELLINGS = ("composite", "primitive 0")
LIMIT = 0.02
"""How much slower a step may be, at the median of all rounds, before it is marked."""


def main() -> int:
    """The command; 1 where something differs."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.checkouts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("other", type=Path, help="the folder of the other checkout")
    parser.add_argument("--devices", nargs="+", default=["cpu"])
    parser.add_argument("--models", nargs="+", default=[""], help="by the beginning of the name")
    parser.add_argument("--time", nargs="+", help="workloads of bench.peers, by their beginning")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4, help="of a turn")
    parser.add_argument("--import", dest="imports", action="store_true")
    options = parser.parse_args()
    other = options.other.resolve()
    if not (other / "darner").is_dir():
        parser.error(f"{other} holds no checkout of darner")
    if options.imports:
        return _imports(other, options.rounds)
    if options.time:
        return _times(other, options)
    return max(_same(other, device, options.models) for device in options.devices)


# ------------------------------------------------------------------------------- the same results


def results(device: str, models: list[str]) -> dict[str, dict[str, str]]:
    """What a checkout makes of the zoo: hashes of every output and of every plan, by the model's name."""
    import darner
    from tests.zoo import ZOO, values

    found = {}
    for name, make in ZOO.items():
        if not any(f", {spelling}" in name for spelling in SPELLINGS):
            continue
        if not any(name.startswith(beginning) for beginning in models):
            continue
        graph = make()
        inputs, params, states = values(graph)
        with darner.build_inference_session(graph, device=device) as session:
            plan = str(session.plan())
            session.parameters().update(params)
            session.state().update(states)
            outputs = session.run(inputs)
            found[name] = {
                "plan": _hash(plan.encode()),
                **{key: _hash(value.tobytes()) for key, value in outputs.items()},
                **{
                    f"state {key}": _hash(value.tobytes())
                    for key, value in sorted(session.state().items())
                },
            }
        print(name, file=sys.stderr)
    return found


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _same(other: Path, device: str, models: list[str]) -> int:
    code = f"print(json.dumps(results({device!r}, {models!r})))"
    here, there = _asked(HERE, code), _asked(other, code)
    differ = sorted(
        f"{model}: {key}"
        for model in here.keys() | there.keys()
        for key in here.get(model, {}).keys() | there.get(model, {}).keys()
        if here.get(model, {}).get(key) != there.get(model, {}).get(key)
    )
    count = sum(map(len, here.values()))
    print(f"{device}: {len(here)} models, {count} plans and values, {len(differ)} differ")
    print(*(f"  {line}" for line in differ), sep="\n", end="\n" if differ else "")
    return 1 if differ or not here else 0


def _asked(folder: Path, code: str) -> Any:
    """What a piece of code over this module prints, as JSON, in the process of a checkout."""
    lines = (
        "import importlib.util, json, sys",
        f"spec = importlib.util.spec_from_file_location('checkouts', {__file__!r})",
        "module = importlib.util.module_from_spec(spec)",
        "spec.loader.exec_module(module)",
        "results = module.results",
        code,
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


# ------------------------------------------------------------------------------- time


def _times(other: Path, options: argparse.Namespace) -> int:
    from .peers import workloads

    slower = False
    print(f"{'workload':20}{'before':>12}{'now':>12}{'now / before':>14}  quartiles")
    for workload in workloads.chosen(options.time, [1], [128]):
        with tempfile.TemporaryDirectory() as folder:
            before, now = _in_turns(other, workload, options, Path(folder))
        ratios = sorted(b / a for a, b in zip(before, now, strict=True))
        ratio, quarter = statistics.median(ratios), len(ratios) // 4
        times = (f"{1e6 * statistics.median(side):.0f} us" for side in (before, now))
        line = "".join(f"{text:>12}" for text in times)
        mark = "  slower" if ratio > 1 + LIMIT else ""
        slower |= ratio > 1 + LIMIT
        spread = f"{ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}"
        print(f"{workload.name:20}{line}{ratio:14.3f}  {spread}{mark}", flush=True)
    return int(slower)


def _in_turns(
    other: Path, workload: Any, options: argparse.Namespace, folder: Path
) -> tuple[list[float], list[float]]:
    """Seconds of a step in each round, in the other checkout and in this one."""
    from .peers.turns import Process, in_turns

    made: dict[str, Process] = {}
    times: dict[str, list[float]] = {"before": [], "now": []}
    try:
        for side, place in (("before", other), ("now", HERE)):
            (folder / side).mkdir()
            made[side] = Process("darner", workload, options.threads, folder / side, checkout=place)
        for process in made.values():
            process.hear()
        for side in in_turns(list(made), options.rounds):
            times[side].append(made[side].take_turn(options.seconds)["median"])
    finally:
        for process in made.values():
            process.close()
    return times["before"], times["now"]


def _imports(other: Path, rounds: int) -> int:
    code = "import time; t = time.perf_counter(); import darner; print(time.perf_counter() - t)"
    times: dict[Path, list[float]] = {other: [], HERE: []}
    with tempfile.TemporaryDirectory() as bytecode:
        # As an installed package has it, whatever the environment says of writing it.
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for number in range(2 * rounds):
            for folder in (other, HERE) if number % 2 else (HERE, other):
                done = subprocess.run(
                    [sys.executable, "-c", code],
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    check=True,
                )
                times[folder].append(float(done.stdout))
    before, now = (min(times[folder]) for folder in (other, HERE))
    print(
        f"import darner: {1e3 * before:.1f} ms before, {1e3 * now:.1f} ms now (best of {2 * rounds})"
    )
    return int(now > before * (1 + LIMIT))


if __name__ == "__main__":
    sys.exit(main())
