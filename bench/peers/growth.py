"""How time and memory grow with one size of a workload: ``python -m bench.peers --growth``.

A curve is a workload and a size of it that grows while the others stay. Curves are kept in a file of JSON, each under its
name, and drawn from there: a run replaces those that it measures.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import turns
from .report import grid, three_digits
from .workloads import Llama, Resnet

HEAD = 64
"""The width of a head, which stays while the width of the model grows."""

LLAMA = {
    "sequence": (16, 64, 256, 1024),
    "width": (192, 576, 1152),
    "layers": (1, 4, 12),
    "batch": (1, 4, 16),
}
RESNET = {"batch": (1, 4, 16), "size": (32, 64, 128)}


@dataclass(frozen=True)
class Curve:
    """A workload at several sizes along one axis."""

    workload: Any
    axis: str
    sizes: tuple[int, ...]

    @property
    def name(self) -> str:
        """``llama-s.train by sequence``."""
        return f"{self.workload.name} by {self.axis}"

    def at(self, size: int) -> Any:
        """The workload with this size."""
        if self.axis == "width":
            heads = size // HEAD
            inner = HEAD * round(size * 8 / 3 / HEAD)
            return replace(self.workload, width=size, heads=heads, kv_heads=heads // 3, inner=inner)
        return replace(self.workload, **{self.axis: size})


def curves(workloads: Sequence[Any], axes: Sequence[str] | None = None) -> list[Curve]:
    """The curves of some workloads, along these axes or all that they have."""
    found = []
    for one in workloads:
        kinds = LLAMA if isinstance(one, Llama) else RESNET if isinstance(one, Resnet) else {}
        found += [
            Curve(one, axis, sizes) for axis, sizes in kinds.items() if axes is None or axis in axes
        ]
    return found


def measure(
    curve: Curve,
    engines: Sequence[str],
    threads: int,
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """A curve as JSON has it: sizes, and for each engine milliseconds and MB."""
    found: dict[str, Any] = {"axis": curve.axis, "sizes": list(curve.sizes), "threads": threads}
    found |= {key: {name: [] for name in engines} for key in ("ms", "mb")}
    for size in curve.sizes:
        row = turns.measure(curve.at(size), engines, threads, rounds=rounds, seconds=seconds)
        for note in row.notes:
            say(note)
        for name in engines:
            times = row.engines.get(name)
            found["ms"][name].append(round(1e3 * times.median, 4) if times else None)
            found["mb"][name].append(round(times.memory, 1) if times else None)
        say(f"{curve.name} {size}: { ({n: found['ms'][n][-1] for n in engines}) } ms")
    return found


def exponent(sizes: Sequence[float], values: Sequence[float | None]) -> float | None:
    """The power of the size that values grow with, from the last but one to the last.

    >>> exponent([1, 2, 4], [5.0, 6.0, 24.0])
    2.0
    """
    if len(sizes) < 2 or values[-1] is None or values[-2] is None:
        return None
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def table(found: dict[str, dict[str, Any]]) -> str:
    """Every point: milliseconds and MB of each engine, the ratio of times, and the power that darner's time grows with."""
    engines = list(dict.fromkeys(name for curve in found.values() for name in curve["ms"]))
    head = ["curve", "size", *(f"{n} ms" for n in engines), "ratio", *(f"{n} MB" for n in engines)]
    lines = []
    for name, curve in found.items():
        power = exponent(curve["sizes"], curve["ms"].get("darner", [None, None]))
        for i, size in enumerate(curve["sizes"]):
            times = {n: values[i] for n, values in curve["ms"].items() if values[i] is not None}
            others = [value for n, value in times.items() if n != "darner"]
            line = [name if not i else "", str(size)]
            line += [three_digits(times[n]) if n in times else "" for n in engines]
            both = others and "darner" in times
            line.append(f"{min(others) / times['darner']:.2f}" if both else "")
            line += [_rounded(curve["mb"].get(n), i) for n in engines]
            last = i == len(curve["sizes"]) - 1
            lines.append([*line, f"{power:.2f}" if last and power is not None else ""])
    return grid([*head, "power"], lines)


def _rounded(values: list[float | None] | None, i: int) -> str:
    value = None if values is None else values[i]
    return "" if value is None else f"{value:.0f}"


def kept(path: Path, new: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a file holds with new curves in place of old ones of the same name; it is written back."""
    found = json.loads(path.read_text()) if path.exists() else {}
    found |= new
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    return found


# ------------------------------------------------------------- the picture

WIDTH, HEIGHT, MARGIN, COLUMNS = 260, 190, 54, 4
COLOURS = {"darner": "#d1495b", "torch": "#2e6f95"}
OTHER = "#8a8a8a"


def picture(found: dict[str, dict[str, Any]]) -> str:
    """SVG: a small panel for each curve, milliseconds over sizes, both by their logarithms."""
    names = list(dict.fromkeys(name for curve in found.values() for name in curve["ms"]))
    lines = -(-len(found) // COLUMNS)
    size = f'width="{COLUMNS * WIDTH}" height="{lines * HEIGHT + 30}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for i, name in enumerate(names):
        colour = COLOURS.get(name, OTHER)
        parts.append(f'<text x="{20 + 90 * i}" y="18" fill="{colour}" font-size="12">{name}</text>')
    for i, (name, curve) in enumerate(found.items()):
        x, y = i % COLUMNS * WIDTH, i // COLUMNS * HEIGHT + 30
        parts.append(f'<g transform="translate({x},{y})">{_panel(name, curve)}</g>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(name: str, curve: dict[str, Any]) -> str:
    values = [v for series in curve["ms"].values() for v in series if v is not None]
    right, bottom = WIDTH - 12, HEIGHT - 30

    def along(value: float, of: Sequence[float], low: float, high: float) -> float:
        first, last = math.log(min(of)), math.log(max(of))
        share = (math.log(value) - first) / (last - first) if last > first else 0.5
        return low + share * (high - low)

    parts = [
        f'<text x="{MARGIN}" y="12" font-size="11">{name}</text>',
        f'<path d="M{MARGIN} 20V{bottom}H{right}" fill="none" stroke="#999"/>',
    ]
    for size in curve["sizes"]:
        x = along(size, curve["sizes"], MARGIN + 10, right - 10)
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{size}</text>')
    for value in (min(values), max(values)) if values else ():
        y = along(value, values, bottom - 8, 28)
        label = f"{three_digits(value)} ms"
        parts.append(f'<text x="{MARGIN - 3}" y="{y + 3:.1f}" text-anchor="end">{label}</text>')
    for engine, series in curve["ms"].items():
        pairs = zip(curve["sizes"], series, strict=True)
        points = [
            (along(s, curve["sizes"], MARGIN + 10, right - 10), along(v, values, bottom - 8, 28))
            for s, v in pairs
            if v is not None
        ]
        colour = COLOURS.get(engine, OTHER)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
    return "".join(parts)
