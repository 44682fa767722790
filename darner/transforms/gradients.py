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

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from ..graph.errors import ArgumentError, Calling, UnknownNameError, listed, nearest
from ..graph.graph import Graph, check_graph
from ..graph.node import Node
from ..graph.types import TupleType
from ..ops.complex_numbers.numbers import conjugated
from .forward import push_forward
from .loops.tidy import finished
from .remat import Remat, regions
from .reverse import (
    Rebuilt,
    is_differentiable,
    needed_nodes,
    passes_gradient,
    prepare,
    pull_back,
)

Wrt = Iterable[Any] | str | Node | None


def grad(
    graph: Graph, wrt: Wrt = None, *, frozen: Iterable[str] = (), remat: Remat = None
) -> Graph:
    """The gradients of the first output (a scalar, or one element) by ``wrt``, as the outputs.

    ``wrt`` names inputs, parameters, states or labels (or gives nodes); all parameters by default, in the order they
    were declared. ``frozen`` leaves out parameters by name or by scope. What the output does not depend on by a
    differentiable path has the gradient 0; only where all parameters are such, because of an argmax or a comparison
    that is computed with, is that an error. ``remat`` names scopes to recompute beside those that the graph records
    (``Graph.remat``): one, several, or a mapping from names to policies; ``"layers.*"`` means each scope inside
    ``layers``.
    """
    with Calling("grad"):
        full, gradients, _ = differentiated(graph, select(graph, wrt, frozen), remat)
        full.set_outputs(gradients)
        return finished(full)


def value_and_grad(
    graph: Graph, wrt: Wrt = None, *, frozen: Iterable[str] = (), remat: Remat = None
) -> Graph:
    """The graph's own outputs, followed by the gradients of the first; see ``grad``."""
    with Calling("value_and_grad"):
        full, gradients, _ = differentiated(graph, select(graph, wrt, frozen), remat)
        full.set_outputs([*full.outputs, *gradients])
        return finished(full)


def vjp(graph: Graph, wrt: Wrt = None) -> Graph:
    """The outputs, followed by cotangents pulled back to ``wrt``.

    The result has one new input for each float output: ``d_output`` for the only one, else ``d_output_0``, ``d_output_1``, ...
    Where a vjp inside has taken these names they are ``d2_output`` and so on.
    """
    with Calling("vjp"):
        chosen = select(graph, wrt)
        outputs = [node for node in graph.outputs if is_differentiable(node)]
        if not outputs:
            raise ArgumentError("no output is a float: there is nothing to pull back")
        rebuilt = prepare(graph, chosen, outputs)
        full = rebuilt.graph
        ends = [""] if len(outputs) == 1 else [f"_{i}" for i in range(len(outputs))]
        names = unused_names(full, "d", [f"_output{end}" for end in ends])
        cotangents = [
            full.input(name, node.shape, node.dtype)
            for name, node in zip(names, outputs, strict=True)
        ]
        found = _pulled(rebuilt, chosen, outputs, cotangents)
        full.set_outputs([*full.outputs, *found])
        return finished(full)


def jvp(graph: Graph, wrt: Wrt = None) -> Graph:
    """The outputs, followed by their tangents when ``wrt`` move.

    The result has a new input ``tangent_<name>`` for each of ``wrt`` (``tangent2_<name>`` where a jvp inside has taken
    these names). Outputs that are not floats have no tangent.
    """
    with Calling("jvp"):
        chosen = select(graph, wrt)
        full, moved, _ = pushed(graph, chosen, short_names(chosen))
        full.set_outputs([*full.outputs, *moved])
        return finished(full)


def hvp(graph: Graph, wrt: Wrt = None) -> Graph:
    """The Hessian of the first output times the vectors ``tangent_<name>``, for each of ``wrt``."""
    with Calling("hvp"):
        chosen = select(graph, wrt)
        full, gradients, places = differentiated(graph, chosen)
        full.set_outputs(gradients)
        full, moved, _ = pushed(full, places, short_names(chosen))
        full.set_outputs(moved)
        return finished(full)


