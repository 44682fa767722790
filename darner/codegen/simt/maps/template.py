"""Kernels written element by element: a thread for each element of a result, or for each word of small ones.

It is what writes every kernel that no other template has better code for: a reduction or a product inside is a loop of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from ....backends.wgpu.machine import Machine
from ....backends.wgpu.writer import Text
from ....graph.graph import Graph
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...elements.collapse import collapsed
from ...elements.elements import can_emit
from ...ir.index import Number
from ...ir.math import register_type
from ..elements import Memory, ShaderElements, is_packed
from ..shader import Shader, Stage, Written
from ..template import Template

KINDS = ("map", "rows", "contract", "index")
MANY = 1 << 20
"""Elements from which on a thread makes several, so that their loads are on the way at the same time."""
SEVERAL = 4
VECTOR = 4
"""Elements that a thread reads and writes as one, where nothing is in the way."""
FEW = 4096
"""Elements up to which each has a thread of its own."""

Source = Callable[[Shader], ShaderElements]


def _fits(spec: Spec, machine: Machine) -> bool:
    return spec.kind in KINDS and can_emit(spec.body)


def _write(spec: Spec, machine: Machine) -> Written:
    return Written(tuple(stages_of(collapsed(spec), machine)))


def stages_of(spec: Spec, machine: Machine, elements: Source = Shader.elements) -> list[Stage]:
    """A dispatch for the results of each shape; ``elements`` says what the nodes' elements are."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, output in enumerate(spec.body.outputs):
        groups.setdefault(tuple(sizes(output)), []).append(number)
    return [
        _stage(spec, machine, shape, numbers, elements)
        for shape, numbers in groups.items()
        if prod(shape)
    ]


def _stage(
    spec: Spec,
    machine: Machine,
    shape: tuple[int, ...],
    numbers: Sequence[int],
    elements: Source,
) -> Stage:
    """Results of one shape."""
    shader = Shader(spec, machine, whole=True)
    nodes = [spec.body.outputs[i] for i in numbers]
    together = max(max(1, 4 // node.dtype.itemsize) for node in nodes)
    count = prod(shape)
    flat: list[Node] = []
    if count >= FEW and count % VECTOR == 0 and all(node.dtype.itemsize <= 4 for node in nodes):
        together = VECTOR
        flat = [leaf for leaf in spec.inputs if _is_flat(spec.body, leaf, shape)]
        for leaf in flat:
            shader.as_vectors(shader.operands[int(str(leaf.name))], VECTOR)
        for i in numbers:
            if spec.body.outputs[i].dtype.itemsize == 4:
                shader.as_vectors(shader.results[i], VECTOR)
    unit = Unit(shader, shape, [(spec.body.outputs[i], shader.results[i]) for i in numbers])
    units = -(-count // together)
    several = SEVERAL if units >= MANY and together == 1 else 1
    writer = shader.writer
    if several == 1:
        with writer.block(f"if (thread < {units}u)"):
            unit.write(elements(shader), "thread", together, flat)
    else:
        writer.line(f"let first = group * {shader.threads * several}u + local;")
        head = f"for (var k = 0u; k < {several}u; k++)"
        with writer.block(head):
            writer.line(f"let unit = first + k * {shader.threads}u;")
            with writer.block(f"if (unit < {units}u)"):
                unit.write(elements(shader), "unit", together, flat)
    return shader.finish(-(-units // (shader.threads * several)))


def _is_flat(body: Graph, leaf: Node, shape: tuple[int, ...]) -> bool:
    """Whether an operand of four-byte elements is read only at the place of the element that is made of it."""
    if tuple(sizes(leaf)) != shape or leaf.dtype.itemsize != 4:
        return False
    reached = {leaf.id}
    for node in body.nodes:
        if reached.intersection(node.inputs):
            if "elementwise" not in node.op.traits or tuple(sizes(node)) != shape:
                return False
            reached.add(node.id)
    return True


class Unit:
    """The elements that a thread makes at once: one, as many as the smallest of them share a word, or a vector."""

    def __init__(
        self, shader: Shader, shape: tuple[int, ...], outputs: Sequence[tuple[Node, Memory]]
    ) -> None:
        self.shader = shader
        self.shape = shape
        self.count = prod(shape)
        self.outputs = outputs

    def write(
        self, elements: ShaderElements, unit: str, together: int, flat: Sequence[Node]
    ) -> None:
        """The code of one unit, whose number is the text ``unit``; ``flat`` operands are read as vectors."""
        vectors = {}
        for leaf in flat:
            name = self.shader.writer.name("q")
            memory = self.shader.operands[int(str(leaf.name))]
            self.shader.writer.line(f"let {name} = {memory.name}[{unit}];")
            vectors[leaf] = name
        # All are computed before any is written: a result may lie where an operand does.
        values, offsets = [], []
        for k, (offset, index) in enumerate(self._indices(elements, unit, together)):
            for leaf, name in vectors.items():
                elements.give(leaf, Text(register_type(leaf.dtype), f"{name}[{k}]"))
            values.append([elements.at(node, index) for node, _ in self.outputs])
            offsets.append(offset)
        for place, (node, memory) in enumerate(self.outputs):
            made = [row[place] for row in values]
            if is_packed(node.dtype):
                self._store_words(elements, made, node, memory, unit)
            elif memory.vector > 1:
                texts = ", ".join(self.shader.writer.text(value) for value in made)
                self.shader.writer.line(f"{memory.name}[{unit}] = {memory.item}({texts});")
            else:
                for offset, value in zip(offsets, made, strict=True):
                    elements.registers.store(value, memory, offset, node.dtype)

    def _indices(
        self, elements: ShaderElements, unit: str, together: int
    ) -> Iterator[tuple[Text, list[Number]]]:
        """The place and index of each element."""
        from llvmlite import ir  # type: ignore[import-untyped]

        writer, places, shape = self.shader.writer, elements.places, self.shape
        # Where no row ends within them, they differ in the last index alone.
        apart = together > 1 and bool(shape) and shape[-1] % together == 0
        first: list[Number] = []
        for k in range(together):
            text = unit if together == 1 else f"{unit} * {together}u + {k}u"
            if self.count % together:
                text = f"min({text}, {self.count - 1}u)"
            offset = writer.let(ir.IntType(32), text)
            if k == 0 or not apart:
                first = places.split(offset, shape) if shape else []
                yield offset, first
            else:
                yield offset, [*first[:-1], places.add(first[-1], k)]

    def _store_words(
        self, elements: ShaderElements, made: Sequence[Any], node: Node, memory: Memory, unit: str
    ) -> None:
        """Elements that share words, a word at a time."""
        registers, bits, together = elements.registers, 8 * node.dtype.itemsize, len(made)
        share = 32 // bits
        last = (self.count - 1) // share
        for word in range(together // share):
            parts = [
                f"({registers.packed(value, node.dtype)} << {bits * k}u)"
                for k, value in enumerate(made[word * share : (word + 1) * share])
            ]
            at = f"{unit} * {together // share}u + {word}u"
            line = f"{memory.name}[{at}] = {' | '.join(parts)};"
            if last < word + (-(-self.count // together) - 1) * (together // share):
                line = f"if ({at} <= {last}u) {{ {line} }}"
            self.shader.writer.line(line)


MAPS = Template("elements", _fits, _write)
