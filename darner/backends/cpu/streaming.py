"""Writing past the cache: results too large to be found there again.

A plain store reads the line that it writes to, and what it leaves behind drives other values out. Where a kernel moves ``LARGE`` bytes, its results are not in the cache
when they are read next, so writing them past it costs nothing and saves that reading. It does not pay where a result lies in its operand's place,
whose lines are there already, and needs places at multiples of a line: both are known when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .places import as_value
from .template import Code

LARGE = 24 << 20
"""Bytes that a kernel reads and writes from which on those it writes go past the cache."""

LINE = 64


def either(
    code: Code,
    nbytes: int,
    results: Sequence[Any],
    emit: Callable[[bool], None],
    least: int | None = None,
) -> None:
    """Emit code that writes ``nbytes`` to these places: ``emit(True)`` has it write past the cache.

    Where there is much to move, ``LARGE`` bytes unless ``least`` says otherwise, both are emitted, and the places decide.
    """
    # Of an operand no more is read than is written, or it is a table of which some rows are.
    read = sum(min(leaf.dtype.itemsize * leaf.size, nbytes) for leaf in code.spec.inputs)
    if not nbytes or nbytes + read < (LARGE if least is None else least):
        emit(False)
        return
    from llvmlite import ir  # type: ignore[import-untyped]

    b, word = code.builder, ir.IntType(64)
    operands = [b.ptrtoint(operand, word) for operand in code.operands]
    fits = ir.Constant(ir.IntType(1), 1)
    for result in results:
        place = b.ptrtoint(result, word)
        rest = b.and_(place, as_value(LINE - 1))
        fits = b.and_(fits, b.icmp_unsigned("==", rest, as_value(0)))
        for operand in operands:
            fits = b.and_(fits, b.icmp_unsigned("!=", place, operand))
    with b.if_else(fits) as (past, plain):
        with past:
            emit(True)
            # Such stores may be seen late: before anyone is told that this kernel is done, they are.
            b.fence("seq_cst")
        with plain:
            emit(False)
