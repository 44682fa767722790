"""Inputs that are read from the caller's own memory."""

import numpy as np
import pytest

import darner
from darner import Graph
from tests.cpu.running import compiled


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_state_that_takes_over_an_input_takes_it_from_where_it_is_bound(threads):
    g = Graph("remember")
    x, before = g.input("x", (5,)), g.state("before", (5,))
    g.set_outputs([x - before])
    g.set_update(before, x)
    random = np.random.default_rng(0)
    values = random.standard_normal((4, 5), dtype=np.float32)
    with darner.build_inference_session(g, threads=threads) as session:
        last = np.zeros(5, np.float32)
        for value in values:
            (found,) = session.run({"x": value}).values()
            np.testing.assert_array_equal(found, value - last)
            np.testing.assert_array_equal(session.state()["before"], value)
            last = value


def test_every_use_of_an_input_follows_it_and_comes_home_again():
    g = Graph()
    x = g.input("x", (3, 4))
    g.set_outputs([x.exp(), (x @ x.transpose()), x.sum()])
    program = compiled(g, threads=2)
    (buffer,) = program.plan.leaves("input").values()
    home = program.arrays[buffer]
    home[...] = 1.0
    mine = np.arange(12, dtype=np.float32).reshape(3, 4)
    for value in (mine, None, mine * 2, None):
        program.bind(buffer, value)
        program.run()
        wanted = darner.run(g, {"x": home if value is None else value}, float64=True)
        for found, right in zip(program.plan.outputs, wanted, strict=True):
            np.testing.assert_allclose(program.arrays[found], right, rtol=1e-5)
    assert program.arrays[buffer] is home
    program.close()
