"""Random smooth graphs full of what rules look for, in f64: shared values, shared weights, several outputs.

Every op here is continuous and tame, so that another order of arithmetic changes results by rounding alone.
"""

import numpy as np

import darner
from darner import Graph

SIZES = (1, 2, 3, 4)


class Grower:
    """Adds random calls to a graph."""

    def __init__(self, random, steps, sizes=SIZES):
        self.random = random
        self.sizes = sizes
        self.graph = Graph("random")
        self.values = {}
        self.nodes = [self.leaf("input", self.shape(2)), self.leaf("input", self.shape(2))]
        for _ in range(steps):
            made = getattr(self, random.choice(CALLS))(random.choice(self.nodes))
            if made is not None:
                self.nodes.append(made)

    def shape(self, rank):
        return tuple(self.random.choice(self.sizes) for _ in range(rank))

    def leaf(self, kind, shape):
        name = f"{kind}{len(self.values)}"
        seed = self.random.getrandbits(32)
        self.values[name] = np.random.default_rng(seed).uniform(-1, 1, shape)
        return getattr(self.graph, kind)(name, shape, "f64")

    def other(self, shape):
        """A value of that shape: one that is there, if possible."""
        found = [n for n in self.nodes if n.shape == tuple(shape)]
        if found and self.random.random() < 0.7:
            return self.random.choice(found)
        return self.leaf(self.random.choice(["input", "parameter"]), tuple(shape))

    def beside(self, x):
        """Something that broadcasts with x without growing it."""
        kinds = ["same", "vector", "number", "ones"]
        kind = self.random.choice(kinds)
        if kind == "number":
            return self.random.choice([1.0, 0.5, -1.0, 2.0, 0.0, 3.0])
        if kind == "vector" and x.rank:
            return self.other(x.shape[-1:])
        if kind == "ones" and x.rank:
            return self.other((1,) * x.rank)
        return self.other(x.shape)

    # ---------------------------------------------------------------- calls

    def unary(self, x):
        name = self.random.choice(
            ["relu", "sigmoid", "silu", "tanh", "neg", "square", "gelu", "abs", "softplus"]
        )
        return getattr(self.calm(x), name)()

    def calm(self, x):
        """Values stay small, or exponentials and squares of squares run away."""
        return x.tanh() if self.random.random() < 0.5 else x

    def add(self, x):
        return x + self.beside(x)

    def sub(self, x):
        return x - self.beside(x)

    def mul(self, x):
        return self.calm(x) * self.beside(x)

    def div(self, x):
        return x / self.random.choice([2.0, -4.0, 0.3])

    def matmul(self, x):
        if x.rank < 2:
            return None
        width = self.random.choice(self.sizes)
        form = self.random.choice(["nn", "nt", "tn"])
        if form == "nn":
            return x @ self.weight((x.shape[-1], width))
        if form == "nt":
            return x.matmul_bt(self.weight((width, x.shape[-1])))
        return x.matmul_at(self.other((*x.shape[:-1], width))) if x.rank == 2 else None

    def weight(self, shape):
        found = [n for n in self.graph.parameters.values() if n.shape == shape]
        if found and self.random.random() < 0.5:
            return self.random.choice(found)
        return self.leaf("parameter", shape)

    def projections(self, x):
        """Several products of one operand."""
        if x.rank < 2:
            return None
        weights = [
            self.leaf("parameter", (x.shape[-1], self.random.choice(self.sizes)))
            for _ in range(self.random.choice([2, 3]))
        ]
        made = [x @ w for w in weights]
        self.nodes += made[1:]
        return made[0]

    def gated(self, x):
        if x.rank < 2:
            return None
        width = self.random.choice(self.sizes)
        gate, up = (self.leaf("parameter", (x.shape[-1], width)) for _ in range(2))
        h = x @ gate
        return h * (1.0 / (1.0 + (-h).exp())) * (x @ up)

    def linear(self, x):
        if x.rank < 2:
            return None
        width = self.random.choice(self.sizes)
        h = x @ self.leaf("parameter", (x.shape[-1], width)) + self.leaf("parameter", (width,))
        return getattr(h, self.random.choice(["relu", "gelu", "silu", "tanh", "neg"]))()

    def softmax(self, x):
        if not x.rank:
            return None
        e = (x - x.max(-1, keepdims=True)).exp()
        return e / e.sum(-1, keepdims=True)

    def norm(self, x):
        if not x.rank:
            return None
        n = x.shape[-1]
        weight = self.leaf("parameter", (n,))
        if self.random.random() < 0.5:
            return x * ((x * x).mean(-1, keepdims=True) + 0.1).rsqrt() * weight
        centred = x - x.sum(-1, keepdims=True) * (1 / n)
        spread = (centred * centred).sum(-1, keepdims=True) / n
        return centred / (spread + 0.1).sqrt() * weight + self.leaf("parameter", (n,))

    def transpose(self, x):
        order = list(range(x.rank))
        self.random.shuffle(order)
        return x.transpose(order)

    def reshape(self, x):
        return self.random.choice(
            [x.reshape((-1,)), x.reshape((1, *x.shape)), x.reshape((*x.shape, 1))]
        )

    def slice(self, x):
        if not x.rank or x.shape[-1] < 2:
            return None
        cut = self.random.randrange(1, x.shape[-1])
        self.nodes.append(x[..., cut:])
        return x[..., :cut]

    def concat(self, x):
        if not x.rank:
            return None
        return self.graph.concat([x, self.other(x.shape)], axis=self.random.randrange(x.rank))

    def reduce(self, x):
        if not x.rank:
            return None
        axis = self.random.randrange(x.rank)
        return getattr(x, self.random.choice(["sum", "mean"]))(axis, self.random.random() < 0.5)

    def where(self, x):
        condition = self.other(x.shape) > 0.1
        return self.graph.where(condition, x, self.other(x.shape))

    def cast(self, x):
        return x.cast("f64")


CALLS = [
    "unary",
    "unary",
    "add",
    "sub",
    "mul",
    "div",
    "matmul",
    "matmul",
    "projections",
    "gated",
    "linear",
    "softmax",
    "norm",
    "transpose",
    "reshape",
    "slice",
    "concat",
    "reduce",
    "where",
    "cast",
]


def grown(random, steps=14, sizes=SIZES):
    """A graph with outputs at its end and in its middle, and values for its leaves."""
    grower = Grower(random, steps, sizes)
    ends = [n for n in grower.nodes if not grower.graph.use_count(n) and n.name is None]
    inner = [n for n in grower.nodes if grower.graph.use_count(n) and n.name is None]
    picked = random.sample(inner, min(len(inner), random.choice([0, 1, 2, 3])))
    outputs = sorted({n.id for n in (*ends, *picked)}) or [grower.nodes[-1].id]
    grower.graph.set_outputs([grower.graph.nodes[i] for i in outputs])
    return grower.graph, grower.values


def with_loss(graph):
    """The graph with one number as its output: every output weighs in, each element differently."""
    copy = graph.copy()
    total = None
    for node in copy.outputs:
        factors = np.cos(1.0 + np.arange(max(int(node.size), 1)))[: int(node.size)]
        part = (node * copy.constant(factors.reshape(node.shape), dtype="f64")).sum()
        total = part if total is None else total + part
    copy.set_outputs([total])
    return copy


def run(graph, values):
    inputs = {name: values[name] for name in graph.inputs}
    params = {name: values[name] for name in graph.parameters}
    return darner.run(graph, inputs, params)
