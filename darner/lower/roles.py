"""What part a node can play in a kernel; ops say it themselves (``graph.facts``).

view      the same elements, found elsewhere: it is a way to read, and never a kernel of its own
point     each element of the result from a few elements of the operands: it can be computed wherever it is read
reduce    many elements into one, along axes
contract  products summed, and windows pooled: what is element-wise after them is done where they write
host      a function of NumPy arrays, called between kernels: a user's op without scalar code
loop      a plan of its own, repeated (``lower.loops``)
others    kernels of a kind of their own, named by that kind
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from ..graph.dims import Dim
from ..graph.facts import Role
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import OPS
from ..graph.types import TupleType
from ..ops.faults import calls_host
from .strided import (
    Multipliers,
    contractions,
    is_readable,
    is_tf32,
    is_view,
    is_widening,
)

MOST_TAPS = 128
"""Elements of a window, in a kernel of pooling: what is done for each is written out."""
FARTHEST = 8
"""Elements from one window to the next along a row, in a kernel of pooling."""

PER_INDEX = 32
"""Elements that are written and read in the time that one index takes to be put in order."""


def is_sum(node: Node) -> bool:
    """Whether a node is a reduction of values: a sum, a product, an extreme, but no index of one."""
    return node.op.facts.role == "reduce" and not node.op.facts.finds


def whole_ops() -> frozenset[str]:
    """The composites that have a kernel of their own; all others are written out before."""
    return frozenset(name for name, op in OPS.items() if op.facts.whole)


def pooling_ops() -> frozenset[str]:
    """The ops that go through windows of an image."""
    return frozenset(name for name, op in OPS.items() if op.facts.pools)


def ended_ops() -> frozenset[str]:
    """The ops by index whose kernels may end with what is element-wise after them, where a target has such kernels."""
    return frozenset(name for name, op in OPS.items() if op.facts.ends)


def may_end(node: Node, ended: Collection[str]) -> bool:
    """Whether the kernel of a node by index may end with what is element-wise after it.

    It then goes through its result once, and looks up what was added where: that pays unless there are many indices for few elements.
    """
    if node.op.name not in ended:
        return False
    indices = node.operands[node.slots.index("indices")]
    return PER_INDEX * math.prod(map(int, indices.shape)) <= math.prod(map(int, node.shape))


def stays_whole(node: Node) -> bool:
    """Whether a composite that may stay whole is one of those that its kernel is for.

    Pooling is for floats and small windows; one window over all of an image is a reduction of rows.
    """
    if not node.op.facts.pools:
        return True
    window, counts = node.attrs["window"], node.operands[-1].shape[2:]
    if not node.op.name.endswith("backward"):
        counts = node.shape[2:]
    small = math.prod(window) <= MOST_TAPS and node.attrs["stride"][-1] <= FARTHEST
    return node.dtype.is_float and small and math.prod(map(int, counts)) > 1


def roles(graph: Graph, multipliers: Multipliers | None = None) -> list[Role]:
    """The part that each node of a graph plays, on a target with these multipliers (that read all there is, when left out)."""
    multipliers = Multipliers(contractions()) if multipliers is None else multipliers
    found: list[Role] = []
    numbers: list[bool] = []
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    for node in graph.nodes:
        own = role(node)
        number = node.op.name == "iota" or (
            bool(node.inputs)
            and (own == "view" or node.op.facts.cheap)
            and all(_is_scalar(graph.nodes[i]) or numbers[i] for i in node.inputs)
            and any(numbers[i] for i in node.inputs)
        )
        numbers.append(number)
        found.append("view" if number and node.id not in ends else own)
    for node in graph.nodes:
        if node.id in ends:
            continue
        names = _readers(node, multipliers)
        if (names and _only_multiplied(graph, node, names)) or (
            node.op.facts.decodes and _only_decoded(graph, node)
        ):
            found[node.id] = "view"
    for node in graph.nodes:
        facts = node.op.facts
        if facts.whole or facts.reads_rows or facts.role == "loop":
            for operand in node.operands:
                if found[operand.id] == "view" and not is_readable(node, operand, multipliers):
                    found[_copied(operand)] = "point"
    return found


def _copied(view: Node) -> int:
    """Which value is copied where a view cannot be read as it lies: what is widened or rounded by its reader, as it was before."""
    given = is_widening(view) or is_tf32(view)
    return view.inputs[0] if given and is_view(view.operands[0]) else view.id


def _readers(node: Node, multipliers: Multipliers) -> frozenset[str]:
    """The contractions that make a node of what lies in memory as they read that; none of most nodes."""
    if is_widening(node):
        return multipliers.halves
    return multipliers.tf32 if is_tf32(node) else frozenset()


def _only_multiplied(graph: Graph, node: Node, names: Collection[str]) -> bool:
    """Whether all that is done with a float of fewer bits is to multiply it, in contractions of these names, which read it as it is stored."""
    stack = list(graph.users(node))
    while stack:
        user = stack.pop()
        if is_view(user):
            stack += graph.users(user)
        elif user.op.name not in names:
            return False
        else:
            slots = user.op.facts.multiplies
            pairs = list(zip(user.operands, user.slots, strict=True))
            if {_stored(x) for x, slot in pairs if slot in slots} != {_stored(node)}:
                return False
            if any(_source(x).id == node.id for x, slot in pairs if slot not in slots):
                return False
    return bool(graph.users(node))


def is_for_products(node: Node, readers: Collection[Role]) -> bool:
    """Whether products are among the readers of a value: they cannot make it of its operands, and a kernel for it alone would read these once more."""
    return not {"contract", "attention"}.isdisjoint(readers)


def _only_decoded(graph: Graph, node: Node) -> bool:
    """Whether all that is done with decoded weights is to multiply rows by them, which then decodes them as it goes."""
    weights = [node]
    users: list[tuple[Node, Node]] = []
    for weight in weights:
        for user in graph.users(weight):
            if user.op.name == "transpose" and node.rank == 2:
                weights.append(user)
            else:
                users.append((weight, user))
    ends = {end.id for end in (*graph.outputs, *graph.updates.values())}
    if ends.intersection(weight.id for weight in weights):
        return False
    return bool(users) and all(decodes_operand(user, weight) for weight, user in users)


def decodes_operand(user: Node, weight: Node) -> bool:
    """Whether a node is a product of what lies in memory and a matrix that it can decode, or one for each of a batch."""
    if user.op.name != "dot_general" or weight.dtype.name != "f32":
        return False
    others = [operand for operand in user.operands if operand.id != weight.id]
    if len(others) != 1 or _source(others[0]).op.facts.decodes:
        return False
    side = "a" if user.inputs[0] == weight.id else "b"
    batch = tuple(range(weight.rank - 2))
    return len(user.attrs[f"{side}_contract"]) == 1 and user.attrs[f"{side}_batch"] == batch


def _source(node: Node) -> Node:
    """What a node is a view of."""
    while is_view(node):
        (node,) = node.operands
    return node


def _stored(node: Node) -> str:
    """The element type that an operand has where it is multiplied."""
    node = _source(node)
    if is_tf32(node):
        return "tf32"
    return (node.operands[0] if is_widening(node) else node).dtype.name


def takes_one(node: Node, space: Sequence[Dim], axes: Sequence[int]) -> bool:
    """Whether a node is one element of each row, at a place that the row knows: the label's of a loss.

    ``space`` is the shape of all rows together, ``axes`` are those that run along a row.
    """
    if node.op.name != "take_along_axis" or tuple(axes) != (node.attrs["axis"],):
        return False
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(space))
    return tuple(node.operands[0].shape) == tuple(space) and tuple(node.shape) == kept


Along = tuple[int | None, ...]
"""For each axis of a value, the axis of its rows that it runs along; None where it has one element, or repeats it."""


def is_of_rows(shape: Sequence[Dim], space: Sequence[Dim], axes: Sequence[int]) -> bool:
    """Whether a shape has one element for each of all rows together, or one for each row, whose axes are of size 1 or gone."""
    kept = tuple(1 if i in axes else size for i, size in enumerate(space))
    gone = tuple(size for i, size in enumerate(space) if i not in axes)
    return tuple(shape) in (tuple(space), kept, gone)


def runs_along(shape: Sequence[Dim], space: Sequence[Dim], axes: Sequence[int]) -> Along:
    """Along what the axes of a value run that has one element for each of all rows together, or one for each row.

    >>> runs_along((6, 4), (6, 4), (1,)), runs_along((6, 1), (6, 4), (1,)), runs_along((6,), (6, 4), (1,))
    ((0, 1), (0, None), (0,))
    """
    every = range(len(space))
    along = every if len(shape) == len(space) else [axis for axis in every if axis not in axes]
    return tuple(None if size == 1 else axis for size, axis in zip(shape, along, strict=True))


def seen_through(view: Node, along: Along) -> Along | None:
    """Along what the axes of a view run, of a value whose own do so; None where it gives elements in another order."""
    (x,) = view.operands
    if view.op.name == "broadcast_to":
        return (None,) * (view.rank - x.rank) + along
    if view.op.name != "reshape":
        return None
    given = [(size, axis) for size, axis in zip(x.shape, along, strict=True) if size != 1]
    if [size for size, _ in given] != [size for size in view.shape if size != 1]:
        return None
    left = iter(given)
    return tuple(None if size == 1 else next(left)[1] for size in view.shape)


def is_aligned(found: Along, wanted: Along) -> bool:
    """Whether what is read lies where it is wanted, the last axes above each other: a square matrix could be read across.

    >>> is_aligned((0,), (0, 1)), is_aligned((1,), (0, 1)), is_aligned((0, None), (0, 1))
    (False, True, True)
    """
    over = wanted[len(wanted) - len(found) :]
    return all(axis is None or axis == other for axis, other in zip(found, over, strict=True))


LEAST_ROWS = 16
"""Rows from which on what they add up to is summed by the kernel that goes through them."""


def is_column(node: Node, reductions: Sequence[Node]) -> bool:
    """Whether a reduction of a kernel of rows is a sum over the rows: the others are along the last axis, it is over all before."""
    (x,) = node.operands
    before = tuple(range(x.rank - 1))
    along = any(other.attrs["axes"] == (x.rank - 1,) for other in reductions)
    return node.op.name == "sum" and bool(before) and node.attrs["axes"] == before and along


def _is_scalar(node: Node) -> bool:
    return node.op.name == "constant" and node.size == 1


def role(node: Node) -> Role:
    """The part that a node can play."""
    op = node.op
    if "leaf" in op.traits:
        return "leaf"
    if calls_host(node):
        return "host"
    if op.facts.role is not None:
        return op.facts.role
    elementwise = "elementwise" in op.traits and not isinstance(node.type, TupleType)
    return "point" if elementwise else "library"
