"""Faults that depend on data, such as an index out of range, and how native code reports them.

A kernel writes what it found beside its arguments and goes on with a value that is safe; the program looks where its plan commits, and raises.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...graph.graph import Graph
from ...graph.node import Node
from ...ops.faults import ordinal
from .index import IndexMath, i64, lane_count
from .lanes import Lane, function_of, mangled
from .types import Builder, Pointer, Value

FAULT = 3
"""The first words of a kernel, 64 bits each, by which it tells of a fault; ``lower.faults.raised`` reads them. ``claims`` has the others."""


@dataclass(frozen=True)
class Faults:
    """Where a kernel tells of faults.

    Attributes:
        words: the first of its words.
        body: what it computes.
    """

    words: Pointer
    body: Graph

    def check_index(
        self, builder: Builder, node: Node, index: Value, size: int, mask: Value | None = None
    ) -> None:
        """Tell of an index of a node, a 64-bit value or a vector of them, that is not from 0 to before ``size``."""
        count = lane_count(index)
        limit = i64(size) if count is None else IndexMath(builder).vector(size, count)
        outside = builder.icmp_unsigned(">=", index, limit)
        self._check(builder, node, outside, index, size, mask)

    def check_exponent(
        self, builder: Builder, node: Node, exponent: Value, mask: Value | None = None
    ) -> None:
        """Tell of an exponent of a node, a 64-bit value or a vector of them, that is negative."""
        count = lane_count(exponent)
        zero = i64(0) if count is None else IndexMath(builder).vector(0, count)
        self._check(builder, node, builder.icmp_signed("<", exponent, zero), exponent, 0, mask)

    def tell_if(
        self, builder: Builder, wrong: Value, node: Node, value: Value, size: int = 0
    ) -> None:
        """Tell of a fault of a node where ``wrong`` holds: what it met, and the size of an axis."""
        with builder.if_then(wrong, likely=False):
            self._tell(builder, node, value, size)

    def _check(
        self,
        builder: Builder,
        node: Node,
        wrong: Value,
        value: Value,
        size: int,
        mask: Value | None,
    ) -> None:
        from llvmlite import ir

        count = lane_count(value)
        if mask is not None and count is not None:
            wrong = builder.and_(wrong, mask)
        with builder.if_then(Lane(builder, wrong).any().value, likely=False):
            found = value
            if count is not None:
                # Of several faults the largest number is told: any would do.
                least = ir.Constant(value.type, [-(2**63)] * count)
                chosen = builder.select(wrong, value, least)
                name = f"llvm.vector.reduce.smax.{mangled(value.type)}"
                function = function_of(builder.module, name, ir.IntType(64), [value.type])
                found = builder.call(function, [chosen])
            self._tell(builder, node, found, size)

    def _tell(self, builder: Builder, node: Node, value: Value, size: int) -> None:
        """Write a fault, unless one was told already: what is read is one thread's."""
        word = i64(0).type
        number = i64(ordinal(self.body, node))
        answer = builder.cmpxchg(self.words, i64(0), number, "monotonic", "monotonic")
        with builder.if_then(builder.extract_value(answer, 1)):
            for position, what in ((1, value), (2, i64(size))):
                target = builder.gep(self.words, [i64(position)], source_etype=word)
                builder.store(what, target)
