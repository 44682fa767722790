"""Files of a model's folder damaged at random, byte by byte and value by value: each is read, or refused by an error of darner's own."""

import copy
import json
import math
import random

import numpy as np
import pytest

import darner
from darner import DarnerError, load, models, nn
from darner.load.loading import said
from darner.load.matching import match
from darner.session.checkpoint import Checkpoint, load_checkpoint, save_checkpoint

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
VALUES = [
    *(0, -1, 1, 10**9, 10**12, 10**400, 1.5, 1e308, math.nan, math.inf, True, None, "", "x", "../x"),
    *("\0", "\ud800", "a" * 5000, [], [0], [[]], {}, {"a": 1}, [None] * 3),
]  # fmt: skip


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    model = models.from_config({"model_type": "llama", **SIZES})
    config = {"model_type": "llama", "rope_scaling": ROPE, **SIZES}
    graph = model.inference_graph(length=4)
    with darner.build_inference_session(graph, device="reference") as session:
        load.save(root / "one", config, session.parameters())
        load.save(root / "many", config, session.parameters(), max_shard=20_000)
    learned = {f"m.q_proj.lora_{which}.weight": np.ones((2, 2), np.float32) for which in "AB"}
    load.save_adapter(root / "adapter", learned, nn.LoRA(rank=2, alpha=4.0))
    checkpoint = Checkpoint({"w": np.ones((3, 2))}, {"w/mean": np.zeros(6)}, {"a": "b"})
    save_checkpoint(root / "checkpoint", checkpoint)
    return root


def read_model(folder):
    found = load.pretrained(folder)
    graph = found.model.inference_graph(length=4)
    wanted = {name: leaf.type for name, leaf in graph.parameters.items()}
    match(found.weights, wanted, **said(found.model))


def read_all(weights):
    return {name: weights[name] for name in weights}


READERS = {
    "one/config.json": lambda root: read_model(root / "one"),
    "one/model.safetensors": lambda root: read_all(load.weights(root / "one")),
    "many/model.safetensors.index.json": lambda root: read_all(load.weights(root / "many")),
    "adapter/adapter_config.json": lambda root: load.adapter(root / "adapter"),
    "adapter/adapter_model.safetensors": lambda root: read_all(
        load.adapter(root / "adapter").weights
    ),
    "checkpoint": lambda root: load_checkpoint(root / "checkpoint"),
}


def places(value, path=()):
    """Where values are in JSON."""
    if path:
        yield path
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield from places(value[key], (*path, key))


def changed_values(text, rng):
    """JSON with a few values that are others, or are gone."""
    table = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        choices = list(places(table))
        if not choices:
            break
        *path, last = rng.choice(choices)
        inner = table
        for key in path:
            inner = inner[key]
        if rng.random() < 0.2 and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = copy.deepcopy(rng.choice(VALUES))
    return json.dumps(table).encode()


def changed_bytes(content, rng):
    """Bytes cut off, or a few that are others, at the beginning more often than elsewhere."""
    if rng.random() < 0.2:
        return content[: rng.randrange(len(content))]
    damaged = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        most = len(damaged) if rng.random() < 0.5 else min(len(damaged), 300)
        damaged[rng.randrange(most)] = rng.randrange(256)
    return bytes(damaged)


def damaged(name, content, rng):
    if rng.random() < 0.3:
        return changed_bytes(content, rng)
    if name.endswith(".json"):
        return changed_values(content, rng)
    length = int.from_bytes(content[:8], "little")
    header = changed_values(content[8 : 8 + length], rng)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


@pytest.mark.parametrize("name", READERS)
def test_whatever_a_file_holds_it_is_read_or_refused(saved, name):
    path, rng = saved / name, random.Random(name)
    whole, messages = path.read_bytes(), []
    try:
        for _ in range(150):
            path.write_bytes(damaged(name, whole, rng))
            try:
                READERS[name](saved)
            except DarnerError as error:
                messages.append(str(error))
    finally:
        path.write_bytes(whole)
    READERS[name](saved)
    assert len(messages) > 50
    assert max(map(len, messages)) < 6000
