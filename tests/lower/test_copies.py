"""Products that read a transposed copy which is made anyway."""

import numpy as np
import pytest

import darner
from darner import Graph
from darner.lower.copies import reading_copies
from darner.lower.lower import lower


def with_gradient(contract=(1, 0), forward=True):
    """The gradient of a weight, and a product of the input in another order, for which that is copied."""
    g = Graph()
    x, d, w = g.input("x", (8, 5, 3)), g.input("d", (5, 8, 4)), g.input("w", (3, 4))
    gradient = g.dot_general(
        d, x, a_contract=(0, 1)[:: 1 if contract == (1, 0) else -1], b_contract=contract
    )
    moved = x.transpose((1, 0, 2))
    g.set_outputs([g.dot_general(moved, w, 2, 0) if forward else moved.sum((1,)), gradient])
    return g


def axes(graph):
    node = graph.outputs[1]
    return node.operands[1].op.name, node.attrs["b_contract"]


def test_a_product_that_sums_over_two_axes_reads_the_copy_in_which_they_are_one():
    g = with_gradient()
    found = reading_copies(g)
    assert axes(found) == ("transpose", (0, 1))
    rng = np.random.default_rng(0)
    values = {name: rng.normal(size=leaf.shape) for name, leaf in g.inputs.items()}
    for a, b in zip(darner.run(found, values), darner.run(g, values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    plan = lower(g)
    kinds = [plan.spec(kernel).kind for kernel in plan.kernels]
    assert kinds.count("contract") == 2
    assert kinds.count("map") == 1


@pytest.mark.parametrize(
    "graph",
    [with_gradient(contract=(0, 1)), with_gradient(forward=False)],
    ids=["worse", "no copy"],
)
def test_products_are_left_as_they_are_where_no_copy_helps(graph):
    """Where the other operand would not be summed over one axis, and where nobody makes the copy."""
    assert reading_copies(graph) is graph
