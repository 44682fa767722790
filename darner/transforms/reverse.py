"""Reverse mode: cotangents from the outputs back to what they depend on.

The rule of an op (``@op.vjp``) gets the cotangent, the result, the operands and the attributes by name, and says what
each operand receives. What it returns are functions, called only for operands that need a gradient:

    @matmul.vjp
    def _(g, out, a, b):
        return {"a": lambda: g @ b.T, "b": lambda: a.T @ g}

One operand may be answered by the node itself, a list of operands by a list. A rule that does all
operands in one go returns ``Together``. What a broadcast operand of an
element-wise op receives is summed to its shape here, not in the rules. A composite without a rule is written out
first, so that the rules of its parts apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph.errors import ArgumentError, InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Op
from ..graph.types import TupleType
from ..ops.axes import sum_to
from .expand import expand, expansion, inline
from .remat import Recompute

NO_GRADIENT = "no gradient"
"""The trait of ops through which no gradient passes, although their results are floats."""


@dataclass(frozen=True)
class Together:
    """A rule's answer that is made for all operands at once, told which of them are wanted."""

    contributions: Callable[[Sequence[bool]], list[Node | None]]


def is_differentiable(node: Node) -> bool:
    """Whether a value can carry a gradient: floats and complex numbers do."""
    items = node.type.items if isinstance(node.type, TupleType) else (node.type,)
    return any(item.dtype.kind in ("float", "complex") for item in items)


def passes_gradient(node: Node) -> bool:
    """Whether a gradient can go through a node."""
    return NO_GRADIENT not in node.op.traits and is_differentiable(node)


def active_nodes(graph: Graph, wrt: Sequence[Node], outputs: Sequence[Node]) -> list[bool]:
    """The nodes on a differentiable path from ``wrt`` to ``outputs``."""
    reached = [False] * len(graph)
    chosen = {node.id for node in wrt}
    for node in graph.nodes:
        if node.id in chosen:
            reached[node.id] = is_differentiable(node)
        elif any(reached[i] for i in node.inputs):
            reached[node.id] = passes_gradient(node)
    needed = needed_nodes(graph, outputs)
    return [a and b for a, b in zip(reached, needed, strict=True)]


def needed_nodes(graph: Graph, outputs: Sequence[Node]) -> list[bool]:
    """The nodes that ``outputs`` depend on, themselves included."""
    needed = [False] * len(graph)
    for node in outputs:
        needed[node.id] = True
    for node in graph.reverse_topo():
        if needed[node.id]:
            for i in node.inputs:
                needed[i] = True
    return needed


class Rebuilt:
    """A graph copied with some composites written out, and where each old node went."""

    def __init__(self, graph: Graph, write_out: Callable[[Node], bool]) -> None:
        self.graph = Graph(graph.name)
        self._mapped: dict[int, list[Node]] = {}
        self.names: dict[int, str] = {}
        """The ops that results of written out nodes were."""
        written_out: set[int] = set()
        for node in graph.nodes:
            operands = [self._mapped[i][0] for i in node.inputs]
            if node.op.name == "project" and node.inputs[0] in written_out:
                self._mapped[node.id] = [self._mapped[node.inputs[0]][node.attrs["index"]]]
            elif write_out(node):
                written_out.add(node.id)
                body = expand(expansion(node), keep=lambda part: not needs_expansion(part))
                results = inline(self.graph, body, operands, node)
                self._mapped[node.id] = [self._apart(item, operands, node) for item in results]
                self.names.update((result.id, node.op.name) for result in self._mapped[node.id])
            else:
                self._mapped[node.id] = [self.graph.insert_like(node, operands)]
        self.graph.set_outputs([self[node] for node in graph.outputs])
        for leaf, value in graph.updates.items():
            self.graph.set_update(self[leaf], self[value])
        self.graph.inherit(graph)

    def _apart(self, result: Node, operands: list[Node], node: Node) -> Node:
        """A result that is an operand unchanged as a node of its own: their gradients differ."""
        if all(result is not operand for operand in operands):
            return result
        return self.graph.insert(
            "reshape",
            [result],
            ("x",),
            {"shape": result.shape},
            label=node.label,
            scope=node.scope,
            source=node.source,
        )

    def __getitem__(self, node: Node) -> Node:
        return self._mapped[node.id][0]


def needs_expansion(node: Node) -> bool:
    """Whether a node's derivative comes from its parts."""
    if not node.op.is_composite:
        return False
    if (
        "vjp_body" in node.attrs
    ):  # a custom function: one rule is enough, its transpose is the other
        return node.attrs["vjp_body"] is None and node.attrs["jvp_body"] is None
    return node.op.rules.vjp is None


