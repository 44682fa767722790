"""The readers, each as a function of bytes, and small documents to begin from.

A target returns where its reader returns or raises a `DarnerError`; anything else that is raised is a find. What a reader
accepts must also be whole: a graph that was read verifies, prints, and reads back to the same graph.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import darner
from darner import data, load, models, nn, optim, train
from darner.data import idx
from darner.graph import types
from darner.graph.errors import DarnerError, InternalError
from darner.io import tensorfile
from darner.load import adapters, files, texts
from darner.lower import plan_json
from darner.lower.plan import Plan
from darner.session import checkpoint
from darner.train.checkpoints import KEY

from . import mutate

Change = Callable[[bytes, random.Random], bytes | None]


@dataclass(frozen=True)
class Target:
    """A reader under test.

    Attributes:
        run: reads bytes; raises what the reader raises.
        seeds: documents that it reads.
        change: how they are changed; None for bytes alone.
        words: what is put into bytes.
        longest: bytes of a document.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    change: Change | None = None
    words: tuple[str, ...] = field(default=())
    longest: int = 4096

    def check(self, document: bytes) -> None:
        """Read a document. What the contract forbids goes on as it was raised."""
        try:
            self.run(document)
        except InternalError:
            raise
        except DarnerError as error:
            str(error)  # a message that cannot be written is no message


TARGETS: dict[str, Target] = {}


