"""What the tests of spatial ops share: a graph with made-up inputs, and the arrays behind them."""

import numpy as np
import torch

import darner
from darner import Graph


class Bench:
    """A graph with made-up float64 inputs, and the arrays behind them."""

    def __init__(self, seed=0):
        self.graph = Graph("bench")
        self.values = {}
        self.rng = np.random.default_rng(seed)

    def input(self, *shape):
        name = f"v{len(self.values)}"
        self.values[name] = self.rng.uniform(-2, 2, shape)
        return self.graph.input(name, shape, "f64")

    def torch(self, node):
        return torch.from_numpy(self.values[node.name])

    def run(self, *nodes):
        self.graph.set_outputs(list(nodes))
        return darner.run(self.graph, self.values)

    def agree(self, *nodes):
        """All nodes have the first one's values; which are returned."""
        first, *others = self.run(*nodes)
        for other in others:
            np.testing.assert_allclose(other, first, rtol=1e-12, atol=1e-12)
        return first
