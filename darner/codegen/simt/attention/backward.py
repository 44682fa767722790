"""The gradients of attention, without anything that two workgroups add to.

First each query's maximum, total and mean slope, or of what the forward pass kept the mean slope alone; then blocks of queries sum their gradients over keys, and blocks of keys theirs and those of values over the queries of
all heads that share them. Scores are computed again each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from operator import add

from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ...problems.attention import GRADIENTS, Described
from ..builder import Memory, Value
from ..dispatch import WORKGROUP, Stage, Written
from ..machine import Machine
from .bias import write_bias
from .forward import write_place, write_query_block
from .operands import Place, Reader, most_of_four, sum_of_four
from .parts import Parts
from .plan import BUSY, Blocks, Cut, choose
from .results import are_whole, write_sums
from .tile import Block, Rows, Tile


@dataclass(frozen=True)
class Statistics:
    """What is known of a query, or of four.

    Attributes:
        top: its maximum.
        share: 1 over its total; 0 where it sees nothing.
        mean: its mean slope.
    """

    top: Value
    share: Value
    mean: Value


COUNT = 3
"""Statistics of a query."""


@dataclass(frozen=True)
class Cuts:
    """How each of the dispatches is cut."""

    statistics: Cut
    queries: Cut
    keys: Cut
    in_parts: bool
    """Whether query heads have blocks of keys of their own."""


def backward_cuts(attention: Described, machine: Machine) -> Cuts | None:
    """How the gradients are cut; None where nothing fits."""
    heads, both = attention.batch * attention.heads, (attention.width, attention.value_width)
    shared = attention.batch * attention.kv_heads
    first = choose(Blocks(attention.queries, heads, both, ()), machine)
    second = choose(Blocks(attention.queries, heads, both, both[:1]), machine)
    third = choose(Blocks(attention.keys, shared, both, both), machine)
    if first is None or second is None or third is None:
        return None
    threads = shared * ceil_div(attention.keys, third.row_block) * third.threads
    if attention.group == 1 or threads >= BUSY:
        return Cuts(first, second, third, in_parts=False)
    alone = choose(Blocks(attention.keys, heads, both, both), machine)
    return Cuts(first, second, alone or third, in_parts=True)


def wanted(spec: Spec) -> dict[str, int]:
    """The numbers of the results that are asked for and have elements, by the operand's name."""
    return {
        GRADIENTS[output.attrs["index"]]: i
        for i, output in enumerate(spec.body.outputs)
        if prod(sizes(output))
    }


