"""Loops whose elements know nothing of each other: each goes through all steps by itself, and its carries never leave registers.

So are loops whose carries are only ever read element by element. Numbers that all elements share, such as a count of steps, may be carries too, where they
are made of such numbers alone: each element computes them for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.types import TupleType
from ...lower.loops import CARRY, CONSTANT, STACKED, Loop, body_graph, loop_of
from ...lower.plan import Spec
from ...lower.prepare import prepare
from ...lower.roles import role
from ...lower.specs import operand_number, sizes
from ...ops.faults import can_fail
from ..elements.collapse import collapsed
from ..elements.elements import can_emit

MOST_NODES = 96
"""Nodes of a body: beyond that registers run out."""


@dataclass(frozen=True)
class ElementLoop:
    """A loop by elements.

    Attributes:
        loop: where its leaves lie.
        body: a step: inputs ``0``, ``1``, ... are ``leaves`` in order, outputs the new values of ``written``.
        leaves: the names of what a step reads.
        written: the names of the leaves that a step writes: carries, and then what is stacked.
        shape: of the elements, with axes merged where they can be.
        shared: the carries, and what is stacked, that are one number for all elements.
    """

    loop: Loop
    body: Graph
    leaves: tuple[str, ...]
    written: tuple[str, ...]
    shape: tuple[int, ...]
    shared: frozenset[str]

    @property
    def carries(self) -> tuple[str, ...]:
        """The carries that steps change."""
        return tuple(name for name in self.written if name[0] == CARRY)

    def leaf(self, name: str) -> Node:
        """The input of the body that a leaf is."""
        return self.body.inputs[str(self.leaves.index(name))]

    def output(self, name: str) -> Node:
        """The output of the body that a leaf takes."""
        return self.body.outputs[self.written.index(name)]

    @property
    def before(self) -> tuple[Node, ...]:
        """The nodes of the body that are the same in all steps, and read by others that are not."""
        varying: set[int] = set()
        for node in self.body.nodes:
            moves = node.name is not None and not self._is_constant(node)
            if moves or varying.intersection(node.inputs):
                varying.add(node.id)
        kept = {node.id for node in self.body.outputs}
        return tuple(
            node
            for node in self.body.nodes
            if node.id not in varying
            and node.op.name != "constant"
            and (node.id in kept or any(user.id in varying for user in self.body.users(node)))
        )

    def _is_constant(self, leaf: Node) -> bool:
        name = self.leaves[operand_number(leaf)]
        return name[0] == CONSTANT or (name[0] == CARRY and name not in self.written)


@lru_cache(maxsize=1024)
def element_loop(spec: Spec) -> ElementLoop | None:
    """A kernel as a loop by elements, if it is one."""
    if spec.inner is None:
        return None
    step = prepare(body_graph(spec.body), ())
    if not step.updates or len(step.nodes) > MOST_NODES or not all(map(_is_plain, step.nodes)):
        return None
    shape = max((tuple(sizes(value)) for value in step.updates.values()), key=prod)
    if not prod(shape) or not _goes_by_elements(step, shape):
        return None
    found = [*step.states.values(), *step.inputs.values()]
    leaves = [
        leaf
        for leaf in found
        if str(leaf.name)[0] != STACKED and (step.use_count(leaf) or leaf in step.updates)
    ]
    written = sorted(step.updates, key=lambda leaf: str(leaf.name)[0] != CARRY)
    flat = _flat(step, leaves, written, len(shape))
    body = collapsed(Spec("map", flat)).body
    if any(len(leaf.shape) > len(body.outputs[0].shape) for leaf in body.inputs.values()):
        body = flat  # a carry that no step reads is as it was
    if not can_emit(body):
        return None
    merged = max((tuple(sizes(output)) for output in body.outputs), key=prod)
    shared = {str(leaf.name) for leaf in written if leaf.size == 1 and prod(shape) > 1}
    return ElementLoop(
        loop=loop_of(spec),
        body=body,
        leaves=tuple(str(leaf.name) for leaf in leaves),
        written=tuple(str(leaf.name) for leaf in written),
        shape=merged,
        shared=frozenset(shared),
    )


def _is_plain(node: Node) -> bool:
    """Whether a node is computed where it is read, whatever the data."""
    kind = role(node)
    if can_fail(node) or isinstance(node.type, TupleType) or node.dtype.kind == "complex":
        return False
    return kind in ("leaf", "view", "point") or (node.op.name == "constant" and node.size == 1)


def _goes_by_elements(step: Graph, shape: tuple[int, ...]) -> bool:
    """Whether what steps write has one element for each of a shape, or one for all, and carries are read in their places alone."""
    carried = {leaf.id for leaf in step.updates if str(leaf.name)[0] == CARRY}
    whole: set[int] = set()
    for node in step.nodes:
        own = tuple(sizes(node))
        if node.id in carried:
            if own == shape:
                whole.add(node.id)
            elif prod(own) != 1:
                return False
        elif whole.intersection(node.inputs):
            if "elementwise" not in node.op.traits and not _is_same(node):
                return False
            if own != shape:
                return False
            whole.add(node.id)
        elif carried.intersection(node.inputs):
            carried.add(node.id)
            if "elementwise" not in node.op.traits and role(node) != "view":
                return False
            if prod(own) != 1 and own != shape:
                return False
            if own == shape and prod(shape) != 1:
                whole.add(node.id)
    values = (tuple(sizes(value)) for value in step.updates.values())
    return all(own == shape or prod(own) == 1 for own in values)


def _is_same(node: Node) -> bool:
    """Whether a view leaves all elements where they are."""
    same = node.op.name in ("reshape", "broadcast_to", "stop_gradient", "recompute_barrier")
    return same and tuple(sizes(node)) == tuple(sizes(node.operands[0]))


def _flat(step: Graph, leaves: list[Node], written: list[Node], rank: int) -> Graph:
    """A step as the body of a kernel; what has one element has as many axes as all elements together."""
    result = Graph("step")
    made: dict[int, Node] = {}
    for number, leaf in enumerate(leaves):
        shape = (1,) * rank if leaf.size == 1 else leaf.shape
        made[leaf.id] = result.input(str(number), shape, leaf.dtype)
    for node in step.nodes:
        if node.id in made or node.name is not None:
            continue
        operands = [made[i] for i in node.inputs]
        if _is_same(node) or (node.size == 1 and role(node) == "view" and operands):
            made[node.id] = operands[0]
        elif "elementwise" in node.op.traits:
            made[node.id] = result.insert(node.op, operands, node.slots, node.attrs)
        else:
            made[node.id] = result.insert_like(node, operands)
    outputs = []
    for leaf in written:
        value, own = made[step.updates[leaf].id], tuple(sizes(leaf))
        wanted = (1,) * rank if leaf.size == 1 else own
        outputs.append(
            value if tuple(sizes(value)) == wanted else result.broadcast_to(value, wanted)
        )
    result.set_outputs(outputs)
    return result.freeze()
