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

from ..graph import dtypes
from ..graph.errors import ArgumentError, nearest
from ..io.reading import physical_memory, shown
from .base import Config, Model
from .fields import as_table

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
            f"there is no architecture {shown(name)}",
            hint=nearest(str(name)[:100], sorted(ARCHITECTURES), "there are"),
        )
    module, found = ARCHITECTURES[name].split(":")
    made: type[Model] = getattr(importlib.import_module(f".{module}", __name__), found)
    return made


def from_config(
    config: Mapping[str, Any], *, limited: bool = True, dtype: str = "f32", **options: Any
) -> Model:
    """The model that a ``config.json`` describes; ``dtype`` and ``linear`` are those of ``Model``.

    Those of diffusers have no ``model_type``, but a ``_class_name``, and those of lerobot a ``type``.

    Args:
        config: what it says.
        limited: refuse a model whose parameters are more than this machine's memory holds.
        dtype: of parameters and arithmetic.
        options: those of ``Model``.

    Raises:
        ArgumentError: the architecture is not known, a field is not what it may be, or the model is too large.
    """
    table = as_table("the configuration", config)
    kind = table.get("model_type") or table.get("_class_name") or table.get("type")
    if not isinstance(kind, str):
        raise ArgumentError("the configuration has no model_type, which says what it is of")
    given = table.get("architectures")
    several = given if isinstance(given, list | tuple) else ()
    named = [name for name in several if isinstance(name, str) and name in ARCHITECTURES]
    made = architecture(named[0] if named else kind).from_config(table, dtype=dtype, **options)
    if limited:
        _check_memory(made)
    return made


def _check_memory(model: Model) -> None:
    """Refuse parameters that no session on this machine could hold."""
    count, memory = model.config.parameter_count, physical_memory()
    size = count * dtypes.dtype(model.dtype).numpy.itemsize
    if size > memory:
        raise ArgumentError(
            f"the configuration asks for about {count:,} parameters, {_bytes(size)} in {model.dtype}, and this machine has "
            f"{_bytes(memory)} of memory",
            hint="check its sizes; to look at the graph alone, limited=False",
        )


def _bytes(count: int) -> str:
    for unit, size in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6)):
        if count >= size:
            return (
                f"{count // size:,} {unit}" if count >= 100 * size else f"{count / size:.1f} {unit}"
            )
    return f"{count:,} bytes"


__all__ = ["ARCHITECTURES", "Config", "Model", "architecture", "from_config"]
