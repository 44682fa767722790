"""Non-temporal stores for results too large to stay in the cache.

A plain store first reads the line it writes, and evicts other values. Where a kernel moves ``LARGE`` of the last cache, its results will not be there
when they are read next, so non-temporal stores cost nothing and save that read. Where all work of a kernel is shared out evenly, ``KEPT`` of that cache, less what it reads, is
written to the cache and the rest past it. It does not pay where a result overwrites its operand, whose lines are in the cache already, and it needs
addresses at multiples of a line: both are known when the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ....codegen.ir.index import i64
from ....codegen.ir.types import Pointer, Value
from ..model import LINE, CpuModel
from .template import WHOLE, Code

LARGE = 3 / 4
"""Of the last cache, what a kernel reads and writes from which on that which it writes goes past it."""

KEPT = 7 / 8
"""Of the last cache, what is taken to find room there."""


def either(
    code: Code,
    nbytes: int,
    results: Sequence[Pointer],
    emit: Callable[[bool], None],
    least: float | None = None,
) -> None:
    """Emit code that writes ``nbytes`` to these places: ``emit(True)`` has it write past the cache.

    Where there is much to move, ``LARGE`` of the last cache unless ``least`` says otherwise, both are emitted, and the places decide.
    """
    if not nbytes or nbytes + _read(code, nbytes) < _model(code).of_last(
        LARGE if least is None else least
    ):
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
    read, kept = _read(code, nbytes), _model(code).of_last(KEPT)
    if not nbytes or nbytes + read <= kept:
        emit(code, False)
        return
    room = WHOLE * max(kept - read, 0) // nbytes
    cut = code.builder.select(_can(code, results), i64(room), i64(WHOLE))
    emit(replace(code, portion=(0, cut)), False)
    emit(replace(code, portion=(cut, WHOLE)), True)
    _seen(code)


def _model(code: Code) -> CpuModel:
    return CpuModel.of(code.machine)


def _read(code: Code, nbytes: int) -> int:
    """Bytes that a kernel which writes ``nbytes`` reads."""
    # Of an operand no more is read than is written, or it is a table of which some rows are.
    return sum(min(leaf.dtype.itemsize * int(leaf.size), nbytes) for leaf in code.spec.inputs)


def _can(code: Code, results: Sequence[Pointer]) -> Value:
    """Whether all results lie at multiples of a line, and none where an operand does."""
    from llvmlite import ir

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
