"""What every block computes for itself: values that other blocks have written, element-wise kernels, reductions of a few rows, and blocks of a state that are replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from math import prod

from ....codegen.ir.index import Number
from ....codegen.simt.builder import Memory, Operand, Value
from ....codegen.simt.machine import power_below
from ....graph import dtypes
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.roles import is_sum
from ....lower.specs import sizes
from .code import WARP, Code, StageElements
from .forms import Place, Work

UNROLLED = 4
"""Elements of a thread up to which there is no loop over them."""
MOST_LOOKS = 4
"""Pairs of words that a thread looks for at a time."""


def each(code: Code, count: int, body: Callable[[Value], None]) -> None:
    """Code for some elements, shared out to a block's threads."""
    b, rounds = code.builder, ceil_div(count, code.threads)
    if count < code.threads:
        at = code.next_threads(count)
        with b.if_(at < count):
            body(at)
        return
    if rounds > UNROLLED:
        with b.for_(b.local, count, code.threads) as at:
            body(at)
        return
    for number in range(rounds):
        at = b.let(b.local + number * code.threads, "at")
        with _below(code, at, count, number):
            body(at)


def _below(code: Code, at: Value, count: int, number: int) -> AbstractContextManager[None]:
    whole = (number + 1) * code.threads <= count
    return code.builder.scope() if whole else code.builder.if_(at < count)


def gather_words(code: Code, source: Place, target: Place) -> None:
    """Bring words that blocks have written to shared memory, as soon as they are there."""
    b, memory = code.builder, code.memory(target)
    if source.count % 2:

        def body(at: Value) -> None:
            word = code.exchange.word(code.words(source), at)
            b.store(code.of_word(word, source.dtype), memory, at)

        each(code, source.count, body)
        return
    words, pairs = code.words(source, 4), source.count // 2
    rounds = ceil_div(pairs, code.threads)
    # Words of a thread are on their way together; whoever has none left asks for the last again.
    for first in range(0, rounds, MOST_LOOKS):
        some = range(first, min(first + MOST_LOOKS, rounds))
        places = [b.let(b.local + number * code.threads, "pair") for number in some]
        with b.if_(places[0] < pairs):
            near = [b.let(b.min(place, pairs - 1)) for place in places]
            for place, pair in zip(near, code.exchange.pairs(words, near), strict=True):
                for number, word in enumerate(pair):
                    value = code.of_word(word, source.dtype)
                    b.store(value, memory, b.let(place * 2 + number))


def write_light(code: Code, work: Work) -> None:
    """Write a kernel that every block computes for itself; who reads it waits for the other threads."""
    spec, elements = code.spec(work), code.elements(work)
    for node in spec.body.nodes:
        if is_sum(node):
            _write_reduction(code, elements, node)
    if spec.kind == "index":
        _write_update(code, work, elements)
    else:
        for node, places in zip(spec.body.outputs, work.results, strict=True):
            if places:
                _write_elements(code, elements, node, places)


def _write_elements(
    code: Code, elements: StageElements, node: Node, places: Sequence[Place]
) -> None:
    shape = sizes(node)

    def body(at: Value) -> None:
        value = elements.at(node, elements.places.split(at, shape))
        code.leave(elements, value, places, at)

    each(code, prod(shape), body)


def _write_update(code: Code, work: Work, elements: StageElements) -> None:
    """The block that replaces a part of the first operand, where that lies."""
    (node,) = code.spec(work).body.outputs
    x, update, starts = node.operands
    whole, part, places = sizes(x), sizes(update), elements.places

    def body(at: Value) -> None:
        index = places.split(at, part)
        moved = [
            places.add(i, places.clamp(elements.integer(starts, [axis]), 0, n - m))
            for axis, (i, n, m) in enumerate(zip(index, whole, part, strict=True))
        ]
        offset = places.offset(moved, whole)
        code.leave(elements, elements.at(update, index), work.results[0], offset)

    each(code, prod(part), body)


# --------------------------------------------------------------------------- reductions


