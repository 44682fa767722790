"""Attention by ``mma.sync`` on the emulated device, against the float64 reference; which attentions tensor cores take; and its code through NVIDIA's assembler."""

import numpy as np
import pytest

import darner
from darner.backends.cuda import kernels
from darner.backends.cuda.attention import plan as cuts
from darner.backends.cuda.attention.plan import Cut
from darner.backends.cuda.code import to_ptx
from darner.backends.cuda.machine import Machine
from tests.cuda import running
from tests.cuda.attentions import Case, assert_near, planned
from tests.cuda.ptxas import assembled, needs_ptxas

MACHINE = Machine.without_card("sm_80", emulated=True)
NAME = "attention on tensor cores"
SMALL = {"cut": (Cut(2, 1, 16, True),)}
WIDE = {"cut": (Cut(2, 2, 32, False),)}


def run(case, monkeypatch, cut=None):
    """The outputs on the emulated device."""
    monkeypatch.setattr(running, "written", kernels.written)
    running.launches.cache_clear()
    for table in (cuts._FORWARD, cuts._GRADIENTS, cuts._FORWARD_TF32, cuts._GRADIENTS_TF32):
        for width in table:
            if cut is not None:
                monkeypatch.setitem(table, width, cut)
    plan, arrays = planned(case.graph(), MACHINE), case.arrays()
    found = [plan.spec(kernel) for kernel in plan.kernels]
    assert NAME in [kernels.template_of(spec, MACHINE).name for spec in found]
    assert not case.kept or "attention_statistics" in [name for spec in found for name in spec.ops]
    outputs = running.Kernels(plan, arrays, MACHINE).run()
    running.launches.cache_clear()
    return outputs, arrays


FORWARD = [
    (Case(2, 1, 70, 70, 64, options={"causal": True}), {}),
    (Case(2, 2, 33, 57, 24, dtype="f16"), {}),
    (Case(4, 2, 50, 50, 16, batch=2, options={"causal": True, "window": 7}), SMALL),
    (Case(2, 1, 40, 40, 16, value_width=32, options={"window": 9, "layout": "bshd"}), WIDE),
    (Case(1, 1, 60, 20, 40, options={"causal": True}), SMALL),
    (Case(2, 2, 40, 40, 16, batch=2, options={"causal": True, "offset": True}), SMALL),
    (Case(2, 1, 40, 40, 16, mask=(1, 1, 40, 40), options={"softcap": 2.0, "scale": -0.5}), SMALL),
    (Case(2, 1, 40, 30, 16, bias=(2, 1, 30), options={"causal": True}), SMALL),
    (Case(2, 1, 40, 40, 16, finish=True, options={"causal": True}), SMALL),
    (Case(2, 1, 40, 40, 36, dtype="tf32", options={"causal": True, "window": 9}), SMALL),
]


@pytest.mark.parametrize(
    ("case", "cut"), FORWARD, ids=lambda x: str(x) if x.__class__ is Case else ""
)
def test_result_is_the_reference(case, cut, monkeypatch):
    assert_near(case, *run(case, monkeypatch, **cut))


@pytest.mark.slow
@pytest.mark.parametrize("width", [96, 200, 256])
def test_result_of_every_width_is_the_reference(width, monkeypatch):
    case = Case(1, 1, 40, 50, width, options={"causal": True})
    assert_near(case, *run(case, monkeypatch))


BACKWARD = [
    (Case(4, 2, 40, 40, 16, backward=True, options={"causal": True}), SMALL),
    (Case(2, 1, 40, 56, 24, backward=True, options={"window": 7, "layout": "bshd"}), SMALL),
]
SLOW_BACKWARD = [
    (Case(1, 1, 70, 70, 64, backward=True, options={"causal": True}), {}),
    (Case(2, 2, 50, 37, 16, batch=2, value_width=32, dtype="f16", backward=True), SMALL),
    (Case(2, 1, 60, 20, 16, backward=True, options={"causal": True}), SMALL),
    (Case(2, 1, 40, 40, 16, backward=True, mask=(1, 2, 1, 40), options={"softcap": 1.5}), SMALL),
    (
        Case(2, 1, 40, 40, 16, backward=True, mask=(40, 40), options={"scale": -0.3}),
        {"cut": (Cut(1, 2, 16, False),)},
    ),
    (Case(1, 1, 20, 20, 136, backward=True, options={"causal": True}), SMALL),
    (
        Case(2, 1, 40, 40, 16, batch=2, backward=True, options={"causal": True, "offset": True}),
        SMALL,
    ),
]


