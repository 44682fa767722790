"""Functions of nodes with derivatives of their own.

    >>> import darner, numpy as np
    >>> @darner.custom_gradient
    ... def clipped(x):
    ...     return x
    >>> @clipped.vjp
    ... def _(g, out, x):
    ...     return g.clip(-1.0, 1.0)
    >>> g = darner.Graph()
    >>> x = g.input("x", (3,))
    >>> g.set_outputs([(clipped(x) * np.array([0.5, 2.0, -3.0], np.float32)).sum()])
    >>> darner.run(darner.grad(g, "x"), {"x": np.zeros(3)})
    [array([ 0.5,  1. , -1. ], dtype=float32)]

A call makes one ``custom_fn`` node: the function and its rules are run once on stand-ins for the operands, and what
they build are its bodies. So a rule sees nodes, any transform applies, and the graph can be saved.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..graph.build import call, call_builder
from ..graph.errors import ArgumentError, Calling
from ..graph.graph import Graph
from ..graph.node import Node
from ..graph.op import BUILDERS, get_op
from ..graph.types import TensorType

Rule = Callable[..., Any]


class CustomGradient:
    """A function of nodes whose derivative is what ``vjp`` or ``jvp`` says.

    Arguments that are nodes by position are operands; all others are passed on as they are. The function returns a
    node, or several. Rules get them first, then the arguments of the call:

    - ``@f.vjp``: ``rule(g, out, *args)`` returns the gradient of each operand (None for zero);
    - ``@f.jvp``: ``rule(tangents, out, *args)`` returns the tangent of each result.

    With several results ``g``, ``out`` and the answer of a jvp are tuples. ``f.defvjp(forward, backward)`` is JAX's way:
    ``forward(*args)`` returns the result and whatever ``backward(residuals, g)`` wants to know.
    """

    def __init__(self, function: Rule) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._vjp: Rule | None = None
        self._jvp: Rule | None = None

    def vjp(self, rule: Rule) -> Rule:
        """State the reverse-mode derivative; a decorator."""
        self._vjp = rule
        return rule

    def jvp(self, rule: Rule) -> Rule:
        """State the forward-mode derivative; a decorator."""
        self._jvp = rule
        return rule

    def defvjp(self, forward: Rule, backward: Rule) -> None:
        """State the reverse-mode derivative as a pair.

        What ``forward`` hands to ``backward`` are nodes, so derivatives of higher order pass through them.
        """

        def rule(g: Any, out: Any, *args: Any, **kwargs: Any) -> Any:
            answer = forward(*args, **kwargs)
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise ArgumentError("forward must return the result and the residuals")
            return backward(answer[1], g)

        self._vjp = rule

    def __call__(self, *args: Any, label: str | None = None, **settings: Any) -> Any:
        """Add the function to the graph of its operands."""
        name = str(getattr(self.function, "__name__", "custom_gradient"))
        with Calling(name):
            operands = [value for value in args if isinstance(value, Node)]
            if not operands:
                raise ArgumentError("no argument is a node")
            trace = _Trace(name, [node._tensor for node in operands], args, settings)
            body = trace.body(self.function)
            vjp = None if self._vjp is None else trace.vjp(self._vjp)
            jvp = None if self._jvp is None else trace.jvp(self._jvp)
        graph, arguments = operands[0].graph, (operands, body, vjp, jvp)
        if trace.alone:
            return call(get_op("custom_fn"), graph, arguments, {"label": label})
        return call_builder(BUILDERS["custom_fn_multi"], graph, arguments, {"label": label})


custom_gradient = CustomGradient
"""The decorator: ``@darner.custom_gradient`` before a function of nodes."""


class _Trace:
    """The graphs that a function and its rules build from operands of given types."""

    def __init__(
        self, name: str, types: list[TensorType], args: Sequence[Any], settings: dict[str, Any]
    ) -> None:
        self.name, self.types, self.args, self.settings = name, types, args, settings
        self.results: list[TensorType] = []
        self.alone = True
        """Whether the function returns one node, and not a tuple."""

    def body(self, function: Rule) -> Graph:
        """What the function computes."""
        graph, args = self._begin(self.name)
        answer = function(*args, **self.settings)
        self.alone = isinstance(answer, Node)
        nodes = [answer] if self.alone else answer
        if not isinstance(nodes, list | tuple) or not nodes:
            raise ArgumentError(f"a node or a tuple of nodes must be returned, not {answer!r}")
        finished = self._finish(graph, nodes, "result")
        self.results = [node._tensor for node in finished.outputs]
        return finished

    def vjp(self, rule: Rule) -> Graph:
        """What the reverse-mode rule computes."""
        graph, args = self._begin(f"{self.name}_vjp")
        g = self._leaves(graph, "d_output", self.results)
        out = self._leaves(graph, "primal_output", self.results, floats_only=False)
        answer = rule(self._few(g), self._few(out), *args, **self.settings)
        return self._finish(graph, self._parts(graph, answer, self.types, "gradient"), "gradient")

    def jvp(self, rule: Rule) -> Graph:
        """What the forward-mode rule computes."""
        graph, args = self._begin(f"{self.name}_jvp")
        moving = [
            graph.input(f"tangent_{i}", type_) if _is_float(type_) else None
            for i, type_ in enumerate(self.types)
        ]
        out = self._leaves(graph, "primal_output", self.results, floats_only=False)
        tangents = moving[0] if len(moving) == 1 else tuple(moving)
        answer = rule(tangents, self._few(out), *args, **self.settings)
        return self._finish(graph, self._parts(graph, answer, self.results, "tangent"), "tangent")

    def _begin(self, name: str) -> tuple[Graph, list[Any]]:
        """A graph with an input for each operand, and the call's arguments with these in their place."""
        graph = Graph(name)
        leaves = iter([graph.input(f"x{i}", type_) for i, type_ in enumerate(self.types)])
        return graph, [next(leaves) if isinstance(arg, Node) else arg for arg in self.args]

    def _leaves(
        self, graph: Graph, stem: str, types: list[TensorType], floats_only: bool = True
    ) -> list[Node | None]:
        ends = [""] if self.alone else [f"_{i}" for i in range(len(types))]
        return [
            graph.input(stem + end, type_) if _is_float(type_) or not floats_only else None
            for end, type_ in zip(ends, types, strict=True)
        ]

    def _few(self, values: list[Node | None]) -> Any:
        return values[0] if self.alone else tuple(values)

    def _parts(self, graph: Graph, answer: Any, types: list[TensorType], noun: str) -> list[Any]:
        """One answer for each type, or for each float; zeros for None."""
        given = list(answer) if isinstance(answer, list | tuple) else [answer]
        owners = types if len(given) == len(types) else [t for t in types if _is_float(t)]
        if len(given) != len(owners):
            raise ArgumentError(f"its rule gave {len(given)} {noun}s where {len(types)} are needed")
        return [
            graph.zeros(type_.shape, type_.dtype) if part is None else part
            for part, type_ in zip(given, owners, strict=True)
        ]

    def _finish(self, graph: Graph, nodes: Sequence[Any], noun: str) -> Graph:
        for node in nodes:
            if not isinstance(node, Node):
                raise ArgumentError(f"a {noun} must be a node, not {node!r}")
            if node.graph is not graph:
                raise ArgumentError(
                    f"a {noun} is a node of graph '{node.graph.name}', not made of the operands",
                    hint="pass what it is made of as an argument",
                )
        graph.set_outputs(list(nodes))
        return graph.toposort()


def _is_float(type_: TensorType) -> bool:
    return type_.dtype.kind in ("float", "complex")
