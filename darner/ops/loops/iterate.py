"""Loops written as Python functions: ``iterate``, and loops that keep a few carries for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from ...graph.build import call
from ...graph.capture import Body
from ...graph.errors import ArgumentError, DarnerError, ShapeError
from ...graph.graph import Graph
from ...graph.node import Node
from ...graph.op import builder
from ..creation import leaves  # the ops that segments are made of
from ..shapes import joining, primitives, shaping
from .loop import FAMILY, loop

MADE_OF = (joining, leaves, primitives, shaping)
Tree: TypeAlias = Any
"""A node, or tuples, lists and dictionaries of trees; None holds nothing."""
Step: TypeAlias = Callable[[Tree, Tree], Tree]


@builder(family=FAMILY)
def iterate(
    graph: Graph,
    step: Step,
    init: Tree,
    xs: Tree = None,
    length: int | None = None,
    *,
    reverse: bool = False,
    checkpoints: int | None = None,
) -> tuple[Tree, Tree]:
    """``carry, y = step(carry, x)`` for each step of ``xs``: the last carry, and all ``y`` stacked.

    ``step`` is a function of nodes, called once to write the loop's body. It may read nodes of the graph around it, and layers inside it declare their
    parameters there. Carries, ``xs`` and ``y`` are nodes, or tuples, lists and dictionaries of them; ``xs`` has time as its first axis, and
    ``length`` is needed where there is none. ``reverse`` goes from the last step to the first. With ``checkpoints`` a gradient keeps that many
    carries and computes the steps between them again.

    >>> import darner
    >>> g = darner.Graph()
    >>> x = g.input("x", (4,))
    >>> last, sums = g.iterate(lambda total, x_t: (total + x_t, total), g.zeros(()), x)
    >>> g.set_outputs([last, sums])
    >>> darner.run(g, {"x": [1.0, 2.0, 3.0, 4.0]})
    [array(10., dtype=float32), array([0., 1., 3., 6.], dtype=float32)]
    """
    if not callable(step):
        raise ArgumentError(
            f"the step must be a function of the carry and x, not {_kind(step)}",
            hint="g.loop takes a body that is a graph",
        )
    starts, carry_tree = _flat(graph, init, "init")
    reads, x_tree = _flat(graph, xs, "xs")
    steps = _length(reads, length)
    body = Body(graph, getattr(step, "__name__", "step").strip("<>"))
    try:
        carried = [
            body.input(f"carry{path}", node.shape, node.dtype)
            for node, path in zip(starts, _paths(carry_tree), strict=True)
        ]
        read = [
            body.input(f"x{path}", node.shape[1:], node.dtype)
            for node, path in zip(reads, _paths(x_tree), strict=True)
        ]
        answer = _stepped(step, _built(carry_tree, iter(carried)), _built(x_tree, iter(read)))
        following, written, y_tree = _answered(body, answer, carried, carry_tree)
        constants = list(body.captured)
        inputs = [*carried, *body.captured.values(), *read]
        finished = _finished(body, inputs, [*following, *written])
        constants = [node for node in constants if node.op.name != "constant"]
    finally:
        body.close()
    options = {"reverse": reverse}
    if checkpoints is None:
        results = list(call(loop, graph, [starts, constants, reads, finished, steps], options))
    else:
        results = in_segments(
            graph, (starts, constants, reads), finished, steps, checkpoints, reverse
        )
    count = len(starts)
    return _built(carry_tree, iter(results[:count])), _built(y_tree, iter(results[count:]))


def _stepped(step: Step, carry: Tree, x: Tree) -> Tree:
    """What the step function returns; an op in it that fails is named beside the loop."""
    try:
        return step(carry, x)
    except DarnerError as error:
        raise (error.within("its step") if error.op else error) from error.__cause__


def _answered(
    body: Body, answer: object, carried: Sequence[Node], tree: Tree
) -> tuple[list[Node], list[Node], Tree]:
    """The new carries and what is written, as the step function returned them."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise ArgumentError(
            f"the step must return the next carry and what it writes, not {_kind(answer)}",
            hint="return carry, y; and None for y where nothing is written",
        )
    following, found = _flat(body, answer[0], "the next carry")
    if found != tree:
        raise ArgumentError(f"the carry is {_shown(tree)}, but the next one is {_shown(found)}")
    for leaf, new in zip(carried, following, strict=True):
        if new.type != leaf.type:
            raise ShapeError(f"{leaf.name} is {leaf.type}, but after a step it is {new.type}")
    written, y_tree = _flat(body, answer[1], "what the step writes")
    return following, written, y_tree


def _finished(body: Body, inputs: Sequence[Node], outputs: Sequence[Node]) -> Graph:
    """The body with its inputs in the order of a loop: carries, constants, steps."""
    result = Graph(body.name)
    mapped: dict[int, Node] = {}
    for leaf in (node for node in inputs if node.op.name == "input"):
        mapped[leaf.id] = result.insert_like(leaf, [])
    for node in body.nodes:
        if node.id not in mapped:
            mapped[node.id] = result.insert_like(node, [mapped[i] for i in node.inputs])
    result.set_outputs([mapped[node.id] for node in outputs])
    result.inherit(body)
    return result.toposort().freeze()


