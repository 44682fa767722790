"""The safetensors format: eight bytes of header length, a JSON header, and the tensors end to end.

Written and read here rather than by the ``safetensors`` package, for three reasons: the package's
NumPy side cannot read bf16 or fp8; it maps files, so that one that is cut short kills the process; and
the order of its metadata changes from run to run. Each reads what the other writes.

Equal content always gives equal bytes. Tensors go from the widest elements to the narrowest, so that
each is aligned as its type needs without gaps (which the format forbids).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from ..backends.base.memory import aligned
from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError, DTypeError, FormatError
from .atomic import Path
from .reading import RegularFile, parse_json, shown

METADATA = "__metadata__"
"""The one name in a header that is not a tensor's."""
MAX_HEADER = 100_000_000
"""Longer headers are refused, as by every reader of the format."""

_TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "F8_E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "F8_E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "C64": np.dtype("<c8"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype(np.bool_),
}
_CODES = {numpy: code for code, numpy in _TYPES.items()}
_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorFile:
    """What a safetensors file holds: its header as read, and read-only arrays."""

    header: Mapping[str, Any]
    metadata: Mapping[str, str]
    tensors: Mapping[str, Array]


@dataclass(frozen=True)
class OpenFile:
    """A safetensors file whose header is read and checked, and whose tensors are read when asked for."""

    file: RegularFile
    header: Mapping[str, Any]
    metadata: Mapping[str, str]
    entries: Mapping[str, Entry]
    start: int

    @property
    def path(self) -> str:
        """Where it was found."""
        return self.file.path

    def array(self, name: str, room: Array | None = None) -> Array:
        """A tensor, read-only, in memory of its own; or in ``room``, as many aligned bytes.

        Raises:
            FormatError: the file was cut short or written to since it was opened.
            FileError: the system will not read it.
        """
        entry = self.entries[name]
        room = np.empty(entry.end - entry.begin, np.uint8) if room is None else room
        self.file.check_unchanged()
        self.file.read_into(room.data, self.start + entry.begin, f"tensor {shown(name)}")
        return self._checked(entry, room.view(entry.dtype).reshape(entry.shape))

    def arrays(self) -> dict[str, Array]:
        """All tensors, read at once into one piece of memory: faster than one by one."""
        room = aligned(sum(entry.end - entry.begin for entry in self.entries.values()))
        self.file.check_unchanged()
        self.file.read_into(room.data, self.start, f"{len(self.entries):,} tensors")
        found = {}
        for name, entry in self.entries.items():
            part = room[entry.begin : entry.end]
            # Other writers need not align what they write.
            part = part if part.ctypes.data % entry.dtype.alignment == 0 else part.copy()
            found[name] = self._checked(entry, part.view(entry.dtype).reshape(entry.shape))
        return found

    def _checked(self, entry: Entry, array: Array) -> Array:
        if entry.dtype == np.bool_ and array.view(np.uint8).max(initial=0) > 1:
            wrong = f"{shown(entry.name)} is BOOL, but holds bytes other than 0 and 1"
            raise _in_file(self.path, FormatError(wrong))
        array.flags.writeable = False
        return array


def stored(name: str, value: object) -> Array:
    """An array as the file holds it: dense, in C order, little-endian; no copy where it is already so."""
    array, typed = as_array(value, f"'{name}'", ArgumentError)
    if not typed:
        kind = type(value).__name__
        raise ArgumentError(
            f"'{name}' is a {kind}, not an array", hint="convert it with numpy.asarray"
        )
    little = array.dtype.newbyteorder("<")
    if little not in _CODES:
        raise DTypeError(
            f"'{name}' is {array.dtype}, which safetensors cannot hold", hint="cast it first"
        )
    return np.asarray(array, dtype=little, order="C")


