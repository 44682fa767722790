"""Winograd's form of 3x3 convolutions: where it is used, what it computes, and how much it loses."""

import dataclasses

import numpy as np
import pytest

import darner
from darner import Graph
from darner.backends.base.cache import ObjectCache
from darner.backends.cpu.conv.winograd.plan import SIDES, winograd_of
from darner.backends.cpu.conv.winograd.transforms import PAIRS
from darner.backends.cpu.kernels import functions_of
from darner.backends.cpu.model import CpuModel
from darner.backends.cpu.runtime.jit import host
from darner.backends.cpu.runtime.program import CpuProgram
from darner.lower.lower import lower
from darner.lower.roles import whole_ops
from darner.testing import assert_close
from tests.cpu.running import run_program
from tests.cpu.test_conv import OPS, Case, bare, inputs_of, plain, results
from tests.cpu.test_targets import machine_of

CASES = {
    "whole squares": plain(2, 32, (16, 16), 48, 3, padding=1),
    "odd everything": plain(2, 37, (29, 31), 53, 3, padding=1),
    "no padding": plain(3, 19, (13, 18), 21, 3),
    "padding of the whole kernel": plain(1, 33, (14, 11), 34, 3, padding=2),
    "small images": plain(5, 40, (5, 4), 33, 3, padding=1),
    "few channels of the result": plain(2, 40, (24, 24), 17, 3, padding=1),
    "lines in parts": plain(1, 24, (9, 301), 24, 3, padding=1),
    "many channels": plain(2, 200, (9, 10), 70, 3, padding=1),
    "sides that differ": Case(2, 24, (11, 26), 30, (3, 3), (1, 1), ((0, 2), (1, 0)), (1, 1)),
}


def form_of(case, op):
    graph = bare(case, op)
    return winograd_of(graph.outputs[0], host())


