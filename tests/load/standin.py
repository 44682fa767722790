"""A small model that follows the contract of ``darner.models``: enough to load, train, run and save."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

import darner
from darner import nn


@dataclass(frozen=True)
class Chain:
    """Rows of a table through matrices, a norm with running means, and back by the table: a language model of sorts."""

    config: Mapping[str, Any]
    dtype: str = "f32"
    linear: Any = nn.Linear

    prefix: ClassVar[str] = "model."
    tied: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed.weight"}
    ignored: ClassVar[tuple[str, ...]] = ("*.inv_freq",)

    def hidden(self, graph, batch, length, training):
        width, count = self.config["hidden_size"], self.config["vocab_size"]
        tokens = graph.input("tokens", (batch, length), "i32")
        with graph.scope("model"):
            words = nn.Embedding("embed", count, width, self.dtype)
            x = words(tokens)
            for i in range(self.config["layers"]):
                with graph.scope(f"layers.{i}"):
                    x = x + self.linear("q_proj", width, width, bias=False)(x).tanh()
            x = nn.LayerNorm("norm", width)(x)
            flat = x.reshape((batch * length, width))
            flat = nn.BatchNorm("statistics", width)(flat, training=training)
            return words.attend(flat.reshape((batch, length, width)))

    def inference_graph(self, batch, length):
        graph = darner.Graph("chain")
        logits = self.hidden(graph, batch, length, training=False)
        graph.relabel(logits, "logits")
        graph.set_outputs([logits])
        return graph

    def training_graph(self, batch, length):
        graph = darner.Graph("chain.training")
        logits = self.hidden(graph, batch, length, training=True)
        target = graph.input("target", (batch, length, self.config["vocab_size"]), self.dtype)
        graph.set_outputs([(logits - target).square().mean(label="loss")])
        return graph


CONFIG = {"model_type": "chain", "hidden_size": 8, "vocab_size": 11, "layers": 2}


def from_config(config, **options):
    assert config["model_type"] == "chain"
    return Chain(config, **options)


def values(seed=0, dtype=np.float32) -> dict[str, np.ndarray]:
    """What a checkpoint of the model holds."""
    rng = np.random.default_rng(seed)
    shapes = {"model.embed.weight": (11, 8), "model.norm.weight": (8,), "model.norm.bias": (8,)}
    shapes |= {f"model.layers.{i}.q_proj.weight": (8, 8) for i in range(2)}
    shapes |= {f"model.statistics.{name}": (8,) for name in ("weight", "bias", "running_mean")}
    found = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    found["model.statistics.running_var"] = rng.uniform(0.5, 2.0, 8).astype(dtype)
    return found | {"model.statistics.num_batches_tracked": np.array(5, np.int64)}


def logits(found, tokens) -> np.ndarray:
    """What the model computes, in float64."""
    wide = {name: array.astype(np.float64) for name, array in found.items()}
    x = wide["model.embed.weight"][tokens]
    for i in range(2):
        x = x + np.tanh(x @ wide[f"model.layers.{i}.q_proj.weight"].T)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * wide["model.norm.weight"] + wide["model.norm.bias"]
    mean, var = (wide[f"model.statistics.running_{name}"] for name in ("mean", "var"))
    x = (x - mean) / np.sqrt(var + 1e-5)
    x = x * wide["model.statistics.weight"] + wide["model.statistics.bias"]
    return x @ wide["model.embed.weight"].T
