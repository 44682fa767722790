"""Rounded copies of parameters: what products of fewer bits read of f32 weights, made when these change and kept up to date by training steps.

A product in bf16 reads its weight in 16 bits. In training that copy is not made anew in every step: it is a state, which the kernel that ends a weight's gradient
with its update writes too, element by element, while it has the new value. A plan of its own, the setup, makes all copies where parameters were written by
somebody else: the user, a checkpoint, another session.

    >>> import darner
    >>> g = darner.Graph("layer")
    >>> x, w = g.input("x", (2, 3)), g.parameter("w", (3, 4))
    >>> g.set_outputs([x @ w])
    >>> g.set_update(w, w * 0.5)
    >>> made = with_copies(darner.with_precision(g, "bf16"), ["dot_general"])
    >>> made.names
    ('copy/bf16/w',)
    >>> [str(leaf.name) for leaf in made.step.updates]
    ['w', 'copy/bf16/w']
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..graph.data import Array
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..lower.strided import is_view, is_widening

PREFIX = "copy/"


@dataclass(frozen=True)
class Copied:
    """A step that reads copies of parameters.

    Attributes:
        step: the graph in which they are states, updated with their parameters.
        setup: the graph that makes them all of parameters; None where there are none.
        names: of the states.
    """

    step: Graph
    setup: Graph | None = None
    names: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """A line for a report, where there are copies."""
        if not self.names:
            return []
        states = self.step.states
        size = sum(int(states[name].size) for name in self.names)
        kept = sum(leaf.name in self.names for leaf in self.step.updates)
        count = f"{len(self.names)} weight{'' if len(self.names) == 1 else 's'}"
        return [
            f"{count} of {size:,} elements are read as copies of 16 bits; updates write {kept} of them"
        ]


@dataclass(eq=False)
class Copies:
    """The memory of copies.

    Attributes:
        arrays: by name.
        version: of the parameters that they are copies of.
    """

    arrays: Mapping[str, Array]
    version: int = -1


def with_copies(graph: Graph, halves: Collection[str]) -> Copied:
    """The step of a graph with copies of what its products round of parameters.

    ``halves`` names the ops that read 16-bit floats where they lie: for others a copy of fewer bits would be made wide again in every step.
    """
    found = _copied(graph, halves)
    if not found:
        return Copied(graph)
    prefix = prefix_of(graph)
    names = {id: f"{prefix}{graph.nodes[id].dtype}/{_source(graph, id).name}" for id in found}
    step = _step(graph, names)
    return Copied(step, _setup(graph, names), tuple(dict.fromkeys(names.values())))


def prefix_of(graph: Graph) -> str:
    """What the names of copies begin with, and no leaf of the graph."""
    taken, prefix = (*graph.inputs, *graph.parameters, *graph.states), PREFIX
    while any(name.startswith(prefix) for name in taken):
        prefix = f"_{prefix}"
    return prefix


def _copied(graph: Graph, halves: Collection[str]) -> list[int]:
    """The nodes that round a whole parameter for a product."""
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    return [
        node.id
        for node in graph.nodes
        if node.op.name == "cast"
        and node.dtype.is_half
        and node.id not in ends
        and _is_wider_parameter(node.operands[0], node)
        and _is_multiplied(graph, node, halves)
    ]


def _is_wider_parameter(leaf: Node, node: Node) -> bool:
    if leaf.op.name != "parameter" or leaf.attrs["storage"] != "dense":
        return False
    return leaf.dtype.is_float and leaf.dtype.itemsize > node.dtype.itemsize


def _is_multiplied(graph: Graph, node: Node, halves: Collection[str]) -> bool:
    """Whether a product reads a node where it lies."""
    stack = list(graph.users(node))
    while stack:
        user = stack.pop()
        facts = user.op.facts
        # What has no kernel of its own is a product of matrices in the end.
        if facts.multiplies and (not facts.whole or user.op.name in halves):
            return True
        if is_view(user) or is_widening(user):
            stack += graph.users(user)
    return False


def _source(graph: Graph, id: int) -> Node:
    return graph.nodes[id].operands[0]


def _step(graph: Graph, names: Mapping[int, str]) -> Graph:
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    copies: dict[str, Node] = {}
    for node in graph.nodes:
        if node.op.name in LEAVES:
            made[node.id] = result.insert_like(node, [])
    for id, name in names.items():
        if name not in copies:
            copies[name] = _state(result, name, graph.nodes[id])
        made[id] = copies[name]
    for node in graph.nodes:
        if node.id not in made:
            made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    following = {leaf.id: made[value.id] for leaf, value in graph.updates.items()}
    for id, name in names.items():
        leaf, copy = _source(graph, id), copies.pop(name, None)
        if copy is not None and leaf.id in following:
            with result.derived_from(made[leaf.id]):
                result.set_update(copy, following[leaf.id].cast(copy.dtype))
    result.inherit(graph)
    return result.toposort()


def _setup(graph: Graph, names: Mapping[int, str]) -> Graph:
    result = Graph(f"{graph.name}.setup")
    made: dict[str, Node] = {}
    for id, name in names.items():
        leaf = _source(graph, id)
        own = str(leaf.name)
        if own not in made:
            made[own] = result.insert_like(leaf, [])
        if name not in made:
            made[name] = _state(result, name, graph.nodes[id])
            with result.derived_from(leaf):
                result.set_update(made[name], made[own].cast(graph.nodes[id].dtype))
    result.set_outputs([])
    return result.toposort()


def _state(graph: Graph, name: str, like: Node) -> Node:
    attrs = {"name": name, "shape": like.shape, "dtype": like.dtype, "init": 0.0}
    return graph.insert("state", [], (), attrs, scope=like.scope, source=like.source)
