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

from collections.abc import Iterator, Mapping, Sequence

from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.precision import TF32
from ..graph.types import TensorType
from ..lower.strided import Multipliers, contractions, is_tf32, is_view, strided

PREFIX = "setup/"


def split(
    graph: Graph, multipliers: Multipliers | None = None
) -> tuple[Graph | None, Graph, tuple[str, ...]]:
    """A graph of what depends on parameters alone, the graph of the rest, and the names of its new inputs.

    The outputs of the first are the inputs of the second, in the order of the names. Without any such value the first is
    None. A view, and what only makes a parameter wider or decodes it, stays in the step: there it costs nothing, or less than reading
    its result. So does the word that a weight is rounded to tf32, for products that ``multipliers`` has for such: they would not know it of an input.
    """
    wanted = _border(graph)
    if not wanted:
        return None, graph, ()
    rounded = _rounded(graph, wanted, multipliers or Multipliers(contractions()))
    taken = {*graph.inputs, *graph.parameters, *graph.states}
    prefix = PREFIX
    while any(name.startswith(prefix) for name in taken):
        prefix = f"_{prefix}"
    names = tuple(f"{prefix}{i}" for i in range(len(wanted)))
    setup = graph.copy()
    setup._updates = {}
    ends = [setup.nodes[node.id] for node in wanted]
    setup.set_outputs(
        [x.transpose((1, 0)) if rounded.get(x.id, False) else x for x in ends]  # turned
    )
    return _parameters_only(setup.toposort()), _rest(graph, wanted, names, rounded), names


def _rounded(graph: Graph, wanted: Sequence[Node], multipliers: Multipliers) -> dict[int, bool]:
    """The values that only products read, which round them to tf32: and whether all of these are to have them transposed."""
    found: dict[int, bool] = {}
    for node in wanted:
        if not is_tf32(node) or graph.is_output(node):
            continue
        readers = list(_readers(graph, node))
        if readers and all(user.op.name in multipliers.tf32 for user, _ in readers):
            across = node.rank == 2 and all(_is_across(*reader) for reader in readers)
            found[node.id] = across and multipliers.tf32_along_sums
    return found


def _readers(graph: Graph, node: Node) -> Iterator[tuple[Node, int]]:
    """Who reads a node, itself or through views, and as which operand."""
    stack = [node]
    while stack:
        value = stack.pop()
        for user in graph.users(value):
            if is_view(user):
                stack.append(user)
            else:
                yield from ((user, i) for i, id in enumerate(user.inputs) if id == value.id)


def _is_across(product: Node, operand: int) -> bool:
    """Whether a product of matrices sums along elements of an operand that do not lie side by side."""
    seen, summed = strided(product.operands[operand]), product.attrs[f"{'ab'[operand]}_contract"]
    return seen is not None and bool(summed) and seen.strides[summed[-1]] != 1


def _parameters_only(graph: Graph) -> Graph:
    """The graph without inputs and states, none of which it reads."""
    result = Graph(f"{graph.name}.setup")
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op.name not in ("input", "state"):
            made[node.id] = result.insert_like(node, [made[i] for i in node.inputs])
    result.set_outputs([made[node.id] for node in graph.outputs])
    return result.toposort()


def _rest(
    graph: Graph, wanted: list[Node], names: tuple[str, ...], rounded: Mapping[int, bool]
) -> Graph:
    result = Graph(graph.name)
    made: dict[int, Node] = {}
    for node in graph.nodes:
        if node.op.name in LEAVES:
            made[node.id] = result.insert_like(node, [])
    for node, name in zip(wanted, names, strict=True):
        turned = rounded.get(node.id, False)
        shape = node.shape[::-1] if turned else node.shape
        attrs = {"name": name, "shape": shape, "dtype": node.dtype}
        leaf = result.insert("input", [], (), attrs, scope=node.scope, source=node.source)
        with result.derived_from(node):
            if node.id in rounded:
                leaf = leaf.reduce_precision(*TF32)
            made[node.id] = leaf.transpose((1, 0)) if turned else leaf
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


def _border(graph: Graph) -> list[Node]:
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
    worth = _worthwhile(graph, computed)
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    return [
        node
        for node in graph.nodes
        if node.id in worth
        and isinstance(node.type, TensorType)
        and (node.id in ends or any(user.id not in worth for user in graph.users(node)))
    ]


def _worthwhile(graph: Graph, computed: set[int]) -> set[int]:
    """Those of the computed nodes that are kept: at the border, neither views nor parameters nor wider copies.

    A node with several results is kept whole where all its parts are.
    """
    kept = {i for i in computed if graph.nodes[i].op.name != "parameter"}
    ends = {node.id for node in (*graph.outputs, *graph.updates.values())}
    for node in graph.reverse_topo():
        if node.id not in kept:
            continue
        inside = node.id not in ends and all(user.id in kept for user in graph.users(node))
        if not inside and (_is_free(node) or not isinstance(node.type, TensorType)):
            kept.discard(node.id)
    return kept


def _is_free(node: Node) -> bool:
    if is_view(node) or node.op.facts.role == "part" or node.op.facts.decodes:
        return True
    return node.op.name == "cast" and node.dtype.itemsize > node.operands[0].dtype.itemsize
