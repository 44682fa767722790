"""What part a kernel of a plan can play in a chain: a product, an attention, or what is so small that every block computes it for itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from ....codegen.elements.elements import can_emit
from ....codegen.problems.attention import FORWARD, Described, described, main_node
from ....codegen.simt.contract.product import Product, product_at, steps
from ....codegen.simt.dispatch import operand_number
from ....graph.node import Node
from ....lower.plan import Spec
from ....lower.roles import is_sum
from ....lower.specs import sizes

MOST_ROWS = 8
"""Rows of a product, and queries of the heads that share keys."""
MOST_LIGHT = 16384
"""Elements that every block computes for itself."""
MOST_REDUCED = 65536
"""Elements of which it computes sums."""
VECTOR = 16
"""Bytes of the widest load."""
WEIGHTS = ("bf16", "f16", "f32")
"""The types of matrices."""
WORD = 4
"""Bytes of the largest element that blocks hand each other."""
MOST_WIDTH = 256
"""Numbers of a row of keys."""


@dataclass(frozen=True)
class Matrix:
    """A product of a few rows with a matrix that lies in memory.

    Attributes:
        product: with the matrix as its second operand.
        x: which operand of the kernel the rows are.
        weight: which one the matrix is.
        by_columns: whether columns of the matrix are neighbours in memory, or the terms of a column.
        pitch: elements from one row of the matrix in memory to the next.
        vector: elements of a load.
        tail: which columns the results of the kernel are made of, where these are several.
    """

    product: Product
    x: int
    weight: int
    by_columns: bool
    pitch: int
    vector: int
    tail: Tail | None = None


@dataclass(frozen=True)
class Tail:
    """What is element-wise after a product, each of whose elements is made of a few columns of it.

    Attributes:
        starts: the first of the columns that it reads, for each of its slices.
        columns: that it makes.
    """

    starts: tuple[int, ...]
    columns: int


@lru_cache(maxsize=4096)
def matrix_of(spec: Spec) -> Matrix | None:
    """The product of a kernel, if it has a few rows that lie one after the other."""
    found = [node for node in spec.body.nodes if node.op.name == "dot_general"]
    if spec.kind != "contract" or not can_emit(spec.body) or len(found) != 1:
        return None
    (node,) = found
    left, right = node.operands
    if left.dtype is not right.dtype or node.dtype.name != "f32":
        return None
    product = product_at(node)
    if product is None or product.count != 1 or not all(map(_is_word, spec.body.outputs)):
        return None
    made = next(filter(None, map(_matrix, (product, product.turned()))), None)
    if made is None or all(output.shape == node.shape for output in spec.body.outputs):
        return made
    tail = _sliced(spec, node, made.product.m)
    return None if tail is None or not fits(made, tail) else replace(made, tail=tail)


def fits(matrix: Matrix, tail: Tail) -> bool:
    """Whether what comes after a product can be done where its columns are."""
    ends = (tail.columns, *tail.starts)
    return not matrix.by_columns or all(end % matrix.vector == 0 for end in ends)


def _is_word(node: Node) -> bool:
    return node.dtype.itemsize <= WORD and node.dtype.kind != "complex"


def _matrix(product: Product) -> Matrix | None:
    rows, matrix = product.operands
    m, n, k = product.m, product.n, product.k
    if m > MOST_ROWS or rows.leaf.op.name != "input" or matrix.leaf.op.name != "input":
        return None
    if matrix.leaf.dtype.name not in WEIGHTS or rows.leaf.dtype.name not in WEIGHTS:
        return None
    # The result row by row, and so the rows.
    apart = [axis.apart for axis in (*product.rows, *product.columns)]
    own = [axis.size for axis in (*product.rows, *product.columns)]
    if any(a != prod(own[i + 1 :]) for i, a in enumerate(apart)) or rows.offset:
        return None
    if steps(product.summed, 0) != ((k, 1),) or steps(product.rows, 0) not in ((), ((m, k),)):
        return None
    vector = VECTOR // matrix.leaf.dtype.itemsize
    columns, summed = steps(product.columns, 1), steps(product.summed, 1)
    if len(columns) != 1 or len(summed) != 1 or matrix.offset % vector:
        return None
    (_, along), (_, down) = columns[0], summed[0]
    by_columns = along == 1
    if not by_columns and down != 1:
        return None
    pitch, inner = (down, n) if by_columns else (along, k)
    if pitch % vector or inner % vector or pitch < 1 or not m * n * k:
        return None
    numbers = operand_number(rows.leaf), operand_number(matrix.leaf)
    return Matrix(product, *numbers, by_columns, pitch, vector)


@lru_cache(maxsize=4096)
def attention_of(spec: Spec) -> Described | None:
    """The attention of a kernel, if it has a few queries for each head of keys."""
    node = main_node(spec) if spec.kind == "attention" else None
    if node is None or node.op.name != FORWARD or len(spec.body.outputs) != 1:
        return None
    found = described(node)
    lane = VECTOR // 2
    if {"mask", "bias"} & found.operands.keys() or found.accumulator != "f32" or found.is_empty:
        return None
    if found.group * found.queries > MOST_ROWS or found.width != found.value_width:
        return None
    if found.width % lane or found.width > MOST_WIDTH or found.keys < 1:
        return None
    for name in ("q", "k", "v"):
        operand = found.operands[name]
        if operand.base.op.name != "input" or operand.strides[3] not in (0, 1):
            return None
        whole = (operand.offset, *operand.strides[:3])
        if name != "q" and any(number % lane for number in whole):
            return None
    after = spec.body.nodes[node.id + 1 :]
    plain = all("elementwise" in n.op.traits or n.op.name in ("reshape", "constant") for n in after)
    return found if plain and _is_word(spec.body.outputs[0]) else None


@lru_cache(maxsize=4096)
def is_light(spec: Spec, besides: frozenset[int] = frozenset()) -> bool:
    """Whether every block can compute a kernel for itself, ``besides`` some of its results."""
    body = spec.body
    outputs = [out for number, out in enumerate(body.outputs) if number not in besides]
    if spec.kind not in ("map", "rows") or not can_emit(body):
        return False
    if sum(prod(sizes(out)) for out in outputs) > MOST_LIGHT:
        return False
    if not all(_is_word(out) and prod(sizes(out)) for out in outputs):
        return False
    for node in body.nodes:
        if node.op.facts.role == "contract" or node.op.facts.finds:
            return False
        if is_sum(node) and (
            {node.dtype.name, node.operands[0].dtype.name} != {"f32"}
            or prod(sizes(node.operands[0])) > MOST_REDUCED
            or not prod(sizes(node.operands[0]))
        ):
            return False
    return True


@lru_cache(maxsize=4096)
def is_update(spec: Spec) -> bool:
    """Whether a kernel replaces a block of an operand that every block can write for itself."""
    if spec.kind != "index" or len(spec.body.outputs) != 1:
        return False
    (node,) = spec.body.outputs
    if node.op.name != "dynamic_update_slice" or node.operands[0].op.name != "input":
        return False
    return can_emit(spec.body) and 0 < prod(sizes(node.operands[1])) <= MOST_LIGHT


def replaced(spec: Spec) -> int:
    """The operand that such a kernel replaces a block of."""
    return operand_number(spec.body.outputs[0].operands[0])


@lru_cache(maxsize=4096)
def rounded_copies(spec: Spec) -> dict[int, int]:
    """The results of a kernel that are an operand in another type of float, element by element: who reads one can round for itself. Which operand each is of."""
    found = {}
    for number, out in enumerate(spec.body.outputs if spec.kind == "map" else ()):
        if out.op.name == "cast" and out.operands[0].op.name == "input":
            (leaf,) = out.operands
            if {leaf.dtype.name, out.dtype.name} <= {"f32", "bf16", "f16"}:
                found[number] = operand_number(leaf)
    return found


@lru_cache(maxsize=4096)
def tail_of(spec: Spec, rows: int) -> Tail | None:
    """How a kernel reads the result of a product of some rows, if that is all it reads, in columns that lie side by side."""
    if spec.kind != "map" or len(spec.inputs) != 1:
        return None
    return _sliced(spec, spec.inputs[0], rows)


def _sliced(spec: Spec, whole: Node, rows: int) -> Tail | None:
    """The columns of a value of some rows that a body reads, where all that comes after it is element-wise."""
    body, shape = spec.body, sizes(spec.body.outputs[0])
    if not shape or prod(shape[:-1]) != rows or tuple(sizes(whole)[:-1]) != tuple(shape[:-1]):
        return None
    if any(sizes(out) != shape or not _is_word(out) for out in body.outputs):
        return None
    starts, made = [], {whole.id}
    for node in body.nodes:
        if not made.intersection(node.inputs):
            continue
        made.add(node.id)
        if node.op.name == "slice" and node.operands[0] is whole:
            *before, start = (int(s) for s in node.attrs["starts"])
            if any(before) or sizes(node) != shape or set(node.attrs["steps"] or (1,)) != {1}:
                return None
            starts.append(start)
        elif "elementwise" not in node.op.traits or whole.id in node.inputs:
            return None
    if not starts or not can_emit(body):
        return None
    return Tail(tuple(dict.fromkeys(starts)), shape[-1])
