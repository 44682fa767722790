"""Ops that a program brings along: registered by name, computed by a function of NumPy arrays, called with bytes.

    >>> import darner, numpy as np
    >>> def compute(arrays, attrs, out):
    ...     np.cumsum(arrays[0], out=out)
    >>> _ = darner.register_op("running_sum", 1, lambda types, attrs: types[0], compute)
    >>> g = darner.Graph()
    >>> g.set_outputs([g.custom_op("running_sum", b"", [g.input("x", (3,))])])
    >>> darner.run(g, {"x": np.ones(3)})
    [array([1., 2., 3.], dtype=float32)]

A registered op is an op like any other of a user's: it prints, saves, and runs where functions of arrays run. ``darner.primitive`` declares one with
parameters and rules of its own; this is the form for ops whose attributes only their author reads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np

from ...graph.attributes import Free, Sizes
from ...graph.build import call
from ...graph.data import Array
from ...graph.dims import Dim
from ...graph.dtypes import DType, f32
from ...graph.errors import (
    ArgumentError,
    Calling,
    DarnerError,
    NameTakenError,
    RunError,
    ShapeError,
    UnknownNameError,
    nearest,
)
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import OPS, Op, builder, find, primitive, unregister
from ...graph.types import TensorType
from ..axes import spread
from ..shapes.joining import stack
from ..shapes.shaping import cut, reshaped

FAMILY = "custom"
MOST_COPIES = 256
"""A batch of more elements is not written out as that many nodes."""

Types: TypeAlias = Sequence[TensorType]
Nodes: TypeAlias = Sequence[Node]
Answer: TypeAlias = Sequence[Node | None]

InferShape: TypeAlias = Callable[[Types, bytes], TensorType]
Compute: TypeAlias = Callable[[Sequence[Array], bytes, Array], object]
Vjp: TypeAlias = Callable[[bytes, Nodes, Node, Node], Answer]
Jvp: TypeAlias = Callable[[bytes, Nodes, Node, Answer], Node]
Vmap: TypeAlias = Callable[[bytes, Nodes, Sequence[bool], Dim], Node]


@dataclass(frozen=True, eq=False)
class CustomOp:
    """What ``register_op`` was told.

    Attributes:
        name: what ``custom_op`` calls it by.
        num_inputs: how many operands it takes.
        infer_shape: ``(types, attrs)`` to the type of the result.
        compute: ``(arrays, attrs, out)``; fills ``out``.
        vjp: ``(attrs, inputs, output, g)`` to a node or None for each input.
        jvp: ``(attrs, inputs, output, tangents)`` to the tangent of the result; a tangent is None where it is zero.
        vmap: ``(attrs, inputs, batched, size)`` to the result with the batch axis in front, as it is of each batched input.
    """

    name: str
    num_inputs: int
    infer_shape: InferShape
    compute: Compute
    vjp: Vjp | None = None
    jvp: Jvp | None = None
    vmap: Vmap | None = None

    def result(self, types: Types, attrs: bytes) -> TensorType:
        """The type of the result, as ``infer_shape`` says it."""
        try:
            answer = self.infer_shape(types, attrs)
        except DarnerError:
            raise
        except Exception as error:
            raise ArgumentError(
                f"its infer_shape failed: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(answer, TensorType):
            raise ArgumentError(
                f"its infer_shape must return a TensorType, not {answer!r}",
                hint="types[0].with_shape((2, 3)) is one, and darner.TensorType((2, 3), 'f32')",
            )
        return answer

    def check_count(self, count: int) -> None:
        """The number of operands is that of the declaration."""
        if count != self.num_inputs:
            raise ArgumentError(f"takes {self.num_inputs} inputs, got {count}")


_RECORDS: dict[str, tuple[CustomOp, Op]] = {}


def register_op(  # many parameters: they are the user's rules
    name: str,
    num_inputs: int,
    infer_shape: InferShape,
    compute: Compute,
    *,
    vjp: Vjp | None = None,
    jvp: Jvp | None = None,
    vmap: Vmap | None = None,
    replace: bool = False,
) -> CustomOp:
    """Register an op by name, so that ``Graph.custom_op`` and ``Graph.custom_op_packed`` can call it.

    Args:
        name: letters, digits and underscores; no other op's.
        num_inputs: how many operands it takes.
        infer_shape: ``infer_shape(types, attrs)`` returns the type of the result.
        compute: ``compute(arrays, attrs, out)`` fills ``out``; it may not write to the arrays. 16-bit floats come as f32, and the
            result is rounded once. What it raises is a ``RunError`` that names the op and the line of the call, and the step has changed nothing.
        vjp: ``vjp(attrs, inputs, output, g)`` returns a node or None (no gradient) for each input. Without it a gradient through the op
            is an error.
        jvp: ``jvp(attrs, inputs, output, tangents)`` returns the tangent of the result. Without it forward mode uses the transpose of ``vjp``.
        vmap: ``vmap(attrs, inputs, batched, size)`` returns the result over a batch. Without it the op is called for each element, up to 256.
        replace: take the place of an op of that name that was registered before. Graphs made before are to be made again: sessions refuse the op that they have.

    >>> import darner, numpy as np
    >>> def halve(arrays, attrs, out):
    ...     out[...] = arrays[0] / 2
    >>> def halve_vjp(attrs, inputs, output, g):
    ...     return [g / 2.0]
    >>> darner.register_op("halve", 1, lambda types, attrs: types[0], halve, vjp=halve_vjp).num_inputs
    1
    >>> g = darner.Graph()
    >>> g.set_outputs([g.custom_op("halve", b"", [g.input("x", (2,))]).square().sum()])
    >>> darner.run(darner.grad(g, "x"), {"x": np.array([2.0, 6.0])})
    [array([1., 3.], dtype=float32)]
    """
    with Calling("register_op"):
        _check(name, num_inputs, (infer_shape, compute), (vjp, jvp, vmap))
        record = CustomOp(name, num_inputs, infer_shape, compute, vjp, jvp, vmap)
        known = find(name)
        if known is not None:
            mine = name in _RECORDS and _RECORDS[name][1] is known
            if not (mine and replace):
                hint = "replace=True registers it again" if mine else None
                raise NameTakenError(f"an op called '{name}' is already declared", hint=hint)
            unregister(name)
        _RECORDS[name] = record, _declare(record, sys._getframe(1).f_globals["__name__"])
        return record


def lookup_op(name: str) -> CustomOp:
    """What was registered under a name.

    >>> import darner
    >>> darner.lookup_op("no_such_op")
    Traceback (most recent call last):
    darner.graph.errors.UnknownNameError: lookup_op: no op is registered as 'no_such_op'...
    """
    with Calling("lookup_op"):
        return _known(name)[0]


def _known(name: str) -> tuple[CustomOp, Op]:
    found = _RECORDS.get(name)
    if found is not None and OPS.get(name) is found[1]:
        return found
    if find(name) is not None:
        hint = f"'{name}' is an op that graphs have as a method"
    else:
        names = [known for known, (_, op) in _RECORDS.items() if OPS.get(known) is op]
        hint = nearest(name, names, "registered are") if names else "call darner.register_op first"
    raise UnknownNameError(f"no op is registered as '{name}'", hint=hint)


def _check(name: str, count: int, needed: Sequence[object], rules: Sequence[object]) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise ArgumentError(f"a name is letters, digits and underscores, got {name!r}")
    if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 0:
        raise ArgumentError(f"num_inputs is a whole number from 0, got {count!r}")
    told = dict(
        zip(("infer_shape", "compute", "vjp", "jvp", "vmap"), (*needed, *rules), strict=True)
    )
    for word, rule in told.items():
        if not callable(rule) and (rule is not None or word in ("infer_shape", "compute")):
            raise ArgumentError(f"{word} must be a function, got {rule!r}")


# --------------------------------------------------------------------------- the record as an op


def _declare(record: CustomOp, module: str) -> Op:
    """The op of a record; its type is what ``infer_shape`` says, or what the caller stated."""

    def infer(
        inputs: list[TensorType], attrs: bytes, shape: tuple[Dim, ...] | None, dtype: DType | None
    ) -> TensorType:
        record.check_count(len(inputs))
        if shape is not None and dtype is not None:
            return TensorType(shape, dtype)
        return record.result(inputs, attrs)

    infer.__annotations__ = {
        "inputs": list[Free],
        "attrs": bytes,
        "shape": Sizes | None,
        "dtype": DType | None,
    }
    infer.__defaults__ = (b"", None, None)
    infer.__doc__ = f"A registered op of {record.num_inputs} inputs; see ``darner.register_op``."
    infer.__module__ = module
    op = primitive(family=FAMILY, name=record.name)(infer)
    op.reference(_reference(op, record))
    op.vjp(_vjp(record))
    op.jvp(_jvp(record))
    op.vmap(_vmap(op, record))
    return op


Stated: TypeAlias = tuple[Dim, ...] | None


def _reference(op: Op, record: CustomOp) -> Callable[..., Array]:
    def reference(inputs: list[Array], attrs: bytes, shape: Stated, dtype: DType | None) -> Array:
        types = tuple(TensorType.new(array.shape, array.dtype) for array in inputs)
        given = {"attrs": attrs, "shape": shape, "dtype": dtype}
        found, _ = op.infer_type(types, ("inputs",) * len(types), given)
        kind = cast(TensorType, found)
        wide = f32 if kind.dtype.is_float and kind.dtype.bits < 32 else kind.dtype
        out = np.zeros([int(size) for size in kind.shape], wide.numpy)
        answer = record.compute([_to_read(array) for array in inputs], attrs, out)
        if answer is not None and answer is not out:
            raise RunError(
                f"its compute returned {type(answer).__name__} instead of filling 'out'",
                hint="write out[...] = ...",
            )
        return out

    return reference


def _to_read(array: Array) -> Array:
    seen = array.view()
    seen.flags.writeable = False
    return seen


def _vjp(record: CustomOp) -> Callable[..., Mapping[str, Answer]]:
    def vjp(
        g: Node, output: Node, inputs: list[Node], attrs: bytes, shape: Stated, dtype: DType | None
    ) -> Mapping[str, Answer]:
        if record.vjp is None:
            raise _no_derivative(record, output)
        answer = record.vjp(attrs, inputs, output, g)
        if not isinstance(answer, list | tuple) or len(answer) != len(inputs):
            raise _wrong(
                record, output, f"must return {len(inputs)} nodes (or None), got {answer!r}"
            )
        for i, (part, operand) in enumerate(zip(answer, inputs, strict=True)):
            if part is not None and not isinstance(part, Node):
                raise _wrong(record, output, f"gave {part!r} for input {i}, not a node")
            if part is not None and part.type != operand.type:
                raise _wrong(
                    record, output, f"gave {part.type} for input {i}, which is {operand.type}"
                )
        return {"inputs": answer}

    return vjp


def _no_derivative(record: CustomOp, output: Node) -> DarnerError:
    fault = ArgumentError("has no derivative", hint=f"register '{record.name}' with a vjp")
    return fault.located(record.name, output.label, "", output.source)


def _wrong(record: CustomOp, output: Node, text: str, rule: str = "vjp") -> DarnerError:
    fault = ShapeError if "which is" in text else ArgumentError
    return fault(f"its {rule} {text}").located(record.name, output.label, "", output.source)


def _jvp(record: CustomOp) -> Callable[..., object]:
    def jvp(
        tangents: Mapping[str, Answer],
        output: Node,
        inputs: list[Node],
        attrs: bytes,
        shape: Stated,
        dtype: DType | None,
    ) -> object:
        if record.jvp is None and record.vjp is None:
            raise _no_derivative(record, output)
        if record.jvp is None:
            return NotImplemented
        answer: object = record.jvp(attrs, inputs, output, tangents["inputs"])
        if not isinstance(answer, Node):
            raise _wrong(record, output, f"must return a node, got {answer!r}", "jvp")
        if answer.type != output.type:
            raise _wrong(
                record, output, f"gave {answer.type} for a result, which is {output.type}", "jvp"
            )
        return answer

    return jvp


def _vmap(op: Op, record: CustomOp) -> Callable[..., Node]:
    def vmap(
        size: Dim,
        batched: Mapping[str, Sequence[bool]],
        inputs: list[Node],
        attrs: bytes,
        shape: Stated,
        dtype: DType | None,
    ) -> Node:
        flags = batched["inputs"]
        if record.vmap is not None:
            return record.vmap(attrs, inputs, flags, size)
        if not isinstance(size, int) or size > MOST_COPIES:
            raise ArgumentError(
                f"has no rule for batches, and {size} calls of it are too many to write out",
                hint=f"register '{record.name}' with a vmap",
            ).located(record.name, None, "", None)
        settings = {"attrs": attrs, "shape": shape, "dtype": dtype}
        # An empty batch has the type of one, and no element of it.
        calls: list[Node] = [
            op(
                [_element(x, i) if flag else x for x, flag in zip(inputs, flags, strict=True)],
                **settings,
            )
            for i in range(size)
        ]
        if calls:
            return cast(Node, stack(calls, 0))
        types = [
            x._tensor.with_shape(x.shape[1:]) if flag else x._tensor
            for x, flag in zip(inputs, flags, strict=True)
        ]
        found, _ = op.infer_type(tuple(types), ("inputs",) * len(types), settings)
        result = cast(TensorType, found)
        return spread(inputs[0].graph.zeros(result.shape, result.dtype), size)

    return vmap


def _element(x: Node, i: int) -> Node:
    return reshaped(cut(x, 0, i, i + 1), x.shape[1:])


# --------------------------------------------------------------------------- calls


@builder(family=FAMILY)
def custom_op(graph: Graph, name: str, attrs: bytes, inputs: list[Node]) -> Node:
    """The op registered as ``name`` (``darner.register_op``) of the operands ``inputs``; its functions get ``attrs`` as they are.

    The result has the type that the op's ``infer_shape`` says.
    """
    record, op = _known(name)
    record.check_count(len(inputs))
    return cast(Node, call(op, graph, (inputs,), {"attrs": attrs}))


@builder(family=FAMILY)
def custom_op_packed(
    graph: Graph, name: str, attrs: bytes, inputs: list[Node], out_shape: TensorType
) -> Node:
    """The op registered as ``name``, with a result of the type ``out_shape``; its ``infer_shape`` is not asked.

    For results whose size the types of the operands do not tell, such as several values one after another, which ``narrow`` takes apart.
    """
    record, op = _known(name)
    record.check_count(len(inputs))
    if not isinstance(out_shape, TensorType):
        raise ArgumentError(
            f"out_shape must be a type, got {out_shape!r}", hint="darner.Shape.new([5], 'f64')"
        )
    stated = {"attrs": attrs, "shape": out_shape.shape, "dtype": out_shape.dtype}
    return cast(Node, call(op, graph, (inputs,), stated))
