"""Curves as a picture: lines and points over labelled axes, as SVG.

The picture has no background of its own, and colours that can be read on white and on black.

    >>> picture = curves_svg([Curve("loss", [1, 2, 3], [4.0, 2.0, 1.0])], x_label="step")
    >>> picture.startswith("<svg"), picture.count("<polyline")
    (True, 1)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from xml.sax.saxutils import escape

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError
from ..graph.integers import ceil_div

Kind = Literal["line", "points", "faint"]
"""A line; points joined by a thin line; a line in the colour of the next curve that stays in the background."""

COLOURS = ("#2f7ed8", "#e0712a", "#2fa37c", "#b1569e", "#a08a20")
INK = "#808080"
FONT = "ui-sans-serif, system-ui, Helvetica, Arial, sans-serif"
LEFT, RIGHT, TOP, BOTTOM = 64, 20, 36, 48
POINTS = 1000
"""How many stretches a line is drawn in at most: more than there are pixels show nothing."""


@dataclass(frozen=True)
class Curve:
    """Something to draw.

    Attributes:
        label: what the legend calls it.
        x, y: where it goes; values that are not finite are left out.
        kind: how it is drawn.
    """

    label: str
    x: Any
    y: Any
    kind: Kind = "line"


@dataclass(frozen=True)
class Axis:
    """A range of values, laid out over a stretch of the picture.

    Attributes:
        low, high: the values at its ends.
        start, stop: where these are, in pixels.
        log: whether equal distances are equal factors.
        whole: whether all values are whole numbers.
    """

    low: float
    high: float
    start: float
    stop: float
    log: bool = False
    whole: bool = False

    def place(self, values: Any) -> Array:
        """Where values are, in pixels."""
        found = np.asarray(values, np.float64)
        low, high = self.low, self.high
        if self.log:
            found, low, high = np.log10(found), math.log10(low), math.log10(high)
        return self.start + (found - low) / (high - low) * (self.stop - self.start)

    def ticks(self, count: int = 6) -> list[float]:
        """Round values along it."""
        found = log_ticks(self.low, self.high) if self.log else ticks(self.low, self.high, count)
        return [value for value in found if value == int(value)] if self.whole else found


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About ``count`` round values from ``low`` to ``high``: multiples of 1, 2 or 5 times a power of ten.

    >>> ticks(0.0, 1.0), ticks(0, 1234)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0, 1200.0])
    """
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power * factor for factor in (1, 2, 5, 10)), key=lambda size: abs(size / rough - 1))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded: 3 * 0.2 is to be 0.6.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten from ``low`` to ``high``; where they are few, also their multiples by 2 and 5, or all round values.

    >>> log_ticks(1, 1000), log_ticks(1, 20)
    ([1.0, 10.0, 100.0, 1000.0], [1.0, 2.0, 5.0, 10.0, 20.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        inside = [value for value in found if low * 0.999 <= value <= high * 1.001]
        if len(inside) >= 3:
            skip = ceil_div(len(inside), 8)
            return inside[::skip]
    return [value for value in ticks(low, high) if value > 0]


def number(value: float) -> str:
    """A value as an axis shows it.

    >>> number(0.2), number(2500), number(40000), number(1e-05)
    ('0.2', '2,500', '40k', '1e-05')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if letter == "k" else size)
            return f"{scaled:g}{letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def curves_svg(  # many parameters: they are the user's options, by name
    curves: Sequence[Curve],
    *,
    title: str = "",
    x_label: str = "",
    y_label: str = "",
    log_x: bool = False,
    log_y: bool = False,
    width: int = 720,
    height: int = 400,
) -> str:
    """A picture of curves; with ``log_x`` or ``log_y`` values that are not above 0 are left out."""
    drawn = [_finite(curve, log_x, log_y) for curve in curves]
    if not any(len(x) for _, x, _ in drawn):
        raise ArgumentError("there is nothing to draw: no curve has a finite point")
    xs = np.concatenate([x for _, x, _ in drawn])
    whole = bool((xs == np.floor(xs)).all())
    across = Axis(*_range(xs, log_x, 0.0), LEFT, width - RIGHT, log_x, whole)
    up = Axis(*_range(_within(drawn), log_y, 0.05), height - BOTTOM, TOP, log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{FONT}" font-size="12" fill="{INK}">',
        f'<clipPath id="inside"><rect x="{LEFT}" y="{TOP - 4}" width="{width - LEFT - RIGHT + 6}" '
        f'height="{height - TOP - BOTTOM + 8}"/></clipPath>',
        *_frame(across, up, width, height),
        *_words(title, x_label, y_label, width, height),
        '<g clip-path="url(#inside)">',
        *_lines(drawn, across, up),
        "</g>",
        *_legend(drawn, width),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


Drawn = tuple[Curve, Array, Array]


def _finite(curve: Curve, log_x: bool, log_y: bool) -> Drawn:
    x, y = (np.asarray(values, np.float64).reshape(-1) for values in (curve.x, curve.y))
    if len(x) != len(y):
        raise ArgumentError(f"curve '{curve.label}' has {len(x)} places but {len(y)} values")
    kept = np.isfinite(x) & np.isfinite(y)
    kept &= (x > 0) | (not log_x)
    kept &= (y > 0) | (not log_y)
    return curve, x[kept], y[kept]


def _within(drawn: Sequence[Drawn]) -> Array:
    """The values that the picture has to show: all but the outermost of what stays in the background."""
    found = []
    for curve, _, y in drawn:
        if curve.kind == "faint" and len(y) > 50:
            found.append(np.percentile(y, [1, 99]))
        else:
            found.append(y)
    return np.concatenate(found)


def _range(values: Array, log: bool, margin: float) -> tuple[float, float]:
    """The ends of an axis: the values, and some room beyond them."""
    low, high = float(values.min()), float(values.max())
    if log:
        low, high = math.log10(low), math.log10(high)
    if high - low < 1e-12 * max(abs(low), abs(high), 1e-300):
        room = abs(low) * 0.05 or 0.5
        low, high = low - room, high + room
    room = (high - low) * margin
    low, high = low - room, high + room
    return (10.0**low, 10.0**high) if log else (low, high)


def _frame(across: Axis, up: Axis, width: int, height: int) -> list[str]:
    """Axes, faint lines at round values, and what these are."""
    bottom, right = height - BOTTOM, width - RIGHT
    found = []
    for value in up.ticks():
        y = float(up.place(value))
        found.append(
            f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{INK}" stroke-opacity="0.2"/>'
        )
        found.append(
            f'<text class="y" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>'
        )
    for value in across.ticks(8):
        x = float(across.place(value))
        found.append(
            f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 4}" stroke="{INK}"/>'
        )
        found.append(
            f'<text class="x" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{number(value)}</text>'
        )
    corner = f"M{LEFT} {TOP}V{bottom}H{right}"
    return [*found, f'<path d="{corner}" fill="none" stroke="{INK}"/>']


def _words(title: str, x_label: str, y_label: str, width: int, height: int) -> list[str]:
    middle, centre = (LEFT + width - RIGHT) / 2, (TOP + height - BOTTOM) / 2
    found = []
    if title:
        found.append(
            f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{escape(title)}</text>'
        )
    if x_label:
        found.append(
            f'<text x="{middle:.0f}" y="{height - 10}" text-anchor="middle">{escape(x_label)}</text>'
        )
    if y_label:
        turned = f"rotate(-90 16 {centre:.0f})"
        found.append(
            f'<text x="16" y="{centre:.0f}" text-anchor="middle" transform="{turned}">{escape(y_label)}</text>'
        )
    return found


def _colour(drawn: Sequence[Drawn], number: int) -> str:
    """Curves in the background have the colour of the one they belong to, which follows."""
    before = sum(curve.kind != "faint" for curve, _, _ in drawn[:number])
    return COLOURS[before % len(COLOURS)]


def _lines(drawn: Sequence[Drawn], across: Axis, up: Axis) -> list[str]:
    found = []
    for i, (curve, x, y) in enumerate(drawn):
        if not len(x):
            continue
        colour = _colour(drawn, i)
        places = np.stack(_thinned(across.place(x), up.place(y)), axis=1)
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
        look = {"line": ("2", "1"), "points": ("1", "0.5"), "faint": ("1", "0.25")}[curve.kind]
        found.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{look[0]}" '
            f'stroke-opacity="{look[1]}" stroke-linejoin="round"/>'
        )
        if curve.kind == "points" or len(x) == 1:
            found += [
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in places
            ]
    return found


def _thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """The lowest and the highest point of every stretch: the same picture from fewer points."""
    if len(x) <= 2 * POINTS:
        return x, y
    edges = np.linspace(x[0], x[-1], POINTS + 1)[1:-1]
    chosen = [0]
    for part in np.split(np.arange(len(x)), np.searchsorted(x, edges)):
        if len(part):
            chosen += sorted({int(part[y[part].argmin()]), int(part[y[part].argmax()])})
    chosen.append(len(x) - 1)
    return x[chosen], y[chosen]


def _legend(drawn: Sequence[Drawn], width: int) -> list[str]:
    """What is what, from the right end above the picture."""
    found, right = [], float(width - RIGHT)
    for i in range(len(drawn) - 1, -1, -1):
        curve = drawn[i][0]
        start = right - 6.6 * len(curve.label)
        opacity = "0.35" if curve.kind == "faint" else "1"
        found.append(f'<text x="{start:.1f}" y="20">{escape(curve.label)}</text>')
        found.append(
            f'<line x1="{start - 22:.1f}" y1="16" x2="{start - 6:.1f}" y2="16" stroke="{_colour(drawn, i)}" '
            f'stroke-width="3" stroke-opacity="{opacity}"/>'
        )
        right = start - 36
    return found
