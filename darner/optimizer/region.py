"""A region as a graph of its own, in canonical form, and that as an e-graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ..graph.errors import Source
from ..graph.graph import Graph
from ..graph.node import Node
from .blocks import Region
from .canonical import canonicalise
from .declare import Mode
from .engine import Engine
from .saturate import EGraph

HERE = "region"
"""The file of the sources in a region's graph; their lines are positions in the region."""


@dataclass(frozen=True)
class Block:
    """A region's canonical form in an e-graph.

    Attributes:
        outputs: for each output of the region, in order, its e-node.
        inputs: for each input of the region that is read, its e-node.
        simplified: what the canonical form did.
    """

    egraph: EGraph
    outputs: tuple[int, ...]
    inputs: dict[int, int]
    simplified: Counter[str]


def whole(graph: Graph) -> Region:
    """All of a graph as one region."""
    nodes = [node for node in graph.nodes if "leaf" not in node.op.traits]
    inputs = dict.fromkeys(
        i for node in nodes for i in node.inputs if "leaf" in graph.nodes[i].op.traits
    )
    place = {node.id: position for position, node in enumerate(nodes)}
    ends = [node.id for node in (*graph.outputs, *graph.updates.values())]
    outputs = tuple(sorted({place[id] for id in ends if id in place}))
    return Region(tuple(place), tuple(inputs), outputs, (), None)


def region_graph(graph: Graph, region: Region) -> Graph:
    """The region alone: its inputs are leaves named by their position, constants stay constants."""
    result = Graph(HERE)
    made = {}
    for position, id in enumerate(region.inputs):
        node = graph.nodes[id]
        if node.op.name == "constant":
            made[id] = result.insert(node.op, [], (), node.attrs, type=node.type)
        elif node.op.name == "parameter":
            attrs = {**node.attrs, "name": str(position)}
            made[id] = result.insert(node.op, [], (), attrs, type=node.type)
        else:
            attrs = {"name": str(position), "shape": node.shape, "dtype": node.dtype}
            made[id] = result.insert("input", [], (), attrs, type=node.type)
    for position, id in enumerate(region.nodes):
        node = graph.nodes[id]
        operands = [made[i] for i in node.inputs]
        source = Source(HERE, position)
        made[id] = result.insert(
            node.op, operands, node.slots, node.attrs, source=source, type=node.type
        )
    result.set_outputs([made[region.nodes[position]] for position in region.outputs])
    return result


def make_block(
    engine: Engine,
    graph: Graph,
    region: Region,
    mode: Mode,
    *,
    before_gradient: bool = False,
    layouts: Sequence[tuple[int, int] | None] | None = None,
) -> Block:
    """The canonical form of a region in an e-graph; ``layouts`` says how each input is stored with others."""
    form, simplified = canonicalise(
        region_graph(graph, region), mode, before_gradient=before_gradient
    )
    inner = whole(form)
    ends = [node.id for node in form.outputs if "leaf" in node.op.traits]
    inner = replace(inner, inputs=tuple(dict.fromkeys([*inner.inputs, *ends])))
    names = [form.nodes[i].name for i in inner.inputs]
    stored = [layouts[int(name)] if name and layouts is not None else None for name in names]
    egraph, place = ingest(engine, form, inner, stored, _position)
    inputs = {
        int(name): place[i] for i, name in zip(inner.inputs, names, strict=True) if name is not None
    }
    return Block(egraph, tuple(place[node.id] for node in form.outputs), inputs, simplified)


def _position(node: Node) -> int:
    """The position in the region that a node of its graph comes from."""
    if node.name is not None:
        return int(node.name)
    return node.source.line if node.source is not None else 0


def ingest(
    engine: Engine,
    graph: Graph,
    region: Region,
    layouts: Sequence[tuple[int, int] | None] | None = None,
    origin: Callable[[Node], int] = lambda node: node.id,
) -> tuple[EGraph, dict[int, int]]:
    """A region in an e-graph as it is; the second result has the e-node of every node read or made in it."""
    egraph = EGraph(engine)
    place: dict[int, int] = {}
    for position, i in enumerate(region.inputs):
        node = graph.nodes[i]
        if node.op.name == "constant":
            place[i] = egraph.original(node.op, (), node.attrs, (), node.type, origin(node))
        else:
            leaf = node.op.name if "leaf" in node.op.traits else None
            layout = None if layouts is None else layouts[position]
            text = f"{leaf or 'value'} {node.type}"
            place[i] = egraph.external(node.type, leaf, text, origin(node), layout)
    for i in region.nodes:
        node = graph.nodes[i]
        kids = [place[k] for k in node.inputs]
        place[i] = egraph.original(node.op, node.slots, node.attrs, kids, node.type, origin(node))
    return egraph, place
