"""Sessions that learn, and every refusal."""

import numpy as np
import pytest

import darner
from darner import Graph, optim
from darner.session import ClosedError
from tests.session.opening import (
    DATA,
    START,
    here,
    line,
    opened,
    perceptron,
)
from tests.zoo import values

# --------------------------------------------------------------------------- optimizers


def test_the_learning_rate_means_sgd_and_then_the_optimizers_own():
    with opened(line(), params=START, level=0) as session:
        assert session.optimizer is None
        session.run(DATA)
        gradient = session.read_param_grad("w")
        session.set_learning_rate(0.01)
        assert session.optimizer == optim.SGD(0.01)
        assert session.read_loss() == pytest.approx(11.71875)  # of the last step, still
        np.testing.assert_array_equal(session.read_param_grad("w"), gradient)
        np.testing.assert_array_equal(session.read_param("w"), START["w"])
        session.run(DATA)
        np.testing.assert_allclose(session.read_param("w"), START["w"] - 0.01 * gradient, rtol=1e-6)
        assert not session.has_param_grad("w")
        assert "kept no gradient of 'w'" in here(lambda: session.read_param_grad("w"))
        session.set_adam(0.1)
        session.set_learning_rate(0.25)
        assert session.optimizer == optim.Adam(0.25)
        assert session.state()["optimizer/learning_rate"] == np.float32(0.25)
        session.state()["optimizer/learning_rate"] = 0.75
        session.set_learning_rate(0.25)
        assert session.state()["optimizer/learning_rate"] == np.float32(0.25)


def test_numbers_are_states_and_another_optimizer_starts_anew():
    with opened(line(), params=START, level=0) as session:
        session.set_adam(0.1, 0.9, 0.999, 1e-8)
        session.run(DATA)
        program = session._runner.last.program
        mean = session.state()["w/mean"]
        session.set_adam(0.2, 0.8, 0.99, 1e-6)
        session.run(DATA)
        assert session._runner.last.program is program  # nothing was compiled
        assert session.state()["optimizer/step"] == 2
        gradient_part = session.state()["w/mean"] - np.float32(0.8) * mean
        assert np.abs(gradient_part).min() > 0
        session.set_optimizer(optim.Adam(0.2, clip_norm=1.0))  # another graph, the same class
        assert session.state()["optimizer/step"] == 2
        assert session.state()["w/mean"].any()
        session.set_optimizer(optim.SGD(0.1, momentum=0.9))
        assert sorted(session.state()) == [
            "optimizer/learning_rate",
            "optimizer/momentum",
            "optimizer/step",
            "w/momentum",
        ]
        assert session.state()["optimizer/step"] == 0
        session.run(DATA)
        assert session.state()["optimizer/step"] == 1
        assert session.state()["w/momentum"].any()


def test_updates_apart_from_steps_are_those_inside_them():
    graph = perceptron()
    inputs, params, _ = values(graph)
    found = []
    for apart in (False, True):
        with opened(graph, params=params, level=1) as session:
            if not apart:
                session.set_adam(0.01)
            for _ in range(3):
                session.run(inputs)
                if apart:
                    session.adam_step(0.01)
            found.append({name: session.read_param(name) for name in params})
            assert session.state()["optimizer/step"] == 3
            assert session.memory_summary().adam_state_bytes == 2 * 4 * (30 + 5 + 15 + 3)
    for name in params:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=1e-5, atol=1e-7)
    with opened(graph, params=params, level=1) as session:
        session.run(inputs)
        gradient = session.read_grad("b2")
        session.sgd_step(0.5)
        np.testing.assert_allclose(
            session.read_param("b2"), params["b2"] - 0.5 * gradient, rtol=1e-6
        )
        session.set_learning_rate(0.1)
        assert "each step already updates parameters by SGD" in here(lambda: session.sgd_step(0.1))


def test_multipliers_scale_and_freeze_by_prefix():
    graph = perceptron()
    inputs, params, _ = values(graph)
    with opened(graph, params=params, level=1) as session:
        session.run(inputs)
        gradients = session.gradients()
        session.set_lr_multiplier("w", 0.5)  # no scope, but the beginning of two names
        session.set_lr_multiplier("w2", 0.0)
        session.set_lr_multiplier("b1", 2.0)
        session.set_learning_rate(0.1)
        session.run(inputs)
        factors = {"w1": 0.5, "w2": 0.0, "b1": 2.0, "b2": 1.0}
        for name, factor in factors.items():
            wanted = params[name] - 0.1 * factor * gradients[name]
            np.testing.assert_allclose(session.read_param(name), wanted, rtol=1e-5, atol=1e-6)
        session.clear_lr_multipliers()
        before = session.read_param("w2")
        session.run(inputs)
        assert (session.read_param("w2") != before).any()


