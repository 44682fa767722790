"""A scene before a camera: its picture, and what each tensor of the scene receives from the picture's cotangent."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.cached import cached_property
from ...graph.node import Node
from ..elementwise.arithmetic import where
from ..shapes.primitives import pad, reshape
from .scene import (
    Camera,
    Scene,
    Sight,
    Splats,
    from_harmonics,
    from_turned,
    from_unit,
    harmonics,
    local_of,
    matrices_of,
    unit,
)
from .tiles import BlendAttrs, Grid, splat_blend, splat_blend_backward

GAMMA = 2.2
"""The power of each colour that a picture holds."""


class RenderAttrs(BlendAttrs):
    """The attributes of ``gaussian_splat_render``."""

    radius_scale: float
    max_list_entries: int


class SceneCall(RenderAttrs):
    """The operands and attributes of ``gaussian_splat_render``."""

    positions: Node
    scales: Node
    rotations: Node
    opacities: Node
    colors: Node
    sh_coeffs: Node
    meta: Node


class BackwardCall(SceneCall):
    """Those of ``gaussian_splat_render_backward``."""

    d_loss_rgba: Node
    loss_grad_clip: float
    sh_band: int
    max_anisotropy: float


TENSORS = ("positions", "scales", "rotations", "opacities", "colors", "sh_coeffs")
"""The tensors that receive a gradient, in their order."""


def blending(attrs: RenderAttrs) -> BlendAttrs:
    return BlendAttrs(
        width=attrs["width"],
        height=attrs["height"],
        tile_size=attrs["tile_size"],
        alpha_cutoff=attrs["alpha_cutoff"],
        max_splat_steps=attrs["max_splat_steps"],
        transmittance_threshold=attrs["transmittance_threshold"],
    )


@dataclass(frozen=True)
class View:
    """A scene before a camera, and what is known of its splats."""

    scene: Scene
    camera: Camera
    attrs: RenderAttrs

    @cached_property
    def grid(self) -> Grid:
        """The picture and its tiles."""
        return Grid(self.attrs["width"], self.attrs["height"], self.attrs["tile_size"])

    @cached_property
    def away(self) -> Node:
        """From each splat to the camera."""
        return self.scene.away(self.camera)

    @cached_property
    def splats(self) -> Splats:
        """The splats as the camera sees them."""
        scene = self.scene
        matrices = matrices_of(scene.quaternions, scene.inverse_sizes)
        local = local_of(matrices, self.away)
        return Splats(matrices, local, scene.covers, scene.shown(self.camera))

    @cached_property
    def features(self) -> Node:
        """The features of ``splat_blend``."""
        return self.splats.features(self.camera)

    @cached_property
    def sight(self) -> Sight:
        """Which splats can be seen."""
        cutoff = self.attrs["alpha_cutoff"]
        return Sight(self.scene, self.camera, self.splats.local, cutoff, self.grid)

    @cached_property
    def lists(self) -> Node:
        """The splats of each tile."""
        return self.sight.lists(self.attrs["max_list_entries"])

    @cached_property
    def image(self) -> Node:
        """Light and transmittance of each pixel."""
        result: Node = splat_blend(self.features, self.lists, **blending(self.attrs))
        return result


def view_of(call: SceneCall) -> View:
    """What a call renders, and how."""
    scene = Scene(
        call["positions"],
        call["scales"],
        call["rotations"],
        call["opacities"],
        call["colors"],
        call["sh_coeffs"],
        call["radius_scale"],
    )
    grid = Grid(call["width"], call["height"], call["tile_size"])
    return View(scene, Camera(call["meta"], grid), call)


def lit(image: Node, background: Node) -> tuple[Node, Node]:
    """The light of each pixel, what shines through it included, [pixels, 4]: the last number is none. And which numbers are."""
    behind = pad(background, ((0, 1),))
    is_light: Node = image.graph.iota((4,), 0, "i32") < 3
    return (image + image[:, 3:] * behind).maximum(0.0), is_light


def shown_as(image: Node, background: Node) -> Node:
    """A picture: colours with their gamma, and what is not let through."""
    light, is_light = lit(image, background)
    return reshape(where(is_light, light**GAMMA, 1.0 - image), (image.shape[0] * 4,))


def received_by(view: View, sent: Node) -> Node:
    """What the features receive from the cotangent of a picture."""
    background = view.camera.background
    light, is_light = lit(view.image, background)
    by_light = sent * (GAMMA * light ** (GAMMA - 1.0))
    parts = [by_light[:, k] * background[k] for k in range(3)]
    through = reshape(parts[0] + parts[1] + parts[2], (view.grid.pixels, 1))
    cotangent = where(is_light, by_light, through - sent)
    result: Node = splat_blend_backward(
        view.features, view.lists, cotangent, **blending(view.attrs)
    )
    return result


def to_scene(view: View, received: Node, band: int) -> list[Node]:
    """What each tensor of the scene receives, of what the features do."""
    scene, splats, camera, count = view.scene, view.splats, view.camera, view.scene.count
    local, light = received[:, :3], received[:, 13:]
    rays = reshape(received[:, 3:12], (count, 3, 3, 1))
    axes = reshape(camera.axes, (1, 3, 1, 3))
    column, row = reshape(local, (count, 3, 1)), reshape(view.away, (count, 1, 3))
    matrices = (rays * axes).sum(1) + column * row
    positions = -(column * splats.matrices).sum(1)
    scales = -(matrices * splats.matrices).sum(-1)
    turns = matrices * reshape(scene.inverse_sizes, (count, 3, 1))
    quaternions = from_turned(turns, scene.quaternions)
    rotations = from_unit(quaternions, scene.rows(scene.rotations, 4))
    within = (scene.opacities >= 0.0).logical_and(scene.opacities <= 1.0)
    opacities = where(within, received[:, 12], 0.0)
    if not scene.terms:
        return [positions, scales, rotations, opacities, light, light * 0.0]
    colours = where(scene.is_harmonic, 0.0, light)
    light = where(scene.is_harmonic, light, 0.0)
    directions = unit(-view.away)
    beside = reshape(light, (count, 1, 3))
    by_term = (scene.coefficients * beside).sum(-1)
    towards = from_harmonics(by_term, directions, scene.terms)
    positions = positions + from_unit(towards, -view.away)
    kept = min((band + 1) ** 2, scene.terms)
    basis = harmonics(directions, scene.terms)[:, :kept]
    coefficients = reshape(basis, (count, kept, 1)) * beside
    coefficients = pad(coefficients, ((0, 0), (0, scene.terms - kept), (0, 0)))
    return [positions, scales, rotations, opacities, colours, coefficients]
