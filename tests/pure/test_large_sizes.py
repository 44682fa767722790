"""Sizes that no memory has are errors of the call that asks for them, and so are numbers that code cannot compute with."""

import pytest

from darner import ArgumentError, Graph, OutOfMemoryError, ShapeError, TensorType
from darner.graph.types import MOST_BYTES
from darner.lower.memory import Request, plan_arena


def leaf(shape, dtype="f32"):
    return Graph().input("x", shape, dtype)


def convolved(**options):
    g = Graph()
    return g.conv(g.input("x", (1, 1, 4, 4)), g.input("w", (1, 1, 3, 3)), **options)


def bound():
    g = Graph()
    x = g.input("x", ("n",))
    square = x.reshape(("n", 1)) + x.reshape((1, "n"))
    g.set_outputs([square.sum()])
    return g.bind(n=2**40)


TOO_LARGE = {
    "one axis": lambda: leaf((2**63,)),
    "bytes, not elements": lambda: leaf((2**61,)),
    "a product of sizes": lambda: leaf((2**31, 2**31)),
    "a parameter": lambda: Graph().parameter("w", (2**40, 2**40)),
    "broadcast_to": lambda: leaf((1,)).broadcast_to((2**40, 2**40)),
    "pad": lambda: leaf((4,)).pad([(2**62, 2**62)]),
    "iota": lambda: Graph().iota(2**65),
    "full": lambda: Graph().full((2**40, 2**40), 1.0),
    "tile": lambda: leaf((4,)).tile((2**62,)),
    "a convolution": lambda: convolved(padding=2**40),
    "symbols that are bound": bound,
    "an empty tensor": lambda: leaf((0, 2**40, 2**40)),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_what_is_larger_than_any_memory_is_an_error_of_the_call(name):
    with pytest.raises(ShapeError, match="larger than any memory"):
        TOO_LARGE[name]()


def test_two_operands_that_broadcast_to_too_much_are_named():
    g = Graph()
    a, b = g.input("a", (2**31, 1)), g.input("b", (1, 2**31))
    with pytest.raises(ShapeError, match=r"add: a is f32\[2147483648, 1\] but b is .* larger than"):
        a + b
    assert len(g.nodes) == 2


def test_the_largest_size_there_is_is_fine():
    assert TensorType.new((2**63 - 1,), "u8").nbytes == MOST_BYTES - 1
    assert TensorType.new((0, 2**40), "f32").nbytes == 0
    assert leaf(("n", 2**40)).shape[1] == 2**40


def test_more_axes_than_arrays_have_are_an_error_of_the_call():
    assert leaf((1,) * 64).rank == 64
    with pytest.raises(ShapeError, match="65 axes are more than the 64 that arrays have"):
        leaf((1,) * 65)


@pytest.mark.parametrize("option", ["stride", "dilation", "padding"])
def test_numbers_of_more_than_64_bits_are_errors_of_the_call(option):
    with pytest.raises(ArgumentError, match=f"{option}: {2**70} does not fit a signed integer"):
        convolved(**{option: 2**70})


def test_slices_end_where_the_axis_does_however_far_they_go():
    assert leaf((10,))[: 2**70 : 2**40].shape == (1,)


def test_values_that_offsets_cannot_reach_are_an_error_of_lowering():
    with pytest.raises(OutOfMemoryError, match="offsets have 63 bits"):
        plan_arena([Request(2**62, 0, 1), Request(2**62, 0, 1)])
