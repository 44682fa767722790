"""What splats add up to in each pixel: a thread goes through the list of its pixel's tile. Threads that are neighbours have pixels of one tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....graph import dtypes
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.splats import BlendProblem
from ..builder import Value
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import Machine

THREADS = 256
"""Of a workgroup: the pixels of a tile of the usual size."""


def write_blend(spec: Spec, machine: Machine, node: Node) -> Written:
    """The dispatch of ``splat_blend``."""
    problem = BlendProblem.of(node)
    return Written((_blended(spec, machine, node, problem),)) if problem.batch else Written(())


def _blended(spec: Spec, machine: Machine, node: Node, problem: BlendProblem) -> Stage:
    dispatch = Dispatch(spec, machine, threads=THREADS)
    b = dispatch.builder
    (result,) = dispatch.results
    with b.if_(b.thread < problem.tiles * problem.square):
        pixel = Pixel(dispatch.elements(), node, problem, b.thread)
        with b.if_(pixel.inside):
            light = [b.variable(b.constant(0.0, dtypes.f32), f"light{k}") for k in range(3)]
            left = b.variable(b.constant(1.0, dtypes.f32), "left")
            steps = b.variable(b.index(0), "steps")
            with b.for_(pixel.first, pixel.last, name="entry") as entry:
                pixel.stop_when_done(left, steps)
                number, known = pixel.splat_of(entry)
                met = pixel.meet(number)
                with b.if_(known & met.hits):
                    weight = b.let(met.alpha * left, "weight")
                    for k, total in enumerate(light):
                        total.set(total + weight * pixel.feature(number, 13 + k))
                    left.set(left * (1.0 - met.alpha))
                    steps.set(steps + 1)
            place = b.let((pixel.picture * problem.grid.pixels + pixel.number) * 4, "place")
            for k, value in enumerate((*light, left)):
                result[place + k] = value
    return dispatch.finish(ceil_div(problem.tiles * problem.square, dispatch.threads))


@dataclass(frozen=True)
class Meeting:
    """A splat as the ray of a pixel meets it.

    Attributes:
        alpha: what the splat takes.
        hits: whether that counts.
    """

    alpha: Value
    hits: Value


class Pixel:
    """The pixel of a number, among those of all tiles, and the splats of its tile."""

    def __init__(
        self, elements: ThreadElements, node: Node, problem: BlendProblem, number: Value
    ) -> None:
        b = self.b = elements.builder
        self.e = elements
        self.problem, self.node = problem, node
        grid = problem.grid
        piece = b.let(number // problem.square, "piece")
        within = b.let(number % problem.square, "within")
        self.picture: Value = b.let(piece // grid.tiles, "picture")
        tile = b.let(piece % grid.tiles, "tile")
        x = b.let(tile % grid.across * grid.tile_size + within % grid.tile_size, "x")
        y = b.let(tile // grid.across * grid.tile_size + within // grid.tile_size, "y")
        self.inside: Value = b.let((x < grid.width) & (y < grid.height), "inside")
        self.number: Value = b.let(y * grid.width + x, "number")
        registers = self.e.registers
        self.u: Value = b.let(registers.of_index(x, dtypes.f32) + (0.5 - grid.width / 2), "u")
        self.v: Value = b.let(registers.of_index(y, dtypes.f32) + (0.5 - grid.height / 2), "v")
        self.lead = self.e.places.split(self.picture, problem.lead) if problem.lead else []
        edge = b.let(tile * 2 + problem.entries, "edge")
        self.first, self.last = (self._edge(edge + k) for k in range(2))

    def _edge(self, place: Value) -> Number:
        """Where a list begins or ends: within what there is."""
        found = self.e.integer(self.node.operands[1], [*self.lead, place])
        return self.e.places.clamp(found, 0, self.problem.entries)

    def stop_when_done(self, left: Value, steps: Value) -> None:
        """Leave the loop where nothing more is taken from the pixel."""
        b = self.b
        dark = left < self.problem.threshold
        with b.if_(dark | (steps >= self.problem.steps)):
            b.break_()

    def splat_of(self, entry: Value) -> tuple[Value, Value]:
        """The splat of an entry, and whether there is one; the first where there is not."""
        b = self.b
        found = b.let(
            self.e.places.value(self.e.integer(self.node.operands[1], [*self.lead, entry]))
        )
        known = b.let(found < self.problem.splats, "known")
        return b.let(b.choose(known, found, b.index(0)), "splat"), known

    def feature(self, number: Value, k: int) -> Number:
        """A feature of a splat."""
        return self.e.at(self.node.operands[0], [*self.lead, number, k])

    def rays(self, number: Value) -> list[Value]:
        """The direction of the pixel in a splat."""
        b = self.b
        return [
            b.let(
                b.fma(
                    self.u,
                    self.feature(number, 3 + k),
                    b.fma(self.v, self.feature(number, 6 + k), self.feature(number, 9 + k)),
                )
            )
            for k in range(3)
        ]

    def nearest(self, number: Value) -> tuple[Value, list[Value]]:
        """Where along its ray the pixel is nearest to the middle of a splat, and that point in the splat."""
        b = self.b
        rays = self.rays(number)
        middle = [b.let(self.feature(number, k)) for k in range(3)]
        depth = b.let(-(_dot(middle, rays) / _dot(rays, rays)), "depth")
        return depth, [b.let(o + depth * ray) for o, ray in zip(middle, rays, strict=True)]

    def meet(self, number: Value) -> Meeting:
        """A splat as the ray of the pixel meets it."""
        b, problem = self.b, self.problem
        depth, nearest = self.nearest(number)
        power = b.let(_dot(nearest, nearest) * -0.5, "power")
        alpha = b.let(self.feature(number, 12) * b.call("exp", power), "alpha")
        enough = (alpha >= problem.cutoff) & (alpha > 0.0)
        return Meeting(alpha, b.let((depth > 0.0) & enough, "hits"))


def _dot(a: Sequence[Value], c: Sequence[Value]) -> Value:
    return a[0] * c[0] + a[1] * c[1] + a[2] * c[2]
