"""What the graphs of a custom function must be, and how their inputs and outputs are told apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...graph.errors import ArgumentError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.types import TensorType

PRIMAL, COTANGENT, TANGENT = "primal_output", "d_output", "tangent_"
"""Inputs of rules that do not stand for operands. With several results the first two are numbered."""


def numbered(count: int) -> list[str]:
    """The ends of the names that belong to each of several results."""
    return [f"_{i}" for i in range(count)]


def check_closed(body: Graph, what: str) -> None:
    """A body computes from its inputs alone."""
    for node in body.nodes:
        if "random" in node.op.traits:
            raise ArgumentError(
                f"the {what} draws random numbers ({node.op.name})",
                hint="draw them outside and pass them as an operand",
            )
    for name, leaf in {**body.parameters, **body.states}.items():
        raise ArgumentError(
            f"the {what} has a {leaf.op.name} '{name}' of its own",
            hint="declare it as an input and pass it as an operand",
        )


def _check_inputs(what: str, found: Sequence[Node], wanted: Sequence[TensorType]) -> None:
    if len(found) != len(wanted):
        named = ", ".join(repr(leaf.name) for leaf in found)
        inputs = f"{_count(len(found), 'input')} ({named})" if found else "no input"
        raise ArgumentError(f"the {what} has {inputs} for {_count(len(wanted), 'operand')}")
    for i, (leaf, type_) in enumerate(zip(found, wanted, strict=True)):
        if leaf.type != type_:
            raise ShapeError(
                f"input '{leaf.name}' of the {what} is {leaf.type}, but operand {i} is {type_}"
            )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_body(body: Graph, inputs: Sequence[TensorType]) -> list[TensorType]:
    """The types of a body's outputs, when it fits the operands."""
    if not inputs:
        raise ArgumentError("it needs an operand")
    check_closed(body, "body")
    _check_inputs("body", list(body.inputs.values()), inputs)
    return [node._tensor for node in body.outputs]


def check_rules(
    inputs: Sequence[TensorType],
    results: Sequence[TensorType],
    ends: Sequence[str],
    vjp_body: Graph | None,
    jvp_body: Graph | None,
) -> None:
    """Whether the rules that are given fit the operands and results."""
    primal = {PRIMAL + end: type_ for end, type_ in zip(ends, results, strict=True)}
    cotangents = {COTANGENT + end: type_ for end, type_ in zip(ends, results, strict=True)}
    tangents = {f"{TANGENT}{i}": type_ for i, type_ in enumerate(inputs)}
    if vjp_body is not None:
        _check_rule("vjp_body", vjp_body, inputs, cotangents, primal)
        _check_outputs(vjp_body, "vjp_body", inputs, "gradient", "operand")
    if jvp_body is not None:
        for name in cotangents:
            if name in jvp_body.inputs:
                raise ArgumentError(f"'{name}' is not an input of a jvp_body")
        _check_rule("jvp_body", jvp_body, inputs, tangents, primal)
        _check_outputs(jvp_body, "jvp_body", results, "tangent", "output")


def _check_rule(
    what: str,
    rule: Graph,
    inputs: Sequence[TensorType],
    needed: Mapping[str, TensorType],
    optional: Mapping[str, TensorType],
) -> None:
    """A rule must have the inputs it needs (for floats), may have others, and one for each operand."""
    check_closed(rule, what)
    for name, type_ in needed.items():
        if name not in rule.inputs and is_float(type_):
            raise ArgumentError(f"the {what} has no input '{name}'")
    special = {**needed, **optional}
    for name, type_ in special.items():
        if name in rule.inputs and rule.inputs[name].type != type_:
            raise ShapeError(
                f"input '{name}' of the {what} is {rule.inputs[name].type}, not {type_}"
            )
    _check_inputs(what, primal_inputs(rule, special), inputs)


def _check_outputs(
    body: Graph, what: str, wanted: Sequence[TensorType], noun: str, owner: str
) -> None:
    """One output for each, or for each float."""
    count = len(body.outputs)
    if count not in (len(wanted), sum(map(is_float, wanted))):
        raise ArgumentError(
            f"the {what} has {_count(count, 'output')}: "
            f"one {noun} is needed for each {owner}, and there are {len(wanted)}"
        )
    for i, number in float_outputs(body, wanted):
        node = body.outputs[number]
        if node.type != wanted[i]:
            raise ShapeError(
                f"the {noun} of {owner} {i} in the {what} is {node.type}, not {wanted[i]}"
            )


def float_outputs(body: Graph, wanted: Sequence[TensorType]) -> list[tuple[int, int]]:
    """For each float among ``wanted``, the number of the rule's output that belongs to it.

    A rule may leave out what belongs to integers; if it does not, that is ignored.
    """
    floats = [i for i, type_ in enumerate(wanted) if is_float(type_)]
    if len(body.outputs) == len(wanted):
        return [(i, i) for i in floats]
    return [(i, number) for number, i in enumerate(floats)]


def is_float(type_: TensorType) -> bool:
    """Whether values of a type have derivatives."""
    return type_.dtype.kind in ("float", "complex")


def primal_inputs(body: Graph, special: Iterable[str]) -> list[Node]:
    """The inputs of a rule that stand for operands, in order."""
    return [leaf for name, leaf in body.inputs.items() if name not in special]
