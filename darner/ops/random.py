"""Random numbers: counter-based, the same from the same seed on every backend."""

from __future__ import annotations

import numpy as np

from ..graph import dtypes
from ..graph.attributes import Index, Sizes
from ..graph.data import Array
from ..graph.errors import ArgumentError, ShapeError
from ..graph.op import primitive
from ..graph.types import TensorType
from .samples import sample


@primitive(
    family="random",
    samples=[sample((5,), 7), sample((3, 4), 2**40 + 1, 3), sample((0, 2), 0), sample((), 1)],
)
def random_bits(
    shape: Sizes, seed: int = 0, stream: int = 0, step: Index | None = None
) -> TensorType:
    """32 random bits an element (u32): Philox 4x32-10, a pure function of its arguments.

    Element ``i`` is word ``i % 4`` of the block with counter (i // 4, stream, step) and key ``seed``. ``step`` is a scalar integer computed in the graph,
    so that each run of a graph can draw anew.
    """
    if not 0 <= seed < 2**64:
        raise ArgumentError(f"seed {seed} is outside 0..2**64-1")
    if not 0 <= stream < 2**32:
        raise ArgumentError(f"stream {stream} is outside 0..2**32-1")
    for size in shape:
        if isinstance(size, int) and size < 0:
            raise ShapeError(f"size {size} is negative")
    if step is not None and (step.shape != ()):
        raise ShapeError("step must be a scalar integer")
    return TensorType(shape, dtypes.u32)


@random_bits.reference
def _(shape: tuple[int, ...], seed: int, stream: int, step: Array | None) -> Array:
    size = int(np.prod(shape))
    block = np.arange(-(-size // 4), dtype=np.uint64)
    now = 0 if step is None else int(step) % 2**32
    counter = np.stack(
        [
            block & 0xFFFFFFFF,
            block >> np.uint64(32),
            np.full_like(block, stream),
            np.full_like(block, now),
        ]
    )
    return philox(counter, seed).T.reshape(-1)[:size].reshape(shape)


def philox(counter: Array, seed: int) -> Array:
    """Ten rounds of Philox 4x32 over counters of shape (4, n), held in uint64."""
    mask = np.uint64(0xFFFFFFFF)
    x = counter.astype(np.uint64)
    key0, key1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product0 = x[0] * np.uint64(0xD2511F53)
        product1 = x[2] * np.uint64(0xCD9E8D57)
        x = np.stack(
            [
                (product1 >> np.uint64(32)) ^ x[1] ^ np.uint64(key0),
                product1 & mask,
                (product0 >> np.uint64(32)) ^ x[3] ^ np.uint64(key1),
                product0 & mask,
            ]
        )
        key0 = (key0 + 0x9E3779B9) & 0xFFFFFFFF
        key1 = (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return x.astype(np.uint32)
