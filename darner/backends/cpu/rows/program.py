"""How the CPU goes through rows: pieces of long ones, vectors, and what is kept from one pass to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ....codegen.problems.rows import Guard, Passes, passes
from ....graph.graph import Graph
from ....graph.integers import ceil_div, round_up
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.roles import is_sum
from ....lower.specs import sizes
from ..maps.template import lanes_for
from ..model import CpuModel
from ..runtime.jit import Machine

MOST_KEPT = 1 / 8
"""Of the cache next to a core, a row's intermediate values that a thread keeps; beyond that they are computed again."""
MOST_PIECES = 64
MOST_CHUNKS = 64
ROWS_OF_CHUNK = 8
"""Rows, at least, that are added up before their sum is written down."""
LEAST_PIECE = 4096
FEW_UNITS = 16


@dataclass(frozen=True)
class RowProgram:
    """How the rows of a body are computed.

    Attributes:
        space: the shape of what is reduced.
        axes: the axes that are reduced.
        levels: the reductions, by the pass they are made in.
        kept: nodes whose values are kept from the pass that first computes them.
        pieces: parts of a row that are reduced apart.
        lanes: elements computed together.
        guards: for each pass, where it is needed; None where everywhere.
        columns: sums over all rows, of what the last pass has.
    """

    space: tuple[int, ...]
    axes: tuple[int, ...]
    levels: tuple[tuple[Node, ...], ...]
    kept: tuple[Node, ...]
    pieces: int
    lanes: int
    guards: tuple[Guard | None, ...]
    columns: tuple[Node, ...] = ()

    @property
    def across(self) -> bool:
        """Whether lanes are elements of one row."""
        return self.axes[-1] == len(self.space) - 1

    @property
    def others(self) -> tuple[int, ...]:
        """The axes along which rows lie."""
        return tuple(axis for axis in range(len(self.space)) if axis not in self.axes)

    @property
    def outer(self) -> tuple[int, ...]:
        """The sizes of a row that are gone through one by one: all but that of the lanes."""
        reduced = [self.space[axis] for axis in self.axes]
        return tuple(reduced[:-1] if self.across else reduced)

    @property
    def units(self) -> int:
        """Rows, or blocks of rows side by side."""
        rows = [self.space[axis] for axis in self.others]
        if self.across:
            return prod(rows)
        return prod(rows[:-1]) * ceil_div(rows[-1], self.lanes)

    @property
    def chunks(self) -> int:
        """Runs of rows whose sums are added up apart."""
        return max(1, min(MOST_CHUNKS, ceil_div(self.units, ROWS_OF_CHUNK)))

    @property
    def row_elements(self) -> int:
        """Elements that a thread goes through for one unit, whole vectors counted."""
        if self.across:
            return prod(self.outer) * (round_up(self.space[-1], self.lanes))
        return prod(self.outer) * self.lanes


def _unguarded(body: Graph, found: Passes) -> set[int]:
    """The nodes that are computed for each element in all rows, of a body with passes that are not."""
    stack = list(body.outputs)
    guarded = {
        node.id
        for nodes, guard in zip(found.levels, found.guards, strict=True)
        if guard is not None
        for node in nodes
    }
    reached: set[int] = set()
    while stack:
        node = stack.pop()
        if node.id not in reached and node.id not in guarded:
            reached.add(node.id)
            stack += node.operands
    return {
        i
        for i, node in ((i, body.nodes[i]) for i in reached)
        if tuple(sizes(node)) == found.space or is_sum(node) or node.op.name == "broadcast_to"
    }


def has_rows(spec: Spec) -> bool:
    """Whether there is a row program of a body. Lowering asks, so it is the same for every machine."""
    found = passes(spec)
    if found is None:
        return False
    if not found.columns:
        return True
    # Sums over all rows are made on the way along whole rows, one after another.
    length, rows = found.space[-1], prod(found.space[:-1])
    whole = found.axes == (len(found.space) - 1,)
    return whole and not _in_pieces(rows, length)


def _in_pieces(units: int, each: int) -> bool:
    """Whether rows are cut: there are few, and each is long."""
    return units < FEW_UNITS and each >= 4 * LEAST_PIECE


def most_kept(machine: Machine) -> int:
    """Bytes of a row's values that are kept on a machine."""
    return CpuModel.of(machine).of_l2(MOST_KEPT)


@lru_cache(maxsize=4096)
def row_program(spec: Spec, width: int, most: int) -> RowProgram | None:
    """How the CPU goes through the rows of a body with vectors of so many f32, keeping ``most`` bytes of one, or None where there is no such program (``has_rows``)."""
    found = passes(spec)
    if found is None or not has_rows(spec):
        return None
    body, space, axes, levels, columns = (
        spec.body,
        found.space,
        found.axes,
        found.levels,
        found.columns,
    )
    across = axes[-1] == len(space) - 1
    length = space[-1]
    # Where lanes are rows, a loop goes on for each of them: there need not be several blocks of them.
    counted = _unguarded(body, found) if any(found.guards) else None
    lanes = lanes_for(body, width, length if across else 2 * length, counted)
    if length < width:
        lanes = max(1, 1 << (length - 1).bit_length()) if across else width
    plain = RowProgram(space, axes, levels, (), 1, lanes, found.guards)
    each = prod(space) // plain.units
    pieces = 1
    if _in_pieces(plain.units, each):
        steps = prod(plain.outer)
        apart = ceil_div(length, lanes) if across and steps == 1 else steps
        pieces = max(1, min(MOST_PIECES, apart, each // LEAST_PIECE))
    plain = RowProgram(space, axes, levels, (), pieces, lanes, found.guards, columns)
    kept = _worth_keeping(spec, space, found.level, plain, most) if pieces == 1 else ()
    return RowProgram(space, axes, levels, kept, pieces, lanes, found.guards, columns)


def _worth_keeping(
    spec: Spec, space: tuple[int, ...], level: Mapping[int, int], plain: RowProgram, most: int
) -> tuple[Node, ...]:
    """Costly values, or those made of them, that a later pass reads again, ``most`` bytes of them."""
    body = spec.body
    last = len(plain.levels)
    summed = {node.id for node in plain.columns}
    ends = {output.id for output in body.outputs}
    wanted_in: dict[int, set[int]] = {}
    for node in reversed(body.nodes):
        passes = wanted_in.setdefault(node.id, set())
        if node.id in ends:
            passes.add(last)
        for i in node.inputs:
            found = wanted_in.setdefault(i, set())
            if node.op.name == "take_along_axis":
                continue  # one element, which is computed by itself
            if node.id in summed:
                found.add(last)
            elif is_sum(node):
                if plain.guards[level[node.id] - 1] is None:
                    found.add(level[node.id] - 1)
            else:
                found |= passes
    costly: dict[int, bool] = {}
    result, taken = [], 0
    for node in body.nodes:
        operands = node.operands
        costly[node.id] = node.op.facts.effort != "little" or (
            not is_sum(node) and any(costly[operand.id] for operand in operands)
        )
        full = tuple(sizes(node)) == space and node.op.name not in ("input", "broadcast_to")
        again = len(wanted_in[node.id]) > 1
        if full and again and costly[node.id]:
            costly[node.id] = False
            bytes_ = room(plain.row_elements, node.dtype.itemsize)
            if taken + bytes_ <= most:
                result.append(node)
                taken += bytes_
    return tuple(result)


def room(elements: int, itemsize: int) -> int:
    """Bytes of so many elements, whole lines."""
    return round_up(elements * itemsize, 64)
