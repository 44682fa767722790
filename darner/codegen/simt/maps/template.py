"""Kernels written element by element: a thread for each element of a result, or for each word of small ones.

It is what writes every kernel that no other template has better code for: a reduction or a product inside is a loop of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ....graph.graph import Graph
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...elements.collapse import collapsed
from ...elements.elements import can_emit
from ...ir.index import Number
from ..builder import Memory, Operand, Value, is_packed
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import Machine
from ..template import Template
from .parts import parts_of
from .vectors import Gathered, Seen, seen_as_vectors

KINDS = ("map", "rows", "contract", "index")
MANY = 1 << 20
"""Elements from which on a thread makes several, so that their loads are on the way at the same time."""
SEVERAL = 4
VECTOR = 4
"""Elements that a thread reads and writes as one, where nothing is in the way."""
FEW = 4096
"""Elements up to which each has a thread of its own."""

Source = Callable[[Dispatch], ThreadElements]


def _fits(spec: Spec, machine: Machine) -> bool:
    return spec.kind in KINDS and can_emit(spec.body)


def _write(spec: Spec, machine: Machine) -> Written:
    return Written(tuple(stages_of(collapsed(spec), machine)))


def stages_of(spec: Spec, machine: Machine, elements: Source | None = None) -> list[Stage]:
    """A dispatch for all results, each shape by workgroups of its own; one for each shape where a GPU cannot bind all at once. ``elements`` says what the nodes' elements are."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, output in enumerate(spec.body.outputs):
        if output.size:
            groups.setdefault(tuple(sizes(output)), []).append(number)
    if len(spec.inputs) + len(spec.body.outputs) < machine.most_buffers:
        return [_stage(spec, machine, groups, elements)] if groups else []
    return [_stage(spec, machine, {shape: groups[shape]}, elements) for shape in groups]


def _stage(
    spec: Spec,
    machine: Machine,
    groups: Mapping[tuple[int, ...], Sequence[int]],
    elements: Source | None,
) -> Stage:
    """Results by their shapes, named by their numbers."""
    dispatch = Dispatch(spec, machine, whole=True)
    regions = [
        (elements is None and _by_parts(dispatch, numbers)) or _of_shape(dispatch, shape, numbers)
        for shape, numbers in groups.items()
    ]
    b, first = dispatch.builder, 0
    for region in regions:
        last = first + region.groups(dispatch.threads)
        alone = len(regions) == 1
        with b.if_(None if alone else (b.group >= first) & (b.group < last)):
            group = b.group if alone else b.let(b.group - first, "group")
            made = dispatch.elements(region.body) if elements is None else elements(dispatch)
            region.write(made, group)
        first = last
    return dispatch.finish(first)


