"""Hypothesis strategies: random well-typed graphs from the op registry, with values to run them.

A graph is grown call by call. A call is one of an op's own samples; each operand is an existing node
of the right type, or a new leaf. So every op that is declared takes part without being named here.
"""

import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from darner import Graph
from darner.graph import dtypes
from darner.graph.build import call
from darner.graph.node import Node
from darner.graph.op import OPS
from darner.graph.types import TensorType
from darner.ops.samples import Spec
from darner.testing import make_array

ODD_CHARACTERS = "aB9_.-/ \"'\\\n\r\t\x00\x0b\x0c\x1c\x85\u2028\u2029äπ日🙂\u0301%={}[]():,@#"

odd_text = st.text(st.sampled_from(ODD_CHARACTERS), min_size=1, max_size=8) | st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5
)
"""Text that is legal as a name or label and hard to print: quotes, line ends, other scripts."""

labels = st.none() | st.none() | odd_text
scopes = st.lists(st.sampled_from(["a", "b.c", "layer 0", "é"]), max_size=2)
element_types = st.sampled_from(dtypes.ALL)
float_types = st.sampled_from(dtypes.FLOATS)
small_shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
constant_shapes = small_shapes | st.sampled_from([(17,), (5, 7), (0, 3), (4, 1, 5)])

SPECIAL = (0.0, -0.0, 1.0, float("nan"), float("inf"), -float("inf"), 1e-45, 6e-8, 0.1, -3.25)
SYMBOLIC_SHAPES = (("n",), ("n", 3), ("m", "n"), ("2*n+1", 1), (2, "m"))


# Hypothesis draws small integers and first items far more often than others: what should be spread
# evenly, such as the choice among hundreds of samples, comes from a generator with a drawn seed.
generators = st.binary(min_size=8, max_size=8).map(random.Random)


def choose_sample(choose: Any) -> tuple[Any, Any]:
    """One of darner's own ops and one of its samples; every family is as likely."""
    usable = [op for op in OPS.values() if op.builtin and op.samples]
    family = choose(sorted({op.family for op in usable}))
    op = choose([op for op in usable if op.family == family])
    return op, choose(op.samples)


@st.composite
def arrays(draw, dtype, shapes=constant_shapes):
    """An array of an element type, with values that are awkward to write."""
    shape = draw(shapes)
    rng = np.random.default_rng(draw(generators).getrandbits(32))
    if dtype.kind in ("float", "complex"):
        values = rng.normal(0, 10.0, shape)
        if values.size and draw(st.booleans()):
            places = rng.random(shape) < 0.5
            values = np.where(places, rng.choice(SPECIAL, shape), values)
        if dtype.kind == "complex":
            values = values + 1j * rng.normal(size=shape)
    else:
        low, high = dtype.limits
        values = rng.integers(low, high, shape, endpoint=True, dtype=np.int64)
    return np.asarray(values).astype(dtype.numpy)


@dataclass
class Built:
    """A graph, and what it takes to run it."""

    graph: Graph
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    params: dict[str, np.ndarray] = field(default_factory=dict)
    states: dict[str, np.ndarray] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    """What the symbolic sizes are, in the values."""


