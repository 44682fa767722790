"""Caches in the element type that they are multiplied in: ``narrowed_caches``.

A cache is a state that every run overwrites in part, and that is read by contractions alone. Where a session rounds what these multiply, a cache of f32 would be rounded as a whole in every run; in 16 bits its new rows are rounded once,
and it has half of the bytes. No result changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import dtypes
from ..graph.dtypes import DType
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.precision import Precision
from ..graph.types import TensorType

STORED: dict[str, DType] = {"bf16": dtypes.bf16, "f16": dtypes.f16}
"""The element type of an operand in memory, where that has fewer bytes than f32."""


def narrowed_caches(graph: Graph, precision: Precision) -> Graph:
    """The graph with its caches in the type that ``precision`` rounds operands to, which are all that reads them; the graph itself where there are none.

    >>> import darner
    >>> g = darner.Graph()
    >>> cache, position = g.state("cache", (8, 4)), g.input("position", (1,), "u32")
    >>> keys = g.cache_write(g.input("new", (1, 4)), cache, position)
    >>> g.set_outputs([g.input("x", (1, 4)) @ keys.T])
    >>> [str(found.states["cache"].type) for found in (g, narrowed_caches(g, "bf16"))]
    ['f32[8, 4]', 'bf16[8, 4]']
    """
    dtype = STORED.get(precision)
    if dtype is None:
        return graph
    narrow: set[int] = set()
    for leaf in graph.states.values():
        narrow |= _values_of(graph, leaf)
    return _narrowed(graph, dtype, narrow) if narrow else graph


def _values_of(graph: Graph, leaf: Node) -> set[int]:
    """A state's values and the views of them, if it is a cache; empty if it is not."""
    written = next((value for target, value in graph.updates.items() if target is leaf), None)
    if leaf.dtype is not dtypes.f32 or written is None:
        return set()
    found, waiting, multiplied = {leaf.id}, [leaf], False
    while waiting:
        node = waiting.pop()
        if graph.is_output(node):
            return set()
        for user in graph.users(node):
            slots = {
                slot for slot, own in zip(user.slots, user.inputs, strict=True) if own == node.id
            }
            facts = user.op.facts
            if slots <= {*facts.multiplies}:
                multiplied = True
            elif slots == {facts.overwrites} or (facts.role == "view" and len(user.inputs) == 1):
                if user.id not in found:
                    found.add(user.id)
                    waiting.append(user)
            else:
                return set()
    overwritten = written.op.facts.overwrites is not None and written.id in found
    return found if multiplied and overwritten else set()


def _narrowed(graph: Graph, dtype: DType, narrow: set[int]) -> Graph:
    """A copy in which these nodes are of another type; contractions read them as f32."""
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    wide: dict[int, Node] = {}

    def read(number: int, like: Node) -> Node:
        """An operand as f32."""
        if number not in narrow:
            return made[number]
        if number not in wide:
            with result.derived_from(like):
                wide[number] = made[number].cast(dtypes.f32)
        return wide[number]

    def narrowed(node: Node) -> Node:
        if not node.inputs:
            return result.insert_like(node, [], {**node.attrs, "dtype": dtype})
        return result.insert_like(node, _operands(node))

    def _operands(node: Node) -> Sequence[Node]:
        found = []
        for number in node.inputs:
            own = made[number]
            if (
                number not in narrow
                and isinstance(own.type, TensorType)
                and own.dtype is dtypes.f32
            ):
                with result.derived_from(node):
                    own = own.cast(dtype)
            found.append(own)
        return found

    for node in graph.nodes:
        if node.id in narrow:
            made[node.id] = narrowed(node)
        else:
            made[node.id] = result.insert_like(node, [read(i, node) for i in node.inputs])
    result.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    result.inherit(graph)
    return result.toposort()
