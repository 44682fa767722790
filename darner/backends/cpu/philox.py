"""Philox 4x32-10 as code: the same random bits as the reference, for any element by itself."""

from __future__ import annotations

from typing import Any

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def emit_bits(builder: Any, offset: Any, step: Any, seed: int, stream: int) -> Any:
    """The 32 random bits of the element at an offset: a word of the block that its four elements share."""
    from llvmlite import ir  # type: ignore[import-untyped]

    wide, word = ir.IntType(64), ir.IntType(32)

    def number(value: int) -> Any:
        return ir.Constant(wide, value)

    def low(value: Any) -> Any:
        return builder.and_(value, number(MASK))

    def high(value: Any) -> Any:
        return builder.lshr(value, number(32))

    block = builder.lshr(offset, number(2))
    x = [low(block), high(block), number(stream), low(step)]
    key0, key1 = seed & MASK, seed >> 32
    for _ in range(ROUNDS):
        product0 = builder.mul(x[0], number(MULTIPLIERS[0]))
        product1 = builder.mul(x[2], number(MULTIPLIERS[1]))
        x = [
            builder.xor(builder.xor(high(product1), x[1]), number(key0)),
            low(product1),
            builder.xor(builder.xor(high(product0), x[3]), number(key1)),
            low(product0),
        ]
        key0, key1 = (key0 + WEYL[0]) & MASK, (key1 + WEYL[1]) & MASK
    which = builder.and_(offset, number(3))
    chosen = x[3]
    for place in (2, 1, 0):
        here = builder.icmp_unsigned("==", which, number(place))
        chosen = builder.select(here, x[place], chosen)
    return builder.trunc(chosen, word)
