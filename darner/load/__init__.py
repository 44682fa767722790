"""Reading and writing HuggingFace model folders.

Modules:

    files             tensors of safetensors files by name, read when they are looked at
    hub               folders, and models of the hub
    texts             configurations
    conversions       which element types become which
    matching          which tensor fills which parameter; ``listing`` tells what does not fit
    loading           weights into sessions
    pretrained_model  a model with its weights
    saving            folders that others load
    adapters          low-rank changes, as PEFT saves them
"""

from .adapters import Adapter, adapter, merged, save_adapter
from .files import SafeTensorsModel, TensorInfo, Weights, weights
from .hub import HubError, folder
from .loading import load
from .matching import Match, MismatchError, match
from .pretrained_model import Pretrained, pretrained
from .saving import save
from .texts import config, generation_config

__all__ = [
    "Adapter",
    "HubError",
    "Match",
    "MismatchError",
    "Pretrained",
    "SafeTensorsModel",
    "TensorInfo",
    "Weights",
    "adapter",
    "config",
    "folder",
    "generation_config",
    "load",
    "match",
    "merged",
    "pretrained",
    "save",
    "save_adapter",
    "weights",
]
