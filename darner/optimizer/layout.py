"""Where parameters are stored: several side by side in one block, each in one place only.

A product of one value with several weights is one product with the weights side by side. That is free where they are stored so, and a
weight can be stored in one way only. ``plan_layouts`` decides it once for the whole graph, before any block is optimized.

The graph keeps its parameters: side by side they are a ``concat`` of them, which a session does not compute but stores. ``derived_parameters`` lists
those of a graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.cached import cached_property
from ..graph.data import Array
from ..graph.dims import Dim
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.text.attributes import attribute_text
from ..graph.types import TensorType


@dataclass(frozen=True)
class DerivedParam:
    """A stored block that several parameters are parts of: a view in both directions.

    Attributes:
        name: the sources' names joined by "+".
        sources: each parameter's name and its size along ``axis``, in order.
        axis: the axis along which they stand side by side.
        type: the type of the whole.

    >>> import numpy as np
    >>> both = DerivedParam("gate+up", (("gate", 2), ("up", 1)), 1, TensorType.new((1, 3)))
    >>> both.join({"gate": np.array([[1, 2]]), "up": np.array([[3]])})
    array([[1, 2, 3]])
    >>> both.split(np.array([[4, 5, 6]]))["gate"]
    array([[4, 5]])
    """

    name: str
    sources: tuple[tuple[str, Dim], ...]
    axis: int
    type: TensorType

    @cached_property
    def parts(self) -> Parts:
        """The sources side by side, whatever the block is called."""
        return Parts(self.axis, self.sources)

    @property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where along the axis each source begins and ends."""
        return self.parts.places

    def join(self, values: Mapping[str, Array]) -> Array:
        """The whole from its parts."""
        return self.parts.join(values)

    def split(self, whole: Array) -> dict[str, Array]:
        """The parts of the whole, as views: what is written into them is written into it."""
        return self.parts.split(whole)

    def view(self, whole: Array, name: str) -> Array:
        """One part of the whole, as a view."""
        return self.parts.view(whole, name)


SideBySide = tuple[tuple[str, ...], ...]
"""Groups of parameters, each by name in the order in which they stand."""


@dataclass(frozen=True)
class Layouts:
    """The decision for a graph.

    Attributes:
        blocks: parameters (ids) stored side by side, in order.
        conflicts: what was not stored so, and why.
    """

    blocks: tuple[tuple[int, ...], ...] = ()
    conflicts: tuple[str, ...] = ()

    @cached_property
    def places(self) -> dict[int, tuple[int, int]]:
        """The block and the place in it of each such parameter."""
        return {
            id: (block, place)
            for block, ids in enumerate(self.blocks)
            for place, id in enumerate(ids)
        }

    def only(self, graph: Graph, allowed: SideBySide) -> Layouts:
        """These groups, where blocks have them; each other parameter is in a block of its own, and no two are parts of one product."""
        leaves = graph.parameters
        groups = [tuple(leaves[name].id for name in names) for names in allowed]
        kept = [ids for ids in groups if any(set(ids) <= set(block) for block in self.blocks)]
        inside = {i for ids in kept for i in ids}
        alone = [(leaf.id,) for leaf in leaves.values() if leaf.id not in inside]
        return Layouts((*kept, *alone))


def plan_layouts(graph: Graph) -> Layouts:
    """Decide which parameters are stored side by side.

    Those that the graph joins itself come first, then the weights of products that share an operand, in the order of the graph. A
    parameter that is in a block already stays there, and later wishes for it are refused.
    """
    taken: dict[int, tuple[int, ...]] = {}
    blocks: list[tuple[int, ...]] = []
    conflicts: list[str] = []
    for ids, where in (*_joined(graph), *_sharing(graph)):
        holders = dict.fromkeys(taken[i] for i in ids if i in taken)
        if not holders:
            blocks.append(ids)
            taken.update(dict.fromkeys(ids, ids))
        elif not _runs_in(ids, next(iter(holders))):
            names = ", ".join(str(graph.nodes[i].name) for i in ids)
            conflicts.append(f"{names} are not stored together for {where}: a part is elsewhere")
    return Layouts(tuple(blocks), tuple(conflicts))


def _runs_in(ids: Sequence[int], block: Sequence[int]) -> bool:
    """Whether ids stand in a block one after another."""
    if ids[0] not in block:
        return False
    start = list(block).index(ids[0])
    return tuple(block[start : start + len(ids)]) == tuple(ids)


def _is_weight(node: Node) -> bool:
    return node.op.name == "parameter" and node.attrs["storage"] == "dense"


def _joined(graph: Graph) -> Iterator[tuple[tuple[int, ...], str]]:
    for node in graph.nodes:
        several = node.op.name == "concat" and len(set(node.inputs)) == len(node.inputs) > 1
        if several and all(_is_weight(operand) for operand in node.operands):
            yield node.inputs, f"%{node.id}"


def _sharing(graph: Graph) -> Iterator[tuple[tuple[int, ...], str]]:
    """The weights of products that share an operand, as the graph spells them."""
    groups: dict[tuple[int, int, Dim], dict[int, None]] = {}
    same = _value_numbers(graph)
    for node in graph.nodes:
        found = weight_of(node)
        if found is not None:
            weight, axis = found
            key = (same[node.inputs[0]], axis, weight.shape[1 - axis])
            groups.setdefault(key, {})[weight.id] = None
    for (shared, _, _), weights in groups.items():
        if len(weights) > 1:
            yield tuple(sorted(weights)), f"the products of %{shared}"


def weight_of(node: Node) -> tuple[Node, int] | None:
    """The weight on the right of a product, and its axis that becomes the result's last."""
    if node.op.name not in ("matmul", "matmul_bt", "dot_general"):
        return None
    left, right = node.operands
    turned = right.op.name == "transpose"
    weight = right.operands[0] if turned else right
    if not _is_weight(weight) or weight.rank != 2:
        return None
    if node.op.name == "dot_general":
        summed = node.attrs["b_contract"]
        if len(summed) != 1 or node.attrs["b_batch"]:
            return None
        if node.attrs["a_contract"] != (left.rank - 1,):
            return None
        axis = 1 - summed[0]
    else:
        axis = 1 if node.op.name == "matmul" else 0
    return weight, 1 - axis if turned and right.attrs["perm"] == (1, 0) else axis


def _value_numbers(graph: Graph) -> list[int]:
    """For each node the first one that computes the same by the same calls."""
    numbers: list[int] = []
    known: dict[tuple[Any, ...], int] = {}
    for node in graph.nodes:
        if "leaf" in node.op.traits:
            numbers.append(node.id)
            continue
        text = attribute_text(node.op, node.attrs) if node.attrs else ""
        key = (node.op.name, node.slots, text, *[numbers[i] for i in node.inputs])
        numbers.append(known.setdefault(key, node.id))
    return numbers


def derived_parameters(graph: Graph) -> dict[str, DerivedParam]:
    """The stored blocks of a graph: its concats of parameters, each parameter in one of them."""
    found: dict[str, DerivedParam] = {}
    taken: set[int] = set()
    for ids, _ in _joined(graph):
        if taken.intersection(ids):
            continue
        taken.update(ids)
        node = next(n for n in graph.users(ids[0]) if n.op.name == "concat" and n.inputs == ids)
        axis = node.attrs["axis"]
        sources = tuple((str(part.name), part.shape[axis]) for part in node.operands)
        name = "+".join(source for source, _ in sources)
        found[name] = DerivedParam(name, sources, axis, TensorType(node.shape, node.dtype))
    return found
