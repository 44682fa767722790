"""Contractions that multiply in fewer bits and add in f32: ``with_precision``.

Every contraction of f32 operands has these rounded before it, and its result stays f32: nothing else is rounded. A value is rounded where it is
computed, below the views that are read of it, so that all contractions that read it share one rounding, and a kernel that computes it can write it in
16 bits. Apply it after differentiation: gradients are then sums in f32 of products of what was rounded, with nothing rounded between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..graph import dtypes
from ..graph.dtypes import DType
from ..graph.errors import Calling
from ..graph.graph import Graph, check_graph
from ..graph.node import Node
from ..graph.precision import TF32, Precision, check_precision
from ..graph.types import TensorType, TupleType
from .caches import STORED
from .expand import expansion
from .loops.motion import move_products
from .loops.rewrite import has_loops

_HOLDS: dict[str, tuple[DType, ...]] = {
    "tf32": (dtypes.bf16, dtypes.f16),
    "bf16": (dtypes.bf16,),
    "f16": (dtypes.f16,),
}
"""The types whose values are the same after rounding."""


@dataclass(frozen=True)
class Rounded:
    """A graph whose contractions multiply in fewer bits.

    Attributes:
        graph: the same values but for rounding.
        precision: what they multiply in.
        count: contractions that multiply in it.
        stored: those that read weights of fewer bits, which are multiplied as they are decoded, in f32.
        others: those whose operands are of other types, which compute in these.
    """

    graph: Graph
    precision: Precision
    count: int = 0
    stored: int = 0
    others: int = 0

    @property
    def note(self) -> str:
        """What is computed in what, for a report."""
        parts = [f"{_counted(self.count)} in {self.precision} and added in f32"]
        if self.stored:
            parts.append(f"{_counted(self.stored)} in f32 by weights of fewer bits")
        if self.others:
            parts.append(f"{_counted(self.others)} in the types of the graph")
        return f"precision {self.precision}: {'; '.join(parts)}; the rest is in f32"


def _counted(count: int) -> str:
    return f"{count} contraction{'' if count == 1 else 's'} multiplied"


def with_precision(graph: Graph, precision: Precision) -> Graph:
    """The graph whose contractions of f32 operands multiply in ``precision`` and add in f32.

    Args:
        graph: what to compute; a graph of gradients has them rounded too. It is not changed.
        precision: ``"bf16"``, ``"f16"``, ``"tf32"``, or ``"f32"``, which changes nothing.

    >>> import darner
    >>> g = darner.Graph()
    >>> g.set_outputs([(g.input("x", (2, 3)) @ g.parameter("w", (3, 4))).tanh()])
    >>> [f"{node.op.name} {node.dtype}" for node in with_precision(g, "bf16").nodes][2:]
    ['cast bf16', 'cast f32', 'cast bf16', 'cast f32', 'matmul f32', 'tanh f32']
    """
    with Calling("with_precision"):
        check_graph(graph)
        return rounded_products(graph, check_precision(precision)).graph


def rounded_products(graph: Graph, precision: Precision) -> Rounded:
    """``with_precision``, and what it did."""
    if precision == "f32":
        return Rounded(graph, precision)
    work = _Rounding(precision)
    result = work.graph(graph)
    # What a loop's body rounds of what all steps share is rounded once.
    result = move_products(result) if has_loops(result) else result
    return Rounded(result, precision, work.count, work.stored, work.others)


class _Rounding:
    """The copying of graphs, with operands rounded."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.count = self.stored = self.others = 0
        self._contracts: dict[int, tuple[Graph, bool]] = {}

    def graph(self, graph: Graph) -> Graph:
        """A copy of a graph in which contractions have rounded operands."""
        result = Graph(graph.name)
        copy = _Copy(self, result)
        made: dict[int, Sequence[Node]] = {}
        for node in graph.nodes:
            made[node.id] = copy.visit(node, made, node)
        result.set_outputs([made[node.id][0] for node in graph.outputs])
        for leaf, value in graph.updates.items():
            result.set_update(made[leaf.id][0], made[value.id][0])
        result.inherit(graph)
        return result.toposort()

    def is_written_out(self, node: Node) -> bool:
        """Whether a composite consists of contractions that are to be rounded, and has no kernel of its own."""
        op = node.op
        if not op.is_composite or op.facts.multiplies or op.facts.whole:
            return False
        # One of 16-bit floats computes in f32 inside, and rounds its result: it is what it is.
        if any(isinstance(x.type, TensorType) and x.dtype.is_half for x in node.operands):
            return False
        return self._has_contractions(expansion(node))

    def _has_contractions(self, body: Graph) -> bool:
        known = self._contracts.get(id(body))
        if known is None:
            found = any(
                self.is_written_out(node) or self.rounds(node, node.operands) for node in body.nodes
            )
            # The body is kept, so that no other one gets its identity.
            known = self._contracts[id(body)] = body, found
        return known[1]

    def rounds(self, node: Node, operands: Sequence[Node]) -> bool:
        """Whether a node is a contraction whose operands are rounded."""
        found = multiplied(node, operands)
        f32 = bool(found) and all(operand.dtype is dtypes.f32 for operand in found)
        return f32 and not any(map(is_decoded, found))

    def tell(self, node: Node, operands: Sequence[Node]) -> None:
        """Count a contraction."""
        found = multiplied(node, operands)
        if self.rounds(node, operands):
            self.count += 1
        elif any(operand.dtype is dtypes.f32 and is_decoded(operand) for operand in found):
            self.stored += 1
        elif found:
            self.others += 1


