"""Where the files of a model are: a folder, or the cache of the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ..graph.errors import ArgumentError, DarnerError, optional
from ..io.atomic import FileError

WANTED = ("*.safetensors", "*.json", "*.txt", "*.model", "tokenizer*", "*.jinja")
"""What is downloaded: weights, configurations, and what tokenizers need."""
UNWANTED = ("*/*", "consolidated*", "*.bin", "*.pt", "*.onnx")
"""What is not: folders beside the model's own files, and the same weights in other forms."""
_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?", re.ASCII)


class HubError(DarnerError, OSError):
    """A model that the hub did not give."""

    __str__ = DarnerError.__str__


def folder(path_or_id: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder of a model: an existing one as it is, else that of a model of the HuggingFace hub.

    A model of the hub (``"HuggingFaceTB/SmolLM2-135M"``) is downloaded to the hub's own cache, and found there when it was
    downloaded before; offline (or with ``HF_HUB_OFFLINE=1``) only there. This needs the package ``huggingface_hub``.

    >>> folder("there/is/no/such/folder")
    Traceback (most recent call last):
    darner.io.atomic.FileError: there is no folder 'there/is/no/such/folder', and it is no name of a model of the hub either; ...

    Args:
        path_or_id: the folder, or the model's name on the hub.
        revision: a branch, tag or commit of the hub's; ``main`` when left out.

    Raises:
        FileError: there is no such folder, and the text cannot be the name of a model.
        HubError: the hub has no such model, does not give it, or cannot be reached.
        MissingPackageError: its package is not installed.
    """
    is_path = isinstance(path_or_id, str | os.PathLike)
    text = os.fspath(path_or_id) if is_path else ""
    if not isinstance(text, str) or not text:
        raise ArgumentError(f"a model is a folder or a name of the hub, got {path_or_id!r}")
    found = Path(text).expanduser()
    if found.is_dir():
        return found
    if found.exists():
        raise FileError(
            f"'{text}' is a file, not the folder of a model",
            text,
            hint="load.weights reads a single file",
        )
    if not isinstance(path_or_id, str) or not _ID.fullmatch(text):
        raise FileError(
            f"there is no folder '{text}', and it is no name of a model of the hub either",
            text,
            hint='a name is like "HuggingFaceTB/SmolLM2-135M"',
        )
    return _from_hub(text, revision)


def _from_hub(name: str, revision: str | None) -> Path:
    what = f"'{name}'" if revision is None else f"'{name}' at revision '{revision}'"
    sought = f"there is no folder '{name}' in {Path.cwd()}, so the model {what} of the hub was looked for"
    hub = optional("huggingface_hub", "hub", f"{sought}: this")
    from huggingface_hub import errors

    try:
        return Path(
            hub.snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
            )
        )
    except errors.GatedRepoError as error:
        raise HubError(
            f"{sought}: its owner asks for consent first",
            hint=f"give it at https://huggingface.co/{name}, and log in with: hf auth login",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{sought}: it has no such revision") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{sought}: there is none of this name, or it is private",
            hint="check the name; for a private one log in with: hf auth login",
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise HubError(
            f"{sought}: it is not in the cache, and the hub cannot be reached",
            hint="download it while there is a connection (hf download "
            f"{name}), or give the path of a folder",
        ) from error
    except Exception as error:  # the connection broke, a proxy refused, the disk is full
        raise HubError(f"{sought}: {error}") from error
