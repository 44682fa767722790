"""How rows are computed: which reductions in which pass, and what is kept from one pass to the next."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from ....codegen.elements.collapse import REDUCTIONS
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.roles import PLACES, is_column, takes_one
from ....lower.specs import sizes
from ..maps.template import lanes_for

MOST_KEPT = 128 * 1024
"""Bytes of a row's intermediate values that a thread keeps; beyond that they are computed again."""
MOST_PIECES = 64
MOST_CHUNKS = 64
ROWS_OF_CHUNK = 8
"""Rows, at least, that are added up before their sum is written down."""
LEAST_PIECE = 4096
FEW_UNITS = 16
COSTLY = frozenset(
    {
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "div",
        "erf",
        "erfc",
        "exp",
        "exp2",
        "expm1",
        "gather",
        "log",
        "log10",
        "log1p",
        "log2",
        "pow",
        "random_bits",
        "recip",
        "rsqrt",
        "sin",
        "sinh",
        "sqrt",
        "take_along_axis",
        "tan",
        "tanh",
    }
)
"""Ops that are worth a place in memory where a later pass needs them again."""


@dataclass(frozen=True)
class Guard:
    """Where a pass is needed: in rows where one of its conditions is as wanted. Nodes are known by their ids.

    Attributes:
        conditions: each has a value for each row, and beside it stands what that is where the pass is needed.
        choices: what is chosen by them, between something made of the pass and something that is not, and
            whether the former is what a true condition chooses.
    """

    conditions: tuple[tuple[int, bool], ...]
    choices: Mapping[int, bool]

    def otherwise(self, choice: Node) -> Node:
        """What is chosen in rows that do not need the pass."""
        return choice.operands[2 if self.choices[choice.id] else 1]


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
        return prod(rows[:-1]) * -(-rows[-1] // self.lanes)

    @property
    def chunks(self) -> int:
        """Runs of rows whose sums are added up apart."""
        return max(1, min(MOST_CHUNKS, -(-self.units // ROWS_OF_CHUNK)))

    @property
    def row_elements(self) -> int:
        """Elements that a thread goes through for one unit, whole vectors counted."""
        if self.across:
            return prod(self.outer) * (-(-self.space[-1] // self.lanes) * self.lanes)
        return prod(self.outer) * self.lanes


@dataclass(frozen=True)
class Passes:
    """Reductions of the same rows, in the order in which they can be made.

    Attributes:
        space: the shape of what is reduced.
        axes: the axes that are reduced.
        levels: the reductions, by the pass they are made in.
        columns: sums over all rows, of what the last pass has.
        level: for each node of the body, how many passes must be over before it can be computed.
        guards: for each pass, where it is needed; None where everywhere.
    """

    space: tuple[int, ...]
    axes: tuple[int, ...]
    levels: tuple[tuple[Node, ...], ...]
    columns: tuple[Node, ...]
    level: Mapping[int, int]
    guards: tuple[Guard | None, ...]


def _axes_of(node: Node) -> tuple[int, ...]:
    """What a reduction runs over; a place is one of all elements where it names no axis."""
    if node.op.name not in PLACES:
        return tuple(node.attrs["axes"])
    axis = node.attrs["axis"]
    return tuple(range(node.operands[0].rank)) if axis is None else (axis,)


@lru_cache(maxsize=4096)
def passes(spec: Spec, *, places: bool = False) -> Passes | None:
    """The passes of a body, or None where its reductions are not of the same rows; ``places`` says that ``argmax`` may be one."""
    body = spec.body
    names = (*REDUCTIONS, *PLACES) if places else REDUCTIONS
    found = [node for node in body.nodes if node.op.name in names]
    if spec.kind != "rows" or not found:
        return None
    sums = [node for node in found if node.op.name not in PLACES]
    columns = tuple(node for node in sums if is_column(node, sums))
    summed = {node.id for node in columns}
    found = [node for node in found if node.id not in summed]
    own = {node.id for node in found}
    space, axes = tuple(sizes(found[0].operands[0])), _axes_of(found[0])
    if not prod(space) or not axes:
        return None
    alike = all(
        tuple(sizes(node.operands[0])) == space and _axes_of(node) == axes for node in found
    )
    kept_shape = tuple(1 if axis in axes else size for axis, size in enumerate(space))
    gone = tuple(size for axis, size in enumerate(space) if axis not in axes)
    shapes = {tuple(sizes(output)) for output in body.outputs if output.id not in summed}
    fits = shapes <= {space, kept_shape, gone}
    if not alike or not fits or not _reads_its_row(body, space, axes, names):
        return None
    level: dict[int, int] = {}
    for node in body.nodes:
        below = max((level[i] for i in node.inputs), default=0)
        level[node.id] = below + (node.id in own)
    levels = [
        tuple(node for node in found if level[node.id] == number)
        for number in range(1, max(level[node.id] for node in found) + 1)
    ]
    guards = tuple(
        _guard(body, nodes, number, level, {kept_shape, gone} - {space})
        for number, nodes in enumerate(levels)
    )
    return Passes(space, axes, tuple(levels), columns, level, guards)


def _guard(
    body: Any,
    nodes: Sequence[Node],
    number: int,
    level: Mapping[int, int],
    of_rows: Collection[tuple[int, ...]],
) -> Guard | None:
    """Where a pass is needed, if all that is made of its results, one for each row, is chosen by conditions of the row."""
    ends = {output.id for output in body.outputs}
    found: set[tuple[int, bool]] = set()
    choices: dict[int, bool] = {}
    stack, seen = list(nodes), set[int]()
    while stack:
        node = stack.pop()
        if node.id in ends or tuple(sizes(node)) not in of_rows:
            return None
        for user in body.users(node):
            condition, *branches = user.operands
            if user.op.name == "where" and condition.id not in seen | {node.id}:
                taken = [branch.id in seen | {node.id} for branch in branches]
                if taken.count(True) == 1 and level[condition.id] <= number:
                    found.add((condition.id, taken[0]))
                    choices[user.id] = taken[0]
                    continue
            if user.op.name != "reshape" and "elementwise" not in user.op.traits:
                return None
            if user.id not in seen:
                seen.add(user.id)
                stack.append(user)
        seen.add(node.id)
    per_row = [body.nodes[i] for i in choices] + [body.nodes[i] for i, _ in found]
    if not found or any(tuple(sizes(node)) not in of_rows for node in per_row):
        return None
    guard = Guard(tuple(sorted(found)), choices)
    made = any(level[guard.otherwise(body.nodes[i]).id] > number for i in choices)
    return None if made else guard


def _unguarded(body: Any, found: Passes) -> set[int]:
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
    inner = {*REDUCTIONS, "broadcast_to"}
    return {i for i in reached if tuple(sizes(body.nodes[i])) == found.space} | {
        i for i in reached if body.nodes[i].op.name in inner
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


@lru_cache(maxsize=4096)
def row_program(spec: Spec, width: int) -> RowProgram | None:
    """How the CPU goes through the rows of a body with vectors of so many f32, or None where there is no such program (``has_rows``)."""
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
        apart = -(-length // lanes) if across and steps == 1 else steps
        pieces = max(1, min(MOST_PIECES, apart, each // LEAST_PIECE))
    plain = RowProgram(space, axes, levels, (), pieces, lanes, found.guards, columns)
    kept = _worth_keeping(spec, space, found.level, plain) if pieces == 1 else ()
    return RowProgram(space, axes, levels, kept, pieces, lanes, found.guards, columns)


def _reads_its_row(
    body: Any, space: tuple[int, ...], axes: tuple[int, ...], reductions: Collection[str]
) -> bool:
    """Whether no node reads another's elements elsewhere than in its own row: through no view but of its row's value."""
    inner = {
        node.id
        for node in body.nodes
        if node.op.name in reductions or "elementwise" in node.op.traits
    }
    for node in body.nodes:
        if node.op.name in ("broadcast_to", "reshape") or takes_one(node, space, axes):
            continue
        if node.id not in inner and any(_source(operand).id in inner for operand in node.operands):
            return False
    return True


def _source(node: Node) -> Node:
    while node.op.name in ("broadcast_to", "reshape"):
        (node,) = node.operands
    return node


def _worth_keeping(
    spec: Spec, space: tuple[int, ...], level: Mapping[int, int], plain: RowProgram
) -> tuple[Node, ...]:
    """Costly values, or those made of them, that a later pass reads again."""
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
            elif node.op.name in REDUCTIONS:
                if plain.guards[level[node.id] - 1] is None:
                    found.add(level[node.id] - 1)
            else:
                found |= passes
    costly: dict[int, bool] = {}
    result, taken = [], 0
    for node in body.nodes:
        operands = node.operands
        costly[node.id] = node.op.name in COSTLY or (
            node.op.name not in REDUCTIONS and any(costly[operand.id] for operand in operands)
        )
        full = tuple(sizes(node)) == space and node.op.name not in ("input", "broadcast_to")
        again = len(wanted_in[node.id]) > 1
        if full and again and costly[node.id]:
            costly[node.id] = False
            bytes_ = room(plain.row_elements, node.dtype.itemsize)
            if taken + bytes_ <= MOST_KEPT:
                result.append(node)
                taken += bytes_
    return tuple(result)


def room(elements: int, itemsize: int) -> int:
    """Bytes of so many elements, whole lines."""
    return -(-elements * itemsize // 64) * 64
