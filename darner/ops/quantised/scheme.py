"""The name of how weights are quantised, as a value that ops take and graphs keep."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Self

from ...graph.attributes import Attribute
from ...graph.errors import ArgumentError, UnknownNameError, UnsupportedError, nearest
from .block_formats import FORMATS, Format

_FOREIGN = (
    "iq1_m iq1_s iq2_s iq2_xs iq2_xxs iq3_s iq3_xxs iq4_nl iq4_xs mxfp4 q1_0 q8_1 tq1_0 tq2_0"
)
"""What GGUF files may have besides."""

_CALL = re.compile(r"(\w+)(?:\((\d+)\))?")
_MOST = 1 << 20
"""Elements that a block may have."""


def _plain(name: str) -> str:
    """A name without what spellings differ in."""
    return name.lower().removeprefix("gguf").replace("_", "")


_KNOWN = {_plain(name): name for name in FORMATS}
_UNREAD = {_plain(name): name.upper() for name in _FOREIGN.split()}


class QuantScheme(str):
    """How weights are quantised: a name, and for some the elements that share a scale.

    >>> QuantScheme.GgufQ4K, QuantScheme.Int8Block(32), QuantScheme("Q4_K") == QuantScheme.GgufQ4K
    ('q4_k', 'int8_block(32)', True)
    >>> QuantScheme.GgufQ4K.bits_per_element, QuantScheme.Int8Block(32).bits_per_element
    (4.5, 8.0)
    """

    GgufQ4_0: ClassVar[QuantScheme]
    GgufQ4_1: ClassVar[QuantScheme]
    GgufQ5_0: ClassVar[QuantScheme]
    GgufQ5_1: ClassVar[QuantScheme]
    GgufQ8_0: ClassVar[QuantScheme]
    GgufQ2K: ClassVar[QuantScheme]
    GgufQ3K: ClassVar[QuantScheme]
    GgufQ4K: ClassVar[QuantScheme]
    GgufQ5K: ClassVar[QuantScheme]
    GgufQ6K: ClassVar[QuantScheme]
    GgufQ8K: ClassVar[QuantScheme]
    Fp8E4m3: ClassVar[QuantScheme]
    Fp8E5m2: ClassVar[QuantScheme]
    Nvfp4Block: ClassVar[QuantScheme]

    def __new__(cls, text: object) -> Self:
        """The scheme of a name, in any spelling: ``Q4_K``, ``GgufQ4K``, ``int8_block(32)``."""
        if isinstance(text, cls):
            return text
        found = _CALL.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ArgumentError(f"a scheme is a QuantScheme or its name, not {text!r}")
        plain, size = _plain(found[1]), found[2]
        if plain in _UNREAD:
            raise UnsupportedError(
                f"there is no decoder for {_UNREAD[plain]}",
                hint="requantise the file, for example to Q4_K or Q8_0",
            )
        name = _KNOWN.get(plain)
        if name is None:
            raise UnknownNameError(
                f"there is no scheme {text!r}", hint=nearest(str(text), sorted(FORMATS))
            )
        if (FORMATS[name].elements == 0) != (size is not None):
            raise ArgumentError(
                f"{name} needs the size of its blocks: {name}(32)"
                if size is None
                else f"{name} has blocks of its own size, so none can be given"
            )
        if size is not None and (len(size) > len(str(_MOST)) or not 1 <= int(size) <= _MOST):
            raise ArgumentError(f"a block must have 1 to {_MOST} elements, not {size[:20]}")
        return super().__new__(cls, name if size is None else f"{name}({int(size)})")

    @classmethod
    def Int8Block(cls, block: int) -> QuantScheme:
        """Codes of 8 bits with a sign, and a scale for each column of so many rows."""
        return cls(f"int8_block({block})")

    @classmethod
    def Int8BlockAsym(cls, block: int) -> QuantScheme:
        """The same with a zero point beside each scale."""
        return cls(f"int8_block_asym({block})")

    @classmethod
    def Int4Block(cls, block: int) -> QuantScheme:
        """Codes of 4 bits, with a scale and a zero point for each column of so many rows."""
        return cls(f"int4_block({block})")

    @property
    def name(self) -> str:
        """The scheme without the size of its blocks."""
        return self.partition("(")[0]

    @property
    def layout(self) -> Format:
        """How it keeps elements."""
        return FORMATS[self.name]

    @property
    def block(self) -> int:
        """Elements that share a scale."""
        size = self.partition("(")[2]
        return int(size[:-1]) if size else self.layout.elements

    @property
    def is_packed(self) -> bool:
        """Whether scales lie among the codes, in blocks of bytes."""
        return self.layout.kind == "packed"

    @property
    def bits_per_element(self) -> float:
        """Bits that an element takes: with the scales, where these lie among the codes."""
        return self.layout.bits

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of so many elements, in whole blocks."""
        return elements // self.block * self.layout.bytes


def _as_scheme(value: object) -> str:
    """A scheme as nodes have it: its plain name."""
    return str(QuantScheme(value))


SCHEME = Attribute("scheme", _as_scheme, lambda value, pool: value, lambda value, pool: value)
Scheme = Annotated[str, SCHEME]
"""A ``QuantScheme``, or its name in any spelling, as an attribute."""

QuantScheme.GgufQ4_0 = QuantScheme("q4_0")
QuantScheme.GgufQ4_1 = QuantScheme("q4_1")
QuantScheme.GgufQ5_0 = QuantScheme("q5_0")
QuantScheme.GgufQ5_1 = QuantScheme("q5_1")
QuantScheme.GgufQ8_0 = QuantScheme("q8_0")
QuantScheme.GgufQ2K = QuantScheme("q2_k")
QuantScheme.GgufQ3K = QuantScheme("q3_k")
QuantScheme.GgufQ4K = QuantScheme("q4_k")
QuantScheme.GgufQ5K = QuantScheme("q5_k")
QuantScheme.GgufQ6K = QuantScheme("q6_k")
QuantScheme.GgufQ8K = QuantScheme("q8_k")
QuantScheme.Fp8E4m3 = QuantScheme("fp8_e4m3")
QuantScheme.Fp8E5m2 = QuantScheme("fp8_e5m2")
QuantScheme.Nvfp4Block = QuantScheme("nvfp4_block")
