"""What depends on parameters alone is computed once, not in every step.

``split`` cuts a graph in two: the first computes those values, the second takes them as inputs.

    >>> import darner
    >>> g = darner.Graph("scaled")
    >>> x, w = g.input("x", (2, 3)), g.parameter("w", (3, 3))
    >>> g.set_outputs([x @ (w * w.abs().max())])
    >>> setup, step, names = split(g)
    >>> names
    ('setup/0',)
    >>> [node.op.name for node in step.nodes]
    ['input', 'parameter', 'input', 'matmul']
"""

from __future__ import annotations

from collections.abc import Collection

from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.types import TensorType
from ..lower.strided import is_tf32, is_view
from ..transforms.expand import expansion

PREFIX = "setup/"


def split(
    graph: Graph, rounding: Collection[str] = ()
) -> tuple[Graph | None, Graph, tuple[str, ...]]:
    """A graph of what depends on parameters alone, the graph of the rest, and the names of its new inputs.

    The outputs of the first are the inputs of the second, in the order of the names. Without any such value the first is
    None. A view, and what only makes a parameter wider or decodes it, stays in the step: there it costs nothing, or less than reading
    its result. So does what rounds it to tf32 for contractions that do so as they read, whose names are in ``rounding``: they could not
    tell from its result that it is rounded.
    """
    wanted = _border(graph, rounding)
    if not wanted:
        return None, graph, ()
    taken = {*graph.inputs, *graph.parameters, *graph.states}
    prefix = PREFIX
    while any(name.startswith(prefix) for name in taken):
        prefix = f"_{prefix}"
    names = tuple(f"{prefix}{i}" for i in range(len(wanted)))
    setup = graph.copy()
    setup._updates = {}
    setup.set_outputs([node.id for node in wanted])
    return _parameters_only(setup.toposort()), _rest(graph, wanted, names), names


def _parameters_only(graph: Graph) -> Graph:
    """The graph without inputs and states, none of which it reads."""
    result = Graph(f"{graph.name}.setup")
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op.name not in ("input", "state"):
            made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[node.id] for node in graph.outputs])
    return result.toposort()


def _rest(graph: Graph, wanted: list[Node], names: tuple[str, ...]) -> Graph:
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op.name in LEAVES:
            made[node.id] = result.insert_like(node, [])
    for node, name in zip(wanted, names, strict=True):
        attrs = {"name": name, "shape": node.shape, "dtype": node.dtype}
        made[node.id] = result.insert("input", [], (), attrs, scope=node.scope, source=node.source)
    for node in _needed(graph, made):
        made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(made[leaf.id], made[value.id])
    result.inherit(graph)
    for old, new in zip(graph.outputs, result.outputs, strict=True):
        if old.label and new.label is None:
            result.relabel(new, old.label)
    return result


def _needed(graph: Graph, made: dict[int, Node]) -> list[Node]:
    """What the ends need beyond what is there already, in order."""
    needed = {node.id for node in (*graph.outputs, *graph.updates.values())}
    found = []
    for node in graph.reverse_topo():
        if node.id in needed and node.id not in made:
            found.append(node)
            needed.update(node.inputs)
    return found[::-1]


def _border(graph: Graph, rounding: Collection[str]) -> list[Node]:
    """The values that a step reads and that depend on parameters alone."""
    updated = {leaf.id for leaf in graph.updates}
    fixed: set[int] = set()  # parameters and constants alone
    computed: set[int] = set()  # with a parameter among them, and something to compute
    for node in graph.nodes:
        if node.op.name == "parameter" and node.id not in updated:
            fixed.add(node.id)
            computed.add(node.id)
        elif node.op.name not in LEAVES and all(i in fixed for i in node.inputs):
            fixed.add(node.id)
            if any(i in computed for i in node.inputs):
                computed.add(node.id)
    worth = _worthwhile(graph, computed, rounding)
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    return [
        node
        for node in graph.nodes
        if node.id in worth
        and isinstance(node.type, TensorType)
        and (node.id in ends or any(user.id not in worth for user in graph.users(node)))
    ]


def _worthwhile(graph: Graph, computed: set[int], rounding: Collection[str]) -> set[int]:
    """Those of the computed nodes that are kept: at the border, neither views nor parameters nor wider copies.

    A node with several results is kept whole where all its parts are.
    """
    kept = {i for i in computed if graph.nodes[i].op.name != "parameter"}
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    for node in graph.reverse_topo():
        if node.id not in kept:
            continue
        inside = node.id not in ends and all(user.id in kept for user in graph.users(node))
        rounds = is_tf32(node) and _only_read_by(graph, node, rounding)
        if not inside and (rounds or _is_free(node) or not isinstance(node.type, TensorType)):
            kept.discard(node.id)
    return kept


def _only_read_by(graph: Graph, node: Node, names: Collection[str]) -> bool:
    """Whether contractions of these names alone read a node, or views of it."""
    stack = list(graph.users(node))
    while stack:
        user = stack.pop()
        if is_view(user):
            stack += graph.users(user)
        elif not _multiplies(user, names):
            return False
    return bool(graph.users(node))


def _multiplies(node: Node, names: Collection[str]) -> bool:
    """Whether a node is a contraction of these names, or a composite of one."""
    if node.op.is_composite and node.op.facts.multiplies:
        inner = [made for made in expansion(node).nodes if made.op.facts.multiplies]
        return bool(inner) and all(_multiplies(made, names) for made in inner)
    return node.op.name in names


def _is_free(node: Node) -> bool:
    if is_view(node) or node.op.facts.role == "part" or node.op.facts.decodes:
        return True
    return node.op.name == "cast" and node.dtype.itemsize > node.operands[0].dtype.itemsize
