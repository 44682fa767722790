"""Loops whose rows know nothing of each other: a recurrent layer's sequences of a batch.

Where everything a step carries, reads and writes has the same first axis, and every row of it is made of the same row of what it is made of, some rows
can go through all steps without the others. ``of_rows`` is the kernel of such a loop for fewer rows; a backend can then let each thread take its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..graph.errors import InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from .loops import Slots, loop_node
from .specs import sizes


def row_count(kernel: Graph) -> int | None:
    """How many rows a kernel's loop has that know nothing of each other, or None where they do.

    >>> import darner
    >>> g, body = darner.Graph(), darner.Graph()
    >>> h, w, x = body.input("h", (6, 4)), body.input("w", (4, 4)), body.input("x", (6, 4))
    >>> body.set_outputs([(body.dot_general(h, w, 1, 0) + x).tanh()])
    >>> found = g.loop([g.input("0", (6, 4))], [g.input("1", (4, 4))], [g.input("2", (9, 6, 4))], body=body.freeze(), length=9)
    >>> g.set_outputs(found)
    >>> row_count(g), of_rows(g, 2).outputs[0].shape
    (6, (2, 4))
    """
    node = loop_node(kernel)
    leaves = list(node.attrs["body"].inputs.values())
    carries = leaves[: len(Slots.of(node).init)]
    if not carries or any(not leaf.rank for leaf in carries):
        return None
    count = sizes(carries[0])[0]
    return count if count > 1 and _smaller(node, count, 1) is not None else None


def of_rows(kernel: Graph, rows: int) -> Graph:
    """The kernel of so many rows: its inputs are the operands of the loop, whatever views the other takes of its own."""
    node = loop_node(kernel)
    count = sizes(next(iter(node.attrs["body"].inputs.values())))[0]
    body = _smaller(node, count, rows)
    if body is None:
        raise InternalError("the rows of this loop know of each other")
    result = Graph("kernel")
    leaves = iter(body.inputs.values())
    length = int(node.attrs["length"])
    operands = []
    for number, slot in enumerate(node.slots):
        leaf = next(leaves)
        shape = (length, *leaf.shape) if slot == "xs" else leaf.shape
        operands.append(result.input(str(number), shape, leaf.dtype))
    made = result.insert(node.op, operands, node.slots, {**node.attrs, "body": body})
    result.set_outputs([result.insert_like(output, [made]) for output in kernel.outputs])
    return result.freeze()


def _smaller(node: Node, count: int, rows: int) -> Graph | None:
    """The body of a loop with ``rows`` for its first axis of ``count``; None where one row needs another."""
    body: Graph = node.attrs["body"]
    slots = Slots.of(node)
    first, last = len(slots.init), len(slots.init) + len(slots.constants)
    walk = _Rows(count, rows)
    for number, leaf in enumerate(body.inputs.values()):
        is_constant = first <= number < last
        if not is_constant and sizes(leaf)[:1] != [count]:
            return None
        walk.take_leaf(leaf, not is_constant)
    for inner in body.nodes:
        if inner.id not in walk.made and not walk.take(inner):
            return None
    if any(output.id not in walk.of_rows for output in body.outputs):
        return None
    walk.graph.set_outputs([walk.made[output.id] for output in body.outputs])
    return walk.graph.freeze()


class _Rows:
    """A body that is written again with another first axis."""

    def __init__(self, count: int, rows: int) -> None:
        self.count, self.rows = count, rows
        self.graph = Graph("body")
        self.made: dict[int, Node] = {}
        self.of_rows: set[int] = set()
        """The nodes that have a row for each; all others are the same for all."""

    def take_leaf(self, leaf: Node, of_rows: bool) -> None:
        """An input of the body."""
        shape = (self.rows, *leaf.shape[1:]) if of_rows else leaf.shape
        self.made[leaf.id] = self.graph.input(str(leaf.name), shape, leaf.dtype)
        if of_rows:
            self.of_rows.add(leaf.id)

    def take(self, node: Node) -> bool:
        """Any other node; whether its rows need no others."""
        operands = [self.made[i] for i in node.inputs]
        if self.of_rows.isdisjoint(node.inputs):
            self.made[node.id] = self.graph.insert_like(node, operands)
            return True
        rule = _RULES.get(node.op.name)
        if "elementwise" in node.op.traits:
            rule = _elementwise
        elif node.op.facts.role == "reduce" and "axes" in node.attrs:
            rule = _reduction
        changed = None if rule is None else rule(self, node)
        if changed is None:
            return False
        made = self.graph.insert(node.op, operands, node.slots, {**node.attrs, **changed})
        self.made[node.id] = made
        self.of_rows.add(node.id)
        return [self.rows, *sizes(node)[1:]] == sizes(made)


Attributes = dict[str, object]
Rule = Callable[[_Rows, Node], "Attributes | None"]
"""The attributes of a node that are others with fewer rows; None where one row needs another."""


def _elementwise(walk: _Rows, node: Node) -> Attributes | None:
    for x in node.operands:
        if x.id in walk.of_rows:
            if x.rank != node.rank:
                return None
        elif x.rank == node.rank and sizes(x)[0] != 1:
            return None
    return {}


def _product(walk: _Rows, node: Node) -> Attributes | None:
    a, b = node.operands
    mine = a.id in walk.of_rows and b.id not in walk.of_rows
    return {} if mine and not node.attrs["a_batch"] and 0 not in node.attrs["a_contract"] else None


def _slice(walk: _Rows, node: Node) -> Attributes | None:
    steps = node.attrs["steps"] or (1,)
    whole = node.attrs["starts"][0] == 0 and node.attrs["stops"][0] == walk.count and steps[0] == 1
    return {"stops": (walk.rows, *node.attrs["stops"][1:])} if whole else None


def _concat(walk: _Rows, node: Node) -> Attributes | None:
    every = all(x.id in walk.of_rows for x in node.operands)
    return {} if every and node.attrs["axis"] != 0 else None


def _reshape(walk: _Rows, node: Node) -> Attributes | None:
    kept = node.rank > 0 and sizes(node)[0] == walk.count
    return {"shape": (walk.rows, *sizes(node)[1:])} if kept else None


def _broadcast(walk: _Rows, node: Node) -> Attributes | None:
    same = node.operands[0].rank == node.rank
    return {"shape": (walk.rows, *sizes(node)[1:])} if same else None


def _reduction(walk: _Rows, node: Node) -> Attributes | None:
    return {} if node.attrs["axes"] and 0 not in node.attrs["axes"] else None


_RULES: dict[str, Rule] = {
    "dot_general": _product,
    "slice": _slice,
    "concat": _concat,
    "reshape": _reshape,
    "broadcast_to": _broadcast,
}


def rows_each(count: int, parts: int) -> Sequence[int]:
    """How many rows each of some parts has: larger ones first.

    >>> rows_each(8, 3)
    [3, 3, 2]
    """
    return [count // parts + (number < count % parts) for number in range(parts)]
