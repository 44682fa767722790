"""Models written here in PyTorch, for architectures that transformers does not have, with what ``parity`` asks of a model."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


class Config(dict):
    """A ``config.json`` that can be written."""

    _attn_implementation = None

    def save_pretrained(self, folder):
        (Path(folder) / "config.json").write_text(json.dumps(self))


class Peer(torch.nn.Module):
    """A module of a ``Config``, whose checkpoint has the names of its state."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def save_pretrained(self, folder):
        self.config.save_pretrained(folder)
        held = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(held, Path(folder) / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder, attn_implementation, output_loading_info):
        config = Config(json.loads((Path(folder) / "config.json").read_text()))
        made = cls(config)
        report = made.load_state_dict(load_file(Path(folder) / "model.safetensors"), strict=False)
        return made, {"missing": report.missing_keys, "unexpected": report.unexpected_keys}


def attention(q, k, v, visible=None):
    """(batch, length, heads, width) attended in the plain way; keys and values may have fewer heads."""
    shared = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(shared, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
