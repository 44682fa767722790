"""What calls of splat ops are made of: the tensors of a scene, and the parameters of rendering and of its gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields
from typing import TypeAlias

from ...graph.errors import ArgumentError

Tensor: TypeAlias = object
"""A node or an array: whatever a call takes as an operand."""


@dataclass(frozen=True)
class GaussianSplatInputs:
    """The flat f32 tensors of a scene of N splats, and what it is seen from.

    Attributes:
        positions: [3 N].
        scales: [3 N], the logarithms of sizes along the axes of each splat.
        rotations: [4 N], quaternions w, x, y, z of any length, from the axes of a splat to those of the scene.
        opacities: [N], from 0 to 1.
        colors: [3 N].
        sh_coeffs: [3 N C], spherical harmonics of each colour, C = 0, 1, 4, 9 or 16.
        meta: [23], of ``gaussian_splat_render_meta``.

    >>> import darner
    >>> g = darner.Graph()
    >>> sizes = {"positions": 6, "scales": 6, "rotations": 8, "opacities": 2, "colors": 6, "sh_coeffs": 0}
    >>> leaves = {name: g.input(name, (size,)) for name, size in sizes.items()}
    >>> params = darner.GaussianSplatRenderParams(width=8, height=4)
    >>> meta = g.gaussian_splat_render_meta([0, 0, 3], [0, 0, 0], [0, 1, 0], 60, 0.1, 100, [0, 0, 0], params)
    >>> g.gaussian_splat_render(darner.GaussianSplatInputs(**leaves, meta=meta), params).shape
    (128,)
    """

    positions: Tensor
    scales: Tensor
    rotations: Tensor
    opacities: Tensor
    colors: Tensor
    sh_coeffs: Tensor
    meta: Tensor


@dataclass(frozen=True)
class GaussianSplatRenderParams:
    """How splats are rendered.

    Attributes:
        width: pixels of a row.
        height: rows of pixels.
        tile_size: pixels of a tile's side.
        radius_scale: what every size is multiplied by.
        alpha_cutoff: what a splat has to take of a pixel at least, to count.
        max_splat_steps: after so many splats a pixel is done.
        transmittance_threshold: what has to be left of a pixel for it to go on.
        max_list_entries: room for pairs of a tile and a splat that it touches.
    """

    width: int = 64
    height: int = 64
    tile_size: int = 16
    radius_scale: float = 1.6
    alpha_cutoff: float = 1 / 255
    max_splat_steps: int = 32
    transmittance_threshold: float = 0.01
    max_list_entries: int = 576

    @property
    def numbers(self) -> tuple[float, ...]:
        """All of them, as ``meta`` has them."""
        return astuple(self)


@dataclass(frozen=True)
class GaussianSplatBackwardParams:
    """How the gradient of a picture of splats is computed.

    Attributes:
        render: how the picture was rendered.
        loss_grad_clip: the cotangent is cut off at this size.
        sh_band: the highest band of spherical harmonics that receives a gradient.
        max_anisotropy: kept for callers of other systems; nothing is done with it.
    """

    render: GaussianSplatRenderParams = field(default_factory=GaussianSplatRenderParams)
    loss_grad_clip: float = 1.0
    sh_band: int = 0
    max_anisotropy: float = 10.0


def render_attrs(params: GaussianSplatRenderParams) -> dict[str, object]:
    """Parameters as attributes of an op."""
    return {item.name: getattr(params, item.name) for item in fields(GaussianSplatRenderParams)}


def backward_attrs(params: GaussianSplatBackwardParams) -> dict[str, object]:
    """Parameters of the gradient as attributes of an op."""
    own = ("loss_grad_clip", "sh_band", "max_anisotropy")
    return {**render_attrs(params.render), **{name: getattr(params, name) for name in own}}


def written_out(
    names: Sequence[str], args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[list[object], dict[str, object]]:
    """The arguments of a call by records as tensors and attributes: ``names`` are those of the records, in their order.

    >>> written_out(["inputs", "params"], [1.0], {"params": GaussianSplatRenderParams(width=8)})[1]["width"]
    8
    """
    tensors: list[object] = []
    attrs: dict[str, object] = {}
    by_name = dict(kwargs)
    given = [*args, *(by_name.pop(name) for name in names[len(args) :] if name in by_name)]
    for value in given:
        if isinstance(value, GaussianSplatInputs):
            tensors += [getattr(value, item.name) for item in fields(GaussianSplatInputs)]
        elif isinstance(value, GaussianSplatRenderParams):
            attrs.update(render_attrs(value))
        elif isinstance(value, GaussianSplatBackwardParams):
            attrs.update(backward_attrs(value))
        else:
            tensors.append(value)
    for name in by_name:
        if name in attrs:
            raise ArgumentError(f"argument '{name}' is given twice, once by a record")
    return tensors, {**attrs, **by_name}
