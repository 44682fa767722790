"""Sessions: values against the reference, inputs, parameters, sharing, and use from several threads."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import darner
from darner import Graph, optim
from darner.session.binding import as_value
from darner.session.setup import split
from tests.session.opening import (
    CODE,
    DATA,
    DEVICES,
    OPTIMIZERS,
    START,
    here,
    line,
    opened,
    perceptron,
)
from tests.zoo import llama, mlp, values

# --------------------------------------------------------------------------- values


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("level", [0, 1, 2])
def test_an_inference_session_computes_what_the_reference_computes(device, level):
    graph = llama(1, loss=False) if level == 2 else mlp(3, loss=False)
    inputs, params, _ = values(graph)
    wanted = darner.run(graph, inputs, params, float64=True)
    with opened(graph, params=params, device=device, level=level, mode="infer") as session:
        found = session.run(inputs)
        again = session.run(inputs)
    (name,) = found
    np.testing.assert_allclose(found[name], wanted[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(found[name], again[name])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model", [mlp, pytest.param(llama, marks=pytest.mark.slow)])
def test_a_training_session_without_optimizer_gives_loss_and_gradients(device, model):
    graph = model()
    inputs, params, _ = values(graph)
    loss, *gradients = darner.run(darner.value_and_grad(graph), inputs, params, float64=True)
    with opened(graph, params=params, device=device) as session:
        session.run(inputs)
        assert session.read_loss() == pytest.approx(float(loss.reshape(())), rel=1e-5)
        for name, wanted in zip(graph.parameters, gradients, strict=True):
            assert session.has_param_grad(name)
            np.testing.assert_allclose(session.read_param_grad(name), wanted, rtol=1e-3, atol=1e-5)
        assert list(session.gradients()) == list(graph.parameters)
        norms = session.read_all_param_grad_norms()
        first = next(iter(graph.parameters))
        assert norms[first] == pytest.approx(float(np.linalg.norm(gradients[0])), rel=1e-4)
        for name, value in params.items():
            np.testing.assert_array_equal(session.read_param(name), value)


MORE_OPTIMIZERS = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "adam", "lion", "accumulated")
]


@pytest.mark.parametrize("name", ["momentum", "adamw", *MORE_OPTIMIZERS])
@pytest.mark.parametrize("threads", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_steps_are_those_of_the_graph_of_training(name, threads):
    graph, optimizer = perceptron(), OPTIMIZERS[name]
    inputs, params, _ = values(graph)
    step = optim.training_step(graph, optimizer)
    state = dict(params)
    with opened(
        graph, params=params, optimizer=optimizer, threads=threads, device="cpu"
    ) as session:
        for _ in range(4):
            current = {key: state[key] for key in params}
            kept = {key: value for key, value in state.items() if key not in params}
            (loss,) = darner.run(step, inputs, current, state=kept)
            state = {**current, **kept}
            session.run(inputs)
            assert session.read_loss() == pytest.approx(float(loss.reshape(())), rel=2e-4, abs=1e-6)
        for key in params:
            np.testing.assert_allclose(session.read_param(key), state[key], rtol=2e-3, atol=2e-4)
        assert set(session.state()) == set(step.states)
        assert session.state()["optimizer/step"] == state["optimizer/step"]


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_threads():
    graph = mlp(3, batch=33, pixels=70, width=65)
    inputs, params, _ = values(graph)
    found = []
    for threads in (1, 2, 3):
        options = {"optimizer": optim.Adam(0.01), "threads": threads, "device": "cpu"}
        with opened(graph, params=params, **options) as session:
            for _ in range(3):
                session.run(inputs)
            found.append({name: session.read_param(name) for name in params})
    for other in found[1:]:
        for name in params:
            np.testing.assert_array_equal(found[0][name], other[name])


def test_the_first_seeds_network_learns_separable_data():
    rng = np.random.default_rng(3)
    graph = perceptron(64, 20, 32, 4)
    classes = rng.integers(0, 4, 64)
    x = rng.normal(0, 0.3, (64, 20)) + 2.0 * rng.normal(size=(4, 20))[classes]
    session = darner.build_session(graph, threads=2, **CODE)
    session.set_parameter("w1", rng.normal(0, 0.3, 640).astype(np.float32))  # flat, as the seed's
    session.set_parameter("w2", rng.normal(0, 0.2, (32, 4)))
    session.set_input("x", x.astype(np.float32).reshape(-1))
    session.set_input("labels", np.eye(4, dtype=np.float32)[classes].reshape(-1))
    losses = []
    for _ in range(100):
        session.set_learning_rate(0.2)
        session.step()
        session.wait()
        losses.append(session.read_loss())
    assert losses[0] > 1.0
    assert losses[-1] < 0.02
    assert session.read_output().shape == (1,)
    assert session.read_output(1).shape == (1,)
    session.close()


@pytest.mark.parametrize("device", DEVICES)
def test_several_outputs_have_names_and_numbers(device):
    g = Graph()
    x = g.input("x", (2, 3))
    g.set_outputs([x.sum(), (x * 2.0).relu(label="double"), x, x.exp(label="e"), x.neg(label="e")])
    data = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)
    with opened(g, mode="infer", device=device) as session:
        assert session.output_names == ("output0", "double", "x", "output3", "output4")
        assert session.num_outputs() == 5
        found = session.run({"x": data})
        wanted = darner.run(g, {"x": data})
        for value, name in zip(wanted, session.output_names, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=1e-6)
        np.testing.assert_array_equal(session.read_output_by_index(1), np.maximum(2 * data, 0))
        np.testing.assert_array_equal(session.output("double"), np.maximum(2 * data, 0))
        flat = np.zeros(10, np.float32)
        assert session.read_output_by_index(2, flat) is flat
        np.testing.assert_array_equal(flat[:6], data.reshape(-1))
        view = session.run({"x": data}, copy=False)["double"]
        assert not view.flags.writeable
        np.testing.assert_array_equal(view, np.maximum(2 * data, 0))


@pytest.mark.parametrize("device", DEVICES)
def test_an_output_that_is_a_state_has_its_value_before_the_update(device):
    g = Graph()
    count = g.state("count", (), "i32", init=5)
    g.set_update(count, count + 1)
    w = g.parameter("w", (2,))
    g.set_update(w, w * 2.0)
    g.set_outputs([count, w, w + 1.0])
    with opened(g, mode="infer", device=device, params={"w": [1.0, 2.0]}) as session:
        assert [int(session.run()["count"]) for _ in range(3)] == [5, 6, 7]
        np.testing.assert_array_equal(session.read_output_by_index(1), [4.0, 8.0])
        np.testing.assert_array_equal(session.read_output_by_index(2), [5.0, 9.0])
        np.testing.assert_array_equal(session.parameters()["w"], [8.0, 16.0])
        assert session.state()["count"] == 8
        session.state()["count"] = 1
        assert int(session.run()["count"]) == 1


# --------------------------------------------------------------------------- inputs


def test_inputs_stay_until_they_are_set_again_and_runs_inputs_do_not():
    g = Graph()
    x, y = g.input("x", (2,)), g.input("y", (2,))
    g.set_outputs([x + y])
    with opened(g, mode="infer") as session:
        session.set_input("x", [1, 2])
        session.set_input("y", [10, 20])
        session.step()
        np.testing.assert_array_equal(session.read_output(), [11, 22])
        found = session.run({"x": np.array([5, 5], np.float32)})
        np.testing.assert_array_equal(found["output0"], [15, 25])
        session.step()
        np.testing.assert_array_equal(session.read_output(), [11, 22])


def test_the_callers_memory_is_read_where_it_lies_and_not_kept():
    g = Graph()
    g.set_outputs([g.input("x", (4,)) * 2.0])
    with opened(g, mode="infer", device="cpu") as session:
        seen = []
        data = np.ones(4, np.float32)
        session.run({"x": data})
        program = session._runner.last.program
        bind = program.bind
        program.bind = lambda buffer, array: (seen.append(array), bind(buffer, array))
        session.run({"x": data})
        assert seen[0] is data
        assert seen[-1] is None
        strided = np.arange(8, dtype=np.float32)[::2]
        np.testing.assert_array_equal(session.run({"x": strided})["output0"], 2 * strided)


def test_torch_tensors_come_in_and_go_out():
    g = Graph()
    x = g.input("x", (2, 3))
    t = g.input("t", (2,), "i64")
    w = g.parameter("w", (3,))
    g.set_outputs([x * w + t.reshape((2, 1))])
    with opened(g, mode="infer", device="cpu") as session:
        session.set_parameter("w", torch.tensor([1.0, 2.0, 3.0]))
        tensor = torch.arange(6.0).reshape(3, 2).T  # not contiguous
        found = session.run({"x": tensor, "t": torch.tensor([10, 20])})["output0"]
        wanted = tensor * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor([[10.0], [20.0]])
        torch.testing.assert_close(torch.from_dlpack(found), wanted)
        session.set_input("x", tensor)
        session.set_input("t", torch.tensor([0, 0]))
        session.step()
        np.testing.assert_array_equal(session.read_output(), tensor.numpy() * [1, 2, 3])


@given(st.sampled_from(["f32", "f64", "f16", "i32", "u8", "u32", "i64", "bool"]), st.data())
def test_numbers_and_lists_take_the_inputs_type_or_are_refused(kind, data):
    type_ = darner.TensorType.new((2,), kind)
    number = st.booleans() if kind == "bool" else st.integers(-300, 300)
    given_values = data.draw(st.lists(number, min_size=2, max_size=2))
    fits = type_.dtype.kind != "int" or all(
        type_.dtype.limits[0] <= v <= type_.dtype.limits[1] for v in given_values
    )
    if fits:
        found = as_value(given_values, type_, "input 'x'")
        assert found.dtype == type_.dtype.numpy
        assert found.tolist() == given_values
    else:
        with pytest.raises(darner.DTypeError, match="input 'x' is"):
            as_value(given_values, type_, "input 'x'")


ACCEPTED = [
    ("f32", np.float16),
    ("f32", np.float64),
    ("f16", np.float64),
    ("f16", np.float32),
    ("u32", np.uint8),
    ("u32", np.int64),
    ("i64", np.int32),
    ("f64", np.float32),
]
REFUSED = [
    ("f32", np.int32),
    ("f32", np.int64),
    ("u32", np.int32),
    ("u32", np.float32),
    ("i32", np.bool_),
    ("bool", np.uint8),
    ("f32", np.complex64),
]


@pytest.mark.parametrize(("declared", "given_type"), ACCEPTED)
def test_arrays_that_lose_nothing_are_accepted(declared, given_type):
    type_ = darner.TensorType.new((3,), declared)
    found = as_value(np.array([1, 2, 3], given_type), type_, "input 'x'")
    assert found.dtype == type_.dtype.numpy
    assert found.tolist() == [1, 2, 3]


@pytest.mark.parametrize(("declared", "given_type"), REFUSED)
def test_arrays_of_another_kind_are_refused(declared, given_type):
    type_ = darner.TensorType.new((3,), declared)
    with pytest.raises(darner.DTypeError, match=f"input 'x' is {declared}, but it is given"):
        as_value(np.array([1, 2, 3], given_type), type_, "input 'x'")


# --------------------------------------------------------------------------- parameters


def test_parameters_are_a_live_mapping():
    with opened(line(), level=0) as session:
        parameters = session.parameters()
        assert len(parameters) == 1
        assert list(parameters) == ["w"]
        assert "w" in parameters
        assert "v" not in parameters
        np.testing.assert_array_equal(parameters["w"], np.zeros(3))
        parameters["w"] = [1, 2, 3]
        np.testing.assert_array_equal(session.get_parameter("w"), [1, 2, 3])
        with pytest.raises(ValueError, match="read-only"):
            parameters["w"][0] = 7  # it would be lost: what is read is a copy
        np.testing.assert_array_equal(session.read_param("w"), [1, 2, 3])
        assert [(name, value.tolist()) for name, value in parameters.items()] == [("w", [1, 2, 3])]
        assert repr(parameters) == "<parameters {'w': 'f32[3]'}>"
        assert session.param_names() == ["w"]
        assert session.param_size("w") == 3
        assert session.read_all_param_norms() == {"w": pytest.approx(14**0.5)}
        out = np.empty(3, np.float32)
        assert session.read_param("w", out) is out
        assert out.tolist() == [1, 2, 3]


def test_initialisers_depend_on_seed_name_and_shape_alone():
    g = Graph()
    x = g.input("x", (2, 64))
    w = g.parameter("a.weight", (64, 256))
    gain = g.parameter("norm.weight", (256,))
    kernel = g.parameter("conv", (8, 4, 3, 3))
    bias = g.parameter("a.bias", (256,))
    g.set_outputs([((x @ w) * gain + bias).sum() + kernel.sum()])

    def weights(**options):
        with opened(g, mode="infer", level=0, **options) as session:
            return dict(session.parameters().items())

    first, again = weights(init="kaiming", seed=1), weights(init="kaiming", seed=1)
    other = weights(init="kaiming", seed=2)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert (first["a.weight"] != other["a.weight"]).mean() > 0.99
    assert first["a.weight"].std() == pytest.approx((2 / 64) ** 0.5, rel=0.05)
    assert np.abs(first["a.weight"]).max() <= (6 / 64) ** 0.5
    assert first["conv"].std() == pytest.approx((2 / 36) ** 0.5, rel=0.2)
    assert (first["norm.weight"] == 1).all()
    assert (first["a.bias"] == 0).all()
    plain = weights()
    assert all((value == 0).all() for value in plain.values())
    mixed = weights(
        init={
            "*.bias": "ones",
            "a.*": "xavier_normal",
            "conv": lambda name, type_, seed: np.full((8, 4, 3, 3), 3.0),
        }
    )
    assert (mixed["a.bias"] == 1).all()
    assert mixed["a.weight"].std() == pytest.approx((2 / 320) ** 0.5, rel=0.05)
    assert (mixed["conv"] == 3).all()
    assert (mixed["norm.weight"] == 0).all()
    with opened(g, mode="infer", level=0, seed=1) as session:
        session.initialize("kaiming")
        np.testing.assert_array_equal(session.read_param("conv"), first["conv"])
        session.initialize({"conv": "zeros"})
        assert (session.read_param("conv") == 0).all()
        np.testing.assert_array_equal(session.read_param("a.weight"), first["a.weight"])


def test_quantised_parameters_are_what_their_stored_form_decodes_to():
    g = Graph()
    x, w = g.input("x", (2, 32)), g.parameter_q8("w", (32, 3))
    g.set_outputs([x @ w])
    inputs, params, _ = values(g)
    with opened(g, mode="infer", device="cpu", params=params) as session:
        (wanted,) = darner.run(g, inputs, params)
        np.testing.assert_allclose(session.run(inputs)["output0"], wanted, rtol=1e-5, atol=1e-5)


# --------------------------------------------------------------------------- sharing


def test_training_and_inference_share_their_parameters():
    graph, answer = perceptron(), perceptron()
    answer.set_outputs([answer.outputs[0].operands[0]])  # the logits
    inputs, params, _ = values(graph)
    with opened(graph, params=params, optimizer=optim.Adam(0.05), device="cpu") as learner:
        reader = darner.build_inference_session(answer, share=learner, threads=1)
        for _ in range(3):
            learner.run(inputs)
            current = dict(learner.parameters().items())
            (wanted,) = darner.run(answer, inputs, current, float64=True)
            found = reader.run(inputs)["output0"]
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
        assert np.shares_memory(learner._values.arrays["w1"], reader._values.arrays["w1"])
        reader.set_parameter("b2", [7.0, 8.0, 9.0])
        np.testing.assert_array_equal(learner.read_param("b2"), [7, 8, 9])
        message = here(lambda: learner.share_parameters(opened(graph, level=0)))
        assert "another session shares this one's parameters already" in message
        reader.close()
        learner.run(inputs)


def test_inference_beside_training_does_not_disturb_it():
    graph = mlp(3, dropout=0.5)
    inputs, params, _ = values(graph)
    found = []
    for beside in (False, True):
        with opened(graph, params=params, optimizer=optim.SGD(0.1)) as learner:
            reader = opened(graph, mode="infer", share=learner) if beside else None
            for _ in range(4):
                learner.run(inputs)
                if reader is not None:
                    reader.run(inputs)
            found.append({**learner.parameters(), **learner.state()})
    assert found[0]["random_step"] == 4
    for name, value in found[0].items():
        np.testing.assert_array_equal(found[1][name], value)


def test_sharing_needs_equal_types_and_devices():
    other = Graph("other")
    other.set_outputs([other.parameter("w", (4,)).sum()])
    third = Graph("third")
    third.set_outputs([third.parameter("v", (4,)).sum()])
    with opened(line(), level=0) as first, opened(other, level=0) as second:
        message = here(lambda: second.share_parameters(first))
        assert "parameter 'w' is f32[4], but f32[3] in the other session" in message
        with opened(line(), level=0, device="cpu") as elsewhere:
            message = here(lambda: elsewhere.share_parameters(first))
            assert "this session is on 'cpu', the other on 'reference'" in message
        with opened(third, level=0) as stranger:
            message = here(lambda: stranger.share_parameters(first))
            assert "the sessions have no parameter in common" in message


# --------------------------------------------------------------------------- what is computed once


def test_what_depends_on_parameters_alone_is_computed_when_they_change():
    g = Graph()
    x, w = g.input("x", (2, 3)), g.parameter("w", (3, 3))
    scale = (w.abs().max() + 1.0).sqrt()
    g.set_outputs([x @ (w * scale), scale, w.T])
    setup, step, names = split(g)
    assert [node.op.name for node in setup.outputs] == ["mul", "sqrt"] or len(names) == 2
    assert "sqrt" not in {node.op.name for node in step.nodes}
    assert "transpose" in {node.op.name for node in step.nodes}  # a view stays
    data, weights = np.ones((2, 3), np.float32), np.arange(9, dtype=np.float32).reshape(3, 3)
    with opened(g, mode="infer", device="cpu", params={"w": weights}) as session:
        for factor in (1.0, 2.0):
            session.set_parameter("w", weights * np.float32(factor))
            wanted = darner.run(g, {"x": data}, {"w": weights * factor})
            for found, value in zip(session.run({"x": data}).values(), wanted, strict=True):
                np.testing.assert_allclose(found, value, rtol=1e-5)
        runs = []
        setup_program = session._runner.last.loaded.setup
        run = setup_program.run
        setup_program.run = lambda *span: (runs.append(span), run(*span))
        session.run({"x": data})
        assert not runs
        session.set_parameter("w", weights)
        session.run({"x": data})
        session.run({"x": data})
        assert len(runs) == len(setup_program.plan.kernels)


# --------------------------------------------------------------------------- threads


def test_a_session_may_be_used_from_several_threads():
    graph = line()
    wanted = {}
    faults = []
    with opened(graph, params=START, mode="infer", device="cpu") as session:
        for factor in range(1, 5):
            data = {"x": DATA["x"] * factor, "y": DATA["y"]}
            wanted[factor] = darner.run(graph, data, START)[0]

        def work(factor):
            data = {"x": DATA["x"] * factor, "y": DATA["y"]}
            for _ in range(50):
                found = session.run(data)["loss"]
                if not np.allclose(found, wanted[factor], rtol=1e-5):
                    faults.append((factor, found))

        threads = [threading.Thread(target=work, args=(factor,)) for factor in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert faults == []


def test_native_code_can_be_made_before_the_first_step():
    with opened(line(), params=START, device="cpu", level=0, cache=None) as session:
        assert "compile" not in session.build_seconds
        session.compile()
        made = session.build_seconds["compile"]
        session.set_learning_rate(0.1)
        session.compile()
        assert session.build_seconds["compile"] > made
        before = session.build_seconds["compile"]
        session.run({"x": np.ones(4, np.float32), "y": np.ones(4, np.float32)})
        assert session.build_seconds["compile"] == before
