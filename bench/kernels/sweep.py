"""Random cases, the same for everybody who has the seed: odd sizes, primes and powers of two, small and large.

    >>> [case.name for case in drawn("contract.NT", 2)] == [case.name for case in drawn("contract.NT", 2)]
    True

Sizes are log-uniform. Of all draws those are kept whose work is between bounds, so that no kernel is over before it is
begun, and none takes longer than a turn has.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .cases import (
    Attention,
    Contract,
    Convolution,
    DeltaRule,
    Index,
    Map,
    Move,
    Order,
    Pool,
    Reduce,
    Rows,
    SelectiveScan,
)

FLOPS = (4e6, 6e8)
"""Of a product, at least and at most."""

BYTES = (256 << 10, 48 << 20)
"""Of operands and results, at least and at most."""

FORMS = ("NN", "NT", "TN")


def is_prime(number: int) -> bool:
    """Whether nothing divides it.

    >>> [n for n in range(20) if is_prime(n)]
    [2, 3, 5, 7, 11, 13, 17, 19]
    """
    return number > 1 and all(number % d for d in range(2, math.isqrt(number) + 1))


class Sizes:
    """Draws sizes; a third of them primes, a third multiples of eight, a third as they come."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def size(self, low: int, high: int) -> int:
        """From low to high, as likely between 10 and 20 as between 100 and 200."""
        drawn = round(math.exp(self._rng.uniform(math.log(low), math.log(high))))
        kind = self._rng.integers(3)
        if kind == 0:
            while drawn > low and not is_prime(drawn):
                drawn -= 1
        elif kind == 1 and drawn >= 8:
            drawn -= drawn % 8
        return max(low, min(high, drawn))

    def one_of(self, *choices: Any) -> Any:
        """One of them, all alike."""
        return choices[self._rng.integers(len(choices))]


def _contract(s: Sizes, form: str) -> Contract:
    return Contract(s.size(1, 4096), s.size(8, 4096), s.size(1, 4096), form)


def _batched(s: Sizes) -> Contract:
    sizes = s.size(1, 512), s.size(4, 512), s.size(1, 512)
    return Contract(*sizes, s.one_of(*FORMS), s.size(2, 64))


def _conv(s: Sizes, part: str) -> Convolution:
    height = s.size(5, 112)
    width = s.one_of(height, s.size(5, 112))
    batch, kernel, stride = s.size(1, 16), s.one_of(1, 3, 3, 3, 5, 7), s.one_of(1, 1, 2)
    channels = s.size(3, 512)
    if s.one_of(False, False, False, True):
        channels = 8 * math.ceil(channels / 8)
        groups = s.one_of(channels, s.one_of(2, 4))
        return Convolution(batch, channels, channels, height, width, kernel, stride, groups, part)
    return Convolution(batch, channels, s.size(4, 512), height, width, kernel, stride, 1, part)


def _attention(s: Sizes) -> Attention:
    kv_heads, keys = s.size(1, 16), s.size(8, 1024)
    heads = kv_heads * s.one_of(1, 1, 2, 3, 4)
    queries = s.one_of(keys, keys, 1, s.size(1, 256))
    causal = queries == keys and s.one_of(True, False)
    part = "forward" if queries == 1 else s.one_of("forward", "both")
    width = s.one_of(16, 32, 40, 64, 64, 80, 96, 128)
    return Attention(s.size(1, 8), heads, kv_heads, queries, keys, width, causal, part)


def _rows(s: Sizes) -> Rows:
    op = s.one_of("softmax", "rms_norm", "layer_norm", "cross_entropy")
    return Rows(op, s.size(1, 8192), s.size(8, 50000), s.one_of("forward", "both"))


def _map(s: Sizes) -> Map:
    return Map(s.one_of("gelu", "swiglu", "affine", "adam"), s.size(1, 8192), s.size(1, 8192))


def _reduce(s: Sizes) -> Reduce:
    shape = s.size(1, 512), s.size(1, 1024), s.size(1, 4096)
    return Reduce(s.one_of("sum", "mean", "max", "argmax"), shape, s.one_of(0, 1, 2))


def _pool(s: Sizes) -> Pool:
    height = s.size(7, 128)
    width = s.one_of(height, s.size(7, 128))
    window = s.one_of(2, 3, 5)
    stride = s.one_of(1, 2, window)
    op, part = s.one_of("max", "mean"), s.one_of("forward", "both")
    return Pool(op, s.size(1, 16), s.size(1, 256), height, width, window, stride, part)


def _index(s: Sizes) -> Index:
    op = s.one_of("gather", "scatter_add")
    return Index(op, s.size(2, 50000), s.size(1, 2048), s.size(16, 16384))


def _order(s: Sizes) -> Order:
    rows, width = s.size(1, 2048), s.size(16, 65536)
    op = s.one_of("sort", "top_k")
    return Order(op, rows, width, min(width, s.size(1, 128)) if op == "top_k" else 0)


def _move(s: Sizes) -> Move:
    shape = s.size(1, 512), s.size(2, 1024), s.size(2, 1024)
    return Move(shape, s.one_of((0, 2, 1), (1, 0, 2), (2, 1, 0), (2, 0, 1), (1, 2, 0)))


def _scan(s: Sizes) -> SelectiveScan:
    part = s.one_of("forward", "both")
    return SelectiveScan(s.size(1, 4), s.size(1, 512), s.size(16, 1024), s.size(1, 64), part)


def _delta(s: Sizes) -> DeltaRule:
    part = s.one_of("forward", "both")
    return DeltaRule(s.size(1, 4), s.size(1, 512), s.size(1, 16), s.size(8, 128), part)


DRAWS: dict[str, Callable[[Sizes], Any]] = {
    **{f"contract.{form}": lambda s, form=form: _contract(s, form) for form in FORMS},
    "contract.batch": _batched,
    **{f"conv.{p}": lambda s, p=p: _conv(s, p) for p in ("forward", "input", "weight")},
    "attention": _attention,
    "rows": _rows,
    "map": _map,
    "reduce": _reduce,
    "pool": _pool,
    "index": _index,
    "order": _order,
    "move": _move,
    "scan": _scan,
    "delta": _delta,
}
"""How the cases of each group are drawn."""


def fits(case: Any) -> bool:
    """Whether its work is between the bounds."""
    if min(case.result, default=1) < 1:
        return False
    if case.flops:
        return FLOPS[0] <= case.flops <= FLOPS[1] and case.moved <= BYTES[1]
    # Sorting takes a dozen passes where others take one.
    least, most = (size // 12 if case.kind == "order" else size for size in BYTES)
    return least <= case.moved <= most


def drawn(group: str, count: int, seed: int = 0) -> list[Any]:
    """So many cases of a group; more of them begin with the same."""
    sizes = Sizes(np.random.default_rng([seed, zlib.crc32(group.encode())]))
    found: dict[Any, None] = {}
    while len(found) < count:
        case = DRAWS[group](sizes)
        if fits(case):
            found[case] = None
    return list(found)
