"""What an attention kernel computes, with all sizes known: the same for every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ...graph.errors import InternalError
from ...graph.node import Node
from ...graph.types import TupleType
from ...lower.plan import Spec
from ...lower.strided import is_tf32, is_view, strided
from ..ir.types import ACCUMULATOR
from .nodes import only_node

FORWARD = "scaled_dot_attention"


BACKWARD = "scaled_dot_attention_backward"


STATISTICS = "attention_statistics"
"""What a kernel writes beside the result; a gradient's operand of the name ``statistics`` is it."""


GRADIENTS = ("q", "k", "v", "bias")
"""What the gradients are of, in the order of the op's results."""


@dataclass(frozen=True)
class Operand:
    """A tensor as it lies in memory, its axes in the order batch, heads, sequence, width (of scores: keys).

    Attributes:
        base: the node whose elements these are.
        offset: of the first element, in elements.
        strides: the distances of neighbours; 0 repeats.
        dtype: the name of the element type.
        rounded: whether elements are rounded to tf32 as they are read.
    """

    base: Node
    offset: int
    strides: tuple[int, int, int, int]
    dtype: str
    rounded: bool = False


@dataclass(frozen=True)
class Described:
    """One attention, or its gradient, with all sizes known: the same for every backend."""

    node: Node
    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    value_width: int
    operands: dict[str, Operand] = field(hash=False)
    offset: Node | None

    @property
    def reads_kept(self) -> bool:
        """Whether it is a gradient that is given the result and the statistics of the forward pass."""
        return "out" in self.operands

    @property
    def layout(self) -> str:
        """The order of the axes of queries, keys, values and results."""
        return str(self.node.attrs["layout"])

    @property
    def causal(self) -> bool:
        """Whether keys after the query are hidden."""
        return bool(self.node.attrs["causal"])

    @property
    def window(self) -> int | None:
        """How far a query sees."""
        return None if self.node.attrs["window"] is None else int(self.node.attrs["window"])

    @property
    def scale(self) -> float:
        """What products are multiplied by."""
        return float(self.node.attrs["scale"])

    @property
    def softcap(self) -> float | None:
        """What scores are capped at."""
        return None if self.node.attrs["softcap"] is None else float(self.node.attrs["softcap"])

    @property
    def may_see_nothing(self) -> bool:
        """Whether a query can have no key at all."""
        masked = self.causal or self.window is not None
        return masked or "mask" in self.operands or "bias" in self.operands

    @property
    def is_plain(self) -> bool:
        """Whether scores are products times a scale above 0, and nothing else."""
        return self.softcap is None and not self.may_see_nothing and self.scale > 0

    @property
    def dtype(self) -> str:
        """The name of the element type of queries, keys and values in memory."""
        return self.operands["q"].dtype

    @property
    def result(self) -> str:
        """The name of the element type of the result, before what follows it: f32 too where operands are 16-bit floats as f32."""
        type_ = self.node.type.items[0] if isinstance(self.node.type, TupleType) else self.node.type
        return str(type_.dtype.name)

    @property
    def accumulator(self) -> str:
        """The name of the element type that is computed with."""
        return ACCUMULATOR[self.dtype]

    @property
    def is_narrow(self) -> bool:
        """Whether elements are widened when read."""
        return self.dtype != self.accumulator

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return max(1, self.heads // max(self.kv_heads, 1))

    @property
    def is_empty(self) -> bool:
        """Whether no query exists."""
        return 0 in (self.batch, self.heads, self.queries)


def _heads_first(layout: str, items: Sequence[int]) -> tuple[int, int, int, int]:
    a, b, c, d = items
    return (a, b, c, d) if layout == "bhsd" else (a, c, b, d)


def _operand(node: Node, rank: int = 4) -> Operand:
    seen = strided(node, widened=True, tf32=True)
    if seen is None:
        raise InternalError(f"an operand of attention, {node!r}, has no strides")
    sizes = [int(size) for size in node.shape]
    own = [0 if n == 1 else stride for n, stride in zip(sizes, seen.strides, strict=True)]
    lead = [0] * (rank - len(own))
    a, b, c, d = (*lead, *own)
    rounded = is_tf32(_source(node))
    return Operand(seen.base, seen.offset, (a, b, c, d), seen.base.dtype.name, rounded)


def _source(node: Node) -> Node:
    """What a node is a view of."""
    while is_view(node):
        (node,) = node.operands
    return node


def main_node(spec: Spec) -> Node | None:
    """The attention of a kernel's body."""
    return only_node(spec, (FORWARD, BACKWARD))


def statistics_number(spec: Spec) -> int | None:
    """Which result of a kernel is the statistics that gradients read; None where it has no such."""
    names = [output.op.name for output in spec.body.outputs]
    return names.index(STATISTICS) if STATISTICS in names else None


def result_numbers(spec: Spec) -> list[int]:
    """Which results of a kernel are made of the attention's elements."""
    outputs = spec.body.outputs
    return [i for i, output in enumerate(outputs) if output.op.name != STATISTICS]


def described(node: Node) -> Described:
    """The attention that a node of a body computes."""
    given = dict(zip(node.slots, node.operands, strict=True))
    layout = str(node.attrs["layout"])
    batch, heads, queries, width = _heads_first(layout, [int(n) for n in given["q"].shape])
    _, kv_heads, keys, _ = _heads_first(layout, [int(n) for n in given["k"].shape])
    operands: dict[str, Operand] = {}
    for name, item in given.items():
        if name in ("mask", "bias", "statistics"):
            operands[name] = _operand(item)
        elif name != "offset":
            found = _operand(item)
            strides = _heads_first(layout, found.strides)
            operands[name] = replace(found, strides=strides)
    return Described(
        node=node,
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        width=width,
        value_width=int(given["v"].shape[-1]),
        operands=operands,
        offset=given.get("offset"),
    )


def can_emit_attention(spec: Spec) -> bool:
    """Whether a body is one attention of floats that the CPU computes with, and what is element-wise after it."""
    node = main_node(spec)
    if node is None or spec.kind != "attention":
        return False
    given = dict(zip(node.slots, node.operands, strict=True))
    return given["q"].dtype.name in ACCUMULATOR and (
        not isinstance(node.type, TupleType) or node.op.name == BACKWARD
    )
