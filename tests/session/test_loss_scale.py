"""Training in f16 scales its loss: gradients that users read have no scale, and a step that overflows changes nothing."""

import numpy as np
import pytest
import torch

import darner
from darner import Graph, optim
from darner.optim.loss_scale import GOOD_STEPS, INTERVAL, LEAST, SCALE, START
from tests.session.opening import opened

RNG = np.random.default_rng(7)
W = RNG.normal(0, 0.5, (4, 3)).astype(np.float32)
X = RNG.normal(size=(5, 4)).astype(np.float32)


FACTOR = 2.0**-4
"""Times the first scale it is a number of f16."""


def product(factor=FACTOR):
    """A loss that is linear in the product of an input and a weight: its gradient is the input's sum times a factor."""
    g = Graph("product")
    x, w = g.input("x", (5, 4)), g.parameter("w", (4, 3))
    g.set_outputs([((x @ w) * factor).sum(label="loss")])
    return g


def states_of(session):
    """Everything that a step may change but the scale."""
    found = {**session.parameters(), **session.state()}
    return {name: np.array(v) for name, v in found.items() if not name.startswith("loss_scale/")}


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name], err_msg=name)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_gradients_are_read_without_the_scale(device):
    with opened(product(), params={"w": W}, device=device, precision="f16") as session:
        session.run({"x": X})
        assert session.loss_scale == START
        rounded = X.astype(np.float16).astype(np.float64)
        wanted = FACTOR * np.repeat(rounded.sum(axis=0)[:, None], 3, axis=1)
        np.testing.assert_allclose(session.read_param_grad("w"), wanted, rtol=1e-6, atol=1e-6)


def test_small_gradients_that_f16_has_no_numbers_for_survive():
    tiny = 2.0**-30
    with opened(product(tiny), params={"w": W}, precision="f16") as session:
        session.run({"x": X})
        wanted = tiny * X.astype(np.float16).astype(np.float64).sum(axis=0)[:, None]
        np.testing.assert_allclose(session.read_param_grad("w"), np.repeat(wanted, 3, 1), rtol=1e-3)
    unscaled = np.float16(tiny).astype(np.float64)
    assert unscaled == 0.0


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize(
    "optimizer", [optim.SGD(0.1, momentum=0.9), optim.AdamW(0.01, clip_norm=1.0)]
)
def test_a_step_that_overflows_halves_the_scale_and_changes_nothing_else(device, optimizer):
    session = opened(
        product(), params={"w": W}, device=device, precision="f16", optimizer=optimizer
    )
    with session:
        session.run({"x": X})
        before = states_of(session)
        session.run({"x": np.full_like(X, 1e30)})  # infinite in f16
        assert_same(states_of(session), before)
        assert session.loss_scale == START / 2
        assert session.state()[GOOD_STEPS] == 0
        session.run({"x": X * np.float32(np.nan)})
        assert_same(states_of(session), before)
        assert session.loss_scale == START / 4
        session.run({"x": X})
        assert session.loss_scale == START / 4
        assert session.state()[GOOD_STEPS] == 1
        assert (session.parameters()["w"] != before["w"]).any()


def test_cotangents_that_overflow_bring_the_scale_down_until_they_fit():
    factor = 64.0  # times 2**16 that is infinite in f16, times 2**9 it is not
    with opened(
        product(factor), params={"w": W}, precision="f16", optimizer=optim.SGD(1e-3)
    ) as session:
        scales = [(session.run({"x": X}), session.loss_scale)[1] for _ in range(9)]
        assert scales[:7] == [START / 2**i for i in range(1, 8)]
        assert scales[7] == scales[8] == scales[6] < 65504 / factor
        rounded = X.astype(np.float16).astype(np.float64).sum(axis=0)[:, None]
        steps = int(session.state()[GOOD_STEPS])
        wanted = W - steps * 1e-3 * factor * rounded
        np.testing.assert_allclose(session.parameters()["w"], wanted, rtol=1e-5, atol=1e-5)


def test_the_scale_doubles_after_many_good_steps_and_counts_anew():
    with opened(product(), params={"w": W}, precision="f16", optimizer=optim.SGD(0.0)) as session:
        states = session.state()
        states[GOOD_STEPS] = INTERVAL - 2
        session.run({"x": X})
        assert (session.loss_scale, int(session.state()[GOOD_STEPS])) == (START, INTERVAL - 1)
        session.run({"x": X})
        assert (session.loss_scale, int(session.state()[GOOD_STEPS])) == (2 * START, 0)


def test_the_scale_becomes_neither_0_nor_infinite():
    with opened(product(), params={"w": W}, precision="f16", optimizer=optim.SGD(0.0)) as session:
        states = session.state()
        states[SCALE] = LEAST
        session.run({"x": X * np.float32(np.inf)})
        assert session.loss_scale == LEAST
    g = Graph("squares")
    g.set_outputs([g.parameter("w", (4, 3)).square().sum(label="loss")])
    with opened(g, precision="f16", optimizer=optim.SGD(0.0)) as session:
        states = session.state()
        states[SCALE], states[GOOD_STEPS] = 2.0**127, INTERVAL - 1
        session.run()
        assert (session.loss_scale, int(states[GOOD_STEPS])) == (2.0**127, 0)


