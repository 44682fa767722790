"""``darner bench``: the project's benches, in a checkout."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import EXIT_FAILED
from .options import new_parser
from .streams import say

EXAMPLE = "  darner bench --quick\n  darner bench llama-s --batch 1 4"
ROOT = Path(__file__).resolve().parents[2]


def add_command(commands: Any) -> None:
    """Add ``bench`` to the command line."""
    parser = new_parser(
        commands,
        "bench",
        run,
        help="measure darner beside its peers (in a checkout)",
        description="Measure darner beside PyTorch, JAX and NumPy: python -m bench.peers, with these arguments.",
        example=EXAMPLE,
    )
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, metavar="...", help="those of bench.peers"
    )


def run(options: argparse.Namespace) -> int:
    """Carry out ``darner bench``."""
    if not (ROOT / "bench" / "peers").is_dir():
        say(
            "darner bench: the benches are in a checkout of the project, and this darner is installed "
            f"in {ROOT}; clone it and run: make bench"
        )
        return EXIT_FAILED
    # Figures are taken in processes of their own; the bench starts them.
    command = [
        sys.executable,
        "-m",
        "bench.peers",
        *(one for one in options.arguments if one != "--"),
    ]
    return subprocess.run(command, cwd=ROOT, check=False).returncode
