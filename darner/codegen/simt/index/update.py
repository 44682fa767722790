"""Kernels that replace a block: ``dynamic_update_slice``. Where its result lies in place of ``x``, only the block is touched.

The first dispatch gives the result the elements of ``x``. It says that it copies, so that the program leaves it out where there is nothing to copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from ....graph import dtypes
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ...ir.index import Number
from ..builder import Memory, Operand, Value, is_packed
from ..dispatch import Dispatch, Stage, Written, operand_number
from ..elements import ThreadElements
from ..machine import Machine
from ..template import Template

SEVERAL = 4
"""Words that a thread copies or clears."""

ElementAt = Callable[[ThreadElements, Value], Operand]
"""``value(elements, offset)``: the element at a place in row-major order."""


def share_of(node: Node) -> int:
    """Elements of a word."""
    return max(1, 4 // node.dtype.itemsize)


def write_word(
    elements: ThreadElements, memory: Memory, node: Node, at: Value, value: ElementAt
) -> None:
    """Write one word of a result whose words are whole, or one element where it takes a word or more.

    ``value`` is asked for the elements from ``at * share_of(node)`` on; beyond the last it is asked for the last again.
    """
    b, share, count = elements.builder, share_of(node), prod(sizes(node))
    if share == 1:
        elements.registers.store(value(elements, at), memory, at, node.dtype)
        return
    found = []
    for k in range(share):
        offset = at * share + k
        offset = b.let(b.min(offset, count - 1) if count % share else offset)
        with elements.scope():
            found.append(value(elements, offset))
    memory[at] = elements.registers.word(found, node.dtype)


def filled(spec: Spec, machine: Machine, number: int, value: ElementAt) -> Stage:
    """A dispatch that writes all elements of a result."""
    node = spec.body.outputs[number]
    dispatch = Dispatch(spec, machine, whole=True)
    b, words = dispatch.builder, ceil_div(prod(sizes(node)), share_of(node))
    with b.if_(b.thread < words):
        write_word(dispatch.elements(), dispatch.results[number], node, b.thread, value)
    return dispatch.finish(ceil_div(words, dispatch.threads))


def prepared(spec: Spec, machine: Machine, x: Node | None) -> Stage:
    """A dispatch that gives the only result the elements of ``x``, or zeros."""
    (node,) = spec.body.outputs
    if x is not None and x.name is None:
        shape = sizes(x)
        return filled(spec, machine, 0, lambda e, at: e.at(x, e.places.split(at, shape)))
    dispatch = Dispatch(spec, machine, whole=True)
    result = dispatch.results[0]
    words = ceil_div(prod(sizes(node)), share_of(node))
    operand = None if x is None else dispatch.operand(x)
    if node.dtype.itemsize == 4 and words % 4 == 0:
        result, words = dispatch.as_vectors(result, 4), words // 4
        operand = operand and dispatch.as_vectors(operand, 4)
    b = dispatch.builder
    zero = b.constant(0, dtypes.u32 if is_packed(node.dtype) else node.dtype, result.vector)
    first = b.let(b.group * (dispatch.threads * SEVERAL) + b.local, "first")
    for k in range(SEVERAL):
        at = first + k * dispatch.threads
        with b.if_(at < words):
            result[at] = zero if operand is None else operand[at]
    copies = None if x is None else (operand_number(x), 0)
    return dispatch.finish(ceil_div(words, dispatch.threads * SEVERAL), copies=copies)


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
    dispatch = Dispatch(spec, machine, whole=by_words)
    b, result = dispatch.builder, dispatch.results[0]
    units = prod(part) // share if by_words else prod(part)
    with b.if_(b.thread < units):
        elements = dispatch.elements()
        places = elements.places
        first = places.mul(b.thread, share) if by_words else b.thread
        index = places.split(first, part)
        moved = [
            places.add(i, places.clamp(elements.integer(starts, [axis]), 0, n - m))
            for axis, (i, n, m) in enumerate(zip(index, whole, part, strict=True))
        ]
        offset = places.offset(moved, whole)
        if not by_words:
            elements.registers.store(elements.at(update, index), result, offset, node.dtype)
        else:
            word = elements.registers.word(_neighbours(elements, update, index), node.dtype)
            result[places.value(offset) // share] = word
    return dispatch.finish(ceil_div(units, dispatch.threads))


def _whole_words(whole: Sequence[int], part: Sequence[int], share: int) -> bool:
    """Whether every row of the block begins and ends with a word: it has all of the last axis."""
    return part[-1] == whole[-1] and whole[-1] % share == 0


def _neighbours(elements: ThreadElements, update: Node, index: Sequence[Number]) -> list[Operand]:
    """The elements of the block that share a word."""
    last = [elements.places.add(index[-1], k) for k in range(share_of(update))]
    return [elements.at(update, [*index[:-1], place]) for place in last]


UPDATES = Template("updates", _fits, _write)
