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

from ..attributes import Attribute, Pool
from ..graph import LEAVES, Graph
from ..node import Node
from ..regions import region_lines
from ..types import Type

dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class _TypeNames(dict[Type, str]):
    """Types as they print, each made once: a large graph has few."""

    def __missing__(self, key: Type) -> str:
        text = self[key] = str(key)
        return text


def encode_attrs(node: Node, pool: Pool, *, defaults: bool) -> dict[str, Any]:
    """A node's attributes as JSON values; with ``defaults`` even those left at their default."""
    result = {}
    for param in node.op.attributes:
        value = node.attrs[param.name]
        if not defaults and node.op.name in LEAVES and param.name in ("shape", "dtype"):
            continue  # the node's type says it
        if not defaults and _is_default(value, param.default):
            continue
        encode = param.kind.encode if isinstance(param.kind, Attribute) else None
        result[param.name] = None if value is None or encode is None else encode(value, pool)
    return result


def _is_default(value: Any, default: Any) -> bool:
    if isinstance(value, float) and isinstance(default, float):
        return repr(value) == repr(default)  # -0.0 is not 0.0, and NaN is NaN
    return type(value) is type(default) and value == default


def node_call(node: Node, pool: Pool, *, defaults: bool = False) -> str:
    """``matmul(%0, %1)``: the op, operands and attributes of a node."""
    if node.op.plain:
        parts = [f"%{i}" for i in node.inputs]
    else:
        parts = list(_operand_groups(node))
    if node.op.attributes:
        attrs = encode_attrs(node, pool, defaults=defaults)
        parts.extend(f"{name}={dumps(value)}" for name, value in attrs.items())
    return f"{node.op.name}({', '.join(parts)})"


def _operand_groups(node: Node) -> Iterator[str]:
    """Each operand that is present: lists in brackets, optional ones by name."""
    for param in node.op.operands:
        ids = [i for i, slot in zip(node.inputs, node.slots, strict=True) if slot == param.name]
        if ids or param.variadic:
            text = ", ".join(f"%{i}" for i in ids)
            if param.variadic:
                text = f"[{text}]"
            yield f"{param.name}={text}" if param.optional else text


def shown_name(graph: Graph) -> str:
    """The graph's name: bare where it reads as one word, else as JSON."""
    return graph.name if graph.name.isidentifier() else dumps(graph.name)


def _body(graph: Graph, pool: Pool) -> Iterator[str]:
    yield f"graph @{shown_name(graph)} {{"
    types = _TypeNames()
    for node in graph.nodes:
        label = f" {dumps(node.label)}" if node.label else ""
        yield f"  %{node.id} = {node_call(node, pool)} : {types[node.type]}{label}"
    yield from _ends(graph, "  ")
    yield "}"


def _ends(graph: Graph, indent: str) -> Iterator[str]:
    for path, policy, ids in region_lines(graph):
        kept = f" {dumps(document)}" if (document := policy.to_json()) else ""
        yield f"{indent}remat {dumps(path)}{kept} {ids}"
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
        lines += [f"constant {key} {dumps(item.to_json())}" for key, item in pool.data.items()]
    return "\n".join(lines)


def digest(graph: Graph) -> str:
    """A 128-bit hash of ops, operands, attributes, types, constants, outputs and updates."""
    pool = Pool()
    types = _TypeNames()
    state = hashlib.blake2b(digest_size=16)
    for node in graph.nodes:
        state.update(f"{node_call(node, pool, defaults=True)}:{types[node.type]}\n".encode())
    for line in _ends(graph, ""):
        state.update(line.encode())
    return state.hexdigest()
