"""Loops as plans: a kernel of kind ``loop`` repeats a plan of its own, whose size does not depend on the number of steps.

The plan is of the body as a graph with leaves that stand for what a step reads and writes; each is named by a letter and its number:

c   carries: states, which a step reads and updates. Every update is in place: where the new value cannot be written over the old one at once, a kernel
    copies it at the end of the step.
k   constants: inputs, the same in every step
x   one step of each of ``xs``: inputs
y   one step of each result that is stacked: states that are only written

So the plan of a body keeps all rules of plans, and its arena is that of one step. ``Loop`` says where in the operands and results of the kernel the leaves lie:
steps of ``x`` and ``y`` are ``stride`` bytes apart, and nothing is copied to be read or stacked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..graph.cached import cached_property
from ..graph.errors import InternalError
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import get_op
from ..ops.faults import can_fail
from .specs import operand_number
from .strided import is_stepwise, strided

if TYPE_CHECKING:
    from .plan import Plan, Spec

CARRY, CONSTANT, STEP, STACKED = "c", "k", "x", "y"


def loop_node(body: Graph) -> Node:
    """The loop of a kernel's body."""
    return next(node for node in body.nodes if node.op.facts.role == "loop")


@dataclass(frozen=True)
class Slots:
    """The operands of a loop, by what they are to it."""

    init: tuple[Node, ...]
    constants: tuple[Node, ...]
    xs: tuple[Node, ...]

    @classmethod
    def of(cls, node: Node) -> Slots:
        """Those of a node."""
        pairs = [*zip(node.slots, node.operands, strict=True)]
        init, constants, xs = (
            tuple(operand for slot, operand in pairs if slot == name)
            for name in ("init", "constants", "xs")
        )
        return cls(init, constants, xs)


def body_graph(kernel: Graph) -> Graph:
    """What a kernel's loop does in a step, as a graph to be lowered: of its results those that the kernel has.

    >>> import darner
    >>> g = darner.Graph()
    >>> body = darner.Graph()
    >>> a, b = body.input("a", (4,)), body.input("b", (4,))
    >>> body.set_outputs([a + b, a * b])
    >>> last, stacked = g.loop([g.input("init", (4,))], [], [g.input("x", (9, 4))], body=body.freeze(), length=9)
    >>> g.set_outputs([last])
    >>> step = body_graph(g)
    >>> list(step.states), list(step.inputs), len(step.updates)
    (['c0'], ['x0'], 1)
    """
    node = loop_node(kernel)
    body: Graph = node.attrs["body"]
    slots = Slots.of(node)
    count = len(slots.init)
    wanted = sorted({int(output.attrs["index"]) for output in kernel.outputs})
    carried = _needed_carries(body, count, wanted)
    leaves = list(body.inputs.values())
    result = Graph("body")
    made: dict[int, Node] = {}
    for number, leaf in enumerate(leaves):
        if number < count:
            made[leaf.id] = result.state(f"{CARRY}{number}", leaf.shape, leaf.dtype)
        elif number < count + len(slots.constants):
            made[leaf.id] = result.input(f"{CONSTANT}{number - count}", leaf.shape, leaf.dtype)
        else:
            place = number - count - len(slots.constants)
            made[leaf.id] = result.input(f"{STEP}{place}", leaf.shape, leaf.dtype)
    for inner in body.nodes:
        if inner.id not in made:
            made[inner.id] = result.insert_like(inner, [made[i] for i in inner.inputs])
    targets = [(made[leaves[i].id], body.outputs[i]) for i in carried]
    for number in wanted:
        if number >= count:
            output = body.outputs[number]
            leaf = result.state(f"{STACKED}{number - count}", output.shape, output.dtype)
            targets.append((leaf, output))
    last: dict[int, Node] = {}
    for leaf, output in targets:
        value = made[output.id]
        if value.id == leaf.id:
            continue
        kept = value.op.name == "constant" or not value.op.traits.isdisjoint(("leaf", "view"))
        if value.id in last or kept:
            last[value.id] = _copied(result, last.get(value.id, value))
        else:
            last[value.id] = value
        result.set_update(leaf, last[value.id])
    return result.toposort()


def _copied(graph: Graph, value: Node) -> Node:
    """The same value as one that is computed, by the kernel that computes what it is made of, or those beside it."""
    return graph.insert(get_op("stop_gradient"), [value], ("x",), {}, type=value.type)


def _needed_carries(body: Graph, count: int, wanted: Sequence[int]) -> list[int]:
    """The carries on which results depend, by number; what the others become nobody asks."""
    numbers = {leaf.id: i for i, leaf in enumerate(body.inputs.values())}
    found: set[int] = set()
    stack, seen = [body.outputs[i] for i in wanted], set[int]()
    while stack:
        node = stack.pop()
        if node.id in seen:
            continue
        seen.add(node.id)
        stack += node.operands
        number = numbers.get(node.id, count)
        if number < count and number not in found:
            found.add(number)
            stack.append(body.outputs[number])
    return sorted(found | {i for i in wanted if i < count})


# --------------------------------------------------------------------------- where values lie


@dataclass(frozen=True)
class Place:
    """Where a leaf of a body lies in a step.

    Attributes:
        operand: the operand of the kernel that it is in, or in whose elements a carry begins.
        result: the result that it is in.
        offset: bytes from there, in the first step.
        stride: bytes from one step to the next.
    """

    operand: int | None = None
    result: int | None = None
    offset: int = 0
    stride: int = 0


