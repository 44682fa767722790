"""Square matrices, whose rows and columns a kernel could take for each other: each value is read where it belongs."""

import pytest

from darner import Graph
from tests.cpu.running import check

SIZE = 6


def across(x):
    return x.transpose((1, 0))


def largest(x):
    return x.max(1, keepdims=True)


CASES = {
    "a product and its transpose": lambda x, w, c: (x @ w) + across(x @ w),
    "chosen from both": lambda x, w, c: (y := x @ w) * c + (c * 2.0) * across(y),
    "an activation of a product, and its transpose": lambda x, w, c: (
        (y := (x @ w).relu()) - across(y)
    ),
    "an operand beside a product, read across too": lambda x, w, c: (
        (x @ w) * (s := c.tanh()) + across(s)
    ),
    "rows less a column of their maxima": lambda x, w, c: x - largest(x),
    "rows less a row of their maxima": lambda x, w, c: x - x.max(1),
    "columns less a row of their maxima": lambda x, w, c: x - x.max(0),
    "rows by sums of rows, spread below each other": lambda x, w, c: (z := x.exp()) / z.sum(1),
    "rows by sums of columns": lambda x, w, c: (z := x.exp()) / z.sum(0).reshape((SIZE, 1)),
    "rows by sums of the transpose's rows": lambda x, w, c: (
        (z := x.exp()) / across(z).sum(1, keepdims=True)
    ),
    "sums of rows and of the transpose's rows": lambda x, w, c: (
        (z := x.exp()).sum(1) + across(z).sum(1)
    ),
    "a softmax and its transpose": lambda x, w, c: (s := x.softmax(-1)) + across(s),
    "sums of rows less what others sum": lambda x, w, c: (x - x.sum(1)).square().sum(1),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_each_element_is_read_where_it_belongs(name, threads):
    g = Graph("squares")
    x, c = g.input("x", (SIZE, SIZE)), g.input("c", (SIZE, SIZE))
    g.set_outputs([CASES[name](x, g.parameter("w", (SIZE, SIZE)), c)])
    check(g, threads)


@pytest.mark.parametrize("axes", [(1,), (0, 2), (2,)])
def test_values_of_rows_in_three_equal_axes(axes):
    g = Graph("cube")
    x = g.input("x", (4, 4, 4))
    sums = x.sum(axes, keepdims=True)
    spread = x.sum(axes)
    g.set_outputs([x * sums - spread, (x - spread).sum(axes)])
    check(g)
