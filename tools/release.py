"""Build the sdist and the wheel in clean environments, and check them: ``make release``.

    python tools/release.py                 # dist/ has both, checked
    python tools/release.py --allow-dirty   # with changes that are not committed

The sdist is made of the working tree, the wheel of the sdist, both with the tools in requirements/release.lock. The wheel is then
installed in an environment of its own, as a user would, where tests/smoke.py runs. Nothing is written outside build/ and dist/, and
nothing is uploaded.
"""

from __future__ import annotations

import argparse
import email
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "release"
DIST = ROOT / "dist"
CHECK = "import sys; from twine.commands.check import main; sys.exit(main(sys.argv[1:]))"
"""`twine check` without the packages that twine names for uploads."""


class ReleaseError(Exception):
    """What is wrong with a distribution."""


def main() -> None:
    """Build, check, install and try."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--allow-dirty", action="store_true", help="build uncommitted changes too")
    options = parser.parse_args()
    try:
        if not options.allow_dirty:
            refuse_changes()
        sdist, wheel = build()
        version = check_wheel(wheel)
        check_sdist(sdist, version)
        try_installed(wheel, version)
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    print(f"darner {version} is ready: {sdist.relative_to(ROOT)}, {wheel.relative_to(ROOT)}")


def refuse_changes() -> None:
    """What is built must be what is committed."""
    changed = run("git", "status", "--porcelain").strip()
    if changed:
        raise ReleaseError(f"there are changes that are not committed:\n{changed}")


def build() -> tuple[Path, Path]:
    """The sdist of the tree and the wheel of the sdist, in an environment with the locked tools alone."""
    for folder in (WORK, DIST):
        shutil.rmtree(folder, ignore_errors=True)
    python = environment("tools")
    install(python, "--no-deps", "-r", "requirements/release.lock")
    run(python, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    run(python, "-c", CHECK, "--strict", sdist, wheel)
    return sdist, wheel


def check_wheel(wheel: Path) -> str:
    """Check what a wheel holds; its version."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
    wanted = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "darner").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in names if not name.startswith(f"{info}/")}
    compare("the wheel lacks", wanted - held)
    compare("the wheel should not have", held - wanted)
    compare("the wheel lacks", {"darner/py.typed", f"{info}/licenses/LICENSE"} - names)
    version = str(metadata["Version"])
    if not wheel.name.startswith(f"darner-{version}-py3-none-any"):
        raise ReleaseError(f"{wheel.name} says it is {version}")
    return version


def check_sdist(sdist: Path, version: str) -> None:
    """Check that an sdist is of the same version and holds what a build needs."""
    top = f"darner-{version}"
    if sdist.name != f"{top}.tar.gz":
        raise ReleaseError(f"the wheel is {version}, but the sdist {sdist.name}")
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{top}/") for name in archive.getnames()}
    compare(
        "the sdist lacks", {"pyproject.toml", "README.md", "LICENSE", "darner/py.typed"} - names
    )


def try_installed(wheel: Path, version: str) -> None:
    """Install the wheel with all that it names, at the versions that are tested, and run the smoke test away from the tree."""
    python = environment("user")
    install(python, "--constraint", "requirements/runtime.lock", wheel)
    run(python, "-m", "pip", "check")
    place = WORK / "elsewhere" / "tests"
    place.mkdir(parents=True)
    shutil.copy(ROOT / "tests/smoke.py", place)
    shown = run(
        python,
        "-c",
        "import darner, importlib.metadata as m; print(darner.__file__, darner.__version__, m.version('darner'))",
        folder=place,
    ).split()
    if not Path(shown[0]).is_relative_to(WORK / "user"):
        raise ReleaseError(f"what was tried is not what was installed, but {shown[0]}")
    if shown[1:] != [version, version]:
        raise ReleaseError(f"the wheel is {version}, but says {shown[1]} and {shown[2]}")
    print(run(python, "-W", "error", "smoke.py", folder=place), end="")
    run(python.with_name("darner"), "--version", folder=place)


def compare(text: str, names: set[str]) -> None:
    """Complain of files, if there are any."""
    if names:
        raise ReleaseError(f"{text} {', '.join(sorted(names)[:10])}")


def environment(name: str) -> Path:
    """The Python of a new virtual environment."""
    venv.create(WORK / name, with_pip=True)
    return WORK / name / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(python: Path, *what: str | Path) -> None:
    """Install packages in an environment."""
    run(python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *what)


def run(*command: str | Path, folder: Path = ROOT) -> str:
    """What a command prints; its failure is an error with all that it said."""
    changed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": ""}
    finished = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **changed},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if finished.returncode:
        words = " ".join(map(str, command))
        raise ReleaseError(f"`{words}` ended with {finished.returncode}\n{finished.stdout}")
    return finished.stdout


if __name__ == "__main__":
    main()