def _write_reduction(code: Code, elements: StageElements, node: Node) -> None:
    """A reduction of f32: threads share the terms of each result, and add up in the same order whatever the block."""
    b, (x,) = code.builder, node.operands
    axes, shape = tuple(node.attrs["axes"]), sizes(x)
    kept = [axis for axis in range(x.rank) if axis not in axes]
    count, inner = prod(shape[axis] for axis in kept), [shape[axis] for axis in axes]
    threads = power_below(max(1, code.threads // count)) if count > 1 else code.threads
    found = code.shared(dtypes.f32, count, "reduced")
    partial = code.shared(dtypes.f32, code.threads // WARP, "partial")
    name, terms = node.op.name, prod(inner)

    def element(result: Value, term: Value) -> Operand:
        index: list[Number] = [0] * x.rank
        outer = elements.places.split(result, [shape[axis] for axis in kept])
        within = elements.places.split(term, inner)
        for axis, number in zip((*kept, *axes), (*outer, *within), strict=True):
            index[axis] = number
        return elements.at(x, index)

    def reduce(result: Value, lane: Value) -> Value:
        start = elements.registers.neutral(name, x.dtype, node.dtype)
        total = b.variable(start, "total", dtypes.f32)
        rounds = ceil_div(terms, threads)
        if rounds > UNROLLED:
            with b.for_(lane, terms, threads) as term:
                total.set(_combined(elements, node, total, element(result, term)))
        else:
            for number in range(rounds):
                term = b.let(lane + number * threads)
                with b.if_(term < terms if (number + 1) * threads > terms else None):
                    total.set(_combined(elements, node, total, element(result, term)))
        for mask in _halves(min(threads, WARP)):
            other = b.shuffle_xor(total, mask)
            total.set(elements.registers.merge(name, b.let(total), other, node.dtype))
        return b.let(total)

    if count == 1:
        whole = _one_row(code, reduce, partial, elements, node)
        elements.reduced[node.id] = lambda at: elements.registers.reduced(name, whole, node.dtype)
        return
    if threads < WARP:
        _many_rows(code, count, threads, reduce, found)
    else:
        _few_rows(code, count, threads, reduce, found, partial, elements, node)
    code.barrier()

    def read(at: Number) -> Operand:
        total = b.load(found, at)
        return elements.registers.reduced(name, total, node.dtype)

    elements.reduced[node.id] = read


def _combined(elements: StageElements, node: Node, total: Value, value: Operand) -> Operand:
    (x,) = node.operands
    before = elements.builder.let(total)
    return elements.registers.combine(node.op.name, before, value, x.dtype, node.dtype)


def _halves(count: int) -> list[int]:
    return [1 << k for k in reversed(range(count.bit_length() - 1))]


def _one_row(
    code: Code,
    reduce: Callable[[Value, Value], Value],
    partial: Memory,
    elements: StageElements,
    node: Node,
) -> Value:
    """One result: every thread adds up what the warps have found."""
    b = code.builder
    total = reduce(b.index(0), b.local)
    with b.if_(b.local % WARP == 0):
        b.store(total, partial, b.local // WARP)
    code.barrier()
    some = [b.let(b.load(partial, warp)) for warp in range(code.threads // WARP)]
    whole: Operand = some[0]
    for other in some[1:]:
        whole = elements.registers.merge(node.op.name, whole, other, node.dtype)
    return b.let(whole)


def _many_rows(
    code: Code, count: int, threads: int, reduce: Callable[[Value, Value], Value], found: Memory
) -> None:
    """More results than a block has warps: a part of a warp for each."""
    b, together = code.builder, code.threads // threads
    for first in range(0, count, together):
        number = b.let(b.local // threads + first)
        result = b.let(b.min(number, count - 1))
        lane = b.let(b.local % threads)
        total = reduce(result, lane)
        with b.if_((lane == 0) & (number < count)):
            b.store(total, found, result)


# many parameters: the pieces of one reduction.
def _few_rows(
    code: Code,
    count: int,
    threads: int,
    reduce: Callable[[Value, Value], Value],
    found: Memory,
    partial: Memory,
    elements: StageElements,
    node: Node,
) -> None:
    """One or several warps for each result."""
    b, warps = code.builder, threads // WARP
    number = b.let(b.local // threads)
    # Threads that have no result do what the last one's do: all come to each shuffle.
    total = reduce(b.let(b.min(number, count - 1)), b.let(b.local % threads))
    if warps == 1:
        with b.if_((b.local % threads == 0) & (number < count)):
            b.store(total, found, b.let(b.min(number, count - 1)))
        return
    with b.if_((b.local % WARP == 0) & (number < count)):
        b.store(total, partial, b.local // WARP)
    code.barrier()
    with b.if_(b.local < count):
        whole = b.let(b.load(partial, b.local * warps))
        for warp in range(1, warps):
            other = b.load(partial, b.local * warps + warp)
            whole = b.let(elements.registers.merge(node.op.name, whole, other, node.dtype))
        b.store(whole, found, b.local)
