"""What a step of training promises whatever its optimizer: settings, dtypes, its place as a graph, errors."""

import numpy as np
import pytest

import darner
from darner import ArgumentError, Graph, optim
from tests.zoo import mlp, values

from .compare import MODELS, PEERS, assert_same, batches_of, train

# ------------------------------------------------------------- settings and schedules


def test_setting_a_state_changes_a_number_without_a_new_graph():
    graph = mlp(2, dtype="f64")
    step, start = optim.training_step(graph, optim.Adam(0.01)), values(graph).params
    state = {
        "optimizer/learning_rate": 0.2,
        "optimizer/beta1": 0.5,
        "optimizer/beta2": 0.7,
        "optimizer/epsilon": 1e-2,
    }
    _, found = train(step, start, batches_of(graph), state)
    other = optim.training_step(graph, optim.Adam(0.2, beta1=0.5, beta2=0.7, epsilon=1e-2))
    assert_same(found, train(other, start, batches_of(graph))[1])


def test_states_start_at_the_numbers_of_the_optimizer():
    optimizer = optim.AdamW(0.25, beta1=0.5, clip_norm=2.0)
    step = optim.training_step(mlp(2, dtype="f64"), optimizer)
    scalars = {n: leaf.attrs["init"] for n, leaf in step.states.items() if leaf.dtype.is_float}
    scalars = {n: value for n, value in scalars.items() if n.startswith("optimizer/")}
    assert scalars.pop("optimizer/gradient_norm") == 0.0
    assert scalars == optimizer.settings()
    assert scalars == {
        "optimizer/learning_rate": 0.25,
        "optimizer/beta1": 0.5,
        "optimizer/beta2": 0.999,
        "optimizer/epsilon": 1e-8,
        "optimizer/weight_decay": 0.01,
        "optimizer/clip_norm": 2.0,
    }


def test_a_schedule_multiplies_the_rate_by_the_updates_made():
    graph = mlp(2, dtype="f64")
    schedule = optim.warmup(3, start=0.1) >> optim.cosine(6)
    batches, start = batches_of(graph), values(graph).params
    step = optim.training_step(graph, optim.SGD(0.4, momentum=0.9, schedule=schedule))
    _, found = train(step, start, batches)
    by_hand = optim.training_step(graph, optim.SGD(0.4, momentum=0.9))
    state = {}
    for i, batch in enumerate(batches):
        state["optimizer/learning_rate"] = 0.4 * schedule(i)
        train(by_hand, start, [batch], state)
    assert_same(found, {name: state[name] for name in start})


def test_a_schedule_counts_updates_not_accumulated_runs():
    graph = Graph()
    w = graph.parameter("w", (), "f64")
    graph.set_outputs([w * 1.0])
    schedule = optim.piecewise({1: 10.0})
    step = optim.training_step(graph, optim.SGD(0.1, schedule=schedule, accumulate=2))
    _, found = train(step, {"w": np.array(0.0)}, [{}] * 4)
    assert float(found["w"]) == pytest.approx(-(0.1 + 1.0))


# ------------------------------------------------------------- dtypes


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("master", [False, True])
def test_states_are_at_least_f32(dtype, master):
    graph = mlp(2, dtype=dtype)
    optimizer = optim.AdamW(0.01, clip_norm=1.0, accumulate=2, master=master)
    step = optim.training_step(graph, optimizer)
    wide = "f64" if dtype == "f64" else "f32"
    counters = ("optimizer/step", "optimizer/accumulated")
    for name, leaf in step.states.items():
        assert leaf.dtype.name == ("i32" if name in counters else wide), name
    assert ("layer0.weight/master" in step.states) == (master and dtype in ("f16", "bf16"))
    assert step.parameters["layer0.weight"].dtype.name == dtype


def line(dtype):
    graph = Graph()
    w = graph.parameter("w", (2,), dtype)
    graph.set_outputs([w.cast("f32").sum()])
    return graph


def test_a_master_copy_keeps_what_16_bits_would_lose():
    start = {"w": np.array([1.0, 0.0], darner.DType.BF16.numpy)}
    results = {}
    for master in (False, True):
        step = optim.training_step(line("bf16"), optim.SGD(1e-3, master=master))
        results[master] = train(step, start, [{}] * 40)[1]["w"].astype(np.float64)
    assert results[False][0] == 1.0  # a step of 0.001 is less than half the distance of bf16 at 1
    np.testing.assert_allclose(results[True], [0.96, -0.04], rtol=2**-8)


