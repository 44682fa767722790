"""IDX files, the format of MNIST: a short header, and one array of any rank.

Two zero bytes, a byte for the element type, a byte for the rank, the sizes as big-endian words of 32 bits, the elements.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from math import prod

import numpy as np

from ..graph.data import Array
from ..graph.errors import FormatError
from ..io.atomic import Path
from ..io.reading import read_whole
from .filearrays import MOST_UNPACKED, PACKED, check_unpacked

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""Element types by their byte in the header."""

GZIP = b"\x1f\x8b"
MOST_AXES = 64
"""As many axes as NumPy's arrays have."""


def read_maybe_gzipped(path: Path, *, gzipped: bool | None = None) -> bytes:
    """The content of a file, unpacked where it is gzipped: as it begins, or as the caller knows.

    Raises:
        FileError: the system will not read it.
        FormatError: it is not gzipped but should be, or is damaged.
    """
    content = read_whole(path)
    name = os.fspath(path)
    if gzipped is None:
        gzipped = content.startswith(GZIP)
    if not gzipped:
        return content
    most = max(MOST_UNPACKED, PACKED * len(content))
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            found = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"'{name}' is not a whole gzip file: {error}") from error
    check_unpacked(name, len(found), len(content))
    return found


def read_idx(path: Path, *, rank: int | None = None, gzipped: bool | None = None) -> Array:
    """The array in an IDX file, gzipped or not, in the machine's byte order.

    Args:
        path: the file.
        rank: how many axes the array has to have; any number when left out.
        gzipped: whether the file is; as it begins when left out.
    """
    content = read_maybe_gzipped(path, gzipped=gzipped)
    try:
        return _parse(content, rank)
    except FormatError as error:
        raise FormatError(f"'{os.fspath(path)}' is not a whole IDX file: {error.rule}") from None


def _parse(content: bytes, rank: int | None) -> Array:
    if len(content) < 4:
        raise FormatError(f"it has {len(content)} bytes, too few for a header")
    magic, code, found = content[:2], content[2], content[3]
    if magic != b"\0\0" or code not in TYPES:
        raise FormatError(
            f"it begins with the bytes {content[:4].hex(' ')}, not with 00 00 and an element type"
        )
    if rank is not None and found != rank:
        raise FormatError(f"its array has {found} axes, where {rank} were expected")
    start = 4 + 4 * found
    if len(content) < start:
        raise FormatError(f"it ends inside its header, after {len(content)} of {start} bytes")
    if found > MOST_AXES:
        raise FormatError(f"its array has {found} axes, where {MOST_AXES} are the most")
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", found, offset=4))
    dtype = np.dtype(TYPES[code])
    wanted, there = prod(shape) * dtype.itemsize, len(content) - start
    if there != wanted:
        raise FormatError(
            f"its header says {dtype.newbyteorder('=').name}{list(shape)}, which takes {wanted:,} bytes, "
            f"but {there:,} follow"
        )
    if prod(max(size, 1) for size in shape) * dtype.itemsize >= 1 << 63:
        raise FormatError(f"its header says the sizes {list(shape)}, which no array has")
    array = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))