def _by_parts(dispatch: Dispatch, numbers: Sequence[int]) -> Region | None:
    """Results of one shape by their parts, where they have such."""
    body = dispatch.body
    parts = parts_of(body, [body.outputs[i] for i in numbers], VECTOR)
    if parts is None:
        return None
    for i in numbers:
        dispatch.as_vectors(dispatch.results[i], VECTOR)
    seen = _as_vectors(dispatch, parts.body, parts.body.outputs)
    outputs = [
        (node, dispatch.results[numbers[k // parts.count]])
        for k, node in enumerate(parts.body.outputs)
    ]
    unit = Unit(dispatch, parts.shape, outputs, lambda k, at: parts.item(k, at, VECTOR))
    return Region(unit, parts.body, VECTOR, seen)


def _of_shape(dispatch: Dispatch, shape: tuple[int, ...], numbers: Sequence[int]) -> Region:
    """Results of one shape."""
    body = dispatch.body
    nodes = [body.outputs[i] for i in numbers]
    together = max(max(1, 4 // node.dtype.itemsize) for node in nodes)
    count = prod(shape)
    seen: list[Seen | Gathered] = []
    if count >= FEW and count % VECTOR == 0 and all(node.dtype.itemsize <= 4 for node in nodes):
        together = VECTOR
        if shape[-1] % VECTOR == 0:
            seen = _as_vectors(dispatch, body, nodes)
        else:
            flat = [leaf for leaf in dispatch.spec.inputs if _is_flat(body, leaf, shape)]
            for leaf in flat:
                dispatch.as_vectors(dispatch.operand(leaf), VECTOR)
            seen = [Seen(leaf, leaf, 0, (), VECTOR) for leaf in flat]
        for i in numbers:
            dispatch.as_vectors(dispatch.results[i], VECTOR)
    unit = Unit(dispatch, shape, [(body.outputs[i], dispatch.results[i]) for i in numbers])
    return Region(unit, body, together, seen)


def _as_vectors(dispatch: Dispatch, body: Graph, outputs: Sequence[Node]) -> list[Seen | Gathered]:
    """The values of a body that are read as vectors; their operands are declared so."""
    found = seen_as_vectors(body, outputs, VECTOR)
    for leaf in {seen.leaf.id: seen.leaf for seen in found}.values():
        dispatch.as_vectors(dispatch.operand(leaf), VECTOR)
    return found


def _is_flat(body: Graph, leaf: Node, shape: tuple[int, ...]) -> bool:
    """Whether an operand of elements of no more than four bytes is read only at the place of the element that is made of it."""
    if tuple(sizes(leaf)) != shape or leaf.dtype.itemsize > 4:
        return False
    reached = {leaf.id}
    for node in body.nodes:
        if reached.intersection(node.inputs):
            if "elementwise" not in node.op.traits or tuple(sizes(node)) != shape:
                return False
            reached.add(node.id)
    return True


@dataclass(frozen=True)
class Region:
    """Results of one shape, which workgroups side by side make.

    Attributes:
        unit: what a thread makes at once.
        body: of what.
        together: elements of a unit.
        seen: what is read as vectors.
    """

    unit: Unit
    body: Graph
    together: int
    seen: Sequence[Seen | Gathered]

    @property
    def units(self) -> int:
        """How many units there are."""
        return ceil_div(self.unit.count, self.together)

    @property
    def several(self) -> int:
        """Units of a thread."""
        return SEVERAL if self.units >= MANY and self.together == 1 else 1

    def groups(self, threads: int) -> int:
        """Workgroups of so many threads."""
        return ceil_div(self.units, threads * self.several)

    def write(self, elements: ThreadElements, group: Value) -> None:
        """The code of a thread, in the workgroup of a number among those of this region."""
        b, threads = self.unit.builder, self.unit.dispatch.threads
        if self.several == 1:
            number = b.thread if group is b.group else b.let(group * threads + b.local, "number")
            with b.if_(number < self.units):
                self.unit.write(elements, number, self.together, self.seen)
            return
        first = b.let(group * (threads * self.several) + b.local, "first")
        with b.for_(0, self.several, name="k") as k:
            number = b.let(first + k * threads, "unit")
            with b.if_(number < self.units):
                self.unit.write(elements, number, self.together, self.seen)


class Unit:
    """The elements that a thread makes at once: one, as many as the smallest of them share a word, or a vector.

    Args:
        dispatch: what is written.
        shape: of the results.
        outputs: what is computed, and where it is written.
        item: where a unit of an output lies, by the output's number and its own; the same number where there is none.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        shape: tuple[int, ...],
        outputs: Sequence[tuple[Node, Memory]],
        item: Callable[[int, Value], Value] | None = None,
    ) -> None:
        self.dispatch = dispatch
        self.builder = dispatch.builder
        self.shape = shape
        self.count = prod(shape)
        self.outputs = outputs
        self.item = item

    def write(
        self, elements: ThreadElements, unit: Value, together: int, seen: Sequence[Seen | Gathered]
    ) -> None:
        """The code of one unit, by its number; what is ``seen`` so is read as vectors."""
        vectors: list[tuple[Node, Value]] = []
        # All are computed before any is written: a result may lie where an operand does.
        values, offsets = [], []
        for k, (offset, index) in enumerate(self._indices(elements, unit, together)):
            if k == 0:
                vectors = [(one.node, self._vector(elements, one, unit, index)) for one in seen]
            for node, vector in vectors:
                elements.give(node, self._part(elements, node, vector, k))
            values.append([elements.at(node, index) for node, _ in self.outputs])
            offsets.append(offset)
        for place, (node, memory) in enumerate(self.outputs):
            made = [row[place] for row in values]
            at = unit if self.item is None else self.item(place, unit)
            if is_packed(node.dtype):
                self._store_words(elements, made, node, memory, at)
            elif memory.vector > 1:
                memory[at] = self.builder.vector(made)
            else:
                for offset, value in zip(offsets, made, strict=True):
                    elements.registers.store(value, memory, offset, node.dtype)

    def _vector(
        self, elements: ThreadElements, seen: Seen | Gathered, unit: Value, index: Sequence[Number]
    ) -> Value:
        """The vector of an operand that a unit is made of: the unit's own number where both are of one shape."""
        same = seen.node.id == seen.leaf.id and tuple(sizes(seen.leaf)) == self.shape
        item = unit if same else elements.places.value(seen.item(elements, index))
        return self.builder.let(self.dispatch.operand(seen.leaf)[item], "vector")

    @staticmethod
    def _part(elements: ThreadElements, leaf: Node, vector: Value, number: int) -> Value:
        """An element of a vector that was read: of words, where elements share them."""
        if not is_packed(leaf.dtype):
            return vector[number]
        word = vector.parts[number * leaf.dtype.itemsize // 4]
        return elements.registers.unpacked(word, elements.places.value(number), leaf.dtype)

    def _indices(
        self, elements: ThreadElements, unit: Value, together: int
    ) -> Iterator[tuple[Value, list[Number]]]:
        """The place and index of each element."""
        b, places, shape = self.builder, elements.places, self.shape
        # Where no row ends within them, they differ in the last index alone.
        apart = together > 1 and bool(shape) and shape[-1] % together == 0
        first: list[Number] = []
        for k in range(together):
            offset = unit * together + k
            if self.count % together:
                offset = b.min(offset, self.count - 1)
            offset = b.let(offset)
            if k == 0 or not apart:
                first = places.split(offset, shape) if shape else []
                yield offset, first
            else:
                yield offset, [*first[:-1], places.add(first[-1], k)]

    def _store_words(
        self,
        elements: ThreadElements,
        made: Sequence[Operand],
        node: Node,
        memory: Memory,
        unit: Value,
    ) -> None:
        """Elements that share words, a word at a time."""
        share = 4 // node.dtype.itemsize
        words = len(made) // share
        if memory.vector > 1:
            each = zip(*[iter(made)] * share, strict=True)
            memory[unit] = self.builder.vector(
                [elements.registers.word(values, node.dtype) for values in each]
            )
            return
        last = (self.count - 1) // share
        for word in range(words):
            at = unit * words + word
            value = elements.registers.word(made[word * share : (word + 1) * share], node.dtype)
            certain = last >= word + (ceil_div(self.count, len(made)) - 1) * words
            with self.builder.if_(None if certain else at <= last):
                memory[at] = value


MAPS = Template("elements", _fits, _write)
