"""Special values: the CPU gives what the reference gives, at every level of optimization."""

import math

import numpy as np
import pytest

import darner
from darner import Graph
from tests.conformance.specials import differences, special_graph

KINDS = ("f32", "f16", "bf16", "f64", "i8", "i32", "i64", "u8", "u32", "bool")


@pytest.mark.parametrize(
    ("kind", "level"), [("f32", 0), ("f32", 1), *((kind, 2) for kind in KINDS), ("f16", 0)]
)
def test_element_wise_ops_at_special_values(kind, level):
    graph, values, names = special_graph(kind)
    wanted = darner.run(graph, values)
    with darner.build_inference_session(graph, level=level) as session:
        found = list(session.run(values).values())
    assert differences(names, found, wanted, values, kind) == []


@pytest.mark.parametrize("level", ["reference", 0, 1, 2, 3])
def test_what_maxima_and_roots_are_at_zeros_and_infinities(level):
    x = np.array([-0.0, 0.0, -math.inf, math.inf, math.nan], np.float32)
    g = Graph()
    node = g.input("x", x.shape)
    g.set_outputs(
        [
            node.maximum(0.0),
            node.relu(),
            node.minimum(0.0),
            node.maximum(-0.0),
            node**0.5,
            node**-0.5,
        ]
    )
    if level == "reference":
        found = darner.run(g, {"x": x})
    else:
        with darner.build_inference_session(g, level=level) as session:
            found = list(session.run({"x": x}).values())
    inf, nan = math.inf, math.nan
    wanted = [
        [0.0, 0.0, 0.0, inf, nan],
        [0.0, 0.0, 0.0, inf, nan],
        [-0.0, 0.0, -inf, 0.0, nan],
        [-0.0, 0.0, -0.0, inf, nan],
        [-0.0, 0.0, nan, inf, nan],
        [-inf, inf, nan, 0.0, nan],
    ]
    for one, other in zip(found, np.array(wanted, np.float32), strict=True):
        np.testing.assert_array_equal(one, other)
        number = ~np.isnan(other)
        np.testing.assert_array_equal(np.signbit(one)[number], np.signbit(other)[number])


def test_halves_keep_the_sign_of_a_zero_that_is_chosen():
    x = np.full(17, -0.0, np.float16)
    g = Graph()
    node = g.input("x", x.shape, "f16")
    g.set_outputs([node.elu(), node.celu(), node.selu(), (node > 0.0).where(0.0, node).expm1()])
    with darner.build_inference_session(g, level=0) as session:
        for value in session.run({"x": x}).values():
            assert np.signbit(value).all()


@pytest.mark.parametrize("level", [0, 2])
def test_an_inverse_square_of_halves_does_not_overflow_on_the_way(level):
    x = np.array([300.0, -500.0, 2.0], np.float16)
    g = Graph()
    g.set_outputs([g.input("x", x.shape, "f16") ** -2])
    with darner.build_inference_session(g, level=level) as session:
        (found,) = session.run({"x": x}).values()
    np.testing.assert_allclose(found.astype(float), x.astype(float) ** -2, rtol=2e-2)
