"""Convolutions with channels last on tensor cores and FMA units: results of the emulated device against float64, code for every architecture, and what is chosen."""

import numpy as np
import pytest

import darner
from darner.backends.base.lowering import written_specs
from darner.backends.cuda import kernels
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.contract import plan
from darner.backends.cuda.contract.fma import FmaCut
from darner.backends.cuda.contract.mma import MmaCut, MmaTile
from darner.backends.cuda.conv.problem import conv_of, parts_of
from darner.backends.cuda.conv.template import TENSOR_CONV, is_product, wanted, write_conv
from darner.backends.cuda.machine import Machine
from darner.lower.lower import lower
from darner.ops.spatial.conv import conv, conv_input_grad, conv_weight_grad
from tests.cuda import running
from tests.cuda.ptxas import assembled, needs_ptxas
from tests.cuda.test_tensor_contract import assert_near, nearest_tf32

EMULATED = Machine.without_card("sm_90a", emulated=True)
HOPPER = Machine.without_card("sm_90a")
SMALL = MmaTile(64, 64, 32, 32, 2)

GEOMETRIES = {
    "padded 3x3": ((2, 16, 5, 4), (8, 16, 3, 3), {"padding": 1}),
    "strided, three channels": ((1, 3, 9, 8), (8, 3, 5, 5), {"stride": 2, "padding": 2}),
    "primes, one-sided padding": (
        (2, 17, 5, 7),
        (13, 17, 3, 2),
        {"stride": (2, 1), "padding": ((0, 2), (1, 0))},
    ),
    "one tap": ((2, 16, 3, 5), (6, 16, 1, 1), {}),
    "one tap, strided": ((2, 16, 5, 5), (8, 16, 1, 1), {"stride": 2}),
    "one axis, dilated, no tap for some pixels": (
        (2, 8, 11),
        (16, 8, 2),
        {"padding": 2, "dilation": 3, "stride": 3},
    ),
    "three axes": ((1, 8, 3, 4, 3), (8, 8, 2, 2, 3), {"stride": (1, 2, 1), "padding": 1}),
}


def three(x, w, kind, attrs):
    """A convolution and both its gradients of one kind of operands."""
    graph = darner.Graph()
    stored = "f32" if kind in ("tf32", "f32") else kind

    def leaf(name, shape):
        found = graph.input(name, shape, stored)
        if kind == "tf32":
            return found.reduce_precision(8, 10)
        return found if kind == "f32" else found.cast("f32")

    a, b = leaf("x", x), leaf("w", w)
    y = conv(a, b, **attrs)
    dy = leaf("dy", y.shape)
    graph.set_outputs(
        [
            y,
            conv_input_grad(dy, b, sizes=x[2:], **attrs),
            conv_weight_grad(a, dy, kernel=w[2:], **attrs),
        ]
    )
    return graph


def planned(graph, machine=HOPPER):
    return lower(
        graph,
        target="cuda",
        alignment=256,
        multipliers=kernels.multipliers_of(machine),
        channels_last=lambda node: wanted(node, machine),
    )


def convolutions(graph):
    """The specs of a graph's convolutions."""
    specs = [spec for _, spec in written_specs(planned(graph))]
    return [spec for spec in specs if conv_of(spec) is not None]


def oracle(x, w, attrs, arrays):
    """The three results in float64."""
    graph = darner.Graph()
    a, b, dy = (graph.input(name, arrays[name].shape, "f64") for name in ("x", "w", "dy"))
    graph.set_outputs(
        [
            conv(a, b, **attrs),
            conv_input_grad(dy, b, sizes=x[2:], **attrs),
            conv_weight_grad(a, dy, kernel=w[2:], **attrs),
        ]
    )
    session = darner.build(graph, device="reference", mode="infer", cache=None)
    return list(session.run({n: v.astype(np.float64) for n, v in arrays.items()}).values())


def run(graph, arrays, monkeypatch, write=None):
    """The outputs on the emulated device, of whose convolutions each is written by ``write(conv, machine)``, where that is given."""

    def written(spec, machine):
        found = conv_of(spec)
        if write is not None and found is not None and not is_product(found):
            return write(found, machine)
        return kernels.written(spec, machine)

    monkeypatch.setattr(running, "written", written)
    running.launches.cache_clear()
    try:
        found = running.Kernels(planned(graph, EMULATED), arrays, EMULATED)
        return found.run()
    finally:
        running.launches.cache_clear()


def check(name, kind, monkeypatch, write=None):
    x, w, attrs = GEOMETRIES[name]
    graph = three(x, w, kind, attrs)
    rng = np.random.default_rng(0)
    arrays = {
        name: rng.standard_normal([int(n) for n in node.shape]).astype(node.dtype.numpy)
        for name, node in graph.inputs.items()
    }
    found = run(graph, arrays, monkeypatch, write)
    given = {n: nearest_tf32(v) for n, v in arrays.items()} if kind == "tf32" else arrays
    for own, wanted_ in zip(found, oracle(x, w, attrs, given), strict=True):
        assert_near(own, wanted_)


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if name != "padded 3x3"])
def test_every_geometry_in_bf16(name, monkeypatch):
    check(
        name, "bf16", monkeypatch, lambda found, machine: write_conv(found, machine, MmaCut(SMALL))
    )


