"""Graphs from graphs: copies, substitution of sizes, removal of dead nodes, checked edits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .attributes import Attribute
from .build import describe_types
from .check import canonical, settle_axes
from .dims import Dim
from .errors import ArgumentError, Calling, DarnerError, nearest
from .graph import LEAVES, Graph
from .node import Node, change_node
from .types import Type

AttrMap = Callable[[Node], dict[str, Any]]


def copy_graph(
    graph: Graph,
    *,
    name: str | None = None,
    attrs: AttrMap | None = None,
    keep: Sequence[bool] | None = None,
) -> Graph:
    """Rebuild a graph node by node.

    ``attrs`` gives a node's attributes in the copy, whose types are then inferred anew; ``keep`` says which nodes to
    take.
    """
    result = Graph(graph.name if name is None else name)
    mapped: dict[int, Node] = {}
    for node in graph.nodes:
        if keep is not None and not keep[node.id]:
            continue
        try:
            operands = [mapped[i] for i in node.inputs]
            mapped[node.id] = result.insert_like(
                node, operands, None if attrs is None else attrs(node)
            )
        except DarnerError as error:
            raise error.located(node.op.name, node.label, "", node.source) from error.__cause__
    result.set_outputs([mapped[node.id] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(mapped[leaf.id], mapped[value.id])
    result.inherit(graph)
    result._literals = {
        data: mapped[id].id
        for data, id in graph._literals.items()
        if id in mapped and mapped[id].attrs.get("values") == data
    }
    return result


def bind_graph(graph: Graph, bindings: Mapping[str, Dim]) -> Graph:
    """The graph with sizes in place of symbols, in types and in attributes."""

    def bound(node: Node) -> dict[str, Any]:
        result = dict(node.attrs)
        for param in node.op.attributes:
            value = result[param.name]
            if value is not None and isinstance(param.kind, Attribute):
                result[param.name] = param.kind.bind(value, bindings)
        return result

    return copy_graph(graph, attrs=bound)


def without_dead_nodes(graph: Graph) -> Graph:
    """The nodes that an output or an update needs, and every named leaf."""
    live = [node.op.name in LEAVES for node in graph.nodes]
    for node in (*graph.outputs, *graph.updates.values()):
        live[node.id] = True
    for node in graph.reverse_topo():
        if live[node.id]:
            for i in node.inputs:
                live[i] = True
    return copy_graph(graph, keep=live)


def inline_by_name(target: Graph, body: Graph, leaves: dict[str, Node]) -> list[Node]:
    """Copy a body into a graph with nodes in place of its named inputs."""
    mapped: dict[int, Node] = {leaf.id: leaves[name] for name, leaf in body.inputs.items()}
    for node in body.nodes:
        if node.id not in mapped:
            operands = [mapped[i] for i in node.inputs]
            source = target.source_of_call()
            mapped[node.id] = target.insert(
                node.op, operands, node.slots, node.attrs, source=source
            )
    return [mapped[node.id] for node in body.outputs]


class NodeEditor:
    """Changes one node in place, re-checking it and what depends on it."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def set_inputs(self, inputs: Sequence[Node | int]) -> NodeEditor:
        """Replace the operands."""
        self.node.graph.set_inputs(self.node, inputs)
        return self

    def set_attrs(self, **attrs: Any) -> NodeEditor:
        """Replace attributes by name."""
        graph = self.node.graph
        with Calling("set_attrs"):
            graph._must_be_open()
            replace_attrs(graph, self.node, attrs)
        return self

    def set_label(self, label: str | None) -> NodeEditor:
        """Replace the label."""
        self.node.graph.relabel(self.node, label)
        return self


def replace_inputs(graph: Graph, node: Node, inputs: Sequence[Node]) -> None:
    """Give a node other operands; nothing changes unless every type still fits."""
    if len(inputs) != len(node.inputs):
        raise ArgumentError(f"{node.op.name} has {len(node.inputs)} operands, got {len(inputs)}")
    for operand in inputs:
        if operand.id >= node.id:
            raise ArgumentError(
                f"%{operand.id} comes after %{node.id}: an operand must come before"
            )
    ids = tuple(operand.id for operand in inputs)
    _commit(graph, node, ids, node.attrs)


def replace_attrs(graph: Graph, node: Node, attrs: Mapping[str, Any]) -> None:
    """Give a node other attributes; nothing changes unless every type still fits."""
    names = node.op.attribute_names
    updated = dict(node.attrs)
    for name, value in attrs.items():
        if name not in names:
            hint = nearest(name, names)
            raise ArgumentError(f"{node.op.name} has no attribute '{name}'", hint=hint)
        if name == "name" and node.op.name in LEAVES:
            raise ArgumentError("the name of a leaf cannot change")
        updated[name] = canonical(node.op.by_name[name], value)
    updated = settle_axes(node.op, updated, [operand.type for operand in node.operands])
    _commit(graph, node, node.inputs, updated)


def _commit(graph: Graph, node: Node, inputs: tuple[int, ...], attrs: dict[str, Any]) -> None:
    """Infer the types that follow from an edit, then apply it."""
    types: dict[int, Type] = {}
    settled: dict[int, dict[str, Any]] = {}
    nodes = graph.nodes
    for item in nodes[node.id :]:
        edited = item is node
        operands = inputs if edited else item.inputs
        if not edited and not any(i in types for i in operands):
            continue
        operand_types = tuple(types.get(i, nodes[i].type) for i in operands)
        try:
            found = item.op.infer_type(operand_types, item.slots, attrs if edited else item.attrs)
        except DarnerError as error:
            shown = describe_types(list(zip(item.slots, operand_types, strict=True)))
            raise error.located(item.op.name, item.label, shown, item.source) from None
        if edited or found[0] != item.type or found[1] != item.attrs:
            types[item.id], settled[item.id] = found
    for leaf, value in graph.updates.items():
        if types.get(leaf.id, leaf.type) != types.get(value.id, value.type):
            raise ArgumentError(f"the update of '{leaf.name}' would no longer have its type")
    for old in set(node.inputs) - set(inputs):
        graph._users[old].remove(node.id)
    for new in set(inputs) - set(node.inputs):
        graph._users[new] = sorted([*graph._users[new], node.id])
    # A number met later must not be taken for a constant that no longer has its value.
    graph._literals = {data: id for data, id in graph._literals.items() if id != node.id}
    change_node(node, inputs=inputs)
    for id, type_ in types.items():
        change_node(nodes[id], type=type_, attrs=settled[id])
