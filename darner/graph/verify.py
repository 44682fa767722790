"""What is legal in a graph.

1. Ids are positions; an operand comes before its user.
2. Every op is registered, has the operands its record declares, and attributes in canonical form.
3. Every type is the one the op's shape rule gives.
4. Only ``project`` reads a node with several results.
5. Names of inputs, parameters and states are distinct; the graph's name table matches them.
6. Outputs and updates are nodes of the graph; an update has the type of its leaf.
7. The table of users matches the operands.
"""

from __future__ import annotations

from typing import Any

from .attributes import Attribute, Operand, normalize_axes
from .errors import DarnerError, VerifyError
from .graph import LEAVES, Graph
from .node import Node
from .op import OPS
from .serial import check_slots
from .types import TensorType, TupleType


def verify(graph: Graph) -> Graph:
    """Raise ``VerifyError`` naming the first fault; return the graph when there is none."""
    users: list[list[int]] = [[] for _ in graph.nodes]
    names: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        try:
            _check_node(graph, node, position, names)
        except DarnerError as error:
            text = error.rule if isinstance(error, VerifyError) else str(error)
            fault = VerifyError(f"node %{position}: {text}")
            raise fault.located(node.op.name, node.label, "", node.source) from error
        for operand in node.inputs:
            if not users[operand] or users[operand][-1] != position:
                users[operand].append(position)
    if names != graph._names:
        raise VerifyError(f"the name table of graph '{graph.name}' does not match its leaves")
    if users != graph._users:
        wrong = next(i for i, found in enumerate(graph._users) if found != users[i])
        raise VerifyError(f"the users recorded for %{wrong} are not those of the graph")
    _check_ends(graph)
    return graph


def _check_node(graph: Graph, node: Node, position: int, names: dict[str, int]) -> None:
    op = node.op
    if node.graph is not graph or node.id != position:
        raise VerifyError(f"stands at {position} but says it is %{node.id} of '{node.graph.name}'")
    if OPS.get(op.name) is not op:
        raise VerifyError(f"op '{op.name}' is not the registered one")
    if len(node.inputs) != len(node.slots):
        raise VerifyError(f"has {len(node.inputs)} operands but {len(node.slots)} slots")
    check_slots(op, node.slots)
    for operand in node.inputs:
        if not 0 <= operand < position:
            raise VerifyError(f"reads %{operand}, which does not come before it")
    for operand, slot in zip(node.inputs, node.slots, strict=True):
        kind = op.by_name[slot].kind
        wants_tuple = isinstance(kind, Operand) and kind.exact == "tuple"
        if isinstance(graph.nodes[operand].type, TupleType) != wants_tuple:
            raise VerifyError(
                f"reads %{operand} as {slot}, which has type {graph.nodes[operand].type}"
            )
    _check_attrs(graph, node)
    types = tuple(graph.nodes[operand].type for operand in node.inputs)
    found, settled = op.infer_type(types, node.slots, node.attrs)
    if found != node.type:
        raise VerifyError(f"is recorded as {node.type}, but {op.name} gives {found}")
    if settled != node.attrs:
        raise VerifyError(f"has attributes {node.attrs}, which settle to {settled}")
    if op.name in LEAVES:
        name = node.attrs["name"]
        if name in names:
            raise VerifyError(f"has the name '{name}' of %{names[name]}")
        names[name] = position


def _check_attrs(graph: Graph, node: Node) -> None:
    expected = [param.name for param in node.op.attributes]
    if list(node.attrs) != expected:
        raise VerifyError(f"has attributes {list(node.attrs)}, expected {expected}")
    for param in node.op.attributes:
        value: Any = node.attrs[param.name]
        if value is None:
            if not (param.optional or param.default is None):
                raise VerifyError(f"has no value for '{param.name}'")
            continue
        if not isinstance(param.kind, Attribute):
            continue
        canonical = param.kind.coerce(value)
        if param.kind.axes and node.inputs:
            first = graph.nodes[node.inputs[0]]
            canonical = normalize_axes(canonical, first.rank)
        if canonical != value or type(canonical) is not type(value):
            raise VerifyError(f"has {param.name}={value!r}, whose canonical form is {canonical!r}")


def _check_ends(graph: Graph) -> None:
    count = len(graph)
    for i in graph._outputs:
        if not 0 <= i < count:
            raise VerifyError(f"output %{i} is not a node of graph '{graph.name}'")
        if not isinstance(graph.nodes[i].type, TensorType):
            raise VerifyError(f"output %{i} has several results")
    for leaf, value in graph._updates.items():
        if not (0 <= leaf < count and 0 <= value < count):
            raise VerifyError(f"update of %{leaf} by %{value} is not between nodes of the graph")
        if graph.nodes[leaf].op.name not in ("state", "parameter"):
            raise VerifyError(f"update of %{leaf}, which is not a state or parameter")
        if graph.nodes[leaf].type != graph.nodes[value].type:
            raise VerifyError(
                f"update of %{leaf} ({graph.nodes[leaf].type}) by %{value} ({graph.nodes[value].type})"
            )
