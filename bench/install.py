"""What installing darner puts on a disk: packages, megabytes, and which of darner's dependencies brought each.

    python -m bench.install                  # pip install .
    python -m bench.install --extra gpu      # pip install '.[gpu]'
    python -m bench.install --lock           # requirements/runtime.lock, without what it does not name, as `make demo` does

It makes a virtual environment in a temporary folder, installs from the package index, and sums the files that each
package says are its own, bytecode included: the table of docs/dependencies.md. `--here` describes the environment that
runs it instead, and installs nothing.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BROUGHT_BY_PYTHON = {"pip", "setuptools"}
"""In every virtual environment, whatever is installed there."""


def canonical(name: str) -> str:
    """A package's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    """The package that a requirement names, without versions and markers."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def megabytes(distribution: Distribution) -> float:
    """What a package's own files take, in MB of 10^6 bytes."""
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def needs(distribution: Distribution) -> list[str]:
    """The packages that a package names, without those of its extras and of older Pythons."""
    names = []
    for line in distribution.requires or ():
        older = re.search(r"python_version\s*<\s*['\"]3\.(\d+)", line)
        if "extra ==" in line or (older and sys.version_info >= (3, int(older.group(1)))):
            continue
        names.append(canonical(name_of(line)))
    return names


def reached_from(direct: str, named: dict[str, list[str]]) -> set[str]:
    """What a direct dependency brings along, itself included, of the packages that are installed."""
    reached, queue = {direct}, [direct]
    while queue:
        new = {name for name in named[queue.pop()] if name in named} - reached
        reached |= new
        queue += new
    return reached


def describe(extra: str | None = None) -> dict[str, Any]:
    """What this environment holds: each package with its size, and why it is there."""
    found = {canonical(d.name): d for d in distributions() if d.name}
    found = {name: d for name, d in found.items() if name not in BROUGHT_BY_PYTHON}
    named = {name: needs(d) for name, d in found.items()}
    if extra:
        of_extra = [
            r for r in found["darner"].requires or () if re.search(f"extra == .{extra}.", r)
        ]
        named["darner"] += [canonical(name_of(requirement)) for requirement in of_extra]
    direct = [name for name in named["darner"] if name in found]
    brought = {name: reached_from(name, named) for name in direct}
    rows = [
        {
            "package": found[name].name,
            "version": found[name].version,
            "MB": round(megabytes(found[name]), 1),
            "through": "darner"
            if name in direct
            else ", ".join(d for d in direct if name in brought[d]),
        }
        for name in found
    ]
    rows.sort(key=lambda row: -row["MB"])
    return {
        "python": sys.version.split()[0],
        "packages": len(rows),
        "MB": round(sum(megabytes(d) for d in found.values())),
        "rows": rows,
    }


def install(folder: Path, extra: str | None, lock: bool) -> Path:
    """A virtual environment with darner in it; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = next(
        path for path in (folder / "bin/python", folder / "Scripts/python.exe") if path.exists()
    )
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    if lock:
        subprocess.run(
            [*pip, "--no-deps", "-r", str(ROOT / "requirements/runtime.lock")], check=True
        )
        subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
    else:
        subprocess.run([*pip, f"{ROOT}[{extra}]" if extra else str(ROOT)], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description="What installing darner puts on a disk.")
    parser.add_argument("--extra", help="one of the extras of pyproject.toml")
    parser.add_argument(
        "--lock", action="store_true", help="what requirements/runtime.lock names, and no more"
    )
    parser.add_argument("--here", action="store_true", help="this environment, as it is")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.here:
        found = describe(options.extra)
    else:
        with tempfile.TemporaryDirectory() as folder:
            python = install(Path(folder), options.extra, options.lock)
            command = [str(python), str(Path(__file__)), "--here", "--json"]
            command += ["--extra", options.extra] if options.extra else []
            finished = subprocess.run(command, check=True, capture_output=True, text=True)
            found = json.loads(finished.stdout)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{'MB':>7}  {'package':<26}{'version':<12}through")
    for row in found["rows"]:
        print(f"{row['MB']:7.1f}  {row['package']:<26}{row['version']:<12}{row['through']}")
    print(f"{found['packages']} packages, {found['MB']} MB (Python {found['python']})")


if __name__ == "__main__":
    main()
