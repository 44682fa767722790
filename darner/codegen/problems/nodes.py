"""The node that a kernel is about."""

from __future__ import annotations

from collections.abc import Collection

from ...graph.node import Node
from ...lower.plan import Spec


def main_node(spec: Spec) -> Node:
    """The node whose results, or parts of them, a kernel of one node makes."""
    output = spec.body.outputs[0]
    return output.operands[0] if output.op.name == "project" else output


def only_node(spec: Spec, names: Collection[str]) -> Node | None:
    """The only node of a body that is one of these ops."""
    found = [node for node in spec.body.nodes if node.op.name in names]
    return found[0] if len(found) == 1 else None
