"""Folders that ``transformers`` and darner load: a configuration and safetensors, whole or not at all.

>>> import tempfile
>>> from darner import load
>>> with tempfile.TemporaryDirectory() as folder:
...     values = {"a": np.ones(3, np.float32), "b": np.ones((2, 5), np.float32)}
...     [path.name for path in load.save(folder, {"model_type": "line"}, values, max_shard="20B")]
['config.json', 'model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors', 'model.safetensors.index.json']
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..graph import dtypes
from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError
from ..io.atomic import FileError, write_atomically
from ..io.tensorfile import METADATA, file_chunks, header_of, stored
from .conversions import converted, kind_of, same_bytes
from .files import INDEX, SINGLE, TensorInfo, Weights
from .texts import CONFIG, write_json

FORMAT = {"format": "pt"}
"""The metadata by which ``transformers`` knows that matrices are stored as PyTorch does."""
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Z]*)")
_OLD = "replaced"
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
"""Files of weights that a save replaces, or removes where it does not make them."""


def save(  # many parameters: they are the user's options, by name
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    parameters: Mapping[str, Any],
    *,
    tied: Mapping[str, str] | None = None,
    dtype: Any = None,
    max_shard: str | int = "5GB",
    extra_files: Iterable[str | os.PathLike[str]] = (),
) -> list[Path]:
    """Write a model's folder, and return the files that were written.

    Everything is written beside the folder first. A folder that is new then appears whole; in one that exists, each file is
    replaced, weights of an earlier save that are left over go, and other files stay. After a failure all is as it was.

    Args:
        folder: where to; the folder above it must exist.
        config: what becomes ``config.json``; its ``dtype`` becomes the one that is written.
        parameters: arrays by name. They are read one at a time.
        tied: names that are not written where those they are the same as are, as ``transformers`` does.
        dtype: the element type of floats; as they are when left out. Narrower ones round.
        max_shard: the size from which on weights go to several files: bytes, or ``"500MB"``, ``"2GiB"``.
        extra_files: files to copy, such as a tokenizer's.

    Raises:
        ArgumentError, DTypeError: something that cannot be written, or tied parameters that differ; nothing is written.
        FileError: the disk is full, or the like.
    """
    limit, source = _bytes(max_shard), _Source(parameters, dtype)
    names = _untied(parameters, dict(tied or {}))
    kinds = {name: source.info(name) for name in names}
    written = {str(info.dtype) for info in kinds.values() if kind_of(info.dtype) == "float"}
    table = dict(config)
    if len(written) == 1:  # a reader may go by it, and would round without a word
        table["torch_dtype" if "torch_dtype" in table and "dtype" not in table else "dtype"] = (
            written.pop()
        )
    extras = [Path(path) for path in extra_files]
    with replacing(Path(folder).expanduser(), _is_weights) as staging:
        for path in extras:
            _copy(path, staging / path.name)
        write_json(staging / CONFIG, table)
        _write_weights(staging, kinds, source, limit)
        made = sorted(entry.name for entry in staging.iterdir())
    return [Path(folder).expanduser() / name for name in made]


class _Source(Mapping[str, Array]):
    """Parameters as a file holds them, made when asked for."""

    def __init__(self, parameters: Mapping[str, Any], dtype: Any) -> None:
        self._parameters = parameters
        self._floats = None if dtype is None else dtypes.dtype(dtype).numpy
        if self._floats is not None and kind_of(self._floats) != "float":
            raise ArgumentError(f"dtype is an element type of floats, got {dtype!r}")

    def __getitem__(self, name: str) -> Array:
        array = stored(name, self._parameters[name])
        wanted = self._wanted(array.dtype)
        return (
            array if wanted == array.dtype else converted(name, array, wanted, allow_rounding=True)
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)

    def info(self, name: str) -> TensorInfo:
        """Shape and element type that are written."""
        if isinstance(self._parameters, Weights):
            found = self._parameters.info(name)
        else:
            found = TensorInfo.of(stored(name, self._parameters[name]))
        return TensorInfo(found.shape, self._wanted(found.dtype))

    def _wanted(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        return self._floats if self._floats is not None and kind_of(dtype) == "float" else dtype


def _untied(parameters: Mapping[str, Any], tied: Mapping[str, str]) -> list[str]:
    """The names to write: of tied ones only those that others refer to."""
    left_out = {name for name, other in tied.items() if name in parameters and other in parameters}
    for name in left_out:
        mine, other = (as_array(parameters[key], f"'{key}'")[0] for key in (name, tied[name]))
        if not same_bytes(mine, other):
            raise ArgumentError(
                f"'{name}' is tied to '{tied[name]}', but their values differ: one would be lost",
                hint="leave it out of tied, and write a config that does not tie them",
            )
    for name in parameters:
        if not isinstance(name, str) or name == METADATA:
            raise ArgumentError(f"a parameter cannot be called {name!r}")
    return [name for name in parameters if name not in left_out]


def _bytes(size: str | int) -> int:
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    found = _SIZE.fullmatch(size.strip().upper()) if isinstance(size, str) else None
    if found is None or (found[2] or "B") not in _UNITS or float(found[1]) <= 0:
        raise ArgumentError(f"max_shard is a size such as '5GB' or 500_000_000, got {size!r}")
    return max(1, int(float(found[1]) * _UNITS[found[2] or "B"]))


# --------------------------------------------------------------------------- weights


def _is_weights(name: str) -> bool:
    return _WEIGHTS.fullmatch(name) is not None


def write_tensors(path: Path, kinds: Mapping[str, TensorInfo], values: Mapping[str, Array]) -> None:
    """Write a safetensors file; values are asked for one at a time."""
    # Arrays of the right shape without any memory: a header needs no values.
    shapes = {
        name: np.broadcast_to(np.empty((), info.dtype), info.shape) for name, info in kinds.items()
    }
    write_atomically(path, file_chunks(header_of(shapes, FORMAT), values))


def _write_weights(
    folder: Path, kinds: Mapping[str, TensorInfo], values: Mapping[str, Array], limit: int
) -> None:
    shards = list(_shards(kinds, limit))
    if len(shards) < 2:
        write_tensors(folder / SINGLE, kinds, values)
        return
    named: dict[str, str] = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(folder / file, {name: kinds[name] for name in names}, values)
        named |= dict.fromkeys(names, file)
    total = sum(info.nbytes for info in kinds.values())
    count = sum(prod(info.shape) for info in kinds.values())
    metadata = {"total_size": total, "total_parameters": count}
    write_json(folder / INDEX, {"metadata": metadata, "weight_map": named})


def _shards(kinds: Mapping[str, TensorInfo], limit: int) -> Iterator[list[str]]:
    """The names of each file, in order; a tensor above the limit has one to itself."""
    names: list[str] = []
    size = 0
    for name, info in kinds.items():
        if names and size + info.nbytes > limit:
            yield names
            names, size = [], 0
        names.append(name)
        size += info.nbytes
    if names:
        yield names


# --------------------------------------------------------------------------- folders


@contextmanager
def replacing(folder: Path, is_stale: Callable[[str], bool]) -> Iterator[Path]:
    """A new folder beside another, whose files go to the other at the end, all or none.

    Files of the other that are stale and not replaced are removed; the rest stay.
    """
    target = Path(os.path.realpath(folder))
    staging = target.parent / f".darner-{secrets.token_hex(8)}.tmp"
    try:
        if target.exists() and not target.is_dir():
            raise NotADirectoryError("it is a file")
        staging.mkdir()
        try:
            yield staging
            if target.is_dir():
                _move_into(target, staging, is_stale)
            else:
                staging.rename(target)
        except BaseException:
            if not any(
                (staging / _OLD).glob("*")
            ):  # else they could not be moved back: nothing is lost
                shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging, ignore_errors=True)
    except FileError:
        raise
    except OSError as error:
        raise FileError.of("write", folder, error) from error


def _move_into(target: Path, staging: Path, is_stale: Callable[[str], bool]) -> None:
    """Move files to a folder; when one cannot be, those before it go back."""
    fresh = [entry.name for entry in staging.iterdir()]
    stale = [entry.name for entry in target.iterdir() if is_stale(entry.name)]
    old = staging / _OLD
    old.mkdir()
    done: list[tuple[Path, Path]] = []
    try:
        for name in dict.fromkeys([*stale, *fresh]):
            moves = [(target / name, old / name)] if (target / name).exists() else []
            moves += [(staging / name, target / name)] if name in fresh else []
            for source, place in moves:
                os.replace(source, place)
                done.append((source, place))
    except BaseException:
        for source, place in reversed(done):
            with suppress(OSError):
                os.replace(place, source)
        raise


def _copy(source: Path, place: Path) -> None:
    try:
        shutil.copyfile(source, place)
    except OSError as error:
        raise FileError.of("copy", source, error) from error
