"""Splats in tiles as problems: what kernels of ``splat_lists``, ``splat_blend`` and ``splat_blend_backward`` compute, whatever they run on."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import cast

from ...graph import dtypes
from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.specs import sizes
from ...ops.splats.tiles import FEATURES, BlendAttrs, Grid, grid_of

LISTS = "splat_lists"
BLEND = "splat_blend"
BACKWARD = "splat_blend_backward"

CLOSE = 1e-4
"""By how much the exponent of a splat may be off where it is looked at before its exponential is computed."""


def main_node(spec: Spec, *names: str) -> Node | None:
    """The node that a kernel computes, if it is one of these ops, in f32 where it is of floats."""
    outputs = spec.body.outputs
    if len(outputs) != 1 or outputs[0].op.name not in names:
        return None
    node = outputs[0]
    return node if node.op.name == LISTS or node.dtype is dtypes.f32 else None


@dataclass(frozen=True)
class ListProblem:
    """The lists of tiles.

    Attributes:
        lead: sizes of the batch.
        splats: how many there are.
        across: tiles of a row.
        down: rows of tiles.
        entries: room for all lists.
    """

    lead: tuple[int, ...]
    splats: int
    across: int
    down: int
    entries: int

    @classmethod
    def of(cls, node: Node) -> ListProblem:
        """That of a node."""
        *lead, splats, _ = sizes(node.operands[0])
        across, down, entries = (
            int(node.attrs[name]) for name in ("across", "down", "max_list_entries")
        )
        return cls(tuple(lead), splats, across, down, entries)

    @property
    def batch(self) -> int:
        """How many pictures there are."""
        return prod(self.lead)

    @property
    def tiles(self) -> int:
        """Tiles of a picture."""
        return self.across * self.down

    @property
    def length(self) -> int:
        """Elements of a picture's lists, with where they begin and end."""
        return self.entries + 2 * self.tiles


@dataclass(frozen=True)
class BlendProblem:
    """What splats add up to in each pixel, or the gradient of that.

    Attributes:
        lead: sizes of the batch.
        splats: how many there are.
        entries: those of all lists together.
        grid: the picture and its tiles.
        cutoff: what a splat takes of a pixel at least.
        steps: after so many splats a pixel is done.
        threshold: what has to be left of it for it to go on.
    """

    lead: tuple[int, ...]
    splats: int
    entries: int
    grid: Grid
    cutoff: float
    steps: int
    threshold: float

    @classmethod
    def of(cls, node: Node) -> BlendProblem:
        """That of a node."""
        attrs = cast(BlendAttrs, node.attrs)
        grid = grid_of(attrs)
        *lead, splats, _ = sizes(node.operands[0])
        entries = sizes(node.operands[1])[-1] - 2 * grid.tiles
        cutoff, threshold = attrs["alpha_cutoff"], attrs["transmittance_threshold"]
        steps = attrs["max_splat_steps"]
        return cls(tuple(lead), splats, entries, grid, cutoff, steps, threshold)

    @property
    def batch(self) -> int:
        """How many pictures there are."""
        return prod(self.lead)

    @property
    def rows(self) -> int:
        """Splats of all pictures."""
        return self.batch * self.splats

    @property
    def tiles(self) -> int:
        """Tiles of all pictures."""
        return self.batch * self.grid.tiles

    @property
    def square(self) -> int:
        """Pixels of a whole tile."""
        return self.grid.tile_size**2


__all__ = [
    "BACKWARD",
    "BLEND",
    "CLOSE",
    "FEATURES",
    "LISTS",
    "BlendProblem",
    "ListProblem",
    "main_node",
]