def header_of(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> dict[str, Any]:
    """The header for arrays that are as `stored` makes them."""
    header: dict[str, Any] = {METADATA: {key: metadata[key] for key in sorted(metadata)}}
    offset = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].itemsize, name)):
        array = tensors[name]
        end = offset + array.nbytes
        header[name] = {
            "dtype": _CODES[array.dtype],
            "shape": list(array.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    return header


def encode(header: Mapping[str, Any]) -> bytes:
    """A header as bytes, without its length and padding. Equal headers give equal bytes."""
    return json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()


def file_chunks(
    header: Mapping[str, Any], tensors: Mapping[str, Array]
) -> Iterator[bytes | memoryview]:
    """The bytes of a file, piece by piece; tensors are not copied."""
    text = encode(header)
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ArgumentError(
            f"the names and metadata take {len(text):,} bytes; safetensors allows {MAX_HEADER:,}"
        )
    yield len(text).to_bytes(8, "little") + text
    for name in header:
        if name != METADATA:
            yield raw_bytes(tensors[name])


def raw_bytes(array: Array) -> memoryview:
    """The bytes of a dense array, without a copy."""
    return array.reshape(-1).view(np.uint8).data


def read_tensors(path: Path) -> TensorFile:
    """All tensors of a safetensors file; see `open_tensors`."""
    file = open_tensors(path)
    return TensorFile(file.header, file.metadata, file.arrays())


def open_tensors(path: Path) -> OpenFile:
    """Open a safetensors file, and check all of it but the tensors' values.

    Raises:
        FileError: there is no such file, or the system will not read it.
        FormatError: the file is not safetensors, is cut short, or contradicts itself.
    """
    file = RegularFile(path)
    try:
        return _parse(file)
    except FormatError as error:
        raise _in_file(file.path, error) from None


def _in_file(path: str, error: FormatError) -> FormatError:
    return FormatError(f"'{path}' is not a whole safetensors file: {error.rule}")


def _parse(file: RegularFile) -> OpenFile:
    size = file.size
    if size < 8:
        raise FormatError(f"it has {size} bytes, too few for the length of a header")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER:
        raise FormatError(
            f"its first bytes give a header of {length:,} bytes, and the format allows {MAX_HEADER:,}"
        )
    start = 8 + length
    if start > size:
        raise FormatError(f"its header has {length:,} bytes, but only {size - 8:,} are there")
    text = file.read(8, length, "the header")
    if not text.startswith(b"{"):
        raise FormatError("its header does not begin with '{'")
    header: dict[str, Any] = parse_json(text, "its header")
    metadata = header.get(METADATA, {})
    if not _is_text_table(metadata):
        raise FormatError("its metadata is not a table of text")
    entries = [Entry.of(name, entry) for name, entry in header.items() if name != METADATA]
    _check_layout(entries, size - start)
    return OpenFile(file, header, metadata, {entry.name: entry for entry in entries}, start)


def _is_text_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _is_shape(value: Any, itemsize: int) -> bool:
    """Whether NumPy has such a shape. It counts the bytes of an empty array as if no size were 0."""
    if not _is_sizes(value) or len(value) > 64:
        return False
    return prod(max(size, 1) for size in value) * itemsize < 1 << 63


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a header."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int

    @classmethod
    def of(cls, name: str, entry: Any) -> Entry:
        """That of a header, checked."""
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"the entry of {shown(name)} is not a dtype, a shape and two offsets")
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = _TYPES.get(code) if isinstance(code, str) else None
        if dtype is None:
            raise FormatError(
                f"{shown(name)} has the element type {shown(code)}, which darner does not read"
            )
        if not _is_shape(shape, dtype.itemsize):
            raise FormatError(f"{shown(name)} has the shape {shown(shape)}, which no array has")
        if not _is_sizes(offsets) or len(offsets) != 2:
            raise FormatError(
                f"{shown(name)} has the offsets {shown(offsets)}; they should be two positions"
            )
        found = cls(name, dtype, tuple(shape), offsets[0], offsets[1])
        needed = prod(shape) * dtype.itemsize
        if found.end - found.begin != needed:
            raise FormatError(
                f"{shown(name)} needs {needed:,} bytes for {code}{shape}, "
                f"but its offsets leave {found.end - found.begin:,}"
            )
        return found


def _check_layout(entries: list[Entry], size: int) -> None:
    """Tensors follow one another without gap or overlap, and fill the file."""
    position = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            raise FormatError(
                f"{shown(entry.name)} begins at byte {entry.begin:,} of the data; "
                f"the tensor before it ends at {position:,}"
            )
        position = entry.end
    if position != size:
        raise FormatError(f"its tensors take {position:,} bytes of data, but {size:,} are there")
