"""The gradient of blending: first what each pixel sends to the splats that it sees, then sums over the pixels of a tile for each entry of its list, then over the entries of each splat.

A thread goes through the list of its pixel as the picture did and keeps what each splat took; on the way back it knows what the cotangent sees behind. A thread for each entry looks it up in
what the pixels of its tile have kept. No sum depends on the order in which threads run.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....graph import dtypes
from ....graph.cached import cached_property
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ...ir.index import Number
from ...problems.splats import FEATURES, BlendProblem
from ..builder import Memory, Value, Variable
from ..dispatch import Dispatch, Stage, Written
from ..machine import GRANULE, Machine, power_below
from .pixels import THREADS, Pixel

MOST_BYTES = 1 << 30
"""Scratch memory that a gradient may take; what takes more is computed with all entries beside all pixels."""
NOBODY = 0xFFFFFFFF


def has_room(node: Node) -> bool:
    """Whether what pixels keep fits scratch memory."""
    return _Layout(BlendProblem.of(node)).nbytes <= MOST_BYTES


def write_backward(spec: Spec, machine: Machine, node: Node) -> Written:
    """The dispatches of ``splat_blend_backward``."""
    work = _Gradient(spec, machine, node)
    if not work.problem.rows:
        return Written(())
    stages = (work.cleared(), work.owned(), work.kept(), work.summed(), work.collected())
    return Written(stages, work.layout.nbytes)


@dataclass(frozen=True)
class _Layout:
    """Scratch memory: for each pixel what it keeps and how much that is, for each entry its tile and its sums."""

    problem: BlendProblem

    @property
    def pixels(self) -> int:
        """Pixels of all tiles, with those that are cut off."""
        return self.problem.tiles * self.problem.square

    @property
    def depth(self) -> int:
        """The most splats that a pixel hits."""
        return min(self.problem.entries, self.problem.steps)

    @property
    def entries(self) -> int:
        """Entries of all pictures."""
        return self.problem.batch * self.problem.entries

    @cached_property
    def starts(self) -> list[int]:
        """Where each part begins, and where all end."""
        kept = self.pixels * self.depth
        words = (kept, 2 * kept, self.pixels, self.entries, FEATURES * self.entries)
        found = [0]
        for count in words:
            found.append(found[-1] + round_up(4 * count, GRANULE))
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.starts[-1]

    def hits(self, dispatch: Dispatch) -> Memory:
        """The entries that each pixel has hit, from front to back."""
        return dispatch.scratch(self.starts[0], self.pixels * self.depth, dtypes.u32)

    def taken(self, dispatch: Dispatch) -> Memory:
        """Two numbers of each: what was taken and what was left; then what the exponent and the colour receive."""
        return dispatch.scratch(self.starts[1], 2 * self.pixels * self.depth, dtypes.f32)

    def counts(self, dispatch: Dispatch) -> Memory:
        """How many those are."""
        return dispatch.scratch(self.starts[2], self.pixels, dtypes.u32)

    def owners(self, dispatch: Dispatch) -> Memory:
        """The tile that each entry is of."""
        return dispatch.scratch(self.starts[3], self.entries, dtypes.u32)

    def sums(self, dispatch: Dispatch) -> Memory:
        """What each entry receives."""
        return dispatch.scratch(self.starts[4], FEATURES * self.entries, dtypes.f32)


class _Gradient:
    """The gradient of a batch of pictures in the making."""

    def __init__(self, spec: Spec, machine: Machine, node: Node) -> None:
        self.spec, self.machine, self.node = spec, machine, node
        self.problem = BlendProblem.of(node)
        self.layout = _Layout(self.problem)

    def _begin(self) -> Dispatch:
        return Dispatch(self.spec, self.machine, threads=THREADS)

    @staticmethod
    def _finish(dispatch: Dispatch, count: int) -> Stage:
        return dispatch.finish(ceil_div(count, dispatch.threads))

    def cleared(self) -> Stage:
        """Entries are of no tile."""
        dispatch = self._begin()
        b, owners = dispatch.builder, self.layout.owners(dispatch)
        with b.if_(b.thread < self.layout.entries):
            owners[b.thread] = NOBODY
        return self._finish(dispatch, self.layout.entries)

    def owned(self) -> Stage:
        """Those of lists are of the tile whose list it is."""
        dispatch, problem = self._begin(), self.problem
        b, owners = dispatch.builder, self.layout.owners(dispatch)
        with b.if_(b.thread < problem.tiles):
            pixel = Pixel(dispatch.elements(), self.node, problem, b.thread * problem.square)
            with b.for_(pixel.first, pixel.last, name="entry") as entry:
                owners[pixel.picture * problem.entries + entry] = b.thread
        return self._finish(dispatch, problem.tiles)

    # ------------------------------------------------------------- pixels

    def kept(self) -> Stage:
        """Forth and back through the list of each pixel."""
        dispatch, depth = self._begin(), self.layout.depth
        b = dispatch.builder
        hits, taken = self.layout.hits(dispatch), self.layout.taken(dispatch)
        counts = self.layout.counts(dispatch)
        with b.if_(b.thread < self.layout.pixels):
            pixel = Pixel(dispatch.elements(), self.node, self.problem, b.thread)
            left = b.variable(b.constant(1.0, dtypes.f32), "left")
            count = b.variable(b.index(0), "count")
            with b.if_(pixel.inside):
                with b.for_(pixel.first, pixel.last, name="entry") as entry:
                    pixel.stop_when_done(left, count)
                    number, known = pixel.splat_of(entry)
                    met = pixel.meet(number)
                    with b.if_(known & met.hits):
                        place = b.let(b.thread * depth + count, "place")
                        hits[place] = entry
                        taken[place * 2] = met.alpha
                        taken[place * 2 + 1] = left
                        left.set(left * (1.0 - met.alpha))
                        count.set(count + 1)
                self._back(pixel, hits, taken, count)
            counts[b.thread] = count
        return self._finish(dispatch, self.layout.pixels)

    def _back(self, pixel: Pixel, hits: Memory, taken: Memory, count: Value) -> None:
        """What the exponents and the colours of the splats that a pixel has hit receive, in place of what they took."""
        b, e = pixel.b, pixel.e
        cotangent = self.node.operands[2]
        sent = [b.let(e.at(cotangent, [*pixel.lead, pixel.number, k]), "sent") for k in range(4)]
        behind = b.variable(sent[3], "behind")
        with b.for_(0, count, name="back") as back:
            place = b.let(b.thread * self.layout.depth + (count - 1 - back), "place")
            number, _ = pixel.splat_of(hits[place])
            alpha = b.let(taken[place * 2], "alpha")
            left = b.let(taken[place * 2 + 1], "left")
            parts = [sent[k] * pixel.feature(number, 13 + k) for k in range(3)]
            seen = b.let(parts[0] + parts[1] + parts[2] - behind, "seen")
            taken[place * 2] = left * seen * alpha
            taken[place * 2 + 1] = alpha * left
            behind.set(behind + alpha * seen)

    # ------------------------------------------------------------- entries

    def summed(self) -> Stage:
        """What each entry receives from all pixels of its tile."""
        dispatch, problem = self._begin(), self.problem
        b, e = dispatch.builder, dispatch.elements()
        hits, taken = self.layout.hits(dispatch), self.layout.taken(dispatch)
        counts, owners = self.layout.counts(dispatch), self.layout.owners(dispatch)
        sums = self.layout.sums(dispatch)
        with b.if_(b.thread < self.layout.entries):
            owner = b.let(owners[b.thread], "owner")
            entry = b.let(b.thread % problem.entries, "own")
            with b.if_(owner != NOBODY):
                totals = [b.variable(b.constant(0.0, dtypes.f32), "total") for _ in range(FEATURES)]
                with b.for_(0, problem.square, name="within") as within:
                    thread = b.let(owner * problem.square + within, "pixel")
                    base = b.let(thread * self.layout.depth, "base")
                    count = b.let(counts[thread], "count")
                    found = self._found(dispatch, hits, base, count, entry)
                    with b.if_(found < count), b.if_(hits[base + found] == entry):
                        pixel = Pixel(e, self.node, problem, thread)
                        at = b.let((base + found) * 2, "at")
                        self._add(pixel, totals, entry, taken[at], taken[at + 1])
                for k, total in enumerate(totals):
                    sums[b.thread * FEATURES + k] = total
        return self._finish(dispatch, self.layout.entries)

    def _found(
        self, dispatch: Dispatch, hits: Memory, base: Value, count: Value, entry: Value
    ) -> Variable:
        """How many of the entries that a pixel has hit come before one."""
        b = dispatch.builder
        found = b.variable(b.index(0), "found")
        step = power_below(self.layout.depth)
        while step:
            before = base + (step - 1)
            with b.if_(found + step <= count), b.if_(hits[before + found] < entry):
                found.set(found + step)
            step //= 2
        return found

    def _add(
        self, pixel: Pixel, totals: list[Variable], entry: Value, by_power: Value, weight: Value
    ) -> None:
        """Add what a splat receives from a pixel."""
        b, e = pixel.b, pixel.e
        number, _ = pixel.splat_of(entry)
        depth, nearest = pixel.nearest(number)
        by_power, weight = b.let(by_power, "by_power"), b.let(weight, "weight")
        middle = [b.let(-(by_power * x)) for x in nearest]
        along = [b.let(depth * x) for x in middle]
        received: list[Number] = [
            *middle,
            *(pixel.u * x for x in along),
            *(pixel.v * x for x in along),
            *along,
            by_power,
        ]
        cotangent = self.node.operands[2]
        for k in range(3):
            received.append(weight * e.at(cotangent, [*pixel.lead, pixel.number, k]))
        for total, value in zip(totals, received, strict=True):
            total.set(total + value)

    # ------------------------------------------------------------- splats

    def collected(self) -> Stage:
        """What each splat receives from all of its entries, in their order."""
        dispatch, problem = self._begin(), self.problem
        b, e = dispatch.builder, dispatch.elements()
        owners, sums = self.layout.owners(dispatch), self.layout.sums(dispatch)
        features, lists = self.node.operands[:2]
        (result,) = dispatch.results
        with b.if_(b.thread < problem.rows):
            picture = b.let(b.thread // problem.splats, "picture")
            number = b.let(b.thread % problem.splats, "splat")
            lead = list(e.places.split(picture, problem.lead)) if problem.lead else []
            totals = [b.variable(b.constant(0.0, dtypes.f32), "total") for _ in range(FEATURES)]
            with b.for_(0, problem.entries, name="entry") as entry:
                at = b.let(picture * problem.entries + entry, "at")
                listed = b.let(e.places.value(e.integer(lists, [*lead, entry])), "listed")
                with b.if_(listed == number), b.if_(owners[at] != NOBODY):
                    for k, total in enumerate(totals):
                        total.set(total + sums[at * FEATURES + k])
            cover = b.let(e.at(features, [*lead, number, 12]), "cover")
            nothing = b.constant(0.0, dtypes.f32)
            for k, total in enumerate(totals):
                value: Value = total
                if k == 12:
                    value = b.choose(cover > 0.0, total / cover, nothing)
                result[b.thread * FEATURES + k] = value
        return self._finish(dispatch, problem.rows)
