"""The gradient of blending: each vector of pixels goes through the list of its tile as the picture did, and then back.

On the way forth it keeps what each splat took and what was left before it, on the way back it knows what the cotangent sees behind a splat: no division by what is left. What a splat
receives from a vector of pixels is summed over its lanes at once for all sixteen features, and added to the sums of the list's entry, which only this tile has. At the end each thread adds
up the entries of its splats in the order of the lists: the same sums, whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.elements.elements import Elements
from ....codegen.ir.emit import loop, maximum, minimum
from ....codegen.ir.index import Lanes, i64
from ....codegen.ir.lanes import Lane
from ....codegen.ir.types import Builder, Value
from ....codegen.problems.splats import FEATURES, BlendProblem
from ....graph import dtypes
from ....graph.integers import round_up
from ....graph.node import Node
from ..emit.template import Code
from ..emit.vectors import clear_bytes, each, moved
from ..runtime.jit import Machine
from .pixels import LINE, Blending, Meeting, Pixels, table_bytes


def shared_bytes(node: Node) -> int:
    """The table, and the sums of every entry."""
    problem = BlendProblem.of(node)
    return table_bytes(problem) + LINE * problem.batch * problem.entries


def own_bytes(node: Node, machine: Machine) -> int:
    """What a vector of pixels keeps of each splat that it hits."""
    problem = BlendProblem.of(node)
    return _kept(problem, machine.vector_bytes) * (3 * machine.vector_bytes + 16)


def _kept(problem: BlendProblem, vector_bytes: int) -> int:
    """The most splats that hit any pixel of a vector: each has a pixel that it hits, and a pixel can be hit so often."""
    return round_up(min(problem.entries, vector_bytes // 4 * problem.steps), 8)


def emit_backward(code: Code, node: Node) -> None:
    """The code of ``splat_blend_backward``."""
    work = _Gradient(code, node)
    work.begin()
    code.barrier()
    if work.problem.splats:
        work.for_pixels(work.vector)
    code.barrier()
    work.collect()


class _Gradient(Blending):
    """The gradient of a batch of pictures in the making."""

    def __init__(self, code: Code, node: Node) -> None:
        super().__init__(code, node)
        b = code.builder
        self.sums = moved(b, code.shared, table_bytes(self.problem))
        kept, vector = _kept(self.problem, 4 * self.lanes), 4 * self.lanes
        self.alphas, self.lefts, self.depths, self.entries = (
            moved(b, code.own, k * kept * vector) for k in range(4)
        )
        (self.result,) = code.results

    def begin(self) -> None:
        """The table, and sums of nothing."""
        b, problem = self.b, self.problem
        self.fill_table()

        def picture(number: Value) -> None:
            first, last = self.code.share(self._used(number))
            start = b.add(b.mul(number, i64(problem.entries)), first)
            memory = moved(b, self.sums, b.mul(start, i64(LINE)))
            clear_bytes(b, memory, b.mul(b.sub(last, first), i64(LINE)))

        each(b, 0, problem.batch, picture)

    def _used(self, picture: Value) -> Value:
        """How many entries there are up to the end of the last list of a picture."""
        b, problem = self.b, self.problem
        lead = self.lead(picture)

        def tile(k: Value, held: Sequence[Value]) -> Sequence[Value]:
            edge = self.edge(lead, b.add(b.mul(k, i64(2)), i64(problem.entries + 1)))
            return [maximum(b, held[0], edge)]

        (found,) = loop(b, i64(0), i64(problem.grid.tiles), 1, tile, [i64(0)])
        return found

    # ------------------------------------------------------------- a vector of pixels

    def vector(self, pixels: Pixels) -> None:
        """Forth and back through the list of its tile."""
        b = self.b
        start = [self.number(1).value, self.started(pixels).value, i64(0)]

        def live(carried: Sequence[Value]) -> Lane:
            return self.live(Lane(b, carried[0]), Lane(b, carried[1]))

        def hit(entry: Value, met: Meeting, can: Lane, carried: Sequence[Value]) -> Sequence[Value]:
            left, steps, count = Lane(b, carried[0]), Lane(b, carried[1]), carried[2]
            alpha, hits = self.taken(met, can)
            depth = hits.choose(met.depth, 0.0)
            at = b.mul(count, i64(self.lanes))
            for memory, value in ((self.alphas, alpha), (self.lefts, left), (self.depths, depth)):
                self.registers.store(value.value, memory, at, dtypes.f32)
            self.registers.store(entry, self.entries, count, dtypes.i64)
            one = hits.choose(steps.constant(1), 0)
            kept = b.add(count, i64(1))
            return [(left * (1.0 - alpha)).value, (steps + one).value, kept]

        *_, count = self.through(pixels, start, live, hit)
        elements = Elements.of(self.code, pixels.inside.value)
        sent = [self._sent(elements, pixels, k) for k in range(4)]

        def back(k: Value, carried: Sequence[Value]) -> Sequence[Value]:
            number = b.sub(b.sub(count, i64(1)), k)
            return [self._back(pixels, sent, number, Lane(b, carried[0])).value]

        loop(b, i64(0), count, 1, back, [sent[3].value])

    def _sent(self, elements: Elements, pixels: Pixels, k: int) -> Lane:
        """The cotangent of light (0 to 2) or of what is left (3); 0 where there is no pixel."""
        value = elements.at(self.node.operands[2], [*pixels.lead, pixels.number, k])
        return pixels.inside.choose(Lane(self.b, value), 0.0)

    def _kept(self, memory: Value, number: Value) -> Lane:
        at = Lanes(self.b.mul(number, i64(self.lanes)), self.lanes)
        return Lane(self.b, self.registers.load(memory, at, dtypes.f32))

    def _back(self, pixels: Pixels, sent: Sequence[Lane], number: Value, behind: Lane) -> Lane:
        """Add what a splat receives from the pixels; what the cotangent sees behind the one before it."""
        alpha, left, depth = (
            self._kept(memory, number) for memory in (self.alphas, self.lefts, self.depths)
        )
        entry = self.registers.load(self.entries, number, dtypes.i64)
        row, _ = self.row_of(pixels, entry)
        hit = alpha > 0.0
        colours = [self.feature(row, 13 + k) for k in range(3)]
        light = sent[2].fma(colours[2], sent[1].fma(colours[1], sent[0] * colours[0]))
        light = hit.choose(light, 0.0)
        by_power = hit.choose(left * (light - behind) * alpha, 0.0)
        weight = alpha * left
        rays = self.rays(pixels, row)
        middle = []
        for k, ray in enumerate(rays):
            nearest = depth.fma(ray, self.feature(row, k))
            middle.append(hit.choose(-(by_power * nearest), 0.0))
        along = [depth * item for item in middle]
        received = [
            *middle,
            *(pixels.u * item for item in along),
            *(pixels.v * item for item in along),
            *along,
            by_power,
            *(weight * item for item in sent[:3]),
        ]
        self._add(pixels, entry, [item.value for item in received])
        return alpha.fma(light - behind, behind)

    def _add(self, pixels: Pixels, entry: Value, received: Sequence[Value]) -> None:
        """Add the sums over lanes to those of an entry."""
        b = self.b
        at = b.add(b.mul(pixels.picture, i64(self.problem.entries)), entry)
        start = b.mul(at, i64(FEATURES))
        for k, value in enumerate(lane_sums(b, received)):
            width = value.type.count
            place = Lanes(b.add(start, i64(k * width)), width)
            held = self.registers.load(self.sums, place, dtypes.f32)
            self.registers.store(b.fadd(held, value), self.sums, place, dtypes.f32)

    # ------------------------------------------------------------- all tiles of a splat

    def collect(self) -> None:
        """What each splat receives: the sums of its entries, in their order."""
        b, problem = self.b, self.problem
        if not problem.rows:
            return
        first, last = self.code.share(problem.rows)
        clear_bytes(
            b,
            moved(b, self.result, b.mul(first, i64(LINE))),
            b.mul(b.sub(last, first), i64(LINE)),
        )

        def picture(number: Value) -> None:
            base = b.mul(number, i64(problem.splats))
            low = maximum(b, b.sub(first, base), i64(0))
            high = minimum(b, b.sub(last, base), i64(problem.splats))
            lead = self.lead(number)

            def entry(k: Value) -> None:
                found = self.lists.integer(lead, k)
                own = b.and_(b.icmp_signed(">=", found, low), b.icmp_signed("<", found, high))
                with b.if_then(own):
                    at = b.add(b.mul(number, i64(problem.entries)), k)
                    self._add_line(b.add(base, found), at)

            with b.if_then(b.icmp_signed("<", low, high)):
                each(b, 0, self._used(number), entry)

        each(b, 0, problem.batch, picture)
        each(b, first, last, self._by_opacity)

    def _add_line(self, row: Value, entry: Value) -> None:
        b = self.b
        to, start = (Lanes(b.mul(number, i64(FEATURES)), FEATURES) for number in (row, entry))
        total = self.registers.load(self.result, to, dtypes.f32)
        more = self.registers.load(self.sums, start, dtypes.f32)
        self.registers.store(b.fadd(total, more), self.result, to, dtypes.f32)

    def _by_opacity(self, row: Value) -> None:
        """What was summed for the exponent is that for the logarithm of the opacity, too."""
        b = self.b
        at = b.add(b.mul(row, i64(FEATURES)), i64(12))
        total, cover = (
            Lane(b, self.registers.load(memory, at, dtypes.f32))
            for memory in (self.result, self.code.shared)
        )
        found = (cover > 0.0).choose(total / cover, 0.0)
        self.registers.store(found.value, self.result, at, dtypes.f32)


def lane_sums(builder: Builder, values: Sequence[Value]) -> list[Value]:
    """The sums over the lanes of each of several vectors, side by side in vectors: those of 16 vectors of 8 lanes are two vectors.

    Two vectors become one by adding the first and the second half of each group of lanes that belong to one value, until groups are single lanes.
    """
    from llvmlite import ir

    count = values[0].type.count
    groups, values = 1, list(values)
    while groups < count:
        size = count // groups
        low = [g * size + i for g in range(groups) for i in range(size // 2)]
        high = [lane + size // 2 for lane in low]
        kind = ir.VectorType(ir.IntType(32), count)
        halves = [
            ir.Constant(kind, [*picked, *(count + lane for lane in picked)])
            for picked in (low, high)
        ]
        low_half, high_half = halves
        values = [
            builder.fadd(
                builder.shuffle_vector(a, c, low_half), builder.shuffle_vector(a, c, high_half)
            )
            for a, c in zip(values[::2], values[1::2], strict=True)
        ]
        groups *= 2
    return values
