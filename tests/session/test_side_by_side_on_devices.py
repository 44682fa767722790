"""Weights side by side on devices with memory of their own: every part is read, written, saved and shared by its own name."""

import numpy as np
import pytest

import darner
from darner import Graph, optim
from tests.session.test_side_by_side import assert_alike, blocks, everything, narrow, training
from tests.zoo import llama, values

DEVICES = ("cuda:emulated", "gpu")
on_devices = pytest.mark.parametrize("device", DEVICES)
on_one = pytest.mark.parametrize("device", DEVICES[:1])


def pair(graph, device, optimizer="adam", **options):
    """Sessions on a device, one with weights side by side and one with each by itself; and inputs."""
    inputs, params, _ = values(graph)
    sessions = [
        training(graph, params, joined, optimizer, device=device, threads=None, **options)
        for joined in (True, False)
    ]
    assert blocks(sessions[0])
    assert not blocks(sessions[1])
    return *sessions, inputs


@on_devices
def test_steps_are_those_of_weights_stored_apart(device):
    joined, apart, inputs = pair(narrow(), device, "accumulated")
    for _ in range(3):
        joined.run(inputs)
        apart.run(inputs)
    assert_alike(everything(joined), everything(apart))


@on_devices
def test_what_is_written_between_steps_is_what_the_next_step_begins_with(device):
    joined, apart, inputs = pair(narrow(), device)
    weight, moment = joined.read_param("w1") * 2, np.full((24, 2), 0.25)
    for number in range(3):
        for session in (joined, apart):
            session.run(inputs)
            session.set_parameter("w1", weight * (number + 1))
            session.state()["w2/mean"] = moment
        np.testing.assert_array_equal(joined.read_param("w1"), weight * (number + 1))
        np.testing.assert_array_equal(joined.state()["w2/mean"], moment.astype(np.float32))
        assert_alike(everything(joined), everything(apart))


@on_one
def test_files_go_both_ways(device, tmp_path):
    joined, apart, inputs = pair(narrow(), device)
    for name, session in (("joined", joined), ("apart", apart)):
        session.run(inputs)
        session.save_checkpoint(tmp_path / name)
    before = everything(joined)
    joined.run(inputs)
    apart.load_checkpoint(tmp_path / "joined")
    assert_alike(everything(apart), before, 0)
    apart.run(inputs)
    assert_alike(everything(apart), everything(joined))
    joined.load_checkpoint(tmp_path / "joined")
    assert_alike(everything(joined), before, 0)


@on_devices
def test_sessions_that_store_parameters_otherwise_share_them(device):
    graph = narrow()
    inputs, params, _ = values(graph)
    optimizers = [optim.SGD(0.05), optim.SGD(0.05, multipliers={"w0": 0.5})]
    options = {"device": device, "threads": None}
    sessions = [training(graph, params, True, optimizers[0], **options)]
    sessions.append(training(graph, {}, True, optimizers[1], share=sessions[0], **options))
    sessions.append(training(graph, {}, False, optimizers[0], share=sessions[0], **options))
    alone = [training(graph, params, False, one) for one in (*optimizers, optimizers[0])]
    assert [blocks(one) for one in sessions] == [[("w0", "w1", "w2")], [("w1", "w2")], []]
    for _ in range(2):
        for one, other in zip(sessions, alone, strict=True):
            one.run(inputs)
            other.parameters().update(params)
            other.run(inputs)
            params = {name: np.array(value) for name, value in other.parameters().items()}
            assert_alike(dict(one.parameters()), params)
    sessions[0].close()
    for one in sessions[1:]:
        assert_alike(dict(one.parameters()), params)


@on_one
def test_the_same_memory_serves_training_and_inference(device):
    graph, forward = llama(1, tokens=8), llama(1, tokens=8, loss=False)
    inputs, params, _ = values(graph)
    options = {"device": device, "threads": None}
    session = training(graph, params, **options)
    reader = darner.build_inference_session(forward, share=session, device=device, cache=None)
    tokens = {"tokens": inputs["tokens"]}
    for _ in range(2):
        session.run(inputs)
        (found,) = reader.run(tokens).values()
        wanted = darner.run(forward, tokens, dict(session.parameters()), float64=True)[0]
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    reader.set_parameter("layer0.k.weight", params["layer0.k.weight"])
    np.testing.assert_array_equal(session.read_param("layer0.k.weight"), params["layer0.k.weight"])
    session.close()
    (found,) = reader.run(tokens).values()
    wanted = darner.run(forward, tokens, dict(reader.parameters()), float64=True)[0]
    np.testing.assert_allclose(found, wanted, atol=1e-4)


@on_one
def test_frozen_weights_that_stand_together_keep_their_values(device):
    optimizer = optim.Adam(0.01, epsilon=1e-3, multipliers={"w0": 0.0, "w1": 0.0})
    joined, apart, inputs = pair(narrow(), device, optimizer)
    before = {name: joined.read_param(name) for name in ("w0", "w1")}
    for _ in range(2):
        joined.run(inputs)
        apart.run(inputs)
    assert_alike(everything(joined), everything(apart))
    for name, value in before.items():
        np.testing.assert_array_equal(joined.read_param(name), value)


@on_one
def test_another_optimizer_takes_over_what_was_side_by_side(device):
    joined, apart, inputs = pair(narrow(), device)
    for session in (joined, apart):
        session.run(inputs)
        session.set_lr_multiplier("w1", 0.0)
        session.run(inputs)
        session.set_lr_multiplier("w1", 1.0)
        session.run(inputs)
    assert_alike(everything(joined), everything(apart))


@on_one
def test_a_step_that_fails_leaves_all_parts_as_they_were(device):
    g = Graph("failing")
    at, x = g.input("at", (4,), "i32"), g.input("x", (4, 5))
    rows = g.gather(g.parameter("table", (6, 5)), at + 1)
    both = [(rows * x) @ g.parameter(name, (5, 3)) for name in "ab"]
    g.set_outputs([(both[0].sin() * both[1]).square().mean()])
    _, params, _ = values(g)
    session = training(g, params, device=device, threads=None)
    assert blocks(session) == [("a", "b")]
    good = {"at": np.array([0, 1, 2, 3], np.int32), "x": np.ones((4, 5), np.float32)}
    session.run(good)
    before = everything(session)
    with pytest.raises(darner.RunError, match="outside"):
        session.run({**good, "at": np.array([0, 1, 5, 3], np.int32)})
    assert_alike(everything(session), before, 0)
    session.run(good)
    assert np.abs(session.read_param("a") - before["a"]).max() > 0
