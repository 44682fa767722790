"""The gradients of attention, without anything that two workgroups add to.

First each query's maximum, total and mean slope; then blocks of queries sum their gradients over keys, and blocks of keys theirs and those of values over the queries of
all heads that share them. Scores are computed again each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....lower.plan import Spec
from ....lower.specs import sizes
from ...problems.attention import GRADIENTS, Described
from ..builder import Memory
from ..dispatch import Stage, Written
from ..machine import Machine
from .bias import write_bias
from .forward import write_place, write_query_block
from .plan import Cut, choose
from .results import are_whole, write_sums
from .tile import Rows, Tile, most_of_four, sum_of_four

STATISTICS = ("top", "share", "mean")
"""What is known of each query: its maximum, 1 over its total (0 where it sees nothing), and its mean slope."""


@dataclass(frozen=True)
class Cuts:
    """How each of the dispatches is cut."""

    statistics: Cut
    queries: Cut
    keys: Cut


def backward_cuts(attention: Described, machine: Machine) -> Cuts | None:
    """How the gradients are cut; None where nothing fits."""
    heads, both = attention.batch * attention.heads, (attention.width, attention.value_width)
    shared = attention.batch * attention.kv_heads
    first = choose(attention, machine, attention.queries, heads, both, ())
    second = choose(attention, machine, attention.queries, heads, both, both[:1])
    third = choose(attention, machine, attention.keys, shared, both, both)
    if first is None or second is None or third is None:
        return None
    return Cuts(first, second, third)


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
        stages = [self._statistics()] if self.rows and self.attention.keys else []
        if "q" in found:
            stages.append(self._of_queries(found["q"]))
        if "k" in found or "v" in found:
            stages.append(self._of_keys(found))
        if "bias" in found:
            stages.append(write_bias(self, found["bias"]))
        return Written(tuple(stages), max(1, self.rows * len(STATISTICS)) * self._size)

    @property
    def _size(self) -> int:
        return 8 if self.attention.accumulator == "f64" else 4

    def _tile(self, cut: Cut, numbers: list[int], *, by_query: bool = True) -> Tile:
        whole = are_whole(self.spec, numbers)
        return Tile(self.spec, self.machine, self.attention, cut, by_query=by_query, whole=whole)

    def known(self, tile: Tile) -> Memory:
        """The statistics in scratch memory: all maxima, then all shares, then all means."""
        return tile.shader.scratch(0, max(1, len(STATISTICS) * self.rows), tile.kind)

    # ------------------------------------------------------------- statistics

    def _statistics(self) -> Stage:
        cut = self.cuts.statistics
        tile = self._tile(cut, [])
        known = self.known(tile)
        tile.need_exchange()
        rows = write_query_block(tile)
        zero = tile.constant(0.0)
        for i in range(cut.rows):
            tile.line(f"var top_{i} = {tile.lowest};")
            tile.line(f"var total_{i} = {zero};")
            tile.line(f"var slope_{i} = {zero};")
        for _ in tile.blocks_of_columns():
            tile.product("s", rows["q"], rows["k"])
            tile.product("g", rows["dy"], rows["v"])
            tile.write_columns("column")
            tile.finish("s")
            # Every thread has its own columns' maximum: only at the end they are taken together.
            for i in range(cut.rows):
                most = f"top_{i}"
                for c in range(cut.quads):
                    most = f"max({most}, {most_of_four(f's_{i}_{c}')})"
                tile.line(f"let peak_{i} = {most};")
                tile.line(f"let factor_{i} = {tile.exp(f'top_{i} - peak_{i}')};")
                tile.line(f"top_{i} = peak_{i};")
                tile.line(f"total_{i} = total_{i} * factor_{i};")
                tile.line(f"slope_{i} = slope_{i} * factor_{i};")
                for c in range(cut.quads):
                    own = f"s_{i}_{c}"
                    tile.line(f"{own} = {tile.exp_of_four(f'{own} - peak_{i}')};")
                    tile.line(f"total_{i} += {sum_of_four(own)};")
                    tile.line(f"slope_{i} += dot({own}, g_{i}_{c});")
        tile.exchange("top", "peak", lambda a, b: f"max({a}, {b})")
        for i in range(cut.rows):
            tile.line(f"let factor_{i} = {tile.exp(f'top_{i} - peak_{i}')};")
            tile.line(f"let part_{i} = total_{i} * factor_{i};")
            tile.line(f"let tilt_{i} = slope_{i} * factor_{i};")
        tile.shader.barrier()
        tile.exchange("part", "whole", lambda a, b: f"{a} + {b}")
        tile.shader.barrier()
        tile.exchange("tilt", "sum", lambda a, b: f"{a} + {b}")
        one = tile.constant(1.0)
        base = f"(batch * {self.attention.heads}u + head) * {self.attention.queries}u"
        with tile.writer.block("if (across == 0u)"):
            for i in range(cut.rows):
                with tile.writer.block(f"if (u32(row_{i}) < {self.attention.queries}u)"):
                    tile.line(f"let at = {base} + u32(row_{i});")
                    tile.line(f"let some = whole_{i} > {zero};")
                    tile.line(f"let share = select({zero}, {one} / whole_{i}, some);")
                    for k, value in enumerate((f"peak_{i}", "share", f"sum_{i} * share")):
                        tile.line(f"{known.name}[at + {k * self.rows}u] = {value};")
        return tile.shader.finish(self._query_blocks(cut))

    def _query_blocks(self, cut: Cut) -> int:
        attention = self.attention
        return -(-attention.queries // cut.row_block) * attention.heads * attention.batch

    # ------------------------------------------------------------- queries

    def read_rows(self, tile: Tile, known: Memory) -> None:
        """``top_i``, ``share_i`` and ``mean_i`` of a thread's rows, which are queries."""
        attention = self.attention
        tile.line(f"let known_base = (batch * {attention.heads}u + head) * {attention.queries}u;")
        for i in range(tile.cut.rows):
            tile.line(f"let known_{i} = known_base + min(u32(row_{i}), {attention.queries - 1}u);")
            for k, name in enumerate(STATISTICS):
                tile.line(f"var {name}_{i} = {known.name}[known_{i} + {k * self.rows}u];")
            outside = f"u32(row_{i}) >= {attention.queries}u"
            tile.line(f"if ({outside}) {{ share_{i} = {tile.constant(0.0)}; }}")

    def slopes(self, tile: Tile, i: int, c: int, top: str, share: str, mean: str) -> None:
        """Probabilities in place of scores ``s``, and the gradients of scores before bias in place of products ``g``."""
        own, other = f"s_{i}_{c}", f"g_{i}_{c}"
        tile.line(f"{own} = {tile.exp_of_four(f'{own} - {top}')} * {share};")
        tile.line(f"{other} = {own} * ({other} - {mean});")

    def uncap(self, tile: Tile, i: int, c: int) -> None:
        """The gradients of capped scores as those of scores."""
        if self.attention.softcap is not None:
            own, squashed = f"g_{i}_{c}", f"squashed_{i}_{c}"
            one = f"{tile.vector}({tile.constant(1.0)})"
            tile.line(f"{own} = {own} * ({one} - {squashed} * {squashed});")

    def _of_queries(self, number: int) -> Stage:
        cut, attention = self.cuts.queries, self.attention
        tile = self._tile(cut, [number])
        tile.need_weights()
        rows = write_query_block(tile)
        if attention.keys:
            self.read_rows(tile, self.known(tile))
        tile.start_sums("sum", "q")
        for _ in tile.blocks_of_columns():
            tile.product("s", rows["q"], rows["k"])
            tile.product("g", rows["dy"], rows["v"])
            tile.write_columns("column")
            tile.finish("s")
            for i, c in tile.each():
                self.slopes(tile, i, c, f"top_{i}", f"share_{i}", f"mean_{i}")
                self.uncap(tile, i, c)
            tile.add_weighted("sum", "g", rows["k"])
        self._scale(tile, "sum", "q")
        output = self.spec.body.outputs[number]
        write_sums(tile, "sum", output, [number], "first", "batch", "head")
        return tile.shader.finish(self._query_blocks(cut))

    def _scale(self, tile: Tile, target: str, name: str) -> None:
        scale = tile.constant(self.attention.scale)
        for i in range(tile.cut.rows):
            for w in range(tile.cut.summed(tile.width(name))):
                tile.line(f"{target}_{i}_{w} = {target}_{i}_{w} * {scale};")

    # ------------------------------------------------------------- keys and values

    def _of_keys(self, found: dict[str, int]) -> Stage:
        cut, attention = self.cuts.keys, self.attention
        numbers = [found[name] for name in ("k", "v") if name in found]
        tile = self._tile(cut, numbers, by_query=False)
        tile.need_weights()
        blocks = -(-attention.keys // cut.row_block)
        write_place(tile, blocks, attention.kv_heads, attention.batch)
        tile.write_start("batch")
        tile.write_rows("first")
        tile.write_range("first")
        for name in ("k", "v"):
            tile.line(f"let {name}_base = {tile.head_of(name, 'batch', 'head')};")
            if name in found:
                tile.start_sums(f"sum_{name}", name)
        with tile.counted("member", "0u", f"{attention.group}u", 1):
            tile.line(f"let query_head = head * {attention.group}u + member;")
            for name in ("q", "dy"):
                tile.line(f"let {name}_base = {tile.head_of(name, 'batch', 'query_head')};")
            for name in ("mask", "bias"):
                if name in attention.operands:
                    tile.write_bases(name, "batch", "query_head")
            place = f"(batch * {attention.heads}u + query_head) * {attention.queries}u"
            tile.line(f"let known_base = {place};")
            for _ in tile.blocks_of_columns():
                self._key_block(tile, self.known(tile), found)
        for name, number in found.items():
            if name in ("k", "v"):
                if name == "k":
                    self._scale(tile, "sum_k", "k")
                output = self.spec.body.outputs[number]
                write_sums(tile, f"sum_{name}", output, [number], "first", "batch", "head")
        return tile.shader.finish(blocks * attention.kv_heads * attention.batch)

    def _key_block(self, tile: Tile, known: Memory, found: dict[str, int]) -> None:
        """A block of queries of one head, for a block of keys."""
        rows = {
            name: Rows(name, f"{name}_base", "first" if name in ("k", "v") else "column")
            for name in ("q", "k", "v", "dy")
        }
        tile.product("s", rows["k"], rows["q"])
        if "k" in found:
            tile.product("g", rows["v"], rows["dy"])
        tile.write_columns("column")
        tile.finish("s")
        self._read_columns(tile, known)
        for i, c in tile.each():
            if "k" in found:
                self.slopes(tile, i, c, f"top_{c}", f"share_{c}", f"mean_{c}")
                self.uncap(tile, i, c)
            else:
                own = f"s_{i}_{c}"
                tile.line(f"{own} = {tile.exp_of_four(f'{own} - top_{c}')} * share_{c};")
        if "v" in found:
            tile.add_weighted("sum_v", "s", rows["dy"])
            tile.shader.barrier()
        if "k" in found:
            tile.add_weighted("sum_k", "g", rows["q"])

    def _read_columns(self, tile: Tile, known: Memory) -> None:
        """``top_c``, ``share_c`` and ``mean_c`` of a thread's columns, which are queries."""
        queries = self.attention.queries
        for c in range(tile.cut.quads):
            last = f"vec4<i32>({queries - 1}i)"
            tile.line(f"let known_{c} = known_base + vec4<u32>(min(columns_{c}, {last}));")
            for k, name in enumerate(STATISTICS):
                parts = (f"{known.name}[known_{c}.{axis} + {k * self.rows}u]" for axis in "xyzw")
                text = f"{tile.vector}({', '.join(parts)})"
                if name == "share":
                    text = f"select({tile.vector}(), {text}, columns_{c} <= {last})"
                tile.line(f"let {name}_{c} = {text};")


def write_backward(spec: Spec, machine: Machine, attention: Described, cuts: Cuts) -> Written:
    """The dispatches of the gradients that the body's results name."""
    return Gradients(spec, machine, attention, cuts).write()
