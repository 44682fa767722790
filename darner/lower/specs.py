"""What a kernel computes, as a small graph of its own.

Its inputs are named "0", "1", ... in the order in which it first reads them, its outputs are its results. So a kernel prints, verifies and digests like
any graph, the reference can run it, and two kernels are the same exactly when their graphs are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..graph.facts import Role
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.text.attributes import attribute_text
from ..graph.types import TupleType
from ..ops.faults import can_fail
from .again import Price, computed_again, values_read
from .fuse import fuse
from .groups import PLAIN, Fusing, Group
from .roles import roles
from .strided import Multipliers

if TYPE_CHECKING:
    from .plan import Buffer


def operand_number(leaf: Node | Buffer) -> int:
    """Which operand of its kernel an input of a body, or of its plan, is."""
    return int(str(leaf.name))


@dataclass(frozen=True)
class Work:
    """One kernel of a graph.

    Attributes:
        body: what it computes.
        operands: the nodes it reads, in the order of the body's inputs.
        results: the nodes it makes, in the order of the body's outputs; a node with several results stands once for each.
        nodes: all nodes of the graph that it computes.
        checks: those of them that data can make fail, in the order of the body.
    """

    kind: str
    body: Graph
    operands: tuple[int, ...]
    results: tuple[int, ...]
    nodes: tuple[int, ...]
    checks: tuple[int, ...] = ()


def kernels(
    graph: Graph,
    ended: Collection[str] | None = None,
    multipliers: Multipliers | None = None,
    fusing: Fusing = PLAIN,
    again: Price | None = None,
) -> list[Work]:
    """The kernels of a prepared graph, in an order in which they can run.

    A view that is an output is copied by a kernel of its own. ``ended`` are the ops by index whose kernels may have epilogues,
    ``multipliers`` those of the target; for ``fusing`` see ``fuse``, and for ``again`` ``computed_again``.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (4, 8))
    >>> g.set_outputs([(x @ g.parameter("w", (8, 2))).tanh()])
    >>> from darner.lower.prepare import prepare
    >>> [(work.kind, len(work.nodes)) for work in kernels(prepare(g))]
    [('contract', 2)]
    """
    groups = fuse(graph, ended, multipliers, fusing)
    found = roles(graph, multipliers)
    repeated = computed_again(graph, groups, found, again)
    needed, outside = _needed(graph, groups, repeated, found)
    bodies = _Bodies(graph, outside, found)
    every = zip(groups, needed, repeated, strict=True)
    made = [bodies.work(group.kind, ids, others) for group, ids, others in every if ids]
    return made + [bodies.work("map", [id]) for id in _kept_views(graph, found)]


def _kept_views(graph: Graph, found: Sequence[Role]) -> list[int]:
    ends = dict.fromkeys(node.id for node in (*graph.outputs, *graph.updates.values()))
    return [id for id in ends if found[id] == "view"]


def _needed(
    graph: Graph, groups: Sequence[Group], repeated: Sequence[set[int]], found: Sequence[Role]
) -> tuple[list[list[int]], set[int]]:
    """The nodes of each group, but for those that only kernels needed which compute them again; and the nodes whose values other kernels read, or are outputs."""
    home = {id: number for number, group in enumerate(groups) for id in group.nodes}
    outside = {node.id for node in (*graph.outputs, *graph.updates.values())}
    for id in [id for id in outside if found[id] in ("view", "part")]:
        outside.update(value for value, _ in values_read(graph.nodes[id], found))
    stack = [(home[id], id) for id in outside if id in home]
    seen = set(stack)
    while stack:
        number, id = stack.pop()
        for value, _ in values_read(graph.nodes[id], found):
            inside = home.get(value) == number or value in repeated[number]
            if not inside:
                outside.add(value)
            one = (number if inside else home.get(value, -1), value)
            if one[0] >= 0 and one not in seen:
                seen.add(one)
                stack.append(one)
    own = [[id for id in group.nodes if (k, id) in seen] for k, group in enumerate(groups)]
    return own, outside


class _Bodies:
    """The bodies of a graph's kernels; one for all kernels that compute the same."""

    def __init__(self, graph: Graph, outside: set[int], found: Sequence[Role]) -> None:
        self.graph = graph
        self.outside = outside
        self.roles = found
        self._known: dict[tuple[Any, ...], Graph] = {}

    def work(self, kind: str, ids: Sequence[int], repeated: Collection[int] = ()) -> Work:
        """A kernel's body: its nodes, those of others that it computes again, and the views and counters between them and what it reads."""
        own = {*ids, *repeated}
        numbers: dict[int, int] = {}
        """The places of nodes in the body."""
        operands: list[int] = []
        made: list[tuple[Node, bool]] = []
        results: list[tuple[int, int | None]] = []
        for id in ids:
            self._add(id, own, numbers, operands, made)
            node = self.graph.nodes[id]
            if isinstance(node.type, TupleType):
                parts = (user for user in self.graph.users(id) if self.roles[user.id] == "part")
                results += [(part.id, numbers[id]) for part in parts]
            elif id in self.outside:
                results.append((id, None))
        key = (
            tuple(self._call(node, inner, numbers) for node, inner in made),
            tuple(self._result(*result, numbers) for result in results),
        )
        body = self._known.get(key)
        if body is None:
            body = self._known[key] = self._body(made, results, numbers)
        checks = tuple(node.id for node, inner in made if inner and can_fail(node))
        return Work(kind, body, tuple(operands), tuple(id for id, _ in results), tuple(ids), checks)

    def _add(
        self,
        id: int,
        own: set[int],
        numbers: dict[int, int],
        operands: list[int],
        made: list[tuple[Node, bool]],
    ) -> None:
        """A node of a kernel and what it needs, each with whether it is computed there."""
        nodes, stack = self.graph.nodes, [id]
        while stack:
            node = nodes[stack[-1]]
            if node.id in numbers:
                stack.pop()
                continue
            inner = node.id in own or self.roles[node.id] == "view" or self._is_written(node, id)
            waiting = [i for i in node.inputs if i not in numbers] if inner else []
            if waiting:
                stack += reversed(waiting)
                continue
            if not inner:
                operands.append(node.id)
            numbers[node.id] = len(made)
            made.append((node, inner))

    def _is_written(self, node: Node, reader: int) -> bool:
        """Whether a node is a number in the code of who reads it; a loop reads all its operands from memory."""
        return _is_scalar(node) and self.roles[reader] != "loop"

    @staticmethod
    def _call(node: Node, inner: bool, numbers: Mapping[int, int]) -> tuple[Any, ...]:
        """What tells one node of a body from another."""
        if not inner:
            return (node.type,)
        text = attribute_text(node.op, node.attrs)
        return (node.op.name, node.slots, text, node.type, *[numbers[i] for i in node.inputs])

    def _result(self, id: int, whole: int | None, numbers: Mapping[int, int]) -> tuple[Any, ...]:
        node = self.graph.nodes[id]
        return (numbers[id],) if whole is None else (whole, attribute_text(node.op, node.attrs))

    def _body(
        self,
        made: Sequence[tuple[Node, bool]],
        results: Sequence[tuple[int, int | None]],
        numbers: Mapping[int, int],
    ) -> Graph:
        body = Graph("kernel")
        count = 0
        for node, inner in made:
            if inner:
                arguments = [body.nodes[numbers[i]] for i in node.inputs]
                body.insert(node.op, arguments, node.slots, node.attrs, type=node.type)
            else:
                body.input(str(count), node.shape, node.dtype)
                count += 1
        outputs = []
        for id, whole in results:
            if whole is None:
                outputs.append(body.nodes[numbers[id]])
            else:
                outputs.append(body.insert_like(self.graph.nodes[id], [body.nodes[whole]]))
        body.set_outputs(outputs)
        return body.freeze()


def _is_scalar(node: Node) -> bool:
    return node.op.name == "constant" and node.size == 1


def sizes(node: Node) -> list[int]:
    """The sizes of a node; in a kernel all are known."""
    return [int(size) for size in node.shape]
