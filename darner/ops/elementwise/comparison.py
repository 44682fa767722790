"""Comparison, logic and bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...graph import dtypes
from ...graph.attributes import Mask, Real, RealNumber, Tensor
from ...graph.errors import ArgumentError
from ...graph.facts import PLAIN, Facts
from ...graph.node import Node
from ...graph.op import Op, Rule, primitive
from ...graph.scalar import Emit, Scalar
from ...graph.types import TensorType, broadcast
from ..complex_numbers.parts import Pair
from ..declare import binary, unary
from ..samples import PAIRS, bools, ints, pairs, sample

_INTS = [sample(ints(*a, low=-9, high=10), ints(*b, low=-9, high=10)) for a, b in PAIRS]
_BITS = [sample(ints(*a, high=250, dtype="u8"), ints(*b, high=7, dtype="u8")) for a, b in PAIRS]
_BOOLS = [sample(bools(*a), bools(*b)) for a, b in PAIRS]


def _comparison(
    name: str, doc: str, numpy: Rule, sign: str, *, kind: Any = Real, commutative: bool = False
) -> Op:
    def compared(a: Scalar, b: Scalar, signed: bool = False) -> Scalar:
        return a.compare(sign, b, signed=signed)

    return binary(
        name,
        doc,
        numpy,
        kind=kind,
        result=dtypes.bool_,
        commutative=commutative,
        samples=[*pairs(), *_INTS, *_BOOLS[:2]],
        family="comparison",
        emit=Emit(compared, compared, compared),
        facts=Facts(cheap=True),
    )


eq = _comparison("eq", "a == b, as bool.", np.equal, "==", kind=Tensor, commutative=True)
ne = _comparison("ne", "a != b, as bool.", np.not_equal, "!=", kind=Tensor, commutative=True)
lt = _comparison("lt", "a < b, as bool.", np.less, "<")
le = _comparison("le", "a <= b, as bool.", np.less_equal, "<=")
gt = _comparison("gt", "a > b, as bool.", np.greater, ">")
ge = _comparison("ge", "a >= b, as bool.", np.greater_equal, ">=")


@eq.pairs
def _(a: Pair, b: Pair) -> Node:
    both: Node = a.re.eq(b.re).logical_and(a.im.eq(b.im))
    return both


@ne.pairs
def _(a: Pair, b: Pair) -> Node:
    either: Node = a.re.ne(b.re).logical_or(a.im.ne(b.im))
    return either


def _logic(name: str, doc: str, numpy: Rule, emit: Rule, facts: Facts = PLAIN) -> Op:
    return binary(
        name,
        doc,
        numpy,
        kind=Mask,
        commutative=True,
        samples=_BOOLS,
        family="comparison",
        emit=Emit(bools=emit),
        facts=facts,
    )


logical_and = _logic(
    "logical_and", "a and b.", np.logical_and, lambda a, b: a & b, Facts(cheap=True)
)
logical_or = _logic("logical_or", "a or b.", np.logical_or, lambda a, b: a | b)
logical_xor = _logic("logical_xor", "Exactly one of a and b.", np.logical_xor, lambda a, b: a ^ b)
logical_not = unary(
    "logical_not",
    "not x.",
    np.logical_not,
    kind=Mask,
    samples=[sample(bools(*shape)) for shape in ((), (0,), (3, 5))],
    family="comparison",
    emit=Emit(bools=lambda x: ~x),
)


def _bitwise(name: str, doc: str, numpy: Rule, emit: Rule, *, commutative: bool = False) -> Op:
    def infer(a: TensorType, b: TensorType) -> TensorType:
        if not a.dtype.is_int:
            raise ArgumentError(f"bits of {a.dtype} cannot be combined", hint="cast to an integer")
        return TensorType(broadcast(a.shape, b.shape), a.dtype)

    infer.__annotations__ = {"a": RealNumber, "b": RealNumber}
    infer.__doc__ = doc
    traits = ["elementwise", *(["commutative"] if commutative else [])]
    op = primitive(family="bits", name=name, samples=_BITS, traits=traits)(infer)
    op.reference(lambda a, b: numpy(a, b))
    op.emit(emit, of="integers")
    return op


def _shifted_left(a: Scalar, b: Scalar, *, signed: bool) -> Scalar:
    inside = b.compare("<", a.bits, signed=False)
    return inside.choose(a.shift_left(inside.choose(b, 0)), 0)


def _shifted_right(a: Scalar, b: Scalar, *, signed: bool) -> Scalar:
    inside = b.compare("<", a.bits, signed=False)
    if not signed:
        return inside.choose(a.shift_right(inside.choose(b, 0), signed=False), 0)
    return a.shift_right(inside.choose(b, a.bits - 1), signed=True)


bitwise_and = _bitwise(
    "bitwise_and",
    "The bits set in both integers.",
    np.bitwise_and,
    lambda a, b, signed: a & b,
    commutative=True,
)
bitwise_or = _bitwise(
    "bitwise_or",
    "The bits set in either.",
    np.bitwise_or,
    lambda a, b, signed: a | b,
    commutative=True,
)
bitwise_xor = _bitwise(
    "bitwise_xor",
    "The bits set in one.",
    np.bitwise_xor,
    lambda a, b, signed: a ^ b,
    commutative=True,
)
shift_left = _bitwise(
    "shift_left", "a moved b bits up; b is below the width.", np.left_shift, _shifted_left
)
shift_right = _bitwise(
    "shift_right", "a moved b bits down, keeping the sign.", np.right_shift, _shifted_right
)
