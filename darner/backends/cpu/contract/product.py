"""A ``dot_general`` of views as a contraction of matrices: which axes are rows, columns and sums, and their strides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from ....codegen.ir.types import ACCUMULATOR
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.specs import sizes
from ....lower.strided import merged_stride, row_major, strided
from ....ops.quantised.scheme import QuantScheme
from .plan import Contraction

FEW_COLUMNS = 24
MANY_ROWS = 48
"""From so many rows on, contiguous in memory, few columns become rows and rows become columns."""
FEW_DOTS = 16
"""The same for rows of contiguous terms, which are then multiplied term by term: how many columns there are at most,"""
TERMS_OF_DOT = 32
"""and how many terms there are at least for each column."""


@dataclass(frozen=True)
class Side:
    """An operand of a product as strides.

    Attributes:
        leaf: the input of the body that it views, or what is decoded.
        offset: of its first element.
        batch: the strides of the batch axes.
        outer: sizes and strides of axes that only this operand has and that do not follow the inner ones.
        inner: sizes of the axes that only this operand has, those of ``outer`` left out.
        free: the stride of ``inner``, taken as one axis.
        summed: the stride of the summed axes that are one, the innermost.
        strided_terms: the strides of the other summed axes.
    """

    leaf: Node
    offset: int
    batch: tuple[int, ...]
    outer: tuple[tuple[int, int], ...]
    inner: tuple[int, ...]
    free: int
    summed: int
    strided_terms: tuple[int, ...]

    @property
    def decoded(self) -> bool:
        """Whether it lies in memory in fewer bits than it is multiplied in."""
        return self.leaf.op.facts.decodes

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the axes that only this operand has."""
        return (*(size for size, _ in self.outer), *self.inner)


@dataclass(frozen=True)
class Loop:
    """An axis that is neither rows nor columns nor summed: its size, and its strides in A, B and the result."""

    size: int
    a: int
    b: int
    c: int


@dataclass(frozen=True)
class Product:
    """A ``dot_general`` as a contraction of matrices.

    Attributes:
        node: the product in the body.
        a: the operand whose free axes are the rows.
        b: the operand whose free axes are the columns.
        loops: the axes around the matrices: the batch, then what is left of rows and of columns.
        contraction: the sizes, and strides of rows, columns and sums.
        transposed: whether the body's first operand is ``b``.
    """

    node: Node
    a: Side
    b: Side
    loops: tuple[Loop, ...]
    contraction: Contraction
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of ``loops``."""
        return tuple(axis.size for axis in self.loops)


def _side(node: Node, operand: Node, letter: str, together: int) -> Side | None:
    """An operand's strides, or None where it is no input of the body that strides can describe.

    ``together`` is how many of the summed axes are taken as one.
    """
    seen = strided(operand, widened=True)
    if seen is None or not (seen.base.op.name == "input" or seen.base.op.facts.decodes):
        return None
    shape = sizes(operand)
    summed, batch = node.attrs[f"{letter}_contract"], node.attrs[f"{letter}_batch"]
    free = [axis for axis in range(operand.rank) if axis not in (*summed, *batch)]
    last = _follow(free, shape, seen.strides)
    outer, inner = free[: len(free) - last], free[len(free) - last :]
    strided_terms, whole = summed[: len(summed) - together], summed[len(summed) - together :]

    def merged(axes: Sequence[int]) -> int:
        return merged_stride([shape[i] for i in axes], [seen.strides[i] for i in axes]) or 0

    return Side(
        seen.base,
        seen.offset,
        tuple(seen.strides[i] if shape[i] != 1 else 0 for i in batch),
        tuple((shape[i], seen.strides[i]) for i in outer),
        tuple(shape[i] for i in inner),
        merged(inner),
        merged(whole),
        tuple(seen.strides[i] for i in strided_terms),
    )


def _follow(axes: Sequence[int], shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many of some axes, from the last, can be taken as one."""
    for count in range(len(axes), 0, -1):
        last = axes[len(axes) - count :]
        if merged_stride([shape[i] for i in last], [strides[i] for i in last]) is not None:
            return count
    return 0


def _summed_together(node: Node) -> int:
    """How many of the summed axes, from the last, are one in both operands."""
    least = len(node.attrs["a_contract"])
    for operand, letter in zip(node.operands, "ab", strict=True):
        seen = strided(operand, widened=True)
        if seen is not None:
            axes = node.attrs[f"{letter}_contract"]
            least = min(least, _follow(axes, sizes(operand), seen.strides))
    return least