class Grower:
    """Adds random calls to a graph."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.built = Built(Graph(draw(odd_text | st.just("g"))))
        self.built.sizes = {"n": draw(st.integers(0, 4)), "m": draw(st.integers(1, 3))}
        self.random = draw(generators)
        self.rng = np.random.default_rng(self.random.getrandbits(32))

    def name(self) -> str:
        """A name no leaf has yet, whatever the scope."""
        return f"{self.draw(odd_text)}{len(self.built.graph)}"

    def leaf(self, array: np.ndarray, shape: Any = None, kinds: tuple[str, ...] = ()) -> Node:
        """A new node with the values of an array: one of the four kinds of leaves."""
        graph, draw = self.built.graph, self.draw
        kind = draw(st.sampled_from(kinds or ("input", "input", "parameter", "state", "constant")))
        label = draw(labels)
        if kind == "constant":
            return graph.constant(array, label=label)
        node = getattr(graph, kind)(
            self.name(), array.shape if shape is None else shape, array.dtype, label=label
        )
        table = {
            "input": self.built.inputs,
            "parameter": self.built.params,
            "state": self.built.states,
        }
        table[kind][node.name] = array
        return node

    def operand(self, spec: Spec, dtype: Any) -> Node:
        """A node as a sample asks: an old one of the same type, or a leaf."""
        array = make_array(spec, dtype, self.rng)
        type_ = TensorType(array.shape, dtypes.dtype(array.dtype))
        # Integers are often indices, which must stay in range: they are always made to order.
        known = [node for node in self.built.graph.nodes if node.type == type_]
        if spec.kind != "int" and known and self.draw(st.booleans()):
            return self.draw(st.sampled_from(known))
        return self.leaf(array)

    def call_sample(self) -> None:
        """One of an op's own samples."""
        op, sample = choose_sample(self.random.choice)
        dtype = self.draw(float_types)

        def filled(value: Any) -> Any:
            if isinstance(value, Spec):
                return self.operand(value, dtype)
            return [filled(item) for item in value] if isinstance(value, list) else value

        args = [filled(value) for value in sample.args]
        kwargs = {name: filled(value) for name, value in sample.kwargs.items()}
        call(op, self.built.graph, args, {**kwargs, "label": self.draw(labels)})

    def add_constant(self) -> None:
        """A constant of any element type."""
        array = self.draw(arrays(self.draw(element_types)))
        self.built.graph.constant(array, label=self.draw(labels))

    def add_chain(self) -> None:
        """A few element-wise ops over sizes that have a name."""
        shape = self.draw(st.sampled_from(SYMBOLIC_SHAPES))
        type_ = TensorType.new(shape)
        bound = tuple(int(size) for size in type_.bind(self.built.sizes).shape)
        array = self.rng.normal(size=bound).astype(self.draw(float_types).numpy)
        node = self.leaf(array, shape, kinds=("input", "state"))
        for _ in range(self.draw(st.integers(0, 4))):
            step = self.draw(
                st.sampled_from(
                    [
                        lambda x: x + x,
                        lambda x: 2.5 * x,
                        lambda x: x.tanh(),
                        lambda x: (x > 0.5).cast("f32"),
                        lambda x: x.clip(-1.0, 1.0),
                        lambda x: np.ones((1,), np.float32) - x,
                    ]
                )
            )
            node = step(node)

    def step(self) -> None:
        """One more thing, in some scope."""
        kind = self.random.choice(["sample", "sample", "sample", "constant", "chain"])
        with ExitStack() as stack:
            for scope in self.draw(scopes):
                stack.enter_context(self.open_scope(scope))
            {
                "sample": self.call_sample,
                "constant": self.add_constant,
                "chain": self.add_chain,
            }[kind]()

    def open_scope(self, name: str) -> Any:
        """A scope, or one that a backward pass computes again."""
        graph = self.built.graph
        path = f"{graph.current_scope}.{name}" if graph.current_scope else name
        if path in graph._remat or self.draw(st.integers(0, 3)):
            return graph.scope(name)
        return graph.remat(name, self.draw(st.sampled_from([None, "matmul", ["exp", "add"], 100])))

    def finish(self) -> Built:
        """Set outputs and updates."""
        graph = self.built.graph
        tensors = [node for node in graph.nodes if isinstance(node.type, TensorType)]
        graph.set_outputs(self.draw(st.lists(st.sampled_from(tensors), max_size=3)))
        for leaf in (*graph.states.values(), *graph.parameters.values()):
            same = [node for node in tensors if node.type == leaf.type]
            if leaf not in graph.updates and self.draw(st.integers(0, 3)) == 0:
                graph.set_update(leaf, self.draw(st.sampled_from(same)))
        return self.built


@st.composite
def built_graphs(draw, max_steps: int = 6):
    """A random graph with values for all its leaves."""
    grower = Grower(draw)
    for _ in range(draw(st.integers(1, max_steps))):
        grower.step()
    return grower.finish()


def graphs(max_steps: int = 6):
    """A random graph."""
    return built_graphs(max_steps).map(lambda built: built.graph)


def snapshot(graph: Graph) -> dict[str, Any]:
    """Everything a graph holds, so that two moments of it can be compared."""
    return {
        "fields": [
            (n.id, n.op, n.inputs, n.slots, dict(n.attrs), n.type, n.label, n.scope, n.source)
            for n in graph.nodes
        ],
        "objects": [id(n) for n in graph.nodes],
        "users": [list(users) for users in graph._users],
        "outputs": list(graph._outputs),
        "updates": dict(graph._updates),
        "names": dict(graph._names),
        "literals": dict(graph._literals),
        "scopes": list(graph._scopes),
        "streams": graph._streams,
        "remat": dict(graph._remat),
        "frozen": graph._frozen,
        "digest": graph.digest(),
        "json": graph.to_json(),
    }
