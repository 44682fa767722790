"""How the operands of a product lie in memory, in pieces of 16 bytes: what copies to shared memory are made of.

An operand that does not lie so is packed first: a launch of its own copies it to scratch memory, with a row pitch of whole pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ....codegen.simt.contract.product import Product, Steps, steps
from ....codegen.simt.dispatch import Binding
from ....graph.dtypes import DType
from ....graph.integers import ceil_div
from ....lower.specs import sizes
from ..stage import TensorMap

PIECE = 16
"""Bytes of a piece."""


@dataclass(frozen=True)
class Layout:
    """Where the elements of an operand lie, counted in elements.

    Attributes:
        dtype: of the elements as they lie there.
        along: which of its axes is contiguous: the ``summed`` one, or the ``free`` one (rows or columns).
        offset: of the first element.
        batch: sizes and strides of the batch axes, the outermost first; so are ``free`` and ``summed``.
        free: those of the rows or columns.
        summed: those of the summed axes.
        whole: whether pieces begin at multiples of 16 bytes, and their elements are neighbours.
    """

    dtype: DType
    along: str
    offset: int
    batch: Steps
    free: Steps
    summed: Steps
    whole: bool = True

    @property
    def piece(self) -> int:
        """Elements of a piece."""
        return PIECE // self.dtype.itemsize

    @property
    def inner(self) -> Steps:
        """The axes of which the last is contiguous."""
        return self.summed if self.along == "summed" else self.free

    def in_pieces(self, name: str) -> Steps:
        """Sizes and strides of a group of axes, counted in pieces."""
        found = list(getattr(self, name))
        contiguous = None
        if name == self.along:
            size, _ = found.pop()
            contiguous = ceil_div(size, self.piece), 1
        counted = [(size, stride // self.piece) for size, stride in found]
        return (*counted, contiguous) if contiguous else tuple(counted)

    @property
    def tiled(self) -> bool:
        """Whether a tensor map can say where it lies: one axis of rows, one of terms, at most three of the batch."""
        single = len(self.free) == 1 and len(self.summed) == 1 and len(self.batch) <= 3
        outer = (stride for axes in (self.batch, self.free, self.summed) for _, stride in axes)
        return self.whole and single and all(stride > 0 for stride in outer)


def layout_of(product: Product, side: int, *, transposed: bool = True) -> Layout | None:
    """How an operand is read in pieces where it lies, or None where it cannot be.

    Args:
        product: what is computed.
        side: 0 for A and 1 for B.
        transposed: whether it may be contiguous along rows or columns.
    """
    leaf = product.operands[side].leaf
    if leaf.op.facts.decodes or prod(sizes(leaf)) % (PIECE // leaf.dtype.itemsize):
        return None
    return lying_layout(product, side, transposed=transposed)


def lying_layout(product: Product, side: int, *, transposed: bool = True) -> Layout | None:
    """The same of an operand that lies in whole pieces."""
    operand = product.operands[side]
    leaf = operand.leaf
    piece = PIECE // leaf.dtype.itemsize
    if operand.offset % piece:
        return None
    groups = {
        "batch": steps(product.batch, side),
        "free": steps(product.free(side), side),
        "summed": steps(product.summed, side),
    }
    for along in ("summed", "free") if transposed else ("summed",):
        inner = groups[along]
        if not inner or inner[-1][1] != 1 or (len(inner) > 1 and inner[-1][0] % piece):
            continue
        others = [
            stride
            for name, axes in groups.items()
            for _, stride in (axes[:-1] if name == along else axes)
        ]
        if all(stride % piece == 0 for stride in others):
            batch, free, summed = (groups[name] for name in ("batch", "free", "summed"))
            return Layout(leaf.dtype, along, operand.offset, batch, free, summed)
    return None


def loose_layout(product: Product, side: int, *, transposed: bool = True) -> Layout | None:
    """How an operand is read word by word where it lies in no whole pieces, or None where that is not worth while.

    Elements of 16 bits are neighbours along one axis. Those of f32 lie as they like, but lanes beside each other should read what lies together.
    """
    operand = product.operands[side]
    leaf = operand.leaf
    free, summed = (steps(axes, side) for axes in (product.free(side), product.summed))
    batch = steps(product.batch, side)
    if leaf.op.facts.decodes or any(step < 0 for axes in (batch, free, summed) for _, step in axes):
        return None
    for along, axes in (("summed", summed), ("free", free)):
        if [step for _, step in axes] == [1]:
            own = along if transposed else "summed"
            return Layout(leaf.dtype, own, operand.offset, batch, free, summed, whole=False)
    return None


def packed_layout(product: Product, side: int, dtype: DType, *, transposed: bool = True) -> Layout:
    """How an operand lies when it is packed: matrix by matrix, contiguous along what it is contiguous along now."""
    count = product.count if any(axis.strides[side] for axis in product.batch) else 1
    m = product.n if side else product.m
    free, summed = (steps(axes, side) for axes in (product.free(side), product.summed))
    nearest = [abs(axes[-1][1]) if axes else 0 for axes in (free, summed)]
    along = "free" if transposed and nearest[0] == 1 != nearest[1] else "summed"
    piece = PIECE // dtype.itemsize
    if along == "summed":
        pitch = ceil_div(product.k, piece) * piece
        rows: Steps = ((m, pitch),)
        terms: Steps = ((product.k, 1),)
        matrix = m * pitch
    else:
        pitch = ceil_div(m, piece) * piece
        rows, terms = ((m, 1),), ((product.k, pitch),)
        matrix = product.k * pitch
    batch: Steps = ((count, matrix),) if count > 1 else ()
    return Layout(dtype, along, 0, batch, rows, terms)


def packed_elements(layout: Layout) -> int:
    """Elements of a packed operand, with those that fill up its rows."""
    count = prod(size for size, _ in layout.batch)
    (free, row), (terms, term) = layout.free[0], layout.summed[0]
    return count * (free * row if layout.along == "summed" else terms * term)


# --------------------------------------------------------------------------- as tensor maps


def tensor_map(layout: Layout, binding: Binding, rows: int, dtype: str) -> TensorMap:
    """How tiles of an operand are found: with all of 128 bytes along its contiguous axis, and so many rows (or columns).

    Where rows are contiguous, a tile is 64 of them by 64 terms.
    """
    size = layout.dtype.itemsize
    (free, row), (terms, term) = layout.free[0], layout.summed[0]
    inner, outer, apart = (terms, free, row) if layout.along == "summed" else (free, terms, term)
    batch = layout.batch[::-1]
    box = (128 // size, rows if layout.along == "summed" else 64)
    return TensorMap(
        binding,
        layout.offset * size,
        dtype,
        (inner, outer, *(count for count, _ in batch)),
        tuple(stride * size for stride in (apart, *(stride for _, stride in batch))),
        (*box, *(1 for _ in batch)),
        swizzle=128,
    )
