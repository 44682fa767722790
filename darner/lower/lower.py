"""From a graph to a plan: kernels, their order, and a place for every value.

    >>> import darner
    >>> from darner.lower.lower import lower
    >>> g = darner.Graph("mlp")
    >>> x = g.input("x", (4, 8))
    >>> g.set_outputs([(x @ g.parameter("w", (8, 2)) + g.parameter("b", (2,))).relu()])
    >>> plan = lower(g)
    >>> [plan.spec(kernel).kind for kernel in plan.kernels], plan.arena_bytes
    (['contract'], 64)

Parameters that stand side by side (a ``concat`` of them, see ``darner.optimizer``) are one constant block to a backend that stores them so; here
the ``concat`` is a kernel like any other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..graph.data import Data
from ..graph.errors import Calling, ShapeError
from ..graph.graph import LEAVES, Graph
from ..graph.node import Node
from ..graph.parts import Parts
from ..graph.types import TensorType
from ..transforms.channels_last import Wanted
from .again import Price
from .commit import committed, index_bounds
from .groups import PLAIN, Fusing
from .loops import STACKED, body_graph, without_lines
from .memory import Request, plan_arena
from .plan import ALIGNMENT, Buffer, Kernel, Plan, Spec, copy_spec, may_share
from .prepare import prepare
from .specs import Work, kernels
from .strided import Multipliers


def lower(  # many parameters: all but the graph are what a backend asks for, by name
    graph: Graph,
    *,
    target: str = "reference",
    whole: Collection[str] | None = None,
    ended: Collection[str] | None = None,
    fusing: Fusing = PLAIN,
    keeps: bool = False,
    options: Mapping[str, Any] | None = None,
    alignment: int = ALIGNMENT,
    segment: int | None = None,
    stored: Mapping[str, Parts] | None = None,
    multipliers: Multipliers | None = None,
    channels_last: Wanted | None = None,
    again: Price | None = None,
) -> Plan:
    """The plan of a graph whose sizes are all known.

    ``whole`` names the composites for which the target has kernels of their own, ``ended`` the ops by index whose kernels may end with what is
    element-wise after them; ``fusing`` says what else its kernels can do, and ``keeps`` that they keep what gradients read of the forward pass (``kept``). Every value of the arena begins at a
    multiple of ``alignment`` bytes, and with ``segment`` none lies across a multiple of that many. ``stored`` says of which parameters or states a leaf
    is made that holds several side by side, for a target that keeps them so, ``multipliers`` which contractions read operands of fewer bits than f32 where they lie,
    ``channels_last`` which convolutions are better computed so, and ``again`` what it costs to compute values again where they are read (``lower.again``): without it all are stored.

    States and parameters are updated in place where the kernel that computes the new value is the last to read the old one, and none that can fail comes
    after it.
    """
    with Calling("lower"):
        symbols = graph.dynamic_symbols()
        if symbols:
            raise ShapeError(
                f"the sizes {', '.join(symbols)} are not known", hint="graph.bind(name=size) first"
            )
    rules = _Rules(
        target,
        whole,
        ended,
        fusing,
        keeps,
        alignment,
        segment,
        stored or {},
        multipliers,
        channels_last,
        again,
    )
    return rules.plan(graph, dict(options or {})).verify()


@dataclass(frozen=True)
class _Rules:
    """What a device asks for; see ``lower``."""

    target: str
    whole: Collection[str] | None
    ended: Collection[str] | None
    fusing: Fusing
    keeps: bool
    alignment: int
    segment: int | None
    stored: Mapping[str, Parts]
    multipliers: Multipliers | None
    channels_last: Wanted | None
    again: Price | None

    def plan(self, graph: Graph, options: dict[str, Any]) -> Plan:
        """The plan of a graph."""
        prepared = prepare(graph, self.whole, self.keeps, self.channels_last)
        works, commit = committed(prepared, self._kernels(prepared))
        made = _Assembly(prepared, works, commit, self)
        made.name_parts(self.stored)
        return made.plan(graph, options)

    def step(self, kernel: Graph) -> Plan:
        """The plan of one step of a kernel's loop.

        What fails in it fails for the whole kernel, which stands before the commit point: the plan needs none.
        """
        graph = body_graph(kernel)
        prepared = prepare(graph, self.whole, self.keeps)
        works = sorted(
            self._kernels(prepared), key=lambda work: not _only_stacks_leaves(prepared, work)
        )
        made = _Assembly(prepared, works, 0, self)
        return made.plan(graph, {}, all_in_place=True)

    def _kernels(self, prepared: Graph) -> list[Work]:
        return kernels(prepared, self.ended, self.multipliers, self.fusing, self.again)


def _only_stacks_leaves(graph: Graph, work: Work) -> bool:
    """Whether all that a kernel does is to stack what it makes of leaves: before the others it reads carries while they are what they were, and these can then change in place."""
    stacked = {
        value.id for leaf, value in graph.updates.items() if str(leaf.name).startswith(STACKED)
    }
    own = stacked.issuperset(work.results)
    return own and all("leaf" in graph.nodes[id].op.traits for id in work.operands)


class _Assembly:
    """A plan in the making: one buffer for each value, then a place for each."""

    def __init__(self, graph: Graph, works: Sequence[Work], commit: int, rules: _Rules) -> None:
        self.graph = graph
        self.rules = rules
        self.works = works
        self.commit = commit
        self.buffers: list[Buffer] = []
        self.of_node: dict[int, int] = {}
        self.constants: dict[str, Data] = {}
        self.specs: dict[str, Spec] = {}
        self.gone: set[int] = set()
        """Buffers that became others."""
        # A constant is a buffer as an operand of a kernel or an output; others are part of kernels.
        read = {id for work in works for id in work.operands}
        read.update(node.id for node in (*graph.outputs, *graph.updates.values()))
        for node in graph.nodes:
            if node.op.name in LEAVES:
                self._add(node.id, _leaf(node))
            elif node.op.name == "constant" and node.id in read:
                data = node.attrs["values"]
                self.constants[data.digest] = data
                self._add(node.id, Buffer(data.type, "constant", data.digest))
        for work in works:
            for id, output in zip(work.results, work.body.outputs, strict=True):
                self._add(id, Buffer(_tensor(output), "arena"))

    def _add(self, id: int, buffer: Buffer) -> None:
        self.of_node[id] = len(self.buffers)
        self.buffers.append(buffer)

    def name_parts(self, stored: Mapping[str, Parts]) -> None:
        """Say what leaves are made of that hold several side by side."""
        for i, buffer in enumerate(self.buffers):
            parts = stored.get(str(buffer.name))
            if parts is not None and buffer.place in ("parameter", "state"):
                self.buffers[i] = replace(buffer, parts=parts)

    # ------------------------------------------------------------- kernels

    def plan(self, graph: Graph, options: dict[str, Any], all_in_place: bool = False) -> Plan:
        """All of it; with ``all_in_place`` kernels at the end write those leaves that no other writes."""
        steps = [self._kernel(work) for work in self.works]
        updates = self._updates(steps)
        if all_in_place:
            updates = [self._copied(steps, *update) for update in updates]
        arena_bytes, naive_bytes = self._place(steps, updates)
        kept = [i for i in range(len(self.buffers)) if i not in self.gone]
        number = {old: new for new, old in enumerate(kept)}
        return Plan(
            name=graph.name,
            target=self.rules.target,
            specs=self.specs,
            buffers=tuple(self.buffers[i] for i in kept),
            kernels=tuple(
                replace(
                    step,
                    operands=tuple(number[i] for i in step.operands),
                    results=tuple(number[i] for i in step.results),
                )
                for step in steps
            ),
            outputs=tuple(number[self.of_node[node.id]] for node in self.graph.outputs),
            output_names=tuple(node.label for node in graph.outputs),
            updates=tuple((number[old], number[new]) for old, new in updates),
            constants=self.constants,
            arena_bytes=arena_bytes,
            naive_bytes=naive_bytes,
            commit=self.commit,
            bounds={} if all_in_place else index_bounds(self.graph),
            options=options,
        )

    def _kernel(self, work: Work) -> Kernel:
        nodes = [self.graph.nodes[id] for id in work.nodes]
        found = [self.graph.nodes[id] for id in work.checks]
        checks = [(node.label, node.source) for node in found]
        telling = next((node for node in reversed(nodes) if node.label), nodes[-1])
        spec = Spec(work.kind, work.body)
        if work.kind == "loop":
            step = self.rules.step(work.body)
            spec = Spec(work.kind, work.body, without_lines(step))
            checks = [
                (label or telling.label, source or telling.source)
                for kernel in step.kernels
                for label, source in kernel.checks
            ]
        self.specs.setdefault(spec.digest, spec)
        return Kernel(
            spec.digest,
            tuple(self.of_node[id] for id in work.operands),
            tuple(self.of_node[id] for id in work.results),
            work.nodes,
            telling.label,
            telling.source,
            tuple(checks),
        )

    # ------------------------------------------------------------- updates

    def _updates(self, steps: list[Kernel]) -> list[tuple[int, int]]:
        """Which buffer each updated leaf takes; where it can be, the kernel writes the leaf itself."""
        result = []
        outputs = {self.of_node[node.id] for node in self.graph.outputs}
        taken = Counter(self.of_node[value.id] for value in self.graph.updates.values())
        users = _Users(steps)
        for leaf, value in self.graph.updates.items():
            old, new = self.of_node[leaf.id], self.of_node[value.id]
            alone = taken[new] == 1 and new not in outputs and old not in outputs
            if alone and old not in taken and self._can_be_in_place(steps, users, old, new):
                users.rename(steps, new, old)
                self.gone.add(new)
                new = old
            result.append((old, new))
        return result

    def _can_be_in_place(self, steps: Sequence[Kernel], users: _Users, old: int, new: int) -> bool:
        """Only the kernel that makes the new value still reads the old one, element by element."""
        if self.buffers[new].place != "arena":
            return False
        at = users.writers[new][0]
        if at < self.commit:
            return False
        if any(reader > at for reader in users.readers.get(old, ())):
            return False
        step = steps[at]
        result = step.results.index(new)
        places = [i for i, operand in enumerate(step.operands) if operand == old]
        return all(may_share(self.specs[step.spec], place, result) for place in places)

    def _copied(self, steps: list[Kernel], old: int, new: int) -> tuple[int, int]:
        """Let a leaf that takes the value of another buffer be written by a kernel at the end."""
        if old != new:
            spec = copy_spec(self.buffers[old].type)
            self.specs.setdefault(spec.digest, spec)
            steps.append(Kernel(spec.digest, (new,), (old,)))
        return old, old

    # ------------------------------------------------------------- memory

    def _place(
        self, steps: Sequence[Kernel], updates: Sequence[tuple[int, int]]
    ) -> tuple[int, int]:
        """Give every value of the arena its bytes; returns the size of the arena, and without sharing."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for number, step in enumerate(steps):
            for buffer in step.operands:
                last[buffer] = number
            for buffer in step.results:
                if self.buffers[buffer].place == "arena":
                    first.setdefault(buffer, number)
                    last.setdefault(buffer, number)
        ends = [self.of_node[node.id] for node in self.graph.outputs]
        ends += [new for _, new in updates]
        for buffer in ends:
            last[buffer] = len(steps)
        order = list(first)
        place = {buffer: i for i, buffer in enumerate(order)}
        requests = []
        for buffer in order:
            step = steps[first[buffer]]
            shared = self._shared(step, buffer, place, last, first[buffer])
            requests.append(
                Request(self.buffers[buffer].nbytes, first[buffer], last[buffer], shared)
            )
        arena = plan_arena(requests, alignment=self.rules.alignment, segment=self.rules.segment)
        for buffer, offset in zip(order, arena.offsets, strict=True):
            self.buffers[buffer] = replace(self.buffers[buffer], offset=offset)
        return arena.nbytes, arena.naive

    def _shared(
        self,
        step: Kernel,
        buffer: int,
        place: Mapping[int, int],
        last: Mapping[int, int],
        number: int,
    ) -> tuple[int, ...]:
        """The operands whose room a result may take over."""
        spec = self.specs[step.spec]
        result = step.results.index(buffer)
        found = []
        for i, operand in enumerate(step.operands):
            dies = operand in place and last[operand] == number
            once = step.operands.count(operand) == 1
            if dies and once and may_share(spec, i, result):
                found.append(place[operand])
        return tuple(found)