def test_gradients_are_kept_beside_an_optimizer_where_asked():
    graph = perceptron()
    inputs, params, _ = values(graph)
    _, *wanted = darner.run(darner.value_and_grad(graph), inputs, params, float64=True)
    options = {"optimizer": optim.SGD(0.1), "keep_gradients": True}
    with opened(graph, params=params, **options) as session:
        session.run(inputs)
        for name, gradient in zip(params, wanted, strict=True):
            np.testing.assert_allclose(session.read_grad(name), gradient, rtol=1e-3, atol=1e-6)
        assert session.num_outputs() == 1
        assert list(session.run(inputs)) == ["output0"]


def test_an_inference_session_does_not_train():
    with opened(line(), mode="infer", level=0) as session:
        for call in (
            lambda: session.set_learning_rate(0.1),
            session.set_adam,
            lambda: session.set_optimizer(optim.SGD(0.1)),
            lambda: session.sgd_step(0.1),
            lambda: session.set_lr_multiplier("w", 0.5),
        ):
            assert "an inference session does not train; build_session makes one" in here(call)
        assert not session.has_param_grad("w")
        assert sorted(session.state()) == []


# --------------------------------------------------------------------------- refusals


def test_wrong_calls_are_told_by_name_shape_rule_and_line():
    with opened(line(), params=START, level=0) as session:
        message = here(lambda: session.set_input("xx", [1.0]))
        assert message.startswith("set_input: there is no input 'xx'; did you mean 'x'? (test_ses")
        message = here(lambda: session.set_input("x", [1.0, 2.0]))
        assert message.startswith(
            "set_input: input 'x' is (4,) (4 values), but it is given 2 values (test_session_training.py:"
        )
        message = here(lambda: session.set_input("x", np.zeros((2, 2), np.float32)))
        assert "input 'x' is (4,) (4 values), but it is given the shape (2, 2)" in message
        message = here(lambda: session.set_input("x", np.zeros(4, np.int32)))
        assert "input 'x' is f32, but it is given i32; convert it: numpy.asarray(x" in message
        message = here(lambda: session.set_input("x", ["a"] * 4))
        assert "input 'x' is given text (<U1), not numbers" in message
        message = here(lambda: session.set_input_u32("x", [1, 2, 3, 4]))
        assert "input 'x' is f32, not u32; use set_input" in message
        message = here(lambda: session.run({"x": DATA["x"]}))
        assert "run: no value was given for input 'y'; set_input, or run({...})" in message
        message = here(lambda: session.set_parameter("v", [1.0]))
        assert "set_parameter: there is no parameter 'v'; it has w" in message
        message = here(lambda: session.set_parameter("w", [1.0]))
        assert "parameter 'w' is (3,) (3 values), but it is given 1 values" in message
        message = here(session.read_loss)
        assert "read_loss: nothing has run yet; call step() first" in message
        message = here(lambda: session.read_output_by_index(3))
        assert "there is no output 3: there are 1" in message
        message = here(lambda: session.output("los"))
        assert "output: there is no output 'los'; did you mean 'loss'?" in message
        message = here(lambda: session.get_parameter("w", np.zeros(2, np.float32)))
        assert "parameter 'w' is (3,), but out is (2,)" in message
        message = here(lambda: session.get_parameter("w", np.zeros(3)))
        assert "parameter 'w' is float32, but out is float64" in message
        message = here(lambda: session.get_parameter("w", [0.0]))
        assert "out is a NumPy array that can be written, got list" in message
        message = here(lambda: session.set_learning_rate(-1))
        assert "SGD: learning_rate must be at least 0, got -1" in message
        message = here(lambda: session.set_adam(1e-3, 1.5))
        assert "Adam: beta1 must lie in [0, 1), got 1.5" in message
        message = here(lambda: session.set_lr_multiplier("q", 2.0))
        assert "there is no parameter or prefix 'q'; it has w" in message
        message = here(lambda: session.sgd_step(0.1))
        assert "sgd_step: nothing has run yet" in message
        np.testing.assert_array_equal(session.read_param("w"), START["w"])
        with pytest.raises(KeyError):
            session.parameters()["nothing"]
        with pytest.raises(darner.ArgumentError, match="it cannot be removed"):
            del session.parameters()["w"]


def test_several_values_are_written_all_or_none():
    with opened(perceptron(), level=0) as session:
        with pytest.raises(darner.ShapeError):
            session.parameters().update({"b1": np.ones(5), "b2": np.ones(4)})
        assert not session.read_param("b1").any()


