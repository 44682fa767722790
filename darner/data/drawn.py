"""Digits drawn here, for whoever has no MNIST at hand: they look like handwriting, and a network learns them as it learns MNIST.

>>> from darner import data
>>> digits = data.drawn_digits(3, seed=0)
>>> digits.images.shape, digits.images.dtype, digits.labels.tolist()
((3, 28, 28), dtype('float32'), [8, 6, 5])
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ..graph.data import Array
from .batches import whole
from .mnist import DIGITS, SIDE, Digits

STROKES = {
    0: ["6,1 3,2 2,5 2,9 3,12 6,13 9,12 10,9 10,5 9,2 6,1"],
    1: ["3,4 6,1 6,13"],
    2: ["2,4 3,2 6,1 9,2 10,4 9,7 2,13 10,13"],
    3: ["2,2 6,1 9,2 10,4 9,6 6,7 9,8 10,10 9,12 6,13 2,12"],
    4: ["8,13 8,1 2,9 11,9"],
    5: ["10,1 3,1 3,6 6,5 9,6 10,9 9,12 6,13 2,12"],
    6: ["9,1 5,3 3,6 2,9 3,12 6,13 9,12 10,10 9,8 6,7 3,8 2,10"],
    7: ["2,1 10,1 5,13", "4,7 9,7"],
    8: ["6,7 3,6 2,4 3,2 6,1 9,2 10,4 9,6 6,7 3,8 2,10 3,12 6,13 9,12 10,10 9,8 6,7"],
    9: ["10,5 9,7 6,8 3,7 2,5 3,2 6,1 9,2 10,5 9,9 7,13"],
}
"""Each digit as lines through points, on a grid of 12 by 14."""

MASTER = 64
"""The side of the large pictures that digits are taken from."""


def drawn_digits(count: int, seed: int = 0) -> Digits:
    """Digits in many hands: turned, slanted, stretched, moved, thick and thin, with noise. Equal for equal seeds."""
    count = whole("count", count, 1)
    rng = np.random.default_rng(whole("seed", seed, 0))
    widths = np.linspace(1.5, 4.5, 4)
    masters = np.stack([[_master(digit, width) for width in widths] for digit in range(DIGITS)])
    digits = rng.integers(0, DIGITS, count).astype(np.int32)
    styles = rng.integers(0, len(widths), count)
    angle = rng.normal(0.0, 0.2, (count, 1))
    slant = rng.normal(0.0, 0.25, (count, 1))
    scale = MASTER / SIDE / rng.uniform(0.75, 1.15, (2, count, 1))
    shift = rng.uniform(-2.5, 2.5, (2, count, 1))
    images = np.empty((count, SIDE * SIDE), np.float32)
    y, x = (axis.reshape(1, -1) - (SIDE - 1) / 2 for axis in np.mgrid[:SIDE, :SIDE])
    for start in range(0, count, 1000):  # a thousand at a time fit the cache
        part = slice(start, start + 1000)
        px, py = x - shift[0, part], y - shift[1, part]
        cos, sin = np.cos(angle[part]), np.sin(angle[part])
        px, py = cos * px - sin * py, sin * px + cos * py
        # A slow wave across the picture bends straight lines, as a hand does.
        px = px + slant[part] * py + 0.8 * np.sin(py / 5 + 20 * slant[part])
        column = px * scale[0, part] + MASTER / 2
        row = py * scale[1, part] + MASTER / 2
        pictures = masters[digits[part], styles[part]].reshape(-1, MASTER * MASTER)
        images[part] = _between(pictures, row, column)
    images += rng.normal(0.0, 0.1, images.shape).astype(np.float32)
    return Digits(np.clip(images, 0.0, 1.0, out=images).reshape(-1, SIDE, SIDE), digits)


def _master(digit: int, width: float) -> Array:
    """A large picture of a digit, drawn with a pen of some width, in the middle of an empty field."""
    y, x = np.mgrid[:MASTER, :MASTER] + 0.5
    distance = np.full((MASTER, MASTER), np.inf)
    for line in STROKES[digit]:
        points = [tuple(map(float, point.split(","))) for point in line.split()]
        placed = [(MASTER / 2 + 3.2 * (px - 6), MASTER / 2 + 3.2 * (py - 7)) for px, py in points]
        for (ax, ay), (bx, by) in pairwise(placed):
            dx, dy = bx - ax, by - ay
            along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
            distance = np.minimum(distance, np.hypot(x - ax - along * dx, y - ay - along * dy))
    drawn: Array = np.clip(1.0 - (distance - width) / 2.0, 0.0, 1.0).astype(np.float32)
    return drawn


def _between(pictures: Array, row: Array, column: Array) -> Array:
    """Each picture at places between its pixels, by the four that are nearest."""
    row, column = np.clip(row, 0, MASTER - 2), np.clip(column, 0, MASTER - 2)
    i, j = row.astype(np.intp), column.astype(np.intp)
    down, right = row - i, column - j
    place = i * MASTER + j

    def at(offset: int) -> Array:
        return np.take_along_axis(pictures, place + offset, axis=1)

    upper = at(0) * (1 - right) + at(1) * right
    lower = at(MASTER) * (1 - right) + at(MASTER + 1) * right
    return upper * (1 - down) + lower * down
