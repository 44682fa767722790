"""Complex numbers as pairs of real ones: what rules of ops (``@op.pairs``) compute with, so that backends need no complex arithmetic."""

from __future__ import annotations

from typing import NamedTuple

from ...graph.node import Node


class Pair(NamedTuple):
    """The real and the imaginary part of a complex node."""

    re: Node
    im: Node


def times(a: Pair, b: Pair) -> Pair:
    """A product."""
    return Pair(a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re)


def over(a: Pair, b: Pair) -> Pair:
    """A quotient, scaled by the larger part so that nothing overflows on the way."""
    upright = b.re.abs().ge(b.im.abs())
    large, small = upright.where(b.re, b.im), upright.where(b.im, b.re)
    ratio = small / large
    scale = (large + small * ratio).recip()
    re = upright.where(a.re + a.im * ratio, a.re * ratio + a.im) * scale
    im = upright.where(a.im - a.re * ratio, a.im * ratio - a.re) * scale
    nothing = large.eq(0.0)
    size = large.abs()
    return Pair(nothing.where(a.re / size, re), nothing.where(a.im / size, im))


def is_zero(a: Pair) -> Node:
    """Whether both parts are 0."""
    both: Node = a.re.eq(0.0).logical_and(a.im.eq(0.0))
    return both
