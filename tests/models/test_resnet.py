"""ResNet against transformers and against torchvision's network, written out here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification

import darner
from darner import models
from darner.models import resnet
from tests.models import parity

SIZES = {"batch": 3, "image_size": (33, 40)}
KINDS = {
    "basic": {"layer_type": "basic", "hidden_sizes": [8, 12], "depths": [2, 1]},
    "bottleneck": {"layer_type": "bottleneck", "hidden_sizes": [16, 24], "depths": [1, 2]},
    "early": {
        "layer_type": "bottleneck",
        "hidden_sizes": [16, 16],
        "depths": [1, 1],
        "downsample_in_first_stage": True,
        "downsample_in_bottleneck": True,
        "hidden_act": "gelu",
    },
}


def small(kind):
    config = ResNetConfig(embedding_size=8, num_labels=5, **KINDS[kind])
    return parity.build(ResNetForImageClassification, config)


def images(seed=1):
    rng = np.random.default_rng(seed)
    return {"pixels": rng.normal(size=(3, 3, 33, 40)), "labels": rng.integers(0, 5, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind):
    hf_model = small(kind)
    parity.check_logits(hf_model, parity.model_of(hf_model), images(), sizes=SIZES)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(kind):
    hf_model = small(kind)
    parity.check_gradients(hf_model, parity.model_of(hf_model), images(), sizes=SIZES)


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_saved(kind, tmp_path):
    hf_model = small(kind)
    model = parity.model_of(hf_model)
    assert isinstance(model, resnet.ResNet)
    parity.check_saved(hf_model, model, images(), tmp_path, sizes=SIZES)


# --------------------------------------------------------------------------- training


def test_running_statistics_and_weights_after_three_steps():
    """SGD in both, then the statistics in inference, by a session that shares them."""
    hf_model = small("basic")
    model = parity.model_of(hf_model)
    weights = parity.weights_of(hf_model)
    hf_model.double().train()
    descent = torch.optim.SGD(hf_model.parameters(), lr=0.05)
    twice = replace(model, dtype="f64")
    with darner.build_session(
        twice.training_graph(**SIZES), optimizer=darner.optim.SGD(0.05)
    ) as session:
        parity.copy_weights(session, weights, model)
        for seed in range(3):
            batch = images(seed)
            descent.zero_grad()
            loss = parity.cross_entropy(hf_model, parity.tensors(batch, "f64"))
            loss.backward()
            descent.step()
            session.run(parity.arrays(batch, "f64"))
            assert session.read_loss() == pytest.approx(loss.item(), rel=1e-9)
        held = {**dict(session.parameters()), **dict(session.state())}
        wanted = parity.weights_of(hf_model)
        for name, value in wanted.items():
            parity.assert_close(held[name], value, 1e-9, name)
        assert held["resnet.embedder.embedder.normalization.num_batches_tracked"] == 3
        with darner.build_inference_session(
            twice.inference_graph(**SIZES), share=session
        ) as served:
            batch = images(9)
            served.run({"pixels": batch["pixels"]})
            logits = parity.call(hf_model.eval(), parity.tensors(batch, "f64")).logits
            parity.assert_close(served.output("logits"), logits.detach().numpy(), 1e-9, "logits")


# --------------------------------------------------------------------------- torchvision's names


class Block(torch.nn.Module):
    """A block as torchvision's: ``conv1``, ``bn1``, ... and ``downsample``; the second of three convolutions strides."""

    def __init__(self, inputs, width, stride, kind):
        super().__init__()
        self.layers = 2 if kind == "basic" else 3
        narrow = width if kind == "basic" else width // 4
        sizes = {"basic": (3, 3), "bottleneck": (1, 3, 1)}[kind]
        widths = [inputs, *[narrow] * (self.layers - 1), width]
        strides = (stride, 1) if kind == "basic" else (1, stride, 1)
        for i, size in enumerate(sizes):
            conv = torch.nn.Conv2d(
                widths[i], widths[i + 1], size, strides[i], padding=size // 2, bias=False
            )
            setattr(self, f"conv{i + 1}", conv)
            setattr(self, f"bn{i + 1}", torch.nn.BatchNorm2d(widths[i + 1]))
        self.downsample = None
        if stride != 1 or inputs != width:
            conv = torch.nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.downsample = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(width))

    def forward(self, x):
        y = x
        for i in range(1, self.layers + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = y.relu() if i < self.layers else y
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class Torchvision(torch.nn.Module):
    """The network as torchvision has it."""

    def __init__(self, widths, depths, kind, classes, stem):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, stem, 7, 2, padding=3, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(stem)
        self.stages = len(widths)
        for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
            blocks = []
            for i in range(depth):
                blocks.append(Block(stem, width, 2 if stage and not i else 1, kind))
                stem = width
            setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*blocks))
        self.fc = torch.nn.Linear(stem, classes)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_torchvision(kind):
    """Logits in inference, and the loss and its gradients in training."""
    torch.manual_seed(0)
    widths, depths = (8, 16), (1, 2)
    theirs = Torchvision(widths, depths, kind, 5, stem=8).double()
    for name, buffer in theirs.named_buffers():
        if name.endswith(("mean", "var")):
            buffer.add_(0.3 * torch.rand_like(buffer))
    model = models.from_config(
        {
            "model_type": "resnet_torchvision",
            "embedding_size": 8,
            "hidden_sizes": list(widths),
            "depths": list(depths),
            "layer_type": kind,
            "num_labels": 5,
        },
        dtype="f64",
    )
    weights = {name: value.detach().numpy() for name, value in theirs.state_dict().items()}
    batch = images()
    wanted = theirs.eval()(torch.from_numpy(batch["pixels"]))
    with darner.build_inference_session(model.inference_graph(**SIZES)) as session:
        parity.copy_weights(session, weights, model)
        session.run({"pixels": batch["pixels"]})
        parity.assert_close(session.output("logits"), wanted.detach().numpy(), 1e-9, "logits")
    logits = theirs.train()(torch.from_numpy(batch["pixels"]))
    loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch["labels"]))
    loss.backward()
    with darner.build_session(model.training_graph(**SIZES)) as session:
        parity.copy_weights(session, weights, model)
        session.run(parity.arrays(batch, "f64"))
        assert session.read_loss() == pytest.approx(loss.item(), rel=1e-9)
        found = session.gradients()
    for name, parameter in theirs.named_parameters():
        parity.assert_close(found[name], parameter.grad.numpy(), 1e-8, name)


