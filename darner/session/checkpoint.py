"""Checkpoints: everything a session needs to go on where it stopped, in one safetensors file.

Parameters stand under their own names, so any tool that reads safetensors reads them; states
(optimizer moments, caches, running statistics, counters, the random step) stand under ``state:``.

>>> import tempfile
>>> folder = tempfile.TemporaryDirectory()
>>> path = f"{folder.name}/step-100.safetensors"
>>> weights = {"layer.w": np.ones((2, 3), np.float32)}
>>> moments = {"adam_m.layer.w": np.zeros((2, 3), np.float32)}
>>> save_checkpoint(path, Checkpoint(weights, moments), metadata={"step": "100"})
>>> checkpoint = load_checkpoint(path)
>>> checkpoint.parameters["layer.w"].sum(), checkpoint.metadata["step"]
(np.float32(6.0), '100')
>>> compare(checkpoint, {"layer.W": TensorType.new((2, 3))}, {})
["parameter 'layer.W' is missing; did you mean 'layer.w'?",
 "parameter 'layer.w' is unexpected",
 "state 'adam_m.layer.w' is unexpected"]
>>> folder.cleanup()

A file is replaced whole or not at all (see `darner.io.atomic`). Damage is found when it is
loaded: the header carries a digest of itself and a checksum of every tensor. The checksum is CRC-32,
which costs little (gigabytes a second) and which no single error passes; it guards against failing disks and cut transfers, not against forgery.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

import numpy as np

from .._version import __version__
from ..graph import dtypes
from ..graph.data import Array
from ..graph.dims import SymbolicDim, format_shape
from ..graph.errors import ArgumentError, DTypeError, FormatError, did_you_mean
from ..graph.types import TensorType
from ..io import tensorfile
from ..io.atomic import Path, write_atomically
from ..io.reading import shown

FORMAT = 1
"""The version of the layout that is written, and the newest that is read."""
FORMAT_KEY = "darner.format"
VERSION_KEY = "darner.version"
_DIGEST_KEY = "darner.digest"
_CHECKSUMS_KEY = "darner.checksums"
_OWN_KEYS = (FORMAT_KEY, VERSION_KEY, _DIGEST_KEY, _CHECKSUMS_KEY)

_STATE = "state:"
_PARAMETER = "parameter:"  # before the names of parameters that would be read as something else
_MAX_HINTS = 20


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The values of a session at one moment.

    Attributes:
        parameters: the trained values, by name.
        states: all else that a step reads and writes: moments, caches, statistics, counters.
        metadata: text about them: darner's version, the graph's digest, the step, the user's own.
    """

    parameters: Mapping[str, Array]
    states: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_foreign(self) -> bool:
        """True for a safetensors file that another program wrote: all its tensors are parameters."""
        return FORMAT_KEY not in self.metadata


def save_checkpoint(
    path: Path, checkpoint: Checkpoint, *, metadata: Mapping[str, str] | None = None
) -> None:
    """Write a checkpoint, in place of what is at the path. Equal content gives equal bytes.

    Args:
        path: where to; the folder must exist.
        checkpoint: what to save. Its arrays may have any layout and byte order; they must not change
            until this returns.
        metadata: further entries, which win over those of the checkpoint itself.

    Raises:
        ArgumentError, DTypeError: something that the format cannot hold; nothing is written.
        FileError: the disk is full, or the like. What was there before is unchanged.
    """
    tensors = dict(_named_for_file(checkpoint))
    entries = {**checkpoint.metadata, **(metadata or {})}
    for key, value in entries.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ArgumentError(f"metadata is text, but {key!r} is {value!r}", hint="use str()")
        _check_text("metadata", key)
        _check_text(f"metadata '{key}'", value)
    entries[FORMAT_KEY] = str(FORMAT)
    entries[VERSION_KEY] = __version__
    entries[_CHECKSUMS_KEY] = " ".join(_checksum(tensors[name]) for name in sorted(tensors))
    entries[_DIGEST_KEY] = ""
    header = tensorfile.header_of(tensors, entries)
    header[tensorfile.METADATA][_DIGEST_KEY] = _digest(header)
    write_atomically(path, tensorfile.file_chunks(header, tensors))


