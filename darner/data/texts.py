"""Texts to learn from."""

from __future__ import annotations

from pathlib import Path

from ..graph.errors import FormatError
from ..io.atomic import Path as PathLike
from .idx import read_maybe_gzipped
from .places import not_found

FILES = Path(__file__).parent / "files"
"""What comes with darner."""
SHAKESPEARE = "tinyshakespeare.txt"


def shakespeare(path: PathLike | None = None) -> str:
    """Tiny Shakespeare: 1,115,394 characters of Shakespeare's plays, which comes with darner.

    It was collected by Andrej Karpathy for char-rnn; the plays are in the public domain.

    Args:
        path: in its place a text file, gzipped or not, or a folder that has ``tinyshakespeare.txt`` or ``.txt.gz``.
    """
    folder = FILES if path is None else Path(path)
    if path is not None and not folder.is_dir():
        return read_text(path)
    looked = [folder / name for name in (f"{SHAKESPEARE}.gz", SHAKESPEARE)]
    for file in looked:
        if file.exists():
            return read_text(file)
    raise not_found("Tiny Shakespeare", looked, "without a path it is what comes with darner")


def read_text(path: PathLike) -> str:
    """A text file in UTF-8, gzipped or not."""
    content = read_maybe_gzipped(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"'{path}' is no text in UTF-8: {error}") from error
