"""Targets and prices: the roofline, calibration, and what the model says of nodes."""

from dataclasses import replace

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph
from darner.graph.errors import NameTakenError
from darner.optimizer import TARGETS, calibrate, target
from darner.optimizer.price import TIE, Pricer
from darner.optimizer.targets import Measurement, find_target, remove_target
from darner.optimizer.work import graph_work
from tests.zoo import ZOO


def price(node, machine="cpu"):
    types = tuple(operand.type for operand in node.operands)
    pricer = Pricer(find_target(machine))
    return pricer.price(node.op, node.slots, node.attrs, types, node.type)


def test_the_three_targets_exist_and_print():
    assert {"cpu", "wgpu", "cuda"} <= set(TARGETS)
    assert str(TARGETS["cpu"]) == "cpu (240 GFLOP/s, 30 GB/s, 0.5 us a kernel)"


def test_a_kernel_takes_its_slower_half_and_its_launch():
    made = target("toy", flops=100.0, bandwidth=10.0, launch=3.0)
    try:
        assert made.seconds(flops=500.0, bytes=10.0) == 8.0
        assert made.seconds(flops=500.0, bytes=80.0, launches=2.0) == 14.0
        with pytest.raises(NameTakenError, match="there is a target 'toy' already"):
            target("toy", flops=1.0, bandwidth=1.0, launch=0.0)
    finally:
        remove_target("toy")
    with pytest.raises(ArgumentError, match="needs positive rates"):
        target("broken", flops=0.0, bandwidth=1.0, launch=0.0)


def test_calibration_finds_the_rates_that_made_the_measurements():
    true = find_target("cpu")
    rows = [
        Measurement(flops, bytes, n, true.seconds(flops, bytes, n))
        for flops, bytes, n in [
            (2e9, 1e6, 1),
            (5e8, 1e5, 2),
            (1e6, 4e8, 1),
            (1e4, 1e7, 3),
            (0.0, 0.0, 10),
        ]
    ]
    rough = darner.Target("rough", flops=1e11, bandwidth=1e11, launch=1e-5)
    found = calibrate(rough, rows)
    assert found.name == "rough"
    np.testing.assert_allclose(found.flops, true.flops, rtol=1e-6)
    np.testing.assert_allclose(found.bandwidth, true.bandwidth, rtol=1e-6)
    np.testing.assert_allclose(found.launch, true.launch, rtol=1e-6)


def test_what_was_not_measured_stays_as_it_was():
    rough = darner.Target("rough", flops=1e11, bandwidth=1e11, launch=0.0)
    found = calibrate(rough, [Measurement(1e9, 1.0, 0.0, 0.5), Measurement(2e9, 1.0, 0.0, 1.0)])
    np.testing.assert_allclose(found.flops, 2e9)
    assert found.bandwidth == 1e11
    assert calibrate(rough, []) == rough
    with pytest.raises(ArgumentError, match="is not a measurement"):
        calibrate(rough, [Measurement(1.0, 1.0, 1.0, 0.0)])


def test_a_product_pays_arithmetic_or_memory_whichever_is_slower():
    g = Graph()
    x = g.input("x", (1024, 1024))
    square = x @ g.parameter("w", (1024, 1024))
    thin = g.input("v", (1, 1024)) @ g.parameter("u", (1024, 1024))
    machine = find_target("cpu")
    assert price(square).seconds == pytest.approx(
        machine.launch + 2 * 1024**3 / machine.flops, rel=1e-3
    )
    moved = 4 * (1024 * 1024 + 2 * 1024)
    assert price(thin).seconds == pytest.approx(
        machine.launch + moved / machine.bandwidth, rel=1e-3
    )


def test_element_wise_nodes_start_no_kernel_and_views_cost_next_to_nothing():
    g = Graph()
    x = g.input("x", (64, 64))
    assert price(x + x).launches == 0
    assert price(x.softmax()).launches == 1
    assert price(x.transpose()).seconds == TIE
    assert price(x[1:]).seconds == TIE


def test_stored_parameters_cost_nothing_in_training_and_all_made_of_them_nothing_in_inference():
    g = Graph()
    a, b = g.parameter("a", (8, 8)), g.parameter("b", (8, 8))
    x = g.input("x", (8, 8))
    g.set_outputs([x @ g.concat([a, b], axis=1), x @ (a * 2.0)])
    pricer = Pricer(find_target("cpu"))
    (two, train), (_, inference) = (graph_work(g, pricer, mode) for mode in ("train", "inference"))
    assert two == 3
    assert train.launches == inference.launches == 2
    scaled = g.outputs[1].operands[1]
    assert train.seconds - inference.seconds == pytest.approx(price(scaled).seconds)


def test_symbolic_sizes_are_priced_at_a_nominal_size():
    g = Graph()
    x = g.input("x", (darner.symbol("n"), 64))
    fixed = g.input("y", (128, 64))
    assert price(x @ g.parameter("w", (64, 64))) == price(fixed @ g.parameter("v", (64, 64)))


MODELS = [name for name in ZOO if name.endswith(("primitive 0", "primitive 1, training", "adam"))]


@pytest.mark.parametrize("name", MODELS)
def test_choices_pay_on_machines_that_differ_from_the_target(name):
    """The constants of a target are one machine's: what is chosen by them is no worse on others."""
    graph = ZOO[name]()
    chosen = darner.optimize(graph)
    here = find_target("cpu")
    others = [
        here,
        replace(here, launch=4 * here.launch),
        replace(here, flops=8 * here.flops, launch=4 * here.launch),
        replace(here, bandwidth=4 * here.bandwidth),
        replace(here, bandwidth=here.bandwidth / 3),
    ]
    for machine in others:
        pricer = Pricer(machine)
        before, after = (graph_work(g, pricer, "train")[1].seconds for g in (graph, chosen))
        assert after <= 1.001 * before
