"""Architectures, built from their HuggingFace configurations.

>>> from darner import models
>>> sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
>>> model = models.from_config({"model_type": "llama", **sizes})
>>> g = model.training_graph(batch=2, length=16)
>>> list(g.inputs), list(g.parameters)[:2]
(['tokens', 'labels'], ['model.embed_tokens.weight', 'model.layers.0.input_layernorm.weight'])
"""

import importlib
from collections.abc import Mapping
from typing import Any

from ..graph.errors import ArgumentError, nearest
from .base import Config, Model

ARCHITECTURES: dict[str, str] = {
    "gemma2": "llama:Gemma2",
    "gemma3_text": "llama:Gemma3",
    "llama": "llama:Llama",
    "mistral": "llama:Mistral",
    "phi3": "llama:Phi3",
    "qwen2": "llama:Qwen2",
    "qwen3": "llama:Qwen3",
}
"""Where the architecture of a ``model_type`` is written."""


def architecture(model_type: str) -> type[Model]:
    """The class of a ``model_type``."""
    if model_type not in ARCHITECTURES:
        raise ArgumentError(
            f"there is no architecture '{model_type}'; there are {', '.join(sorted(ARCHITECTURES))}",
            hint=nearest(model_type, ARCHITECTURES),
        )
    module, name = ARCHITECTURES[model_type].split(":")
    found: type[Model] = getattr(importlib.import_module(f".{module}", __name__), name)
    return found


def from_config(config: Mapping[str, Any], **options: Any) -> Model:
    """The model that a ``config.json`` describes; ``dtype`` and ``linear`` are those of ``Model``."""
    if not isinstance(config.get("model_type"), str):
        raise ArgumentError("the configuration has no model_type, which says what it is of")
    return architecture(config["model_type"]).from_config(config, **options)


__all__ = ["ARCHITECTURES", "Config", "Model", "architecture", "from_config"]
