"""Gaussian splats: pictures of scenes that are made of soft ellipsoids, and their gradients.

A picture is defined without tiles. For each pixel all splats are met in the order of their distance from the camera: each takes
alpha = opacity * exp(-d**2 / 2) of what is left, d being how near the pixel's ray comes to the middle of the splat in its own sizes. ``scene`` has the arithmetic of
splats, ``tiles`` that of pixels. The gradient is exact; which splats a pixel sees, and in which order, stays as it is, and the camera receives none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Unpack

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Float
from ...graph.data import Array
from ...graph.dims import Dim, format_shape
from ...graph.errors import ArgumentError, DTypeError, ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, builder, composite
from ...graph.types import TensorType
from ..elementwise.arithmetic import where
from ..samples import Sample, Spec, sample, spec
from ..shapes.primitives import concat, pad, reshape
from .records import (
    GaussianSplatBackwardParams,
    GaussianSplatInputs,
    GaussianSplatRenderParams,
    written_out,
)
from .scene import META, Camera, Splats, harmonics_of, matrices_of
from .tiles import FAMILY, MOST_ENTRIES, Grid, check_options, splat_blend
from .view import (
    TENSORS,
    BackwardCall,
    RenderAttrs,
    SceneCall,
    blending,
    received_by,
    shown_as,
    to_scene,
    view_of,
)

_RECORDS = (GaussianSplatInputs, GaussianSplatRenderParams, GaussianSplatBackwardParams)
KEPT = 11
"""Numbers at the end of a packed buffer that say how it was made."""


# --------------------------------------------------------------------------- what calls must be


def _check_scene(  # many parameters: they are the tensors of a scene
    positions: TensorType,
    scales: TensorType,
    rotations: TensorType,
    opacities: TensorType,
    colors: TensorType,
    sh_coeffs: TensorType,
    meta: TensorType,
) -> Dim:
    """Refuse tensors that are not of one scene; how many splats it has."""
    if opacities.rank != 1:
        raise ShapeError(f"opacities must be flat, not {format_shape(opacities.shape)}")
    (count,) = opacities.shape
    sizes = (
        ("positions", positions, 3 * count),
        ("scales", scales, 3 * count),
        ("rotations", rotations, 4 * count),
        ("colors", colors, 3 * count),
        ("meta", meta, META),
    )
    for name, found, size in sizes:
        if found.shape != (size,):
            raise ShapeError(
                f"{name} must be {format_shape((size,))} for {count} splats, not {format_shape(found.shape)}",
                hint="flatten() it" if found.rank > 1 else None,
            )
    if sh_coeffs.rank != 1 or harmonics_of(count, sh_coeffs.shape[0]) < 0:
        raise ShapeError(
            f"sh_coeffs must be flat with 0, 1, 4, 9 or 16 coefficients of 3 colours for each of {count} splats, not {format_shape(sh_coeffs.shape)}"
        )
    return count


def _check_params(params: GaussianSplatRenderParams) -> Grid:
    """Refuse parameters that mean nothing."""
    grid = Grid(params.width, params.height, params.tile_size)
    grid.check()
    check_options(params.alpha_cutoff, params.max_splat_steps, params.transmittance_threshold)
    if not 0 < params.radius_scale < math.inf:
        raise ArgumentError(f"radius_scale must be above 0, not {params.radius_scale}")
    if not 1 <= params.max_list_entries <= MOST_ENTRIES:
        raise ArgumentError(
            f"max_list_entries must be in 1..{MOST_ENTRIES}, not {params.max_list_entries}"
        )
    return grid


Size = Callable[[Dim, Dim, Grid, int], Dim]
"""The size of a result, by splats, harmonics, picture and room for entries."""


def _of_scene(doc: str, size: Size, *, packs: bool = False) -> Callable[..., TensorType]:
    """The shape rule of an op of a scene alone; one that ``packs`` holds numbers that 16 bits cannot."""

    def infer(  # many parameters: the tensors of a scene, and the user's options
        positions: Float,
        scales: Float,
        rotations: Float,
        opacities: Float,
        colors: Float,
        sh_coeffs: Float,
        meta: Float,
        width: int = 64,
        height: int = 64,
        tile_size: int = 16,
        radius_scale: float = 1.6,
        alpha_cutoff: float = 1 / 255,
        max_splat_steps: int = 32,
        transmittance_threshold: float = 0.01,
        max_list_entries: int = 576,
    ) -> TensorType:
        count = _check_scene(positions, scales, rotations, opacities, colors, sh_coeffs, meta)
        params = GaussianSplatRenderParams(
            width,
            height,
            tile_size,
            radius_scale,
            alpha_cutoff,
            max_splat_steps,
            transmittance_threshold,
            max_list_entries,
        )
        shape = (size(count, sh_coeffs.shape[0], _check_params(params), max_list_entries),)
        wide = dtypes.f32 if packs and positions.dtype.is_half else positions.dtype
        return TensorType(shape, wide)

    infer.__doc__ = doc
    return infer


def _by_records(op: Op) -> None:
    """Let an op be called by records: ``g.gaussian_splat_render(inputs, params)``."""

    @op.spelling
    def _(
        graph: Graph, *args: object, **kwargs: object
    ) -> tuple[Sequence[object], dict[str, object]]:
        if any(isinstance(value, _RECORDS) for value in (*args, *kwargs.values())):
            return written_out(["inputs", "d_loss_rgba", "params"], args, kwargs)
        return args, kwargs


# --------------------------------------------------------------------------- samples


def _meta(*camera: float) -> Array:
    """A camera at (0.3, -0.2, 3) that looks at the origin, or another."""
    found = np.zeros(META, np.float32)
    found[:12] = camera or (0.3, -0.2, 3, 0, 0, 0, 0, 1, 0, 60, 0.1, 100)
    found[12:15] = 0.1, 0.2, 0.3
    return found


def _splats(count: int, terms: int = 0) -> list[Spec]:
    """A scene of splats around the origin, by its tensors."""
    return [
        spec(3 * count, low=-0.7, high=0.7, distinct=True),
        spec(3 * count, low=-2.2, high=-1.4),
        spec(4 * count, low=0.2, high=0.9),
        spec(count, low=0.4, high=0.8),
        spec(3 * count, low=0.1, high=0.9),
        spec(3 * count * terms, low=0.05, high=0.4),
    ]


_SMALL: dict[str, int] = {"width": 6, "height": 5, "tile_size": 4, "max_list_entries": 60}
_BESIDE = _meta(2, 1, 1, 0.2, 0, 0, 0, 0, 1, 70, 0.1, 2.6)
_SCENES = [
    sample(*_splats(4), _meta(), **_SMALL),
    sample(*_splats(2, 16), _BESIDE, **_SMALL, radius_scale=1.0),
    sample(*_splats(0), _meta(), 3, 2, 2),
]


def _with_cotangents(scene: Sample, pixels: int, **attrs: float) -> Sample:
    tensors, options = scene.args[:7], scene.args[7:]
    return sample(*tensors, spec(4 * pixels), *options, **scene.kwargs, **attrs)


# --------------------------------------------------------------------------- from a scene to lists of splats


# --------------------------------------------------------------------------- pictures

gaussian_splat_render = composite(
    family=FAMILY, name="gaussian_splat_render", samples=_SCENES, facts=Facts(weight=100.0)
)(
    _of_scene(
        """A picture of a scene of soft ellipsoids: [height * width * 4], red, green, blue and opacity of each pixel, from above.

    The tensors are flat: positions [3 N], logarithms of sizes [3 N], rotations [4 N] (quaternions w, x, y, z), opacities [N], colors [3 N], sh_coeffs [3 N C] with C = 0, 1, 4, 9 or 16, and
    ``meta`` of ``gaussian_splat_render_meta``, from which camera and background are taken. ``GaussianSplatInputs`` and ``GaussianSplatRenderParams`` stand for tensors and options.
    Splats are met in the order of their distance; each takes alpha = opacity * exp(-d**2 / 2) of what is left of a pixel, d being the least distance of
    the pixel's ray from it in its own sizes, if that is before the camera and at least ``alpha_cutoff``. Colours are ``colors``, or 0.5 more than the harmonics of the direction where any of these begins with
    another number than 0. They are shown to the power of 2.2. Tiles only make it fast; more pairs of a tile and a splat that it touches than ``max_list_entries`` are an error when it runs.
    """,
        lambda count, harmonics, grid, entries: 4 * grid.pixels,
    )
)
_by_records(gaussian_splat_render)


@gaussian_splat_render.expand
def _(**call: Unpack[SceneCall]) -> Node:
    view = view_of(call)
    return shown_as(view.image, view.camera.background)


@gaussian_splat_render.vjp
def _(g: Node, out: Node, **call: Unpack[SceneCall]) -> dict[str, Callable[[], Node]]:
    packed: list[Node] = []

    def part(name: str) -> Callable[[], Node]:
        def cut() -> Node:
            if not packed:
                whole = {"d_loss_rgba": g, "loss_grad_clip": math.inf, "sh_band": 3}
                packed.append(gaussian_splat_render_backward(**call, **whole))
            sizes = {key: x.shape[0] for key, x in call.items() if isinstance(x, Node)}
            first = sum(sizes[other] for other in TENSORS[: TENSORS.index(name)])
            found: Node = packed[0][first : first + sizes[name]]
            return found

        return cut

    return {name: part(name) for name in TENSORS}


# --------------------------------------------------------------------------- in two steps


def _packed_size(count: Dim, grid: Grid, entries: int) -> Dim:
    """Numbers of a packed buffer."""
    return 15 * count + entries + 2 * grid.tiles + 3 * grid.pixels + KEPT


gaussian_splat_prepare = composite(family=FAMILY, name="gaussian_splat_prepare", samples=_SCENES)(
    _of_scene(
        """What ``gaussian_splat_rasterize`` makes a picture of, in one flat tensor.

    With n splats (one that is not seen, where there are none) it is colour and opacity [4 n], whether a splat can be seen [n], the camera in each splat [3 n], 1 / sigma [3 n], unit quaternions [4 n], the
    splats of all tiles one after another [max_list_entries], where the list of each tile begins and ends [2 * tiles], the directions of pixels [3 * width * height], and width, height, tile size,
    tiles of a row, cutoff, threshold, background (3), steps and 0. 16-bit floats are packed as f32.
    """,
        lambda count, harmonics, grid, entries: _packed_size(
            1 if count == 0 else count, grid, entries
        ),
        packs=True,
    )
)
_by_records(gaussian_splat_prepare)


@gaussian_splat_prepare.expand
def _(**call: Unpack[SceneCall]) -> Node:
    view = view_of(call)
    splats, scene, camera, attrs = view.splats, view.scene, view.camera, view.attrs
    kind, count = splats.local.dtype, scene.count
    cover = reshape(splats.covers, (count, 1))
    columns = [
        concat([splats.colours, cover], 1),
        reshape(view.sight.seen.cast(kind), (count, 1)),
        splats.local,
        scene.inverse_sizes,
        scene.quaternions,
    ]
    parts = [reshape(column, (column.shape[0] * column.shape[1],)) for column in columns]
    if count == 0:
        widths = [column.shape[1] for column in columns]
        parts = [pad(part, ((0, width),)) for part, width in zip(parts, widths, strict=True)]
    rays = camera.rays(view.grid)
    own = (view.grid.width, view.grid.height, view.grid.tile_size, view.grid.across)
    said = [*own, attrs["alpha_cutoff"], attrs["transmittance_threshold"]]
    literal = splats.local.graph.literal
    parts += [view.lists.cast(kind), reshape(rays, (3 * view.grid.pixels,))]
    parts += [literal(np.array(said), kind), camera.background]
    parts.append(literal(np.array([attrs["max_splat_steps"], 0.0]), kind))
    return concat(parts, 0)


def _packed(picture: RenderAttrs) -> Array:
    """A buffer of two splats, one before the other."""
    grid = Grid(picture["width"], picture["height"], picture["tile_size"])
    entries = picture["max_list_entries"]
    found = np.zeros(_packed_size(2, grid, entries), np.float32)
    found[:8] = 0.9, 0.5, 0.1, 0.7, 0.2, 0.4, 0.8, 0.6
    found[8:10] = 1
    found[10:16] = 0.8, -0.3, 5.4, 0.5, 0.3, 6.0
    found[16:22] = 2.0, 2.5, 2.2, 2.1, 1.8, 2.4
    found[22:30] = 0.995, 0.1, 0, 0, 0.98, 0, 0, 0.199
    lists = np.full((grid.tiles, 2), (1, 0))
    found[30 : 30 + 2 * grid.tiles] = lists.reshape(-1)
    ends = 2 * np.arange(grid.tiles)
    found[30 + entries :][: 2 * grid.tiles] = np.stack([ends, ends + 2], 1).reshape(-1)
    return found


_OF_PACKED: RenderAttrs = {
    "width": 6,
    "height": 5,
    "tile_size": 4,
    "radius_scale": 1.6,
    "alpha_cutoff": 0.01,
    "max_splat_steps": 3,
    "transmittance_threshold": 0.1,
    "max_list_entries": 60,
}


@composite(family=FAMILY, samples=[sample(_packed(_OF_PACKED), _meta(), **_OF_PACKED)])
def gaussian_splat_rasterize(  # many parameters: they are the user's options
    prep: Float,
    meta: Float,
    width: int = 64,
    height: int = 64,
    tile_size: int = 16,
    radius_scale: float = 1.6,
    alpha_cutoff: float = 1 / 255,
    max_splat_steps: int = 32,
    transmittance_threshold: float = 0.01,
    max_list_entries: int = 576,
) -> TensorType:
    """The picture of what ``gaussian_splat_prepare`` packed, with the same options; bit for bit that of ``gaussian_splat_render``.

    Camera and background are taken from ``meta``; the directions of pixels and the options in ``prep`` are for who reads it.
    """
    params = GaussianSplatRenderParams(
        width,
        height,
        tile_size,
        radius_scale,
        alpha_cutoff,
        max_splat_steps,
        transmittance_threshold,
        max_list_entries,
    )
    grid = _check_params(params)
    if prep.dtype.is_half:
        raise DTypeError(f"a packed scene is f32 or f64, not {prep.dtype}")
    if meta.shape != (META,):
        raise ShapeError(f"meta must be {format_shape((META,))}, not {format_shape(meta.shape)}")
    rest = _packed_size(0, grid, max_list_entries)
    if prep.rank != 1 or not isinstance(prep.shape[0], int):
        raise ShapeError("prep must be flat, and its size known")
    if prep.shape[0] <= rest or (prep.shape[0] - rest) % 15:
        raise ShapeError(
            f"prep must have 15 numbers a splat and {rest} more, not {prep.shape[0]} in all",
            hint="prepare and rasterize take the same options",
        )
    return prep.with_shape((4 * grid.pixels,))


_by_records(gaussian_splat_rasterize)


@gaussian_splat_rasterize.expand
def _(prep: Node, meta: Node, **attrs: Unpack[RenderAttrs]) -> Node:
    grid = Grid(attrs["width"], attrs["height"], attrs["tile_size"])
    entries = attrs["max_list_entries"]
    count = (prep.shape[0] - _packed_size(0, grid, entries)) // 15
    first: Dim = 0

    def cut(size: Dim) -> Node:
        nonlocal first
        first += size
        return prep[first - size : first]

    shown = reshape(cut(4 * count), (count, 4))
    seen = cut(count)
    local, sizes = (reshape(cut(3 * count), (count, 3)) for _ in range(2))
    matrices = matrices_of(reshape(cut(4 * count), (count, 4)), sizes)
    lists = cut(entries + 2 * grid.tiles).stop_gradient().cast("i32")
    covers = where(seen > 0.0, shown[:, 3], 0.0)
    camera = Camera(meta, grid)
    features = Splats(matrices, local, covers, shown[:, :3]).features(camera)
    return shown_as(splat_blend(features, lists, **blending(attrs)), camera.background)


@builder(family=FAMILY)
def gaussian_splat_render_decomposed(
    graph: Graph, inputs: GaussianSplatInputs, params: GaussianSplatRenderParams | None = None
) -> Node:
    """``gaussian_splat_rasterize`` of ``gaussian_splat_prepare``: bit for bit the picture of ``gaussian_splat_render``."""
    if not isinstance(inputs, GaussianSplatInputs):
        raise ArgumentError(f"inputs must be GaussianSplatInputs, got {type(inputs).__name__}")
    params = GaussianSplatRenderParams() if params is None else params
    prepared = graph.gaussian_splat_prepare(inputs, params)
    result: Node = graph.gaussian_splat_rasterize(prepared, inputs.meta, params)
    return result


# --------------------------------------------------------------------------- the gradient


@composite(
    family=FAMILY,
    facts=Facts(weight=100.0),
    samples=[
        _with_cotangents(_SCENES[1], 30, loss_grad_clip=1.5, sh_band=2),
        _with_cotangents(_SCENES[2], 6),
    ],
)
def gaussian_splat_render_backward(  # many parameters: the tensors of a scene, and the user's options
    positions: Float,
    scales: Float,
    rotations: Float,
    opacities: Float,
    colors: Float,
    sh_coeffs: Float,
    meta: Float,
    d_loss_rgba: Float,
    width: int = 64,
    height: int = 64,
    tile_size: int = 16,
    radius_scale: float = 1.6,
    alpha_cutoff: float = 1 / 255,
    max_splat_steps: int = 32,
    transmittance_threshold: float = 0.01,
    max_list_entries: int = 576,
    loss_grad_clip: float = 1.0,
    sh_band: int = 0,
    max_anisotropy: float = 10.0,
) -> TensorType:
    """What the tensors of a scene receive from the cotangent ``d_loss_rgba`` of its picture, cut off at ``loss_grad_clip``.

    One flat tensor: positions, scales, rotations, opacities, colors and sh_coeffs one after another; where there are no harmonics, 3 N zeros stand for them. Bands of harmonics
    above ``sh_band`` receive 0. ``max_anisotropy`` is kept for callers of other systems. ``GaussianSplatBackwardParams`` stands for all options.
    """
    picture = gaussian_splat_render.infer(
        positions,
        scales,
        rotations,
        opacities,
        colors,
        sh_coeffs,
        meta,
        width,
        height,
        tile_size,
        radius_scale,
        alpha_cutoff,
        max_splat_steps,
        transmittance_threshold,
        max_list_entries,
    )
    if d_loss_rgba.shape != picture.shape:
        raise ShapeError(
            f"d_loss_rgba must be {format_shape(picture.shape)} as the picture, not {format_shape(d_loss_rgba.shape)}"
        )
    if not loss_grad_clip > 0:
        raise ArgumentError(f"loss_grad_clip must be above 0, not {loss_grad_clip}")
    if not 0 <= sh_band <= 3:
        raise ArgumentError(f"sh_band must be in 0..3, not {sh_band}")
    (count,), (terms,) = opacities.shape, sh_coeffs.shape
    return positions.with_shape((14 * count + (3 * count if terms == 0 else terms),))


_by_records(gaussian_splat_render_backward)


@gaussian_splat_render_backward.expand
def _(**call: Unpack[BackwardCall]) -> Node:
    view, sent, clip = view_of(call), call["d_loss_rgba"], call["loss_grad_clip"]
    if math.isfinite(clip):
        sent = sent.maximum(-clip).minimum(clip)
    received = received_by(view, reshape(sent, (view.grid.pixels, 4)))
    parts = to_scene(view, received, call["sh_band"])
    return concat([reshape(part, (math.prod(part.shape),)) for part in parts], 0)


# --------------------------------------------------------------------------- cameras


def _three(name: str, values: Sequence[float]) -> list[float]:
    """Three finite numbers."""
    try:
        found = [float(value) for value in values]
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} must be three numbers, not {values!r}") from None
    if len(found) != 3 or not all(map(math.isfinite, found)):
        raise ArgumentError(f"{name} must be three finite numbers, not {values!r}")
    return found


@builder(family=FAMILY)
def gaussian_splat_render_meta(  # many parameters: they say what a camera is
    graph: Graph,
    position: Sequence[float],
    target: Sequence[float],
    up: Sequence[float],
    fov_y_degrees: float,
    near: float,
    far: float,
    background: Sequence[float],
    params: GaussianSplatRenderParams | None = None,
) -> Node:
    """A camera at ``position`` that looks at ``target``, and the colour behind the scene, as a constant of 23 numbers.

    ``up`` is a direction that is upwards in the picture, ``fov_y_degrees`` the angle from its top to its bottom. Splats whose middles are not between ``near`` and ``far``
    along the middle ray are not seen. The parameters that follow are for who reads it: ops take theirs as arguments.
    """
    if params is None:
        params = GaussianSplatRenderParams()
    places = {"position": position, "target": target, "up": up, "background": background}
    found = {name: np.array(_three(name, values)) for name, values in places.items()}
    ahead = found["target"] - found["position"]
    if not np.linalg.norm(np.cross(ahead, found["up"])) > 1e-6 * np.linalg.norm(ahead):
        raise ArgumentError(
            "up must not be the direction from position to target, and neither must be 0"
        )
    if not 0 < fov_y_degrees < 180:
        raise ArgumentError(f"fov_y_degrees must be above 0 and below 180, not {fov_y_degrees}")
    if not near < far:
        raise ArgumentError(f"near must be below far, not {near} and {far}")
    camera = [*found["position"], *found["target"], *found["up"], fov_y_degrees, near, far]
    numbers = [*camera, *found["background"], *params.numbers]
    result: Node = graph.literal(np.array(numbers, np.float32), dtypes.f32)
    return result
