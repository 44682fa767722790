"""Derivatives of whole graphs: gradients, vector-Jacobian and Jacobian-vector products.

Every function takes a graph and returns a graph, so that they compose in any order:

    >>> import darner, numpy as np
    >>> g = darner.Graph()
    >>> x = g.input("x", (3,))
    >>> w = g.parameter("w", (3,))
    >>> g.set_outputs([(x * w).square().sum()])
    >>> darner.run(darner.grad(g), {"x": np.ones(3)}, {"w": np.arange(3.0)})
    [array([0., 2., 4.], dtype=float32)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ..graph.errors import ArgumentError, Calling, UnknownNameError, did_you_mean
from ..graph.graph import Graph
from ..graph.node import Node
from .forward import push_forward
from .reverse import (
    Rebuilt,
    is_differentiable,
    needed_nodes,
    passes_gradient,
    prepare,
    pull_back,
)

Wrt = Iterable[Any] | str | Node | None


def grad(graph: Graph, wrt: Wrt = None, *, frozen: Iterable[str] = ()) -> Graph:
    """The gradients of the first output (a scalar, or one element) by ``wrt``, as the outputs.

    ``wrt`` names inputs, parameters, states or labels (or gives nodes); all parameters by default, in the order they
    were declared. ``frozen`` leaves out parameters whose name starts with one of its entries.
    """
    with Calling("grad"):
        full, gradients = _differentiated(graph, wrt, frozen)
        full.set_outputs(gradients)
        return full.toposort()


def value_and_grad(graph: Graph, wrt: Wrt = None, *, frozen: Iterable[str] = ()) -> Graph:
    """The graph's own outputs, followed by the gradients of the first; see ``grad``."""
    with Calling("value_and_grad"):
        full, gradients = _differentiated(graph, wrt, frozen)
        full.set_outputs([*full.outputs, *gradients])
        return full.toposort()


def differentiate(graph: Graph) -> Graph:
    """Meganeura's name for ``value_and_grad`` by all parameters."""
    return value_and_grad(graph)


def vjp(graph: Graph, wrt: Wrt = None) -> Graph:
    """The outputs, followed by cotangents pulled back to ``wrt``.

    The result has one new input for each float output: ``d_output`` for the only one, else ``d_output_0``, ``d_output_1``, ...
    """
    with Calling("vjp"):
        chosen = select(graph, wrt)
        outputs = [node for node in graph.outputs if is_differentiable(node)]
        if not outputs:
            raise ArgumentError("no output is a float: there is nothing to pull back")
        rebuilt = prepare(graph, chosen, outputs)
        full = rebuilt.graph
        names = (
            ["d_output"] if len(outputs) == 1 else [f"d_output_{i}" for i in range(len(outputs))]
        )
        cotangents = [
            full.input(name, node.shape, node.dtype)
            for name, node in zip(names, outputs, strict=True)
        ]
        found = _pulled(rebuilt, chosen, outputs, cotangents)
        full.set_outputs([*full.outputs, *found])
        return full.toposort()


def jvp(graph: Graph, wrt: Wrt = None) -> Graph:
    """The outputs, followed by their tangents when ``wrt`` move.

    The result has a new input ``tangent_<name>`` for each of ``wrt``. Outputs that are not floats have no tangent.
    """
    with Calling("jvp"):
        chosen = select(graph, wrt)
        outputs = [node for node in graph.outputs if is_differentiable(node)]
        rebuilt = prepare(graph, chosen, outputs)
        full = rebuilt.graph
        limit = len(full)
        tangents: dict[int, Any] = {}
        for node in chosen:
            name = f"tangent_{node.name or node.label or node.id}"
            tangents[rebuilt[node].id] = full.input(name, node.shape, node.dtype)
        push_forward(full, tangents, limit)
        moved = [tangents.get(rebuilt[node].id) for node in outputs]
        zeros = [
            full.zeros(node.shape, node.dtype) if tangent is None else tangent
            for node, tangent in zip(outputs, moved, strict=True)
        ]
        full.set_outputs([*full.outputs, *zeros])
        return full.toposort()


def hvp(graph: Graph, wrt: Wrt = None) -> Graph:
    """The Hessian of the first output times the vectors ``tangent_<name>``, for each of ``wrt``."""
    with Calling("hvp"):
        names = [_name(node) for node in select(graph, wrt)]
        both = jvp(grad(graph, names), names)
        both.set_outputs(list(both.outputs)[len(names) :])
        return both.toposort()


