"""Writing past the cache: results too large to be found there again.

A plain store reads the line that it writes to, and what it leaves behind drives other values out. Where a kernel moves ``LARGE`` bytes, its results are not in the cache
when they are read next, so writing them past it costs nothing and saves that reading. Where all that a kernel has to do is shared out, as much of its results is written to the cache as
there is room for beside what it reads, ``KEPT`` bytes in all, and the rest past it. It does not pay where a result lies in its operand's place,
whose lines are there already, and needs places at multiples of a line: both are known when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ....codegen.ir.index import as_value
from .template import WHOLE, Code

LARGE = 24 << 20
"""Bytes that a kernel reads and writes from which on those it writes go past the cache."""

KEPT = 28 << 20
"""Bytes that are taken to find room in the cache."""

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
    if not nbytes or nbytes + _read(code, nbytes) < (LARGE if least is None else least):
        emit(False)
        return
    b = code.builder
    with b.if_else(_can(code, results)) as (past, plain):
        with past:
            emit(True)
            _seen(code)
        with plain:
            emit(False)


def partly(
    code: Code, nbytes: int, results: Sequence[Any], emit: Callable[[Code, bool], None]
) -> None:
    """Emit code that writes ``nbytes`` to these places: ``emit(code, True)`` has it write its portion past the cache.

    For kernels without barriers, whose threads do only what ``Code.share`` gives them. What is written to the cache comes first: it is read first, as a rule.
    """
    read = _read(code, nbytes)
    if not nbytes or nbytes + read <= KEPT:
        emit(code, False)
        return
    room = WHOLE * max(KEPT - read, 0) // nbytes
    cut = code.builder.select(_can(code, results), as_value(room), as_value(WHOLE))
    emit(replace(code, portion=(0, cut)), False)
    emit(replace(code, portion=(cut, WHOLE)), True)
    _seen(code)


def _read(code: Code, nbytes: int) -> int:
    """Bytes that a kernel which writes ``nbytes`` reads."""
    # Of an operand no more is read than is written, or it is a table of which some rows are.
    return sum(min(leaf.dtype.itemsize * int(leaf.size), nbytes) for leaf in code.spec.inputs)


def _can(code: Code, results: Sequence[Any]) -> Any:
    """Whether all results lie at multiples of a line, and none where an operand does."""
    from llvmlite import ir  # type: ignore[import-untyped]

    b, word = code.builder, ir.IntType(64)
    operands = [b.ptrtoint(operand, word) for operand in code.operands]
    found = ir.Constant(ir.IntType(1), 1)
    for result in results:
        place = b.ptrtoint(result, word)
        rest = b.and_(place, as_value(LINE - 1))
        found = b.and_(found, b.icmp_unsigned("==", rest, as_value(0)))
        for operand in operands:
            found = b.and_(found, b.icmp_unsigned("!=", place, operand))
    return found


def _seen(code: Code) -> None:
    """Such stores may be seen late: before anyone is told that a kernel is done, they are."""
    code.builder.fence("seq_cst")