@pytest.mark.parametrize(
    ("case", "cut"), BACKWARD, ids=lambda x: str(x) if x.__class__ is Case else ""
)
def test_gradients_are_the_reference(case, cut, monkeypatch):
    assert_near(case, *run(case, monkeypatch, **cut))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "cut"), SLOW_BACKWARD, ids=lambda x: str(x) if x.__class__ is Case else ""
)
def test_gradients_of_all_kinds_are_the_reference(case, cut, monkeypatch):
    assert_near(case, *run(case, monkeypatch, **cut))


KEPT = [
    (Case(2, 1, 40, 20, 16, kept=True, options={"causal": True, "layout": "bshd"}), SMALL),
    (Case(2, 2, 24, 40, 24, kept=True, finish=True, mask=(1, 1, 1, 40)), SMALL),
    (Case(2, 1, 24, 40, 16, dtype="tf32", kept=True, options={"causal": True}), SMALL),
]
SLOW_KEPT = [
    (Case(3, 1, 40, 40, 72, value_width=40, dtype="f16", kept=True), SMALL),
    (Case(2, 1, 40, 40, 16, kept=True, bias=(2, 40, 40), options={"softcap": 1.5}), SMALL),
    (Case(1, 1, 24, 24, 24, value_width=40, dtype="tf32", kept=True, mask=(1, 1, 1, 24)), WIDE),
]


@pytest.mark.parametrize(("case", "cut"), KEPT, ids=lambda x: str(x) if x.__class__ is Case else "")
def test_gradients_by_what_the_forward_pass_kept_are_the_reference(case, cut, monkeypatch):
    assert_near(case, *run(case, monkeypatch, **cut))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "cut"), SLOW_KEPT, ids=lambda x: str(x) if x.__class__ is Case else ""
)
def test_gradients_of_all_kinds_by_what_was_kept_are_the_reference(case, cut, monkeypatch):
    assert_near(case, *run(case, monkeypatch, **cut))


def test_a_query_that_sees_nothing_gives_zeros(monkeypatch):
    case = Case(1, 1, 40, 16, 16, options={"causal": True})
    (found,), _ = run(case, monkeypatch, **SMALL)
    assert np.all(found[:, :, :24].astype(np.float32) == 0)
    assert np.all(np.abs(found[:, :, 24:].astype(np.float32)).max(-1) > 0)


def test_two_runs_give_the_same_bits(monkeypatch):
    case = Case(2, 1, 40, 40, 16, options={"causal": True})
    first, second = (run(case, monkeypatch, **SMALL)[0] for _ in range(2))
    assert first[0].tobytes() == second[0].tobytes()


@pytest.mark.parametrize("precision", ["bf16", "f16", "tf32"])
def test_training_that_rounds_what_it_multiplies_uses_tensor_cores(precision, monkeypatch):
    used = []
    choose = kernels.template_of
    monkeypatch.setattr(
        kernels, "template_of", lambda *given: used.append(choose(*given)) or used[-1]
    )
    losses = {}
    for device in ("cpu", "cuda:emulated"):
        graph = darner.Graph()
        x = graph.input("x", (2, 32, 32))
        h = x @ graph.parameter("w", (32, 96), init="normal(0.3)")
        q, k, v = (h[:, :, 32 * i : 32 * (i + 1)].reshape((2, 32, 2, 16)) for i in range(3))
        y = graph.scaled_dot_attention(q, k, v, causal=True, layout="bshd")
        graph.set_outputs([(y.reshape((2, 32, 32)) - x).square().mean()])
        with darner.build(
            graph,
            device=device,
            optimizer=darner.optim.AdamW(1e-2),
            seed=1,
            precision=precision,
            cache=None,
        ) as session:
            session.set_input("x", np.random.default_rng(0).standard_normal((2, 32, 32)))
            losses[device] = []
            for _ in range(3):
                session.step()
                losses[device].append(session.read_loss())
    assert [template.name for template in used].count(NAME) >= 2
    np.testing.assert_allclose(losses["cuda:emulated"], losses["cpu"], rtol=4e-3)
    assert losses["cpu"][2] < losses["cpu"][0]


