"""What splats add up to in each pixel: a vector of pixels goes through the list of its tile from front to back."""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Value
from ....codegen.problems.splats import BlendProblem
from ....graph import dtypes
from ....graph.node import Node
from ..emit.template import Code
from .pixels import Blending, Meeting, Pixels, table_bytes


def scratch_bytes(node: Node) -> int:
    """Those of the table."""
    return table_bytes(BlendProblem.of(node))


def emit_blend(code: Code, node: Node) -> None:
    """The code of ``splat_blend``."""
    blending = Blending(code, node)
    b, problem = code.builder, blending.problem
    (result,) = code.results
    blending.fill_table()
    code.barrier()

    def vector(pixels: Pixels) -> None:
        light = [blending.number(0).value] * 3
        left, steps = blending.number(1).value, blending.started(pixels).value
        carried: Sequence[Value] = [*light, left, steps]
        if problem.splats:
            carried = blending.through(pixels, carried, live, hit)
        width = 4 * problem.grid.pixels
        base = blending.code.indices.mul(pixels.picture, width)
        start = Lane(b, pixels.number) * 4 + Lane(b, code.indices.vector(base, blending.lanes))
        for k, value in enumerate(carried[:4]):
            at = (start + k).value
            blending.registers.store(value, result, at, dtypes.f32, pixels.inside.value)

    def live(carried: Sequence[Value]) -> Lane:
        return blending.live(Lane(b, carried[3]), Lane(b, carried[4]))

    def hit(entry: Value, met: Meeting, can: Lane, carried: Sequence[Value]) -> Sequence[Value]:
        *light, left, steps = (Lane(b, value) for value in carried)
        alpha, hits = blending.taken(met, can)
        weight = alpha * left
        new = []
        for k, total in enumerate(light):
            more = weight.fma(blending.feature(met.row, 13 + k), total)
            # What is not hit stays, also of a colour that is no number.
            new.append(hits.choose(more, total))
        one = hits.choose(steps.constant(1), 0)
        return [item.value for item in (*new, left * (1.0 - alpha), steps + one)]

    blending.for_pixels(vector)
