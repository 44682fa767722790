"""``darner doctor``: what darner finds on this machine, and whether it works."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..backends.base.registry import DEFAULT_DEVICE, backend_of, loadable
from . import EXIT_FAILED
from .options import new_parser, print_json

if TYPE_CHECKING:
    from ..backends.base.backend import Backend

EXAMPLE = "  darner doctor --json"
TOLERANCE = 1e-5


def add_command(commands: Any) -> None:
    """Add ``doctor`` to the command line."""
    parser = new_parser(
        commands,
        "doctor",
        run,
        help="check that darner works here",
        description="What darner finds on this machine, and whether it works. Exit code 1: something it needs does not.",
        example=EXAMPLE,
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for other programs")


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner doctor``."""
    found = examination()
    if options.json:
        print_json(found)
    else:
        print("\n".join(lines(found)))
    return EXIT_FAILED if found["problems"] else 0


def examination() -> dict[str, Any]:
    """All that is found; ``problems`` are what keeps darner from working, each with its ``fix``."""
    import platform

    from .. import __version__

    packages, problems = _packages()
    found: dict[str, Any] = {
        "darner": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
        "system": platform.platform(),
        "packages": packages,
    }
    if not problems:  # what follows needs them all
        rows, broken = loadable()
        required = [row for row in rows if row.required]
        found["processor"] = backend_of(DEFAULT_DEVICE).facts()
        # A tiny graph is run on each and compared with the reference.
        found["devices"] = {row.name: _tried(row.name) for row in required}
        found["cache"] = _cache()
        # What a machine may have besides, packages that bring other devices among it.
        found["gpus"] = [about for row in rows if not row.required for about in _optional(row)]
        found["gpus"] += [{"name": n, "outcome": str(error)} for n, error in broken.items()]
        for row in required:
            name, outcome = row.name, found["devices"][row.name]
            if outcome != "works":
                fix = f"{row.remedy()}, and report it with the output of: darner doctor --json"
                problems.append({"problem": f"the device {name}: {outcome}", "fix": fix})
    found["problems"] = problems
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The findings for people."""
    rows = [
        ("darner", found["darner"]),
        ("Python", f"{found['python']} ({found['executable']})"),
        ("system", found["system"]),
    ]
    if "processor" in found:
        cpu = found["processor"]
        caches = ", ".join(
            f"{name.upper()} {_size(cpu[name])}" for name in ("l1", "l2", "l3") if cpu[name]
        )
        rows += [
            ("processor", f"{cpu['name']}, {cpu['cores']} cores"),
            ("", f"vectors of {8 * cpu['vector_bytes']} bits; {', '.join(cpu['features'])}"),
            ("", caches or "sizes of caches are not known"),
        ]
    for name, outcome in found.get("devices", {}).items():
        rows.append((f"device {name}", outcome))
    for gpu in found.get("gpus", ()):
        rows.append((f"device {gpu['name']}", gpu["outcome"]))
        rows += [("", line) for line in gpu.get("details", ())]
    if "cache" in found:
        cache = found["cache"]
        state = "" if cache["writable"] else ", which cannot be written: every start compiles anew"
        if cache["refused"]:
            state = f", which is not used: {cache['refused']}"
        used = f"{_size(cache['bytes'])} of {_size(cache['limit_bytes'])}"
        rows.append(("cache", f"{cache['folder']}: {used}{state}"))
    for name, package in found["packages"].items():
        text = package["version"] or "not installed"
        if package["extra"]:
            text += f" (extra {package['extra']}"
            text += ")" if package["version"] else f": pip install 'darner[{package['extra']}]')"
        rows.append((name, text))
    width = max(len(name) for name, _ in rows)
    shown = [f"{name:<{width}}  {text}" for name, text in rows]
    for one in found["problems"]:
        shown += ["", f"problem: {one['problem']}", f"fix:     {one['fix']}"]
    return [*shown, "", "all is well" if not found["problems"] else "darner does not work here"]


def _packages() -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The packages that darner needs and can use, with their versions; and those that are missing."""
    import importlib.util
    import re
    from importlib import metadata

    packages: dict[str, Any] = {}
    problems = []
    for requirement in _requirements():
        name, condition = re.split(r"[\s<>=!~;\[]", requirement, maxsplit=1)[0], requirement
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", condition)
        kind = extra[1] if extra else None
        if kind == "bench":
            continue
        try:
            version: str | None = metadata.version(name)
        except metadata.PackageNotFoundError:
            # A package that was put on the path by hand has no record of its version.
            version = "?" if importlib.util.find_spec(name.replace("-", "_")) else None
        packages[name] = {"version": version, "extra": kind}
        if version is None and kind is None:
            fix = f"pip install '{requirement}'"
            problems.append({"problem": f"the package {name} is not installed", "fix": fix})
    return packages, problems


