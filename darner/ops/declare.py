"""Declaring an element-wise op in one call."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from ..graph.attributes import Analytic, Number
from ..graph.dtypes import DType
from ..graph.facts import PLAIN, Facts
from ..graph.op import Op, Rule, primitive
from ..graph.scalar import Emit
from ..graph.types import TensorType, broadcast
from .samples import Sample, pairs, uniform

FAMILY = "element-wise"


def attach(op: Op, emit: Rule | Emit | None) -> None:
    """Give an op its scalar code: a rule for floats, or rules by type."""
    op.rules.emit = emit if emit is None or isinstance(emit, Emit) else Emit(emit)


def unary(  # many parameters: an op's record, field by field
    name: str,
    doc: str,
    numpy: Rule,
    *,
    kind: Any = Analytic,
    vjp: Rule | None = None,
    emit: Rule | Emit | None = None,
    facts: Facts = PLAIN,
    result: DType | None = None,
    samples: Iterable[Sample] | None = None,
    traits: Iterable[str] = (),
    family: str = FAMILY,
) -> Op:
    """Declare an element-wise op of one operand: the whole declaration is one call.

    ``kind`` says which element types it takes (the annotations of ``graph.attributes``), ``result`` its
    element type when that is not the operand's. ``vjp(g, x, y)`` is what the operand receives from the
    cotangent ``g``, given operand and result; second derivatives follow from it. ``emit(x)`` is its code for one element (``graph.scalar``).
    """

    def infer(x: TensorType) -> TensorType:
        return x if result is None else x.with_dtype(result)

    infer.__annotations__ = {"x": kind}
    infer.__doc__ = doc
    infer.__module__ = sys._getframe(1).f_globals["__name__"]
    declare = primitive(
        family=family,
        name=name,
        samples=uniform() if samples is None else samples,
        traits=["elementwise", *traits],
        facts=facts,
    )
    op = declare(infer)
    attach(op, emit)
    op.reference(lambda x: numpy(x))
    if vjp is not None:
        op.vjp(lambda g, out, x: vjp(g, x, out))
    return op


def binary(  # many parameters: an op's record, field by field
    name: str,
    doc: str,
    numpy: Rule,
    *,
    kind: Any = Number,
    vjp: tuple[Rule, Rule] | None = None,
    emit: Rule | Emit | None = None,
    facts: Facts = PLAIN,
    result: DType | None = None,
    samples: Iterable[Sample] | None = None,
    commutative: bool = False,
    traits: Iterable[str] = (),
    family: str = FAMILY,
) -> Op:
    """Declare an element-wise op of two operands that broadcast and share an element type.

    ``vjp`` has one rule ``(g, a, b, y)`` for each operand; sums over broadcast axes are added by themselves.
    ``emit(a, b)`` is its code for one element.
    """

    def infer(a: TensorType, b: TensorType) -> TensorType:
        return TensorType(broadcast(a.shape, b.shape), a.dtype if result is None else result)

    infer.__annotations__ = {"a": kind, "b": kind}
    infer.__doc__ = doc
    infer.__module__ = sys._getframe(1).f_globals["__name__"]
    declare = primitive(
        family=family,
        name=name,
        samples=pairs() if samples is None else samples,
        traits=["elementwise", *(["commutative"] if commutative else []), *traits],
        facts=facts,
    )
    op = declare(infer)
    attach(op, emit)
    op.reference(lambda a, b: numpy(a, b))
    if vjp is not None:
        first, second = vjp
        op.vjp(
            lambda g, out, a, b: {
                "a": lambda: first(g, a, b, out),
                "b": lambda: second(g, a, b, out),
            }
        )
    return op
