"""Texts to learn from."""

from __future__ import annotations

from pathlib import Path

from ..graph.errors import FormatError
from ..session.atomic import Path as PathLike
from .idx import read_maybe_gzipped
from .places import data_folders, not_found

SHAKESPEARE = "tinyshakespeare.txt"


def shakespeare(path: PathLike | None = None) -> str:
    """About a million characters of Shakespeare's plays ("Tiny Shakespeare").

    Args:
        path: a text file, gzipped or not, or a folder that has it; else it is looked for in ``examples/data`` of a checkout
            and other usual places.
    """
    if path is not None and not Path(path).is_dir():
        return read_text(path)
    folders = list(data_folders()) if path is None else [Path(path)]
    looked = [folder / name for folder in folders for name in (f"{SHAKESPEARE}.gz", SHAKESPEARE)]
    for file in looked:
        if file.exists():
            return read_text(file)
    raise not_found(
        "Tiny Shakespeare", looked, "examples/data of a checkout has it: shakespeare(path)"
    )


def read_text(path: PathLike) -> str:
    """A text file in UTF-8, gzipped or not."""
    content = read_maybe_gzipped(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"'{path}' is no text in UTF-8: {error}") from error
