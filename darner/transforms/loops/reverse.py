"""The gradient of a loop: a loop in the other direction over the transposed body.

Its carries are the cotangents of the carries and sums for the constants; it reads what the forward loop kept of each step. Kept are the carries that
a step begins with and the results of products, reductions and the like; what is element by element is computed again from these. With ``recompute``
only the carries are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from ...graph import dtypes
from ...graph.dims import Shape
from ...graph.dtypes import DType
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.types import TupleType
from ...ops.custom.bodies import is_float
from ...ops.loops.loop import LoopAttributes, loop
from ..reverse import Together, passes_gradient, prepare, pull_back
from .parts import Loop, Piece, closure, dependent, insert


@loop.vjp
def _(
    g: tuple[Node | None, ...],
    out: tuple[Node, ...],
    init: list[Node],
    constants: list[Node],
    xs: list[Node],
    **attrs: Unpack[LoopAttributes],
) -> Together:
    made = Loop(tuple(init), tuple(constants), tuple(xs), **attrs)
    return Together(lambda wanted: gradients(made, g, wanted))


def gradients(
    made: Loop, cotangents: Sequence[Node | None], wanted: Sequence[bool]
) -> list[Node | None]:
    """What each operand of a loop receives, in one backward sweep; None for nothing."""
    graph = made.operands[0].graph
    varied = varying_inputs(made, wanted)
    reaching = _reaching_outputs(made, [value is not None for value in cotangents])
    carries = [i for i in range(len(made.init)) if varied[i] and reaching[i]]
    others = [i for i in range(len(made.init), len(varied)) if varied[i] and wanted[i]]
    written = [j for j in range(len(made.init), len(reaching)) if reaching[j]]
    if not carries and not (others and written):
        return [None] * len(varied)
    sweep = _Sweep(made, carries, others, written)
    return sweep.emit(graph, cotangents)


def varying_inputs(made: Loop, wanted: Sequence[bool]) -> list[bool]:
    """The inputs of the body that move when the ``wanted`` operands do: carries also by way of other steps."""
    leaves = list(made.body.inputs.values())
    varied = [flag and is_float(leaf._tensor) for flag, leaf in zip(wanted, leaves, strict=True)]
    while True:
        reached = _reached(made.body, [n for n, v in zip(leaves, varied, strict=True) if v])
        more = [
            i
            for i in range(len(made.init))
            if not varied[i] and reached[made.body.outputs[i].id] and is_float(leaves[i]._tensor)
        ]
        if not more:
            return varied
        for i in more:
            varied[i] = True


def _reached(body: Graph, leaves: Sequence[Node]) -> list[bool]:
    """The nodes that a derivative reaches from ``leaves``."""
    reached = [False] * len(body)
    for leaf in leaves:
        reached[leaf.id] = True
    for node in body.nodes:
        if node.inputs and passes_gradient(node):
            reached[node.id] = any(reached[i] for i in node.inputs)
    return reached


def _reaching_outputs(made: Loop, given: Sequence[bool]) -> list[bool]:
    """The outputs of the body that a cotangent comes to: carries also by way of later steps."""
    leaves = list(made.body.inputs.values())
    floats = [is_float(node._tensor) for node in made.body.outputs]
    found = [flag and is_number for flag, is_number in zip(given, floats, strict=True)]
    while True:
        needed = [False] * len(made.body)
        for node, flag in zip(made.body.outputs, found, strict=True):
            needed[node.id] = needed[node.id] or flag
        for node in made.body.reverse_topo():
            if needed[node.id] and passes_gradient(node):
                for i in node.inputs:
                    needed[i] = True
        more = [
            i for i in range(len(made.init)) if not found[i] and floats[i] and needed[leaves[i].id]
        ]
        if not more:
            return found
        for i in more:
            found[i] = True


class _Sweep:
    """The body of a loop with its transpose behind it, and how both are parted into two loops."""

    def __init__(
        self, made: Loop, carries: Sequence[int], others: Sequence[int], written: Sequence[int]
    ) -> None:
        self.made, self.carries, self.others, self.written = made, carries, others, written
        self.ends = [*carries, *written]
        leaves = list(made.body.inputs.values())
        wrt = [leaves[i] for i in (*carries, *others)]
        outputs = [made.body.outputs[i] for i in self.ends]
        rebuilt = prepare(made.body, wrt, outputs)
        self.graph = rebuilt.graph
        self.leaves = [rebuilt[leaf] for leaf in leaves]
        self.outputs = list(self.graph.outputs)
        ends = [rebuilt[node] for node in outputs]
        self.cotangents = [
            self.graph.input(_free_name(self.graph, f"d{i}"), node.shape, node.dtype)
            for i, node in zip(self.ends, ends, strict=True)
        ]
        found = pull_back(
            self.graph, ends, self.cotangents, [rebuilt[leaf] for leaf in wrt], rebuilt.names
        )
        self.found = dict(zip((*carries, *others), found, strict=True))
        self.kept = self._kept()

    def _kept(self) -> list[Node]:
        """What the forward loop keeps of each step, in order."""
        behind = dependent(self.graph, self.cotangents)
        stepping = [*self.leaves[: len(self.made.init)], *self.leaves[self.made.first_step :]]
        varies = dependent(self.graph, stepping)
        carried = {leaf.id for leaf in self.leaves[: len(self.made.init)]}
        needed = {node.id for node in self.found.values() if node is not None}
        kept: list[Node] = []
        for node in self.graph.reverse_topo():
            if node.id not in needed:
                continue
            saved = not behind[node.id] and varies[node.id] and bool(node.inputs)
            if (saved and not self.made.recompute and _is_dear(node)) or node.id in carried:
                kept.append(node)
            else:
                needed.update(node.inputs)
        return kept[::-1]

    def emit(self, graph: Graph, cotangents: Sequence[Node | None]) -> list[Node | None]:
        """Add both loops to a graph; what the operands receive."""
        made, count = self.made, len(self.carries)
        stacks = self._forward_stacks()
        given: list[Node] = []
        for j, node in zip(self.ends, self.cotangents, strict=True):
            shape = _stacked(node, made.length, j >= len(made.init))
            known = cotangents[j]
            given.append(graph.zeros(shape, node.dtype) if known is None else known)
        found = {i: node for i, node in self.found.items() if node is not None}
        shared = [i for i in self.others if i < made.first_step and i in found]
        steps = [i for i in self.others if i >= made.first_step and i in found]
        starts = [graph.zeros(self.leaves[i].shape, _summed(self.leaves[i])) for i in shared]
        backward = replace(
            made,
            init=(*given[:count], *starts),
            xs=(*made.xs, *stacks, *given[count:]),
            body=self._transposed(found, shared, steps),
            reverse=not made.reverse,
        )
        received: list[Node | None] = [None] * len(self.leaves)
        answers = insert(graph, backward)
        for i, answer in zip((*self.carries, *shared, *steps), answers, strict=True):
            received[i] = _cast(answer, self.leaves[i])
        return received

    def _transposed(
        self, found: Mapping[int, Node], shared: Sequence[int], steps: Sequence[int]
    ) -> Graph:
        """The body of the backward loop: it adds up what ``shared`` constants receive, and writes what ``steps`` do."""
        made, count, piece = self.made, len(self.carries), Piece("transposed")
        for node in self.cotangents[:count]:
            piece.input("d", node._tensor, node)
        sums = [
            piece.input("sum", self.leaves[i]._tensor.with_dtype(_summed(self.leaves[i])))
            for i in shared
        ]
        for leaf in self.leaves[made.first_constant : made.first_step]:
            piece.input("k", leaf._tensor, leaf)
        for leaf in (*self.leaves[made.first_step :], *self.kept, *self.cotangents[count:]):
            piece.input("x", leaf._tensor, leaf)
        piece.take(closure(self.graph.nodes, found.values(), set(piece.mapped)))
        value = {i: piece.mapped[node.id] for i, node in found.items()}
        following: list[Node] = []
        for i in self.carries:
            leaf = self.leaves[i]
            following.append(value[i] if i in value else piece.graph.zeros(leaf.shape, leaf.dtype))
        totals = [total + _cast(value[i], total) for total, i in zip(sums, shared, strict=True)]
        return piece.finish([*following, *totals, *(value[i] for i in steps)])

    def _forward_stacks(self) -> list[Node]:
        """The values kept of all steps, from the loop that computes what the first did and writes these besides."""
        if not self.kept:
            return []
        made, piece = self.made, Piece(self.made.body.name)
        for i, leaf in enumerate(self.leaves):
            stem = "h" if i < made.first_constant else "k" if i < made.first_step else "x"
            piece.input(stem, leaf._tensor, leaf)
        ends = [*self.outputs, *self.kept]
        piece.take(closure(self.graph.nodes, ends, set(piece.mapped)))
        body = piece.finish([piece.mapped[node.id] for node in ends])
        graph = made.operands[0].graph
        return insert(graph, replace(made, body=body))[len(self.outputs) :]


def _is_dear(node: Node) -> bool:
    """Whether a value is kept rather than computed again: neither element by element nor a view."""
    if isinstance(node.type, TupleType):
        return False
    if node.op.name == "project":
        return True
    return not node.op.traits & {"elementwise", "view", "barrier"}


def _summed(leaf: Node) -> DType:
    """The element type in which many steps are added up: f32 at least."""
    return dtypes.f32 if leaf.dtype.is_half else leaf.dtype


def _cast(value: Node, like: Node) -> Node:
    """A value in the element type of another."""
    return value if value.dtype is like.dtype else value.cast(like.dtype)


def _stacked(node: Node, length: int, written: bool) -> Shape:
    return (length, *node.shape) if written else node.shape


def _free_name(graph: Graph, stem: str) -> str:
    while stem in graph._names:
        stem += "_"
    return stem
