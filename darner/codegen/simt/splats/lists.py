"""The splats of each tile, in the order in which they come: a thread for each tile counts its own, and places them when it is known where its list begins."""

from __future__ import annotations

from collections.abc import Callable

from ....graph import dtypes
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...problems.splats import ListProblem
from ..builder import Value
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import GRANULE, Machine

THREADS = 64
"""Of a workgroup: there are few tiles, and each has much to do."""


def write_lists(spec: Spec, machine: Machine, node: Node) -> Written:
    """The dispatches of ``splat_lists``."""
    writer = _Lists(spec, machine, node)
    if not writer.problem.batch:
        return Written(())
    stages = (writer.cleared(), writer.counted(), writer.begun(), writer.filled())
    return Written(stages, writer.scratch_bytes)


class _Lists:
    """The lists of a batch of pictures in the making."""

    def __init__(self, spec: Spec, machine: Machine, node: Node) -> None:
        self.spec, self.machine, self.node = spec, machine, node
        self.problem = ListProblem.of(node)
        self.tiles = self.problem.batch * self.problem.tiles

    @property
    def scratch_bytes(self) -> int:
        """A number for each tile."""
        return round_up(4 * self.tiles, GRANULE)

    def cleared(self) -> Stage:
        """Nothing in any list."""
        dispatch = Dispatch(self.spec, self.machine)
        b, count = dispatch.builder, self.problem.batch * self.problem.length
        with b.if_(b.thread < count):
            dispatch.results[0][b.thread] = 0xFFFFFFFF
        return dispatch.finish(ceil_div(count, dispatch.threads))

    def counted(self) -> Stage:
        """How many splats each tile has."""
        dispatch = Dispatch(self.spec, self.machine, threads=THREADS)
        b, e = dispatch.builder, dispatch.elements()
        counts = dispatch.scratch(0, self.tiles, dtypes.u32)
        with b.if_(b.thread < self.tiles):
            found = b.variable(b.index(0), "count")

            def add(_: Value) -> None:
                found.set(found + 1)

            self._of_tile(dispatch, e, add)
            counts[b.thread] = found
        return dispatch.finish(ceil_div(self.tiles, dispatch.threads))

    def begun(self) -> Stage:
        """Where each list begins and ends; too many entries are told of as a fault."""
        problem = self.problem
        dispatch = Dispatch(self.spec, self.machine, threads=THREADS)
        b, e = dispatch.builder, dispatch.elements()
        counts = dispatch.scratch(0, self.tiles, dtypes.u32)
        (result,) = dispatch.results
        with b.if_(b.thread < problem.batch):
            total = b.variable(b.index(0), "total")
            with b.for_(0, problem.tiles) as tile:
                at = b.let(b.thread * problem.tiles + tile)
                end = b.let(total + counts[at])
                place = b.let(b.thread * problem.length + problem.entries + tile * 2)
                result[place] = b.min(total, problem.entries)
                result[place + 1] = b.min(end, problem.entries)
                counts[at] = total
                total.set(end)
            e.tell_if(total > problem.entries, self.node, total, problem.entries)
        return dispatch.finish(ceil_div(problem.batch, dispatch.threads))

    def filled(self) -> Stage:
        """The numbers of splats in the lists."""
        problem = self.problem
        dispatch = Dispatch(self.spec, self.machine, threads=THREADS)
        b, e = dispatch.builder, dispatch.elements()
        counts = dispatch.scratch(0, self.tiles, dtypes.u32)
        (result,) = dispatch.results
        with b.if_(b.thread < self.tiles):
            place = b.variable(counts[b.thread], "place")
            picture = b.let(b.thread // problem.tiles)
            lead = self._lead(e, picture)

            def put(n: Value) -> None:
                with b.if_(place < problem.entries):
                    number = e.integer(self.node.operands[1], [*lead, n])
                    result[picture * problem.length + place] = number
                place.set(place + 1)

            self._of_tile(dispatch, e, put)
        return dispatch.finish(ceil_div(self.tiles, dispatch.threads))

    def _lead(self, e: ThreadElements, picture: Value) -> list[Number]:
        """The index of a picture in the batch."""
        lead = self.problem.lead
        return list(e.places.split(picture, lead)) if lead else []

    def _of_tile(
        self, dispatch: Dispatch, e: ThreadElements, body: Callable[[Value], None]
    ) -> None:
        """``body(n)`` for each splat of this thread's tile."""
        b, problem = dispatch.builder, self.problem
        bounds = self.node.operands[0]
        tile = b.let(b.thread % problem.tiles)
        column = b.as_signed(b.let(tile % problem.across))
        row = b.as_signed(b.let(tile // problem.across))
        lead = self._lead(e, b.let(b.thread // problem.tiles))
        with b.for_(0, sizes(bounds)[-2], name="n") as n:
            left, top, right, bottom = (
                b.as_signed(b.let(e.integer(bounds, [*lead, n, k]))) for k in range(4)
            )
            across = (left <= column) & (column < right)
            with b.if_(across & (top <= row) & (row < bottom)):
                body(n)