def pushed(
    graph: Graph, chosen: Sequence[Node], names: Sequence[str]
) -> tuple[Graph, list[Node], list[Node]]:
    """A copy with the tangents of its float outputs, and the inputs that are those of ``chosen``."""
    outputs = [node for node in graph.outputs if is_differentiable(node)]
    rebuilt = prepare(graph, chosen, outputs)
    full = rebuilt.graph
    inputs = [
        full.input(name, node.shape, node.dtype)
        for node, name in zip(
            chosen, unused_names(full, "tangent", [f"_{name}" for name in names]), strict=True
        )
    ]
    tangents: dict[int, Any] = {
        rebuilt[node].id: leaf for node, leaf in zip(chosen, inputs, strict=True)
    }
    push_forward(full, tangents, [rebuilt[node] for node in outputs])
    moved = [tangents.get(rebuilt[node].id) for node in outputs]
    zeros = [
        full.zeros(node.shape, node.dtype) if tangent is None else tangent
        for node, tangent in zip(outputs, moved, strict=True)
    ]
    return full, zeros, inputs


def _frozen_names(graph: Graph, frozen: Iterable[str]) -> set[str]:
    """The parameters that entries name: themselves, or the scope they stand in."""
    found: set[str] = set()
    for entry in frozen:
        matches = [n for n in graph.parameters if n == entry or n.startswith(f"{entry}.")]
        if not matches:
            raise UnknownNameError(
                f"graph '{graph.name}' has no parameter or scope '{entry}' to freeze",
                hint=nearest(entry, graph.parameters),
            )
        found.update(matches)
    return found


def select(graph: Graph, wrt: Wrt, frozen: Iterable[str] = ()) -> list[Node]:
    """The nodes that ``wrt`` names."""
    check_graph(graph)
    if wrt is None:
        skip = _frozen_names(graph, [frozen] if isinstance(frozen, str) else frozen)
        return [
            node
            for name, node in graph.parameters.items()
            if is_differentiable(node) and name not in skip
        ]
    items = [wrt] if isinstance(wrt, str | Node | int) else list(wrt)
    known = {node.label: node for node in graph.nodes if node.label}
    known.update({name: graph.nodes[i] for name, i in graph._names.items()})
    chosen: list[Node] = []
    for item in items:
        if isinstance(item, str):
            if item not in known:
                raise UnknownNameError(
                    f"graph '{graph.name}' has no leaf or label '{item}'",
                    hint=nearest(item, known),
                )
            node = known[item]
        else:
            node = graph.node(item)
        if isinstance(node.type, TupleType):
            raise ArgumentError(f"'{_name(node)}' has several results: project one first")
        if not is_differentiable(node):
            raise ArgumentError(f"'{_name(node)}' is {node.type}: only floats have gradients")
        if any(node is other for other in chosen):
            raise ArgumentError(f"'{_name(node)}' is named twice")
        chosen.append(node)
    return chosen


def unused_names(graph: Graph, stem: str, ends: Sequence[str]) -> list[str]:
    """Names for new inputs, numbered by the first count that leaves all of them free."""
    for count in itertools.count(1):
        names = [f"{stem}{count if count > 1 else ''}{end}" for end in ends]
        if not any(name in graph._names for name in names):
            break
    return names


def short_names(nodes: Sequence[Node]) -> list[str]:
    """What new inputs are called after: a leaf's name, a label, or an id."""
    return [str(node.name or node.label or node.id) for node in nodes]


def _name(node: Node) -> str:
    return str(node.name or node.label or f"%{node.id}")


