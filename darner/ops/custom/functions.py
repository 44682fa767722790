"""A graph as an op, with derivatives of its own.

``custom_fn(inputs, body, vjp_body, jvp_body)`` computes ``body``. Its derivative is what the other two say, where they
are given:

- ``vjp_body`` has the inputs of the body and besides ``d_output`` and (if it wants it) ``primal_output``; its outputs
  are the gradients of the inputs.
- ``jvp_body`` has the inputs of the body and besides ``tangent_0``, ``tangent_1``, ... and (if it wants it)
  ``primal_output``; its output is the tangent of the result.

Inputs are matched in the order they are declared, whatever their names. One rule is enough: the other mode uses its
transpose. Without rules the derivative is that of the body. ``transforms/custom_rules.py`` adds the rules of both ops.
"""

from __future__ import annotations

from ...graph.attributes import Body, Free
from ...graph.edit import inline_by_name
from ...graph.errors import ArgumentError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder, composite
from ...graph.types import TensorType
from .bodies import check_body, check_rules, numbered
from .samples import MULTI_SAMPLES, SAMPLES

FAMILY = "custom"


# A body says itself what it rounds: nothing is widened around it, as nothing is around ops that only move elements.
@composite(family=FAMILY, traits=["moves"], samples=SAMPLES)
def custom_fn(
    inputs: list[Free], body: Body, vjp_body: Body | None = None, jvp_body: Body | None = None
) -> TensorType:
    """The graph ``body`` of the operands ``inputs``, matched in the order they are declared.

    Its derivative is ``vjp_body`` (inputs of the body, ``d_output`` and, optionally, ``primal_output``; one gradient
    for each input) or ``jvp_body`` (inputs of the body, ``tangent_0``, ``tangent_1``, ... and, optionally,
    ``primal_output``; one tangent). With one of them the other mode uses its transpose; with neither the derivative is
    that of the body. Bodies have no parameters, states or random numbers of their own.
    """
    results = check_body(body, inputs)
    if len(results) != 1:
        raise ArgumentError(
            f"the body has {len(results)} outputs, not 1", hint="custom_fn_multi takes several"
        )
    check_rules(inputs, results, [""], vjp_body, jvp_body)
    return results[0]


@composite(family=FAMILY, traits=["moves"], samples=MULTI_SAMPLES)
def custom_fn_tuple(
    inputs: list[Free], body: Body, vjp_body: Body | None = None, jvp_body: Body | None = None
) -> tuple[TensorType, ...]:
    """``custom_fn`` of a body with any number of outputs; see ``custom_fn_multi``.

    The inputs of the rules are numbered: ``d_output_0``, ``primal_output_0`` and so on.
    """
    results = check_body(body, inputs)
    if not results:
        raise ArgumentError("the body has no output", hint="call set_outputs on it")
    check_rules(inputs, results, numbered(len(results)), vjp_body, jvp_body)
    return tuple(results)


class MultiOutputHandle(tuple[Node, ...]):
    """The results of ``custom_fn_multi``: a tuple of nodes that can also be asked for them one by one."""

    __slots__ = ()

    def n_outputs(self) -> int:
        """How many results there are."""
        return len(self)

    def output(self, graph: Graph, index: int) -> Node:
        """One result; ``graph`` is the one it was made in."""
        if not 0 <= index < len(self):
            raise ArgumentError(f"output {index} is outside 0..{len(self) - 1}")
        return graph.node(self[index])


@builder(family=FAMILY)
def custom_fn_multi(
    graph: Graph,
    inputs: list[Node],
    body: Graph,
    vjp_body: Graph | None = None,
    jvp_body: Graph | None = None,
) -> tuple[Node, ...]:
    """The outputs of ``body``, whatever their number, shapes and element types; see ``custom_fn``.

    The rules' inputs are numbered by output: ``d_output_0``, ``primal_output_0`` and so on. The answer is a
    ``MultiOutputHandle``: a tuple of nodes, which besides has RLX's ``n_outputs()`` and ``output(graph, i)``.
    """
    return MultiOutputHandle(custom_fn_tuple(inputs, body, vjp_body, jvp_body))


# --------------------------------------------------------------------------- what it computes


def _inlined(inputs: list[Node], body: Graph) -> list[Node]:
    return inline_by_name(inputs[0].graph, body, dict(zip(body.inputs, inputs, strict=True)))


@custom_fn.expand
def _(inputs: list[Node], body: Graph, vjp_body: Graph | None, jvp_body: Graph | None) -> Node:
    return _inlined(inputs, body)[0]


@custom_fn_tuple.expand
def _(
    inputs: list[Node], body: Graph, vjp_body: Graph | None, jvp_body: Graph | None
) -> list[Node]:
    return _inlined(inputs, body)
