"""Products of a few rows: results of the emulated device against float64, code for every architecture, clusters run as PTX."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import lower_for, written_specs
from darner.backends.cuda import kernels
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract.dots import step_of
from darner.backends.cuda.contract.few import FewCut, cuts_of
from darner.backends.cuda.contract.few_template import FEW_CONTRACT, few_product, write_few
from darner.backends.cuda.machine import Machine
from tests.cuda.ptx.products import run_as_ptx
from tests.cuda.ptxas import assembled, needs_ptxas
from tests.cuda.test_tensor_contract import (
    HOPPER,
    arrays_of,
    assert_near,
    product,
    run,
    spec_of,
    swish_and_residual,
    wanted_product,
    written_and_run,
)

KINDS = ("bf16", "f16", "f32")


def by(cut):
    def write(spec, machine):
        return write_few(spec, machine, *few_product(spec, machine), cut)

    return write


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize(
    ("m", "cut"), [(1, FewCut(1, 2, 1, 2)), (3, FewCut(2, 2, 1, 1)), (16, FewCut(1, 4, 2, 1))]
)
def test_every_kind_of_steps(m, cut, layout, dtype):
    graph = product(m, 136, 328, layout, dtype)
    arrays = arrays_of(graph)
    found = written_and_run(spec_of(graph), arrays, by(cut))
    assert_near(found, wanted_product(arrays, layout), 1e-6)


@pytest.mark.parametrize("k", [333, 656, 200])
def test_a_last_part_that_has_less_than_the_others(k):
    graph = product(2, 136, k, "NN", "bf16", (2,))
    arrays = arrays_of(graph)
    found = written_and_run(spec_of(graph), arrays, by(FewCut(4, 1, 5, 2)))
    assert_near(found, wanted_product(arrays, "NN"), 1e-6)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_blocks_of_a_cluster_add_up_what_they_have(layout, dtype):
    graph = product(3, 136, 328, layout, dtype, finish=swish_and_residual)
    arrays = arrays_of(graph)
    found = run_as_ptx(spec_of(graph), arrays, by(FewCut(1, 2, 3, 1)))
    x = wanted_product(arrays, layout) + arrays["bias"]
    assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)
    assert_near(found[1], np.maximum(x, 0), 1e-6)


def test_a_batch_of_small_products_and_rows_that_lie_across():
    graph = darner.Graph()
    a = graph.input("a", (2, 264, 5), "bf16")
    w = graph.input("w", (2, 72, 264), "bf16")
    x, y = a.transpose((0, 2, 1)), w.transpose((0, 2, 1))
    graph.set_outputs([x.cast("f32") @ y.cast("f32")])
    arrays = arrays_of(graph)
    found = written_and_run(spec_of(graph), arrays, by(FewCut(1, 2, 1, 2)))
    wanted = np.einsum("bkm,bnk->bmn", *(arrays[n].astype(np.float64) for n in "aw"))
    assert_near(found, wanted, 1e-6)


@pytest.mark.parametrize("n", [72, 75])
def test_columns_for_rows_and_what_comes_after(n, monkeypatch):
    graph = product(264, n if n % 8 else 8, 72, "NT", finish=swish_and_residual)
    assert kernels.template_of(spec_of(graph), HOPPER) is FEW_CONTRACT or n % 8
    graph = product(5, n, 264, "NT", finish=swish_and_residual)
    arrays = arrays_of(graph)
    found = run(graph, arrays, monkeypatch)
    x = wanted_product(arrays, "NT") + arrays["bias"]
    assert_near(found[0], x / (1 + np.exp(-x)) + arrays["residual"].astype(np.float64), 3e-3)


SHAPES = [
    (1, 576, 1536, "NN", "bf16"),
    (1, 49152, 576, "NT", "bf16"),
    (16, 3072, 576, "NN", "bf16"),
    (16, 3072, 576, "NT", "f16"),
    (16, 3072, 576, "NN", "f32"),
    (16, 3072, 576, "NT", "f32"),
    (1, 2048, 5632, "NN", "f32"),
]


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_assembler_spills_nothing(shape, arch):
    machine = Machine.without_card(arch)
    spec = spec_of(product(*shape))
    assert kernels.template_of(spec, machine) is FEW_CONTRACT
    for stage in kernels.written(spec, machine).stages:
        told = assembled(to_ptx(stage.ir, arch), arch)
        assert told["spills"] == told["stack"] == told["losses"] == 0


def test_narrow_products_keep_most_of_a_card_busy():
    for shape in SHAPES:
        found, layout = few_product(spec_of(product(*shape)), HOPPER)
        cut = cuts_of(found, layout, HOPPER)[0]
        steps = step_of(layout)
        blocks = -(-found.n // (steps.columns * cut.across)) * cut.parts
        assert blocks >= 60, cut.name


def gate(graph, found):
    half = found.shape[-1] // 2
    return [(found[:, :half].silu() * found[:, half:]).cast("bf16")]


@pytest.mark.parametrize("layout", ["NN", "NT"])
@pytest.mark.parametrize("cut", [FewCut(2, 1, 1, 2), FewCut(4, 1, 1, 1)], ids=lambda cut: cut.name)
def test_a_gate_takes_sums_in_pairs(layout, cut, monkeypatch):
    graph = product(3, 144, 328, layout, finish=gate)
    arrays = arrays_of(graph)
    x = wanted_product(arrays, layout)
    found = run_as_ptx(gated_spec(graph), arrays, by(cut), cluster=1)[0]
    wanted = x[:, :72] / (1 + np.exp(-x[:, :72])) * x[:, 72:]
    assert_near(found.astype(np.float64), wanted, 3e-3)


def gated_spec(graph):
    plan = lower_for("cuda:emulated", graph)
    (spec,) = (spec for _, spec in written_specs(plan) if spec.kind == "contract")
    assert len(plan.kernels) == 1
    assert kernels.template_of(spec, HOPPER) is FEW_CONTRACT
    return spec


@pytest.mark.parametrize("layout", ["NN", "NT"])
def test_weights_are_on_their_way_before_the_launch_ahead_has_ended(layout):
    spec = spec_of(product(1, 576, 1536, layout))
    text = to_ptx(kernels.written(spec, HOPPER).stages[0].ir, "sm_90a")
    places = [text.index(word) for word in ("bulk.prefetch.L2", "griddepcontrol.wait", "ld.global")]
    assert places == sorted(places)
    assert "bulk.prefetch" not in text[places[1] :]