def differentiated(
    graph: Graph, chosen: Sequence[Node], remat: Remat = None
) -> tuple[Graph, list[Node], list[Node]]:
    """A copy with the gradients of its first output, and where ``chosen`` stand in it."""
    if not graph.outputs:
        raise ArgumentError(f"graph '{graph.name}' has no output", hint="call set_outputs first")
    loss = graph.outputs[0]
    if (
        is_differentiable(loss)
        and not isinstance(loss.type, TupleType)
        and loss.dtype.kind == "complex"
    ):
        raise ArgumentError(
            f"the first output must be one float, but it is {loss.type}",
            hint="take its real part, or the square of its absolute value: complex_norm_sq",
        )
    if loss.size != 1 or not is_differentiable(loss):
        raise ArgumentError(
            f"the first output must be one float, but it is {loss.type}",
            hint="reduce it (sum, mean, a loss), or use vjp",
        )
    rebuilt = prepare(graph, chosen, [loss])
    rebuilt.graph._remat = regions(graph, remat)
    seed = rebuilt.graph.ones(loss.shape, loss.dtype)
    # A cotangent c of complex z means Re(c dz); the loss grows fastest along its conjugate.
    gradients = [conjugated(g) for g in _pulled(rebuilt, chosen, [loss], [seed])]
    return rebuilt.graph, gradients, [rebuilt[node] for node in chosen]


def _pulled(
    rebuilt: Rebuilt, chosen: Sequence[Node], outputs: Sequence[Node], cotangents: Sequence[Node]
) -> list[Node]:
    """Gradients by the chosen nodes; zeros where nothing depends on them by a differentiable path."""
    full = rebuilt.graph
    check_paths(full, [rebuilt[n] for n in chosen], [rebuilt[n] for n in outputs])
    ends, places = [rebuilt[n] for n in outputs], [rebuilt[n] for n in chosen]
    found = pull_back(full, ends, cotangents, places, rebuilt.names)
    return [
        full.zeros(node.shape, node.dtype) if gradient is None else gradient
        for node, gradient in zip(chosen, found, strict=True)
    ]


def check_paths(graph: Graph, chosen: Sequence[Node], outputs: Sequence[Node]) -> None:
    """Refuse outputs that follow from parameters and ``chosen`` through integers and truth values alone.

    What an output does not depend on has the gradient 0, and so has what only selects by an index or a condition, or
    passes a step. But where nothing at all has another gradient, because an argmax, a comparison or an integer is
    computed with, the loss is likely a mistake.
    """
    reaching = _reaching_nodes(graph, outputs)
    parameters = [node for node in graph.parameters.values() if is_differentiable(node)]
    if any(reaching[node.id] for node in (*chosen, *parameters)):
        return
    needed = needed_nodes(graph, outputs)
    paths = [_path_as_integer(graph, node, needed) for node in chosen if needed[node.id]]
    blocking = [path for path in paths if path is not None]
    if blocking:
        blocked = next(item for item in blocking[0] if not is_differentiable(item))
        shown = " -> ".join(item.name or item.op.name for item in blocking[0])
        instead = blocked.op.facts.trainable
        raise ArgumentError(
            f"no gradient reaches {quoted([path[0] for path in blocking])}: the only way is through "
            f"{blocked.op.name}, which has no derivative ({shown})",
            hint=f"{instead} passes gradients" if instead else None,
        ).located(blocked.op.name, blocked.label, "", blocked.source)


def quoted(nodes: Sequence[Node]) -> str:
    """The names of nodes as an error lists them."""
    return listed((f"'{_name(node)}'" for node in nodes), most=6)


def has_path(graph: Graph, chosen: Sequence[Node], outputs: Sequence[Node]) -> bool:
    """Whether a differentiable path leads from one of ``chosen`` to one of ``outputs``."""
    reaching = _reaching_nodes(graph, outputs)
    return any(reaching[node.id] for node in chosen)


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


def _path_as_integer(graph: Graph, start: Node, needed: Sequence[bool]) -> list[Node] | None:
    """A way from a float to an integer or truth value that becomes a float again, if there is one."""
    before: dict[int, Node | None] = {start.id: None}
    waiting = [start]
    while waiting:
        node = waiting.pop()
        for user in graph.users(node):
            if user.id in before or not needed[user.id]:
                continue
            before[user.id] = node
            if not is_differentiable(node) and is_differentiable(user):
                # With a float beside it an integer selects; alone it has become a value.
                if not any(map(is_differentiable, user.operands)):
                    return _path_to(user, before)
            elif passes_gradient(user) or not is_differentiable(user):
                waiting.append(user)
    return None


def _path_to(node: Node | None, before: dict[int, Node | None]) -> list[Node]:
    path = []
    while node is not None:
        path.append(node)
        node = before[node.id]
    return path[::-1]
