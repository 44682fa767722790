"""The text form of a graph, and the hash made from it.

One line a node, in the order of ids; attributes as JSON, left out where they have their default:

    graph @mlp {
      %0 = input(name="x") : f32[32, 784]
      %1 = softmax(%0) : f32[32, 784] "probs"
      return %1
    }

Constants of more than 16 elements and inner graphs stand in a table below the graph. ``parse``
reads it all back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from .attributes import Attribute, Pool
from .graph import LEAVES, Graph
from .node import Node

_dumps = json.JSONEncoder(ensure_ascii=False).encode


def encode_attrs(node: Node, pool: Pool, *, defaults: bool) -> dict[str, Any]:
    """A node's attributes as JSON values; with ``defaults`` even those left at their default."""
    result = {}
    for param in node.op.attributes:
        value = node.attrs[param.name]
        if not defaults and node.op.name in LEAVES and param.name in ("shape", "dtype"):
            continue  # the node's type says it
        if not defaults and value == param.default and type(value) is type(param.default):
            continue
        encode = param.kind.encode if isinstance(param.kind, Attribute) else None
        result[param.name] = None if value is None or encode is None else encode(value, pool)
    return result


def node_call(node: Node, pool: Pool, *, defaults: bool = False) -> str:
    """``matmul(%0, %1)``: the op, operands and attributes of a node."""
    parts = []
    for param, ids in operand_groups(node):
        text = ", ".join(f"%{i}" for i in ids)
        if param.variadic:
            text = f"[{text}]"
        parts.append(f"{param.name}={text}" if param.optional else text)
    attrs = encode_attrs(node, pool, defaults=defaults)
    parts.extend(f"{name}={_dumps(value)}" for name, value in attrs.items())
    return f"{node.op.name}({', '.join(parts)})"


def operand_groups(node: Node) -> Iterator[tuple[Any, list[int]]]:
    """Each operand parameter that is present, with the ids that fill it."""
    for param in node.op.operands:
        ids = [i for i, slot in zip(node.inputs, node.slots, strict=True) if slot == param.name]
        if ids or param.variadic:
            yield param, ids


def _body(graph: Graph, pool: Pool) -> Iterator[str]:
    yield f"graph @{_dumps(graph.name) if not graph.name.isidentifier() else graph.name} {{"
    for node in graph.nodes:
        label = f" {_dumps(node.label)}" if node.label else ""
        yield f"  %{node.id} = {node_call(node, pool)} : {node.type}{label}"
    yield from _ends(graph, "  ")
    yield "}"


def _ends(graph: Graph, indent: str) -> Iterator[str]:
    for leaf, value in graph.updates.items():
        yield f"{indent}update %{leaf.id} = %{value.id}"
    if graph.outputs:
        yield f"{indent}return {', '.join(f'%{node.id}' for node in graph.outputs)}"


def to_text(graph: Graph, *, data: bool) -> str:
    """The text form; without ``data`` the table of large constants is left out."""
    pool = Pool()
    lines = list(_body(graph, pool))
    done: set[str] = set()
    while waiting := [key for key in pool.graphs if key not in done]:
        for key in waiting:
            done.add(key)
            inner = list(_body(pool.graphs[key], pool))
            lines += [f"inner {key}", *inner]
    if data:
        lines += [f"constant {key} {_dumps(item.to_json())}" for key, item in pool.data.items()]
    return "\n".join(lines)


def digest(graph: Graph) -> str:
    """A 128-bit hash of ops, operands, attributes, types, constants, outputs and updates."""
    pool = Pool()
    state = hashlib.blake2b(digest_size=16)
    for node in graph.nodes:
        state.update(f"{node_call(node, pool, defaults=True)}:{node.type}\n".encode())
    for line in _ends(graph, ""):
        state.update(line.encode())
    return state.hexdigest()
