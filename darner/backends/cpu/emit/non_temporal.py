"""Non-temporal stores for results too large to stay in the cache.

A plain store first reads the line it writes, and evicts other values. Where a kernel moves ``LARGE`` bytes, its results will not be in the cache
when they are read next, so non-temporal stores cost nothing and save that read. Where all work of a kernel is shared out evenly, ``KEPT`` bytes of results, less what it reads, are
written to the cache and the rest past it. It does not pay where a result overwrites its operand, whose lines are in the cache already, and it needs
addresses at multiples of a line: both are known when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....codegen.ir.index import i64
from ....codegen.ir.types import Pointer, Value
from .template import WHOLE, Code

LARGE = 24 << 20
"""Bytes that a kernel reads and writes from which on those it writes go past the cache."""

KEPT = 28 << 20
"""Bytes that are taken to find room in the cache."""

LINE = 64


def either(
    code: Code,
    nbytes: int,
    results: Sequence[Pointer],
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
    with b.if_else(_can(code, results)) as (non_temporal, plain):
        with non_temporal:
            emit(True)
            _seen(code)
        with plain:
            emit(False)


def partly(
    code: Code, nbytes: int, results: Sequence[Pointer], emit: Callable[[Code, bool], None]
) -> None:
    """Emit code that writes ``nbytes`` to these places: ``emit(code, True)`` has it write its portion past the cache.

    For kernels without barriers, whose threads do only what ``Code.share`` gives them. What is written to the cache comes first: it is read first, as a rule.
    """
    read = _read(code, nbytes)
    if not nbytes or nbytes + read <= KEPT:
        emit(code, False)
        return
    room = WHOLE * max(KEPT - read, 0) // nbytes
    cut = code.builder.select(_can(code, results), i64(room), i64(WHOLE))
    emit(replace(code, portion=(0, cut)), False)
    emit(replace(code, portion=(cut, WHOLE)), True)
    _seen(code)


def _read(code: Code, nbytes: int) -> int:
    """Bytes that a kernel which writes ``nbytes`` reads."""
    # Of an operand no more is read than is written, or it is a table of which some rows are.
    return sum(min(leaf.dtype.itemsize * int(leaf.size), nbytes) for leaf in code.spec.inputs)


def _can(code: Code, results: Sequence[Pointer]) -> Value:
    """Whether all results lie at multiples of a line, and none where an operand does."""
    from llvmlite import ir  # type: ignore[import-untyped]

    b, word = code.builder, ir.IntType(64)
    operands = [b.ptrtoint(operand, word) for operand in code.operands]
    found = ir.Constant(ir.IntType(1), 1)
    for result in results:
        place = b.ptrtoint(result, word)
        rest = b.and_(place, i64(LINE - 1))
        found = b.and_(found, b.icmp_unsigned("==", rest, i64(0)))
        for operand in operands:
            found = b.and_(found, b.icmp_unsigned("!=", place, operand))
    return found


def _seen(code: Code) -> None:
    """Such stores may be seen late: before anyone is told that a kernel is done, they are."""
    code.builder.fence("seq_cst")