# --------------------------------------------------------------------------- who takes what


def template_of(graph, arch="sm_90a"):
    """The names of the templates of a graph's kernels."""
    machine = Machine.without_card(arch)
    plan = planned(graph, machine)
    return {kernels.template_of(plan.spec(kernel), machine).name for kernel in plan.kernels}


@pytest.mark.parametrize(
    ("case", "arch", "name"),
    [
        (Case(2, 1, 64, 64, 64), "sm_80", NAME),
        (Case(2, 1, 64, 64, 256, backward=True), "sm_86", NAME),
        (Case(2, 1, 64, 64, 64), "sm_75", "attention"),
        (Case(2, 1, 1, 64, 64), "sm_90a", NAME),
        (Case(2, 1, 12, 64, 64), "sm_90a", "attention"),
        (Case(2, 1, 1, 64, 64, options={"softcap": 2.0}), "sm_90a", "attention"),
        (Case(2, 1, 64, 64, 60), "sm_90a", "attention"),
        (Case(2, 1, 64, 64, 264), "sm_90a", "attention"),
    ],
    ids=str,
)
def test_tensor_cores_take_rows_of_whole_pieces_and_many_queries_or_few(case, arch, name):
    assert template_of(case.graph(), arch) == {name}


def test_f32_is_computed_in_f32():
    graph = darner.Graph()
    q, k, v = (graph.input(name, (1, 2, 64, 64), "f32") for name in "qkv")
    graph.set_outputs([graph.scaled_dot_attention(q, k, v)])
    assert template_of(graph) == {"attention"}


def test_the_gradient_of_a_bias_is_the_common_templates():
    graph = darner.Graph()
    q, k, v, dy = (graph.input(name, (1, 2, 64, 64), "bf16") for name in ("q", "k", "v", "dy"))
    bias = graph.input("bias", (64, 64), "bf16")
    graph.set_outputs(list(graph.scaled_dot_attention_backward(q, k, v, dy, bias=bias)))
    assert template_of(graph) == {"attention"}


def test_views_of_one_tensor_are_read_where_they_lie():
    graph = darner.Graph()
    x = graph.input("x", (2, 64, 3 * 128), "bf16")
    q, k, v = (
        x[:, :, 128 * i : 128 * (i + 1)].reshape((2, 64, 2, 64)).transpose((0, 2, 1, 3))
        for i in range(3)
    )
    graph.set_outputs([graph.scaled_dot_attention(q, k, v, causal=True)])
    assert template_of(graph) == {NAME}
    machine = Machine.without_card("sm_90a")
    plan = planned(graph, machine)
    (stage,) = kernels.written(plan.spec(plan.kernels[0]), machine).stages
    assert [m.offset for m in stage.maps[:3]] == [0, 256, 512]
    assert [m.strides for m in stage.maps[:3]] == [(768, 128, 64 * 768)] * 3


# --------------------------------------------------------------------------- code


WIDTHS = (64, 80, 96, 128, 256)


def assert_good(case, arch):
    machine = Machine.without_card(arch)
    plan = planned(case.graph(), machine)
    for kernel in plan.kernels:
        for stage in kernels.written(plan.spec(kernel), machine).stages:
            found = assembled(to_ptx(stage.ir, arch), arch)
            assert (found["spills"], found["losses"]) == (0, 0), (str(case), found)
            assert stage.shared <= machine.most_shared


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_code_has_no_spills(arch):
    assert_good(Case(8, 2, 512, 512, 64, options={"causal": True}), arch)


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "width"),
    [
        *(("sm_90a", width) for width in WIDTHS),
        *(("sm_80", width) for width in (80, 256)),
        *((arch, 128) for arch in ("sm_86", "sm_89", "sm_120")),
    ],
)
def test_code_of_every_width_has_no_spills(arch, width):
    for backward in (False, True):
        heads = 8 if backward else 2
        options = {"causal": True}
        case = Case(8, heads, 2048, 2048, width, batch=2, backward=backward, options=options)
        assert_good(case, arch)


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize(("arch", "width"), [("sm_90a", 64), ("sm_90a", 256), ("sm_86", 96)])
def test_code_of_tf32_has_no_spills(arch, width):
    options = {"causal": True}
    assert_good(Case(8, 2, 2048, 2048, width, dtype="tf32", kept=True, options=options), arch)
