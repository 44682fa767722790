"""Weights on their way before a product starts: its blocks have an operand brought to the L2 cache, a share each, while the launch ahead still runs."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import cast

from ....codegen.simt.contract.product import Product
from ....codegen.simt.dispatch import Dispatch
from ....graph.integers import ceil_div
from ....lower.specs import sizes
from ..instructions.stream import streaming_of
from ..machine import Machine
from .operands import PIECE

MOST_ROWS = 512
"""Rows of a product up to which bringing the other operand is a good part of its time."""
MOST_BYTES = 8 << 20
"""Of an operand that is brought: what memory gives while a small kernel runs, of which nothing is asked for twice."""


def bring_operand(dispatch: Dispatch, product: Product, blocks: int) -> None:
    """Let each of the kernel's blocks ask for a share of the second operand, where that is the larger one: weights, as a rule. It is called before anything else is written."""
    leaves = [operand.leaf for operand in product.operands]
    nbytes = [prod(sizes(leaf)) * leaf.dtype.itemsize for leaf in leaves]
    large = max(nbytes[0], 1 << 16) < nbytes[1] <= MOST_BYTES
    if product.m > MOST_ROWS or product.count > 1 or not large or nbytes[1] % PIECE:
        return
    b, leaf = dispatch.builder, leaves[1]
    memory = replace(dispatch.operand(leaf), vector=PIECE // leaf.dtype.itemsize)
    streaming = streaming_of(b, cast(Machine, dispatch.machine))
    pieces = nbytes[1] // PIECE
    share = ceil_div(pieces, blocks)
    with streaming.before_waiting() as early:
        if early:
            first = b.let(b.min(b.group * share, pieces))
            count = b.let(b.min(pieces - first, share))
            inside = b.let((b.local == 0) & (count > 0))
            streaming.prefetch(memory, first, b.let(count * PIECE), inside)
