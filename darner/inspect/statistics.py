"""What a tensor holds, in a few numbers: taken in f64, over its finite elements, a piece at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..graph.data import Array

PIECE = 1 << 18
"""Elements looked at together: they fit the cache in f64."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of one tensor.

    Attributes:
        shape, dtype: its type.
        minimum, maximum, mean: over its finite elements; None where there are none. Of complex numbers, those of
            their magnitudes.
        norm: the root of the sum of squares of its finite elements.
        zeros, nans, infinities: how many elements are that.
        first_bad: the index of the first element that is not finite.
    """

    shape: tuple[int, ...]
    dtype: str
    minimum: float | None
    maximum: float | None
    mean: float | None
    norm: float
    zeros: int
    nans: int
    infinities: int
    first_bad: tuple[int, ...] | None

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    @property
    def bad(self) -> int:
        """How many elements are not finite."""
        return self.nans + self.infinities

    @property
    def largest(self) -> float:
        """The largest magnitude of a finite element; 0.0 where there is none."""
        if self.minimum is None or self.maximum is None:
            return 0.0
        return max(abs(self.minimum), abs(self.maximum))

    @property
    def zero_share(self) -> float:
        """The share of elements that are zero."""
        return self.zeros / self.size if self.size else 0.0

    @property
    def type(self) -> str:
        """The type as graphs print it: ``f32[4, 8]``."""
        return f"{self.dtype}{list(self.shape)}"

    def __str__(self) -> str:
        text = self.type
        if self.mean is not None and self.size == 1:
            text += f" = {self.mean:.6g}"
        elif self.mean is not None:
            text += f" from {self.minimum:.4g} to {self.maximum:.4g}, mean {self.mean:.4g}"
        parts = [(self.nans, "NaN"), (self.infinities, "Inf")]
        for many, what in parts:
            text += f", {many:,} {what}" if many else ""
        return text


def statistics(array: Array) -> Statistics:
    """The statistics of an array.

    >>> import numpy as np
    >>> found = statistics(np.array([[0.0, 3.0], [np.nan, -4.0]], np.float32))
    >>> found.norm, found.nans, found.first_bad, found.mean
    (5.0, 1, (1, 0), -0.3333333333333333)
    """
    from ..graph.dtypes import dtype

    flat = array.reshape(-1)
    low, high, total, squares = math.inf, -math.inf, 0.0, 0.0
    zeros = nans = infinities = 0
    first: int | None = None
    for start in range(0, flat.size, PIECE):
        piece = flat[start : start + PIECE]
        values = _real(piece)
        zeros += int(values.size - np.count_nonzero(values))
        finite = np.isfinite(values)
        if not finite.all():
            if first is None:
                first = start + int(np.argmin(finite))
            missing = int(np.isnan(values).sum())
            nans += missing
            infinities += int(values.size - finite.sum()) - missing
            values = values[finite]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
            total += float(values.sum())
            squares += float(np.dot(values, values))
    some = flat.size - nans - infinities
    return Statistics(
        shape=tuple(array.shape),
        dtype=str(dtype(array.dtype)),
        minimum=low if some else None,
        maximum=high if some else None,
        mean=total / some if some else None,
        norm=math.sqrt(squares),
        zeros=zeros,
        nans=nans,
        infinities=infinities,
        first_bad=None
        if first is None
        else tuple(int(i) for i in np.unravel_index(first, array.shape)),
    )


def _real(piece: Array) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The elements in f64; complex ones by magnitude."""
    with np.errstate(all="ignore"):
        values = np.abs(piece) if np.iscomplexobj(piece) else piece
        return values.astype(np.float64)
