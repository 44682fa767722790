"""ResNet: deep convolutional networks whose blocks add to what comes in.

>>> from darner.models.resnet import ResNet, ResNetConfig
>>> model = ResNet(ResNetConfig.of_depth(18, num_labels=10))
>>> g = model.inference_graph(batch=1, image_size=64)
>>> g.outputs[0].shape, sum(node.type.size for node in g.parameters.values())
((1, 10), 11181642)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from .. import nn
from ..graph.errors import ArgumentError
from ..graph.graph import Graph
from ..graph.node import Node
from .base import Config, LabelledConfig, Model
from .images import finish, finish_training, pixels

REDUCTION = 4
"""How much narrower a bottleneck is than what its block gives."""


@dataclass(frozen=True, kw_only=True)
class ResNetConfig(LabelledConfig):
    """Sizes of a ResNet, as HuggingFace has them.

    Attributes:
        num_channels: of the images.
        embedding_size: channels of the first convolution.
        hidden_sizes: channels that each stage gives.
        depths: blocks of each stage.
        layer_type: "basic", two convolutions of 3 x 3 a block, or "bottleneck", one between two of 1 x 1.
        hidden_act: after the first convolution and after each block.
        downsample_in_first_stage: whether the first stage halves height and width, as the others do.
        downsample_in_bottleneck: whether the first convolution of a bottleneck does that, instead of the second.
    """

    model_type: ClassVar[str] = "resnet"
    architecture: ClassVar[str] = "ResNetForImageClassification"

    num_channels: int = 3
    embedding_size: int = 64
    hidden_sizes: tuple[int, ...] = (256, 512, 1024, 2048)
    depths: tuple[int, ...] = (3, 4, 6, 3)
    layer_type: str = "bottleneck"
    hidden_act: str = "relu"
    downsample_in_first_stage: bool = False
    downsample_in_bottleneck: bool = False

    @property
    def layers(self) -> int:
        """How many layers it has."""
        return sum(self.depths)

    @property
    def parameter_count(self) -> int:
        """About how many parameters it has."""
        narrow = REDUCTION if self.layer_type == "bottleneck" else 1
        total = self.hidden_sizes[-1] * self.num_labels
        for width, depth in zip(self.hidden_sizes, self.depths, strict=True):
            inner = width // narrow
            total += depth * (9 * inner**2 + (2 * width * inner if narrow > 1 else 9 * width**2))
        return total

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_type not in ("basic", "bottleneck"):
            raise ArgumentError(f"layer_type is 'basic' or 'bottleneck', got {self.layer_type!r}")
        if len(self.hidden_sizes) != len(self.depths):
            raise ArgumentError(
                f"there are {len(self.hidden_sizes)} hidden_sizes, but depths of {len(self.depths)} stages"
            )

    @classmethod
    def of_depth(cls, depth: int, **changes: Any) -> Self:
        """The usual ResNet-18, 34, 50, 101 or 152, of 1000 classes unless ``changes`` say otherwise."""
        if depth not in DEPTHS:
            known = ", ".join(map(str, DEPTHS))
            raise ArgumentError(f"there is no usual ResNet-{depth}; there are {known}")
        kind = "basic" if depth < 50 else "bottleneck"
        wider = 1 if kind == "basic" else REDUCTION
        sizes = tuple(wider * size for size in (64, 128, 256, 512))
        usual = {"hidden_sizes": sizes, "depths": DEPTHS[depth], "layer_type": kind}
        return cls(**{**usual, "num_labels": 1000, **changes})


DEPTHS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks of each stage by the number of layers."""


class TorchvisionResNetConfig(ResNetConfig):
    """The same, of a checkpoint with torchvision's names."""

    model_type: ClassVar[str] = "resnet_torchvision"
    architecture: ClassVar[str] = "ResNet"


@dataclass(frozen=True)
class Names:
    """How a checkpoint calls the parts: pairs are a convolution and the norm behind it."""

    stem: tuple[str, str]
    block: str
    layer: tuple[str, str]
    shortcut: tuple[str, str]
    head: str
    first: int
    """The number of the first stage and the first layer of a block."""


HUGGINGFACE = Names(
    stem=("resnet.embedder.embedder.convolution", "resnet.embedder.embedder.normalization"),
    block="resnet.encoder.stages.{stage}.layers.{block}",
    layer=("layer.{layer}.convolution", "layer.{layer}.normalization"),
    shortcut=("shortcut.convolution", "shortcut.normalization"),
    head="classifier.1",
    first=0,
)
TORCHVISION = Names(
    stem=("conv1", "bn1"),
    block="layer{stage}.{block}",
    layer=("conv{layer}", "bn{layer}"),
    shortcut=("downsample.0", "downsample.1"),
    head="fc",
    first=1,
)


