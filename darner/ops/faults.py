"""Faults of data: what an op cannot compute, which only its values show, and the words for it.

An index outside its axis, a matrix that is singular or not positive definite, a negative power of an integer, more entries than there is room for. The reference finds them in its
arrays, and compiled code tells of them by numbers; both raise the errors of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..graph.data import Array
from ..graph.errors import RunError
from ..graph.facts import RESULT
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import get_op
from ..graph.scalar import runs_on_host


def can_fail(node: Node) -> bool:
    """Whether data can be such that a node has no value; a user's function can raise whatever they are, and a loop fails where its body does."""
    fails_on = node.op.facts.fails_on
    if fails_on == "exponent":
        return node.dtype.is_int and node.dtype.limits[0] < 0
    if node.op.facts.role == "loop":
        return any(map(can_fail, node.attrs["body"].nodes))
    return fails_on is not None or runs_on_host(node)


def host_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes that are a user's function of NumPy arrays, those of the bodies of loops among them."""
    for node in graph.nodes:
        if node.op.facts.role == "loop":
            yield from host_nodes(node.attrs["body"])
        elif runs_on_host(node):
            yield node


def calls_host(node: Node) -> bool:
    """Whether a node is a user's function of NumPy arrays, or a loop with one in its body."""
    if node.op.facts.role == "loop":
        return any(True for _ in host_nodes(node.attrs["body"]))
    return runs_on_host(node)


def is_indexed(node: Node) -> bool:
    """Whether a node takes indices that must lie inside an axis, as its operand ``indices``."""
    return node.op.facts.fails_on == "index"


def ordinal(body: Graph, node: Node) -> int:
    """Which node of a kernel's body a fault is of: its number among those that can fail, from 1 on.

    Code that is written for a graph made of the body goes by the first node of the same op.
    """
    failing = [one for one in body.nodes if can_fail(one)]
    alike = [i for i, one in enumerate(failing, 1) if one.op is node.op]
    same = [i for i in alike if node.graph is body and failing[i - 1].id == node.id]
    return (same or alike)[0]


def indexed_size(node: Node) -> int:
    """The size of the axis that a node takes its indices of."""
    whose = node.op.facts.indexes
    through = node if whose in (RESULT, None) else node.operands[node.slots.index(whose)]
    return int(through.shape[int(node.attrs["axis"])])


def fault_of(node: Node, value: int, size: int) -> RunError:
    """The error of a node that met a fault, as kernels tell of it.

    ``value`` is the index, the number of the matrix in its batch, the exponent, or how many entries there are; ``size`` is that of the axis, or of the room.
    """
    if is_indexed(node):
        return index_fault(value, size)
    if node.op.facts.fails_on == "room":
        return room_fault(value, size)
    if node.op.facts.fails_on == "matrix":
        lead = [int(n) for n in node.operands[0].shape[:-2]]
        return matrix_fault(node.op.name, [int(i) for i in np.unravel_index(value, lead)])
    return power_fault(value)


def index_fault(index: int, size: int) -> RunError:
    """The error of an index outside its axis."""
    if size == 0:
        return RunError(f"index {index}: the axis has no elements")
    return RunError(f"index {index} is outside 0..{size - 1}")


def matrix_fault(op: str, place: Sequence[int]) -> RunError:
    """The error of a matrix, at a place in its batch, that an op cannot take."""
    which = f"the matrix at {list(place)} of the batch" if place else "the matrix"
    return RunError(f"{which} is {get_op(op).facts.refuses}")


def power_fault(exponent: int) -> RunError:
    """The error of an integer's negative power."""
    return RunError(
        f"the exponent {exponent} is negative, and integers have no such powers",
        hint="cast to a float first",
    )


def room_fault(entries: int, room: int) -> RunError:
    """The error of lists that have no room for all entries."""
    return RunError(
        f"there are {entries} pairs of a tile and a splat that it touches, and room for {room}",
        hint=f"max_list_entries={entries} or more, or larger tiles",
    )


def check_indices(indices: Array, size: int) -> None:
    """Refuse indices outside 0..size-1, naming the first."""
    wrong = (indices < 0) | (indices >= size)
    if wrong.any():
        raise index_fault(int(indices[wrong].flat[0]), size)


def check_matrices(op: str, matrices: Array, fits: Callable[[Array], bool]) -> None:
    """Refuse the first matrix of a batch that does not fit."""
    for place in np.ndindex(matrices.shape[:-2]):
        if not fits(matrices[place]):
            raise matrix_fault(op, place)
