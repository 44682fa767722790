"""``einsum``: products and sums of tensors whose axes have letters.

An equation is read once into labels (letters, and numbers for the axes of an ellipsis); operands are then
reduced on their own (diagonals, sums) and joined two at a time, cheapest first.

    >>> import darner
    >>> g = darner.Graph()
    >>> g.einsum("bij,jk->bik", g.input("x", (2, 3, 4)), g.input("w", (4, 5)))
    <%2 = dot_general : f32[2, 3, 5]>
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from ...graph import dtypes
from ...graph.dims import Dim, SymbolicDim
from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder
from ..elementwise.arithmetic import cast, mul
from ..reductions.reduce import sum_
from ..shapes.primitives import reshape, transpose
from .matrix import Label, contraction, permuted, without_ones

ELLIPSIS = "..."
Term: TypeAlias = tuple[Node, list[Label]]


@builder(family="matrix")
def einsum(graph: Graph, equation: str, *operands: Node) -> Node:
    """Sums of products by an equation of letters, as in NumPy: ``einsum("bij,bjk->bik", a, b)``.

    A letter that the result lacks is summed over; one that an operand repeats takes its diagonal. Without
    ``->`` the result has the letters that occur once, in alphabetical order. ``...`` stands for any axes,
    which broadcast, as do axes of size 1. Integers below 32 bits sum to i32.
    """
    nodes = [_node(graph, i, value) for i, value in enumerate(_flat(operands))]
    labels, wanted = _read(equation, nodes)
    terms: list[Term] = list(zip(nodes, labels, strict=True))
    _check_sizes(terms)
    terms = [_alone(*term, _needed(terms, [i], wanted)) for i, term in enumerate(terms)]
    while len(terms) > 1:
        i, j = _cheapest(terms, wanted)
        terms[i] = _joined(terms[i], terms[j], _needed(terms, (i, j), wanted), wanted)
        del terms[j]
    return permuted(*terms[0], wanted)


# --------------------------------------------------------------------------- reading


def _flat(operands: Sequence[Any]) -> Sequence[Any]:
    """Operands may also come in one list."""
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        return operands[0]
    return operands


def _node(graph: Graph, index: int, value: Any) -> Node:
    if isinstance(value, np.ndarray):
        return graph.constant(value)
    if not isinstance(value, Node):
        raise ArgumentError(
            f"operand {index} must be a node or an array, got {type(value).__name__}"
        )
    if value.graph is not graph:
        raise ArgumentError(
            f"operand {index} is a node of graph '{value.graph.name}', not of '{graph.name}'"
        )
    return value


def _read(equation: Any, nodes: Sequence[Node]) -> tuple[list[list[Label]], list[Label]]:
    """The labels of every operand and of the result."""
    if not isinstance(equation, str):
        raise ArgumentError(
            f"the equation must be text, got {type(equation).__name__}",
            hint='the call is einsum("ij,jk->ik", a, b)',
        )
    left, arrow, right = equation.replace(" ", "").partition("->")
    sources = [_tokens(source, equation) for source in left.split(",")]
    result = _tokens(right, equation) if arrow else None
    if len(sources) != len(nodes):
        raise ArgumentError(
            f"'{equation}' is for {_count(len(sources), 'operand', 'operands')}, "
            f"but {len(nodes)} came with it"
        )
    terms = [
        _labels(i, source, node.rank)
        for i, (source, node) in enumerate(zip(sources, nodes, strict=True))
    ]
    counts = Counter(label for labels in terms for label in labels)
    # The axes of an ellipsis are numbered from its right end, since that is how they broadcast.
    spread: list[Label] = sorted((n for n in counts if isinstance(n, int)), reverse=True)
    if result is None:
        once = sorted(n for n, count in counts.items() if isinstance(n, str) and count == 1)
        return terms, [*spread, *once]
    for letter in result:
        if result.count(letter) > 1:
            raise ArgumentError(f"'{letter}' is twice in the result of '{equation}'")
        if letter != ELLIPSIS and letter not in counts:
            raise ArgumentError(f"'{letter}' of the result is in no operand of '{equation}'")
    if spread and ELLIPSIS not in result:
        raise ArgumentError(
            f"'...' stands for {_count(len(spread), 'axis', 'axes')} that the result of "
            f"'{equation}' lacks",
            hint="write '...' in the result too",
        )
    wanted: list[Label] = []
    for letter in result:
        wanted.extend(spread if letter == ELLIPSIS else [letter])
    return terms, wanted


def _count(n: int, one: str, many: str) -> str:
    return f"1 {one}" if n == 1 else f"{n} {many}"


def _tokens(text: str, equation: str) -> list[str]:
    """Letters, and at most one ellipsis."""
    tokens = re.findall(r"\.\.\.|.", text)
    for token in tokens:
        if token != ELLIPSIS and not (token.isascii() and token.isalpha()):
            raise ArgumentError(
                f"{token!r} in '{equation}' is neither a letter nor part of '...'",
                hint="an equation is like 'ij,jk->ik'",
            )
    if tokens.count(ELLIPSIS) > 1:
        raise ArgumentError(f"'{text}' in '{equation}' has more than one '...'")
    return tokens


def _labels(index: int, tokens: list[str], rank: int) -> list[Label]:
    """One label for each axis of an operand."""
    letters = len(tokens) - tokens.count(ELLIPSIS)
    text = "".join(tokens)
    if rank < letters or (rank > letters and ELLIPSIS not in tokens):
        raise ShapeError(
            f"'{text}' has {_count(letters, 'letter', 'letters')}, but operand {index} has rank {rank}",
            hint="'...' stands for any further axes" if rank > letters else None,
        )
    labels: list[Label] = []
    for token in tokens:
        labels.extend(range(rank - letters, 0, -1) if token == ELLIPSIS else [token])
    return labels


def _check_sizes(terms: Sequence[Term]) -> None:
    """A label has one size (a letter within one operand exactly so), or 1."""
    known: dict[Label, tuple[Dim, int]] = {}
    for i, (node, labels) in enumerate(terms):
        own: dict[Label, Dim] = {}
        for label, size in zip(labels, node.shape, strict=True):
            what = f"'{label}'" if isinstance(label, str) else "an axis of '...'"
            if own.setdefault(label, size) != size:
                raise ShapeError(f"{what} has sizes {own[label]} and {size} in operand {i}")
            if size == 1:
                continue
            first, place = known.setdefault(label, (size, i))
            if first != size:
                raise ShapeError(
                    f"{what} has size {first} in operand {place} but {size} in operand {i}"
                )


# --------------------------------------------------------------------------- computing


def _needed(terms: Sequence[Term], taken: Iterable[int], wanted: list[Label]) -> set[Label]:
    """The labels that something after the taken terms still asks for."""
    others = [labels for i, (_, labels) in enumerate(terms) if i not in taken]
    return set(wanted).union(*others)


def _alone(x: Node, labels: list[Label], needed: set[Label]) -> Term:
    """An operand with each label once, and without those that nothing needs."""
    for label in [n for n, count in Counter(labels).items() for _ in range(count - 1)]:
        x, labels = _diagonal(x, labels, label)
    return _summed(x, labels, needed)


def _diagonal(x: Node, labels: list[Label], label: Label) -> Term:
    """Two axes of one label made one: the elements with equal indices."""
    first = labels.index(label)
    second = labels.index(label, first + 1)
    rest = [i for i in range(x.rank) if i not in (first, second)]
    moved = transpose(x, (*rest, first, second))
    return moved.diagonal(), [*(labels[i] for i in rest), label]


def _summed(x: Node, labels: list[Label], needed: set[Label]) -> Term:
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    if not axes:
        return x, labels
    return sum_(x, axes), [label for label in labels if label in needed]


def _joined(left: Term, right: Term, needed: set[Label], wanted: list[Label]) -> Term:
    """The product of two terms, with the labels that nothing else needs summed over."""
    a, a_labels = without_ones(*left, *right)
    b, b_labels = without_ones(*right, a, a_labels)
    a, a_labels = _summed(a, a_labels, needed.union(b_labels))
    b, b_labels = _summed(b, b_labels, needed.union(a_labels))
    both = [label for label in a_labels if label in b_labels]
    if all(label in needed for label in both):
        result = [*a_labels, *(label for label in b_labels if label not in both)]
        if set(result) == set(wanted):
            result = wanted
        return _multiplied((a, a_labels), (b, b_labels), result), result
    result = [label for label in both if label in needed]
    result += [label for label in (*a_labels, *b_labels) if label not in both]
    return contraction(a, a_labels, b, b_labels, result), result


def _multiplied(left: Term, right: Term, result: list[Label]) -> Node:
    """A product with nothing to sum: element-wise, with axes of size 1 for the labels one lacks."""
    common = dtypes.promote(left[0].dtype, right[0].dtype)
    wide = dtypes.accumulator(common)
    spread = []
    for x, labels in (left, right):
        x = permuted(x, labels, [label for label in result if label in labels])
        first = min((result.index(label) for label in labels), default=len(result))
        sizes = iter(x.shape)
        shape = tuple(next(sizes) if label in labels else 1 for label in result[first:])
        x = x if shape == x.shape else reshape(x, shape)
        # Sums of small integers are i32, and so is a product that happens to sum nothing.
        spread.append(x if wide is common else cast(x, wide))
    return mul(*spread)


def _cheapest(terms: Sequence[Term], wanted: list[Label]) -> tuple[int, int]:
    """The pair whose product adds the fewest elements, then the one with the least arithmetic.

    The first two where sizes are not known.
    """
    if len(terms) == 2 or any(isinstance(size, SymbolicDim) for x, _ in terms for size in x.shape):
        return 0, 1

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        needed = _needed(terms, pair, wanted)
        sizes: dict[Label, int] = {}
        for x, labels in (terms[i] for i in pair):
            for label, size in zip(labels, x.shape, strict=True):
                if sizes.get(label, 1) == 1:
                    sizes[label] = int(size)
        kept = math.prod(size for label, size in sizes.items() if label in needed)
        removed = sum(int(terms[i][0].size) for i in pair)
        return kept - removed, math.prod(sizes.values())

    return min(combinations(range(len(terms)), 2), key=cost)