class _Users:
    """Which steps read and which write each buffer, by number, ascending."""

    def __init__(self, steps: Sequence[Kernel]) -> None:
        self.readers: dict[int, list[int]] = {}
        self.writers: dict[int, list[int]] = {}
        for number, step in enumerate(steps):
            for table, buffers in ((self.readers, step.operands), (self.writers, step.results)):
                for buffer in dict.fromkeys(buffers):
                    table.setdefault(buffer, []).append(number)

    def rename(self, steps: list[Kernel], buffer: int, other: int) -> None:
        """Let every step that reads or writes a buffer use another one in its place."""
        readers, writers = self.readers.pop(buffer, []), self.writers.pop(buffer, [])
        for number in {*readers, *writers}:
            step = steps[number]
            steps[number] = replace(
                step,
                operands=tuple(other if b == buffer else b for b in step.operands),
                results=tuple(other if b == buffer else b for b in step.results),
            )
        for table, found in ((self.readers, readers), (self.writers, writers)):
            table[other] = sorted({*table.get(other, ()), *found})


def _leaf(node: Node) -> Buffer:
    place = node.op.name
    if place == "state":
        return Buffer(_tensor(node), "state", node.name, init=node.attrs["init"])
    if place == "parameter":
        return Buffer(_tensor(node), "parameter", node.name)
    return Buffer(_tensor(node), "input", node.name)


def _tensor(node: Node) -> TensorType:
    return TensorType(node.shape, node.dtype)