@dataclass(frozen=True)
class Loop:
    """A kernel of kind ``loop``: what is repeated, how often, and where its leaves lie.

    Attributes:
        plan: of one step.
        length: how many steps there are.
        reverse: whether they go from the last to the first.
        places: of the leaves of ``plan`` by name. A carry that is no result has a place without one: its value is the backend's to keep.
    """

    plan: Plan
    length: int
    reverse: bool
    places: dict[str, Place]

    @cached_property
    def carries(self) -> tuple[str, ...]:
        """The names of the carries."""
        return tuple(name for name in self.places if name[0] == CARRY)

    def is_updated(self, name: str) -> bool:
        """Whether steps change a carry."""
        number = self.plan.leaves("state")[name]
        return any(number == leaf for leaf, _ in self.plan.updates)

    def step(self, number: int) -> int:
        """Which step is the one of this number."""
        return self.length - 1 - number if self.reverse else number

    @cached_property
    def exchanged(self) -> dict[int, int]:
        """The carries that a step copies at its end from another buffer of the arena, by number, and that buffer.

        Who repeats the step may leave out the copy, and give the two buffers each other's place from one step to the next.
        """
        plan = self.plan
        copies = {k: plan.kernels[k] for k in self.copies}
        sources = Counter(kernel.operands[0] for kernel in copies.values())
        return {
            kernel.results[0]: kernel.operands[0]
            for kernel in copies.values()
            if sources[kernel.operands[0]] == 1
        }

    @cached_property
    def copies(self) -> tuple[int, ...]:
        """The kernels that copy a carry at the end of a step from the arena."""
        carries = {self.plan.leaves("state")[name] for name in self.carries}
        return tuple(
            k
            for k, kernel in enumerate(self.plan.kernels)
            if kernel.spec.startswith("map-")
            and len(kernel.operands) == len(kernel.results) == 1
            and kernel.results[0] in carries
            and self.plan.buffers[kernel.operands[0]].place == "arena"
            and all(
                node.op.name in ("input", "reshape") for node in self.plan.spec(kernel).body.nodes
            )
        )

    def is_left_out(self, kernel: int) -> bool:
        """Whether a kernel is a copy of ``exchanged`` buffers."""
        found = self.plan.kernels[kernel]
        return kernel in self.copies and found.results[0] in self.exchanged

    def lies_at_home(self, number: int) -> bool:
        """Whether a carry of ``exchanged`` buffers is, before the step of this number, where it is after the last."""
        return (self.length - number) % 2 == 0


@lru_cache(maxsize=1024)
def loop_of(spec: Spec) -> Loop:
    """What a kernel of kind ``loop`` repeats."""
    if spec.inner is None:
        raise InternalError(f"a kernel of kind '{spec.kind}' repeats nothing")
    node = loop_node(spec.body)
    slots = Slots.of(node)
    results = {int(output.attrs["index"]): i for i, output in enumerate(spec.body.outputs)}
    places: dict[str, Place] = {}
    for name in (*spec.inner.leaves("state"), *spec.inner.leaves("input")):
        letter, number = name[0], int(name[1:])
        if letter == CARRY:
            operand, offset, _ = _operand(slots.init[number], False)
            places[name] = Place(operand, results.get(number), offset)
        elif letter == CONSTANT:
            operand, offset, _ = _operand(slots.constants[number], False)
            places[name] = Place(operand, None, offset)
        elif letter == STEP:
            operand, offset, stride = _operand(slots.xs[number], True)
            places[name] = Place(operand, None, offset, stride)
        else:
            result = results[len(slots.init) + number]
            buffer = spec.inner.buffers[spec.inner.leaves("state")[name]]
            places[name] = Place(None, result, 0, buffer.nbytes)
    length = int(node.attrs["length"])
    return Loop(spec.inner, length, bool(node.attrs["reverse"]), places)


def _operand(node: Node, stepped: bool) -> tuple[int, int, int]:
    """The number of an operand, the bytes from its beginning to what is read, and from one step to the next."""
    seen = strided(node)
    if seen is None or not is_stepwise(node, stepped):
        raise InternalError(f"a loop reads a {node.op.name} of {node.type}, which has gaps")
    size = node.dtype.itemsize
    stride = seen.strides[0] * size if stepped else 0
    return operand_number(seen.base), seen.offset * size, stride


def shares_carry(spec: Spec, operand: int, result: int) -> bool:
    """Whether a loop may keep a carry where it begins: nothing else reads that operand."""
    node = loop_node(spec.body)
    leaf, output = spec.inputs[operand], spec.body.outputs[result]
    users = spec.body.users(leaf)
    alone = [user.id for user in users] == [node.id] and node.inputs.count(leaf.id) == 1
    number = int(output.attrs["index"])
    init = Slots.of(node).init
    same = [other for other in spec.body.outputs if other.attrs == output.attrs]
    return alone and number < len(init) and init[number].id == leaf.id and len(same) == 1


# --------------------------------------------------------------------------- faults


def failing(spec: Spec) -> Iterator[Node]:
    """The nodes of a kernel that data can make fail, in the order in which its faults are counted: those of a loop kernel by kernel."""
    if spec.inner is None:
        yield from (node for node in spec.body.nodes if can_fail(node))
        return
    for kernel in spec.inner.kernels:
        yield from failing(spec.inner.spec(kernel))


def without_lines(plan: Plan) -> Plan:
    """A plan of a body without labels and lines: those are of one loop among all that do the same."""
    kernels = tuple(
        replace(k, nodes=(), label=None, source=None, checks=((None, None),) * len(k.checks))
        for k in plan.kernels
    )
    return replace(plan, kernels=kernels)
