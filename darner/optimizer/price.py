"""What one node costs on a target, seen from the whole: the fusion that lowering does later is part of it.

Lowering computes element-wise nodes where their operands are made or used, so such a node costs its arithmetic and the half of
its result's traffic; it starts no kernel. Contractions, reductions and all else start one, and move their operands and
their result once. Views cost next to nothing, but something: of two equal plans the one with fewer nodes is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..graph.dims import Dim, bind_dim
from ..graph.graph import Graph
from ..graph.op import OPS, Op
from ..graph.types import TensorType, Type
from ..ops.loops.loop import loop
from ..transforms.cost import call_cost
from .targets import Target

TIE = 1e-9
"""Seconds for a view: enough to decide between plans that are equal otherwise."""

ROOM = 0.01
"""The share of the time to read a value that the room to keep it is worth, at every run."""

NOMINAL = 128
"""The size that a symbolic axis is priced at."""


@dataclass(frozen=True, slots=True)
class Price:
    """The work of one node as a plan would do it."""

    seconds: float
    flops: float = 0.0
    bytes: float = 0.0
    launches: float = 0.0


FREE = Price(0.0)


@dataclass
class Pricer:
    """Prices on one target, remembered."""

    target: Target
    _known: dict[Any, Price] = field(default_factory=dict)

    def price(
        self,
        op: Op,
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        types: tuple[Type, ...],
        type_: Type,
    ) -> Price:
        """The price of a call."""
        if "leaf" in op.traits:
            return FREE
        key = (op.name, slots, tuple(attrs.values()), types)
        found = self._known.get(key)
        if found is None:
            found = self._price(op, slots, attrs, types, type_)
            if op.name in self.target.slow:
                found = replace(found, seconds=found.seconds * self.target.slow[op.name])
            self._known[key] = found
        return found

    def kept(self, type_: Type) -> Price:
        """The price of what is computed once and kept: its room, which is worth little but not nothing."""
        return Price(TIE + ROOM * number(type_.nbytes) / self.target.bandwidth)

    def _price(
        self,
        op: Op,
        slots: tuple[str, ...],
        attrs: dict[str, Any],
        types: tuple[Type, ...],
        type_: Type,
    ) -> Price:
        if "view" in op.traits:
            return Price(TIE)
        if op is loop:
            return self._looped(attrs["body"], attrs["length"])
        cost = call_cost(op, slots, attrs, types, type_)
        flops, moved = number(cost.flops), number(cost.bytes)
        target = self.target
        if "elementwise" in op.traits or op.facts.fused:
            moved = number(type_.nbytes) / 2
            return self._finish(flops * op.facts.weight / target.vector, moved, 0.0)
        if op.facts.full_rate:
            # What is added at the end is read where it is used, as an element-wise node would.
            for slot, operand in zip(slots, types, strict=True):
                if slot == "residual":
                    moved -= number(operand.nbytes) / 2
            rate = target.half if _is_half(types) else 1.0
            work = flops / rate + self._epilogue(attrs.get("activation"), type_) / target.vector
            return self._finish(work, moved, op.facts.kernels)
        return self._finish(flops / target.vector, moved, 1.0)

    def _looped(self, body: Graph, length: int) -> Price:
        """A loop is its body, as often as it has steps."""
        total = FREE
        for node in body.nodes:
            types = tuple(operand.type for operand in node.operands)
            step = self.price(node.op, node.slots, node.attrs, types, node.type)
            total = Price(
                total.seconds + length * step.seconds,
                total.flops + length * step.flops,
                total.bytes + length * step.bytes,
                total.launches + length * step.launches,
            )
        return total

    @staticmethod
    def _epilogue(activation: str | None, type_: Type) -> float:
        """The arithmetic of an activation at the end of a contraction: what it would be alone."""
        if activation is None:
            return 0.0
        return number(
            call_cost(OPS[activation], ("x",), _defaults(activation), (type_,), type_).flops
        )

    def _finish(self, flops: float, moved: float, launches: float) -> Price:
        seconds = self.target.seconds(flops, moved, launches) + 2 * TIE
        return Price(seconds, flops, moved, launches)


def _defaults(name: str) -> dict[str, Any]:
    return {param.name: param.default for param in OPS[name].attributes}


def _is_half(types: Sequence[Type]) -> bool:
    return any(isinstance(t, TensorType) and t.dtype.is_half for t in types)


def number(size: Dim) -> float:
    """A size as a number, whatever it is a symbol of."""
    if isinstance(size, int):
        return float(size)
    return float(int(bind_dim(size, dict.fromkeys(size.symbols, NOMINAL))))
