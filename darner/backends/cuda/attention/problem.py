"""Which attentions tensor cores compute, and where their rows lie in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ....codegen.problems.attention import BACKWARD, Described, can_emit_attention, described
from ....codegen.problems.attention import main_node as attention_node
from ....graph import dtypes
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import strided

PIECE = 16
"""Bytes that are copied at once."""
WIDEST = 256
"""Numbers of a row that a warp can hold sums of."""
FEWEST_QUERIES = 16
"""Queries of a head that a warp multiplies at a time; fewer are read, not multiplied."""
FACTORS = ("q", "k", "v", "dy", "out")
"""Operands that are multiplied."""


@dataclass(frozen=True)
class Rows:
    """The rows of one operand.

    Attributes:
        leaf: the operand of the kernel that they lie in.
        offset: of the first element, in elements, as all distances.
        strides: from one batch, head and row to the next; neighbours in a row are beside each other.
        count: rows of a head.
        width: elements of a row.
        size: bytes of an element.
    """

    leaf: Node
    offset: int
    strides: tuple[int, int, int]
    count: int
    width: int
    size: int = 2

    @property
    def piece(self) -> int:
        """Elements that are copied at once."""
        return PIECE // self.size

    @property
    def padded(self) -> int:
        """Elements of a row that products go through: 16 at a time."""
        return ceil_div(self.width, 16) * 16

    @property
    def pitch(self) -> int:
        """Bytes from row to row in shared memory: an odd number of pieces, so that eight rows lie in different banks."""
        return self.padded * self.size + PIECE


@dataclass(frozen=True)
class Problem:
    """An attention for tensor cores.

    Attributes:
        attention: what is computed, with sizes.
        dtype: what factors are in memory: bf16, f16, or f32 that is rounded to tf32 as it is read.
        rows: of each factor, by its name.
    """

    attention: Described
    dtype: DType
    rows: dict[str, Rows] = field(hash=False)

    @property
    def kind(self) -> str:
        """What is multiplied: ``bf16``, ``f16`` or ``tf32``."""
        return "tf32" if self.dtype is dtypes.f32 else str(self.dtype.name)

    @property
    def terms(self) -> int:
        """Terms that a warp multiplies at once: 32 bytes of a row."""
        return 2 * PIECE // self.dtype.itemsize

    @property
    def backward(self) -> bool:
        """Whether it is the gradient."""
        return self.attention.node.op.name == BACKWARD

    @property
    def plain(self) -> bool:
        """Whether scores are products times a scale above 0, some of them hidden by their places: nothing else is done to them."""
        attention = self.attention
        return (
            attention.softcap is None
            and attention.scale > 0
            and not {"mask", "bias"} & attention.operands.keys()
        )

    @property
    def widest(self) -> int:
        """The longer of the rows of keys and values, as products go through them."""
        return max(self.rows["k"].padded, self.rows["v"].padded)

    @property
    def heads(self) -> int:
        """Query heads of the whole batch."""
        return self.attention.batch * self.attention.heads


def tensor_attention(spec: Spec, *, few: bool = False) -> Problem | None:
    """The attention of a spec, if tensor cores compute it: factors of one 16-bit type or rounded to tf32, in rows of whole pieces; of ``few`` queries, or of many.

    An attention in f32 of factors that are 16-bit numbers is one too: its session rounds what is multiplied, and that is probabilities as well.
    """
    if not can_emit_attention(spec):
        return None
    node = attention_node(spec)
    if node is None:
        return None
    attention = described(node)
    if 0 in (attention.batch, attention.heads, attention.keys, attention.width):
        return None
    if (attention.queries < FEWEST_QUERIES) != few or not attention.value_width:
        return None
    if node.op.name == BACKWARD and any(
        int(output.attrs["index"]) > 2 for output in spec.body.outputs
    ):
        return None
    found = {name: _rows(spec, attention, name) for name in FACTORS if name in node.slots}
    rows = {name: item for name, item in found.items() if item is not None}
    kinds = {item.leaf.dtype for item in rows.values()}
    if len(rows) < len(found) or len(kinds) != 1:
        return None
    return Problem(attention, kinds.pop(), rows)


def _rows(spec: Spec, attention: Described, name: str) -> Rows | None:
    """Where an operand lies, if its rows are whole pieces of 16-bit floats, or of f32 that is rounded."""
    node = dict(zip(attention.node.slots, attention.node.operands, strict=True))[name]
    seen = strided(node, widened=True, tf32=True)
    if seen is None:
        return None
    leaf, rounded = seen.base, attention.operands[name].rounded
    if all(leaf.id != own.id for own in spec.inputs) or leaf.dtype.is_half == rounded:
        return None
    if rounded and leaf.dtype is not dtypes.f32:
        return None
    if leaf.op.facts.decodes:
        return None
    shape = [int(size) for size in node.shape]
    strides = [0 if n == 1 else step for n, step in zip(shape, seen.strides, strict=True)]
    axes = (0, 1, 2) if attention.layout == "bhsd" else (0, 2, 1)
    batch, head, row = (strides[axis] for axis in axes)
    width, size = shape[3], leaf.dtype.itemsize
    whole = (prod(sizes(leaf)), seen.offset, batch, head, row, width)
    if any(number % (PIECE // size) or number < 0 for number in whole):
        return None
    if width > WIDEST or seen.strides[3] != 1:
        return None
    return Rows(leaf, seen.offset, (batch, head, row), shape[axes[2]], width, size)
