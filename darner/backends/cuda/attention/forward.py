"""Attention's result by ``mma.sync``: a block of queries meets tile after tile of keys and values, and keeps a running softmax.

The same kernel finds what gradients need of each query: there it writes no result, but its exponent and the mean of its slopes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.problems.attention import result_numbers
from ....codegen.simt.attention.operands import Place
from ....codegen.simt.attention.results import RowBlock, are_whole, write_block
from ....codegen.simt.builder import Value
from ....codegen.simt.dispatch import Stage, Written
from ....graph.integers import ceil_div
from ....lower.plan import Spec
from ..machine import Machine
from .kernel import Kernel, Launch
from .plan import Cut, forward_pass, staged_pitch
from .problem import Problem
from .rows import Fragments, RowKernel
from .scores import Scores, Span
from .softmax import Known, Softmax, scale_rows, write_known


def block_place(kernel: RowKernel, blocks: int, heads: int, *, backwards: bool) -> Place:
    """What a block works on: all heads of one block of rows, then those of the next.

    Where attention is causal some blocks have more to do. These begin first, so that short ones fill in at the end: of queries the last ones (``backwards``), of keys the first.
    """
    b = kernel.builder
    total = heads * kernel.attention.batch
    number = b.let(b.group % total, "number")
    block = b.group // total
    if backwards:
        block = blocks - 1 - block
    return Place(
        batch=b.let(number // heads, "batch"),
        head=b.let(number % heads, "head"),
        first=b.let(block * kernel.block, "first"),
    )


def write_attention(kernel: Kernel, place: Place) -> tuple[Fragments, Softmax]:
    """Write the loop over keys; returns the weighted sums of values, which are still to be divided by their totals."""
    b, problem, cut, room = kernel.builder, kernel.problem, kernel.cut, kernel.room
    rows = problem.rows
    batch = b.index(place.batch)
    kv_head = b.let(place.head // problem.attention.group, "kv_head")
    kernel.write_start(place.batch)
    first = b.index(place.first)
    span = Span(first, cut.rows, cut.columns, (rows["q"].count, rows["k"].count), True)
    scores_of = Scores(kernel, span)
    scores_of.at(batch, b.index(place.head))
    queries = kernel.loader(rows["q"], cut.rows)
    queries.at(place.batch, place.head)
    passing = [kernel.loader(rows[name], cut.columns) for name in ("k", "v")]
    for loader in passing:
        loader.at(place.batch, kv_head)
    queries.copy(first, kernel.cores.base)
    kernel.cores.commit()
    kernel.cores.wait(0)
    queries.round(kernel.cores.base)
    b.barrier()
    left = kernel.held(kernel.cores.base, rows["q"])
    running = Softmax.of(kernel)
    sums = kernel.zeros(rows["v"].padded, "sum")
    begin = b.let(kernel.cores.base + room.held, "stages")
    for column, stage in kernel.passing(passing, begin, scores_of.ends()):
        scores = kernel.zeros(cut.columns, "score")
        keys = kernel.right(stage, rows["k"].pitch)
        kernel.multiply(scores, left, keys, rows["k"].padded)
        scores_of.finish(scores, column)
        scale_rows(sums, running.meet(scores))
        values = kernel.across(b.let(stage + room.first), rows["v"].pitch)
        words = kernel.packed(scores)
        kernel.multiply(sums, words.__getitem__, values, cut.columns)
    return sums, running


def write_forward(spec: Spec, machine: Machine, problem: Problem, cut: Cut) -> Written:
    """The launch of the result, and of what is computed of its elements."""
    numbers = result_numbers(spec)
    whole = are_whole(spec, numbers)
    room = forward_pass(problem).room(cut)
    kernel = Kernel(Launch(spec, machine, problem, cut, room, whole))
    attention = problem.attention
    blocks = ceil_div(attention.queries, cut.rows)
    place = block_place(kernel, blocks, attention.heads, backwards=attention.causal)
    sums, running = write_attention(kernel, place)
    scale_rows(sums, running.shares(place))
    write_results(kernel, sums, place, numbers)
    return Written((kernel.dispatch.finish(blocks * problem.heads),))


def write_results(
    kernel: Kernel, sums: Fragments, place: Place, numbers: Sequence[int], limit: int | None = None
) -> None:
    """Write sums as the rows of a block: the elements that the results ``numbers`` are made of."""
    node = kernel.problem.attention.node
    if kernel.problem.backward:
        node = kernel.dispatch.body.outputs[numbers[0]]
    width = int(node.shape[-1])
    element = kernel.store_rows(sums, width, staged_pitch(width))

    def vector(row: Value, quad: Value) -> Value:
        return kernel.builder.vector([element(row, quad * 4 + x) for x in range(4)])

    count = kernel.attention.queries if limit is None else limit
    write_block(kernel, RowBlock(node, numbers, place, kernel.cut.rows, count, element, vector))


def write_known_again(spec: Spec, machine: Machine, problem: Problem, cut: Cut) -> Stage:
    """The launch that finds out what gradients need of each query, where the forward pass kept nothing."""
    room = forward_pass(problem).room(cut)
    kernel = Kernel(Launch(spec, machine, problem, cut, room))
    blocks = ceil_div(problem.attention.queries, cut.rows)
    heads, causal = problem.attention.heads, problem.attention.causal
    place = block_place(kernel, blocks, heads, backwards=causal)
    sums, running = write_attention(kernel, place)
    write_known(kernel, Known.of(problem, cut.rows), place, sums, running)
    return kernel.dispatch.finish(blocks * problem.heads)
