"""One element of a kernel's result, as code: every node is computed where it is read.

``Elements.at(node, index)`` emits what a node's element at an index is, from the elements of its operands. Views are other
indices, a reduction or a product of matrices is a loop. Within one block of code an element is computed once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from ...graph.errors import InternalError
from ...graph.graph import Graph
from ...graph.node import Node
from .philox import emit_bits
from .places import Number, Places, as_value
from .registers import Registers

Index = Sequence[Number]


class Elements:
    """The elements of a body's nodes in the code that a builder is writing."""

    def __init__(self, builder: Any, body: Graph, operands: Sequence[Any]) -> None:
        self.builder = builder
        self.places = Places(builder)
        self.registers = Registers(builder)
        self.leaves = {leaf.id: (operands[int(name)], leaf) for name, leaf in body.inputs.items()}
        self._known: list[dict[Any, Any]] = [{}]

    # ------------------------------------------------------------- loops

    def loop(
        self,
        start: Number,
        stop: Number,
        inside: Callable[[Any, list[Any]], Sequence[Any]],
        carried: Sequence[Any] = (),
    ) -> list[Any]:
        """``for i in range(start, stop)``; ``inside`` maps the carried values to their next ones."""
        from llvmlite import ir  # type: ignore[import-untyped]

        builder = self.builder
        before = builder.block
        head = builder.append_basic_block("head")
        body = builder.append_basic_block("inside")
        after = builder.append_basic_block("after")
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(ir.IntType(64))
        index.add_incoming(as_value(start), before)
        phis = []
        for value in carried:
            phi = builder.phi(value.type)
            phi.add_incoming(value, before)
            phis.append(phi)
        builder.cbranch(builder.icmp_signed("<", index, as_value(stop)), body, after)
        builder.position_at_end(body)
        self._known.append({})
        following = inside(index, phis)
        self._known.pop()
        index.add_incoming(builder.add(index, as_value(1)), builder.block)
        for phi, value in zip(phis, following, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(head)
        builder.position_at_end(after)
        return phis

    def loops(
        self,
        sizes: Sequence[int],
        inside: Callable[[list[Any], list[Any]], Sequence[Any]],
        carried: Sequence[Any] = (),
    ) -> list[Any]:
        """Loops in loops, over all indices of a shape."""

        def nest(axis: int, index: list[Any], values: list[Any]) -> Sequence[Any]:
            if axis == len(sizes):
                return inside(index, values)
            return self.loop(
                0, sizes[axis], lambda i, held: nest(axis + 1, [*index, i], held), values
            )

        return list(nest(0, [], list(carried)))

    # ------------------------------------------------------------- elements

    def at(self, node: Node, index: Index) -> Any:
        """The element of a node at an index."""
        key = (node.id, *[number if isinstance(number, int) else id(number) for number in index])
        for known in reversed(self._known):
            if key in known:
                return known[key][0]
        value = self._element(node, list(index))
        # The index is kept with it: a number that is gone could give its id to another.
        self._known[-1][key] = (value, list(index))
        return value

    def _element(self, node: Node, index: list[Number]) -> Any:
        if node.id in self.leaves:
            pointer, leaf = self.leaves[node.id]
            offset = self.places.offset(index, _sizes(leaf))
            return self.registers.load(pointer, offset, leaf.dtype)
        emit = _EMITTERS.get(node.op.name)
        if emit is not None:
            return emit(self, node, index)
        if "elementwise" in node.op.traits:
            operands = [self.at(item, self.spread(item, index)) for item in node.operands]
            return self.registers.apply(node, operands)
        raise InternalError(f"the CPU backend has no code for '{node.op.name}' in a kernel")

    def spread(self, node: Node, index: Index) -> list[Number]:
        """The index of an operand that is broadcast: axes from the right, sizes of 1 stay at 0."""
        own = index[len(index) - node.rank :] if node.rank else []
        return [0 if size == 1 else i for i, size in zip(own, _sizes(node), strict=True)]

    def integer(self, node: Node, index: Index) -> Any:
        """An element of integers as a number."""
        return self.registers.as_index(self.at(node, index), node.dtype)


def _sizes(node: Node) -> list[int]:
    return [int(size) for size in node.shape]


# --------------------------------------------------------------------------- what is not element-wise


def _constant(e: Elements, node: Node, index: list[Number]) -> Any:
    return e.registers.constant(node.attrs["values"].array.reshape(-1)[0], node.dtype)


def _iota(e: Elements, node: Node, index: list[Number]) -> Any:
    return e.registers.of_index(as_value(index[node.attrs["axis"]]), node.dtype)


def _reshape(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    return e.at(x, e.places.reshaped(index, _sizes(node), _sizes(x)))


def _transpose(e: Elements, node: Node, index: list[Number]) -> Any:
    source: list[Number] = [0] * len(index)
    for place, axis in enumerate(node.attrs["perm"]):
        source[axis] = index[place]
    return e.at(node.operands[0], source)


def _broadcast(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    return e.at(x, e.spread(x, index))


def _slice(e: Elements, node: Node, index: list[Number]) -> Any:
    p = e.places
    steps = node.attrs["steps"] or (1,) * len(index)
    moved = [
        p.add(p.mul(i, step), int(start))
        for i, start, step in zip(index, node.attrs["starts"], steps, strict=True)
    ]
    return e.at(node.operands[0], moved)


def _flip(e: Elements, node: Node, index: list[Number]) -> Any:
    sizes = _sizes(node)
    axes = node.attrs["axes"]
    moved = [e.places.sub(sizes[k] - 1, i) if k in axes else i for k, i in enumerate(index)]
    return e.at(node.operands[0], moved)


def _windows(e: Elements, node: Node, index: list[Number]) -> Any:
    p, (x,) = e.places, node.operands
    count = len(node.attrs["window"])
    lead = x.rank - count
    inner = zip(
        index[lead : lead + count],
        index[lead + count :],
        node.attrs["stride"],
        node.attrs["dilation"],
        strict=True,
    )
    moved = [p.add(p.mul(i, stride), p.mul(k, dilation)) for i, k, stride, dilation in inner]
    return e.at(x, [*index[:lead], *moved])


def _same(e: Elements, node: Node, index: list[Number]) -> Any:
    return e.at(node.operands[0], index)


def _pad(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    filling = e.registers.constant(node.attrs["value"], node.dtype)
    if not all(_sizes(x)):
        return filling
    inside: Any = None
    source = []
    gaps = node.attrs["interior"] or (0,) * len(index)
    for i, (low, _), gap, size in zip(index, node.attrs["padding"], gaps, _sizes(x), strict=True):
        moved = e.places.sub(i, int(low))
        place = e.places.clamp(moved, 0, (size - 1) * (gap + 1))
        hits = e.builder.icmp_signed("==", as_value(moved), as_value(place))
        if gap:
            rest = as_value(e.places.mod(place, gap + 1))
            hits = e.builder.and_(hits, e.builder.icmp_signed("==", rest, as_value(0)))
        inside = hits if inside is None else e.builder.and_(inside, hits)
        source.append(e.places.div(place, gap + 1))
    value = e.at(x, source)
    return value if inside is None else e.builder.select(inside, value, filling)


def _concat(e: Elements, node: Node, index: list[Number]) -> Any:
    axis, start = node.attrs["axis"], 0
    found: Any = None
    for part in node.operands:
        size = _sizes(part)[axis]
        if size == 0:
            continue
        moved = list(index)
        moved[axis] = e.places.clamp(e.places.sub(index[axis], start), 0, size - 1)
        value = e.at(part, moved)
        if found is None:
            found = value
        else:
            earlier = e.places.less(index[axis], start)
            found = e.builder.select(earlier, found, value)
        start += size
    return found


def _gather(e: Elements, node: Node, index: list[Number]) -> Any:
    table, indices = node.operands
    axis = node.attrs["axis"]
    place = e.integer(indices, index[axis : axis + indices.rank])
    place = e.places.clamp(place, 0, max(_sizes(table)[axis] - 1, 0))
    return e.at(table, [*index[:axis], place, *index[axis + indices.rank :]])


def _take_along_axis(e: Elements, node: Node, index: list[Number]) -> Any:
    x, indices = node.operands
    axis = node.attrs["axis"]
    place = e.integer(indices, e.spread(indices, index))
    moved = e.spread(x, index)
    moved[axis] = e.places.clamp(place, 0, max(_sizes(x)[axis] - 1, 0))
    return e.at(x, moved)


def _dynamic_slice(e: Elements, node: Node, index: list[Number]) -> Any:
    x, starts = node.operands
    moved = []
    for axis, (i, size, whole) in enumerate(zip(index, _sizes(node), _sizes(x), strict=True)):
        start = e.places.clamp(e.integer(starts, [axis]), 0, whole - size)
        moved.append(e.places.add(start, i))
    return e.at(x, moved)


def _random_bits(e: Elements, node: Node, index: list[Number]) -> Any:
    step = as_value(0) if not node.inputs else e.integer(node.operands[0], [])
    offset = e.places.offset(index, _sizes(node))
    return emit_bits(e.builder, as_value(offset), step, node.attrs["seed"], node.attrs["stream"])


def _reduce(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    axes = node.attrs["axes"]
    kept = [k for k in range(x.rank) if k not in axes]
    outer = [index[k] for k in kept] if node.attrs["keepdims"] else list(index)
    sizes = _sizes(x)

    def inside(inner: list[Any], values: list[Any]) -> Sequence[Any]:
        place: list[Number] = [0] * x.rank
        for axis, i in itertools.chain(
            zip(kept, outer, strict=True), zip(axes, inner, strict=True)
        ):
            place[axis] = i
        return [e.registers.combine(node.op.name, values[0], e.at(x, place), x.dtype, node.dtype)]

    first = e.registers.neutral(node.op.name, x.dtype, node.dtype)
    (total,) = e.loops([sizes[axis] for axis in axes], inside, [first])
    return e.registers.reduced(node.op.name, total, node.dtype)


def _dot_general(e: Elements, node: Node, index: list[Number]) -> Any:
    a, b = node.operands
    attrs = node.attrs
    batch = len(attrs["a_batch"])
    sides = []
    at = batch
    for side, operand in (("a", a), ("b", b)):
        used = (*attrs[f"{side}_batch"], *attrs[f"{side}_contract"])
        free = [k for k in range(operand.rank) if k not in used]
        place: list[Number] = [0] * operand.rank
        for axis, i in zip(attrs[f"{side}_batch"], index[:batch], strict=True):
            place[axis] = i
        for axis, i in zip(free, index[at : at + len(free)], strict=True):
            place[axis] = i
        at += len(free)
        sides.append(place)
    sizes = [_sizes(a)[axis] for axis in attrs["a_contract"]]

    def inside(inner: list[Any], values: list[Any]) -> Sequence[Any]:
        left, right = list(sides[0]), list(sides[1])
        for k, i in enumerate(inner):
            left[attrs["a_contract"][k]] = i
            right[attrs["b_contract"][k]] = i
        return [
            e.registers.multiply_add(values[0], e.at(a, left), e.at(b, right), a.dtype, node.dtype)
        ]

    first = e.registers.neutral("sum", a.dtype, node.dtype)
    (total,) = e.loops(sizes, inside, [first])
    return e.registers.reduced("sum", total, node.dtype)


def _arg_reduce(e: Elements, node: Node, index: list[Number]) -> Any:
    (x,) = node.operands
    axis = node.attrs["axis"]
    outer = list(index)
    if node.attrs.get("keepdims"):
        outer.pop(axis)

    def place(i: Number) -> list[Number]:
        return [*outer[:axis], i, *outer[axis:]]

    first = e.at(x, place(0))

    def inside(i: Any, values: list[Any]) -> Sequence[Any]:
        best, where = values
        value = e.at(x, place(i))
        better = e.registers.beats(node.op.name, value, best, x.dtype)
        return [e.builder.select(better, value, best), e.builder.select(better, i, where)]

    _, where = e.loop(1, _sizes(x)[axis], inside, [first, as_value(0)])
    return e.registers.of_index(where, node.dtype)


def _fold(e: Elements, node: Node, index: list[Number]) -> Any:
    """The sum of the window elements that lie on an element."""
    (x,) = node.operands
    count = len(node.attrs["sizes"])
    lead = x.rank - 2 * count
    sizes = _sizes(x)
    counts, window = sizes[lead : lead + count], sizes[lead + count :]
    nothing = e.registers.neutral("sum", x.dtype, node.dtype)
    if not all(counts) or not all(window):
        return e.registers.reduced("sum", nothing, node.dtype)

    def inside(offsets: list[Any], values: list[Any]) -> Sequence[Any]:
        hits: Any = None
        where = []
        for k in range(count):
            stride, dilation = node.attrs["stride"][k], node.attrs["dilation"][k]
            moved = e.places.sub(index[lead + k], e.places.mul(offsets[k], dilation))
            place = e.places.clamp(moved, 0, (counts[k] - 1) * stride)
            hit = e.builder.icmp_signed("==", as_value(moved), as_value(place))
            if stride > 1:
                rest = as_value(e.places.mod(place, stride))
                hit = e.builder.and_(hit, e.builder.icmp_signed("==", rest, as_value(0)))
            hits = hit if hits is None else e.builder.and_(hits, hit)
            where.append(e.places.div(place, stride))
        value = e.at(x, [*index[:lead], *where, *offsets])
        total = e.registers.combine("sum", values[0], value, x.dtype, node.dtype)
        return [e.builder.select(hits, total, values[0])]

    (total,) = e.loops(window, inside, [nothing])
    return e.registers.reduced("sum", total, node.dtype)


def _dynamic_update_slice(e: Elements, node: Node, index: list[Number]) -> Any:
    x, update, starts = node.operands
    if not all(_sizes(update)):
        return e.at(x, index)
    inside: Any = None
    source = []
    for axis, (i, size, whole) in enumerate(zip(index, _sizes(update), _sizes(x), strict=True)):
        start = e.places.clamp(e.integer(starts, [axis]), 0, whole - size)
        moved = e.places.sub(i, start)
        place = e.places.clamp(moved, 0, size - 1)
        hits = e.builder.icmp_signed("==", as_value(moved), as_value(place))
        inside = hits if inside is None else e.builder.and_(inside, hits)
        source.append(place)
    new, old = e.at(update, source), e.at(x, index)
    return new if inside is None else e.builder.select(inside, new, old)


Emitter = Callable[[Elements, Node, list[Number]], Any]

_EMITTERS: dict[str, Emitter] = {
    "argmax": _arg_reduce,
    "argmin": _arg_reduce,
    "broadcast_to": _broadcast,
    "concat": _concat,
    "constant": _constant,
    "dot_general": _dot_general,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "flip": _flip,
    "fold": _fold,
    "gather": _gather,
    "iota": _iota,
    "pad": _pad,
    "random_bits": _random_bits,
    "recompute_barrier": _same,
    "reshape": _reshape,
    "slice": _slice,
    "stop_gradient": _same,
    "take_along_axis": _take_along_axis,
    "transpose": _transpose,
    "windows": _windows,
    **dict.fromkeys(("sum", "prod", "max", "min", "any", "all"), _reduce),
}


def can_emit(body: Graph) -> bool:
    """Whether there is code for every node of a body."""
    return all(
        node.op.name in _EMITTERS or "elementwise" in node.op.traits or node.name is not None
        for node in body.nodes
    )
