"""Steps of training against PyTorch's optimizers."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from darner import ArgumentError, Graph, optim
from tests.zoo import llama, mlp, values

from .compare import MODELS, PEERS, STEPS, T, assert_same, batches_of, train, trajectory


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PEERS)
def test_ten_steps_equal_those_of_torch(name, model):
    optimizer, make = PEERS[name]
    graph = MODELS[model]()
    batches = batches_of(graph)
    _, found = train(optim.training_step(graph, optimizer), values(graph).params, batches)
    assert_same(found, trajectory(graph, batches, make))
    assert int(found["optimizer/step"]) == STEPS


# With rates as high as 0.5 a model amplifies rounding until ten steps differ; given gradients do not feed it back.
GIVEN_GRADIENTS = {
    **PEERS,
    "adafactor, limited rate": (
        optim.Adafactor(0.5, weight_decay=0.05),
        lambda p: T.Adafactor(p, 0.5, weight_decay=0.05),
    ),
}


@pytest.mark.parametrize("name", GIVEN_GRADIENTS)
def test_the_rule_is_that_of_torch_for_any_shape_and_gradient(name):
    optimizer, make = GIVEN_GRADIENTS[name]
    rng = np.random.default_rng(7)
    shapes = {"scalar": (), "vector": (7,), "matrix": (6, 5), "stack": (2, 3, 4), "thin": (1, 4)}
    graph = Graph()
    terms = [
        (graph.parameter(leaf, shape, "f64") * graph.input(f"d_{leaf}", shape, "f64")).sum()
        for leaf, shape in shapes.items()
    ]
    graph.set_outputs([sum(terms[1:], terms[0])])
    start = {leaf: rng.normal(size=shape) for leaf, shape in shapes.items()}
    batches = [
        {f"d_{leaf}": rng.normal(size=shape) for leaf, shape in shapes.items()}
        for _ in range(STEPS)
    ]
    _, found = train(optim.training_step(graph, optimizer), start, batches)
    leaves = {leaf: torch.tensor(value, requires_grad=True) for leaf, value in start.items()}
    peer = make(list(leaves.values()))
    for batch in batches:
        for leaf, tensor in leaves.items():
            tensor.grad = torch.tensor(batch[f"d_{leaf}"])
        peer.step()
    expected = {leaf: tensor.detach().numpy() for leaf, tensor in leaves.items()}
    assert_same(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_a_model_trained_wholly_by_torch_has_the_same_losses_and_parameters():
    graph = mlp(2, dtype="f64")
    batches, start = batches_of(graph), values(graph).params
    outputs, found = train(optim.training_step(graph, optim.AdamW(0.05)), start, batches)
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in start.items()}
    adamw = torch.optim.AdamW(leaves.values(), 0.05)
    for batch, (loss,) in zip(batches, outputs, strict=True):
        x, labels = torch.tensor(batch["x"]), torch.tensor(batch["labels"].astype(np.int64))
        for layer in range(2):
            x = x.relu() if layer else x
            x = x @ leaves[f"layer{layer}.weight"] + leaves[f"layer{layer}.bias"]
        expected = F.cross_entropy(x, labels)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-10)
        adamw.zero_grad()
        expected.backward()
        adamw.step()
    assert_same(found, {name: leaf.detach().numpy() for name, leaf in leaves.items()})


class LionOfItsPaper:
    """The algorithm as its authors print it, in NumPy."""

    def __init__(self, leaves, rate, beta1, beta2, decay):
        self.leaves, self.numbers = leaves, (rate, beta1, beta2, decay)
        self.means = [np.zeros(leaf.shape) for leaf in leaves]

    def step(self):
        rate, beta1, beta2, decay = self.numbers
        for leaf, mean in zip(self.leaves, self.means, strict=True):
            theta, gradient = leaf.detach().numpy(), leaf.grad.numpy()
            update = np.sign(beta1 * mean + (1 - beta1) * gradient)
            theta -= rate * (update + decay * theta)
            mean[...] = beta2 * mean + (1 - beta2) * gradient


@pytest.mark.parametrize("model", MODELS)
def test_lion_follows_its_paper(model):
    graph = MODELS[model]()
    batches = batches_of(graph)
    lion = optim.Lion(0.003, beta1=0.8, beta2=0.97, weight_decay=0.1)
    _, found = train(optim.training_step(graph, lion), values(graph).params, batches)
    expected = trajectory(
        graph, batches, lambda leaves: LionOfItsPaper(leaves, 0.003, 0.8, 0.97, 0.1)
    )
    assert_same(found, expected)


def test_adafactor_can_take_absolute_steps():
    graph = Graph()
    w = graph.parameter("w", (), "f64")
    graph.set_outputs([w * 2.0])
    plain = optim.Adafactor(0.5, relative_step=False, scale_parameter=False)
    _, found = train(optim.training_step(graph, plain), {"w": np.array(3.0)}, [{}] * 9)
    # The gradient is constant, so each step is of the size of the rate.
    assert float(found["w"]) == pytest.approx(3.0 - 9 * 0.5)


def test_adafactor_keeps_a_row_and_a_column_for_a_matrix():
    graph = mlp(2, dtype="f64")
    states = optim.training_step(graph, optim.Adafactor()).states
    assert states["layer0.weight/row_variance"].shape == (12, 1)
    assert states["layer0.weight/column_variance"].shape == (1, 8)
    assert states["layer0.bias/variance"].shape == (8,)
    assert "layer0.weight/variance" not in states


# ------------------------------------------------------------- clipping


@pytest.mark.parametrize("limit", [0.01, 0.5, 1e3])
def test_clip_norm_is_that_of_torch(limit):
    graph = llama(1, dtype="f64")
    batches = batches_of(graph, 4)
    step = optim.training_step(graph, optim.SGD(0.3, momentum=0.5, clip_norm=limit))
    _, found = train(step, values(graph).params, batches)
    expected = trajectory(
        graph,
        batches,
        lambda p: T.SGD(p, 0.3, momentum=0.5),
        clip=lambda p: torch.nn.utils.clip_grad_norm_(list(p), limit),
    )
    assert_same(found, expected)


def test_clip_value_limits_every_element_before_the_norm():
    graph = mlp(2, dtype="f64")
    batches = batches_of(graph, 4)

    def clip(leaves):
        leaves = list(leaves)
        torch.nn.utils.clip_grad_value_(leaves, 0.02)
        torch.nn.utils.clip_grad_norm_(leaves, 0.05)

    step = optim.training_step(graph, optim.Adam(0.1, clip_value=0.02, clip_norm=0.05))
    _, found = train(step, values(graph).params, batches)
    assert_same(found, trajectory(graph, batches, lambda p: T.Adam(p, 0.1), clip))


# ------------------------------------------------------------- accumulation


@pytest.mark.parametrize("name", ["sgd, dampening", "adam, amsgrad", "adamw", "adafactor"])
def test_accumulated_runs_equal_one_step_of_their_mean(name):
    optimizer, make = PEERS[name]
    optimizer = type(optimizer)(**{**vars(optimizer), "accumulate": 3, "clip_norm": 0.5})
    graph = mlp(2, dtype="f64")
    batches, start = batches_of(graph, 9), values(graph).params
    _, found = train(optim.training_step(graph, optimizer), start, batches)
    # A batch of all rows has the mean loss, so that it is what three batches of a third add up to.
    large = mlp(2, dtype="f64", batch=12)
    joined = [
        {name: np.concatenate([b[name] for b in batches[i : i + 3]]) for name in ("x", "labels")}
        for i in (0, 3, 6)
    ]
    expected = trajectory(
        large, joined, make, lambda p: torch.nn.utils.clip_grad_norm_(list(p), 0.5)
    )
    assert_same(found, expected)
    assert int(found["optimizer/step"]) == 3
    assert int(found["optimizer/accumulated"]) == 0
    assert not found["layer0.weight/gradient_sum"].any()


def test_nothing_but_sums_changes_between_updates():
    graph = mlp(2, dtype="f64")
    optimizer = optim.Adam(0.1, accumulate=3)
    step, start = optim.training_step(graph, optimizer), values(graph).params
    state = {}
    _, found = train(step, start, batches_of(graph, 2), state)
    for name, value in start.items():
        np.testing.assert_array_equal(found[name], value)
        assert not found[f"{name}/mean"].any()
        assert found[f"{name}/gradient_sum"].any()
    assert (int(state["optimizer/step"]), int(state["optimizer/accumulated"])) == (0, 2)
    _, found = train(step, start, batches_of(graph, 1), state)
    assert (found["layer0.weight"] != start["layer0.weight"]).any()


# ------------------------------------------------------------- multipliers and decay


def test_a_frozen_scope_stays_bit_equal_and_costs_nothing():
    graph = llama(2, dtype="f64")
    frozen = optim.AdamW(0.1, multipliers={"layer0": 0.0, "words": 0.0})
    step, start = optim.training_step(graph, frozen), values(graph).params
    _, found = train(step, start, batches_of(graph, 3))
    for name, value in start.items():
        stays = name == "words" or name.startswith("layer0.")
        assert np.array_equal(found[name], value) == stays, name
        assert (f"{name}/mean" in step.states) != stays
    everything = optim.training_step(graph, optim.AdamW(0.1))
    products = [sum("matmul" in node.op.name for node in g.nodes) for g in (step, everything)]
    assert products[0] < products[1]


def test_the_longest_prefix_that_fits_multiplies_the_rate():
    graph = mlp(3, dtype="f64")
    optimizer = optim.SGD(
        0.1, multipliers={"layer*": 0.5, "layer1": 2.0, "layer1.bias": 3.0, "layer2.weight": 0.0}
    )
    step = optim.training_step(graph, optimizer, gradients=True)
    start = values(graph).params
    ((_, *gradients),), found = train(step, start, batches_of(graph, 1))
    factors = {
        "layer0.weight": 0.5,
        "layer0.bias": 0.5,
        "layer1.weight": 2.0,
        "layer1.bias": 3.0,
        "layer2.bias": 0.5,
    }
    assert len(gradients) == len(factors)
    for (name, factor), gradient in zip(factors.items(), gradients, strict=True):
        np.testing.assert_allclose(found[name], start[name] - 0.1 * factor * gradient, rtol=1e-12)


def test_a_scope_is_not_a_prefix_of_longer_words():
    assert optim.SGD(0.1, multipliers={"layer1": 0.0}).multiplier("layer10.weight") == 1.0
    assert optim.SGD(0.1, multipliers={"layer1*": 0.0}).multiplier("layer10.weight") == 0.0
    both = {"layer1": 2.0, "layer1*": 3.0, "layer*": 4.0}
    for multipliers in (both, dict(reversed(both.items()))):
        optimizer = optim.SGD(0.1, multipliers=multipliers)
        names = ("layer1.bias", "layer10.bias", "layer2.bias", "norm")
        assert [optimizer.multiplier(name) for name in names] == [2.0, 3.0, 4.0, 1.0]


@pytest.mark.parametrize("make", [optim.SGD, optim.Adam, optim.AdamW, optim.Lion, optim.Adafactor])
def test_a_decay_filter_leaves_vectors_alone(make):
    graph = mlp(2, dtype="f64")
    batches, start = batches_of(graph, 1), values(graph).params

    def trained(**options):
        return train(optim.training_step(graph, make(0.1, **options)), start, batches)[1]

    plain, filtered, all_decay = (
        trained(weight_decay=0.0),
        trained(weight_decay=0.5, decay_filter=optim.matrices_only),
        trained(weight_decay=0.5),
    )
    for name in start:
        same_as = all_decay if name.endswith("weight") else plain
        np.testing.assert_array_equal(filtered[name], same_as[name])
    if make is not optim.Adam:  # the first step of Adam is as good as the gradient's sign
        assert (plain["layer0.bias"] != all_decay["layer0.bias"]).any()


def test_only_the_parameters_of_wrt_are_trained():
    graph = mlp(2, dtype="f64")
    step = optim.training_step(graph, optim.Adam(), wrt=["layer1.bias"], gradients=True)
    assert [str(leaf.name) for leaf in step.updates if leaf.op.name == "parameter"] == [
        "layer1.bias"
    ]
    assert [node.shape for node in step.outputs] == [(1,), (5,)]


# ------------------------------------------------------------- one's own


def test_a_function_is_an_optimizer():
    def momentum_by_hand(parameter, gradient, velocity, learning_rate, friction=0.1):
        velocity = (1.0 - friction) * velocity + gradient
        return parameter - learning_rate * velocity, velocity

    graph = mlp(2, dtype="f64")
    batches, start = batches_of(graph), values(graph).params
    own = optim.custom(momentum_by_hand, 0.1, defaults={"friction": 0.25}, clip_norm=0.3)
    step = optim.training_step(graph, own)
    assert step.states["layer0.weight/velocity"].shape == (12, 8)
    assert step.states["optimizer/friction"].attrs["init"] == 0.25
    _, found = train(step, start, batches)
    same = optim.training_step(graph, optim.SGD(0.1, momentum=0.75, clip_norm=0.3))
    assert_same(found, {name: train(same, start, batches)[1][name] for name in start})


def test_a_function_without_states_returns_the_parameter_and_may_read_the_step():
    def slower_and_slower(parameter, gradient, step, learning_rate):
        return parameter - learning_rate / step * gradient

    graph = Graph()
    graph.set_outputs([graph.parameter("w", (), "f64") * 1.0])
    step = optim.training_step(graph, optim.custom(slower_and_slower, 0.6))
    _, found = train(step, {"w": np.array(0.0)}, [{}] * 3)
    assert float(found["w"]) == pytest.approx(-0.6 * (1 + 1 / 2 + 1 / 3))


@dataclass(frozen=True)
class RMSProp(optim.Optimizer):
    learning_rate: float = 1e-2
    decay: float = 0.99
    epsilon: float = 1e-8

    def update(self, slot):
        variance = slot.moving_mean("variance", slot.setting("decay"), slot.gradient.square())
        scaled = slot.gradient / (variance.sqrt() + slot.setting("epsilon"))
        return slot.value - slot.learning_rate * scaled


def test_a_subclass_is_an_optimizer():
    graph = llama(1, dtype="f64")
    batches = batches_of(graph, 5)
    step = optim.training_step(graph, RMSProp(0.02, decay=0.9, clip_norm=1.0))
    _, found = train(step, values(graph).params, batches)
    expected = trajectory(
        graph,
        batches,
        lambda p: T.RMSprop(p, 0.02, alpha=0.9),
        lambda p: torch.nn.utils.clip_grad_norm_(list(p), 1.0),
    )
    assert_same(found, expected)


def test_a_rule_that_gives_the_wrong_things_is_named():
    graph = Graph()
    graph.set_outputs([graph.parameter("w", (2,)).sum()])

    def forgets(parameter, gradient, velocity, learning_rate):
        return parameter - learning_rate * gradient

    def sums(parameter, gradient):
        return gradient.sum()

    def shrinks(parameter, gradient, velocity):
        return parameter, velocity.sum()

    cases = {forgets: "has 1 states but gave 0", sums: r"gave f32\[\] for 'w'", shrinks: "velocity"}
    for rule, said in cases.items():
        with pytest.raises(ArgumentError, match=said):
            optim.training_step(graph, optim.custom(rule, 0.1))
    with pytest.raises(ArgumentError, match="names the parameter"):
        optim.custom(lambda *all: all, 0.1)
    with pytest.raises(ArgumentError, match="no number 'frictoin'"):
        optim.custom(forgets, 0.1, defaults={"frictoin": 1.0})
    with pytest.raises(ArgumentError, match="learning_rate is a number"):
        optim.training_step(graph, optim.Optimizer())
