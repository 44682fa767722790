"""Choosing the next token from its scores.

>>> import numpy as np
>>> scores = np.log(np.array([[0.1, 0.6, 0.3]], np.float32))
>>> int(GREEDY.choose(scores, [[]], step=0)[0])
1
>>> drawn = [int(Sampling(seed=1).choose(scores, [[]], step)[0]) for step in range(1000)]
>>> [round(drawn.count(token) / 1000, 1) for token in range(3)]
[0.1, 0.6, 0.3]
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError
from ..io.reading import shown

_LEAST, _MOST = 1e-30, 1e30
_RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0, _MOST, "at least 0"),
    "top_k": (0, 2**31, "a whole number"),
    "top_p": (_LEAST, 1, "above 0 and at most 1"),
    "min_p": (0, 1, "between 0 and 1"),
    "repetition_penalty": (_LEAST, _MOST, "above 0"),
}
"""What is allowed, and how it is said."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; what is drawn depends on the seed, the text's place in the batch, and the step alone.

    In this order: scores of tokens that the text has are divided (or, below 0, multiplied) by ``repetition_penalty``; all are
    divided by ``temperature``; ``top_k`` keeps the k largest (0 keeps all), ``top_p`` the fewest of these that reach that
    share of their probability, ``min_p`` those with at least that fraction of the largest probability.

    Attributes:
        temperature: 0 takes the largest score, below 1 favours large ones, above 1 evens them out.
        seed: other seeds give other texts.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high, what) in _RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number or not low <= value <= high:  # which no NaN is
                raise ArgumentError(f"{name} is {what}, got {shown(value)}")
        if self.top_k != int(self.top_k):
            raise ArgumentError(f"top_k is a whole number, got {self.top_k!r}")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer):
            raise ArgumentError(f"seed is a whole number, got {shown(self.seed)}")

    @property
    def greedy(self) -> bool:
        """Whether the largest score is always taken."""
        return self.temperature == 0 or self.top_k == 1

    def choose(self, scores: Array, texts: Sequence[Sequence[int]], step: int) -> Array:
        """A token for each row of ``scores`` (batch, vocabulary); ``texts`` are what each row has so far."""
        if self.repetition_penalty != 1.0:
            scores = np.array(scores, np.float32)
            for row, text in zip(scores, texts, strict=True):
                seen = np.unique(np.asarray(text, np.int64))
                penalty = np.float32(self.repetition_penalty)
                row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
        if self.greedy:
            return np.argmax(scores, axis=-1)
        draws = (self._draw(row, step) for row in range(len(scores)))
        return np.array(
            [self._chosen(row, draw) for row, draw in zip(scores, draws, strict=True)], np.int64
        )

    def _draw(self, row: int, step: int) -> float:
        """A number in [0, 1) of this row and step."""
        key = hashlib.blake2b(f"{self.seed}:{row}".encode(), digest_size=16).digest()
        bits = np.random.Philox(key=np.frombuffer(key, np.uint64), counter=step)
        return float(bits.random_raw() >> 11) * 2.0**-53

    def _chosen(self, scores: Array, draw: float) -> int:
        scaled = scores.astype(np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max())
        if self.top_k == 0 and self.top_p == 1.0 and self.min_p == 0.0:
            return _where(np.cumsum(weights), draw)
        order = _largest_first(weights, self.top_k, self.top_p)
        kept = weights[order]
        if self.top_p < 1.0:
            total = kept.sum() if self.top_k else weights.sum()
            before = np.cumsum(kept) - kept
            kept = kept[before < self.top_p * total]
        kept = kept[kept >= self.min_p * kept[0]]
        return int(order[_where(np.cumsum(kept), draw)])


GREEDY = Sampling(temperature=0.0)
"""The largest score, always."""


def _where(sums: Array, draw: float) -> int:
    """The first place whose running sum exceeds that share of the whole."""
    return min(int(np.searchsorted(sums, draw * sums[-1], side="right")), len(sums) - 1)


def _largest_first(weights: Array, top_k: int, top_p: float) -> Array:
    """Tokens by falling weight, equal ones in their order: the k largest, or as many as may be needed for the share.

    A whole vocabulary is sorted only where few tokens do not have the share.
    """
    count = len(weights) if top_k == 0 else min(top_k, len(weights))
    few = count if top_k else 256
    while few < len(weights):
        chosen = np.argpartition(-weights, few - 1)[:few]
        if top_k or (top_p < 1.0 and weights[chosen].sum() >= top_p * weights.sum()):
            # Of those as large as the least, the first come first.
            least = weights[chosen].min()
            chosen = np.flatnonzero(weights >= least)
            return chosen[np.argsort(-weights[chosen], kind="stable")][: few if top_k else None]
        few *= 8
    return np.argsort(-weights, kind="stable")[:count]
