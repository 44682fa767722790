"""Products of a warpgroup, four warps, with operands in shared memory: 64 rows by up to 256 columns (sm_90a).

They run by themselves, in groups. Between ``wgmma``'s statement and the ``wgmma_wait`` that covers it, nobody may touch the sums' registers: a statement holds its sums as tied operands, and passes them on to the next, so the assembler
keeps them where they are. Warp ``w`` of the group has rows ``16 w`` to ``16 w + 15``, and for every 8 columns the fragments of ``mma``.

Operands lie in shared memory in rows of 128 bytes along their contiguous axis, with the swizzle of 128 bytes: the 16-byte piece ``p`` of row ``r`` is at piece ``p ^ (r % 8)``. Tiles begin at multiples of 1024.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llvmlite import ir

from ....graph.errors import InternalError
from .assembly import F32, I64, Builder, Value, assembly, listed
from .mma import TERMS

ROW = 128
"""Bytes of a row in shared memory."""
CHUNK = 64 * ROW
"""Bytes of 64 rows: how far apart are chunks of 64 along M or N of an operand that is not contiguous along K."""
COLUMNS = tuple(range(8, 257, 8))
"""Columns that a product may have."""

_SWIZZLED = 1 << 62
_STRIDE = (8 * ROW >> 4) << 32


def descriptor(builder: Builder, address: Value, *, along_k: bool = True) -> Value:
    """What tells a product where an operand lies: at a shared address, contiguous ``along_k`` or else along M or N."""
    low = builder.lshr(builder.and_(address, ir.Constant(address.type, 0x3FFFF)), _small(4))
    if not along_k:
        low = builder.or_(low, ir.Constant(address.type, (CHUNK >> 4) << 16))
    return builder.or_(builder.zext(low, I64), ir.Constant(I64, _SWIZZLED | _STRIDE))


def _small(number: int) -> Value:
    return ir.Constant(ir.IntType(32), number)


def advance(builder: Builder, described: Value, steps: int, *, along_k: bool = True) -> Value:
    """The descriptor of what is so many times the terms of one product further along K: 32 bytes, or 16 rows."""
    apart = 32 if along_k else 16 * ROW
    return builder.add(described, ir.Constant(I64, steps * apart >> 4))


@dataclass(frozen=True)
class Shape:
    """A kind of product.

    Attributes:
        dtype: of the operands: ``bf16``, ``f16`` or ``tf32``.
        columns: how many, a multiple of 8 up to 256.
        left_along_k: whether A is contiguous along K; operands of tf32 are.
        right_along_k: whether B is.
    """

    dtype: str
    columns: int
    left_along_k: bool = True
    right_along_k: bool = True

    def __post_init__(self) -> None:
        if self.dtype not in TERMS or self.columns not in COLUMNS:
            raise InternalError(
                f"no product of a warpgroup is {self.columns} columns of {self.dtype}"
            )
        if self.dtype == "tf32" and not (self.left_along_k and self.right_along_k):
            raise InternalError("operands of tf32 are contiguous along K")

    @property
    def sums(self) -> int:
        """Sums of each thread."""
        return self.columns // 2

    @property
    def instruction(self) -> str:
        """The name of the instruction."""
        name = f"m64n{self.columns}k{TERMS[self.dtype]}.f32.{self.dtype}.{self.dtype}"
        return f"wgmma.mma_async.sync.aligned.{name}"

    def flags(self, registers: bool = False) -> str:
        """What follows the scale of the sums: signs, and which operands are transposed; one in registers cannot be."""
        if self.dtype == "tf32":
            return "1, 1"
        right = int(not self.right_along_k)
        return f"1, 1, {right}" if registers else f"1, 1, {int(not self.left_along_k)}, {right}"


def wgmma(  # many parameters: what belongs to one statement of PTX, by name
    builder: Builder,
    shape: Shape,
    sums: Sequence[Value],
    operands: Sequence[tuple[Value | Sequence[Value], Value]],
    *,
    keep: Value | None = None,
    fence: bool = True,
    commit: bool = True,
    wait: int | None = None,
) -> list[Value]:
    """Start products one after another on the same sums, in one statement; returns the sums.

    Args:
        builder: where the code goes.
        shape: what kind they are.
        sums: ``shape.sums`` of f32.
        operands: for each product the descriptors of A and B. A may be four words of registers instead, as ``mma_sync`` has them.
        keep: 0 where the first product drops what the sums held, a word; they may then be undefined.
        fence: whether registers were written since the last product.
        commit: whether they close a group.
        wait: the most groups that may be under way after them.
    """
    count = shape.sums
    given: list[Value | int] = list(sums)
    at = 2 * count
    text = ["{ .reg .pred kept;"]
    if keep is not None:
        text.append(f"setp.ne.b32 kept, ${at}, 0;")
        given.append(keep)
        at += 1
    if fence:
        text.append("wgmma.fence.sync.aligned;")
    totals = listed(0, count)
    for number, (left, right) in enumerate(operands):
        scale = "kept" if number == 0 and keep is not None else "1"
        registers = isinstance(left, Sequence)
        parts = [*left] if isinstance(left, Sequence) else [left]
        source = listed(at, 4) if registers else f"${at}"
        flags = shape.flags(registers)
        after = at + len(parts)
        text.append(f"{shape.instruction} {totals}, {source}, ${after}, {scale}, {flags};")
        given += [*parts, right]
        at = after + 1
    if commit:
        text.append("wgmma.commit_group.sync.aligned;")
    if wait is not None:
        text.append(f"wgmma.wait_group.sync.aligned {wait};")
    text.append("}")
    return assembly(builder, " ".join(text), [F32] * count, given, tied=count)


def wgmma_wait(
    builder: Builder, sums: Sequence[Value], most: int = 0, keep: Sequence[Value] = ()
) -> list[Value]:
    """Wait until at most so many groups are under way; returns the sums, which can then be read.

    ``keep`` are registers of A that products read until then.
    """
    text = f"wgmma.wait_group.sync.aligned {most};"
    return assembly(builder, text, [F32] * len(sums), [*sums, *keep], tied=len(sums))