def _length(reads: Sequence[Node], length: int | None) -> int:
    if not reads and length is None:
        raise ArgumentError("the number of steps is missing", hint="give xs or length=")
    for node in reads:
        if node.rank == 0:
            raise ShapeError("xs needs a first axis, which is time, but one of it is a scalar")
        steps = node.shape[0]
        if not isinstance(steps, int):
            raise ShapeError(
                f"a loop has a known number of steps, but xs has {steps}",
                hint=f"bind it first: graph.bind({steps}=...)",
            )
        if length is not None and steps != length:
            raise ShapeError(f"xs has {steps} steps where there are {length}")
        length = steps
    return int(length or 0)


# --------------------------------------------------------------------------- trees


_LEAF = "node"


def _flat(graph: Graph, tree: Tree, what: str) -> tuple[list[Node], Tree]:
    """The nodes of a tree in order, and the tree with marks in their place."""
    if tree is None:
        return [], None
    if isinstance(tree, Node):
        return [graph.node(tree)], _LEAF
    if isinstance(tree, list | tuple | dict):
        pairs = sorted(tree.items()) if isinstance(tree, dict) else list(enumerate(tree))
        parts = {key: _flat(graph, value, what) for key, value in pairs}
        nodes = [node for found, _ in parts.values() for node in found]
        marks = {key: mark for key, (_, mark) in parts.items()}
        return nodes, marks if isinstance(tree, dict) else _sequence(tree, marks.values())
    if isinstance(tree, str) or not (hasattr(tree, "__array__") or isinstance(tree, int | float)):
        raise _wrong(what, tree)
    return [graph.literal(tree, None)], _LEAF


def _sequence(like: Tree, values: Iterable[Tree]) -> Tree:
    """Values in a list, a tuple or a tuple with names, as ``like`` is one."""
    make = getattr(type(like), "_make", list if isinstance(like, list) else tuple)
    return make(values)


def _wrong(what: str, value: object) -> ArgumentError:
    return ArgumentError(
        f"{what} must be nodes, in tuples, lists and dictionaries, not {_kind(value)}"
    )


def _built(tree: Tree, nodes: Iterator[Node]) -> Tree:
    """The tree with nodes in place of its marks."""
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {key: _built(value, nodes) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return _sequence(tree, [_built(value, nodes) for value in tree])
    return next(nodes)


def _paths(tree: Tree, path: str = "") -> list[str]:
    """Where each leaf of a tree stands, as Python writes it."""
    if tree is None:
        return []
    if isinstance(tree, dict | list | tuple):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return [found for key, value in pairs for found in _paths(value, f"{path}[{key!r}]")]
    return [path]


def _shown(tree: Tree) -> str:
    return repr(tree).replace(repr(_LEAF), "node")


def _kind(value: object) -> str:
    return "one node" if isinstance(value, Node) else f"{value!r}"


# --------------------------------------------------------------------------- segments


def in_segments(  # many parameters: a loop, and how it is cut
    graph: Graph,
    operands: tuple[Sequence[Node], Sequence[Node], Sequence[Node]],
    body: Graph,
    length: int,
    count: int,
    reverse: bool = False,
) -> list[Node]:
    """A loop as a loop over ``count`` segments, whose gradient keeps the carries before each segment alone.

    Where the steps cannot be divided evenly, there are two loops over segments: those with one step more come first.
    """
    if not isinstance(count, int) or not 1 <= count <= max(length, 1):
        raise ArgumentError(f"checkpoints must be between 1 and the {length} steps, not {count!r}")
    init, constants, xs = (list(nodes) for nodes in operands)
    if length == 0:
        return list(call(loop, graph, [init, constants, xs, body, 0], {"reverse": reverse}))
    size, longer = divmod(length, count)
    parts = [
        (number, steps) for number, steps in ((longer, size + 1), (count - longer, size)) if number
    ]
    carries, written, done = init, [], 0
    for number, steps in parts:
        covered = number * steps
        start = length - done - covered if reverse else done
        done += covered
        pieces = [x[start : start + covered].reshape((number, steps, *x.shape[1:])) for x in xs]
        segment = _segment(body, (init, constants, pieces), steps, reverse)
        options = {"reverse": reverse, "recompute": True}
        results = list(call(loop, graph, [carries, constants, pieces, segment, number], options))
        carries = results[: len(init)]
        written.append([y.reshape((covered, *y.shape[2:])) for y in results[len(init) :]])
    if reverse:
        written.reverse()
    joined = [
        ys[0] if len(ys) == 1 else graph.concat(list(ys), axis=0)
        for ys in zip(*written, strict=True)
    ]
    return [*carries, *joined]


def _segment(
    body: Graph,
    operands: tuple[Sequence[Node], Sequence[Node], Sequence[Node]],
    steps: int,
    reverse: bool,
) -> Graph:
    """The body of a loop over segments: a loop over the steps of one."""
    init, constants, pieces = operands
    graph = Graph(f"{body.name}_segment")
    stems = [*("h" for _ in init), *("k" for _ in constants)]
    shared = [
        graph.input(f"{stem}{i}", node.shape, node.dtype)
        for i, (stem, node) in enumerate(zip(stems, [*init, *constants], strict=True))
    ]
    xs = [graph.input(f"x{i}", x.shape[1:], x.dtype) for i, x in enumerate(pieces)]
    carries, fixed = shared[: len(init)], shared[len(init) :]
    graph.set_outputs(
        list(call(loop, graph, [carries, fixed, xs, body, steps], {"reverse": reverse}))
    )
    return graph.freeze()
