"""Philox 4x32-10 as code: the same random bits as the reference, for any element by itself."""

from __future__ import annotations

from .lanes import Lane
from .types import ElementBuilder, Value

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10


def emit_bits(builder: ElementBuilder, offset: Value, step: Value, seed: int, stream: int) -> Value:
    """The 32 random bits of the elements at 64-bit offsets: each a word of the block that four elements share."""
    place = Lane(builder, offset)

    def low(value: Lane) -> Lane:
        return value & MASK

    def high(value: Lane) -> Lane:
        return value.shift_right(32, signed=False)

    block = place.shift_right(2, signed=False)
    x = [low(block), high(block), place.constant(stream), low(Lane(builder, step))]
    key0, key1 = seed & MASK, seed >> 32
    for _ in range(ROUNDS):
        product0 = x[0] * MULTIPLIERS[0]
        product1 = x[2] * MULTIPLIERS[1]
        x = [
            high(product1) ^ x[1] ^ key0,
            low(product1),
            high(product0) ^ x[3] ^ key1,
            low(product0),
        ]
        key0, key1 = (key0 + WEYL[0]) & MASK, (key1 + WEYL[1]) & MASK
    which = place & 3
    chosen = x[3]
    for word in (2, 1, 0):
        chosen = which.equals(word).choose(x[word], chosen)
    return chosen.resized(32, signed=False).value
