"""Loops written out, as what they are compared with."""

import darner
from darner.graph.edit import inline_by_name
from darner.transforms.loops.parts import Loop, is_loop


def unrolled(graph):
    """The graph with the nodes of every step in place of its loops."""
    result = darner.Graph(graph.name)
    mapped = {}
    for node in graph.nodes:
        if node.op.name == "project" and isinstance(mapped[node.inputs[0]], list):
            mapped[node.id] = mapped[node.inputs[0]][node.attrs["index"]]
        elif is_loop(node):
            mapped[node.id] = _steps(result, Loop.of(node), mapped)
        else:
            mapped[node.id] = result.insert_like(node, [mapped[i] for i in node.inputs])
    result.set_outputs([mapped[node.id] for node in graph.outputs])
    return result


def _steps(graph, loop, mapped):
    body, count = unrolled(loop.body), len(loop.init)
    init, constants, xs = (
        [mapped[node.id] for node in nodes] for nodes in (loop.init, loop.constants, loop.xs)
    )
    carries, written = init, []
    order = range(loop.length)
    for t in reversed(order) if loop.reverse else order:
        values = [*carries, *constants, *(x[t] for x in xs)]
        found = inline_by_name(graph, body, dict(zip(body.inputs, values, strict=True)))
        carries = found[:count]
        written.append(found[count:])
    if loop.reverse:
        written.reverse()
    stacked = [
        graph.stack([step[i] for step in written], axis=0)
        if written
        else graph.zeros((0, *kind.shape), kind.dtype)
        for i, kind in enumerate(body.outputs[count:])
    ]
    return [*carries, *stacked]


def loops_of(graph):
    """The loops of a graph, those in bodies left out."""
    return [Loop.of(node) for node in graph.nodes if is_loop(node)]