class Gradients:
    """The dispatches of one kernel's gradients."""

    def __init__(self, spec: Spec, machine: Machine, attention: Described, cuts: Cuts) -> None:
        self.spec, self.machine, self.attention, self.cuts = spec, machine, attention, cuts
        self.rows = attention.batch * attention.heads * attention.queries

    def write(self) -> Written:
        """All of them."""
        found = wanted(self.spec)
        if not found:
            return Written(())
        stages = []
        if self.rows and self.attention.keys:
            stages.append(self._kept() if self.attention.reads_kept else self._statistics())
        if "q" in found:
            stages.append(self._of_queries(found["q"]))
        used = max(1, self.rows * COUNT) * self._size
        if "k" in found or "v" in found:
            parts = Parts.of(self.attention, found, used) if self.cuts.in_parts else None
            stages.append(self._of_keys(found, parts))
            if parts is not None:
                stages.append(parts.merge(self.spec, self.machine, found))
                used = parts.end
        if "bias" in found:
            stages.append(write_bias(self, found["bias"]))
        return Written(tuple(stages), used)

    @property
    def _size(self) -> int:
        return 8 if self.attention.accumulator == "f64" else 4

    def _tile(self, cut: Cut, numbers: list[int], *, by_query: bool = True) -> Tile:
        whole = are_whole(self.spec, numbers)
        return Tile(self.spec, self.machine, self.attention, cut, by_query=by_query, whole=whole)

    def known(self, tile: Tile) -> Memory:
        """The statistics in scratch memory: all maxima, then all shares, then all means."""
        return tile.dispatch.scratch(0, max(1, COUNT * self.rows), tile.kind)

    def _known_at(self, tile: Tile, batch: Number, head: Number) -> Value:
        """The place of those of a head's first query."""
        attention = self.attention
        return tile.builder.let((batch * attention.heads + head) * attention.queries, "known_base")

    # ------------------------------------------------------------- statistics

    def _statistics(self) -> Stage:
        cut = self.cuts.statistics
        tile = self._tile(cut, [])
        b, known = tile.builder, self.known(tile)
        tile.need_exchange()
        place, rows = write_query_block(tile)
        tops = tile.numbers(tile.lowest, "top")
        totals = tile.numbers(0.0, "total")
        slopes = tile.numbers(0.0, "slope")
        for column in tile.blocks_of_columns():
            scores = tile.product("score", rows["q"], rows["k"].at(column))
            products = tile.product("product", rows["dy"], rows["v"].at(column))
            tile.finish(scores, tile.column_numbers(column))
            # Every thread has its own columns' maximum: only at the end they are taken together.
            for i, (top, total, slope) in enumerate(zip(tops, totals, slopes, strict=True)):
                most: Value = top
                for score in scores[i]:
                    most = b.max(most, most_of_four(b, score))
                peak = b.let(most, "peak")
                factor = b.let(tile.exp(top - peak), "factor")
                top.set(peak)
                total.set(total * factor)
                slope.set(slope * factor)
                for score, product in zip(scores[i], products[i], strict=True):
                    score.set(tile.exp(score - peak))
                    total.set(total + sum_of_four(score))
                    slope.set(slope + b.call("dot", score, product))
        peaks = tile.exchange(tops, b.max)
        parts, tilts = [], []
        for top, peak, total, slope in zip(tops, peaks, totals, slopes, strict=True):
            factor = b.let(tile.exp(top - peak), "factor")
            parts.append(b.let(total * factor, "part"))
            tilts.append(b.let(slope * factor, "tilt"))
        b.barrier()
        wholes = tile.exchange(parts, add)
        b.barrier()
        sums = tile.exchange(tilts, add)
        with b.if_(tile.across == 0):
            base = self._known_at(tile, place.batch, place.head)
            for i, number in enumerate(tile.row_numbers):
                row = b.as_unsigned(number)
                with b.if_(row < self.attention.queries):
                    share = b.choose(wholes[i] > 0.0, 1.0 / wholes[i], 0.0)
                    share = b.let(share, "share")
                    for k, value in enumerate((peaks[i], share, sums[i] * share)):
                        known[base + row + k * self.rows] = value
        return tile.dispatch.finish(self._query_blocks(cut))

    def _kept(self) -> Stage:
        """The same of what the forward pass kept: a thread for each query."""
        attention = self.attention
        reader = Reader(self.spec, self.machine, attention, WORKGROUP)
        b, queries = reader.builder, attention.queries
        known = reader.dispatch.scratch(0, COUNT * self.rows, reader.kind)
        with b.if_(b.thread < self.rows):
            head, row = b.let(b.thread // queries, "head"), b.let(b.thread % queries, "row")
            place = head // attention.heads, head % attention.heads
            bases = {n: b.let(b.index(reader.head_of(n, *place)), n) for n in ("dy", "out")}
            slope = b.variable(0.0, "slope", reader.kind)
            quads = ceil_div(attention.value_width, 4)
            with b.for_(0, quads, name="quad") as quad:
                dy, out = (reader.four(name)(base, row, quad) for name, base in bases.items())
                slope.set(slope + b.call("dot", b.let(dy), b.let(out)))
            base = b.let(b.index(reader.head_of("statistics", *place)), "statistics")
            step = reader.stride("statistics", 2)
            number = reader.number("statistics")
            found = [b.let(number(base + (row + k * step))) for k in range(2)]
            for k, value in enumerate((*found, slope)):
                known[b.thread + k * self.rows] = value
        return reader.dispatch.finish(ceil_div(self.rows, WORKGROUP))

    def _query_blocks(self, cut: Cut) -> int:
        attention = self.attention
        return ceil_div(attention.queries, cut.row_block) * attention.heads * attention.batch

    # ------------------------------------------------------------- queries

    def of_rows(self, tile: Tile, known: Memory, place: Place) -> list[Statistics]:
        """Those of a thread's rows, which are queries."""
        b, queries = tile.builder, self.attention.queries
        base = self._known_at(tile, place.batch, place.head)
        found = []
        for number in tile.row_numbers:
            row = b.as_unsigned(number)
            at = b.let(base + b.min(row, queries - 1), "known")
            top, share, mean = (known[at + k * self.rows] for k in range(COUNT))
            share = b.let(b.choose(row < queries, share, 0.0), "share")
            found.append(Statistics(top, share, mean))
        return found

    def weigh(self, tile: Tile, score: Value, own: Statistics) -> Value:
        """Probabilities of scores."""
        return tile.exp(score - own.top) * own.share

    def slopes(
        self, tile: Tile, scores: Block, products: Block, found: list[list[Statistics]]
    ) -> None:
        """Probabilities in place of scores, and the gradients of scores before bias in place of products; ``found`` are the statistics of each vector."""
        for i, c in tile.each():
            score, product, own = scores[i][c], products[i][c], found[i][c]
            score.set(self.weigh(tile, score, own))
            product.set(score * (product - own.mean))

    def uncap(self, tile: Tile, products: Block, squashed: list[list[Value]]) -> None:
        """The gradients of capped scores as those of scores."""
        if self.attention.softcap is not None:
            for i, c in tile.each():
                product, own = products[i][c], squashed[i][c]
                product.set(product * (1.0 - own * own))

    def _of_queries(self, number: int) -> Stage:
        cut, attention = self.cuts.queries, self.attention
        tile = self._tile(cut, [number])
        tile.need_weights()
        place, rows = write_query_block(tile)
        found: list[Statistics] = []
        if attention.keys:
            found = self.of_rows(tile, self.known(tile), place)
        sums = tile.start_sums("q")
        for column in tile.blocks_of_columns():
            scores = tile.product("score", rows["q"], rows["k"].at(column))
            products = tile.product("product", rows["dy"], rows["v"].at(column))
            squashed = tile.finish(scores, tile.column_numbers(column))
            self.slopes(tile, scores, products, [[own] * cut.quads for own in found])
            self.uncap(tile, products, squashed)
            tile.add_weighted(sums, products, rows["k"].at(column))
        self._scale(sums)
        write_sums(tile, sums, self.spec.body.outputs[number], [number], place)
        return tile.dispatch.finish(self._query_blocks(cut))

    def _scale(self, sums: Block) -> None:
        for own in sums:
            for value in own:
                value.set(value * self.attention.scale)

    # ------------------------------------------------------------- keys and values

    def _of_keys(self, found: dict[str, int], parts: Parts | None) -> Stage:
        cut, attention = self.cuts.keys, self.attention
        wanted_ = [name for name in ("k", "v") if name in found]
        tile = self._tile(cut, [found[name] for name in wanted_], by_query=False)
        b, each = tile.builder, attention.group if parts else 1
        tile.need_weights()
        blocks = ceil_div(attention.keys, cut.row_block)
        place = write_place(tile, blocks, attention.kv_heads * each, attention.batch)
        kv_head = b.let(place.head // each, "kv_head")
        tile.write_start(place.batch)
        tile.write_rows(place.first)
        tile.write_range(place)
        rows: dict[str, Rows] = {}
        for name in ("k", "v"):
            base = b.index(tile.head_of(name, place.batch, kv_head))
            rows[name] = Rows(name, b.let(base, f"{name}_base"), place.first)
        sums: dict[str, Block] = {name: tile.start_sums(name, f"sum_{name}") for name in wanted_}
        with b.for_(0, attention.group // each, name="member") as member:
            head = b.let(place.head if parts else kv_head * attention.group + member, "query_head")
            for name in ("q", "dy"):
                base = b.index(tile.head_of(name, place.batch, head))
                rows[name] = Rows(name, b.let(base, f"{name}_base"))
            tile.write_bases(place.batch, head)
            known = self._known_at(tile, place.batch, head)
            for column in tile.blocks_of_columns():
                self._key_block(tile, rows, sums, column, known)
        for name in wanted_:
            if name == "k":
                self._scale(sums[name])
            if parts is not None:
                _write_parts(tile, parts, name, sums[name], place)
                continue
            write_sums(tile, sums[name], self.spec.body.outputs[found[name]], [found[name]], place)
        return tile.dispatch.finish(blocks * attention.kv_heads * each * attention.batch)

    def _key_block(
        self, tile: Tile, rows: dict[str, Rows], sums: dict[str, Block], column: Value, base: Value
    ) -> None:
        """A block of queries of one head, from ``column`` on, for a block of keys."""
        known = self.known(tile)
        queries, gradients = rows["q"].at(column), rows["dy"].at(column)
        scores = tile.product("score", rows["k"], queries)
        products = tile.product("product", rows["v"], gradients) if "k" in sums else []
        numbers = tile.column_numbers(column)
        squashed = tile.finish(scores, numbers)
        found = [self._of_column(tile, known, base, number) for number in numbers]
        if "k" in sums:
            self.slopes(tile, scores, products, [found] * tile.cut.rows)
            self.uncap(tile, products, squashed)
        else:
            for i, c in tile.each():
                scores[i][c].set(self.weigh(tile, scores[i][c], found[c]))
        if "v" in sums:
            tile.add_weighted(sums["v"], scores, gradients)
            tile.builder.barrier()
        if "k" in sums:
            tile.add_weighted(sums["k"], products, queries)

    def _of_column(self, tile: Tile, known: Memory, base: Value, columns: Value) -> Statistics:
        """Those of four of a thread's columns, which are queries."""
        b, last = tile.builder, self.attention.queries - 1
        at = b.let(b.as_unsigned(b.min(columns, last)) + base, "known")
        top, share, mean = (
            b.let(b.vector([known[place + k * self.rows] for place in at.parts]))
            for k in range(COUNT)
        )
        return Statistics(top, b.let(b.choose(columns <= last, share, 0.0), "share"), mean)


def _write_parts(tile: Tile, parts: Parts, name: str, sums: Block, place: Place) -> None:
    """Leave a block's sums for who adds those of all heads; ``place`` says of which query head."""
    b, memory, quads = tile.builder, parts.memory(tile), parts.quads(name)
    for number, own in zip(tile.row_numbers, sums, strict=True):
        row = b.as_unsigned(number)
        with b.if_(row < tile.row_count):
            first = b.let(parts.row(tile, name, place, row) + tile.across)
            for w, value in enumerate(own):
                step = w * tile.cut.across
                with b.if_(None if step + tile.cut.across <= quads else tile.across + step < quads):
                    memory[first + step] = value


def write_backward(spec: Spec, machine: Machine, attention: Described, cuts: Cuts) -> Written:
    """The dispatches of the gradients that the body's results name."""
    return Gradients(spec, machine, attention, cuts).write()