def load_checkpoint(path: Path, *, verify: bool = True) -> Checkpoint:
    """Read a checkpoint, or any other safetensors file, into memory. The arrays are read-only.

    Args:
        path: the file.
        verify: compare every tensor with its checksum.

    Raises:
        FileError: there is no such file, or the system will not read it.
        FormatError: the file is damaged, of a newer format, or not safetensors.
    """
    file = tensorfile.read_tensors(path)
    if not any(key in file.metadata for key in _OWN_KEYS):
        return Checkpoint(file.tensors, {}, file.metadata)
    _check_header(os.fspath(path), file)
    if verify:
        _check_data(os.fspath(path), file)
    parameters: dict[str, Array] = {}
    states: dict[str, Array] = {}
    for name, array in file.tensors.items():
        if name.startswith(_STATE):
            states[name.removeprefix(_STATE)] = array
        else:
            parameters[name.removeprefix(_PARAMETER)] = array
    kept = {
        key: value
        for key, value in file.metadata.items()
        if key not in (_DIGEST_KEY, _CHECKSUMS_KEY)
    }
    return Checkpoint(dict(sorted(parameters.items())), dict(sorted(states.items())), kept)


def compare(
    checkpoint: Checkpoint,
    parameters: Mapping[str, TensorType],
    states: Mapping[str, TensorType],
    *,
    strict: bool = True,
) -> list[str]:
    """Every way in which a checkpoint differs from what is needed, in words; empty where none.

    A symbolic size accepts any. Unless `strict`, names that only one side has are no mismatch; wrong
    shapes and element types always are.
    """
    own = _compare_table("parameter", checkpoint.parameters, parameters, strict)
    return [*own, *_compare_table("state", checkpoint.states, states, strict)]


@dataclass(frozen=True, eq=False)
class Fit:
    """A checkpoint made to fit.

    Attributes:
        checkpoint: with the shapes that were asked for, as far as they fit.
        reshaped: the names of the tensors that were stored flat and have their shape again.
        mismatches: what `compare` still finds; empty when the checkpoint can be loaded.
    """

    checkpoint: Checkpoint
    reshaped: tuple[str, ...]
    mismatches: tuple[str, ...]


def fit(
    checkpoint: Checkpoint,
    parameters: Mapping[str, TensorType],
    states: Mapping[str, TensorType],
    *,
    strict: bool = True,
) -> Fit:
    """Give the flat tensors of an older layout their shapes.

    That layout keeps every tensor as one row of f32, and moments beside the parameters. So a row of
    f32 with as many elements as are needed is reshaped, and tensors of a foreign file that are named
    like a state that is needed become states. Anything else is left alone, and is a mismatch.

    >>> old = Checkpoint({"w": np.arange(6, dtype=np.float32)})
    >>> found = fit(old, {"w": TensorType.new((2, 3))}, {})
    >>> found.checkpoint.parameters["w"].shape, found.reshaped, found.mismatches
    ((2, 3), ('w',), ())
    """
    own, other = dict(checkpoint.parameters), dict(checkpoint.states)
    if checkpoint.is_foreign:
        for name in [name for name in own if name in states and name not in parameters]:
            other.setdefault(name, own.pop(name))
    reshaped: list[str] = []
    for table, types in ((own, parameters), (other, states)):
        for name in sorted(table.keys() & types.keys()):
            if _is_flat(table[name], types[name]):
                table[name] = table[name].reshape([int(size) for size in types[name].shape])
                reshaped.append(name)
    fitted = Checkpoint(own, other, checkpoint.metadata)
    mismatches = compare(fitted, parameters, states, strict=strict)
    return Fit(fitted, tuple(reshaped), tuple(mismatches))


def _is_flat(array: Array, type_: TensorType) -> bool:
    return (
        array.ndim == 1
        and array.dtype == np.float32
        and type_.dtype is dtypes.f32
        and not type_.symbols
        and array.shape != type_.shape
        and array.size == type_.size
    )


