"""An attention problem, and how it is cut into panels of queries and blocks of keys.

Scores are stored transposed: a row is one key, and its lanes are queries. So keys and values are read in place, the
maxima and sums of a softmax run down the lanes, and the probabilities already are the panel that the next product reads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from ....codegen.ir.types import STORAGE_BYTES
from ....codegen.problems.attention import (
    Described,
    described,
)
from ....graph.cached import cached_property
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ..contract.tile import Tile
from ..model import CpuModel
from ..runtime.jit import Machine

# Rows of keys kept in registers for each number of vectors of queries, by vector width.
_ROWS = {
    64: {4: 4, 3: 8, 2: 8, 1: 8},
    32: {2: 6, 1: 8},
    16: {4: 4, 3: 8, 2: 8, 1: 8},
}
# How much longer an element takes with fewer vectors, where values are loaded for fewer products.
_SLOWNESS = {4: 1.0, 3: 1.02, 2: 1.1, 1: 1.3}

BLOCK = 3 / 4
"""Of the nearest cache, the scores of a block of keys: they and the panel of queries stay there."""
STRIP = 1 / 4
"""Of the cache next to a core, the most scores of one panel of queries that a gradient keeps; it computes them again where there are more."""
UNITS = 32
"""Pieces of work into which sums are cut, the same for any number of threads."""
SHORTEST_PART = 128
"""The fewest keys that a piece of work has."""
FEWEST_PANELS, PANELS_OF_THREAD = 8, 4
"""Panels that must be left to share out where heads are stacked: in all, and for each thread."""
STACKING = 0.85
"""Of the time without, what a stack of heads must be predicted to take."""


@dataclass(frozen=True)
class Attention(Described):
    """An attention as it is cut for a CPU."""

    tile: Tile
    vector_bytes: int
    model: CpuModel
    stack: int = 1
    """Heads of the graph whose queries are worked on as those of one, which then has all of them, head after head."""

    @property
    def queries_of_head(self) -> int:
        """Queries of one head of the graph."""
        return self.queries // self.stack

    @property
    def size(self) -> int:
        """Bytes of a number that is computed with."""
        return STORAGE_BYTES[self.accumulator]

    @property
    def lanes(self) -> int:
        """Numbers in a vector."""
        return self.tile.lanes

    @property
    def panel(self) -> int:
        """Queries that are worked on together."""
        return self.tile.width

    @property
    def panels(self) -> int:
        """Panels of one head's queries."""
        return ceil_div(self.queries, self.panel)

    @cached_property
    def block(self) -> int:
        """Keys that are worked on together."""
        most = max(1, self.model.of_l1(BLOCK) // (self.panel * self.size * self.tile.rows))
        return min(most, ceil_div(max(self.keys, 1), self.tile.rows)) * self.tile.rows

    @property
    def has_few_queries(self) -> bool:
        """Whether lanes are better filled with widths than with queries, as when decoding."""
        return self.queries <= max(1, self.lanes // 4)

    @cached_property
    def part(self) -> int:
        """Keys of one piece of work, where there are few queries."""
        wanted = ceil_div(UNITS, max(1, self.batch * self.kv_heads))
        keys = max(SHORTEST_PART, ceil_div(self.keys, wanted))
        return self.padded(min(keys, max(self.keys, 1)))

    @property
    def parts(self) -> int:
        """Pieces of work of one key head, where there are few queries."""
        return ceil_div(self.keys, self.part)

    def is_transposed(self, name: str) -> bool:
        """Whether a mask or bias is transposed block by block: it has an element for each query and key."""
        item = self.operands.get(name)
        return item is not None and item.strides[2] != 0 and item.strides[3] != 0

    def padded(self, count: int) -> int:
        """Whole vectors."""
        return round_up(count, self.lanes)


class Room:
    """Places in scratch memory, one after the other."""

    def __init__(self) -> None:
        self.bytes = 0

    def take(self, elements: int, size: int) -> int:
        """The place of so many elements, in bytes; it begins a cache line."""
        start = self.bytes
        self.bytes += round_up(elements * size, 64)
        return start


def describe(node: Node, machine: Machine) -> Attention:
    """The attention that a node of a body computes, cut for a machine."""
    found = described(node)
    lanes = machine.vector_bytes // STORAGE_BYTES[found.accumulator]
    tile = query_tile(machine, lanes, found.queries, found.keys, found.causal)
    model = CpuModel.of(machine)
    return Attention(**vars(found), tile=tile, vector_bytes=machine.vector_bytes, model=model)


def query_tile(
    machine: Machine, lanes: int, queries: int, keys: int = 1, causal: bool = False
) -> Tile:
    """The keys and vectors of queries that are kept in registers, so that little work is done for nothing.

    >>> from types import SimpleNamespace
    >>> wide = SimpleNamespace(vector_bytes=64)
    >>> query_tile(wide, 16, 256), query_tile(wide, 16, 96).width, query_tile(wide, 16, 5).width
    (Tile(rows=4, vectors=4, lanes=16), 48, 16)
    >>> query_tile(wide, 16, 128, 128, causal=True).width
    32
    """
    rows = _ROWS[machine.vector_bytes]
    vectors = min(
        sorted(rows, reverse=True),
        key=lambda count: _cost(count * lanes, lanes, queries, keys, causal),
    )
    return Tile(rows[vectors], vectors, lanes)


def _cost(width: int, lanes: int, queries: int, keys: int, causal: bool) -> float:
    """What the scores of a head take in panels of ``width`` queries, in elements of full panels."""
    ends = range(width, max(queries, 1) + width, width)
    # The keys up to a panel's last query, as if the last stood at the last key.
    seen = sum(min(keys, max(1, end + keys - queries)) if causal else keys for end in ends)
    return seen * width * _SLOWNESS[width // lanes]


def stacked(attention: Attention, machine: Machine) -> Attention:
    """The same with the heads that share keys as one head, where a head's few queries would leave most lanes empty.

    Keys are then read once for all of these heads.
    """
    group, lanes, keys = attention.group, attention.lanes, attention.keys
    queries = group * attention.queries
    if group == 1 or "mask" in attention.operands or "bias" in attention.operands:
        return attention
    if attention.has_few_queries and 2 * queries <= lanes:
        return attention  # a query after the other is less work
    tile = query_tile(machine, lanes, queries, keys)
    separate = _cost(attention.panel, lanes, attention.queries, keys, attention.causal)
    panels = attention.batch * attention.kv_heads * ceil_div(queries, tile.width)
    together = _cost(tile.width, lanes, queries, keys, causal=False)
    fewest = max(FEWEST_PANELS, PANELS_OF_THREAD * attention.model.threads)
    if panels < fewest or together > STACKING * group * separate:
        return attention
    return replace(attention, heads=attention.kv_heads, queries=queries, tile=tile, stack=group)


def row_tile(attention: Attention, count: int) -> Tile:
    """The tile of ``count`` rows of a product over a panel of queries."""
    return Tile(count, attention.tile.vectors, attention.lanes)


def column_tiles(attention: Attention, width: int) -> list[Tile]:
    """Tiles side by side that cover ``width`` columns of a product of keys and widths.

    Their rows divide those of a panel's tile, so that a block of keys is whole tiles of either.
    """
    limits, step = _ROWS[attention.vector_bytes], attention.tile.rows
    vectors = attention.padded(width) // attention.lanes
    most = max(limits)
    found = [most] * (vectors // most)
    if vectors % most:
        found.append(vectors % most)
    rows = {count: max(n for n in range(1, limits[count] + 1) if step % n == 0) for count in found}
    return [Tile(rows[count], count, attention.lanes) for count in found]


def made_bases(spec: Spec, attention: Attention) -> list[Node]:
    """What operands are views of that is no buffer: constants, and what is made of counters."""
    leaves = {leaf.id for leaf in spec.inputs}
    found: dict[int, Node] = {}
    for item in attention.operands.values():
        if item.base.id not in leaves:
            found[item.base.id] = item.base
    return list(found.values())


def made_offsets(spec: Spec, attention: Attention, room: Room) -> dict[int, int]:
    """Where those are put in shared memory, in bytes."""
    return {
        base.id: room.take(prod(int(n) for n in base.shape), max(1, base.dtype.bits // 8))
        for base in made_bases(spec, attention)
    }
