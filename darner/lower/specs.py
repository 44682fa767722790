"""What a kernel computes, as a small graph of its own.

Its inputs are named "0", "1", ... in the order in which it first reads them, its outputs are its results. So a kernel prints, verifies and digests like
any graph, the reference can run it, and two kernels are the same exactly when their graphs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.types import TupleType
from .fuse import Group, fuse
from .roles import Role, roles


@dataclass(frozen=True)
class Work:
    """One kernel of a graph.

    Attributes:
        body: what it computes.
        operands: the nodes it reads, in the order of the body's inputs.
        results: the nodes it makes, in the order of the body's outputs; a node with several results stands once for each.
        nodes: all nodes of the graph that it computes.
    """

    kind: str
    body: Graph
    operands: tuple[int, ...]
    results: tuple[int, ...]
    nodes: tuple[int, ...]


def kernels(graph: Graph) -> list[Work]:
    """The kernels of a prepared graph, in an order in which they can run.

    A view that is an output is copied by a kernel of its own.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (4, 8))
    >>> g.set_outputs([(x @ g.parameter("w", (8, 2))).tanh()])
    >>> from darner.lower.prepare import prepare
    >>> [(work.kind, len(work.nodes)) for work in kernels(prepare(g))]
    [('contract', 2)]
    """
    groups = fuse(graph)
    found = roles(graph)
    outside = _read_outside(graph, groups, found)
    made = [_work(graph, group.kind, group.nodes, outside, found) for group in groups]
    views = _kept_views(graph, found)
    return made + [_work(graph, "map", [id], {id}, found) for id in views]


def _kept_views(graph: Graph, found: Sequence[Role]) -> list[int]:
    ends = dict.fromkeys(node.id for node in (*graph.outputs, *graph.updates.values()))
    return [id for id in ends if found[id] == "view"]


def _read_outside(graph: Graph, groups: Sequence[Group], found: Sequence[Role]) -> set[int]:
    """The nodes whose values are read by another kernel, or are outputs."""
    home = {id: number for number, group in enumerate(groups) for id in group.nodes}
    read = {node.id for node in (*graph.outputs, *graph.updates.values())}
    for node in graph.nodes:
        own = home.get(node.id)
        if own is not None:
            read.update(i for i in _values_read(node, found) if home.get(i) != own)
    for id in _kept_views(graph, found):
        read.update(_values_read(graph.nodes[id], found))
    return read


def _values_read(node: Node, found: Sequence[Role]) -> list[int]:
    """The values a node reads, views seen through."""
    values: dict[int, None] = {}
    stack = list(reversed(node.operands))
    while stack:
        operand = stack.pop()
        if found[operand.id] == "view":
            stack += reversed(operand.operands)
        else:
            values[operand.id] = None
    return list(values)


def _work(
    graph: Graph, kind: str, ids: Sequence[int], outside: set[int], found: Sequence[Role]
) -> Work:
    """A kernel's body: its nodes, and the views and counters between them and what it reads."""
    body = Graph("kernel")
    made: dict[int, Node] = {}
    operands: list[int] = []
    own = set(ids)

    def make(id: int) -> None:
        stack = [id]
        while stack:
            node = graph.nodes[stack[-1]]
            inner = node.id in own or found[node.id] == "view" or _is_scalar(node)
            waiting = [i for i in node.inputs if i not in made] if inner else []
            if node.id in made:
                stack.pop()
            elif waiting:
                stack += reversed(waiting)
            elif inner:
                arguments = [made[i] for i in node.inputs]
                made[node.id] = body.insert(
                    node.op, arguments, node.slots, node.attrs, type=node.type
                )
            else:
                made[node.id] = body.input(str(len(operands)), node.shape, node.dtype)
                operands.append(node.id)

    outputs: list[Node] = []
    results: list[int] = []
    for id in ids:
        make(id)
        if isinstance(made[id].type, TupleType):
            for part in (user for user in graph.users(id) if found[user.id] == "part"):
                outputs.append(body.insert_like(part, [made[id]]))
                results.append(part.id)
        elif id in outside:
            outputs.append(made[id])
            results.append(id)
    body.set_outputs(outputs)
    return Work(kind, body.freeze(), tuple(operands), tuple(results), tuple(ids))


def _is_scalar(node: Node) -> bool:
    return node.op.name == "constant" and node.size == 1