@pytest.fixture(params=SIDES)
def only_side(request, monkeypatch):
    """All convolutions that can be are in Winograd's form, with squares of one size."""
    monkeypatch.setattr("darner.backends.cpu.conv.winograd.plan.SIDES", (request.param,))
    monkeypatch.setattr("darner.backends.cpu.conv.winograd.plan.WORTH", np.inf)
    return request.param


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_convolution_for_any_number_of_threads(
    name, op, only_side, tmp_path
):
    case = CASES[name]
    assert form_of(case, op).side == only_side
    graph, cache = bare(case, op), ObjectCache(tmp_path)
    given = inputs_of(graph)
    one, two, three = (results(graph, given, threads, cache)[0] for threads in (1, 2, 3))
    assert one.tobytes() == two.tobytes() == three.tobytes()
    (wanted,) = darner.run(graph, given, {}, float64=True)
    assert_close(one, wanted, "f32", case.terms(op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["odd everything", "lines in parts"])
def test_sums_in_blocks_and_splits_are_the_same_sums(name, op, only_side, monkeypatch):
    plan = "darner.backends.cpu.conv.winograd.plan"
    monkeypatch.setattr(f"{plan}.WAYS", (False,))
    monkeypatch.setattr(f"{plan}.ROWS", (16,))
    monkeypatch.setattr(f"{plan}.WEIGHTS", (200 << 10) / CpuModel.of(host()).l2)
    case = CASES[name]
    form = form_of(case, op)
    assert form.blocks > 1
    assert not form.shared
    graph = bare(case, op)
    given = inputs_of(graph)
    (wanted,) = darner.run(graph, given, {}, float64=True)
    assert_close(results(graph, given)[0], wanted, "f32", case.terms(op))


@pytest.mark.parametrize("op", OPS)
def test_blocks_that_share_what_is_transformed(op, only_side, monkeypatch):
    monkeypatch.setattr("darner.backends.cpu.conv.winograd.plan.WAYS", (True,))
    monkeypatch.setattr("darner.backends.cpu.conv.winograd.plan.ROWS", (24,))
    monkeypatch.setattr("darner.backends.cpu.conv.winograd.forward.CHUNK", 0.1)
    case = plain(2, 75, (21, 19), 51, 3, padding=1)
    assert form_of(case, op).shared
    graph = bare(case, op)
    given = inputs_of(graph)
    (wanted,) = darner.run(graph, given, {}, float64=True)
    assert_close(results(graph, given)[0], wanted, "f32", case.terms(op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", ["odd everything", "lines in parts", "many channels"])
def test_what_follows_is_computed_where_pixels_are_written(name, op, only_side):
    graph = Graph()
    y = CASES[name].node(graph, op, "f32")
    assert winograd_of(y, host()).side == only_side
    bias = graph.input("bias", (y.shape[1], *(1,) * (y.rank - 2)))
    column = graph.input("column", (y.shape[-1],))
    residual = graph.input("residual", y.shape)
    graph.set_outputs([y + bias, ((y + bias) * column + residual).relu()])
    assert len(lower(graph, target="cpu", whole=whole_ops()).kernels) == 1
    given = inputs_of(graph)
    wanted = darner.run(graph, given, {}, float64=True)
    for a, b in zip(results(graph, given), wanted, strict=True):
        assert_close(a, b, "f32", CASES[name].terms(op))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("vector_bytes", [32, 16])
def test_narrower_vectors(vector_bytes, op, only_side):
    case = CASES["odd everything"]
    graph = bare(case, op)
    given = inputs_of(graph)
    plan = lower(graph, target="cpu", whole=whole_ops())
    program = CpuProgram(plan, threads=2, machine=machine_of(vector_bytes))
    (found,) = run_program(program, given)
    program.close()
    (wanted,) = darner.run(graph, given, {}, float64=True)
    assert_close(found, wanted, "f32", case.terms(op))


def test_weights_that_change_seldom_are_transformed_once():
    case = CASES["odd everything"]
    graph = Graph()
    x, w = graph.input("x", case.shapes["x"]), graph.parameter("w", case.shapes["w"])
    graph.set_outputs([x.conv(w, padding=1).relu()])
    plan = lower(graph, target="cpu", whole=whole_ops())
    fixed = list(plan.leaves("parameter").values())
    (packing,) = functions_of(plan, host(), fixed).packing.values()
    form = winograd_of(bare(case, "conv").outputs[0], host(), packed=True)
    assert packing[1].nbytes >= 4 * form.points * case.channels * case.out
    program = CpuProgram(plan, threads=2, fixed=fixed)
    rng = np.random.default_rng(0)
    for _ in range(2):
        given = {"x": rng.standard_normal(case.shapes["x"], np.float32)}
        params = {"w": rng.standard_normal(case.shapes["w"], np.float32)}
        for name, value in params.items():
            program.arrays[plan.leaves("parameter")[name]][...] = value
        program.prepare()
        (found,) = run_program(program, given)
        (wanted,) = darner.run(graph, given, params, float64=True)
        assert_close(found, wanted, "f32", case.terms("conv"))
    program.close()


def test_what_it_loses_is_a_few_roundings():
    """The largest error of squares of 4 is less than three times that of sums in order; see docs/internals/convolutions.md."""
    case = plain(2, 64, (24, 24), 64, 3, padding=1)
    assert form_of(case, "conv").side == 4
    graph = bare(case, "conv")
    given = inputs_of(graph)
    (found,) = results(graph, given)
    (wanted,) = darner.run(graph, given, {}, float64=True)
    padded = np.pad(given["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    direct = np.zeros_like(found)
    for c in range(64):
        for i in range(3):
            for j in range(3):
                patch = padded[:, c, i : i + 24, j : j + 24]
                direct += patch[:, None] * given["w"][:, c, i, j][None, :, None, None]
    lost = np.abs(found - wanted).max()
    assert lost < 3 * np.abs(direct - wanted).max()


def test_it_is_left_where_it_does_not_pay_or_is_not_defined():
    wide = plain(4, 64, (32, 32), 64, 3, padding=1)
    assert form_of(wide, "conv").side == 4
    assert form_of(plain(4, 3, (32, 32), 64, 3, padding=1), "conv") is None
    assert form_of(dataclasses.replace(wide, stride=(2, 2)), "conv") is None
    assert form_of(dataclasses.replace(wide, dilation=(2, 1)), "conv") is None
    assert form_of(dataclasses.replace(wide, groups=2), "conv") is None
    assert form_of(plain(4, 64, (32, 32), 64, 5, padding=2), "conv") is None
    assert form_of(plain(4, 64, (32, 32), 64, 3, padding=3), "conv") is None
    graph = bare(wide, "conv", "f64")
    assert winograd_of(graph.outputs[0], host()) is None


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "case",
    [
        plain(8, 2048, (14, 14), 2048, 3, padding=1),
        plain(32, 512, (56, 56), 512, 3, padding=1),
        plain(1, 64, (2048, 2048), 64, 3, padding=1),
    ],
    ids=["many channels", "many images", "large images"],
)
def test_memory_has_a_bound(case, op):
    plan = lower(bare(case, op), target="cpu", whole=whole_ops())
    (function,) = functions_of(plan, host()).all.values()
    # The direct form has a copy of the weights.
    weights = 4 * int(np.prod(case.shapes["w"]))
    assert function.scratch.own < 32 << 20
    assert function.scratch.shared < max(64 << 20, 1.01 * weights)


def test_points_are_apart():
    for side, pairs in PAIRS.items():
        assert len(set(pairs)) == side // 2
        assert all(point > 0 for point in pairs)
