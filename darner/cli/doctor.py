"""``darner doctor``: what darner finds on this machine, and whether it works."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from . import EXIT_FAILED
from .options import new_parser, print_json

EXAMPLE = "  darner doctor --json"
FEATURES = ("sse4.2", "avx2", "fma", "avx512f", "avx512bf16", "amx-tile", "neon", "sve", "bf16")
"""Features of processors that make a difference; a processor has hundreds."""
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
        found["processor"] = _processor()
        found["devices"] = _devices()
        found["cache"] = _cache()
        found["gpus"] = _gpus()
        for name, outcome in found["devices"].items():
            if outcome != "works":
                fix = "reinstall llvmlite, and report it with the output of: darner doctor --json"
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
        if "title" in gpu:
            limit = gpu["limits"].get("max-storage-buffer-binding-size", 0)
            rows += [
                ("", f"{gpu['title']}, {gpu['kind']}, {gpu['driver']}"),
                ("", f"tensors of up to {_size(limit)}; {', '.join(gpu['features'])}"),
            ]
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


def _processor() -> dict[str, Any]:
    from ..backends.cpu.runtime.jit import host

    machine = host()
    has = machine.features.split(",")
    return {
        "name": machine.cpu,
        "architecture": machine.architecture,
        "cores": machine.cores,
        "vector_bytes": machine.vector_bytes,
        "features": [name for name in FEATURES if f"+{name}" in has],
        **{name: getattr(machine, name) for name in ("l1", "l2", "l3")},
    }


def _devices() -> dict[str, str]:
    """For each device ``works``, or what went wrong: a tiny graph is run there and compared with the reference."""
    return {device: _tried(device) for device in ("cpu", "reference")}


def _gpus() -> list[dict[str, Any]]:
    """The GPUs, each with whether it works; a machine without one is well too."""
    from ..backends.devices import devices

    found = [device for device in devices() if device.name.startswith("gpu")]
    if not found:
        import importlib.util

        missing = importlib.util.find_spec("wgpu") is None
        hint = "pip install 'darner[gpu]'" if missing else "no driver of Vulkan, Metal or DX12"
        return [{"name": "gpu", "outcome": f"none ({hint})"}]
    return [
        {
            "name": device.name,
            "outcome": _tried(device.name),
            "title": device.title,
            "kind": device.kind,
            "driver": device.driver,
            "features": list(device.features),
            "limits": dict(device.limits),
        }
        for device in found
    ]


def _tried(device: str) -> str:
    import numpy as np

    from ..backends.reference import run as reference
    from ..graph.graph import Graph
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

    from ..backends.cpu.cache import ObjectCache
    from ..backends.trust import UntrustedError, opened_folder

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
