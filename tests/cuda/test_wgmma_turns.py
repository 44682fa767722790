"""Products by ``wgmma`` as PTX that runs in Python: warpgroups that multiply in turns, clusters, and parts of sums."""

from dataclasses import replace

import numpy as np
import pytest

from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract.template import tensor_product, write_by_wgmma
from darner.backends.cuda.contract.wgmma import WgmmaCut, WgmmaTile
from tests.cuda.ptx.device import Device
from tests.cuda.test_gates import gated, only_spec
from tests.cuda.test_gates import wanted as gate_of
from tests.cuda.test_tensor_contract import (
    HOPPER,
    arrays_of,
    assert_near,
    product,
    spec_of,
    wanted_product,
)

TURNS = WgmmaTile(64, 64, 2, 2, registers=(40, 232), turns=True)


def run(graph, arrays, cut, seed=0, spec=None):
    """The result of a product whose kernel is cut so."""
    spec, device = spec or spec_of(graph), Device(seed)
    written = write_by_wgmma(spec, HOPPER, tensor_product(spec, HOPPER), cut)
    names = [name for name in "ab" if name in arrays]
    names += [name for name in arrays if name not in names]
    operands = [device.room(arrays[name]) for name in names]
    (output,) = spec.body.outputs
    shape = tuple(int(size) for size in output.shape)
    result = device.room(np.full(shape, np.nan, output.dtype.numpy))
    scratch = device.room(np.full(written.scratch + 256, 0xFF, np.uint8))

    def address(binding):
        if binding.what == "scratch":
            return scratch + binding.number
        return operands[binding.number] if binding.what == "operand" else result

    for stage in written.stages:
        device.launch(to_ptx(stage.ir, "sm_90a"), stage, address)
    nbytes = int(np.prod(shape)) * output.dtype.itemsize
    return device.bytes(result, nbytes).view(output.dtype.numpy).reshape(shape)


def with_bias(graph, x):
    return [(x + graph.input("bias", x.shape[-1:], "f32")).cast("bf16")]


@pytest.mark.parametrize(("layout", "cluster"), [("NT", 2), ("TN", 1)])
def test_warpgroups_in_turns_give_the_product(layout, cluster):
    # Blocks have different numbers of tiles, one of them an odd number.
    graph = product(290, 64, 200, layout, finish=with_bias)
    arrays = arrays_of(graph)
    found = run(graph, arrays, WgmmaCut(replace(TURNS, cluster=cluster), 1, 2))
    assert_near(found, wanted_product(arrays, layout) + arrays["bias"], 3e-3)


def test_blocks_of_a_cluster_deal_out_columns_that_are_no_whole_chunks_each():
    graph = product(100, 192, 136, "TN", finish=with_bias)
    arrays = arrays_of(graph)
    found = run(graph, arrays, WgmmaCut(WgmmaTile(64, 192, 2, 1, cluster=2), 1, 2))
    assert_near(found, wanted_product(arrays, "TN") + arrays["bias"], 3e-3)


@pytest.mark.parametrize("sharing", [2, 4])
def test_blocks_of_a_cluster_share_the_terms_of_a_tile(sharing):
    graph = product(70, 64, 200, "NT", finish=with_bias)
    arrays = arrays_of(graph)
    tile = WgmmaTile(64, 64, 2, 1)
    found = run(graph, arrays, WgmmaCut(tile, 1, 2 * sharing, sharing))
    assert_near(found, wanted_product(arrays, "NT") + arrays["bias"], 3e-3)


@pytest.mark.parametrize(
    ("tile", "sharing"),
    [
        (WgmmaTile(64, 128, 2, 2, cluster=2, registers=(40, 232), turns=True), 1),
        pytest.param(WgmmaTile(64, 128, 2, 1), 2, marks=pytest.mark.slow),
    ],
    ids=["in turns, cluster of 2", "shared by 2"],
)
def test_gates_of_both_halves_in_turns_and_in_clusters(tile, sharing):
    graph = gated(130, 160, 136, kept=False)
    arrays = arrays_of(graph)
    cut = WgmmaCut(tile, 1, 2, sharing)
    found = run(
        graph,
        arrays,
        cut if sharing == 1 else replace(cut, blocks=6 * sharing),
        spec=only_spec(graph),
    )
    assert_near(found, gate_of(arrays)[0], 3e-3)
