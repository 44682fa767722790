"""Linear layers, embeddings and low-rank changes against PyTorch."""

import numpy as np
import pytest
import torch

import darner
from darner import nn
from tests.nn.compare import assert_close, assert_same, randomised


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 7), (7,), (2, 3, 7)])
def test_linear(shape, bias):
    module = randomised(torch.nn.Linear(7, 4, bias=bias))
    assert_same(nn.Linear("fc", 7, 4, bias=bias), module, shape, "fc.")


class InOut(torch.nn.Module):
    """The weight the other way round, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(7, 4))
        self.bias = torch.nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x @ self.weight + self.bias


def test_linear_stored_the_other_way_round():
    assert_same(nn.Linear("", 7, 4, stored="in_out"), randomised(InOut()), (5, 7))


class LowRank(torch.nn.Module):
    """A linear layer and its low-rank change, by hand."""

    def __init__(self, inputs, outputs, rank, alpha, bias):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = torch.nn.Parameter(torch.zeros(outputs)) if bias else None
        self.lora_A = torch.nn.Linear(inputs, rank, bias=False)
        self.lora_B = torch.nn.Linear(rank, outputs, bias=False)
        self.scale = alpha / rank

    def forward(self, x):
        y = torch.nn.functional.linear(x, self.weight, self.bias)
        return y + self.scale * self.lora_B(self.lora_A(x))


@pytest.mark.parametrize("bias", [True, False])
def test_low_rank_change(bias):
    layer = nn.LoRALinear("q", 7, 4, bias=bias, rank=2, alpha=3.0)
    assert_same(layer, randomised(LowRank(7, 4, 2, 3.0, bias)), (5, 7), "q.")


def test_low_rank_changes_go_where_names_fit_and_change_nothing_at_first():
    lora = nn.LoRA(rank=2, alpha=5.0, targets=("*q_proj",))
    layers = [lora.linear(name, 6, 6, stored="in_out") for name in ("q_proj", "v_proj")]
    assert layers[0] == nn.LoRALinear("q_proj", 6, 6, stored="in_out", rank=2, alpha=5.0)
    assert layers[1] == nn.Linear("v_proj", 6, 6, stored="in_out")
    graph = darner.Graph("tuned")
    x = graph.input("x", (3, 6))
    graph.set_outputs([layers[0](x), nn.Linear("q_proj", 6, 6, stored="in_out")(x)])
    assert sorted(graph.parameters) == [
        "q_proj.bias",
        "q_proj.lora_A.weight",
        "q_proj.lora_B.weight",
        "q_proj.weight",
    ]
    with darner.build_inference_session(graph) as session:
        tuned, plain = session.run({"x": np.ones((3, 6), np.float32)}).values()
        np.testing.assert_array_equal(tuned, plain)
        assert session.parameters()["q_proj.lora_A.weight"].std() > 0.1


def test_training_a_low_rank_change_leaves_the_rest_as_it_is():
    lora = nn.LoRA(rank=2, targets=("fc",))
    graph = darner.Graph("tuned")
    y = lora.linear("fc", 6, 3)(graph.input("x", (4, 6)))
    graph.set_outputs([y.square().mean()])
    optimizer = darner.optim.SGD(0.1, multipliers=lora.frozen(graph))
    with darner.build_session(graph, optimizer=optimizer) as session:
        before = dict(session.parameters())
        session.set_input("x", np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32))
        for _ in range(2):
            session.step()
        moved = {
            name for name, value in session.parameters().items() if (value != before[name]).any()
        }
    assert moved == {"fc.lora_A.weight", "fc.lora_B.weight"}


def test_embedding_and_its_use_the_other_way_round():
    rng = np.random.default_rng(0)
    tokens, cotangent = rng.integers(0, 9, (2, 5)), rng.normal(size=(2, 5, 9))
    table = torch.from_numpy(rng.normal(size=(9, 4))).requires_grad_()
    scores = torch.tanh(torch.nn.functional.embedding(torch.from_numpy(tokens), table)) @ table.T
    (scores * torch.from_numpy(cotangent)).sum().backward()

    graph = darner.Graph("tied")
    words = nn.Embedding("wte", 9, 4, "f64")
    y = words.attend(words(graph.input("tokens", (2, 5), "i32")).tanh())
    graph.set_outputs([(y * graph.constant(cotangent)).sum(), y])
    assert list(graph.parameters) == ["wte.weight"]
    with darner.build_session(graph) as session:
        session.parameters()["wte.weight"] = table.detach().numpy()
        session.run({"tokens": tokens.astype(np.int32)})
        assert_close(session.read_output_by_index(1), scores)
        assert_close(session.gradients()["wte.weight"], table.grad)


def test_linear_starts_as_in_pytorch():
    graph = darner.Graph("start")
    graph.set_outputs([nn.Linear("fc", 64, 400)(graph.input("x", (1, 64)))])
    with darner.build_inference_session(graph) as session:
        for value in session.parameters().values():
            assert np.abs(value).max() <= 0.125
            assert value.std() == pytest.approx(0.125 / np.sqrt(3), rel=0.1)


def test_called_twice_it_uses_the_same_weight():
    graph = darner.Graph("twice")
    fc = nn.Linear("fc", 4, 4)
    with graph.scope("block"):
        fc(fc(graph.input("x", (1, 4))))
    assert list(graph.parameters) == ["block.fc.weight", "block.fc.bias"]


def test_a_layer_takes_the_element_type_of_its_operand():
    graph = darner.Graph("narrow")
    y = nn.Linear("fc", 4, 2)(graph.input("x", (1, 4), "bf16"))
    assert [str(node.dtype) for node in (y, *graph.parameters.values())] == ["bf16"] * 3


def test_mistakes_are_refused_in_the_layers_terms():
    graph = darner.Graph("wrong")
    x = graph.input("x", (2, 5))
    with (
        graph.scope("block"),
        pytest.raises(
            darner.ShapeError, match=r"Linear 'block.fc' takes 4 on axis -1, but x is f32\[2, 5\]"
        ),
    ):
        nn.Linear("fc", 4, 2)(x)
    nn.Linear("fc", 5, 2)(x)
    with pytest.raises(darner.ShapeError, match=r"'fc.weight' is the parameter f32\[2, 5\]"):
        nn.Linear("fc", 5, 3)(x)
    with pytest.raises(
        darner.ArgumentError, match=r"Linear 'fc': outputs is a positive whole number"
    ):
        nn.Linear("fc", 5, True)
    with pytest.raises(darner.ArgumentError, match="stored is 'out_in' or 'in_out', got 'rows'"):
        nn.Linear("fc", 5, 2, stored="rows")
    with pytest.raises(darner.ArgumentError, match="rank is a positive whole number, got 0"):
        nn.LoRALinear("fc", 5, 2, rank=0)
    with pytest.raises(darner.ArgumentError, match="count is a positive whole number, got -1"):
        nn.Embedding("wte", -1, 2)
