"""Splats in the tiles of a picture: which splats a tile has to look at, and what they add up to in each pixel.

``splat_lists`` puts the numbers of splats in order of tiles, ``splat_blend`` goes through the list of a pixel's tile from front to back, and
``splat_blend_backward`` is the gradient of that. ``splat_features`` says what is known of a splat: sixteen numbers, in a frame of the camera in which a pixel's ray is linear in the pixel's place.
Both are made of other ops too, with all entries beside all pixels: that is what devices without kernels for them run, and what is differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float, Index
from ...graph.cached import cached_property
from ...graph.data import Array
from ...graph.dims import Dim, Shape, format_shape, product
from ...graph.errors import ArgumentError, ShapeError
from ...graph.facts import Facts
from ...graph.integers import ceil_div
from ...graph.node import Node
from ...graph.op import composite, primitive
from ...graph.types import TensorType
from ..axes import spread
from ..elementwise.arithmetic import where
from ..faults import room_fault
from ..indexing.index import scatter_add_along_axis, take_along_axis
from ..reductions.reduce import cumprod, cumsum, linear_recurrence, shifted
from ..samples import ints, sample, spec
from ..shapes.primitives import broadcast_to, concat, reshape

FAMILY = "splats"

FEATURES = 16
"""What is known of a splat: its camera in its own frame (3), what a ray gains there by a pixel to the right (3), by one downwards (3) and the middle one (3), opacity, colour (3)."""

MOST_ENTRIES = 1 << 24
"""Entries of all lists together: in a packed buffer their numbers are f32."""


class ListAttrs(TypedDict):
    """The attributes of ``splat_lists``."""

    across: int
    down: int
    max_list_entries: int


class BlendAttrs(TypedDict):
    """The attributes of ``splat_blend``."""

    width: int
    height: int
    tile_size: int
    alpha_cutoff: float
    max_splat_steps: int
    transmittance_threshold: float


@dataclass(frozen=True)
class Grid:
    """A picture and its tiles; those at the right and at the bottom may be cut off."""

    width: int
    height: int
    tile_size: int

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return ceil_div(self.width, self.tile_size)

    @property
    def down(self) -> int:
        """Rows of tiles."""
        return ceil_div(self.height, self.tile_size)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.across * self.down

    @property
    def pixels(self) -> int:
        """All pixels."""
        return self.width * self.height

    def check(self) -> None:
        """Refuse what is no picture."""
        for name in ("width", "height", "tile_size"):
            number = getattr(self, name)
            if not 1 <= number <= 1 << 15:
                raise ArgumentError(f"{name} must be in 1..32768, not {number}")


def grid_of(attrs: BlendAttrs) -> Grid:
    """The picture that attributes say."""
    return Grid(attrs["width"], attrs["height"], attrs["tile_size"])


# --------------------------------------------------------------------------- lists


@primitive(
    family=FAMILY,
    facts=Facts(fails_on="room"),
    samples=[
        sample(ints(6, 4, low=-1, high=4), ints(6, high=6), 3, 2, 40),
        sample(ints(2, 5, 4, low=0, high=3), ints(2, 5, high=9), 2, 2, 20),
        sample(ints(0, 4, high=2), ints(0, high=2), 2, 1, 1),
        sample(ints(1, 4, high=1), ints(1, high=2), 1, 1, 3),
    ],
)
def splat_lists(
    bounds: Index, numbers: Index, across: int, down: int, max_list_entries: int
) -> TensorType:
    """The splats of each tile: all lists one after another, filled up with -1, and then where the list of each tile begins and ends.

    ``bounds`` is [..., N, 4]: the first column and row of tiles that a splat touches, and the first ones that it does not touch any more. ``numbers`` [..., N] is what stands
    in the lists, in this order. The result is i32 [..., max_list_entries + 2 * across * down]. More pairs of a tile and a splat than ``max_list_entries`` are an error when it runs.
    """
    if bounds.rank < 2 or bounds.shape[-1] != 4 or bounds.shape[:-1] != numbers.shape:
        raise ShapeError("bounds must be [..., N, 4] and numbers [..., N]")
    if across < 1 or down < 1:
        raise ArgumentError(f"there must be a tile, not {across} by {down}")
    if not 1 <= max_list_entries <= MOST_ENTRIES:
        raise ArgumentError(
            f"max_list_entries must be in 1..{MOST_ENTRIES}, not {max_list_entries}"
        )
    length = max_list_entries + 2 * across * down
    return TensorType((*bounds.shape[:-2], length), dtypes.i32)


@splat_lists.reference
def _(bounds: Array, numbers: Array, across: int, down: int, max_list_entries: int) -> Array:
    tiles = across * down
    found = np.full((*numbers.shape[:-1], max_list_entries + 2 * tiles), -1, np.int32)
    left, top, right, bottom = (bounds[..., k, None, None] for k in range(4))
    row, column = np.arange(down)[:, None], np.arange(across)
    touched = (left <= column) & (column < right) & (top <= row) & (row < bottom)
    for place in np.ndindex(numbers.shape[:-1]):
        by_tile = touched[place].reshape(-1, tiles).T
        ends = np.cumsum(by_tile.sum(1))
        if ends[-1] > max_list_entries:
            raise room_fault(int(ends[-1]), max_list_entries)
        found[place][: ends[-1]] = numbers[place][np.nonzero(by_tile)[1]]
        found[place][max_list_entries::2] = np.concatenate([[0], ends[:-1]])
        found[place][max_list_entries + 1 :: 2] = ends
    return found


@splat_lists.vmap
def _(
    size: Dim, batched: dict[str, bool], bounds: Node, numbers: Node, **attrs: Unpack[ListAttrs]
) -> Node:
    bounds = bounds if batched["bounds"] else spread(bounds, size)
    numbers = numbers if batched["numbers"] else spread(numbers, size)
    result: Node = splat_lists(bounds, numbers, **attrs)
    return result


# --------------------------------------------------------------------------- blending


def _check_blend(features: TensorType, lists: TensorType, attrs: BlendAttrs) -> Shape:
    """Refuse what does not fit; the axes before those of splats."""
    grid = grid_of(attrs)
    grid.check()
    check_options(attrs["alpha_cutoff"], attrs["max_splat_steps"], attrs["transmittance_threshold"])
    if features.rank < 2 or features.shape[-1] != FEATURES:
        raise ShapeError(
            f"features must be [..., N, {FEATURES}], not {format_shape(features.shape)}"
        )
    lead = features.shape[:-2]
    if lists.shape[:-1] != lead:
        raise ShapeError(
            f"features have {format_shape(lead)} before their last two axes, lists {format_shape(lists.shape[:-1])} before their last"
        )
    entries = lists.shape[-1]
    if not isinstance(entries, int) or entries <= 2 * grid.tiles:
        raise ShapeError(
            f"the lists of {grid.tiles} tiles have more than {2 * grid.tiles} elements, not {entries}"
        )
    return lead


def check_options(cutoff: float, steps: int, threshold: float) -> None:
    """Refuse options of blending that mean nothing."""
    if not 0 <= cutoff <= 1:
        raise ArgumentError(f"alpha_cutoff must be in 0..1, not {cutoff}")
    if not 1 <= steps <= MOST_ENTRIES:
        raise ArgumentError(f"max_splat_steps must be in 1..{MOST_ENTRIES}, not {steps}")
    if not 0 <= threshold <= 1:
        raise ArgumentError(f"transmittance_threshold must be in 0..1, not {threshold}")


_LISTS = np.array([2, 0, 4, 3, -1, 1, 9, 5, 0, 3, 3, 4, 4, 4, 4, 8], np.int32)
"""Four lists: of three splats, one, none, and four numbers, of which two are no splat's."""
_PICTURE = {"width": 5, "height": 4, "tile_size": 3}
_FEATURES = spec(6, FEATURES, low=0.1, high=0.9)
"""Splats of which the pixels above and left of the middle see most."""
_TWICE = np.stack([_LISTS, np.roll(_LISTS[:8], 1).tolist() + _LISTS[8:].tolist()])
_OPTIONS = {"max_splat_steps": 2, "alpha_cutoff": 0.1, "transmittance_threshold": 0.3}


