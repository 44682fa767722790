"""The epilogue of a convolution: element-wise nodes after its sums, and the stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....codegen.elements.elements import Elements, can_emit
from ....codegen.ir.emit import load, loop, narrow, offset, prefetch, store
from ....codegen.ir.index import Index, Lanes, i64
from ....codegen.ir.math import memory_type
from ....codegen.ir.types import ACCUMULATOR, Builder, Pointer, Value
from ....graph.graph import Graph
from ....graph.node import Node
from ....graph.types import TensorType
from ....lower.specs import sizes
from ....lower.strided import Strided, row_major, strided
from ..contract.pack import transpose
from ..emit.template import Code

LINE = 64
"""Bytes of a line of the cache."""


class Finish:
    """The element-wise nodes after a main node, its last axes taken as one.

    So a vector may go past the end of a row. ``kept`` axes stay as they are.

    Args:
        body: the kernel's body.
        main: what is computed by the kernel itself.
        kept: how many of its axes stay.
    """

    def __init__(self, body: Graph, main: Node, kept: int) -> None:
        self.main, self.kept = main, kept
        self.shape = _flat(sizes(main), kept)
        self.plain = [output.id for output in body.outputs] == [main.id]
        self.operands = len(body.inputs)
        self.alike: list[Strided] = []
        self.body = Graph("kernel")
        made: dict[int, Node] = {}
        after: set[int] = set()
        for node in body.nodes:
            if node.id == main.id:
                made[node.id] = self.body.input(str(self.operands), self.shape, main.dtype)
                after.add(node.id)
            elif node.op.name == "input":
                made[node.id] = self.body.input(str(node.name), node.shape, node.dtype)
            elif after.intersection(node.inputs):
                arguments = [
                    made[item.id] if item.id in after else self._aligned(item, made[item.id])
                    for item in node.operands
                ]
                kind = TensorType(tuple(self.shape), node.dtype)
                made[node.id] = self.body.insert(
                    node.op, arguments, node.slots, node.attrs, type=kind
                )
                after.add(node.id)
            else:
                made[node.id] = self.body.insert_like(node, [made[i] for i in node.inputs])
        self.result = made[main.id]
        self.outputs = [made[output.id] for output in body.outputs]
        self.body.set_outputs(self.outputs)

    def _aligned(self, item: Node, made: Node) -> Node:
        """An operand that is broadcast, with the same axes taken as one."""
        result: Node
        if item.size == 1:
            result = made.reshape(())
            return result
        own = [1] * (self.main.rank - item.rank) + sizes(item)
        inner = sizes(self.main)[self.kept :]
        if any(size != 1 for size in own[self.kept :]) and own[self.kept :] != inner:
            made = made.broadcast_to((*own[: self.kept], *inner))
            result = made.reshape(tuple(_flat(sizes(made), self.kept)))
            return result
        flat = tuple(_flat(own, self.kept))
        seen = strided(item)
        if seen is None or seen.base.op.name != "input" or seen.strides != row_major(sizes(item)):
            result = made.reshape(flat)
            return result
        # What lies in memory without gaps is read as if it had the flat shape.
        self.alike.append(seen)
        return self.body.input(str(self.operands + len(self.alike)), flat, item.dtype)

    @property
    def possible(self) -> bool:
        """Whether there is code for all of it."""
        return can_emit(self.body)

    def announce(self, code: Code, index: Sequence[Index], count: int) -> None:
        """Ask for the operands of ``count`` elements before they are needed: they come from far, and row by row."""
        at = code.indices.offset(index, self.shape)
        for seen in self.wide:
            dtype = seen.base.dtype
            start = offset(code.builder, code.operand_of(seen.base), dtype.name, at, seen.offset)
            for line in range(0, count * dtype.itemsize, LINE):
                address = offset(code.builder, start, dtype.name, line // dtype.itemsize)
                prefetch(code.builder, address)

    @property
    def wide(self) -> list[Strided]:
        """The operands that have an element for each of the result."""
        whole = prod(self.shape)
        return [
            seen
            for seen in self.alike
            if seen.base.size == whole and seen.base.dtype.name in ACCUMULATOR
        ]

    def emit(
        self, code: Code, sums: Value, index: Sequence[Index], lanes: int, mask: Value | None
    ) -> None:
        """Take a vector of sums, of the lanes in ``mask``, to the results; ``index`` is that of its first element."""
        builder, indices = code.builder, code.indices
        at = indices.offset(index, self.shape)
        dtype = self.main.dtype
        if self.plain:
            element = offset(builder, code.results[0], dtype.name, at)
            store(builder, sums, element, dtype.name, mask)
            return
        operands = [*code.operands, None, *(_address(code, seen) for seen in self.alike)]
        elements = Elements.of(code, mask, body=self.body, operands=operands)
        elements.give(self.result, narrow(builder, sums, dtype.name))
        full = [*index[:-1], Lanes(index[-1], lanes)]
        # All are computed before any is written: a result may lie where an operand does.
        values = [elements.at(output, full) for output in self.outputs]
        for output, pointer, value in zip(self.outputs, code.results, values, strict=True):
            elements.registers.store(value, pointer, Lanes(at, lanes), output.dtype, mask)


def each_transposed(
    builder: Builder,
    values: Sequence[Value],
    square: Pointer,
    accumulator: str,
    count: Value,
    body: Callable[[Value, Value], None],
) -> None:
    """Turn a square of sums around: ``body(lane, vector)`` gets the vector of what ``values`` have in a lane, for the first ``count`` lanes.

    ``square`` is memory for all of them, so that the code of ``inside`` is written once.
    """
    lanes = len(values)
    for lane, value in enumerate(transpose(builder, list(values))):
        store(builder, value, offset(builder, square, accumulator, lane * lanes), accumulator)

    def emit_lane(lane: Value, _: Sequence[Value]) -> None:
        address = offset(builder, square, accumulator, builder.mul(lane, i64(lanes)))
        body(lane, load(builder, address, accumulator, lanes))

    loop(builder, i64(0), count, 1, emit_lane)


def _address(code: Code, seen: Strided) -> Pointer:
    kind = memory_type(seen.base.dtype)
    place = [i64(seen.offset)]
    return code.builder.gep(code.operand_of(seen.base), place, source_etype=kind)


def _flat(shape: Sequence[int], kept: int) -> list[int]:
    return [*shape[:kept], prod(shape[kept:])]
