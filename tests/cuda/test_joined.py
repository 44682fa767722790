"""Products by ``mma.sync`` whose sums the blocks of a cluster share: run as PTX against float64."""

import numpy as np
import pytest

from darner.backends.cuda import kernels
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract.mma import MmaCut, MmaTile
from darner.backends.cuda.contract.operands import layout_of
from darner.backends.cuda.contract.plan import ranked
from darner.backends.cuda.contract.template import tensor_product, write_by_mma
from tests.cuda.ptx.products import run_as_ptx
from tests.cuda.test_tensor_contract import (
    EMULATED,
    HOPPER,
    arrays_of,
    assert_near,
    product,
    spec_of,
    swish_and_residual,
    wanted_product,
)

SMALL = MmaTile(64, 64, 32, 32, 3)


@pytest.mark.parametrize(("layout", "n"), [("NN", 72), ("NT", 80)])
def test_blocks_of_a_cluster_share_the_terms_of_a_tile(layout, n):
    graph = product(70, n, 400, layout, finish=swish_and_residual)
    arrays = arrays_of(graph)

    def write(spec, machine):
        return write_by_mma(
            spec, machine, tensor_product(spec, machine), MmaCut(SMALL, 3, joined=True)
        )

    found = run_as_ptx(spec_of(graph), arrays, write)
    x = wanted_product(arrays, layout) + arrays["bias"]
    assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)
    assert_near(found[1], np.maximum(x, 0), 1e-5)


def test_a_product_of_few_tiles_and_long_sums_is_shared_by_clusters():
    found = tensor_product(spec_of(product(128, 576, 1536)), HOPPER)
    layouts = layout_of(found, 0), layout_of(found, 1)
    best = ranked(found, layouts, HOPPER)[0]
    assert best.joined
    assert best.raster(found).tiles <= HOPPER.processors
    assert not any(getattr(cut, "joined", False) for cut in ranked(found, layouts, EMULATED))


@pytest.mark.parametrize("shape", [(128, 576, 1536), (128, 3072, 576)])
def test_weights_of_short_prompts_are_on_their_way_before_the_launch_ahead_has_ended(shape):
    text = to_ptx(kernels.written(spec_of(product(*shape, "NN")), HOPPER).stages[0].ir, "sm_90a")
    assert text.count("bulk.prefetch.L2") == 1
    assert text.index("bulk.prefetch.L2") < text.index("griddepcontrol.wait")
    long = to_ptx(
        kernels.written(spec_of(product(2048, *shape[1:], "NN")), HOPPER).stages[0].ir, "sm_90a"
    )
    assert "bulk.prefetch" not in long
