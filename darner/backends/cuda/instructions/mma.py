"""Products of a warp: ``mma.sync``, which adds 16 rows by 8 columns from registers, and what brings operands there and takes results away (sm_80).

Fragments. Lane ``l`` is ``g = l / 4`` and ``t = l % 4``. Of the sums it has, in this order, the columns ``2t`` and ``2t + 1`` of row ``g`` and then of row ``g + 8``. Of 16-bit operands a word holds two neighbours along K: of A the terms
``2t, 2t + 1`` of row ``g``, those of row ``g + 8``, then both again with 8 added to the terms; of B the terms ``2t, 2t + 1`` of column ``g``, and those 8 further on. Of tf32 operands a word holds a term: A has ``t`` of the rows ``g`` and ``g + 8``, then
``t + 4``; B has ``t`` and ``t + 4`` of column ``g``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....graph.errors import InternalError
from .assembly import F32, I32, Builder, Value, assembly, listed

TERMS = {"bf16": 16, "f16": 16, "tf32": 8}
"""Terms that one ``mma_sync`` adds, by the type of its operands."""


def mma_sync(
    builder: Builder,
    dtype: str,
    sums: Sequence[Value],
    left: Sequence[Value],
    right: Sequence[Value],
) -> list[Value]:
    """Add the product of A, 16 rows, and B, 8 columns, to sums in f32; see the module for what each lane has.

    Args:
        builder: where the code goes.
        dtype: ``bf16``, ``f16`` or ``tf32``.
        sums: four of f32.
        left: A, four words.
        right: B, two words.
    """
    if dtype not in TERMS:
        raise InternalError(f"tensor cores have no products of {dtype}")
    shape = f"m16n8k{TERMS[dtype]}"
    text = (
        f"mma.sync.aligned.{shape}.row.col.f32.{dtype}.{dtype}.f32 "
        f"{listed(0, 4)}, {listed(8, 4)}, {listed(12, 2)}, {listed(0, 4)};"
    )
    return assembly(builder, text, [F32] * 4, [*sums, *left, *right], tied=4, pure=True)


def ldmatrix(
    builder: Builder, address: Value, count: int = 4, *, transposed: bool = False
) -> list[Value]:
    """Read ``count`` matrices of 8 rows by 8 elements of 16 bits, one word of each for every lane.

    Lanes ``8 i`` to ``8 i + 7`` give the shared addresses of the rows of matrix ``i``, 16 bytes each. Lane ``l`` gets of each the elements ``2 (l % 4)`` and the next of row ``l / 4``; of the matrix ``transposed``, where it is to be so.
    """
    how = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 {listed(0, count)}, [${count}];"
    return assembly(builder, text, [I32] * count, [address])


def stmatrix(
    builder: Builder, address: Value, words: Sequence[Value], *, transposed: bool = False
) -> None:
    """Write what ``ldmatrix`` would read: matrices of 8 by 8 elements of 16 bits, to rows whose addresses the lanes give (sm_90)."""
    count, how = len(words), ".trans" if transposed else ""
    text = f"stmatrix.sync.aligned.m8n8.x{count}{how}.shared.b16 [$0], {listed(1, count)};"
    assembly(builder, text, (), [address, *words])
