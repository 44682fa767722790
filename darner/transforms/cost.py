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

from ..graph.dims import Dim
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Cost
from ..graph.types import TupleType, Type
from .expand import expansion


def cost(node: Node) -> Cost:
    """The least bytes and flops of one node."""
    if "leaf" in node.op.traits:
        return Cost(0, 0)
    if "view" in node.op.traits:
        return Cost(0, 0)
    moved: Dim = node.type.nbytes
    for operand in {operand.id: operand for operand in node.operands}.values():
        moved = moved + operand.type.nbytes
    rule = node.op.rules.cost
    if rule is not None:
        types = [operand.type for operand in node.operands]
        answer = rule(**node.op.arguments(types, node.slots), **node.attrs)
        return answer if isinstance(answer, Cost) else Cost(moved, answer)
    return Cost(moved, _flops(node))


def _flops(node: Node) -> Dim:
    """Without a rule: a composite's are those of its parts, a primitive works once an element."""
    if node.op.is_composite:
        total: Dim = 0
        for part in expansion(node).nodes:
            total = total + cost(part).flops
        return total
    if node.op.family in ("shape", "index"):
        return 0
    sizes = [_size(node.type), *(_size(operand.type) for operand in node.operands)]
    # A reduction works on every operand element, an element-wise op on every result.
    return sizes[0] if "elementwise" in node.op.traits else sum(sizes[1:], start=_zero())


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
