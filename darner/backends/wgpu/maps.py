"""Kernels written element by element: a thread for each element of a result, or for each word of small ones.

It is what writes every kernel that no other template has better code for: a reduction or a product inside is a loop of the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ...graph.node import Node
from ...lower.plan import Spec
from ..cpu.collapse import collapsed
from ..cpu.elements import can_emit
from ..cpu.template import sizes
from .elements import Memory, ShaderElements, is_packed
from .machine import Machine
from .shader import Shader, Stage, Written
from .template import Template

KINDS = ("map", "rows", "contract", "index")
MANY = 1 << 20
"""Elements from which on a thread makes several, so that their loads are on the way at the same time."""
SEVERAL = 4

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
    outputs = [(spec.body.outputs[i], shader.results[i]) for i in numbers]
    together = max(max(1, 4 // node.dtype.itemsize) for node, _ in outputs)
    count = prod(shape)
    units = -(-count // together)
    several = SEVERAL if units >= MANY else 1
    writer = shader.writer
    if several == 1:
        with writer.block(f"if (thread < {units}u)"):
            _unit(shader, elements(shader), shape, outputs, "thread", together)
    else:
        writer.line(f"let first = group * {shader.threads * several}u + local;")
        head = f"for (var k = 0u; k < {several}u; k++)"
        with writer.block(head):
            writer.line(f"let unit = first + k * {shader.threads}u;")
            with writer.block(f"if (unit < {units}u)"):
                _unit(shader, elements(shader), shape, outputs, "unit", together)
    return shader.finish(-(-units // (shader.threads * several)))


def _unit(
    shader: Shader,
    elements: ShaderElements,
    shape: tuple[int, ...],
    outputs: Sequence[tuple[Node, Memory]],
    unit: str,
    together: int,
) -> None:
    """The elements that a thread makes at once: one, or as many as the smallest of them share a word."""
    from llvmlite import ir  # type: ignore[import-untyped]

    writer = shader.writer
    places, registers = elements.places, elements.registers
    count = prod(shape)
    offsets = []
    for k in range(together):
        text = unit if together == 1 else f"{unit} * {together}u + {k}u"
        if count % together:
            text = f"min({text}, {count - 1}u)"
        offsets.append(writer.let(ir.IntType(32), text))
    # All are computed before any is written: a result may lie where an operand does.
    values = []
    for offset in offsets:
        index = places.split(offset, shape) if shape else []
        values.append([elements.at(node, index) for node, _ in outputs])
    for place, (node, memory) in enumerate(outputs):
        made = [row[place] for row in values]
        if not is_packed(node.dtype):
            for offset, value in zip(offsets, made, strict=True):
                registers.store(value, memory, offset, node.dtype)
            continue
        bits = 8 * node.dtype.itemsize
        share = 32 // bits
        for word in range(together // share):
            parts = [
                f"({registers.packed(value, node.dtype)} << {bits * k}u)"
                for k, value in enumerate(made[word * share : (word + 1) * share])
            ]
            at = f"{unit} * {together // share}u + {word}u"
            line = f"{memory.name}[{at}] = {' | '.join(parts)};"
            if (count - 1) // share < word + (units_of(count, together) - 1) * (together // share):
                line = f"if ({at} <= {(count - 1) // share}u) {{ {line} }}"
            writer.line(line)


def units_of(count: int, together: int) -> int:
    """Threads that make so many elements."""
    return -(-count // together)


MAPS = Template("elements", _fits, _write)