def target(
    seeds: Callable[[], list[bytes]],
    change: Change | None = None,
    words: tuple[str, ...] = (),
    longest: int = 4096,
) -> Callable[[Callable[[bytes], None]], Callable[[bytes], None]]:
    """Declare the function below as the target of its name."""

    def declare(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
        TARGETS[run.__name__] = Target(run, seeds, change, words, longest)
        return run

    return declare


def text_of(document: bytes) -> str:
    """Bytes as text, as a caller of a reader of texts would have it."""
    return document.decode("utf-8", "surrogateescape")


@cache
def _memory() -> int:
    return os.memfd_create("fuzz")


def in_memory(document: bytes) -> str:
    """The path of a file that holds a document, and lies on no disk."""
    number = _memory()
    os.ftruncate(number, 0)
    os.pwrite(number, document, 0)
    return f"/proc/self/fd/{number}"


# --------------------------------------------------------------------------- graphs and plans


@cache
def graphs() -> list[darner.Graph]:
    """Graphs with every part that their forms write: leaves, states, inner graphs, constants, scopes, tuples."""
    g = darner.Graph("mlp")
    x, labels = g.input("x", (4, 6)), g.input("labels", (4,), "i32")
    with g.scope("fc"), g.remat("block"):
        h = (x @ g.parameter("w", (6, 5), init="normal(0.5)") + 0.5).gelu(label="hidden")
    count = g.state("count", (), "i32")
    g.set_update(count, count + 1)
    logits = h.dropout(0.1) @ g.parameter("v", (5, 3), "bf16").cast("f32")
    values, places = g.top_k(logits, 2)
    g.set_outputs([g.cross_entropy_loss(logits, labels), values, places])
    s = darner.Graph("a name")
    tokens = s.input("tokens", ("batch", "2*seq+1"), "i32")
    table = s.parameter("table", (7, 8))
    found = s.gather(table, tokens)
    found = found.layer_norm(s.parameter("norm", (8,)), s.parameter("shift", (8,)))
    s.set_outputs([found.transpose((1, 0, 2)), s.constant(np.arange(40, dtype=np.float64))])
    c = darner.Graph("picture")
    image = c.input("image", (1, 3, 8, 8))
    out = c.conv2d(image, c.parameter("k", (4, 3, 3, 3)), stride=2, padding=1).max_pool((2, 2))
    c.set_outputs([out.reshape((1, -1)).slice((0, 1), (1, 5)), c.constant([1, 2, 3])])
    return [g, s, c]


def _graph_texts() -> list[bytes]:
    return [graph.to_text().encode() for graph in graphs()]


GRAPH_WORDS = (
    *("graph @g {", "}", "return ", "update ", "remat ", "inner ", "constant ", " : ", "label"),
    *("f32[]", "f32[2, 3]", "i32[seq]", "bf16[2*seq+1]", "(f32[2], i32[2])", "%0", "%1", "axis="),
    *(
        "input(",
        "parameter(",
        "state(",
        "constant(",
        "matmul(",
        "add(",
        "reshape(",
        "sum(",
        "cast(",
    ),
    *("name=", "shape=", "dtype=", "init=", "null", "true", "-1", "[0, 1]", "NaN", "Infinity"),
    *("project(", "concat(", "einsum(", "pad(", "gather(", "conv(", "slice(", "top_k(", "where("),
)


@target(_graph_texts, mutate.of_text(GRAPH_WORDS), GRAPH_WORDS)
def graph_text(document: bytes) -> None:
    """``Graph.from_text``."""
    graph = darner.Graph.from_text(text_of(document))
    graph.verify()
    again = darner.Graph.from_text(graph.to_text())
    same(graph.digest(), again.digest())


def _graph_documents() -> list[bytes]:
    return [graph.to_json().encode() for graph in graphs()]


@target(_graph_documents, mutate.of_json(GRAPH_WORDS[15:]), GRAPH_WORDS, 8192)
def graph_json(document: bytes) -> None:
    """``Graph.from_json``."""
    graph = darner.Graph.from_json(text_of(document))
    graph.verify()
    again = darner.Graph.from_json(graph.to_json())
    same(graph.digest(), again.digest())


@cache
def plans() -> list[Plan]:
    """The plans of a small training session and of an inference session."""
    g = darner.Graph("line")
    x, y = g.input("x", (4,)), g.input("y", (4,))
    count = g.state("count", (), "i32")
    g.set_update(count, count + 1)
    loss = (g.parameter("w", ()) * x - y).square().mean()
    g.set_outputs([loss])
    made = []
    for options in ({"optimizer": optim.SGD(0.1)}, {"mode": "infer"}):
        with darner.build(g, device="reference", cache=None, **options) as session:
            made.append(session.plan())
    return made


def _plan_contents() -> list[bytes]:
    return [json.dumps(json.loads(made.to_json())["plan"]).encode() for made in plans()]


@target(_plan_contents, mutate.of_json((*plan_json._FIELDS, "dense", "q4", "state")), (), 16384)
def plan(document: bytes) -> None:
    """``Plan.from_json`` of a document that is signed as it should be: an attacker can do that."""
    try:
        content = json.loads(document)
    except (ValueError, RecursionError):
        Plan.from_json(text_of(document))
        return
    found = Plan.from_json(plan_json.signed(content))
    same(Plan.from_json(found.to_json()).to_json(), found.to_json())
    str(found)


def _type_texts() -> list[bytes]:
    return [b"f32[32, 784]", b"(f32[2], i32[2*seq+1])", b"bf16[batch*seq-3]", b"c64[]"]


@target(_type_texts, mutate.of_text(("f32[", "]", "*", "seq", "-", "+", ", ", "(", ")")), (), 512)
def type_text(document: bytes) -> None:
    """``parse_type``, which every other form uses."""
    found = types.parse_type.__wrapped__(text_of(document))
    same(types.parse_type.__wrapped__(str(found)), found)


def _equations() -> list[bytes]:
    return [b"ij,jk->ik", b"...ij,...jk->...ik", b"bhqd,bhkd->bhqk", b"ii,jj", b"i j, j k -> i k"]


@target(_equations, mutate.of_text(("...", "->", ",", "i", "j", "k", " ")), (), 64)
def equation(document: bytes) -> None:
    """``einsum`` of two matrices and an equation of somebody's."""
    g = darner.Graph()
    g.einsum(text_of(document), g.input("a", (3, 3)), g.input("b", (3, 3)))


def _rules() -> list[bytes]:
    return [b"normal(0.02)", b"kaiming", b"uniform(-1, 1)", b"zeros", b"constant(2)", b"xavier"]


@target(_rules, mutate.of_text(("normal", "(", ")", ",", "nan", "1e400", "-", "kaiming")), (), 64)
def initialiser(document: bytes) -> None:
    """The rule by which a parameter starts, as a text."""
    g = darner.Graph()
    g.set_outputs([g.parameter("w", (2, 2), init=text_of(document)).sum()])
    darner.Graph.from_text(g.to_text())


# --------------------------------------------------------------------------- tensors


def tensor_file(tensors: dict[str, Any], metadata: dict[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file."""
    arrays = {name: tensorfile.stored(name, np.asarray(value)) for name, value in tensors.items()}
    header = tensorfile.header_of(arrays, metadata or {})
    return b"".join(bytes(chunk) for chunk in tensorfile.file_chunks(header, arrays))


def _tensor_files() -> list[bytes]:
    return [
        tensor_file({"w": np.ones((2, 3), np.float32), "n": np.array([True, False])}),
        tensor_file({"a": np.zeros((0, 4), np.int64), "b": np.float64(2)}, {"format": "pt"}),
        tensor_file({}),
    ]


@target(_tensor_files, mutate.of_tensors, ("F32", "BF16", "shape", "data_offsets", "__metadata__"))
def tensors(document: bytes) -> None:
    """A safetensors file, and every tensor in it."""
    found = tensorfile.open_tensors(in_memory(document))
    arrays = found.arrays()
    for name, entry in found.entries.items():
        same(arrays[name].nbytes, entry.end - entry.begin)
        same(arrays[name].tobytes(), found.array(name).tobytes())


@cache
def learner(learns: bool = True) -> darner.Session:
    """A session that learns by Adam, for checkpoints and training states to be loaded into; or one that does not yet."""
    g = darner.Graph("line")
    x, y = g.input("x", (4,)), g.input("labels", (4,))
    g.set_outputs([(g.parameter("w", (3,)).sum() * x - y).square().mean(label="loss")])
    optimizer = optim.Adam(0.1) if learns else None
    return darner.build_session(g, device="reference", cache=None, optimizer=optimizer)


BATCHES = [{"x": np.ones(4, np.float32), "labels": np.zeros(4, np.float32)} for _ in range(3)]


@cache
def trained() -> bytes:
    """A checkpoint of training."""
    with tempfile.TemporaryDirectory() as folder:
        made = train.Trainer(learner(), BATCHES, steps=4, progress=False)
        made.train()
        made.save(path := Path(folder, "checkpoint.safetensors"))
        return path.read_bytes()


def everything(learns: bool = True) -> dict[str, bytes]:
    """All that the session holds."""
    tables = {**learner(learns).parameters(), **learner(learns).state()}
    return {name: value.tobytes() for name, value in tables.items()}


def resigned(document: bytes) -> bytes:
    """A checkpoint with the digest that its header should have, where it has one, and the checksums of its tensors."""
    try:
        found = tensorfile.open_tensors(in_memory(document))
        metadata = dict(found.metadata)
        if checkpoint._DIGEST_KEY not in metadata:
            return document
        sums = (checkpoint._checksum(found.array(name)) for name in sorted(found.entries))
        if random.Random(document).random() < 0.9:
            metadata[checkpoint._CHECKSUMS_KEY] = " ".join(sums)
        header = {**found.header, tensorfile.METADATA: metadata}
        metadata[checkpoint._DIGEST_KEY] = checkpoint._digest(header)
    except DarnerError:
        return document
    text = tensorfile.encode(header)
    return len(text).to_bytes(8, "little") + text + document[found.start :]


def _checkpoints() -> list[bytes]:
    foreign = tensor_file(
        {"w": np.ones(3, np.float32), "adam_m.w": np.ones(3, np.float32)}, {"adam_step": "3"}
    )
    return [trained(), foreign]


@target(_checkpoints, mutate.of_tensors, (), 8192)
def session_checkpoint(document: bytes) -> None:
    """A checkpoint loaded into a session: all of it, or nothing."""
    path = in_memory(resigned(document))
    for learns in (True, False):
        before = everything(learns)
        try:
            learner(learns).load_checkpoint(path)
        except DarnerError:
            same(everything(learns), before)
            if not learns:
                raise


def _training_states() -> list[bytes]:
    return [tensorfile.open_tensors(in_memory(trained())).metadata[KEY].encode()]


@target(_training_states, mutate.of_json(("progress", "history", "losses", "epochs", "source")))
def training_state(document: bytes) -> None:
    """How training goes on, as a checkpoint says it: loaded into a trainer, all of it or nothing."""
    made = train.Trainer(learner(), BATCHES, steps=9, progress=False)
    path = in_memory(_with_state(document))
    before, stands = everything(), json.dumps(made.progress.to_json())
    try:
        made.load(Path(path))
    except DarnerError:
        same(everything(), before)
        same(json.dumps(made.progress.to_json()), stands)
        raise
    made.progress.to_json()


@cache
def _parameters() -> dict[str, Any]:
    return tensorfile.open_tensors(in_memory(trained())).arrays()


@cache
def _metadata() -> dict[str, str]:
    return dict(tensorfile.open_tensors(in_memory(trained())).metadata)


def _with_state(document: bytes) -> bytes:
    metadata = {**_metadata(), KEY: document.decode(errors="replace")}
    return resigned(tensor_file(_parameters(), metadata))


# --------------------------------------------------------------------------- models' folders

_SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}


def _configs() -> list[bytes]:
    made: list[dict[str, Any]] = [
        {"model_type": kind, **_SMALL, **_HEADS}
        for kind in ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "bert")
    ]
    made += [{"model_type": kind} for kind in models.ARCHITECTURES if not kind[0].isupper()]
    scaled = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled |= {"original_max_position_embeddings": 16}
    made.append({"model_type": "llama", **_SMALL, **_HEADS, "rope_scaling": scaled})
    made.append({"_class_name": "UNet2DConditionModel", "sample_size": 8})
    made.append({"model_type": "vit", "hidden_size": 32, "id2label": {"0": "cat", "1": "dog"}})
    return [json.dumps(config).encode() for config in made]


CONFIG_WORDS = (
    *_SMALL,
    *_HEADS,
    *("model_type", "architectures", "head_dim", "rope_theta", "rope_scaling", "rope_type"),
    *("hidden_act", "silu", "gelu", "tie_word_embeddings", "sliding_window", "layer_types"),
    *("text_config", "vision_config", "id2label", "num_labels", "yarn", "linear", "dynamic"),
)


@target(_configs, mutate.of_json(CONFIG_WORDS), CONFIG_WORDS, 2048)
def config(document: bytes) -> None:
    """A ``config.json``: read, and made a model of."""
    models.from_config(texts.read_json(Path(in_memory(document))))


def _indices() -> list[bytes]:
    table = {"weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    return [json.dumps({**table, "metadata": {"total_size": 48}}).encode(), b'{"weight_map": {}}']


@target(_indices, mutate.of_json(("weight_map", "metadata", "total_size", "../a.safetensors")))
def index(document: bytes) -> None:
    """The index of a model's shards."""
    files._parse_index(Path(in_memory(document)))


@cache
def _matrices() -> load.Weights:
    rows = {"model.q_proj.lora_A.weight": np.ones((2, 8)), "model.q_proj.lora_B.weight": None}
    rows["model.q_proj.lora_B.weight"] = np.ones((8, 2))
    return load.Weights.of(rows)


def _adapter_configs() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        load.save_adapter(folder, dict(_matrices()), nn.LoRA(rank=2, alpha=4.0, targets=("*",)))
        return [Path(folder, adapters.CONFIG).read_bytes()]


@target(_adapter_configs, mutate.of_json(("lora_alpha", "r", "use_rslora", "rank_pattern")))
def adapter_config(document: bytes) -> None:
    """The configuration of low-rank changes."""
    path = Path(in_memory(document))
    adapters._lora(path, texts.read_json(path), _matrices())


def _vocabularies() -> list[bytes]:
    return [b'{"format": "darner.characters", "characters": "abc \\u00e9\\ud83d\\ude00"}']


@target(_vocabularies, mutate.of_json(("format", "characters", "darner.characters")), (), 512)
def vocabulary(document: bytes) -> None:
    """A vocabulary of characters."""
    found = data.CharVocabulary.load(in_memory(document))
    same(found.decode(found.encode(found.characters)), found.characters)


def _templates() -> list[bytes]:
    loop = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}{% endfor %}"
    return [
        (loop + "{% if add_generation_prompt %}<|assistant|>{% endif %}").encode(),
        b"{{ bos_token }}{% set ns = namespace(x=1) %}{% if tools %}{{ tools | tojson }}{% endif %}",
        b"{{ raise_exception('no') }}",
        b"{% macro f(x) %}{{ x ~ 1 }}{% endmacro %}{{ f(messages[0].content) }}",
    ]


TEMPLATE_WORDS = (
    *("{{", "}}", "{%", "%}", "for", "endfor", "if", "endif", "set", "messages", "loop.index"),
    *("raise_exception", "strftime_now", "tojson", "trim", "['role']", ".content", "range(9)"),
    *("macro", "endmacro", "break", "is defined", "__class__", "namespace", "| length", "[::-1]"),
)


@target(_templates, mutate.of_text(TEMPLATE_WORDS), TEMPLATE_WORDS, 512)
def chat_template(document: bytes) -> None:
    """A chat template, and one message put in it."""
    from darner.text.tokenizer import Tokenizer

    found = Tokenizer(None, {"bos_token": "<s>"}, text_of(document))
    found.chat([{"role": "user", "content": "hello"}])


# --------------------------------------------------------------------------- data


def _idx_files() -> list[bytes]:
    images = struct.pack(">HBBIII", 0, 8, 3, 2, 2, 2) + bytes(range(8))
    labels = struct.pack(">HBBI", 0, 8, 1, 4) + bytes(4)
    floats = struct.pack(">HBBI2f", 0, 13, 1, 2, 1.5, -2.0)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as file:
        file.write(labels)
    return [images, labels, floats, packed.getvalue()]


@target(_idx_files, None, ("\x00\x00\x08\x01", "\x1f\x8b"), 256)
def idx_file(document: bytes) -> None:
    """An IDX file, gzipped or not."""
    if document.startswith(idx.GZIP):
        idx.read_idx(in_memory(document))
    else:
        idx._parse(document, None)


def same(one: object, other: object) -> None:
    """What must be equal."""
    if one != other:
        raise AssertionError(f"{one!r} is not {other!r}")
