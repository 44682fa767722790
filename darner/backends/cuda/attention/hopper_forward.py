"""Attention's result by ``wgmma``: warpgroups of 64 queries each meet the same tiles of keys and values.

The scores of the next tile are computed while the weights of this one are multiplied with its values; weights go from registers into that product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ....codegen.problems.attention import result_numbers
from ....codegen.simt.attention.results import are_whole
from ....codegen.simt.builder import Value
from ....codegen.simt.dispatch import Stage, Written
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ..instructions import threads
from ..instructions.assembly import Value as Raw
from ..machine import Machine
from ..stage import TensorMap
from .forward import block_place
from .hopper import ROW, SLAB, WARPS, Barriers, HopperKernel, Ring, result_map, rows_map, slabs_of
from .problem import Problem
from .rows import Fragments
from .scores import Scores, Span
from .softmax import Known, Softmax, scale_rows, write_known

STAGES = 2


@dataclass(frozen=True)
class HopperCut:
    """How the result is computed.

    Attributes:
        groups: warpgroups that multiply, with 64 queries each.
        columns: keys of a tile.
        registers: of a thread that brings, and of one that multiplies.
    """

    groups: int
    columns: int
    registers: tuple[int, int]

    @property
    def name(self) -> str:
        """What tells it from others.

        >>> HopperCut(2, 128, (24, 240)).name
        'wgmma 128x128'
        """
        return f"wgmma {64 * self.groups}x{self.columns}"


@dataclass(frozen=True)
class Layout:
    """Shared memory: queries, where results go too, then stages of keys and values, then barriers."""

    problem: Problem
    cut: HopperCut

    @property
    def own(self) -> int:
        """Bytes of a warpgroup's queries or results."""
        rows = self.problem.rows
        return max(slabs_of(rows["q"]), slabs_of(rows["v"])) * SLAB

    def tile(self, name: str) -> int:
        """Bytes of a tile of keys or values."""
        return slabs_of(self.problem.rows[name]) * self.cut.columns * ROW

    @property
    def stages(self) -> int:
        """Where stages begin."""
        return self.cut.groups * self.own

    @property
    def stage(self) -> int:
        """Bytes of a stage."""
        return self.tile("k") + self.tile("v")

    def barriers(self) -> tuple[Barriers, Barriers, Barriers, Barriers, Barriers]:
        """Those of queries, of keys and values that have come, and of keys and values that were read."""
        begin = Barriers(self.stages + STAGES * self.stage, 1, 1)
        found = [begin]
        readers = WARPS * self.cut.groups
        for count in (1, 1, readers, readers):
            found.append(Barriers(found[-1].end, STAGES, count))
        return found[0], found[1], found[2], found[3], found[4]

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self.barriers()[-1].end + 8


_CUTS: dict[int, tuple[HopperCut, ...]] = {
    64: (HopperCut(3, 128, (32, 160)), HopperCut(2, 128, (24, 240))),
    128: (HopperCut(2, 128, (24, 240)),),
    256: (HopperCut(2, 64, (24, 240)),),
}
"""Cuts by the width of rows up to which they are for: with many blocks, and with few."""
LONG = 4
"""Blocks of each multiprocessor, from which on larger ones pay."""


def forward_maps(problem: Problem, cut: HopperCut) -> dict[str, TensorMap] | None:
    """The tensor maps of queries, keys and values, if all of them can be one."""
    counts = {"q": 64, "k": cut.columns, "v": cut.columns}
    found = {name: rows_map(problem, name, count) for name, count in counts.items()}
    maps = {name: made for name, made in found.items() if made is not None}
    return maps if len(maps) == len(found) else None


def hopper_cuts(problem: Problem, machine: Machine) -> tuple[HopperCut, ...]:
    """The cuts of the result, the best first; none where ``mma.sync`` does it."""
    if machine.arch != "sm_90a" or machine.emulated or not problem.plain:
        return ()
    if problem.kind == "tf32":
        # Its terms have to be neighbours in memory: values are not.
        return ()
    cuts = next(cuts for most, cuts in _CUTS.items() if problem.widest <= most)
    if forward_maps(problem, cuts[0]) is None:
        return ()

    def blocks(cut: HopperCut) -> int:
        return problem.heads * ceil_div(problem.attention.queries, 64 * cut.groups)

    pays = [cut for cut in cuts if blocks(cut) >= LONG * machine.processors]
    first = pays[0] if pays else cuts[-1]
    return first, *(cut for cut in cuts if cut is not first)


