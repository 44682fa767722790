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
    "BertForMaskedLM": "bert:BertForMaskedLM",
    "BertForSequenceClassification": "bert:BertForSequenceClassification",
    "UNet2DConditionModel": "unet:UNet",
    "bert": "bert:Bert",
    "clip": "clip:CLIP",
    "gemma2": "llama:Gemma2",
    "gemma3_text": "llama:Gemma3",
    "gpt2": "gpt2:GPT2",
    "llama": "llama:Llama",
    "mistral": "llama:Mistral",
    "phi3": "llama:Phi3",
    "qwen2": "llama:Qwen2",
    "qwen3": "llama:Qwen3",
    "resnet": "resnet:ResNet",
    "resnet_torchvision": "resnet:TorchvisionResNet",
    "smolvla": "smolvla:SmolVLA",
    "smolvlm": "smolvlm:SmolVLM",
    "vit": "vit:ViT",
    "whisper": "whisper:Whisper",
}
"""Where an architecture is written: by its ``model_type``, and by its class where a type has several."""


def architecture(name: str) -> type[Model]:
    """The class of a ``model_type``, or of one of the ``architectures`` of a configuration."""
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ArgumentError(
            f"there is no architecture '{name}'",
            hint=nearest(str(name), sorted(ARCHITECTURES), "there are"),
        )
    module, found = ARCHITECTURES[name].split(":")
    made: type[Model] = getattr(importlib.import_module(f".{module}", __name__), found)
    return made


def from_config(config: Mapping[str, Any], **options: Any) -> Model:
    """The model that a ``config.json`` describes; ``dtype`` and ``linear`` are those of ``Model``.

    Those of diffusers have no ``model_type``, but a ``_class_name``, and those of lerobot a ``type``.
    """
    if not isinstance(config, Mapping):
        raise ArgumentError(f"a configuration is a table, got {type(config).__name__}")
    kind = config.get("model_type") or config.get("_class_name") or config.get("type")
    if not isinstance(kind, str):
        raise ArgumentError("the configuration has no model_type, which says what it is of")
    classes = config.get("architectures")
    classes = classes if isinstance(classes, list | tuple) else ()
    named = [name for name in classes if isinstance(name, str) and name in ARCHITECTURES]
    return architecture(named[0] if named else kind).from_config(config, **options)


__all__ = ["ARCHITECTURES", "Config", "Model", "architecture", "from_config"]
