"""Complex arithmetic as real arithmetic: a graph over pairs of floats in place of one over complex numbers.

A complex tensor is a real one with a last axis of two: that is how it lies in memory. So a kernel's body is written out in ops on real and imaginary
parts, and is then lowered like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...graph import dtypes
from ...graph.data import Data
from ...graph.dtypes import DType
from ...graph.errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node
from ...ops.complex_numbers.parts import Pair, times
from ...transforms.expand import expand

Value = Node | Pair


def part_type(dtype: DType) -> DType:
    """The type of the parts of a complex type."""
    return dtypes.f64 if dtype is dtypes.c128 else dtypes.f32


def is_complex(graph: Graph) -> bool:
    """Whether a graph has a complex node."""
    return any(_of_complex(node) for node in graph.nodes)


def _of_complex(node: Node) -> bool:
    return hasattr(node.type, "dtype") and node.dtype.kind == "complex"


def in_pairs(body: Graph) -> Graph:
    """The graph with every complex input and output as floats, with one more axis of size 2.

    >>> import darner
    >>> g = darner.Graph()
    >>> z = g.input("0", (3,), "c64")
    >>> g.set_outputs([z * z])
    >>> in_pairs(g).outputs[0].shape
    (3, 2)
    """
    result, outputs = _written(body, "pairs")
    result.set_outputs([_joined(output) for output in outputs])
    return result.toposort()


def in_parts(body: Graph) -> Graph:
    """The same, with the real and the imaginary part of each complex output as outputs of their own.

    >>> import darner
    >>> g = darner.Graph()
    >>> z = g.input("0", (3,), "c64")
    >>> g.set_outputs([z * z])
    >>> [output.shape for output in in_parts(g).outputs]
    [(3,), (3,)]
    """
    result, outputs = _written(body, "parts")
    parts = [[*output] if isinstance(output, Pair) else [output] for output in outputs]
    result.set_outputs([part for output in parts for part in output])
    return expand(result.toposort())


def _written(body: Graph, name: str) -> tuple[Graph, list[Value]]:
    """The body in ops on parts, and what its outputs are in it."""
    source = expand(body)
    result = Graph(name)
    made: dict[int, Value] = {}
    for node in source.nodes:
        made[node.id] = _made(result, node, [made[i] for i in node.inputs])
    return result, [made[node.id] for node in source.outputs]


def _made(graph: Graph, node: Node, operands: Sequence[Value]) -> Value:
    if node.op.name == "input":
        return _input(graph, node)
    if not _of_complex(node) and not any(isinstance(value, Pair) for value in operands):
        plain = [value for value in operands if isinstance(value, Node)]
        return graph.insert(node.op, plain, node.slots, node.attrs)
    if node.op.rules.pairs is not None:
        arguments = node.op.arguments(operands, node.slots)
        found = node.op.rules.pairs(**arguments, **node.attrs)
        return Pair(*found) if isinstance(found, tuple) else found
    rule = RULES.get(node.op.name)
    if rule is None and not _of_complex(node):
        raise InternalError(f"'{node.op.name}' has no rule for complex operands")
    if rule is None and "elementwise" in node.op.traits and not node.op.facts.by_parts:
        raise InternalError(f"'{node.op.name}' of complex numbers has no rule")
    if rule is None:
        return _by_parts(graph, node, operands)
    return rule(graph, node, *operands)


def _input(graph: Graph, node: Node) -> Value:
    if not _of_complex(node):
        return graph.input(str(node.name), node.shape, node.dtype)
    both = graph.input(str(node.name), (*node.shape, 2), part_type(node.dtype))
    start, end = (0,) * node.rank, tuple(node.shape)
    return Pair(*(both.slice((*start, k), (*end, k + 1)).reshape(node.shape) for k in range(2)))


def _joined(value: Value) -> Node:
    if isinstance(value, Node):
        return value
    shape = (*value.re.shape, 1)
    both: Node = value.re.graph.concat([value.re.reshape(shape), value.im.reshape(shape)], -1)
    return both


def _by_parts(graph: Graph, node: Node, operands: Sequence[Value]) -> Pair:
    """What is done to the real parts and the imaginary parts alone."""
    sides = []
    for k in range(2):
        plain = [value[k] if isinstance(value, Pair) else value for value in operands]
        sides.append(graph.insert(node.op, plain, node.slots, node.attrs))
    return Pair(*sides)


# --------------------------------------------------------------------------- values, casts, padding


def _constant(graph: Graph, node: Node) -> Pair:
    values = node.attrs["values"].array
    kind = part_type(node.dtype).numpy
    parts = (np.ascontiguousarray(side).astype(kind) for side in (values.real, values.imag))
    return Pair(*(graph.insert(node.op, [], (), {"values": Data(part)}) for part in parts))


def _cast(graph: Graph, node: Node, a: Value) -> Pair:
    to = part_type(node.dtype)
    if isinstance(a, Pair):
        return Pair(a.re.cast(to), a.im.cast(to))
    re = a.cast(to)
    return Pair(re, graph.zeros(re.shape, to))


def _iota(graph: Graph, node: Node) -> Pair:
    to = part_type(node.dtype)
    re: Node = graph.iota(node.shape, node.attrs["axis"]).cast(to)
    return Pair(re, graph.zeros(node.shape, to))


def _after(graph: Graph, node: Node, x: Value, after: Value) -> Value:
    """``recompute_barrier``: any part of ``after`` will do."""
    known = after.re if isinstance(after, Pair) else after
    if isinstance(x, Pair):
        return _by_parts(graph, node, [x, known])
    return graph.insert(node.op, [x, known], node.slots, node.attrs)


def _pad(graph: Graph, node: Node, a: Pair) -> Pair:
    re = graph.insert(node.op, [a.re], node.slots, node.attrs)
    return Pair(re, graph.insert(node.op, [a.im], node.slots, {**node.attrs, "value": 0.0}))


# --------------------------------------------------------------------------- products of many


def _dot_general(graph: Graph, node: Node, a: Pair, b: Pair) -> Pair:
    def dot(left: Node, right: Node) -> Node:
        return graph.insert(node.op, [left, right], node.slots, node.attrs)

    re = dot(a.re, b.re) - dot(a.im, b.im)
    return Pair(re, dot(a.re, b.im) + dot(a.im, b.re))


def _each(a: Pair, change: Callable[[Node], Node]) -> Pair:
    return Pair(change(a.re), change(a.im))


def _cut(a: Pair, axis: int, first: int, last: int) -> Pair:
    def change(x: Node) -> Node:
        starts = tuple(first if k == axis else 0 for k in range(x.rank))
        ends = tuple(last if k == axis else size for k, size in enumerate(x.shape))
        return x.slice(starts, ends)

    return _each(a, change)


def _beside(parts: Sequence[Pair], axis: int) -> Pair:
    graph = parts[0].re.graph
    return Pair(*(graph.concat([part[k] for part in parts], axis) for k in range(2)))


def _prod(graph: Graph, node: Node, a: Pair) -> Pair:
    """Halves are multiplied until one is left."""
    axes = tuple(node.attrs["axes"])
    kept = [k for k in range(a.re.rank) if k not in axes]
    lead = tuple(int(a.re.shape[k]) for k in kept)
    count = int(np.prod([int(a.re.shape[k]) for k in axes], dtype=np.int64))
    line = _each(a, lambda x: x.transpose((*kept, *axes)).reshape((*lead, count)))
    axis = len(lead)
    if count == 0:
        ones, zeros = graph.ones(node.shape, a.re.dtype), graph.zeros(node.shape, a.re.dtype)
        return Pair(ones, zeros)
    while count > 1:
        half = count // 2
        product = times(_cut(line, axis, 0, half), _cut(line, axis, half, 2 * half))
        rest = [_cut(line, axis, 2 * half, count)] if count % 2 else []
        line = _beside([product, *rest], axis) if rest else product
        count = half + len(rest)
    return _each(line, lambda x: x.reshape(node.shape))


def _cumprod(graph: Graph, node: Node, a: Pair) -> Pair:
    """Each round multiplies in as many more elements as a product already has."""
    axis, count = int(node.attrs["axis"]), int(node.shape[int(node.attrs["axis"])])
    if node.attrs["reverse"]:
        a = _each(a, lambda x: x.flip(axis))
    span = 1
    while span < count:
        product = times(_cut(a, axis, span, count), _cut(a, axis, 0, count - span))
        a, span = _beside([_cut(a, axis, 0, span), product], axis), 2 * span
    return _each(a, lambda x: x.flip(axis)) if node.attrs["reverse"] else a


def _scatter(graph: Graph, node: Node, x: Pair, indices: Node, src: Pair) -> Pair:
    if node.attrs["mode"] != "mul":
        return _by_parts(graph, node, [x, indices, src])
    count = int(np.prod([int(size) for size in indices.shape], dtype=np.int64))
    if not count:
        return x
    # Slices of one index stand side by side; after the last round the last of them is the product of all.
    axis = int(node.attrs["axis"])
    lead, after = src.re.shape[:axis], src.re.shape[axis + indices.rank :]
    flat: Node = indices.reshape((count,)).cast(dtypes.i32)
    order = flat.argsort()
    places = flat.gather(order)
    value = _each(src, lambda part: part.reshape((*lead, count, *after)).gather(order, axis))
    span = 1
    while span < count:
        same = places.pad([(span, -span)], -1).eq(places).reshape((count, *(1,) * len(after)))
        shift = [(span, -span) if k == axis else (0, 0) for k in range(value.re.rank)]
        before = Pair(value.re.pad(shift, 0.0), value.im.pad(shift, 0.0))
        factor = Pair(same.where(before.re, 1.0), same.where(before.im, 0.0))
        value, span = times(value, factor), 2 * span
    ones, zeros = graph.ones(x.re.shape, x.re.dtype), graph.zeros(x.re.shape, x.re.dtype)
    factors = Pair(ones.scatter(places, value.re, axis), zeros.scatter(places, value.im, axis))
    return times(x, factors)


def _fft(graph: Graph, node: Node, x: Pair) -> Pair:
    """As a block: real parts, and then imaginary ones."""
    axis = int(node.attrs["axis"])
    block = graph.concat([x.re, x.im], axis)
    count, found = int(x.re.shape[axis]), graph.insert(node.op, [block], node.slots, node.attrs)
    halves = (
        _cut(Pair(found, found), axis, 0, count),
        _cut(Pair(found, found), axis, count, 2 * count),
    )
    return Pair(halves[0].re, halves[1].re)


RULES: dict[str, Callable[..., Value]] = {
    "cast": _cast,
    "constant": _constant,
    "cumprod": _cumprod,
    "dot_general": _dot_general,
    "fft": _fft,
    "iota": _iota,
    "pad": _pad,
    "prod": _prod,
    "recompute_barrier": _after,
    "scatter": _scatter,
}
"""What moves or adds up complex numbers, and is not done part by part; element-wise ops have a rule of their own (``@op.pairs``)."""