def select(graph: Graph, wrt: Wrt, frozen: Iterable[str] = ()) -> list[Node]:
    """The nodes that ``wrt`` names."""
    if wrt is None:
        skip = tuple(frozen)
        return [
            node for name, node in graph.parameters.items() if not name.startswith(skip or "\0")
        ]
    items = [wrt] if isinstance(wrt, str | Node | int) else list(wrt)
    labels = {node.label: node for node in graph.nodes if node.label}
    chosen = []
    for item in items:
        if isinstance(item, str):
            known = {**labels, **{name: graph.nodes[i] for name, i in graph._names.items()}}
            if item not in known:
                raise UnknownNameError(
                    f"graph '{graph.name}' has no leaf or label '{item}'",
                    hint=did_you_mean(item, known),
                )
            node = known[item]
        else:
            node = graph.node(item)
        if not is_differentiable(node):
            raise ArgumentError(f"'{_name(node)}' is {node.type}: only floats have gradients")
        chosen.append(node)
    return chosen


def _name(node: Node) -> str:
    return str(node.name or node.label or f"%{node.id}")


def _differentiated(graph: Graph, wrt: Wrt, frozen: Iterable[str]) -> tuple[Graph, list[Node]]:
    if not graph.outputs:
        raise ArgumentError(f"graph '{graph.name}' has no output", hint="call set_outputs first")
    loss = graph.outputs[0]
    if loss.size != 1 or not is_differentiable(loss):
        raise ArgumentError(
            f"the first output must be one float, but it is {loss.type}",
            hint="reduce it (sum, mean, a loss), or use vjp",
        )
    chosen = select(graph, wrt, frozen)
    rebuilt = prepare(graph, chosen, [loss])
    seed = rebuilt.graph.ones(loss.shape, loss.dtype)
    return rebuilt.graph, _pulled(rebuilt, chosen, [loss], [seed])


def _pulled(
    rebuilt: Rebuilt, chosen: Sequence[Node], outputs: Sequence[Node], cotangents: Sequence[Node]
) -> list[Node]:
    """Gradients by the chosen nodes; zeros where nothing depends, an error where something must."""
    full = rebuilt.graph
    _check_paths(full, [rebuilt[n] for n in chosen], [rebuilt[n] for n in outputs])
    found = pull_back(full, [rebuilt[n] for n in outputs], cotangents, [rebuilt[n] for n in chosen])
    return [
        full.zeros(node.shape, node.dtype) if gradient is None else gradient
        for node, gradient in zip(chosen, found, strict=True)
    ]


def _check_paths(graph: Graph, chosen: Sequence[Node], outputs: Sequence[Node]) -> None:
    """A node that reaches the outputs only through ops without a derivative has no gradient to give."""
    needed = needed_nodes(graph, outputs)
    reaching = _reaching_nodes(graph, outputs)
    for node in chosen:
        if not needed[node.id] or reaching[node.id]:
            continue
        path = _blocked_path(graph, node, needed)
        blocked = path[-1]
        if blocked.op.name == "stop_gradient":
            continue  # the user said so
        shown = " -> ".join(item.name or item.op.name for item in path)
        raise ArgumentError(
            f"no gradient reaches '{_name(node)}': the only way is through {blocked.op.name}, "
            f"which has no derivative ({shown})"
        ).located(blocked.op.name, blocked.label, "", blocked.source)


def _reaching_nodes(graph: Graph, outputs: Sequence[Node]) -> list[bool]:
    """The nodes from which a differentiable path leads to ``outputs``."""
    reaching = [False] * len(graph)
    for node in outputs:
        reaching[node.id] = is_differentiable(node)
    for node in graph.reverse_topo():
        if reaching[node.id] and passes_gradient(node):
            for operand in node.operands:
                reaching[operand.id] = reaching[operand.id] or is_differentiable(operand)
    return reaching


def _blocked_path(graph: Graph, start: Node, needed: Sequence[bool]) -> list[Node]:
    """From a node along its users to the first that passes no gradient."""
    path = [start]
    while True:
        users = [user for user in graph.users(path[-1]) if needed[user.id]]
        path.append(users[0])
        if not passes_gradient(users[0]):
            return path