class ForwardKernel:
    """The kernel of the result, or of what gradients need of queries, while it is written.

    Args:
        spec: what is computed.
        machine: for which GPU.
        problem: the same as a problem.
        cut: how.
        known: where what gradients need is kept; the result is written where it is None.
    """

    def __init__(
        self, spec: Spec, machine: Machine, problem: Problem, cut: HopperCut, known: Known | None
    ) -> None:
        self.spec, self.problem, self.cut, self.known = spec, problem, cut, known
        self.layout = Layout(problem, cut)
        self.queries, self.keys_in, self.values_in, self.keys_out, self.values_out = (
            self.layout.barriers()
        )
        kernel = HopperKernel(spec, machine, problem, cut.groups, self.layout.nbytes)
        self.kernel, self.builder = kernel, kernel.builder
        maps = forward_maps(problem, cut) or {}
        self.maps: dict[str, Raw] = {
            name: self.builder.tensor_map(described) for name, described in maps.items()
        }
        self.result = None
        numbers = result_numbers(spec)
        if known is None and len(numbers) == 1:
            output = spec.body.outputs[numbers[0]]
            described = result_map(problem, output, numbers[0])
            if described is not None and _is_result(problem, output):
                self.result = self.builder.tensor_map(described)

    def write(self) -> Stage:
        """Write it."""
        b, kernel, problem, cut = self.builder, self.kernel, self.problem, self.cut
        attention = problem.attention
        blocks = ceil_div(attention.queries, kernel.block)
        self.place = block_place(kernel, blocks, attention.heads, backwards=attention.causal)
        place = self.place
        kernel.write_start(place.batch)
        limits = (attention.queries, attention.keys)
        first = b.index(place.first)
        self.scores = Scores(kernel, Span(first, kernel.block, cut.columns, limits, True))
        low, high = self.scores.ends()
        # A block that sees no key meets a tile that is hidden as a whole.
        tiles = b.choose(high > low, (high + (cut.columns - 1) - low) // cut.columns, 1)
        self.tiles = b.let(tiles, "tiles")
        self.last = b.let(low + (self.tiles - 1) * cut.columns, "last")
        barriers = self.queries, self.keys_in, self.values_in, self.keys_out, self.values_out
        kernel.initialise(barriers, list(self.maps.values()))
        with b.if_(kernel.group == cut.groups):
            self._produce()
        with b.else_():
            self._consume()
        return kernel.dispatch.finish(blocks * problem.heads)

    def _row(self, number: Value) -> Value:
        """The first key of a tile; the last tile comes first, where the diagonal is."""
        return self.builder.let(self.last - number * self.cut.columns, "tile_row")

    def _at(self, stage: Value, name: str) -> Value:
        """The address of keys or values in a stage."""
        second = self.layout.tile("k") if name == "v" else 0
        at = stage * self.layout.stage + (self.layout.stages + second)
        return self.builder.let(self.kernel.base + at, name)

    # ------------------------------------------------------------- bringing

    def _produce(self) -> None:
        b, kernel, layout, place = self.builder, self.kernel, self.layout, self.place
        threads.set_max_registers(b.ir, self.cut.registers[0], more=False)
        with b.if_(kernel.warp == 4 * self.cut.groups):
            with b.if_(b.held(threads.elect(b.ir)) == 1):
                rows = self.problem.rows
                nbytes = self.cut.groups * slabs_of(rows["q"]) * SLAB
                barrier = kernel.expect(self.queries, 0, nbytes)
                for group in range(self.cut.groups):
                    to = b.let(kernel.base + group * layout.own)
                    own = (b.let(place.first + 64 * group), place.head, place.batch)
                    kernel.bring_rows("q", self.maps["q"], to, 64, own, barrier)
                head = b.let(place.head // self.problem.attention.group, "kv_head")
                ring = Ring(b, STAGES)
                with b.for_(0, self.tiles, name="tile") as tile:
                    stage, phase, row = ring.stage, b.let(ring.phase ^ 1), self._row(tile)
                    for name, full, empty in (
                        ("k", self.keys_in, self.keys_out),
                        ("v", self.values_in, self.values_out),
                    ):
                        kernel.wait(empty, stage, phase)
                        barrier = kernel.expect(full, stage, layout.tile(name))
                        at = (row, head, place.batch)
                        kernel.bring_rows(
                            name,
                            self.maps[name],
                            self._at(stage, name),
                            self.cut.columns,
                            at,
                            barrier,
                        )
                    ring.advance()
            threads.sync_warp(b.ir)

    # ------------------------------------------------------------- multiplying

    def _consume(self) -> None:
        b, kernel = self.builder, self.kernel
        threads.set_max_registers(b.ir, self.cut.registers[1], more=True)
        own = b.let(kernel.base + kernel.group * self.layout.own, "own")
        terms = self.problem.rows["q"].padded
        self.left = kernel.along_terms(own, 64, terms)
        self.running = Softmax.of(kernel)
        sums = kernel.zeros(self.problem.rows["v"].padded, "sum")
        keys, values = Ring(b, STAGES), Ring(b, STAGES)
        kernel.wait(self.queries, 0, 0)
        stage = keys.stage
        started = self._start_scores(keys)
        scores = kernel.fragments(kernel.waited(started), "score")
        self._read_keys(keys, stage)
        self._meet(scores, self._row(b.index(0)))
        weights = [[b.variable(word, "weight") for word in ws] for ws in kernel.packed(scores)]
        with b.for_(1, self.tiles, name="tile") as tile:
            old = [[b.raw(word) for word in words] for words in weights]
            stage = keys.stage
            started = self._start_scores(keys)
            stage_of_values = values.stage
            total = self._start_sums(values, sums, old)
            scores = kernel.fragments(kernel.waited(started, 1), "score")
            self._read_keys(keys, stage)
            factors = self._meet(scores, self._row(tile))
            # Weights are written only when nothing reads the old ones any more.
            self._end_sums(sums, total, old)
            kernel.release(self.values_out, stage_of_values)
            values.advance()
            for own_words, words in zip(weights, kernel.packed(scores), strict=True):
                for variable, word in zip(own_words, words, strict=True):
                    variable.set(word)
            scale_rows(sums, factors)
        old = [[b.raw(word) for word in words] for words in weights]
        self._end_sums(sums, self._start_sums(values, sums, old), old)
        self._finish(sums, own)

    def _start_scores(self, keys: Ring) -> list[Raw]:
        kernel, stage = self.kernel, keys.stage
        kernel.wait(self.keys_in, stage, keys.phase)
        count, terms = self.cut.columns, self.problem.rows["k"].padded
        rights = kernel.along_terms(self._at(stage, "k"), count, terms)
        return kernel.fresh(count, self.left, rights)

    def _read_keys(self, keys: Ring, stage: Value) -> None:
        self.kernel.release(self.keys_out, stage)
        keys.advance()

    def _start_sums(
        self, values: Ring, sums: Fragments, weights: Sequence[Sequence[Raw]]
    ) -> list[Raw]:
        b, kernel, stage = self.builder, self.kernel, values.stage
        kernel.wait(self.values_in, stage, values.phase)
        rights = kernel.along_columns(self._at(stage, "v"), self.cut.columns)
        flat = [b.raw(value) for four in sums[0] for value in four]
        return kernel.added(flat, weights, rights)

    def _end_sums(
        self, sums: Fragments, started: Sequence[Raw], weights: Sequence[Sequence[Raw]]
    ) -> None:
        b = self.builder
        ended = self.kernel.waited(started, 0, weights)
        flat = [value for four in sums[0] for value in four]
        for variable, value in zip(flat, ended, strict=True):
            variable.set(b.held(value))

    def _meet(self, scores: Fragments, row: Value) -> list[list[Value]]:
        self.scores.finish(scores, row)
        return self.running.meet(scores)

    def _finish(self, sums: Fragments, own: Value) -> None:
        b, kernel, place, problem = self.builder, self.kernel, self.place, self.problem
        if self.known is not None:
            write_known(kernel, self.known, place, sums, self.running)
            return
        scale_rows(sums, self.running.shares(place))
        if self.result is not None:
            row = b.let(place.first + kernel.group * 64)
            kernel.store_slabs(self.result, own, sums, (row, place.head, place.batch))
            return
        numbers = result_numbers(self.spec)
        kernel.write_pairs(sums, problem.attention.node, numbers, place, problem.attention.queries)


def write_hopper_forward(spec: Spec, machine: Machine, problem: Problem, cut: HopperCut) -> Written:
    """The launch of the result, and of what is computed of its elements."""
    return Written((ForwardKernel(spec, machine, problem, cut, None).write(),))


def can_write_pairs(spec: Spec) -> bool:
    """Whether all results of a spec are written in whole words by pairs of elements."""
    return are_whole(spec, result_numbers(spec))


def _is_result(problem: Problem, output: Node) -> bool:
    """Whether an output is the attention's result as it is stored by a tensor map: itself, or rounded to the factors' type."""
    node = problem.attention.node
    return output.id == node.id or (output.op.name == "cast" and output.inputs == (node.id,))
