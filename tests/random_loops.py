"""Random loops: bodies of random ops over random carries, constants and steps, in either direction, some inside another."""

import random

import numpy as np

from darner import Graph
from darner.graph.types import TupleType
from tests.optimizer.random_graphs import Grower

SIZES = (1, 2, 3, 5, 17)


def body_and_leaves(seed, sizes=SIZES, steps=8):
    """A closed body, and the leaves of each kind: name and shape."""
    chosen = random.Random(seed)
    grower = Grower(chosen, steps, sizes)
    graph = grower.graph
    leaves = [node for node in graph.nodes if node.op.name in ("input", "parameter")]
    kinds = {node.id: chosen.choice("cckxx") for node in leaves}
    kinds[leaves[0].id] = "c"
    ordered = [node for kind in "ckx" for node in leaves if kinds[node.id] == kind]
    body = Graph("body")
    made = {node.id: body.input(node.name, node.shape, node.dtype) for node in ordered}
    for node in graph.nodes:
        if node.id not in made:
            made[node.id] = body.insert_like(node, [made[i] for i in node.inputs])
    plain = (node for node in graph.nodes if not isinstance(node.type, TupleType))
    values = [made[node.id] for node in plain if node.dtype.name == "f64"]

    def next_carry(shape):
        same = [node for node in values if node.shape == shape]
        found = chosen.choice(same)
        if chosen.random() < 0.2:
            return found
        return found.tanh() + chosen.choice(values).mean().tanh() * 0.25

    outputs = [next_carry(node.shape) for node in ordered if kinds[node.id] == "c"]
    outputs += [chosen.choice(values) for _ in range(chosen.randrange(4))]
    body.set_outputs(outputs)
    found = {kind: [n for n in ordered if kinds[n.id] == kind] for kind in "ckx"}
    return body.freeze(), {kind: [(n.name, n.shape) for n in found[kind]] for kind in "ckx"}


def random_loop(seed, lengths=(0, 1, 2, 5), sizes=SIZES):
    """A graph with a loop, what is done before and after it, and values in f64."""
    chosen = random.Random(seed)
    body, leaves = body_and_leaves(seed, sizes)
    length = chosen.choice(lengths)
    graph, values = Graph("looped"), {}

    def leaf(name, shape):
        values[name] = np.random.default_rng(chosen.getrandbits(32)).uniform(-1, 1, shape)
        return graph.input(name, shape, "f64")

    def read(name, shape):
        """An operand: a leaf, or what a kernel before the loop makes."""
        node = leaf(name, shape)
        way = chosen.randrange(4)
        if way == 1:
            return node.tanh()
        if way == 2 and node.rank > 1:
            return leaf(f"{name}t", tuple(reversed(shape))).transpose()
        return node.flip((0,)) if way == 3 and node.rank else node

    init = [read(name, shape) for name, shape in leaves["c"]]
    constants = [read(name, shape) for name, shape in leaves["k"]]
    xs = [read(name, (length, *shape)) for name, shape in leaves["x"]]
    reverse = chosen.random() < 0.5
    results = graph.loop(init, constants, xs, body=body, length=length, reverse=reverse)
    kept = [node for node in results if chosen.random() < 0.8] or [results[0]]
    graph.set_outputs([node.sin() if chosen.random() < 0.3 else node for node in kept])
    used = graph.toposort()
    return used, {name: values[name] for name in used.inputs}


def nested_loop(outer=3, inner=4):
    """A loop in a loop: sums of decaying sums."""
    within = Graph("within")
    h, k, x = (within.input(name, (2, 3), "f64") for name in ("h", "k", "x"))
    within.set_outputs([(h * k + x).tanh(), h.sum(-1)])
    body = Graph("body")
    total = body.input("total", (2, 3), "f64")
    scale = body.input("scale", (2, 3), "f64")
    xs = body.input("xs", (inner, 2, 3), "f64")
    last, sums = body.loop([total], [scale], [xs], body=within.freeze(), length=inner)
    body.set_outputs([last * 0.5, sums, last + scale])
    graph = Graph("nested")
    shapes = {"init": (2, 3), "scale": (2, 3), "xs": (outer, inner, 2, 3)}
    leaves = [graph.input(name, shape, "f64") for name, shape in shapes.items()]
    graph.set_outputs(
        list(graph.loop([leaves[0]], [leaves[1]], [leaves[2]], body=body.freeze(), length=outer))
    )
    rng = np.random.default_rng(0)
    return graph, {name: rng.uniform(-1, 1, shape) for name, shape in shapes.items()}