def multiplied(node: Node, operands: Sequence[Node]) -> list[Node]:
    """Those operands of a contraction that it multiplies; none of any other node."""
    names = node.op.facts.multiplies
    return [x for x, slot in zip(operands, node.slots, strict=True) if slot in names]


def is_decoded(node: Node) -> bool:
    """Whether a value is stored in fewer bits than it is multiplied in."""
    while node.op.facts.role == "view" and len(node.inputs) == 1:
        (node,) = node.operands
    if node.op.name == "parameter":
        return bool(node.attrs["storage"] != "dense")
    return node.op.facts.decodes


class _Copy:
    """One graph in the making."""

    def __init__(self, work: _Rounding, result: Graph) -> None:
        self.work = work
        self.result = result
        self._rounded: dict[int, Node] = {}

    def visit(self, node: Node, made: dict[int, Sequence[Node]], like: Node) -> Sequence[Node]:
        """What a node is in the copy, several nodes where it was written out; labels and lines are those of ``like``."""
        if node.op.name == "project":
            found = made[node.inputs[0]]
            if not isinstance(found[0].type, TupleType):
                return [found[node.attrs["index"]]]
        operands = [made[i][0] for i in node.inputs]
        if node.op.name == "cast" and node.dtype is STORED.get(self.work.precision):
            return [self._cast(operands[0], node)]
        if self.work.is_written_out(node):
            return self._written_out(node, operands, like)
        self.work.tell(node, operands)
        if self.work.rounds(node, operands):
            names = node.op.facts.multiplies
            with self.result.derived_from(like):
                operands = [
                    self.rounded(x) if slot in names else x
                    for x, slot in zip(operands, node.slots, strict=True)
                ]
        made_attrs = self._attrs(node)
        if node is like:
            return [self.result.insert_like(node, operands, made_attrs)]
        return [
            self.result.insert(
                node.op,
                operands,
                node.slots,
                node.attrs if made_attrs is None else made_attrs,
                label=like.label,
                scope=like.scope,
                source=like.source,
            )
        ]

    def _attrs(self, node: Node) -> dict[str, object] | None:
        """The attributes of a node with its inner graphs rounded; None where it has none."""
        if not any(isinstance(value, Graph) for value in node.attrs.values()):
            return None
        return {
            name: self.work.graph(value).freeze() if isinstance(value, Graph) else value
            for name, value in node.attrs.items()
        }

    def _written_out(self, node: Node, operands: Sequence[Node], like: Node) -> Sequence[Node]:
        body = expansion(node)
        made: dict[int, Sequence[Node]] = {
            leaf.id: [operands[int(name)]] for name, leaf in body.inputs.items()
        }
        for inner in body.nodes:
            if inner.id not in made:
                made[inner.id] = self.visit(inner, made, like)
        return [made[output.id][0] for output in body.outputs]

    def rounded(self, x: Node) -> Node:
        """An operand of a contraction, rounded where it was computed."""
        if x.id not in self._rounded:
            self._rounded[x.id] = self._made(x)
        return self._rounded[x.id]

    def _cast(self, x: Node, like: Node) -> Node:
        """A cast that the graph has itself: below the views of a value that is computed, where its other readers round it."""
        base = x
        while _is_view(base):
            (base,) = base.operands
        if base is x or "leaf" in base.op.traits or base.dtype is not dtypes.f32:
            return self.result.insert_like(like, [x])
        with self.result.derived_from(like):
            return self._seen(x, base.cast(like.dtype))

    def _seen(self, x: Node, base: Node) -> Node:
        """The views of a value of another type that ``x`` is of its value."""
        if not _is_view(x):
            return base
        (source,) = x.operands
        return self.result.insert_like(x, [self._seen(source, base)])

    def _made(self, x: Node) -> Node:
        if _is_view(x):
            (source,) = x.operands
            base = self.rounded(source)
            return x if base is source else self.result.insert_like(x, [base])
        precision = self.work.precision
        widened = x.op.name == "cast" and x.operands[0].dtype in _HOLDS[precision]
        if widened or x.dtype is not dtypes.f32:
            return x
        if precision == "tf32":
            reduced: Node = x.reduce_precision(*TF32)
            return reduced
        result: Node = x.cast(STORED[precision]).cast(dtypes.f32)
        return result


def _is_view(x: Node) -> bool:
    """Whether a node is other elements of its operand, of which it has no copies."""
    if x.op.facts.role != "view" or len(x.inputs) != 1:
        return False
    return isinstance(x.operands[0].type, TensorType) and x.operands[0].dtype is dtypes.f32