@composite(
    family=FAMILY,
    facts=Facts(whole=True, weight=40.0),
    samples=[
        sample(spec(6, FEATURES, low=0.05, high=0.95), _LISTS, **_PICTURE),
        sample(_FEATURES, _LISTS, **_PICTURE, **_OPTIONS),
        sample(spec(2, 6, FEATURES, low=0.1, high=0.9), _TWICE, **_PICTURE),
        sample(spec(0, FEATURES), np.array([-1, 0, 0], np.int32), 2, 2, 2),
    ],
)
def splat_blend(  # many parameters: they are the user's options
    features: Float,
    lists: Index,
    width: int,
    height: int,
    tile_size: int = 16,
    alpha_cutoff: float = 1 / 255,
    max_splat_steps: int = 32,
    transmittance_threshold: float = 0.01,
) -> TensorType:
    """Colour and transmittance of each pixel, [..., height * width, 4], of splats by lists of ``splat_lists``.

    ``features`` [..., N, 16] are o (3), a (3), b (3), c (3), opacity, colour (3) of each splat: the ray of the pixel at (x, y) is
    o + t d with d = (x + 0.5 - width / 2) a + (y + 0.5 - height / 2) b + c, where the splat is exp(-length**2 / 2). Each splat takes alpha = opacity times the largest value along
    the ray; nothing where that is behind the camera, or alpha is below the cutoff. From front to back colour += T alpha colour, T *= 1 - alpha, until T is
    below the threshold or ``max_splat_steps`` were hit. Numbers in lists that are no splat's are passed over.
    """
    attrs = BlendAttrs(
        width=width,
        height=height,
        tile_size=tile_size,
        alpha_cutoff=alpha_cutoff,
        max_splat_steps=max_splat_steps,
        transmittance_threshold=transmittance_threshold,
    )
    lead = _check_blend(features, lists, attrs)
    return features.with_shape((*lead, width * height, 4))


