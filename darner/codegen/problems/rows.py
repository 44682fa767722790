"""What a kernel of rows computes: which reductions are made in which pass over a row, and where a pass is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.roles import is_column, is_sum, takes_one
from ...lower.specs import sizes


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
    if not node.op.facts.finds:
        return tuple(node.attrs["axes"])
    axis = node.attrs["axis"]
    return tuple(range(node.operands[0].rank)) if axis is None else (axis,)


@lru_cache(maxsize=4096)
def passes(spec: Spec, *, places: bool = False) -> Passes | None:
    """The passes of a body, or None where its reductions are not of the same rows; ``places`` says that ``argmax`` may be one."""
    body = spec.body
    found = [n for n in body.nodes if is_sum(n) or (places and n.op.facts.finds)]
    reductions = {node.id for node in found}
    if spec.kind != "rows" or not found:
        return None
    sums = [node for node in found if not node.op.facts.finds]
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
    if not alike or not fits or not _reads_its_row(body, space, axes, reductions):
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


def _reads_its_row(
    body: Any, space: tuple[int, ...], axes: tuple[int, ...], reductions: Collection[int]
) -> bool:
    """Whether no node reads another's elements elsewhere than in its own row: through no view but of its row's value."""
    inner = {
        node.id for node in body.nodes if node.id in reductions or "elementwise" in node.op.traits
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
