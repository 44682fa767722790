"""The table of layers, and which imports it forbids."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("layers.toml")


@dataclass(frozen=True)
class Layers:
    """The layers of a package.

    Attributes:
        rows: the lowest first; those of one row know nothing of each other.
        part_of: names of modules that belong to a layer of another name.
        only: what a layer may import, where that is less than all lower ones.
    """

    rows: Sequence[Sequence[str]]
    part_of: Mapping[str, str]
    only: Mapping[str, Sequence[str]]

    @property
    def heights(self) -> dict[str, int]:
        return {name: height for height, row in enumerate(self.rows) for name in row}

    def layer_of(self, module: str) -> str | None:
        """The layer of a module by the longest name that matches; None where the table has none.

        >>> layers().layer_of("darner.backends.cpu.runtime.jit")
        'backends.cpu'
        """
        parts = module.split(".")[1:] or ["__init__"]
        known = {**{name: name for row in self.rows for name in row}, **self.part_of}
        for count in range(len(parts), 0, -1):
            name = ".".join(parts[:count])
            if name in known:
                return known[name]
        return None

    def why_forbidden(self, importer: str, imported: str) -> str | None:
        """Why a layer may not import another, or None if it may.

        >>> layers().why_forbidden("backends.wgpu", "backends.cpu")
        'backends.wgpu and backends.cpu know nothing of each other'
        """
        if importer == imported:
            return None
        heights = self.heights
        low, high = heights[importer], heights[imported]
        if low == high:
            return f"{importer} and {imported} know nothing of each other"
        if high > low:
            return f"{imported} lies above {importer}"
        if importer in self.only and imported not in self.only[importer]:
            return f"{importer} may import {', '.join(self.only[importer])} only"
        return None


@cache
def layers() -> Layers:
    """The table in ``layers.toml``."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return Layers(table["order"], table["part_of"], table["only"])