@pytest.mark.parametrize("kind", ["tf32", "f32"])
@pytest.mark.parametrize("name", ["primes, one-sided padding"])
def test_operands_of_four_bytes(name, kind, monkeypatch):
    check(name, kind, monkeypatch)


def test_parts_of_sums_over_pixels_are_added_in_their_order(monkeypatch):
    cuts = {True: MmaCut(SMALL, 3), False: MmaCut(SMALL)}
    check(
        "padded 3x3",
        "bf16",
        monkeypatch,
        lambda found, machine: write_conv(found, machine, cuts[found.to_weight]),
    )


def test_an_update_is_the_end_of_the_gradient_of_a_weight():
    graph = darner.Graph()
    x, dy = graph.input("x", (2, 9, 9, 16), "bf16"), graph.input("dy", (2, 9, 9, 8), "bf16")
    w = graph.input("w", (8, 16, 3, 3), "f32")
    gradient = graph.conv_last_weight_grad(x.cast("f32"), dy.cast("f32"), kernel=3, padding=1)
    graph.set_outputs([w - gradient * 0.1])
    specs = [spec for _, spec in written_specs(planned(graph))]
    assert [spec.kind for spec in specs] == ["contract"]
    assert kernels.template_of(specs[0], HOPPER) is TENSOR_CONV


# --------------------------------------------------------------------------- what is chosen


def test_a_kernel_of_one_tap_is_a_product():
    for stride, plain in ((1, [True] * 3), (2, [True, False, True])):
        graph = three((2, 16, 9, 9), (8, 16, 1, 1), "bf16", {"stride": stride})
        found = [is_product(conv_of(spec)) for spec in convolutions(graph)]
        assert found == plain


def test_the_gradient_of_a_strided_convolution_has_a_product_for_each_phase():
    graph = three((2, 16, 9, 9), (8, 16, 3, 3), "bf16", {"stride": 2, "padding": 1})
    counts = [len(parts_of(conv_of(spec))) for spec in convolutions(graph)]
    assert counts == [1, 4, 1]


@pytest.mark.parametrize(
    ("x", "w", "attrs", "kind"),
    [
        ((2, 8, 9, 9), (8, 4, 3, 3), {"groups": 2}, "bf16"),
        ((2, 8, 40), (8, 8, 33), {}, "bf16"),
        ((2, 8, 9, 9), (8, 8, 3, 3), {}, "f64"),
    ],
    ids=["groups", "33 taps", "f64"],
)
def test_what_is_left_to_the_common_template(x, w, attrs, kind):
    graph = darner.Graph()
    a, b = graph.input("x", x, kind), graph.input("w", w, kind)
    graph.set_outputs(
        [conv(a.cast("f32"), b.cast("f32"), **attrs) if kind == "bf16" else conv(a, b)]
    )
    names = [name for _, spec in written_specs(planned(graph)) for name in spec.ops]
    assert "conv" in names
    assert "conv_last" not in names


def test_cards_without_tensor_cores_keep_channels_first():
    graph = three((2, 16, 9, 9), (8, 16, 3, 3), "f32", {})
    old = Machine.without_card("sm_75")
    found = planned(graph, old)
    assert not any("conv_last" in name for _, spec in written_specs(found) for name in spec.ops)


# --------------------------------------------------------------------------- code for cards


LARGE = ((8, 64, 28, 28), (128, 64, 3, 3), {"padding": 1, "stride": 2})
FAMILIES = [("bf16", plan.MMA_TILES[0]), ("bf16", plan.MMA_TILES[3]), ("tf32", plan.MMA_TILES[3])]
FAMILIES += [("f32", plan.FMA_TILES[1])]


@needs_ptxas
@pytest.mark.parametrize("way", ["forward", "input", "weight"])
@pytest.mark.parametrize(("kind", "tile"), FAMILIES, ids=lambda x: getattr(x, "name", x))
def test_no_tile_of_patches_spills(kind, tile, way):
    x, w, attrs = LARGE
    spec = convolutions(three(x, w, kind, attrs))[("forward", "input", "weight").index(way)]
    cut = (FmaCut if kind == "f32" else MmaCut)(tile)
    written = write_conv(conv_of(spec), HOPPER, cut)
    told = assembled(to_ptx(written.stages[0].ir, "sm_90a"), "sm_90a")
    assert told["spills"] == told["losses"] == 0


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_120"])
def test_code_for_every_architecture(arch):
    x, w, attrs = LARGE
    machine = Machine.without_card(arch)
    for spec in convolutions(three(x, w, "bf16", attrs)):
        written = kernels.written(spec, machine)
        told = assembled(to_ptx(written.stages[-1].ir, arch), arch)
        assert told["spills"] == 0