def test_a_master_copy_stays_between_updates():
    step = optim.training_step(line("bf16"), optim.SGD(1e-3, master=True, accumulate=4))
    state = {}
    for runs, expected in ((4, 0.999), (3, 0.999), (1, 0.998)):
        train(step, {"w": np.ones(2, np.float32)}, [{}] * runs, state)
        np.testing.assert_allclose(state["w/master"], expected, rtol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_setting_a_parameter_sets_its_master_copy(accumulate):
    optimizer = optim.SGD(0.25, master=True, accumulate=accumulate)
    step, start = optim.training_step(line("bf16"), optimizer), {"w": np.ones(2, np.float32)}
    state = {}
    train(step, start, [{}] * (2 * accumulate), state)
    np.testing.assert_array_equal(state["w/master"], [0.5, 0.5])
    state["w"] = np.array([8.0, 0.5], darner.DType.BF16.numpy)
    train(step, start, [{}] * accumulate, state)
    np.testing.assert_array_equal(state["w/master"], [7.75, 0.25])


def test_mixed_dtypes_are_each_updated_in_their_own():
    graph = Graph()
    a, b = graph.parameter("a", (2,), "f64"), graph.parameter("b", (2,), "f16")
    graph.set_outputs([a.sum() * 3.0 + b.cast("f64").sum() * 4.0])
    step = optim.training_step(graph, optim.SGD(1.0, clip_norm=1.0, momentum=0.5))
    assert step.states["a/momentum"].dtype.name == "f64"
    assert step.states["b/momentum"].dtype.name == "f32"
    _, found = train(step, {"a": np.zeros(2), "b": np.zeros(2, np.float16)}, [{}])
    norm = np.sqrt(2 * 9 + 2 * 16) + 1e-6
    np.testing.assert_allclose(found["a"], -3 / norm, rtol=1e-12)
    np.testing.assert_allclose(found["b"], -4 / norm, rtol=1e-3)


def test_the_first_steps_of_adam_are_right_in_f32():
    graph = Graph()
    w = graph.parameter("w", (3,))
    graph.set_outputs([(w * graph.constant([1.0, 1e-3, -50.0])).sum()])
    step = optim.training_step(graph, optim.Adam(0.1, epsilon=0.0))
    state = {}
    for count in range(1, 6):
        train(step, {"w": np.zeros(3, np.float32)}, [{}], state)
        # Under a constant gradient each step is of the rate's size.
        np.testing.assert_allclose(state["w"], 0.1 * count * np.array([-1, -1, 1]), rtol=2e-6)


# ------------------------------------------------------------- the step as a graph


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["sgd", "lion", "adamw", "adafactor", "all"])
def test_an_optimized_step_gives_the_same_numbers_and_keeps_all_updates(name, model):
    everything = optim.AdamW(
        0.01,
        clip_norm=0.1,
        clip_value=0.5,
        accumulate=2,
        schedule=optim.warmup(2, start=0.5) >> optim.cosine(5),
    )
    optimizer = {"lion": optim.Lion(), "all": everything, **{k: v for k, (v, _) in PEERS.items()}}[
        name
    ]
    graph = MODELS[model]()
    step = optim.training_step(graph, optimizer, gradients=True)
    better = darner.optimize(step)
    assert {str(leaf.name) for leaf in better.updates} == {str(leaf.name) for leaf in step.updates}
    batches, start = batches_of(graph, 4), values(graph).params
    outputs, found = train(step, start, batches)
    better_outputs, better_found = train(better, start, batches)
    assert_same(better_found, found)
    for one, other in zip(outputs, better_outputs, strict=True):
        for expected, result in zip(one, other, strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


def test_a_step_verifies_prints_and_comes_back_from_json():
    graph = mlp(2)
    step = optim.training_step(graph, optim.AdamW(accumulate=2, clip_norm=1.0, master=True))
    step.verify()
    assert Graph.from_json(step.to_json()) == step
    assert Graph.from_text(step.to_text()) == step
    assert optim.training_step(graph, optim.AdamW(accumulate=2, clip_norm=1.0, master=True)) == step


def test_the_loss_graph_is_not_changed_and_its_outputs_and_updates_stay():
    graph = mlp(2, dtype="f64")
    loss = graph.outputs[0].sum()
    seen = graph.state("seen", (), "f64")
    graph.set_update(seen, seen + loss)
    graph.set_outputs([loss, loss * 2.0])
    before = graph.digest()
    step = optim.training_step(graph, optim.SGD(0.0))
    assert graph.digest() == before
    outputs, found = train(step, values(graph).params, batches_of(graph, 3))
    assert all(float(double) == 2 * float(loss) for loss, double in outputs)
    assert float(found["seen"]) == pytest.approx(sum(float(loss) for loss, _ in outputs))


def test_state_names_are_predictable():
    graph = Graph()
    graph.set_outputs([graph.parameter("w", (2,)).sum()])

    def names(optimizer):
        return [n for n in optim.training_step(graph, optimizer).states if n.startswith("w/")]

    assert names(optim.SGD(0.1)) == []
    assert names(optim.SGD(0.1, momentum=0.9)) == ["w/momentum"]
    assert names(optim.Adam()) == ["w/mean", "w/variance"]
    assert names(optim.Adam(amsgrad=True)) == ["w/mean", "w/variance", "w/largest_variance"]
    assert names(optim.Lion()) == ["w/momentum"]
    assert names(optim.Adafactor(accumulate=2)) == ["w/gradient_sum", "w/variance"]


# ------------------------------------------------------------- mistakes

MISTAKES = {
    "negative rate": (lambda: optim.SGD(-0.1), "SGD: learning_rate must be at least 0"),
    "rate that is no number": (lambda: optim.Adam("fast"), "learning_rate is a number"),
    "rate that is a schedule": (lambda: optim.Adam(optim.cosine(9)), "schedule="),
    "infinite rate": (lambda: optim.Adam(float("inf")), "must be finite"),
    "beta of 1": (lambda: optim.Adam(beta1=1.0), r"beta1 must lie in \[0, 1\)"),
    "negative beta": (lambda: optim.AdamW(beta2=-0.1), r"beta2 must lie in \[0, 1\)"),
    "beta of lion": (lambda: optim.Lion(beta2=1.5), "beta2"),
    "negative epsilon": (lambda: optim.Adam(epsilon=-1e-8), "epsilon must be at least 0"),
    "negative decay": (lambda: optim.Lion(weight_decay=-1), "weight_decay"),
    "negative momentum": (lambda: optim.SGD(0.1, momentum=-0.9), "momentum"),
    "dampening": (lambda: optim.SGD(0.1, momentum=0.9, dampening=2.0), "dampening"),
    "nesterov alone": (lambda: optim.SGD(0.1, nesterov=True), "nesterov needs momentum"),
    "growing decay": (lambda: optim.Adafactor(beta2_decay=0.5), "beta2_decay"),
    "low threshold": (lambda: optim.Adafactor(clip_threshold=0.5), "clip_threshold"),
    "norm of 0": (lambda: optim.SGD(0.1, clip_norm=0.0), "clip_norm must be above 0"),
    "negative limit": (lambda: optim.SGD(0.1, clip_value=-1.0), "clip_value"),
    "no run": (lambda: optim.SGD(0.1, accumulate=0), "accumulate must be at least 1"),
    "half a run": (lambda: optim.SGD(0.1, accumulate=1.5), "accumulate is a whole number"),
    "negative multiplier": (lambda: optim.SGD(0.1, multipliers={"a": -1}), "multiplier of 'a'"),
    "multipliers in a list": (lambda: optim.SGD(0.1, multipliers=["a"]), "map names"),
    "schedule": (lambda: optim.SGD(0.1, schedule=lambda s: 1), "from_function"),
    "filter": (lambda: optim.SGD(0.1, decay_filter="bias"), "decay_filter"),
    "master": (lambda: optim.SGD(0.1, master=1), "master is True or False"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_number_is_named(name):
    make, said = MISTAKES[name]
    with pytest.raises(ArgumentError, match=said) as caught:
        make()
    assert caught.value.source.file == __file__


def test_an_unknown_prefix_names_the_nearest_parameter():
    graph = mlp(2)
    with pytest.raises(ArgumentError, match=r"did you mean 'layer0\.weight'"):
        optim.training_step(graph, optim.SGD(0.1, multipliers={"layer0.wieght": 0.5}))
    with pytest.raises(ArgumentError, match="did you mean 'layer1'"):
        optim.training_step(graph, optim.SGD(0.1, multipliers={"layr1": 0.5}))


def test_a_loss_must_be_one_float():
    with pytest.raises(ArgumentError, match=r"must be one float, but it is f32\[4, 5\]"):
        optim.training_step(mlp(2, loss=False), optim.SGD(0.1))


def test_a_step_of_a_step_is_refused():
    step = optim.training_step(mlp(2), optim.SGD(0.1))
    with pytest.raises(ArgumentError, match=r"'layer0.weight' is already updated"):
        optim.training_step(step, optim.SGD(0.1))


def test_what_cannot_be_trained_is_named():
    graph = Graph()
    x, q = graph.input("x", (2, 32)), graph.parameter_q8("q", (32, 3))
    graph.set_outputs([(x @ q).sum()])
    with pytest.raises(ArgumentError, match="'q' is stored as q8"):
        optim.training_step(graph, optim.SGD(0.1))
    with pytest.raises(ArgumentError, match="'x' is input: only parameters"):
        optim.training_step(graph, optim.SGD(0.1), wrt="x")
    with pytest.raises(ArgumentError, match="no parameter to train"):
        optim.training_step(graph, optim.SGD(0.1, multipliers={"q": 0.0}))
    with pytest.raises(ArgumentError, match=r"one of darner\.optim's"):
        optim.training_step(graph, "adam")
    with pytest.raises(darner.UnknownNameError, match="did you mean"):
        optim.training_step(mlp(2), optim.SGD(0.1), wrt="layer0.wait")