@splat_blend.expand
def _(features: Node, lists: Node, **attrs: Unpack[BlendAttrs]) -> Node:
    return _Dense(features, lists, attrs).image()


@splat_blend.vjp
def _(
    g: Node, out: Node, features: Node, lists: Node, **attrs: Unpack[BlendAttrs]
) -> dict[str, Callable[[], Node]]:
    return {"features": lambda: splat_blend_backward(features, lists, g, **attrs)}


@splat_blend.vmap
def _(
    size: Dim,
    batched: dict[str, bool],
    features: Node,
    lists: Node,
    **attrs: Unpack[BlendAttrs],
) -> Node:
    features = features if batched["features"] else spread(features, size)
    lists = lists if batched["lists"] else spread(lists, size)
    result: Node = splat_blend(features, lists, **attrs)
    return result


@composite(
    family=FAMILY,
    facts=Facts(whole=True, weight=80.0),
    samples=[
        sample(spec(6, FEATURES, low=0.05, high=0.95), _LISTS, spec(20, 4), **_PICTURE),
        sample(_FEATURES, _LISTS, spec(20, 4), **_PICTURE, **_OPTIONS),
        sample(spec(2, 6, FEATURES, low=0.1, high=0.9), _TWICE, spec(2, 20, 4), **_PICTURE),
        sample(spec(0, FEATURES), np.array([-1, 0, 0], np.int32), spec(4, 4), 2, 2, 2),
    ],
)
def splat_blend_backward(  # many parameters: they are the user's options
    features: Float,
    lists: Index,
    g: Float,
    width: int,
    height: int,
    tile_size: int = 16,
    alpha_cutoff: float = 1 / 255,
    max_splat_steps: int = 32,
    transmittance_threshold: float = 0.01,
) -> TensorType:
    """What ``features`` of ``splat_blend`` receive from the cotangent ``g`` of its result; which splats a pixel sees, and in which order, stays as it is.

    No two tiles may share entries of ``lists``, as is so in those of ``splat_lists``: sums are formed entry by entry.
    """
    attrs = BlendAttrs(
        width=width,
        height=height,
        tile_size=tile_size,
        alpha_cutoff=alpha_cutoff,
        max_splat_steps=max_splat_steps,
        transmittance_threshold=transmittance_threshold,
    )
    lead = _check_blend(features, lists, attrs)
    if g.shape != (*lead, width * height, 4):
        raise ShapeError(
            f"g must be {format_shape((*lead, width * height, 4))}, not {format_shape(g.shape)}"
        )
    return features


@splat_blend_backward.expand
def _(features: Node, lists: Node, g: Node, **attrs: Unpack[BlendAttrs]) -> Node:
    return _Dense(features, lists, attrs).backward(g)


@splat_blend_backward.vmap
def _(
    size: Dim,
    batched: dict[str, bool],
    features: Node,
    lists: Node,
    g: Node,
    **attrs: Unpack[BlendAttrs],
) -> Node:
    features = features if batched["features"] else spread(features, size)
    lists = lists if batched["lists"] else spread(lists, size)
    g = g if batched["g"] else spread(g, size)
    result: Node = splat_blend_backward(features, lists, g, **attrs)
    return result