@pytest.mark.parametrize(
    ("depth", "count"),
    [(18, 11689512), (34, 21797672), (50, 25557032), (101, 44549160), (152, 60192808)],
)
def test_the_usual_depths_have_as_many_parameters_as_published(depth, count):
    model = resnet.TorchvisionResNet(resnet.TorchvisionResNetConfig.of_depth(depth))
    graph = model.inference_graph(batch=1)
    assert sum(node.type.size for node in graph.parameters.values()) == count
    assert graph.outputs[0].shape == (1, 1000)


# --------------------------------------------------------------------------- configurations


def test_classes_are_counted_by_their_names():
    found = {"model_type": "resnet", "id2label": {"0": "cat", "1": "dog", "2": "eel"}, "dtype": "x"}
    config = models.from_config(found).config
    assert config.num_labels == 3
    written = config.to_hf()
    assert written["id2label"] == found["id2label"]
    assert written["dtype"] == "x"
    assert "num_labels" not in written
    fewer = replace(config, num_labels=2).to_hf()
    assert fewer["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    assert models.from_config({"model_type": "resnet"}).config.num_labels == 2


def test_mistakes_are_named():
    with pytest.raises(
        darner.ArgumentError, match="layer_type is 'basic' or 'bottleneck', got 'x'"
    ):
        resnet.ResNetConfig(layer_type="x")
    with pytest.raises(darner.ArgumentError, match="1 hidden_sizes, but depths of 4 stages"):
        resnet.ResNetConfig(hidden_sizes=(64,))
    with pytest.raises(darner.ArgumentError, match="no usual ResNet-19; there are 18, 34, 50"):
        resnet.ResNetConfig.of_depth(19)
    alone = resnet.ResNet(resnet.ResNetConfig.of_depth(18, num_labels=1))
    with pytest.raises(darner.ArgumentError, match="a classification of one class has no loss"):
        alone.training_graph(batch=2, image_size=32)


def test_narrow_models_take_pixels_in_f32():
    model = resnet.ResNet(resnet.ResNetConfig.of_depth(18), dtype="bf16")
    graph = model.training_graph(batch=2, image_size=32)
    assert str(graph.inputs["pixels"].dtype) == "f32"
    assert {str(node.dtype) for node in graph.parameters.values()} == {"bf16"}
