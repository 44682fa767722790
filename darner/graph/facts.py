"""Facts about ops that lowering, the optimizer and backends ask for: a row of them stands on each record.

    @primitive(family="indexing", facts=Facts(role="point", fails_on="index", indexes="table"))
    def gather(table: Tensor, indices: Index, axis: Axis = 0) -> TensorType: ...

Who needs to know something of an op looks here, and never at its name: an op that is declared with the same facts is treated the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Role: TypeAlias = Literal[
    "leaf",
    "view",
    "part",
    "point",
    "reduce",
    "contract",
    "attention",
    "index",
    "scan",
    "loop",
    "library",
    "host",
]
"""The part that a node can play in a kernel; ``lower.roles`` says what each means."""

RESULT = "result"
"""As ``Facts.indexes``: the op takes indices of an axis of its result."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a gradient may read of the forward pass instead of computing it again.

    Attributes:
        op: the op that it is the gradient of; its result is the gradient's operand ``out``.
        beside: the op that makes the operand ``statistics``, of the operands and attributes of ``op``.
    """

    op: str
    beside: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of an op besides its rules and traits.

    Attributes:
        role: the part that it plays in a kernel; element-wise ops are ``point`` without being told, others ``library``.
        whole: a composite for which backends may have a kernel of its own, so that it is not written out before lowering.
        pools: it goes through windows of an image; its kernels are for small ones.
        channels_last: the op that computes the same images, of operands whose channels, the second axis, are their last, and gives them so too.
        of_channels_last: the op that computes the same from such operands, and gives what this one does.
        finds: a reduction whose result is the index of an element.
        ends: a kernel by index that may end with what is element-wise after it, where a target has such kernels.
        overwrites: the operand that the result is, but for some elements: in place only these are written.
        fills: of ops that overwrite a block, the operand that the block is; where a target's kernels do that, they compute it themselves.
        reads_part_of: the operand of which it reads as many elements as it returns.
        carries: an operand that the last of several results is made of, part by part: it may take the operand's place in memory.
        reads_rows: its kernels read operands wherever their rows lie, if these have no gaps; others have such views copied.
        reads_all: it reads every element of its operands, as every element-wise op does.
        decodes: its operands are stored in fewer bits than its result has: a product that reads it computes its elements as it goes.
        selects: each element of the result is an element of the first operand.
        fails_on: what data can be such that it has no value: an index outside its axis, a matrix, a negative exponent of an integer, more entries than there is room for.
        indexes: of ops that fail on an index, whose axis the operand ``indices`` is of: an operand, or ``RESULT``.
        refuses: of ops that fail on a matrix, what a matrix is that it cannot take.
        by_parts: of complex numbers it is the same op of real and of imaginary parts.
        cheap: it may be computed again in every kernel that reads it, where it is made of counters alone.
        effort: what an element takes: ``some`` is a division, a root or a look-up, ``much`` an elementary function. Where a later pass of a
            kernel needs such a value again, it is worth a place in memory.
        full_rate: its arithmetic runs at the rate of matrix products.
        multiplies: of a contraction, the operands that are multiplied with each other: a session's ``precision`` rounds these. A composite of contractions
            that says nothing is written out for that.
        fused: it is priced as element-wise ops are: computed where a neighbour is.
        kept: of a gradient, what it may read of the forward pass: lowering has it do so where a target's kernels keep that.
        beside: of an op that makes what is kept, the op whose kernel computes it too, from the same operands.
        trainable: of ops without a derivative, the one that computes the same in a way that gradients pass.
        weight: how many additions an element takes, as the optimizer prices it.
        kernels: how many kernels a node of it needs, as the optimizer prices it.
    """

    role: Role | None = None
    whole: bool = False
    pools: bool = False
    channels_last: str = ""
    of_channels_last: str = ""
    finds: bool = False
    ends: bool = False
    overwrites: str | None = None
    fills: str | None = None
    reads_part_of: str | None = None
    carries: str | None = None
    reads_rows: bool = False
    reads_all: bool = False
    decodes: bool = False
    selects: bool = False
    fails_on: Literal["index", "matrix", "exponent", "room"] | None = None
    indexes: str | None = None
    refuses: str | None = None
    by_parts: bool = False
    cheap: bool = False
    effort: Literal["little", "some", "much"] = "little"
    full_rate: bool = False
    multiplies: tuple[str, ...] = ()
    fused: bool = False
    kept: Kept | None = None
    beside: str | None = None
    trainable: str | None = None
    weight: float = 1.0
    kernels: float = 1.0


PLAIN = Facts()
"""What is true of an op of which nothing is said."""