def prepare(graph: Graph, wrt: Sequence[Node], outputs: Sequence[Node]) -> Rebuilt:
    """A copy in which every node on the way from ``wrt`` to ``outputs`` has a rule."""
    active = active_nodes(graph, wrt, outputs)

    def is_passed(node: Node) -> bool:
        """Whether a derivative goes through a node: one that is only the end of the way may stay whole."""
        return active[node.id] and passes_gradient(node) and any(active[i] for i in node.inputs)

    return Rebuilt(graph, lambda node: needs_expansion(node) and is_passed(node))


def pull_back(
    graph: Graph,
    outputs: Sequence[Node],
    cotangents: Sequence[Node],
    wrt: Sequence[Node],
    names: Mapping[int, str] | None = None,
) -> list[Node | None]:
    """Append the gradients of ``outputs``, weighted by ``cotangents``, by each of ``wrt``.

    The graph must be prepared. None stands for a gradient that is zero because nothing depends on it. Contributions
    are summed from the last user to the first. ``names`` are those of a ``Rebuilt`` graph.
    """
    active = active_nodes(graph, wrt, outputs)
    recompute = Recompute(graph, names)
    waiting: dict[int, list[Any]] = {}
    for node, cotangent in zip(outputs, cotangents, strict=True):
        if active[node.id]:
            waiting.setdefault(node.id, []).append(cotangent)
    chosen = {node.id for node in wrt}
    found: dict[int, Node] = {}
    for node in graph.nodes[: len(active)][::-1]:
        if node.id not in waiting:
            continue
        with graph.derived_from(node):
            total = _total(node, waiting.pop(node.id))
            if node.id in chosen:
                found[node.id] = total
            wanted = [active[i] and passes_gradient(node) for i in node.inputs]
            if any(wanted):
                parts = contributions(node, total, wanted, recompute.reading(node, total))
                for operand, part in zip(node.operands, parts, strict=True):
                    if part is not None:
                        waiting.setdefault(operand.id, []).append(part)
    return [found.get(node.id) for node in wrt]


def _total(node: Node, parts: list[Any]) -> Any:
    """The sum of contributions in the order they came; for several results, one sum for each."""
    if isinstance(node.type, TupleType):
        items: list[Node | None] = [None] * len(node.type.items)
        for index, part in parts:
            known = items[index]
            items[index] = part if known is None else known + part
        return tuple(items)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def contributions(
    node: Node, cotangent: Any, wanted: Sequence[bool], read: Callable[[Node], Node]
) -> list[Any]:
    """What each operand of a node receives from it; None where nothing is wanted or nothing comes.

    The rule sees each forward value as ``read`` gives it.
    """
    if node.op.name == "project":
        return [(node.attrs["index"], cotangent)]
    if node.op.rules.vjp is None:
        raise ArgumentError("has no derivative").located(node.op.name, node.label, "", node.source)
    result: Any
    if isinstance(node.type, TupleType):
        result = tuple(read(_projection(node, i)) for i in range(len(node.type.items)))
    else:
        result = read(node)
    operands = [read(operand) for operand in node.operands]
    return apply_rule(node.op, operands, node.slots, node.attrs, result, cotangent, wanted)


def apply_rule(  # many parameters: a call, as it stands in the graph
    op: Op,
    operands: Sequence[Node],
    slots: Sequence[str],
    attrs: dict[str, Any],
    result: Any,
    cotangent: Any,
    wanted: Sequence[bool],
) -> list[Node | None]:
    """Ask an op's vjp rule for what the wanted operands receive."""
    if op.rules.vjp is None:
        raise InternalError(f"'{op.name}' has no vjp rule")
    answer = op.rules.vjp(cotangent, result, **op.arguments(operands, slots), **attrs)
    if isinstance(answer, Together):
        return answer.contributions(wanted)
    if not isinstance(answer, dict):
        answer = {slots[0]: answer}
    seen: dict[str, int] = {}
    received: list[Node | None] = []
    for operand, slot, want in zip(operands, slots, wanted, strict=True):
        index = seen[slot] = seen.get(slot, -1) + 1
        part = answer.get(slot) if want else None
        if isinstance(part, list | tuple):
            part = part[index]
        value = part() if callable(part) and not isinstance(part, Node) else part
        received.append(None if value is None else _fitted(op, operand, value))
    return received


def _projection(node: Node, index: int) -> Node:
    for user in node.graph.users(node):
        if user.op.name == "project" and user.attrs["index"] == index:
            return user
    return node.graph.insert("project", [node], ("source",), {"index": index}, source=node.source)


def _fitted(op: Op, operand: Node, value: Node) -> Node:
    """A contribution in the operand's own shape and type."""
    if "elementwise" in op.traits and value.shape != operand.shape:
        value = sum_to(value, operand.shape)
    if value.type != operand.type:
        raise InternalError(
            f"the vjp of '{op.name}' gave {value.type} for an operand of {operand.type}"
        )
    return value
