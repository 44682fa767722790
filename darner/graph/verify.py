"""What is legal in a graph.

1. Ids are positions; an operand comes before its user.
2. Every op is registered, has the operands its record declares, and attributes in canonical form.
3. Every type is the one the op's shape rule gives; operands that share an element type do so.
4. Only ``project`` reads a node with several results.
5. Names of inputs, parameters and states are distinct; the graph's name table matches them.
6. Outputs and updates are nodes of the graph; an update has the type of its leaf.
7. The tables of users and of shared constants match the nodes.
8. Inner graphs are frozen and keep the same rules.
"""

from __future__ import annotations

from typing import Any

from .attributes import as_text
from .check import canonical, settle_axes
from .data import Data
from .errors import DarnerError, Source, VerifyError
from .graph import LEAVES, Graph
from .node import Node
from .op import OPS, Op
from .types import TensorType, TupleType


def verify(graph: Graph) -> Graph:
    """Raise ``VerifyError`` naming the first fault; return the graph when there is none."""
    _verify(graph, set())
    return graph


def _verify(graph: Graph, done: set[int]) -> None:
    """Check a graph and its inner graphs, but not those whose ``id`` is in ``done``."""
    done.add(id(graph))
    users: list[list[int]] = [[] for _ in graph._nodes]
    names: dict[str, int] = {}
    calls: set[tuple[Any, ...]] = set()
    for position, node in enumerate(graph._nodes):
        try:
            _check_fields(graph, node, position)
            # Passes that repeat a block share its attributes and types; the same objects need one look.
            types = [id(graph._nodes[operand].type) for operand in node.inputs]
            call = (id(node.op), id(node.attrs), id(node.type), node.slots, *types)
            if call not in calls:
                _check_node(graph, node, done)
                calls.add(call)
            if node.op.name in LEAVES:
                _check_name(node, names)
        except DarnerError as error:
            text = error.rule if isinstance(error, VerifyError) else str(error)
            fault = VerifyError(f"node %{position}: {text}")
            if isinstance(node.op, Op) and isinstance(node.source, Source | None):
                fault.located(node.op.name, node.label, "", node.source)
            raise fault from error
        for operand in node.inputs:
            if not users[operand] or users[operand][-1] != position:
                users[operand].append(position)
    if names != graph._names:
        raise VerifyError(f"the name table of graph '{graph.name}' does not match its leaves")
    if users != graph._users:
        pairs = zip(users, graph._users, strict=False)
        shorter = min(len(users), len(graph._users))
        wrong = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
        raise VerifyError(f"the users recorded for %{wrong} are not those of the graph")
    _check_literals(graph)
    _check_ends(graph)


def _check_fields(graph: Graph, node: Node, position: int) -> None:
    """Each field must be of its kind before anything is made of it."""
    if node.graph is not graph or node.id != position:
        name = getattr(node.graph, "name", node.graph)
        raise VerifyError(f"stands at {position} but says it is %{node.id} of '{name}'")
    for field, kind in _FIELDS.items():
        value = getattr(node, field)
        if not isinstance(value, kind):
            raise VerifyError(f"has {field} {value!r}, which is not {_shown(kind)}")
    for slot in node.slots:
        if not isinstance(slot, str):
            raise VerifyError(f"has a slot {slot!r}, which is not text")
    if node.label is not None:
        as_text(node.label, "a label", empty=False)
    for operand in node.inputs:
        if type(operand) is not int or not 0 <= operand < position:
            raise VerifyError(f"reads %{operand}, which does not come before it")


_FIELDS: dict[str, Any] = {
    "op": Op,
    "inputs": tuple,
    "slots": tuple,
    "attrs": dict,
    "type": TensorType | TupleType,
    "label": str | None,
    "scope": str,
    "source": Source | None,
}


def _shown(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _check_node(graph: Graph, node: Node, done: set[int]) -> None:
    op = node.op
    if OPS.get(op.name) is not op:
        raise VerifyError(f"op '{op.name}' is not the registered one")
    types = tuple([graph._nodes[operand].type for operand in node.inputs])
    if op.attributes or node.attrs:
        _check_attrs(node, types, done)
    found, settled = op.infer_type(types, node.slots, node.attrs)
    if found != node.type:
        raise VerifyError(f"is recorded as {node.type}, but {op.name} gives {found}")
    if settled != node.attrs:
        raise VerifyError(f"has attributes {node.attrs}, which settle to {settled}")


def _check_attrs(node: Node, types: tuple[Any, ...], done: set[int]) -> None:
    if tuple(node.attrs) != node.op.attribute_names:
        expected = list(node.op.attribute_names)
        raise VerifyError(f"has attributes {list(node.attrs)}, expected {expected}")
    for value in node.attrs.values():
        if isinstance(value, Graph) and not value._frozen:
            raise VerifyError(f"has an inner graph '{value.name}' that is not frozen")
    coerced = {param.name: canonical(param, node.attrs[param.name]) for param in node.op.attributes}
    for name, value in settle_axes(node.op, coerced, types).items():
        stored = node.attrs[name]
        # By repr, which tells -0.0 from 0.0 and knows that NaN is NaN.
        if value is not stored and (type(value) is not type(stored) or repr(value) != repr(stored)):
            raise VerifyError(f"has {name}={stored!r}, whose canonical form is {value!r}")
        if isinstance(value, Graph) and id(value) not in done:
            _verify(value, done)


def _check_name(node: Node, names: dict[str, int]) -> None:
    name = node.attrs["name"]
    if name in names:
        raise VerifyError(f"has the name '{name}' of %{names[name]}")
    names[name] = node.id


def _check_literals(graph: Graph) -> None:
    for data, i in graph._literals.items():
        if not 0 <= i < len(graph) or graph._nodes[i].attrs.get("values") != data:
            shown = repr(data) if isinstance(data, Data) else data
            raise VerifyError(f"%{i} is recorded as the constant {shown}, which it is not")


def _check_ends(graph: Graph) -> None:
    count = len(graph)
    for i in graph._outputs:
        if not 0 <= i < count:
            raise VerifyError(f"output %{i} is not a node of graph '{graph.name}'")
        if not isinstance(graph._nodes[i].type, TensorType):
            raise VerifyError(f"output %{i} has several results")
    for leaf, value in graph._updates.items():
        if not (0 <= leaf < count and 0 <= value < count):
            raise VerifyError(f"update of %{leaf} by %{value} is not between nodes of the graph")
        target, source = graph._nodes[leaf], graph._nodes[value]
        if target.op.name not in ("state", "parameter"):
            raise VerifyError(f"update of %{leaf}, which is not a state or parameter")
        if target.type != source.type:
            raise VerifyError(f"update of %{leaf} ({target.type}) by %{value} ({source.type})")
