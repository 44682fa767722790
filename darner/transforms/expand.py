"""Composite ops, written out.

A composite of 16-bit floats computes in f32 and rounds once at its end, on every backend: its
expansion begins and ends with casts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..graph import dtypes
from ..graph.edit import copy_graph
from ..graph.errors import InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import Op
from ..graph.types import TensorType, TupleType, Type


def expansion(node: Node) -> Graph:
    """The body of a composite node: inputs ``0``, ``1``, ... in the order of its operands."""
    types = tuple(operand.type for operand in node.operands)
    return expand_call(node.op, node.slots, node.attrs, types)


def expand_call(
    op: Op, slots: tuple[str, ...], attrs: dict[str, Any], types: tuple[Type, ...]
) -> Graph:
    """The body of a composite on operands of these types."""
    signs = tuple(math.copysign(1, value) for value in attrs.values() if isinstance(value, float))
    return expand_op(op, types, slots, tuple(attrs.items()), signs)


@lru_cache(maxsize=4096)
def expand_op(
    op: Op,
    types: tuple[Type, ...],
    slots: tuple[str, ...],
    attrs: tuple[tuple[str, Any], ...],
    signs: tuple[float, ...] = (),
) -> Graph:
    """The body of a composite for given operand types and attributes; made once.

    ``signs`` of the float attributes keep -0.0 apart from 0.0, which is equal to it.
    """
    if op.rules.expand is None:
        raise InternalError(f"'{op.name}' is a primitive: it has no expansion")
    graph = Graph(op.name)
    operands = []
    for i, type_ in enumerate(types):
        if not isinstance(type_, TensorType):
            raise InternalError(f"composite '{op.name}' takes a tuple")
        leaf = graph.input(str(i), type_.shape, type_.dtype)
        # What only moves elements has nothing to round.
        widens = type_.dtype.is_half and "moves" not in op.traits
        operands.append(leaf.cast(dtypes.f32) if widens else leaf)
    declared, settled = op.infer_type(types, slots, dict(attrs))
    wanted = declared.items if isinstance(declared, TupleType) else (declared,)
    answer = op.rules.expand(**op.arguments(operands, slots), **settled)
    found = answer if isinstance(answer, tuple | list) else (answer,)
    outputs = []
    for value, type_ in zip(found, wanted, strict=True):
        if value.dtype is not type_.dtype and type_.dtype.is_half:
            value = value.cast(type_.dtype)
        if value.type != type_:
            raise InternalError(
                f"'{op.name}' is declared to give {type_}, but its expansion gives {value.type}"
            )
        outputs.append(value)
    graph.set_outputs(outputs)
    return graph.toposort().freeze()


def inline(target: Graph, body: Graph, operands: list[Node], like: Node) -> list[Node]:
    """Copy a body into a graph, its inputs replaced; labels and lines are those of ``like``."""
    mapped: dict[int, Node] = {}
    for name, leaf in body.inputs.items():
        mapped[leaf.id] = operands[int(name)]
    # A body is of the types of its operands: what it was found to be, its copy is.
    same = all(mapped[leaf.id].type == leaf.type for leaf in body.inputs.values())
    for node in body.nodes:
        if node.id not in mapped:
            mapped[node.id] = target.insert(
                node.op,
                [mapped[i] for i in node.inputs],
                node.slots,
                node.attrs,
                label=like.label,
                scope=like.scope,
                source=like.source,
                type=node.type if same else None,
            )
    return [mapped[node.id] for node in body.outputs]


def expand(graph: Graph, keep: Callable[[Node], bool] = lambda node: False) -> Graph:
    """A graph of primitives, but for the composites that ``keep`` wants whole.

    >>> import darner
    >>> g = darner.Graph()
    >>> g.set_outputs([g.input("x", (3,)).sigmoid()])
    >>> [node.op.name for node in darner.expand(g).nodes]
    ['input', 'neg', 'exp', 'constant', 'add', 'recip']
    """
    return _expand(graph, keep, {})


def _expand(
    graph: Graph, keep: Callable[[Node], bool], done: dict[int, tuple[Graph, Graph]]
) -> Graph:
    """``done`` has the bodies that were written out already, by identity: equal calls have one."""
    result = Graph(graph.name)
    mapped: dict[int, list[Node]] = {}
    written_out: set[int] = set()

    def written(body: Graph) -> Graph:
        if id(body) not in done:
            done[id(body)] = body, _expand(body, keep, done)
        return done[id(body)][1]

    def place(node: Node, operands: list[Node]) -> list[Node]:
        if not node.op.is_composite or keep(node):
            inner = any(isinstance(value, Graph) for value in node.attrs.values())
            attrs = {name: _expanded(v, keep) for name, v in node.attrs.items()} if inner else None
            return [result.insert_like(node, operands, attrs)]
        written_out.add(node.id)
        return inline(result, written(expansion(node)), operands, node)

    for node in graph.nodes:
        if node.op.name == "project" and node.inputs[0] in written_out:
            mapped[node.id] = [mapped[node.inputs[0]][node.attrs["index"]]]
        else:
            mapped[node.id] = place(node, [mapped[i][0] for i in node.inputs])
    result.set_outputs([mapped[node.id][0] for node in graph.outputs])
    for leaf, value in graph.updates.items():
        result.set_update(mapped[leaf.id][0], mapped[value.id][0])
    result.inherit(graph)
    return result


def _expanded(value: Any, keep: Callable[[Node], bool]) -> Any:
    return expand(value, keep).freeze() if isinstance(value, Graph) else value


def in_float64(graph: Graph) -> Graph:
    """The same graph with every float type f64 (and c64 widened): the oracle's precision."""

    def widened(node: Node) -> dict[str, Any]:
        return {name: _widen(value) for name, value in node.attrs.items()}

    return copy_graph(graph, attrs=widened)


def _widen(value: Any) -> Any:
    from ..graph.data import Data
    from ..graph.dtypes import DType

    if isinstance(value, DType):
        return dtypes.f64 if value.is_float else dtypes.c128 if value is dtypes.c64 else value
    if isinstance(value, Data) and value.type.dtype.kind in ("float", "complex"):
        return Data(value.array.astype(_widen(value.type.dtype).numpy))
    if isinstance(value, Graph):
        return in_float64(value).freeze()
    return value
