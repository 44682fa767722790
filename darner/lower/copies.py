"""Products that read a copy which is made in any case: ``reading_copies``.

The optimizer lets a product read what it multiplies as it lies, so the gradient of a recurrent layer's weight reads the layer's input as (batch, time,
width) although it sums over time first. Where another kernel needs that input transposed in memory, the gradient had better read it there too: the axes
it sums over are then one.
"""

from __future__ import annotations

from typing import NamedTuple

from ..graph.graph import Graph
from ..graph.node import Node
from .roles import roles
from .strided import merged_stride, row_major, strided


class _Reading(NamedTuple):
    """A copy that a product reads instead of one of its operands: at which position, and the product's axes of it."""

    position: int
    copy: Node
    attrs: dict[str, tuple[int, ...]]


def reading_copies(graph: Graph) -> Graph:
    """The graph with products that read transposed copies where these are made anyway and let the product sum over one axis.

    >>> import darner
    >>> g = darner.Graph()
    >>> x, d, w = g.input("x", (8, 5, 3)), g.input("d", (5, 8, 4)), g.input("w", (3, 4))
    >>> gradient = g.dot_general(d, x, a_contract=(0, 1), b_contract=(1, 0))
    >>> g.set_outputs([g.dot_general(x.transpose((1, 0, 2)), w, 2, 0), gradient])
    >>> found = reading_copies(g).outputs[1]
    >>> found.operands[1].op.name, found.attrs["b_contract"]
    ('transpose', (0, 1))
    """
    changes = _changes(graph)
    if not changes:
        return graph
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.id in made:
            continue
        operands = [made[i] for i in node.inputs]
        found = changes.get(node.id)
        if found is None:
            made[node.id] = result.insert_like(node, operands)
            continue
        position, copy, attrs = found
        if copy.id not in made:
            made[copy.id] = result.insert_like(copy, [operands[position]])
        operands[position] = made[copy.id]
        made[node.id] = result.insert(
            node.op,
            operands,
            node.slots,
            {**node.attrs, **attrs},
            label=node.label,
            scope=node.scope,
            source=node.source,
        )
    result.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    result.inherit(graph)
    return result


def _changes(graph: Graph) -> dict[int, _Reading]:
    """The products that read something else, by number."""
    products = [node for node in graph.nodes if node.op.name == "dot_general"]
    if not any(len(node.attrs["a_contract"]) > 1 for node in products):
        return {}
    found = roles(graph)
    copies: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node.op.name == "transpose" and found[node.id] == "point":
            copies.setdefault(node.inputs[0], []).append(node)
    changes: dict[int, _Reading] = {}
    for node in products:
        readings = [
            reading
            for position in range(2)
            for copy in copies.get(node.inputs[position], ())
            if (reading := _reading(node, position, copy)) is not None
        ]
        if readings:
            changes[node.id] = readings[0]
    return changes


def _reading(node: Node, position: int, copy: Node) -> _Reading | None:
    """How a product reads a copy of an operand, where it then sums over one axis and did not before."""
    letter, other = ("a", "b") if position == 0 else ("b", "a")
    operand, beside = node.operands[position], node.operands[1 - position]
    summed = node.attrs[f"{letter}_contract"]
    if _is_one_axis(operand, summed) or not _is_one_axis(beside, node.attrs[f"{other}_contract"]):
        return None
    perm = copy.attrs["perm"]
    attrs = {
        key: tuple(perm.index(axis) for axis in node.attrs[key])
        for key in (f"{letter}_contract", f"{letter}_batch")
    }
    used = {*summed, *node.attrs[f"{letter}_batch"]}
    free = [axis for axis in range(operand.rank) if axis not in used]
    if [axis for axis in perm if axis not in used] != free:
        return None
    sizes = [int(copy.shape[axis]) for axis in attrs[f"{letter}_contract"]]
    strides = row_major([int(size) for size in copy.shape])
    whole = merged_stride(sizes, [strides[axis] for axis in attrs[f"{letter}_contract"]])
    return None if whole is None else _Reading(position, copy, attrs)


def _is_one_axis(operand: Node, axes: tuple[int, ...]) -> bool:
    """Whether some axes of what a product reads can be taken as one."""
    seen = strided(operand, widened=True)
    if seen is None:
        return False
    sizes = [int(operand.shape[axis]) for axis in axes]
    return merged_stride(sizes, [seen.strides[axis] for axis in axes]) is not None