@dataclass(frozen=True)
class ResNet(Model):
    """A ResNet with a classifier, under HuggingFace's names.

    >>> list(ResNet(ResNetConfig.of_depth(50)).inference_graph(batch=1).parameters)[0]
    'resnet.embedder.embedder.convolution.weight'
    """

    config: ResNetConfig

    config_class: ClassVar[type[Config]] = ResNetConfig
    prefix: ClassVar[str] = "resnet."
    names: ClassVar[Names] = HUGGINGFACE

    def inference_graph(self, batch: int = 1, image_size: int | Sequence[int] = 224) -> Graph:
        """``pixels`` (batch, channels, height, width) to ``logits`` (batch, classes), by the running statistics."""
        graph = Graph(f"{self.config.model_type}.inference")
        return finish(graph, logits=self._logits(graph, batch, image_size, training=False))

    def training_graph(self, batch: int = 1, image_size: int | Sequence[int] = 224) -> Graph:
        """``pixels`` and ``labels`` (batch,) to the loss and the logits; the running statistics follow the batches."""
        graph = Graph(f"{self.config.model_type}.training")
        logits = self._logits(graph, batch, image_size, training=True)
        return finish_training(graph, logits, batch)

    def _logits(
        self, graph: Graph, batch: int, image_size: int | Sequence[int], training: bool
    ) -> Node:
        config, names = self.config, self.names
        x = pixels(graph, batch, config.num_channels, image_size, self.dtype)
        x = _normed(names.stem, x, config.embedding_size, 7, 2, training)
        x = nn.MaxPool2d(3, stride=2, padding=1)(nn.activate(config.hidden_act, x))
        for stage, (width, depth) in enumerate(
            zip(config.hidden_sizes, config.depths, strict=True)
        ):
            for block in range(depth):
                halves = block == 0 and (stage > 0 or config.downsample_in_first_stage)
                with graph.scope(names.block.format(stage=stage + names.first, block=block)):
                    x = self._block(x, width, 2 if halves else 1, training)
        x = nn.GlobalAvgPool()(x)
        return self.linear(names.head, config.hidden_sizes[-1], config.num_labels)(x)

    def _block(self, x: Node, width: int, stride: int, training: bool) -> Node:
        """What comes in, plus two or three convolutions of it."""
        y = x
        layers = self._layers(width, stride)
        for layer, (outputs, kernel, step) in enumerate(layers):
            pair = [name.format(layer=layer + self.names.first) for name in self.names.layer]
            y = _normed(pair, y.relu() if layer else y, outputs, kernel, step, training)
        if x.shape[1] != width or stride != 1:
            x = _normed(self.names.shortcut, x, width, 1, stride, training)
        return nn.activate(self.config.hidden_act, y + x)

    def _layers(self, width: int, stride: int) -> list[tuple[int, int, int]]:
        """Channels, kernel and stride of each convolution of a block."""
        if self.config.layer_type == "basic":
            return [(width, 3, stride), (width, 3, 1)]
        narrow = width // REDUCTION
        first, second = (stride, 1) if self.config.downsample_in_bottleneck else (1, stride)
        return [(narrow, 1, first), (narrow, 3, second), (width, 1, 1)]


@dataclass(frozen=True)
class TorchvisionResNet(ResNet):
    """A ResNet under torchvision's names: ``conv1.weight``, ``layer1.0.bn1.bias``, ``fc.weight``.

    >>> config = TorchvisionResNetConfig.of_depth(50)
    >>> list(TorchvisionResNet(config).inference_graph(batch=1).parameters)[3]
    'layer1.0.conv1.weight'
    """

    config_class: ClassVar[type[Config]] = TorchvisionResNetConfig
    prefix: ClassVar[str] = ""
    names: ClassVar[Names] = TORCHVISION


def _normed(
    names: Sequence[str], x: Node, outputs: int, kernel: int, stride: int, training: bool
) -> Node:
    """A convolution that keeps or divides height and width, without a bias, and the norm behind it."""
    # What goes back through a convolution is as large as what comes: He's rule for its outputs.
    start = f"normal({math.sqrt(2.0 / (outputs * kernel * kernel))!r})"
    conv = nn.Conv2d(
        names[0],
        int(x.shape[1]),
        outputs,
        kernel,
        stride,
        padding=kernel // 2,
        bias=False,
        init=start,
    )
    return nn.BatchNorm(names[1], outputs)(conv(x), training=training)
