"""Kernels that replace a block: ``dynamic_update_slice``. Where its result lies in place of ``x``, only the block is touched.

The first dispatch gives the result the elements of ``x``. It says that it copies, so that the program leaves it out where there is nothing to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ....backends.wgpu.text import Text
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ..builder import Memory, is_packed
from ..dispatch import Dispatch, Stage, Written
from ..elements import ThreadElements
from ..machine import Machine
from ..sort.template import word
from ..template import Template

SEVERAL = 4
"""Words that a thread copies or clears."""

Value = Callable[[ThreadElements, Text], Any]
"""``value(elements, offset)``: the element at a place in row-major order."""


def share_of(node: Node) -> int:
    """Elements of a word."""
    return max(1, 4 // node.dtype.itemsize)


def write_word(
    shader: Dispatch, elements: ThreadElements, memory: Memory, node: Node, at: str, value: Value
) -> None:
    """Write one word of a result whose words are whole, or one element where it takes a word or more.

    ``value`` is asked for the elements from ``at * share_of(node)`` on; beyond the last it is asked for the last again.
    """
    writer, share, count = shader.builder, share_of(node), prod(sizes(node))
    if share == 1:
        elements.registers.store(value(elements, word(at)), memory, word(at), node.dtype)
        return
    bits, parts = 32 // share, []
    for k in range(share):
        text = f"{at} * {share}u + {k}u"
        offset = writer.let_text(
            word("").type, f"min({text}, {count - 1}u)" if count % share else text
        )
        with elements.scope():
            found = elements.registers.packed(value(elements, offset), node.dtype)
        parts.append(f"({found} << {bits * k}u)")
    writer.line(f"{memory.name}[{at}] = {' | '.join(parts)};")


def filled(spec: Spec, machine: Machine, number: int, value: Value) -> Stage:
    """A dispatch that writes all elements of a result."""
    node = spec.body.outputs[number]
    shader = Dispatch(spec, machine, whole=True)
    words = -(-prod(sizes(node)) // share_of(node))
    with shader.builder.block(f"if (thread < {words}u)"):
        elements = shader.elements()
        write_word(shader, elements, shader.results[number], node, "thread", value)
    return shader.finish(-(-words // shader.threads))


def prepared(spec: Spec, machine: Machine, x: Node | None) -> Stage:
    """A dispatch that gives the only result the elements of ``x``, or zeros."""
    (node,) = spec.body.outputs
    if x is not None and x.name is None:
        shape = sizes(x)
        return filled(spec, machine, 0, lambda e, at: e.at(x, e.places.split(at, shape)))
    shader = Dispatch(spec, machine, whole=True)
    result = shader.results[0]
    words = -(-prod(sizes(node)) // share_of(node))
    operand = None if x is None else shader.operands[int(str(x.name))]
    if node.dtype.itemsize == 4 and words % 4 == 0:
        result, words = shader.as_vectors(result, 4), words // 4
        operand = operand and shader.as_vectors(operand, 4)
    writer = shader.builder
    writer.line(f"let first = group * {shader.threads * SEVERAL}u + local;")
    for k in range(SEVERAL):
        at = f"first + {k * shader.threads}u"
        value = f"{result.item}()" if operand is None else f"{operand.name}[{at}]"
        writer.line(f"if ({at} < {words}u) {{ {result.name}[{at}] = {value}; }}")
    copies = None if x is None else (int(str(x.name)), 0)
    return shader.finish(-(-words // (shader.threads * SEVERAL)), copies=copies)


# --------------------------------------------------------------------------- blocks


def _fits(spec: Spec, machine: Machine) -> bool:
    outputs = spec.body.outputs
    return len(outputs) == 1 and outputs[0].op.name == "dynamic_update_slice"


def _write(spec: Spec, machine: Machine) -> Written:
    (node,) = spec.body.outputs
    x, update, _ = node.operands
    if not prod(sizes(x)):
        return Written(())
    stages = [prepared(spec, machine, x)]
    if prod(sizes(update)):
        stages.append(_replaced(spec, machine, node))
    return Written(tuple(stages))


def _replaced(spec: Spec, machine: Machine, node: Node) -> Stage:
    """The block, a thread for each element, or for each word where the block is made of whole ones."""
    x, update, starts = node.operands
    whole, part = sizes(x), sizes(update)
    share = share_of(node)
    by_words = is_packed(node.dtype) and bool(part) and _whole_words(whole, part, share)
    shader = Dispatch(spec, machine, whole=by_words)
    result = shader.results[0]
    units = prod(part) // share if by_words else prod(part)
    with shader.builder.block(f"if (thread < {units}u)"):
        elements = shader.elements()
        places = elements.places
        first = places.mul(word("thread"), share) if by_words else word("thread")
        index = places.split(first, part)
        moved = [
            places.add(i, places.clamp(elements.integer(starts, [axis]), 0, n - m))
            for axis, (i, n, m) in enumerate(zip(index, whole, part, strict=True))
        ]
        offset = places.offset(moved, whole)
        if not by_words:
            elements.registers.store(elements.at(update, index), result, offset, node.dtype)
        else:
            _store_word(shader, elements, update, index, result, offset)
    return shader.finish(-(-units // shader.threads))


def _whole_words(whole: Sequence[int], part: Sequence[int], share: int) -> bool:
    """Whether every row of the block begins and ends with a word: it has all of the last axis."""
    return part[-1] == whole[-1] and whole[-1] % share == 0


def _store_word(
    shader: Dispatch,
    elements: ThreadElements,
    update: Node,
    index: Sequence[Any],
    result: Memory,
    offset: Any,
) -> None:
    share = share_of(update)
    bits, parts = 32 // share, []
    for k in range(share):
        at = [*index[:-1], elements.places.add(index[-1], k)]
        found = elements.registers.packed(elements.at(update, at), update.dtype)
        parts.append(f"({found} << {bits * k}u)")
    place = elements.places.text(offset)
    shader.builder.line(f"{result.name}[{place} / {share}u] = {' | '.join(parts)};")


UPDATES = Template("updates", _fits, _write)