def test_wrong_configurations_are_refused():
    graph = line()
    cases = {
        "there is no device 'tpu'; the devices are cpu, reference": {"device": "tpu"},
        "mode is 'train' or 'infer', got 'guess'": {"mode": "guess"},
        "level is 0, 1, 2 or 3, got 9": {"level": 9},
        "threads is a whole number of at least 1, got 0": {"threads": 0},
        "precision is one of 'f32', 'tf32', 'bf16', 'f16', got 'bfloat16'; did you mean 'bf16'?": {
            "precision": "bfloat16"
        },
        "optimizer is one of darner.optim's, got 'adam'": {"optimizer": "adam"},
        "an inference session has no optimizer": {"optimizer": optim.SGD(1.0), "mode": "infer"},
        "SessionConfig has no 'thread'; did you mean 'threads'?": {"thread": 2},
        "there is no initialiser 'kaimin'; did you mean 'kaiming'?": {"init": "kaimin"},
        "seed is a whole number of at least 0, got -1": {"seed": -1},
        "cache is a folder, True or None, got 7": {"cache": 7},
        "progress is True, False or None, got 'yes'": {"progress": "yes"},
    }
    for message, options in cases.items():
        found = here(lambda options=options: darner.build(graph, **options))
        assert message in found
        assert found.startswith("build: ")
    assert "a Graph is needed, got str" in here(lambda: darner.build("graph"))
    assert "config is a SessionConfig" in here(lambda: darner.build(graph, {"mode": "infer"}))
    empty = Graph("empty")
    empty.parameter("w", (2,))
    assert "graph 'empty' has no output; call set_outputs" in here(lambda: darner.build(empty))
    vector = Graph("vector")
    vector.set_outputs([vector.parameter("w", (2,)) * 2.0])
    assert "the first output must be one float" in here(lambda: darner.build_session(vector))


def test_a_closed_session_refuses_everything_and_closes_twice():
    session = opened(line(), params=START, level=0)
    session.run(DATA)
    session.close()
    session.close()
    assert session.closed
    assert repr(session) == "<Session 'line', closed>"
    for call in (
        session.step,
        session.wait,
        session.read_loss,
        session.plan,
        session.memory_summary,
        session.param_names,
        lambda: session.set_input("x", [1.0] * 4),
        lambda: session.read_param("w"),
        lambda: session.parameters()["w"],
        lambda: len(session.state()),
        lambda: session.save_checkpoint("nowhere"),
    ):
        with pytest.raises(ClosedError, match="the session of graph 'line' is closed"):
            call()


def test_changing_the_graph_does_not_change_the_session():
    graph = line()
    with opened(graph, params=START, level=0) as session:
        graph.set_outputs([graph.parameters["w"].sum()])
        session.run(DATA)
        assert session.read_loss() == pytest.approx(11.71875)


def test_a_wrong_number_for_the_optimizer_at_hand_names_the_users_line():
    with opened(line(), params=START, level=0) as session:
        session.set_adam(0.1)
        with pytest.raises(darner.ArgumentError, match=r"test_session_training\.py"):
            session.set_adam(-1.0)
        with pytest.raises(darner.ArgumentError, match=r"test_session_training\.py"):
            session.set_learning_rate(-1.0)
        assert session.optimizer.learning_rate == 0.1


# --------------------------------------------------------------------------- two sessions of the same parameters


def test_gradients_that_sessions_of_shared_parameters_add_up_make_one_update_together():
    by_turns = [
        opened(line(), params=START, level=0, optimizer=optim.SGD(0.01, accumulate=3))
        for _ in range(2)
    ]
    first, second = by_turns
    second.share_parameters(first)
    with opened(line(), params=START, level=0, optimizer=optim.SGD(0.01, accumulate=3)) as alone:
        for turn in (0, 1, 0, 0, 1, 1, 1, 0, 1):
            by_turns[turn].run(DATA)
            alone.run(DATA)
            for name in ("optimizer/accumulated", "optimizer/step", "w/gradient_sum"):
                np.testing.assert_array_equal(first.state()[name], alone.state()[name])
            np.testing.assert_array_equal(first.read_param("w"), alone.read_param("w"))
        assert alone.state()["optimizer/step"] == 3
    second.close()
    first.close()


def test_a_parameter_that_was_read_cannot_be_mistaken_for_the_parameter():
    with opened(line(), params=START, level=0) as session:
        with pytest.raises(ValueError, match="read-only"):
            session.parameters()["w"][:] = 0
        np.testing.assert_array_equal(session.read_param("w"), START["w"])
        copied = session.get_parameter("w")
        copied[:] = 0
        np.testing.assert_array_equal(session.read_param("w"), START["w"])