def _requirements() -> list[str]:
    """What this darner asks for: by the project's file in a checkout, else by the record of what was installed."""
    import tomllib
    from importlib import metadata
    from pathlib import Path

    path = Path(__file__).resolve().parents[2] / "pyproject.toml"
    project = tomllib.loads(path.read_text("utf-8"))["project"] if path.is_file() else {}
    if project.get("name") == "darner":
        extras = project["optional-dependencies"]
        optional = [f"{one}; extra == '{name}'" for name in extras for one in extras[name]]
        return [*project["dependencies"], *optional]
    try:
        return metadata.requires("darner") or []
    except metadata.PackageNotFoundError:  # copied by hand
        return []


def _optional(row: Backend) -> list[dict[str, Any]]:
    """The devices of a backend that not every machine has, each with whether it works; a machine without one is well too."""
    return [
        {
            "name": device.name,
            "outcome": _tried(device.name),
            "title": device.title,
            "kind": device.kind,
            "driver": device.driver,
            "features": list(device.features),
            "limits": dict(device.limits),
            "details": list(row.details(device)),
        }
        for device in row.devices()
    ] or [{"name": row.name, "outcome": f"none ({row.remedy()})"}]


def _tried(device: str) -> str:
    import numpy as np

    from ..graph.graph import Graph
    from ..interpreter import run as reference
    from ..session import build_inference_session

    graph = Graph("doctor")
    x, w = graph.input("x", (3, 5)), graph.parameter("w", (5, 7))
    graph.set_outputs([(x @ w).softmax(-1)])
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 5)).astype(np.float32), rng.normal(size=(5, 7)).astype(np.float32)
    (wanted,) = reference(graph, {"x": values[0]}, {"w": values[1]})
    try:
        # Nothing is kept: what was compiled on an earlier day says nothing of today.
        with build_inference_session(graph, device=device, cache=None) as session:
            session.set_parameter("w", values[1])
            found = session.run({"x": values[0]})["output0"]
    except Exception as error:  # whatever it is, it is what is asked for
        return f"{type(error).__name__}: {error}"
    wrong = float(np.abs(found - wanted).max())
    return "works" if wrong < TOLERANCE else f"results differ from the reference by {wrong:.3g}"


def _cache() -> dict[str, Any]:
    import os

    from ..backends.base.cache import ObjectCache
    from ..backends.base.trust import UntrustedError, opened_folder

    cache, refused = ObjectCache(), ""
    place = cache.folder
    above = place
    while above is not None and not above.exists() and above != above.parent:
        above = above.parent  # it is made when it is first needed
    if place is not None and place.exists():
        try:
            with opened_folder(place):
                pass
        except UntrustedError as error:
            refused = str(error)
    return {
        "folder": str(place),
        "bytes": 0 if refused else cache.size(),
        "limit_bytes": cache.limit_bytes,
        "writable": above is not None and above.is_dir() and os.access(above, os.W_OK),
        "refused": refused,
    }


def _size(count: int) -> str:
    from ..lower.plan_text import size

    return size(count)
