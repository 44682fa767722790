"""Several pieces of bytes as one: their number and lengths first, then each of them.

>>> split(join([b"plan", b"", b"code"]))
[b'plan', b'', b'code']
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from ...graph.errors import FormatError


def join(parts: Sequence[bytes]) -> bytes:
    """One piece that ``split`` takes apart."""
    head = struct.pack(f"<{1 + len(parts)}Q", len(parts), *map(len, parts))
    return head + b"".join(parts)


def split(data: bytes) -> list[bytes]:
    """The pieces that ``join`` put together; anything else is a ``FormatError``."""
    try:
        (count,) = struct.unpack_from("<Q", data)
        lengths = struct.unpack_from(f"<{count}Q", data, 8)
    except (struct.error, OverflowError, MemoryError):
        raise FormatError("the pieces of the data are not told apart") from None
    start, found = 8 * (1 + count), []
    for length in lengths:
        found.append(data[start : start + length])
        start += length
    if start != len(data):
        raise FormatError(f"the pieces have {start} bytes, not {len(data)}")
    return found
