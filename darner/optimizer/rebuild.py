"""A graph from recipes: every region is made again, on demand, from the outputs backward.

A call that another region has made already is taken from there.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from .blocks import Region
from .canonical import has_own_derivative
from .choose import Recipe


@dataclass
class Rebuilt:
    """A new graph, and the fusions in it: (label, node, the node that it comes from)."""

    graph: Graph
    home: list[int] = field(default_factory=list)
    """For each node the region that it was made for; -1 for leaves and what was copied."""
    calls: dict[tuple[Any, ...], Node] = field(default_factory=dict)
    fusions: list[tuple[str, Node, Node]] = field(default_factory=list)


class _Instance:
    """One region and its recipe in the making: a region's recipe serves all its equals."""

    __slots__ = ("made", "number", "positions", "recipe", "region")

    def __init__(self, number: int, region: Region, recipe: Recipe) -> None:
        self.number = number
        self.region = region
        self.recipe = recipe
        self.positions = {id: position for position, id in enumerate(region.nodes)}
        self.made: dict[int, Node] = {}


def rebuild(graph: Graph, regions: Sequence[Region], recipes: Mapping[Hashable, Recipe]) -> Rebuilt:
    """Follow the recipe of every region's key; nodes in no region are copied."""
    result = Rebuilt(Graph(graph.name))
    home: dict[int, _Instance] = {}
    for number, region in enumerate(regions):
        instance = _Instance(number, region, recipes[region.key])
        home.update(dict.fromkeys(region.nodes, instance))
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op.name in LEAVES:
            made[node.id] = result.graph.insert_like(node, [])
    # In the order of the graph: what was computed early, so that its operands could be forgotten, stays early.
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    for id in sorted(ends):
        _make(id, graph, result, home, made)
    result.graph.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.graph.set_update(made[leaf.id], made[value.id])
    result.graph.inherit(graph)
    result.home += [-1] * (len(result.graph) - len(result.home))
    return result


def _note_home(result: Rebuilt, node: Node, number: int) -> None:
    result.home += [-1] * (node.id - len(result.home))
    result.home.append(number)


def _make(
    wanted: int, graph: Graph, result: Rebuilt, home: dict[int, _Instance], made: dict[int, Node]
) -> None:
    """Make a node of the old graph in the new one, and first all that it needs.

    Work is kept on a list of its own: graphs are deeper than Python's stack.
    """
    # An entry is a node of the old graph, or a step of an instance.
    stack: list[tuple[_Instance | None, int]] = [(None, wanted)]
    while stack:
        instance, number = stack[-1]
        if instance is None:
            done = number in made
            waiting = [] if done else _needs_of_node(number, graph, home, made)
        else:
            done = number in instance.made
            waiting = [] if done else _needs_of_step(instance, number, made)
        if done:
            stack.pop()
        elif waiting:
            stack += reversed(waiting)
        elif instance is None:
            made[number] = _finish_node(number, graph, result, home, made)
            stack.pop()
        else:
            instance.made[number] = _finish_step(instance, number, graph, result, made)
            stack.pop()


def _needs_of_node(
    id: int, graph: Graph, home: dict[int, _Instance], made: dict[int, Node]
) -> list[tuple[_Instance | None, int]]:
    instance = home.get(id)
    if instance is None:
        return [(None, i) for i in graph.nodes[id].inputs if i not in made]
    step = instance.recipe.outputs[instance.positions[id]]
    return [] if step in instance.made else [(instance, step)]


def _needs_of_step(
    instance: _Instance, number: int, made: dict[int, Node]
) -> list[tuple[_Instance | None, int]]:
    step = instance.recipe.steps[number]
    if step.op is None:
        source = instance.region.inputs[step.origin]
        return [] if source in made else [(None, source)]
    return [(instance, i) for i in step.operands if i not in instance.made]


def _finish_node(
    id: int, graph: Graph, result: Rebuilt, home: dict[int, _Instance], made: dict[int, Node]
) -> Node:
    node = graph.nodes[id]
    instance = home.get(id)
    if instance is None:
        return result.graph.insert_like(node, [made[i] for i in node.inputs])
    found = instance.made[instance.recipe.outputs[instance.positions[id]]]
    if node.label is not None and found.label is None and "leaf" not in found.op.traits:
        result.graph.relabel(found, node.label)
    return found


def _finish_step(
    instance: _Instance, number: int, graph: Graph, result: Rebuilt, made: dict[int, Node]
) -> Node:
    step = instance.recipe.steps[number]
    if step.op is None:
        return made[instance.region.inputs[step.origin]]
    operands = [instance.made[i] for i in step.operands]
    call = (step.op.name, step.slots, step.text, *[operand.id for operand in operands])
    known = None if has_own_derivative(step.attrs) else result.calls.get(call)
    if known is not None:
        return known
    like = graph.nodes[instance.region.nodes[step.origin]]
    node = result.graph.insert(
        step.op,
        operands,
        step.slots,
        step.attrs,
        label=like.label if step.rule is None and like.op is step.op else None,
        scope=like.scope,
        source=like.source,
        type=step.type,
    )
    result.calls[call] = node
    _note_home(result, node, instance.number)
    if step.credit is not None:
        result.fusions.append((step.credit, node, like))
    return node
