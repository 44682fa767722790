"""A copy of the package to which something is added, and a program that runs in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .source import ROOT

PROGRAM = """
import pathlib, darner
assert pathlib.Path(darner.__file__).is_relative_to({folder!r}), darner.__file__
"""


@dataclass(frozen=True)
class Copy:
    """A copy of ``darner/`` in a folder of its own."""

    folder: Path

    @classmethod
    def into(cls, folder: Path) -> Copy:
        """Copy the package as it is in the working tree."""
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "darner", folder / "darner", ignore=ignored)
        return cls(folder)

    def append(self, path: str, text: str) -> None:
        """Write at the end of a file."""
        with open(self.folder / path, "a", encoding="utf-8") as file:
            file.write(text)

    def create(self, path: str, text: str) -> None:
        """Write a new file."""
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")

    def replace(self, path: str, old: str, new: str) -> None:
        """Replace a text that a file has once."""
        target = self.folder / path
        before = target.read_text(encoding="utf-8")
        if before.count(old) != 1:
            raise LookupError(f"{path} has {old!r} {before.count(old)} times, not once")
        target.write_text(before.replace(old, new), encoding="utf-8")

    def add_behind(self, path: str, line: str, text: str) -> None:
        """Write behind a line that a file has once."""
        self.replace(path, f"{line}\n", f"{line}\n{text}")

    @property
    def touched(self) -> set[str]:
        """The files that are not what they are in the working tree, or not there."""
        files = [p for p in self.folder.joinpath("darner").rglob("*") if p.is_file()]
        names = {p.relative_to(self.folder).as_posix(): p for p in files}
        return {
            name
            for name, path in names.items()
            if "__pycache__" not in name
            and not ((ROOT / name).is_file() and (ROOT / name).read_bytes() == path.read_bytes())
        }

    def run(self, program: str) -> str:
        """What a program prints that imports the copy; an error of it is an error here."""
        finished = subprocess.run(
            [
                sys.executable,
                "-W",
                "error",
                "-c",
                PROGRAM.format(folder=str(self.folder)) + program,
            ],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )
        if finished.returncode:
            raise AssertionError(f"the program ended with {finished.returncode}\n{finished.stderr}")
        return finished.stdout
