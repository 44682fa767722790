"""Write the files that are made from the op registry, or say which are out of date.

python -m darner.cli.generate           writes them
python -m darner.cli.generate --check   writes nothing; exit code 1 when one is out of date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .homes import homes_text
from .pages import fill_blocks, ops_page
from .stubs import stub_text

ROOT = Path(__file__).resolve().parents[2]
COMMAND = "python -m darner.cli.generate"

FILES: dict[str, Callable[[str], str]] = {
    "darner/_homes.py": lambda old: homes_text(),  # first: it imports what the old one lacks
    "docs/ops.md": lambda old: ops_page(),
    "docs/types.md": fill_blocks,
    "darner/graph/methods.pyi": lambda old: stub_text(),
}
"""Each generated file, with the function from its present text to the right one."""


def stale_files(root: Path) -> dict[str, str]:
    """The files that are not what the registry says, each with the text it should have."""
    stale = {}
    for name, make in FILES.items():
        path = root / name
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        new = make(old)
        if new != old:
            stale[name] = new
    return stale


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the generated files.")
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    options = parser.parse_args(argv)
    if not (root / "docs").is_dir():
        print(f"{root} is not a checkout of darner: there is no docs folder", file=sys.stderr)
        return 2
    stale = stale_files(root)
    for name, text in stale.items():
        if options.check:
            print(f"{name} is out of date; run {COMMAND}")
        else:
            (root / name).write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if not stale:
        print(f"{len(FILES)} generated files are up to date")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
