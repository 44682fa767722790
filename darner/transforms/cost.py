"""What nodes cost at least, from their types alone.

    >>> import darner
    >>> g = darner.Graph()
    >>> y = g.input("x", (32, 784)) @ g.parameter("w", (784, 128))
    >>> darner.cost(y)
    Cost(bytes=518144, flops=6422528)

Bytes are those of the operands and the result, each moved once: the least a kernel of its own must move.
Flops count additions, multiplications and elementary functions alike. Symbolic sizes give symbolic costs.
"""

from __future__ import annotations

from typing import Any

from ..graph.dims import Dim
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Cost, Op
from ..graph.types import TupleType, Type
from ..ops.loops.loop import loop
from .expand import expand_call


def cost(node: Node) -> Cost:
    """The least bytes and flops of one node."""
    types = tuple(operand.type for operand in node.operands)
    found = call_cost(node.op, node.slots, node.attrs, types, node.type)
    twice = _zero()
    for i, operand in enumerate(node.inputs):
        if operand in node.inputs[:i]:
            twice = twice + types[i].nbytes
    return Cost(found.bytes - twice, found.flops) if twice and found.bytes else found


def call_cost(
    op: Op, slots: tuple[str, ...], attrs: dict[str, Any], types: tuple[Type, ...], type_: Type
) -> Cost:
    """The least bytes and flops of an op on operands of these types, all of them different."""
    if "leaf" in op.traits or "view" in op.traits:
        return Cost(0, 0)
    moved: Dim = type_.nbytes
    for operand in types:
        moved = moved + operand.nbytes
    rule = op.rules.cost
    if rule is not None:
        answer = rule(**op.arguments(types, slots), **attrs)
        return answer if isinstance(answer, Cost) else Cost(moved, answer)
    return Cost(moved, _flops(op, slots, attrs, types, type_))


def _flops(
    op: Op, slots: tuple[str, ...], attrs: dict[str, Any], types: tuple[Type, ...], type_: Type
) -> Dim:
    """Without a rule: a composite's are those of its parts, a primitive works once an element."""
    if op.is_composite:
        total: Dim = 0
        for part in expand_call(op, slots, attrs, types).nodes:
            total = total + cost(part).flops
        return total
    if op.family in ("shape", "index"):
        return 0
    # A reduction works on every operand element, an element-wise op on every result.
    if "elementwise" in op.traits:
        return _size(type_)
    return sum((_size(operand) for operand in types), start=_zero())


def _zero() -> Dim:
    return 0


def _size(type_: Type) -> Dim:
    if isinstance(type_, TupleType):
        return sum((item.size for item in type_.items), start=_zero())
    return type_.size


def graph_cost(graph: Graph) -> Cost:
    """The sum over all nodes: what the graph costs when nothing is fused."""
    moved, flops = _zero(), _zero()
    for node in graph.nodes:
        part = cost(node)
        moved, flops = moved + part.bytes, flops + part.flops
    return Cost(moved, flops)


@loop.cost
def _(
    init: object, constants: object, xs: object, body: Graph, length: int, **attrs: object
) -> Dim:
    """A loop costs its body in every step."""
    return length * graph_cost(body).flops