def _named_for_file(checkpoint: Checkpoint) -> Iterator[tuple[str, Array]]:
    for name, value in checkpoint.parameters.items():
        _check_text("a parameter's name", name)
        taken = name == tensorfile.METADATA or name.startswith((_STATE, _PARAMETER))
        yield (_PARAMETER + name if taken else name), tensorfile.stored(name, value)
    for name, value in checkpoint.states.items():
        _check_text("a state's name", name)
        yield _STATE + name, tensorfile.stored(name, value)


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise ArgumentError(f"{what} is text, not {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ArgumentError(f"{what} is {text!r}, which is not valid Unicode") from None


def _checksum(array: Array) -> str:
    return f"{zlib.crc32(tensorfile.raw_bytes(array)):08x}"


def _digest(header: Mapping[str, Any]) -> str:
    """A digest of all of a header but the digest in it, whatever the order of its entries."""
    blank = {**header, tensorfile.METADATA: {**header[tensorfile.METADATA], _DIGEST_KEY: ""}}
    text = json.dumps(blank, sort_keys=True)
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _check_header(path: str, file: tensorfile.TensorFile) -> None:
    version = file.metadata.get(FORMAT_KEY, "")
    if version.isdecimal() and (len(version) > 9 or int(version) > FORMAT):
        raise FormatError(
            f"'{path}' is a checkpoint of format {version[:20]}; this darner reads up to {FORMAT}",
            hint="load it with a newer darner",
        )
    missing = [key for key in _OWN_KEYS if key not in file.metadata]
    if missing or file.metadata[_DIGEST_KEY] != _digest(file.header):
        raise FormatError(
            f"'{path}' is damaged: its header does not match its digest",
            hint="take an older checkpoint; if another program edited the file on purpose, let it "
            "drop the metadata that begins with 'darner.'",
        )


def _check_data(path: str, file: tensorfile.TensorFile) -> None:
    names = sorted(file.tensors)
    expected = file.metadata[_CHECKSUMS_KEY].split()
    if len(expected) != len(names):
        raise FormatError(
            f"'{path}' is damaged: {len(expected)} checksums for {len(names)} tensors"
        )
    damaged = [
        name
        for name, checksum in zip(names, expected, strict=True)
        if _checksum(file.tensors[name]) != checksum
    ]
    if damaged:
        more = f" and {len(damaged) - 8} more" if len(damaged) > 8 else ""
        some = ", ".join(shown(name) for name in damaged[:8])
        raise FormatError(
            f"'{path}' is damaged: the data of {some}{more} does not match its checksum",
            hint="take an older checkpoint",
        )


def _compare_table(
    kind: str, found: Mapping[str, Array], needed: Mapping[str, TensorType], strict: bool
) -> Iterator[str]:
    missing = sorted(needed.keys() - found.keys()) if strict else []
    unexpected = sorted(found.keys() - needed.keys()) if strict else []
    hints = dict(_hints(missing, unexpected))
    for name in missing:
        yield f"{kind} '{name}' is missing{hints.get(name, '')}"
    for name in unexpected:
        yield f"{kind} '{name}' is unexpected"
    for name in sorted(needed.keys() & found.keys()):
        array, type_ = found[name], needed[name]
        if not shape_fits(array.shape, type_):
            have, want = format_shape(array.shape), format_shape(type_.shape)
            yield f"{kind} '{name}' has the shape {have}, but {want} is needed"
        if element_name(array.dtype) != type_.dtype.name:
            yield f"{kind} '{name}' is {element_name(array.dtype)}, but {type_.dtype.name} is needed"


def _hints(missing: Iterable[str], unexpected: list[str]) -> Iterator[tuple[str, str]]:
    # A long list means another model altogether, where hints mislead, and comparing names is slow.
    for name in islice(missing, _MAX_HINTS):
        hint = did_you_mean(name, unexpected)
        if hint:
            yield name, f"; {hint}"


def shape_fits(shape: tuple[int, ...], type_: TensorType) -> bool:
    """Whether an array of this shape is of the type; a symbolic size accepts any."""
    return len(shape) == type_.rank and all(
        isinstance(size, SymbolicDim) or size == have
        for have, size in zip(shape, type_.shape, strict=True)
    )


def element_name(dtype: np.dtype[Any]) -> str:
    """The name of an element type: this library's, or NumPy's for one that darner has not."""
    try:
        return dtypes.dtype(dtype).name
    except DTypeError:
        return dtype.name
