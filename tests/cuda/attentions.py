"""Attentions for tests of tensor cores: graphs with their operands, and what the reference makes of them."""

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

import darner
from darner.backends.cuda import kernels
from darner.lower.lower import lower
from darner.lower.roles import whole_ops

STORED = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "tf32": np.float32}
"""What factors are in memory."""
TOLERANCE = {"bf16": 4e-3, "f16": 6e-4, "tf32": 8e-4}
"""Of the norm of the difference, relative to the result's: products of rounded probabilities, and rounded results."""


@dataclass(frozen=True)
class Case:
    """An attention: sizes, what it is asked for, and which masks and biases it has; ``kept`` is one with its gradients, which read what it keeps."""

    heads: int
    kv_heads: int
    queries: int
    keys: int
    width: int
    batch: int = 1
    value_width: int = 0
    dtype: str = "bf16"
    backward: bool = False
    kept: bool = False
    mask: tuple = ()
    bias: tuple = ()
    finish: bool = False
    options: dict = field(default_factory=dict, hash=False)

    def __str__(self):
        kind = "backward" if self.backward else "both" if self.kept else "forward"
        sizes = f"{self.batch}x{self.heads}x{self.kv_heads}x{self.queries}x{self.keys}"
        options = "-".join(f"{name}={value}" for name, value in self.options.items())
        return f"{kind}-{self.dtype}-{sizes}x{self.width}-{self.value_width or ''}{options}"

    def shapes(self):
        """The shapes of all factors."""
        width = self.value_width or self.width

        def shape(heads, rows, columns):
            lead = (heads, rows) if self.options.get("layout", "bhsd") == "bhsd" else (rows, heads)
            return (self.batch, *lead, columns)

        found = {
            "q": shape(self.heads, self.queries, self.width),
            "k": shape(self.kv_heads, self.keys, self.width),
            "v": shape(self.kv_heads, self.keys, width),
        }
        if self.backward or self.kept:
            found["dy"] = shape(self.heads, self.queries, width)
        return found

    def graph(self):
        """The graph."""
        graph = darner.Graph()
        stored = "f32" if self.dtype == "tf32" else self.dtype
        factors = [graph.input(name, shape, stored) for name, shape in self.shapes().items()]
        if self.dtype == "tf32":
            factors = [factor.reduce_precision(8, 10) for factor in factors]
        options = dict(self.options)
        if self.mask:
            options["mask"] = graph.input("mask", self.mask, "bool")
        if self.bias:
            options["bias"] = graph.input("bias", self.bias, "f32")
        if "offset" in options:
            options["offset"] = graph.input("offset", (self.batch,), "i32")
        if self.bias or self.finish:
            factors = [factor.cast("f32") for factor in factors]
        if self.kept:
            y = graph.scaled_dot_attention(*factors[:3], **options)
            grads = graph.scaled_dot_attention_backward(*factors, **options)[:3]
            outputs = [y.cast(stored), *grads]
        elif self.backward:
            outputs = list(graph.scaled_dot_attention_backward(*factors, **options))[:3]
        else:
            y = graph.scaled_dot_attention(*factors, **options)
            outputs = [y.relu() + 1.0, (y * 2.0).cast(self.dtype)] if self.finish else [y]
        graph.set_outputs(outputs)
        return graph

    def arrays(self, seed=0):
        """Random operands."""
        random, kind = np.random.default_rng(seed), STORED[self.dtype]
        found = {n: random.standard_normal(s).astype(kind) for n, s in self.shapes().items()}
        if self.mask:
            found["mask"] = random.random(self.mask) > 0.3
        if self.bias:
            found["bias"] = random.standard_normal(self.bias).astype(np.float32)
        if "offset" in self.options:
            found["offset"] = np.arange(self.batch, dtype=np.int32) * 7 - 3
        return found


def planned(graph, machine):
    """The plan of a graph of one attention for a machine, as its backend lowers it."""
    given = kernels.multipliers_of(machine)
    whole = set(whole_ops())
    rules = {"ended": set(), "alignment": 256, "multipliers": given, "keeps": True}
    return lower(graph, target="cuda", whole=whole, **rules)


def assert_near(case, found, arrays):
    """What was computed is what the float64 reference says, as near as rounded factors allow."""
    wanted = darner.run(case.graph(), arrays, float64=True)
    for own, other in zip(found, wanted, strict=True):
        own, other = np.asarray(own).astype(np.float64), np.asarray(other).astype(np.float64)
        assert np.isfinite(own).all()
        error = np.linalg.norm(own - other) / max(np.linalg.norm(other), 1e-30)
        assert error < TOLERANCE[case.dtype], f"relative error {error:.2e}"
