"""Matrix products.

All of them are one idea, ``contraction``: axes have labels, a label of both operands that the result
lacks is summed over, and sizes of 1 stand for any size. Nothing is copied to make batches equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ...graph import dtypes
from ...graph.attributes import Number
from ...graph.dims import Dim, format_shape
from ...graph.errors import ShapeError
from ...graph.facts import Facts
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import Op, builder, composite
from ...graph.types import TensorType
from ..axes import align
from ..complex_numbers.numbers import conjugated
from ..samples import ints, sample, spec
from ..shapes.primitives import reshape, transpose
from .contract import dot_general

FAMILY = "matrix"

Label: TypeAlias = str | int
Labels: TypeAlias = Sequence[Label]


# --------------------------------------------------------------------------- the one contraction


def contraction(a: Node, a_labels: Labels, b: Node, b_labels: Labels, wanted: Labels) -> Node:
    """The product of two tensors with labelled axes, as one ``dot_general`` and views.

    Labels of both operands are summed over unless ``wanted`` has them; every other label must be in
    ``wanted``, which gives the order of the result. A size of 1 stands for any size.
    """
    a, a_labels = without_ones(a, a_labels, b, b_labels)
    b, b_labels = without_ones(b, b_labels, a, a_labels)
    both = [label for label in a_labels if label in b_labels]
    batch = [label for label in both if label in wanted]
    inner = [label for label in both if label not in wanted]
    result: Node = dot_general(
        a,
        b,
        tuple(map(a_labels.index, inner)),
        tuple(map(b_labels.index, inner)),
        tuple(map(a_labels.index, batch)),
        tuple(map(b_labels.index, batch)),
    )
    found = [
        *batch,
        *(n for n in a_labels if n not in both),
        *(n for n in b_labels if n not in both),
    ]
    return permuted(result, found, wanted)


def permuted(x: Node, labels: Labels, wanted: Labels) -> Node:
    """``x`` with its axes in the order of ``wanted``, untouched where they already are."""
    order = tuple(map(list(labels).index, wanted))
    if order == tuple(range(x.rank)):
        return x
    result: Node = transpose(x, order)
    return result


def without_ones(x: Node, labels: Labels, other: Node, others: Labels) -> tuple[Node, list[Label]]:
    """``x`` without the axes of size 1 that the other operand has at another size."""
    sizes = dict(zip(others, other.shape, strict=True))
    kept = [
        i
        for i, (label, size) in enumerate(zip(labels, x.shape, strict=True))
        if size != 1 or sizes.get(label, 1) == 1
    ]
    if len(kept) == x.rank:
        return x, list(labels)
    return reshape(x, [x.shape[i] for i in kept]), [labels[i] for i in kept]


def _batched(a: Node, a_labels: Labels, b: Node, b_labels: Labels) -> Node:
    """The product over "k" of vectors, matrices or batches, whose last axes have these labels."""
    # Batch axes are labelled by their distance from the matrix, since that is how they broadcast.
    full_a, full_b = _labelled(a, a_labels), _labelled(b, b_labels)
    batch = range(max(a.rank - len(a_labels), b.rank - len(b_labels)), 0, -1)
    kept = [label for label in "mn" if label in full_a or label in full_b]
    return contraction(a, full_a, b, full_b, [*batch, *kept])


def _labelled(x: Node, labels: Labels) -> list[Label]:
    return [*range(x.rank - len(labels), 0, -1), *labels]


def _received(
    x: Node, x_labels: Labels, g: Node, other: Node, other_labels: Labels, plain: Callable[[], Node]
) -> Node:
    """What operand ``x`` of a product receives: ``plain()``, unless ``x`` was broadcast or a vector.

    Otherwise one contraction also sums over the axes along which ``x`` was repeated.
    """
    if x.rank > 1 and other.rank > 1 and x.shape[:-2] == g.shape[:-2]:
        return plain()
    kept = [label for label in "mn" if label in x_labels or label in other_labels]
    full_x, full_g = _labelled(x, x_labels), _labelled(g, kept)
    full_other = _labelled(other, other_labels)
    sizes = dict(zip(full_g, g.shape, strict=True))
    wanted = [
        label for label, size in zip(full_x, x.shape, strict=True) if sizes.get(label, size) == size
    ]
    if x_labels[0] in kept:
        result = contraction(g, full_g, other, full_other, wanted)
    else:
        result = contraction(other, full_other, g, full_g, wanted)
    return result if result.shape == x.shape else reshape(result, x.shape)


def _over_batch(op: Op, batched: dict[str, Any], a: Node, b: Node) -> Node:
    """A product of matrices over a batch: its axis is one more that broadcasts."""
    rank = max(a.rank - batched["a"], b.rank - batched["b"])
    return op(align(a, batched["a"], rank), align(b, batched["b"], rank))


def _batch(a: TensorType, b: TensorType) -> tuple[Dim, ...]:
    """The axes before the last two, broadcast together."""
    left, right = a.shape[:-2][::-1], b.shape[:-2][::-1]
    result: list[Dim] = []
    for i in range(max(len(left), len(right))):
        one = left[i] if i < len(left) else 1
        other = right[i] if i < len(right) else 1
        if one != other and 1 not in (one, other):
            raise ShapeError(f"batch sizes {one} and {other} on axis {-3 - i} do not broadcast")
        result.append(other if one == 1 else one)
    return tuple(result[::-1])


def check_inner(left: Dim, right: Dim) -> None:
    """Refuse to sum over axes of different sizes."""
    if left != right:
        raise ShapeError(f"inner sizes {left} and {right} differ")


def _check_matrices(a: TensorType, b: TensorType) -> None:
    for name, operand in (("a", a), ("b", b)):
        if operand.rank < 2:
            raise ShapeError(
                f"{name} must be a matrix or a batch of them, not {format_shape(operand.shape)}"
            )


# --------------------------------------------------------------------------- products


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, multiplies=("a", "b")),
    samples=[
        sample(spec(3, 5), spec(5, 4)),
        sample(spec(5), spec(5)),
        sample(spec(3, 5), spec(5)),
        sample(spec(5), spec(2, 5, 4)),
        sample(spec(2, 3, 5), spec(5, 4)),
        sample(spec(3, 5), spec(2, 5, 4)),
        sample(spec(2, 1, 3, 4), spec(1, 5, 4, 2)),
        sample(spec(3, 0), spec(0, 2)),
        sample(spec(2, 0, 3), spec(3, 1)),
        sample(ints(3, 4, low=-9, high=9, dtype="i8"), ints(4, 2, low=-9, high=9, dtype="i8")),
    ],
)
def matmul(a: Number, b: Number) -> TensorType:
    """Matrix product of the last two axes; the axes before them broadcast.

    A vector on the left is a row, on the right a column, and that axis is gone from the result.
    Integers below 32 bits sum to i32.
    """
    for name, operand in (("a", a), ("b", b)):
        if operand.rank == 0:
            raise ShapeError(f"{name} is a scalar", hint="multiply with a * b")
    rows = a if a.rank > 1 else a.with_shape((1, *a.shape))
    columns = b if b.rank > 1 else b.with_shape((*b.shape, 1))
    check_inner(rows.shape[-1], columns.shape[-2])
    shape = list(_batch(rows, columns))
    if a.rank > 1:
        shape.append(a.shape[-2])
    if b.rank > 1:
        shape.append(b.shape[-1])
    return TensorType(tuple(shape), dtypes.accumulator(a.dtype))


@matmul.expand
def _(a: Node, b: Node) -> Node:
    return _batched(a, ("m", "k")[-a.rank :], b, ("k", "n")[: b.rank])


@matmul.vjp
def _(g: Node, out: Node, a: Node, b: Node) -> Any:
    mk, kn = ("m", "k")[-a.rank :], ("k", "n")[: b.rank]
    return {
        "a": lambda: _received(a, mk, g, b, kn, lambda: matmul_bt(g, b)),
        "b": lambda: _received(b, kn, g, a, mk, lambda: matmul_at(a, g)),
    }


@matmul.vmap
def _(size: Dim, batched: dict[str, Any], a: Node, b: Node) -> Node:
    row, column = a.rank - batched["a"] == 1, b.rank - batched["b"] == 1
    if row and b.rank <= 2 and not batched["b"]:
        return matmul(a, b)  # the batch of rows is a matrix
    if row:
        a = reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    if column:
        b = reshape(b, (*b.shape, 1))
    result = _over_batch(matmul, batched, a, b)
    if not (row or column):
        return result
    kept = result.shape[:-2]
    rows, columns = result.shape[-2:]
    return reshape(result, (*kept, *(() if row else (rows,)), *(() if column else (columns,))))


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, multiplies=("a", "b")),
    samples=[
        sample(spec(5, 3), spec(5, 4)),
        sample(spec(2, 5, 3), spec(2, 5, 4)),
        sample(spec(2, 5, 3), spec(5, 4)),
        sample(spec(5, 3), spec(2, 5, 4)),
        sample(spec(0, 2), spec(0, 3)),
        sample(spec(1, 3), spec(1, 0)),
        sample(ints(4, 3, low=-9, high=9, dtype="i8"), ints(4, 2, low=-9, high=9, dtype="i8")),
    ],
)
def matmul_at(a: Number, b: Number) -> TensorType:
    """``a.T @ b`` for a [K, M] and b [K, N]: the gradient of a weight. Axes in front broadcast."""
    _check_matrices(a, b)
    check_inner(a.shape[-2], b.shape[-2])
    shape = (*_batch(a, b), a.shape[-1], b.shape[-1])
    return TensorType(shape, dtypes.accumulator(a.dtype))


@matmul_at.expand
def _(a: Node, b: Node) -> Node:
    return _batched(a, ("k", "m"), b, ("k", "n"))


@matmul_at.vjp
def _(g: Node, out: Node, a: Node, b: Node) -> Any:
    km, kn = ("k", "m"), ("k", "n")
    return {
        "a": lambda: _received(a, km, g, b, kn, lambda: matmul_bt(b, g)),
        "b": lambda: _received(b, kn, g, a, km, lambda: matmul(a, g)),
    }


@matmul_at.vmap
def _(size: Dim, batched: dict[str, Any], a: Node, b: Node) -> Node:
    return _over_batch(matmul_at, batched, a, b)


@composite(
    family=FAMILY,
    facts=Facts(full_rate=True, multiplies=("a", "b")),
    samples=[
        sample(spec(3, 5), spec(4, 5)),
        sample(spec(2, 3, 5), spec(2, 4, 5)),
        sample(spec(2, 3, 5), spec(4, 5)),
        sample(spec(1, 2, 3, 5), spec(3, 1, 4, 5)),
        sample(spec(2, 0), spec(3, 0)),
        sample(spec(1, 3), spec(0, 3)),
        sample(ints(3, 4, low=-9, high=9, dtype="i8"), ints(2, 4, low=-9, high=9, dtype="i8")),
    ],
)
def matmul_bt(a: Number, b: Number) -> TensorType:
    """``a @ b.T`` for a [M, K] and b [N, K]: the gradient of an input. Axes in front broadcast."""
    _check_matrices(a, b)
    check_inner(a.shape[-1], b.shape[-1])
    shape = (*_batch(a, b), a.shape[-2], b.shape[-2])
    return TensorType(shape, dtypes.accumulator(a.dtype))


@matmul_bt.expand
def _(a: Node, b: Node) -> Node:
    return _batched(a, ("m", "k"), b, ("n", "k"))


@matmul_bt.vjp
def _(g: Node, out: Node, a: Node, b: Node) -> Any:
    mk, nk = ("m", "k"), ("n", "k")
    return {
        "a": lambda: _received(a, mk, g, b, nk, lambda: matmul(g, b)),
        "b": lambda: _received(b, nk, g, a, mk, lambda: matmul_at(g, a)),
    }


@matmul_bt.vmap
def _(size: Dim, batched: dict[str, Any], a: Node, b: Node) -> Node:
    return _over_batch(matmul_bt, batched, a, b)


@builder(family=FAMILY)
def dot(graph: Graph, a: Node, b: Node, shape: Any = None) -> Node:
    """The sum of the products of two vectors, a scalar."""
    _check_vectors(a, b)
    return matmul(a, b, shape=shape)


@builder(family=FAMILY)
def vdot(graph: Graph, a: Node, b: Node, shape: Any = None) -> Node:
    """Like ``dot``, with the conjugate of ``a`` where it is complex."""
    _check_vectors(a, b)
    return matmul(conjugated(a), b, shape=shape)


@builder(family=FAMILY)
def outer(graph: Graph, a: Node, b: Node, shape: Any = None) -> Node:
    """Every product of an element of the vector ``a`` (rows) and one of ``b`` (columns)."""
    _check_vectors(a, b)
    return reshape(a, (*a.shape, 1)).mul(b, shape=shape)


def _check_vectors(a: Node, b: Node) -> None:
    for name, operand in (("a", a), ("b", b)):
        if operand.rank != 1:
            raise ShapeError(f"{name} must be a vector, not {format_shape(operand.shape)}")
