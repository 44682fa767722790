"""Whole Jacobians and Hessians: a product with each vector of a basis, all of them at once.

    >>> import darner, numpy as np
    >>> g = darner.Graph()
    >>> x = g.input("x", (2,))
    >>> g.set_outputs([x.square()])
    >>> darner.run(darner.jacrev(g, "x"), {"x": np.array([1.0, 3.0])})
    [array([[2., 0.],
           [0., 6.]], dtype=float32)]

The vectors of a basis are a batch: the rows of an identity, which is a comparison of counters and never a constant.
What does not depend on them is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..graph.errors import ArgumentError, Calling
from ..graph.graph import Graph
from ..graph.node import Node
from ..ops.axes import from_front
from .batch import Walk
from .forward import push_forward
from .gradients import Wrt, check_paths, differentiated, select, unused_names
from .reverse import Rebuilt, is_differentiable, prepare, pull_back

Parts = list[list[Node | None]]
"""For each output, what belongs to each of the chosen nodes; None for zero."""


def jacrev(graph: Graph, wrt: Wrt = None) -> Graph:
    """The derivative of each element of the float outputs by each element of ``wrt``, by reverse mode.

    The outputs are Jacobians of shape ``(*output.shape, *wrt.shape)``: for each output, one for each of ``wrt``. The
    work grows with the sizes of the outputs; ``jacfwd`` gives the same, and its work grows with those of ``wrt``.
    """
    with Calling("jacrev"):
        chosen = select(graph, wrt)
        rebuilt, outputs = _prepared(graph, chosen)
        seeds = _seeds(rebuilt.graph, outputs)
        places = [rebuilt[node] for node in chosen]
        found: Parts = [
            pull_back(rebuilt.graph, [rebuilt[output]], [seed], places, rebuilt.names)
            for output, seed in zip(outputs, seeds, strict=True)
        ]
        return _over_basis(rebuilt, seeds, found, outputs, chosen, reverse=True)


def jacfwd(graph: Graph, wrt: Wrt = None) -> Graph:
    """The same Jacobians as those of ``jacrev``, by forward mode."""
    with Calling("jacfwd"):
        return _forward_jacobians(graph, select(graph, wrt))


def hessian(graph: Graph, wrt: Wrt = None) -> Graph:
    """The second derivatives of the first output, which must be one element.

    The outputs are blocks of shape ``(*a.shape, *b.shape)``: for each ``a`` of ``wrt``, one for each ``b``.

    >>> import darner, numpy as np
    >>> g = darner.Graph()
    >>> x, y = g.input("x", ()), g.input("y", ())
    >>> g.set_outputs([x * x * y])
    >>> [float(block) for block in darner.run(darner.hessian(g, ["x", "y"]), {"x": 3.0, "y": 5.0})]
    [10.0, 6.0, 6.0, 0.0]
    """
    with Calling("hessian"):
        full, gradients, places = differentiated(graph, select(graph, wrt))
        full.set_outputs(gradients)
        return _forward_jacobians(full, places)


def _forward_jacobians(graph: Graph, chosen: Sequence[Node]) -> Graph:
    rebuilt, outputs = _prepared(graph, chosen)
    ends = [rebuilt[output] for output in outputs]
    seeds = _seeds(rebuilt.graph, chosen)
    columns = []
    for node, seed in zip(chosen, seeds, strict=True):
        tangents: dict[int, Any] = {rebuilt[node].id: seed}
        push_forward(rebuilt.graph, tangents, ends)
        columns.append([tangents.get(end.id) for end in ends])
    found: Parts = [list(row) for row in zip(*columns, strict=True)]
    return _over_basis(rebuilt, seeds, found, outputs, chosen, reverse=False)


def _prepared(graph: Graph, chosen: Sequence[Node]) -> tuple[Rebuilt, list[Node]]:
    """A copy whose nodes have rules, and the outputs (of the original) that have a derivative."""
    outputs = [node for node in graph.outputs if is_differentiable(node)]
    if not outputs:
        raise ArgumentError("no output is a float: there is nothing to differentiate")
    if not chosen:
        raise ArgumentError("there is nothing to differentiate by", hint="name an input in wrt")
    for node in (*outputs, *chosen):
        if node.dtype.kind == "complex":
            raise ArgumentError(
                f"a Jacobian of complex values is not one matrix, and %{node.id} is {node.type}",
                hint="use vjp or jvp",
            )
    rebuilt = prepare(graph, chosen, outputs)
    check_paths(
        rebuilt.graph, [rebuilt[node] for node in chosen], [rebuilt[node] for node in outputs]
    )
    return rebuilt, outputs


def _seeds(graph: Graph, like: Sequence[Node]) -> list[Node]:
    """A stand-in for the vectors of each basis."""
    names = unused_names(graph, "basis", [f"_{i}" for i in range(len(like))])
    return [
        graph.input(name, node.shape, node.dtype) for name, node in zip(names, like, strict=True)
    ]


def _over_basis(
    rebuilt: Rebuilt,
    seeds: Sequence[Node],
    found: Parts,
    outputs: Sequence[Node],
    chosen: Sequence[Node],
    *,
    reverse: bool,
) -> Graph:
    """The graph with a basis in place of each seed, and Jacobians in place of products with it.

    No value depends on two seeds, so one walk serves batches of several sizes.
    """
    source = rebuilt.graph
    walk = Walk(Graph(source.name), 0)
    seed_of = {seed.id: seed for seed in seeds}
    for node in source.nodes:
        if node.name is not None and node.id in seed_of:
            walk.give(node, basis(walk.graph, node), batched=True)
            continue
        seed = next((seed_of[i] for i in node.inputs if i in seed_of), None)
        if seed is not None:
            walk.size, seed_of[node.id] = seed.size, seed
        walk.visit(node)
    jacobians = []
    for output, row in zip(outputs, found, strict=True):
        for node, part in zip(chosen, row, strict=True):
            shape = (*output.shape, *node.shape)
            if part is None or not walk.batched[part.id]:
                dtype = node.dtype if reverse else output.dtype
                jacobians.append(walk.graph.zeros(shape, dtype))
                continue
            value: Node = walk.values[part.id]
            if not reverse:
                value = from_front(value, value.rank - 1)
            jacobians.append(value.reshape(shape))
    walk.graph.set_outputs(jacobians)
    for leaf, update in source.updates.items():
        walk.graph.set_update(walk.values[leaf.id], walk.values[update.id])
    walk.graph.inherit(source)
    return walk.graph.toposort()


def basis(graph: Graph, node: Node) -> Node:
    """All unit vectors of a node's shape, along a new first axis."""
    position = graph.iota((node.size,)).reshape(node.shape)
    each = graph.iota((node.size, *(1,) * node.rank))
    return (each == position).cast(node.dtype)
