"""Products of a few rows on a card against float64: every kind of steps, with and without clusters; the same bits twice."""

import numpy as np
import pytest

from darner.backends.cuda import kernels
from darner.backends.cuda.contract.few import cuts_of
from darner.backends.cuda.contract.few_template import few_product, write_few
from tests.cuda.card import needs_card
from tests.cuda.card.test_tensor_contract import results
from tests.cuda.test_tensor_contract import (
    arrays_of,
    assert_near,
    product,
    swish_and_residual,
    wanted_product,
)

pytestmark = needs_card
SHAPES = [(576, 1536), (3072, 576), (1000, 1000), (264, 72), (2048, 5632), (40, 8200)]


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("m", [1, 2, 5, 8, 11, 16])
def test_few_rows_of_every_kind(m, dtype, layout):
    for n, k in SHAPES:
        graph = product(m, n, k, layout, dtype)
        arrays = arrays_of(graph)
        (found,) = results(graph, arrays)
        assert_near(found, wanted_product(arrays, layout), 1e-6 if dtype == "f32" else 1e-5)


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_every_way_to_share_the_work_out(number, monkeypatch):
    common, taken = kernels.written, []

    def written(spec, machine):
        found = few_product(spec, machine)
        if found is None:
            return common(spec, machine)
        ways = cuts_of(*found, machine)
        taken.append(ways[number % len(ways)])
        return write_few(spec, machine, *found, taken[-1])

    monkeypatch.setattr(kernels, "written", written)
    for m, layout in ((1, "NN"), (4, "NT")):
        graph = product(m, 200, 1352, layout, finish=swish_and_residual)
        arrays = arrays_of(graph)
        found = results(graph, arrays)
        x = wanted_product(arrays, layout) + arrays["bias"]
        assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)
        assert_near(found[1], np.maximum(x, 0), 1e-5)
    assert len(taken) == 2