def product_of(spec: Spec) -> Product | None:
    """The product of a body, if there is one that this template has code for."""
    found = [node for node in spec.body.nodes if node.op.name == "dot_general"]
    if len(found) != 1 or found[0].dtype.name not in ACCUMULATOR:
        return None
    (node,) = found
    left, right = node.operands
    if left.dtype is not node.dtype or right.dtype is not node.dtype:
        return None
    if any(output.shape != node.shape for output in spec.body.outputs):
        return None
    together = _summed_together(node)
    a, b = _side(node, left, "a", together), _side(node, right, "b", together)
    if a is None or b is None or a.leaf.dtype is not b.leaf.dtype:
        return None
    if not all(_can_decode(side, x) for side, x in ((a, left), (b, right))):
        return None
    if a.decoded and b.decoded:
        return None
    summed = [sizes(left)[i] for i in node.attrs["a_contract"]]
    strided_terms = summed[: len(summed) - together]
    transposed = _is_better_transposed(a, b, 0 if strided_terms else prod(summed))
    if a.decoded or b.decoded:
        transposed = a.decoded
    if transposed:
        a, b = b, a
    loops = _loops(node, left, a, b, transposed)
    m, n = prod(a.inner), prod(b.inner)
    contraction = Contraction(
        a.leaf.dtype.name,
        prod(axis.size for axis in loops),
        m,
        n,
        prod(summed),
        (0, a.free, a.summed),
        (0, b.summed, b.free),
        (m * n, 1, prod(a.sizes)) if transposed else (m * n, prod(b.sizes), 1),
        strided_terms=tuple(zip(strided_terms, a.strided_terms, b.strided_terms, strict=True)),
        decoded=_run_of(b),
    )
    return _with_rows_of_batch(Product(node, a, b, loops, contraction, transposed))


def _run_of(side: Side) -> int:
    """How many terms lie side by side in the blocks of a decoded operand, 1 where none do; 0 of what lies in memory."""
    if not side.decoded:
        return 0
    scheme = QuantScheme(side.leaf.attrs["scheme"])
    return scheme.layout.run if side.summed == 1 and scheme.is_packed else 1


def decoded_axis(product: Product) -> int:
    """The axis of a decoded B that is summed over, through transposes."""
    letter = "a" if product.transposed else "b"
    operand = product.node.operands[0 if product.transposed else 1]
    axis = int(product.node.attrs[f"{letter}_contract"][0])
    while operand.id != product.b.leaf.id:
        axis = int(operand.attrs["perm"][axis])
        (operand,) = operand.operands
    return axis


def _can_decode(side: Side, operand: Node) -> bool:
    """Whether an operand lies in memory, or is a matrix of f32 that is decoded, transposed or not, or one for each of a batch."""
    if not side.decoded:
        return True
    while operand.op.name == "transpose" and operand.rank == 2:
        (operand,) = operand.operands
    plain = operand.id == side.leaf.id and operand.dtype.name == "f32"
    matrices = len(side.batch) == operand.rank - 2
    return plain and matrices and not (side.outer or side.strided_terms)


def _is_better_transposed(a: Side, b: Side, terms: int) -> bool:
    """Whether the rows should be columns: few columns would leave most lanes empty.

    ``terms`` are those of a sum that follow each other in both operands.
    """
    rows, columns = prod(a.inner), prod(b.sizes)
    if a.summed == 1 and columns <= min(FEW_DOTS, terms // TERMS_OF_DOT) and rows > columns > 1:
        return prod(b.inner) == columns
    if columns == 1 or a.free != 1:
        return columns == 1 != prod(a.sizes)
    return columns <= FEW_COLUMNS and rows >= MANY_ROWS and prod(b.inner) == columns


def _loops(node: Node, left: Node, a: Side, b: Side, transposed: bool) -> tuple[Loop, ...]:
    """The axes around the matrices of a product, in the order of the result's."""
    places = row_major(sizes(node))
    batch = [sizes(left)[i] for i in node.attrs["a_batch"]]
    count = len(batch)
    loops = [
        Loop(size, *strides)
        for size, *strides in zip(batch, a.batch, b.batch, places, strict=False)
    ]
    rows, columns = (count + len(b.sizes), count) if transposed else (count, count + len(a.sizes))
    own = [Loop(size, stride, 0, places[rows + i]) for i, (size, stride) in enumerate(a.outer)]
    other = [Loop(size, 0, stride, places[columns + i]) for i, (size, stride) in enumerate(b.outer)]
    return (*loops, *own, *other)


def _with_rows_of_batch(product: Product) -> Product:
    """Take batch axes that repeat B as rows, where they follow A's: B is then packed once for all of them."""
    a, b, contraction = product.a, product.b, product.contraction
    if product.transposed or a.outer or b.outer or any(b.batch) or contraction.batch < 2:
        return product
    step = merged_stride((*product.shape, contraction.m), (*a.batch, a.free))
    if step is None:
        return product
    rows = replace(a, batch=(), free=step, inner=(*product.shape, *a.inner))
    merged = replace(
        contraction,
        batch=1,
        m=contraction.batch * contraction.m,
        a_strides=(0, step, a.summed),
    )
    return replace(product, a=rows, b=replace(b, batch=()), loops=(), contraction=merged)
