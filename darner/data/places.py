"""Where files of data usually lie, so that a demo finds them without being told."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from ..graph.errors import listed
from ..io.atomic import FileError

CHECKOUT = Path(__file__).resolve().parents[2]
"""The folder that holds the package: of a checkout, where ``examples`` is beside it."""


def data_folders() -> Iterator[Path]:
    """Folders that data is often kept in: of the current folder, the checkout where there is one, and the user."""
    examples = CHECKOUT / "examples"
    beside = (CHECKOUT, CHECKOUT.parent / "shared") if examples.is_dir() else ()
    for base in (Path.cwd(), *beside, Path.home()):
        yield base / "data"
    cache = os.environ.get("XDG_CACHE_HOME")
    yield (Path(cache) if cache else Path.home() / ".cache") / "darner"


class MissingError(FileError, FileNotFoundError):
    """A file that is in none of the places where it was looked for."""


def not_found(what: str, looked: list[Path], hint: str) -> MissingError:
    """The error that says where something was looked for."""
    places = listed((f"'{place}'" for place in dict.fromkeys(looked)), most=8)
    return MissingError(f"{what} is not in {places}", str(looked[0]), errno.ENOENT, hint=hint)
