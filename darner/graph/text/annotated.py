"""The annotated dump of a graph, for people."""

from __future__ import annotations

from collections import Counter

from ..attributes import Pool
from ..dims import Dim
from ..graph import Graph
from ..node import Node
from .dump import dumps, node_call, shown_name


def inspect_graph(graph: Graph) -> str:
    """Counts and bytes first, then one aligned line a node: call, type, label, the user's line."""
    total: Dim = 0
    for node in graph.nodes:
        total = total + node.type.nbytes
    noun = "node" if len(graph) == 1 else "nodes"
    outputs = {node.id for node in graph.outputs}
    count = len(graph.outputs)
    header = (
        f"graph @{shown_name(graph)} ({len(graph)} {noun}, "
        f"{count} {'output' if count == 1 else 'outputs'}, {format_bytes(total)} unshared)"
    )
    counts = Counter(node.op.name for node in graph.nodes)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [header, f"  ops: {', '.join(f'{name}={count}' for name, count in ranked)}"]
    calls = [_call(node) for node in graph.nodes]
    width = min(max((len(call) for call in calls), default=0), 56)
    id_width = len(str(len(graph)))
    for node, call in zip(graph.nodes, calls, strict=True):
        notes = [dumps(node.label)] if node.label else []
        if node.source is not None:
            notes.append(f"// {node.source}")
        if node.id in outputs:
            notes.append("<- output")
        note = "  " + "  ".join(notes) if notes else ""
        lines.append(f"  %{node.id:<{id_width}} = {call:<{width}} : {node.type!s}{note}")
    for leaf, value in graph.updates.items():
        lines.append(f"  update %{leaf.id} {dumps(leaf.name)} = %{value.id}")
    lines.append(f"  return {', '.join(f'%{node.id}' for node in graph.outputs)}")
    return "\n".join(lines)


def _call(node: Node) -> str:
    if node.name is not None:
        return f"{node.op.name} {dumps(node.name)}"
    return node_call(node, Pool())


def format_bytes(count: Dim) -> str:
    """Bytes in powers of 1000: ``1.2 MB``; symbolic sizes as they are."""
    if not isinstance(count, int):
        return f"{count} B"
    value = float(count)
    if value < 1000:
        return f"{count} B"
    for unit in ("kB", "MB"):
        value /= 1000
        if value < 1000:
            return f"{value:.1f} {unit}"
    return f"{value / 1000:.1f} GB"
