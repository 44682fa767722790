"""From a scene to what is known of each splat in a picture, and back: the camera, rotations, spherical harmonics, and the tiles that a splat can touch.

All of it is made of other ops, some numbers for each splat; ``tiles`` has the work for each pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...graph.cached import cached_property
from ...graph.dims import Dim
from ...graph.node import Node
from ..elementwise.arithmetic import where
from ..indexing.ordering import argsort
from ..shapes.primitives import concat, reshape
from .tiles import Grid, splat_lists

CAMERA = 15
"""What a picture is taken from: position (3), target (3), up (3), the angle of view from top to bottom, near, far, background (3)."""
META = 23
"""The camera, and the parameters of rendering after it."""

TINY = 1e-12
"""The least length that a direction is divided by."""

SLACK = 1e-3
"""By how much of its size a splat is taken to be larger where tiles are looked for: what rounding can make of it is far less."""
AWAY = 2e-6
"""The same by its distance from the camera, in its own sizes: what the rounding of rays can make of it."""
MARGIN = 0.25
"""Pixels around that."""
STEEP = 0.01
"""What is nearer than this to the plane of the camera, by the square of its distance, may be anywhere in the picture."""


def unit(x: Node) -> Node:
    """Each row over its length."""
    return x / _length(x)


def _length(x: Node) -> Node:
    return (x * x).sum(-1, keepdims=True).sqrt().maximum(TINY)


def from_unit(g: Node, x: Node) -> Node:
    """What rows receive from the cotangent of ``unit``."""
    length = _length(x)
    along = x / length
    return (g - along * (along * g).sum(-1, keepdims=True)) / length


def _cross(a: Node, b: Node) -> Node:
    """The cross product of two vectors of 3."""
    parts = [a[i] * b[j] - a[j] * b[i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return concat([reshape(part, (1,)) for part in parts], 0)


class Camera:
    """Where the picture is taken from; nothing of it receives a gradient.

    Attributes:
        position: of the camera.
        axes: [3, 3], what a ray gains by a pixel to the right, by one downwards, and the ray through the middle; in the units of the scene.
    """

    def __init__(self, meta: Node, grid: Grid) -> None:
        meta = meta.stop_gradient()
        self.position = meta[0:3]
        forward = unit(meta[3:6] - self.position)
        right = unit(_cross(forward, meta[6:9]))
        self.pixel = (meta[9] * (3.141592653589793 / 360)).tan() * (2 / grid.height)
        rows = [right * self.pixel, _cross(forward, right) * self.pixel, forward]
        self.axes = concat([reshape(row, (1, 3)) for row in rows], 0)
        self.near, self.far = meta[10], meta[11]
        self.background = meta[12:CAMERA]

    def rays(self, grid: Grid) -> Node:
        """The direction of each pixel, [pixels, 3]."""
        number = self.axes.graph.iota((grid.pixels,), 0, "i32")
        kind = self.axes.dtype
        x = (number % grid.width).cast(kind) + (0.5 - grid.width / 2)
        y = number.floor_divide(grid.width).cast(kind) + (0.5 - grid.height / 2)
        places = concat([reshape(part, (grid.pixels, 1)) for part in (x, y, x * 0.0 + 1.0)], 1)
        return unit((reshape(places, (grid.pixels, 3, 1)) * self.axes).sum(1))


@dataclass(frozen=True)
class Scene:
    """Splats as users give them: flat tensors.

    Attributes:
        radius_scale: what every size is multiplied by.
    """

    positions: Node
    scales: Node
    rotations: Node
    opacities: Node
    colors: Node
    sh_coeffs: Node
    radius_scale: float

    @property
    def count(self) -> Dim:
        """How many splats there are."""
        size: Dim = self.opacities.shape[0]
        return size

    @property
    def terms(self) -> int:
        """Coefficients of each colour."""
        return harmonics_of(self.count, self.sh_coeffs.shape[0])

    def rows(self, x: Node, width: int) -> Node:
        """A flat tensor with a row for each splat."""
        return reshape(x, (self.count, width))

    # ------------------------------------------------------------- shape and place

    @cached_property
    def quaternions(self) -> Node:
        """Rotations of length 1, as w, x, y, z."""
        return unit(self.rows(self.rotations, 4))

    @cached_property
    def inverse_sizes(self) -> Node:
        """1 / sigma along the axes of each splat."""
        return (-self.rows(self.scales, 3)).exp() / self.radius_scale

    def away(self, camera: Camera) -> Node:
        """From each splat to the camera."""
        return camera.position - self.rows(self.positions, 3)

    @cached_property
    def coefficients(self) -> Node:
        """The harmonics of each colour, [N, C, 3]."""
        return reshape(self.sh_coeffs, (self.count, self.terms, 3))

    @cached_property
    def is_harmonic(self) -> Node:
        """Whether colours come from harmonics: those of any splat begin with something that is not 0."""
        return (self.coefficients[:, 0] != 0.0).any()

    def shown(self, camera: Camera) -> Node:
        """The colour of each splat as the camera sees it."""
        plain = self.rows(self.colors, 3)
        if not self.terms:
            return plain
        basis = harmonics(unit(-self.away(camera)), self.terms)
        total = (reshape(basis, (self.count, self.terms, 1)) * self.coefficients).sum(1)
        return where(self.is_harmonic, total + 0.5, plain)

    @cached_property
    def covers(self) -> Node:
        """Opacities from 0 to 1."""
        return self.opacities.maximum(0.0).minimum(1.0)


def harmonics_of(splats: Dim, size: Dim) -> int:
    """Coefficients of each colour of a splat, by how many numbers there are in all; -1 where that cannot be."""
    if isinstance(size, int) and size == 0:
        return 0
    found = (terms for terms in (1, 4, 9, 16) if splats * (terms * 3) == size)
    return next(found, -1)


# --------------------------------------------------------------------------- rotations


def turned(quaternions: Node) -> Node:
    """The rotations of unit quaternions as matrices from a splat to the scene, transposed: [N, 3, 3], a row for each axis of the splat."""
    w, x, y, z = (quaternions[:, k] for k in range(4))
    columns = [
        [1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y)],
        [2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x)],
        [2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)],
    ]
    return _stacked([entry for row in columns for entry in row], (3, 3))


def from_turned(g: Node, quaternions: Node) -> Node:
    """What quaternions receive from the cotangent of ``turned``."""
    w, x, y, z = (quaternions[:, k] for k in range(4))
    d = [[g[:, i, j] for j in range(3)] for i in range(3)]
    twist = [d[1][2] - d[2][1], d[2][0] - d[0][2], d[0][1] - d[1][0]]
    pairs = [d[1][2] + d[2][1], d[2][0] + d[0][2], d[0][1] + d[1][0]]
    parts = [
        x * twist[0] + y * twist[1] + z * twist[2],
        w * twist[0] + y * pairs[2] + z * pairs[1] - 2.0 * x * (d[1][1] + d[2][2]),
        w * twist[1] + x * pairs[2] + z * pairs[0] - 2.0 * y * (d[0][0] + d[2][2]),
        w * twist[2] + x * pairs[1] + y * pairs[0] - 2.0 * z * (d[0][0] + d[1][1]),
    ]
    return _stacked([2.0 * part for part in parts], (4,))


def _stacked(columns: Sequence[Node], shape: tuple[int, ...]) -> Node:
    """Vectors as the elements of a tensor for each splat."""
    (count,) = columns[0].shape
    joined = concat([reshape(column, (count, 1)) for column in columns], 1)
    return reshape(joined, (count, *shape))


# --------------------------------------------------------------------------- spherical harmonics

BAND_0 = 0.2820947917738781
BAND_1 = 0.48860251190292
BAND_2 = (1.092548430592079, 0.3153915652525201, 0.5462742152960395)
BAND_3 = (
    0.5900435899266435,
    2.890611442640554,
    0.4570457994644658,
    0.3731763325901154,
    1.445305721320277,
)
"""Factors of the real harmonics, with the sign of Condon and Shortley in those that go with x and y an odd number of times."""


def harmonics(directions: Node, terms: int) -> Node:
    """The first 1, 4, 9 or 16 real spherical harmonics of unit vectors [N, 3]."""
    x, y, z = (directions[:, k] for k in range(3))
    found = [x * 0.0 + BAND_0]
    if terms > 1:
        found += [-BAND_1 * y, BAND_1 * z, -BAND_1 * x]
    if terms > 4:
        a, b, c = BAND_2
        found += [a * x * y, -a * y * z, b * (3.0 * z * z - 1.0), -a * x * z]
        found.append(c * (x * x - y * y))
    if terms > 9:
        a, b, c, d, e = BAND_3
        high = 5.0 * z * z - 1.0
        found += [-a * y * (3.0 * x * x - y * y), b * x * y * z, -c * y * high]
        found += [d * z * (5.0 * z * z - 3.0), -c * x * high, e * z * (x * x - y * y)]
        found.append(-a * x * (x * x - 3.0 * y * y))
    return _stacked(found, (terms,))


def from_harmonics(g: Node, directions: Node, terms: int) -> Node:
    """What unit vectors receive from the cotangent [N, terms] of ``harmonics``."""
    x, y, z = (directions[:, k] for k in range(3))
    d = [g[:, k] for k in range(terms)]
    sent = [x * 0.0, x * 0.0, x * 0.0]

    def add(*slopes: Node | float) -> None:
        for k, slope in enumerate(slopes):
            sent[k] = sent[k] + slope

    if terms > 1:
        add(-BAND_1 * d[3], -BAND_1 * d[1], BAND_1 * d[2])
    if terms > 4:
        a, b, c = BAND_2
        add(a * (y * d[4] - z * d[7]), a * (x * d[4] - z * d[5]), -a * (y * d[5] + x * d[7]))
        add(2.0 * c * x * d[8], -2.0 * c * y * d[8], 6.0 * b * z * d[6])
    if terms > 9:
        a, b, c, e, f = BAND_3
        high, apart = 5.0 * z * z - 1.0, x * x - y * y
        add(-6.0 * a * x * y * d[9], -3.0 * a * apart * d[9], 0.0)
        add(b * y * z * d[10], b * x * z * d[10], b * x * y * d[10])
        add(0.0, -c * high * d[11], -10.0 * c * y * z * d[11])
        add(-c * high * d[13], 0.0, -10.0 * c * x * z * d[13] + e * (15.0 * z * z - 3.0) * d[12])
        add(2.0 * f * x * z * d[14], -2.0 * f * y * z * d[14], f * apart * d[14])
        add(-3.0 * a * apart * d[15], 6.0 * a * x * y * d[15], 0.0)
    return _stacked(sent, (3,))


# --------------------------------------------------------------------------- splats before the camera


@dataclass(frozen=True)
class Splats:
    """What is known of splats before a camera.

    Attributes:
        matrices: [N, 3, 3], from the scene to the splat, where it is exp(-length**2 / 2).
        local: [N, 3], the camera in the splat.
        covers: [N], opacities.
        colours: [N, 3].
    """

    matrices: Node
    local: Node
    covers: Node
    colours: Node

    def features(self, camera: Camera) -> Node:
        """The features of ``splat_blend``, [N, 16]."""
        count = self.covers.shape[0]
        axes = reshape(camera.axes, (1, 3, 1, 3))
        rays = (reshape(self.matrices, (count, 1, 3, 3)) * axes).sum(-1)
        parts = [self.local, reshape(rays, (count, 9)), reshape(self.covers, (count, 1))]
        return concat([*parts, self.colours], 1)


def matrices_of(quaternions: Node, inverse_sizes: Node) -> Node:
    """From the scene to each splat, where it is exp(-length**2 / 2)."""
    return turned(quaternions) * reshape(inverse_sizes, (*inverse_sizes.shape, 1))


def local_of(matrices: Node, away: Node) -> Node:
    """The camera in each splat."""
    return (matrices * reshape(away, (away.shape[0], 1, 3))).sum(-1)


class Sight:
    """Which splats can be seen, and in which tiles: true bounds of where a splat takes as much as the cutoff.

    A splat does so within an ellipsoid of r sizes, r**2 = 2 log(opacity / cutoff). Where that is before the camera, the planes through the
    camera that touch it and hold a column or a row of the picture are the roots of a quadratic equation. Bounds are a little wider than
    that, so that rounding never cuts anything off.
    """

    def __init__(
        self, scene: Scene, camera: Camera, local: Node, cutoff: float, grid: Grid
    ) -> None:
        self.grid = grid
        away = scene.away(camera)
        self.squares = (away * away).sum(-1)
        covers = scene.covers
        if cutoff > 0:
            radius = (2.0 * (covers / cutoff).log()).maximum(0.0).sqrt() * (1 + SLACK) + SLACK
            self.radius = radius + (local * local).sum(-1).sqrt() * AWAY
            enough = covers >= cutoff
        else:
            self.radius = covers * 0.0 + 3e38
            enough = covers > 0.0
        # Axes of the camera and of a splat: how far the splat reaches along the former.
        sizes = 1.0 / scene.inverse_sizes
        turns = turned(scene.quaternions)
        pixel = reshape(camera.pixel, (1, 1))
        reach = []
        middle = []
        for k in range(3):
            axis = camera.axes[k] / (pixel[0] * pixel[0] if k < 2 else 1.0)
            reach.append(sizes * (turns * axis).sum(-1))
            middle.append(-(away * axis).sum(-1))
        self.depth = middle[2]
        self.ends = [self._ends(middle, reach, k) for k in range(2)]
        seen = enough.logical_and(self.depth > camera.near).logical_and(self.depth < camera.far)
        for low, high in self.ends:
            seen = seen.logical_and(low < high)
        self.seen = seen.stop_gradient()

    def _ends(self, middle: Sequence[Node], reach: Sequence[Node], k: int) -> tuple[Node, Node]:
        """The first tile that each splat can touch, and the first that it cannot any more: of columns (0) or rows (1)."""
        grid = self.grid
        size, tiles = (grid.width, grid.across) if k == 0 else (grid.height, grid.down)
        z, x, s, t = middle[2], middle[k], reach[2], reach[k]
        squared = self.radius * self.radius
        steep = z * z - squared * (s * s).sum(-1)
        mean = x * z - squared * (s * t).sum(-1)
        apart = reshape(z, (z.shape[0], 1)) * t - reshape(x, (z.shape[0], 1)) * s
        common = (s * s).sum(-1) * (t * t).sum(-1) - (s * t).sum(-1) * (s * t).sum(-1)
        root = (apart * apart).sum(-1) - squared * common.maximum(0.0)
        half = self.radius * root.maximum(0.0).sqrt()
        low = (mean - half) / steep + (size / 2 - 0.5 - MARGIN)
        high = (mean + half) / steep + (size / 2 - 0.5 + MARGIN)
        before = (z > 0.0).logical_and(steep > STEEP * (z * z))
        behind = z < -1.02 * self.radius * (s * s).sum(-1).sqrt()
        first = where(before, (low / grid.tile_size).floor(), where(behind, float(tiles), 0.0))
        last = where(before, (high / grid.tile_size).floor() + 1.0, float(tiles))
        return first.maximum(0.0).minimum(float(tiles)), last.maximum(0.0).minimum(float(tiles))

    def lists(self, entries: int) -> Node:
        """The splats of each tile, nearest first."""
        (left, right), (top, bottom) = self.ends
        nothing = self.depth * 0.0
        columns = [where(self.seen, end, nothing) for end in (left, top, right, bottom)]
        bounds = _stacked(columns, (4,)).stop_gradient().cast("i32")
        order: Node = argsort(self.squares.stop_gradient(), 0)
        grid = self.grid
        result: Node = splat_lists(bounds.gather(order, 0), order, grid.across, grid.down, entries)
        return result