def test_it_moves_as_the_scaler_of_pytorch_does():
    pattern = [True, True, False, True, True, True, False, False, True, True, True, True]
    scaler = torch.amp.GradScaler("cpu", init_scale=START, growth_interval=3)
    weight = torch.nn.Parameter(torch.zeros(()))
    rule = torch.optim.SGD([weight], lr=0.0)
    wanted = []
    for good in pattern:
        weight.grad = None
        scaler.scale(weight * (1.0 if good else float("inf"))).backward()
        scaler.step(rule)
        scaler.update()
        wanted.append(scaler.get_scale())
    with opened(product(), params={"w": W}, precision="f16", optimizer=optim.SGD(0.0)) as session:
        found, states = [], session.state()
        for good in pattern:
            # What counts as many is 2000 here: three from it on.
            steps = int(states[GOOD_STEPS])
            if steps == 0:
                states[GOOD_STEPS] = INTERVAL - 3
            session.run({"x": X if good else X * np.float32(np.inf)})
            found.append(session.loss_scale)
    assert found == wanted


def test_states_of_the_graph_stay_in_a_step_that_overflows():
    g = product()
    count = g.state("count", (), "i32")
    g.set_update(count, count + 1)
    with opened(g, params={"w": W}, precision="f16", optimizer=optim.SGD(0.1)) as session:
        for x in (X, X * np.float32(np.inf), X):
            session.run({"x": x})
        assert session.state()["count"] == 2


def test_an_update_of_several_runs_is_skipped_whole():
    options = {"precision": "f16", "optimizer": optim.SGD(0.1, accumulate=2)}
    with opened(product(), params={"w": W}, **options) as session:
        for x in (X, X * np.float32(np.inf)):
            session.run({"x": x})
        np.testing.assert_array_equal(session.parameters()["w"], W)
        assert session.loss_scale == START / 2
        for x in (X * np.float32(np.inf), X):
            session.run({"x": x})
        np.testing.assert_array_equal(session.parameters()["w"], W)
        assert session.loss_scale == START / 4
        for _ in range(2):
            session.run({"x": X})
        rounded = X.astype(np.float16).astype(np.float64).sum(axis=0)[:, None]
        np.testing.assert_allclose(
            session.parameters()["w"], W - 0.1 * FACTOR * rounded, rtol=1e-5, atol=1e-6
        )


def test_updates_apart_from_steps_are_skipped_too():
    with opened(product(), params={"w": W}, precision="f16") as session:
        session.run({"x": X * np.float32(np.inf)})
        session.sgd_step(0.1)
        np.testing.assert_array_equal(session.parameters()["w"], W)
        session.run({"x": X})
        session.adam_step(0.1)
        np.testing.assert_allclose(
            session.parameters()["w"], W - 0.1 * np.sign(X.sum(0))[:, None], atol=1e-5
        )


def test_a_checkpoint_goes_on_with_its_scale(tmp_path):
    options = {"precision": "f16", "optimizer": optim.Adam(0.01)}
    runs = [X, X * np.float32(np.inf), X, X]
    with opened(product(), params={"w": W}, **options) as session:
        for x in runs[:2]:
            session.run({"x": x})
        session.save_checkpoint(tmp_path / "half.safetensors")
        for x in runs[2:]:
            session.run({"x": x})
        wanted = {**states_of(session), "scale": session.loss_scale}
    with opened(product(), **options) as session:
        session.load_checkpoint(tmp_path / "half.safetensors")
        assert session.loss_scale == START / 2
        for x in runs[2:]:
            session.run({"x": x})
        assert_same({**states_of(session), "scale": session.loss_scale}, wanted)


@pytest.mark.parametrize("other", ["f32", "bf16"])
def test_what_was_learned_in_one_precision_goes_on_in_another(tmp_path, other):
    rule = {"optimizer": optim.Adam(0.01)}
    paths = {name: tmp_path / f"{name}.safetensors" for name in ("f16", other)}
    for name, path in paths.items():
        with opened(product(), params={"w": W}, precision=name, **rule) as session:
            session.run({"x": X})
            session.save_checkpoint(path)
    with opened(product(), precision=other, **rule) as session:
        session.load_checkpoint(paths["f16"])
        assert session.loss_scale == 1.0
        assert session.state()["optimizer/step"] == 1
    with opened(product(), precision="f16", **rule) as session:
        session.load_checkpoint(paths[other])
        assert session.loss_scale == START
    with opened(product(), mode="infer", precision="f16") as session:
        session.load_checkpoint(paths["f16"])
        assert not list(session.state())


def test_only_training_in_f16_has_a_scale():
    for options in (
        {"precision": "bf16"},
        {"precision": "f32"},
        {"precision": "f16", "mode": "infer"},
    ):
        with opened(product(), params={"w": W}, **options) as session:
            assert session.loss_scale == 1.0
            assert not list(session.state())


def test_a_state_that_has_its_name_already_is_refused():
    g = product()
    g.state(SCALE, ())
    with pytest.raises(
        darner.ArgumentError, match="'loss_scale/scale', which loss scaling calls its own"
    ):
        opened(g, precision="f16")
