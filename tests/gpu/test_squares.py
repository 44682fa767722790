"""Square matrices on a GPU: each value is read where it belongs, as on the CPU."""

import numpy as np
import pytest

import darner
from darner import Graph
from tests.cpu.test_squares import CASES, SIZE
from tests.gpu import needs_gpu
from tests.gpu.running import run_graph

pytestmark = needs_gpu
RNG = np.random.default_rng(0)


@pytest.mark.parametrize("name", CASES)
def test_each_element_is_read_where_it_belongs(name):
    g = Graph("squares")
    nodes = [g.input(name, (SIZE, SIZE)) for name in "xwc"]
    g.set_outputs([CASES[name](*nodes)])
    given = {name: RNG.standard_normal((SIZE, SIZE)).astype("f4") for name in "xwc"}
    (wanted,) = darner.run(g, given, float64=True)
    (found,) = run_graph(g, given)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * max(1.0, np.abs(wanted).max()))