METS = 40
"""Operations that a pixel takes to meet a splat; twice as many with the gradient."""


def _meetings(features: TensorType, lists: TensorType, attrs: BlendAttrs) -> Dim:
    """How often a pixel meets a splat: at most as often as there are entries, and as it can take from the pixel."""
    grid = grid_of(attrs)
    entries = lists.shape[-1] - 2 * grid.tiles
    each = grid.pixels * attrs["max_splat_steps"]
    if isinstance(entries, int):
        each = min(each, entries * grid.tile_size**2)
    return product(features.shape[:-2]) * each


@splat_blend.cost
def _(features: TensorType, lists: TensorType, **attrs: Unpack[BlendAttrs]) -> Dim:
    return METS * _meetings(features, lists, attrs)


@splat_blend_backward.cost
def _(features: TensorType, lists: TensorType, g: TensorType, **attrs: Unpack[BlendAttrs]) -> Dim:
    return 3 * METS * _meetings(features, lists, attrs)


# --------------------------------------------------------------------------- all entries beside all pixels


class _Dense:
    """Blending with an axis for pixels and one for entries: [batch, pixels, entries]."""

    def __init__(self, features: Node, lists: Node, attrs: BlendAttrs) -> None:
        self.attrs, self.grid, self.graph = attrs, grid_of(attrs), features.graph
        self.shape = features.shape
        self.splats: Dim = features.shape[-2]
        self.batch = product(features.shape[:-2])
        self.features = reshape(features, (self.batch, self.splats, FEATURES))
        self.count = int(lists.shape[-1]) - 2 * self.grid.tiles
        self.lists = reshape(lists.cast("i32"), (self.batch, lists.shape[-1]))

    def image(self) -> Node:
        """Colour and transmittance of all pixels."""
        pixels = (self.batch, self.grid.pixels)
        if self.splats == 0:
            kind = self.features.dtype
            nothing = self.graph.zeros((*pixels, 3), kind)
            parts = [nothing, self.graph.ones((*pixels, 1), kind)]
        else:
            weight = self.alpha * self.before
            colours = [where(self.hit, weight * self.column(13 + k), 0.0) for k in range(3)]
            parts = [reshape(c.sum(-1), (*pixels, 1)) for c in colours]
            parts.append(self.passed[..., -1:])
        return reshape(concat(parts, -1), (*self.shape[:-2], self.grid.pixels, 4))

    def backward(self, g: Node) -> Node:
        """What the features receive."""
        if self.splats == 0:
            nothing: Node = self.graph.zeros(self.shape, self.features.dtype)
            return nothing
        g = reshape(g, (self.batch, self.grid.pixels, 4))
        sent = [g[..., k : k + 1] for k in range(4)]
        weight = self.alpha * self.before
        lit = [sent[k] * self.column(13 + k) for k in range(3)]
        light = where(self.hit, lit[0] + lit[1] + lit[2], 0.0)
        # What lies behind an entry, as the cotangent sees it: from the last one to the first.
        alone = self.graph.ones((self.batch, self.grid.pixels, 1), g.dtype)
        factors = concat([1.0 - self.alpha, alone], -1)
        added = concat([self.alpha * light, sent[3]], -1)
        behind = linear_recurrence(factors, added, -1, reverse=True)[..., 1:]
        by_alpha = where(self.hit, self.before * (light - behind), 0.0)
        by_power = by_alpha * self.alpha
        opacity = where(self.hit.any(1), self.column(12)[:, 0], 1.0)
        u, v = self.places
        rows = []
        along = []
        for k in range(3):
            moved = where(self.hit, -(by_power * self.nearest[k]), 0.0)
            rows.append(moved.sum(1))
            along.append(where(self.hit, moved * self.depth, 0.0))
        rows += [(ray * u).sum(1) for ray in along]
        rows += [(ray * v).sum(1) for ray in along]
        rows += [ray.sum(1) for ray in along]
        rows.append(by_power.sum(1) / opacity)
        rows += [where(self.hit, weight * sent[k], 0.0).sum(1) for k in range(3)]
        found = concat([reshape(row, (self.batch, self.count, 1)) for row in rows], -1)
        received = scatter_add_along_axis(self.chosen, found, self.splats, 1)
        return reshape(received, self.shape)

    # ------------------------------------------------------------- entries and pixels

    @cached_property
    def _numbers(self) -> Node:
        return self.lists[:, : self.count]

    @cached_property
    def chosen(self) -> Node:
        """The splat of each entry, for each feature; the first one where a number is no splat's."""
        known = where(self._is_known, self._numbers, 0)
        shape = (self.batch, self.count, FEATURES)
        return broadcast_to(reshape(known, (self.batch, self.count, 1)), shape)

    @cached_property
    def _is_known(self) -> Node:
        return (self._numbers >= 0).logical_and(self._numbers < self.splats)

    @cached_property
    def entries(self) -> Node:
        """The features of each entry."""
        result: Node = take_along_axis(self.features, self.chosen, 1)
        return result

    def column(self, k: int) -> Node:
        """A feature of all entries, beside all pixels."""
        return reshape(self.entries[:, :, k], (self.batch, 1, self.count))

    @cached_property
    def places(self) -> tuple[Node, Node]:
        """How far to the right and below the middle of the picture each pixel is, beside all entries."""
        grid, kind = self.grid, self.features.dtype
        number = self.graph.iota((grid.pixels,), 0, "i32")
        x, y = number % grid.width, number.floor_divide(grid.width)
        u = x.cast(kind) + (0.5 - grid.width / 2)
        v = y.cast(kind) + (0.5 - grid.height / 2)
        return reshape(u, (1, grid.pixels, 1)), reshape(v, (1, grid.pixels, 1))

    @cached_property
    def listed(self) -> Node:
        """Whether an entry is of the list of a pixel's tile."""
        grid = self.grid
        number = self.graph.iota((grid.pixels,), 0, "i32")
        column = (number % grid.width).floor_divide(grid.tile_size)
        row = number.floor_divide(grid.width * grid.tile_size)
        tile = row * grid.across + column
        ends = reshape(self.lists[:, self.count :], (self.batch, grid.tiles, 2)).gather(tile, 1)
        entry = reshape(self.graph.iota((self.count,), 0, "i32"), (1, 1, self.count))
        inside = (entry >= ends[:, :, :1]).logical_and(entry < ends[:, :, 1:])
        known = reshape(self._is_known, (self.batch, 1, self.count))
        result: Node = inside.logical_and(known)
        return result

    # ------------------------------------------------------------- what each entry takes of each pixel

    @cached_property
    def _rays(self) -> list[Node]:
        u, v = self.places
        return [
            u * self.column(3 + k) + v * self.column(6 + k) + self.column(9 + k) for k in range(3)
        ]

    @cached_property
    def depth(self) -> Node:
        """Where along its ray each pixel is nearest to the middle of each entry."""
        across = [self.column(k) * ray for k, ray in enumerate(self._rays)]
        along = [ray * ray for ray in self._rays]
        return -(across[0] + across[1] + across[2]) / (along[0] + along[1] + along[2])

    @cached_property
    def nearest(self) -> list[Node]:
        """That point, from the middle of the entry."""
        return [self.column(k) + self.depth * ray for k, ray in enumerate(self._rays)]

    @cached_property
    def _marked(self) -> tuple[Node, Node]:
        """What each entry takes, and where that counts."""
        x, y, z = self.nearest
        taken = self.column(12) * (-0.5 * (x * x + y * y + z * z)).exp()
        enough = (taken >= self.attrs["alpha_cutoff"]).logical_and(taken > 0.0)
        seen = enough.logical_and(self.depth > 0.0).logical_and(self.listed)
        left = cumprod(1.0 - where(seen, taken, 0.0), -1)
        live = shifted(left, 2, 1, 1.0) >= self.attrs["transmittance_threshold"]
        seen = seen.logical_and(live)
        steps = cumsum(seen.cast("i32"), -1, True)
        seen = seen.logical_and(steps < self.attrs["max_splat_steps"])
        return taken, seen

    @cached_property
    def hit(self) -> Node:
        """Where an entry takes something of a pixel."""
        return self._marked[1]

    @cached_property
    def alpha(self) -> Node:
        """What it takes."""
        return where(self.hit, self._marked[0], 0.0)

    @cached_property
    def passed(self) -> Node:
        """What is left behind each entry."""
        result: Node = cumprod(1.0 - self.alpha, -1)
        return result

    @cached_property
    def before(self) -> Node:
        """What is left before it."""
        return shifted(self.passed, 2, 1, 1.0)
