"""Merged axes: axes that every value of a kernel has together become one.

A bias over the channels of an image has no height and no width, and everything else has both: they are one axis, without a division and with whole
vectors. Values are dense in memory, so merging axes changes no offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod

from ...graph.data import Data
from ...graph.graph import Graph
from ...graph.node import Node
from ...lower.plan import Spec
from ...lower.roles import is_sum
from ...lower.specs import sizes

Axes = tuple[int, ...]
"""The axes of the space, without those of size 1, that a value extends along, ascending."""


@lru_cache(maxsize=4096)
def collapsed(spec: Spec) -> Spec:
    """The spec with axes merged where it can be; what computes it finds and leaves everything where it was."""
    body = spec.body
    found = [node for node in body.nodes if is_sum(node)]
    space = sizes(found[0].operands[0]) if found else sizes(body.outputs[0])
    reduced = {axis for node in found for axis in node.attrs["axes"]}
    along = _along(body, space)
    real = [axis for axis, size in enumerate(space) if size != 1]
    if along is None or not prod(space) or not real:
        return spec
    groups = [[real[0]]]
    for before, axis in pairwise(real):
        together = all((before in axes) == (axis in axes) for axes in along.values())
        if together and (before in reduced) == (axis in reduced):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    if len(groups) == len(space):
        return spec
    return Spec(spec.kind, _rebuilt(body, space, groups, along, reduced))


def _along(body: Graph, space: Sequence[int]) -> dict[int, Axes] | None:
    """What each value extends along; None where a view or an op that knows its axes stands between."""
    along: dict[int, Axes] = {}

    def note(node: Node, axes: Axes) -> bool:
        return along.setdefault(node.id, axes) == axes

    def aligned(node: Node, places: Sequence[int]) -> Axes | None:
        """The axes of a node that stand at these places of the space."""
        own = sizes(node)
        fits = all(size in (1, space[place]) for size, place in zip(own, places, strict=True))
        axes = tuple(place for size, place in zip(own, places, strict=True) if size != 1)
        return axes if fits else None

    whole = tuple(range(len(space)))
    reduced = {axis for node in body.nodes if is_sum(node) for axis in node.attrs["axes"]}
    others = tuple(axis for axis in whole if axis not in reduced)
    for output in body.outputs:
        places = whole if output.rank == len(space) else others
        axes = aligned(output, places) if output.rank == len(places) else None
        if axes is None or not note(output, axes):
            return None
    for node in reversed(body.nodes):
        if node.id not in along:
            continue
        own = along[node.id]
        name = node.op.name
        if name in ("input", "constant"):
            if name == "constant" and node.size != 1:
                return None
            continue
        if is_sum(node):
            (x,) = node.operands
            kept = node.attrs["axes"] == tuple(sorted(reduced)) and sizes(x) == list(space)
            if not kept or not note(x, tuple(a for a in whole if space[a] != 1)):
                return None
        elif name == "reshape":
            (x,) = node.operands
            same = [size for size in sizes(x) if size != 1] == [s for s in sizes(node) if s != 1]
            if not (same or x.op.name == "input") or not note(x, own):
                return None
        elif name == "transpose":
            (x,) = node.operands
            real = [axis for axis in node.attrs["perm"] if sizes(x)[axis] != 1]
            if real != sorted(real) or not note(x, own):
                return None
        elif "elementwise" in node.op.traits or name == "broadcast_to":
            for x in node.operands:
                # Where each axis of the node stands in the space: those of size 1 anywhere between.
                axes = _spread(x, node, own)
                if axes is None or not note(x, axes):
                    return None
        else:
            return None
    return along


def _spread(x: Node, node: Node, own: Axes) -> Axes | None:
    """What an operand of a node that broadcasts extends along."""
    real = iter(own)
    places = [next(real) if size != 1 else None for size in sizes(node)]
    taken = places[len(places) - x.rank :] if x.rank else []
    axes: list[int] = []
    for size, position in zip(sizes(x), taken, strict=True):
        if size != 1:
            if position is None:
                return None
            axes.append(position)
    return tuple(axes)


def _rebuilt(
    body: Graph,
    space: Sequence[int],
    groups: Sequence[Sequence[int]],
    along: dict[int, Axes],
    reduced: set[int],
) -> Graph:
    """The body with one axis for each group; every value has them all, of size 1 where it does not extend."""
    result = Graph(body.name)
    made: dict[int, Node] = {}

    def shape(node: Node) -> tuple[int, ...]:
        axes = along[node.id]
        return tuple(
            prod(space[axis] for axis in group) if group[0] in axes else 1 for group in groups
        )

    for leaf in body.inputs.values():
        # All keep their names: a kernel's operands go by them.
        own = shape(leaf) if leaf.id in along else leaf.shape
        made[leaf.id] = result.input(str(leaf.name), own, leaf.dtype)
    for node in body.nodes:
        if node.id not in along or node.op.name == "input":
            continue
        operands = [made[i] for i in node.inputs]
        if node.op.name == "constant":
            values = Data(node.attrs["values"].array.reshape(()))
            made[node.id] = result.insert(node.op, (), (), {**node.attrs, "values": values})
        elif node.op.name in ("reshape", "transpose"):
            made[node.id] = operands[0]
        elif node.op.name == "broadcast_to":
            made[node.id] = (
                operands[0]
                if operands[0].shape == shape(node)
                else result.broadcast_to(operands[0], shape(node))
            )
        elif is_sum(node):
            axes = tuple(i for i, group in enumerate(groups) if group[0] in reduced)
            attrs = {**node.attrs, "axes": axes, "keepdims": True}
            made[node.id] = result.insert(node.op, operands, node.slots, attrs)
        else:
            made[node.id] = result.insert(node.op, operands, node.slots, node.attrs)
    outputs = []
    for output in body.outputs:
        value = made[output.id]
        outputs.append(
            value if value.shape == shape(output) else result.broadcast_to(value, shape(output))
        )
    result.set_outputs(outputs)
    return result.freeze()
