"""The folders of models: configurations, indices, adapters, tokenizers and templates of somebody's."""

import contextlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

from darner import ArgumentError, DarnerError, FormatError, UnknownNameError, load, models, nn, text
from darner.io.atomic import FileError
from darner.load.matching import MismatchError
from darner.text.tokenizer import Tokenizer
from tests.hostile.rows import Table
from tests.hostile.rows_files import entry, header
from tests.hostile.subjects import LLAMA, llama_weights

bad = Table("model_folder")
ROWS = bad


@contextlib.contextmanager
def damaged(m, kind="whole", **files):
    """A copy of the folder, with files of other content; None takes one away."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "copy")
        shutil.copytree(m.folder / kind, copy)
        for name, content in files.items():
            path = copy / name
            if content is None:
                path.unlink()
            elif isinstance(content, bytes):
                path.write_bytes(content)
            else:
                path.write_text(content if isinstance(content, str) else json.dumps(content))
        yield copy


def opened(**files):
    """Load the model of a damaged folder."""

    def action(m):
        with damaged(m, **files) as folder:
            load.pretrained(folder).inference_session(batch=1, length=4, device="reference").close()

    return action


def config(**fields):
    """Load a model whose configuration has other fields; None takes one away."""
    changed = {**LLAMA, **fields}
    return opened(**{"config.json": {k: v for k, v in changed.items() if v is not None}})


def model(**fields):
    """Make a model of a configuration, and its graph."""
    return lambda m: models.from_config(fields).inference_graph()


def of(**fields):
    """Make a Llama of other numbers, and its graph."""
    return lambda m: models.from_config({**LLAMA, **fields}).inference_graph(batch=1, length=4)


def adapted(config=None, **files):
    """Load the adapter of a damaged folder; its configuration has other fields."""

    def action(m):
        if config is not None:
            own = json.loads((m.folder / "adapter" / "adapter_config.json").read_text())
            files["adapter_config.json"] = {**own, **config}
        with damaged(m, "adapter", **files) as folder:
            load.adapter(folder)

    return action


def sharded(index, **shards):
    """Open shards by an index."""

    def action(m):
        with tempfile.TemporaryDirectory() as place:
            for name, content in shards.items():
                Path(place, f"{name}.safetensors").write_bytes(content)
            chosen = index if isinstance(index, str) else json.dumps(index)
            Path(place, "model.safetensors.index.json").write_text(chosen)
            load.weights(place)

    return action


def told(**files):
    """Open the tokenizer of a folder with these files."""

    def action(m):
        with tempfile.TemporaryDirectory() as place:
            for name, content in {"tokenizer.json": TOKENIZER, **files}.items():
                Path(place, name).write_text(content)
            made = Tokenizer.from_folder(place)
            made.chat([{"role": "user", "content": "hello"}])

    return action


def chat(template, messages=({"role": "user", "content": "hello"},), **options):
    """Put messages in a template."""
    return lambda m: Tokenizer(None, {}, template).chat(messages, **options)


def written(folder="out", table=None, weights=None, **options):
    """Save a model."""

    def action(m):
        with tempfile.TemporaryDirectory() as place:
            target = folder if str(folder).startswith("/") else Path(place, folder)
            found = llama_weights() if weights is None else weights
            load.save(target, LLAMA if table is None else table, found, **options)

    return action


TOKENIZER = json.dumps(
    {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
    }
)
ONE = header({"w": entry()}, bytes(8))

# fmt: off
# ---- folders
bad("folder that is not there", lambda m: load.pretrained(m.folder / "nothing"), DarnerError, "nothing")
bad("folder without a configuration", opened(**{"config.json": None}), FileError, "config.json")
bad("folder without weights", opened(**{"model.safetensors": None}), FileError, "model.safetensors")
bad("folder with weights cut short", opened(**{"model.safetensors": b"\x10\0\0\0\0\0\0\0{}"}), FormatError, "model.safetensors")
bad("folder with weights of another model", opened(**{"model.safetensors": ONE}), ArgumentError, "of another model")
bad("folder with a configuration of a list", opened(**{"config.json": "[]"}), FormatError, "config.json")
bad("folder with a configuration cut short", opened(**{"config.json": '{"model_type": "lla'}), FormatError, "config.json")
bad("folder with a configuration of bytes", opened(**{"config.json": b"\xff\xfe"}), FormatError, "config.json")
bad("folder with a deep configuration", opened(**{"config.json": "[" * 99_999}), FormatError, "config.json")
bad("folder that is a file", lambda m: load.pretrained(m.whole / "config.json"), DarnerError, "config.json")
bad("folder of an adapter alone", lambda m: load.weights(m.folder / "adapter"), FileError, "adapter")
# ---- configurations
bad("type that is none", config(model_type="lama"), DarnerError, "lama")
bad("type that is a number", config(model_type=3), DarnerError, "model_type")
bad("type that is missing", config(model_type=None), DarnerError, "model_type")
bad("layers missing", config(num_hidden_layers=None), DarnerError, "num_hidden_layers")
bad("heads of keys that do not divide", of(num_key_value_heads=3), DarnerError, "key heads")
bad("width of a list", config(hidden_size=[8]), DarnerError, "hidden_size")
bad("width of true", config(hidden_size=True), DarnerError, "hidden_size")
bad("width that the weights have not", config(hidden_size=16), MismatchError, "embed_tokens")
bad("words below 0", config(vocab_size=-5), DarnerError, "-5")
bad("activation that is none", of(hidden_act="relux"), DarnerError, "relux")
bad("rotation of 0", of(rope_theta=0), DarnerError, "theta")
bad("rotation stretched by nothing known", of(rope_scaling={"rope_type": "spiral", "factor": 2.0}), DarnerError, "spiral")
bad("norm's epsilon below 0", of(rms_norm_eps=-1.0), DarnerError, "eps")
bad("window of a list", of(model_type="mistral", sliding_window=[4]), DarnerError, "window")
bad("blocks that are none", model(_class_name="UNet2DConditionModel", down_block_types=["Nothing"]), DarnerError, "Nothing")
bad("element type that is none", lambda m: models.from_config(LLAMA, dtype="f33").inference_graph(batch=1, length=4), DarnerError, "f33")
bad("length beyond the positions", lambda m: models.from_config({**LLAMA, "model_type": "gpt2", "n_positions": 8}).inference_graph(batch=1, length=9), DarnerError, "9")
bad("batch below 0", lambda m: models.from_config(LLAMA).inference_graph(batch=-1, length=4), DarnerError, "-1")
bad("size misspelt", lambda m: load.pretrained(m.whole).inference_session(batsh=1), ArgumentError, "batch")
# ---- shards
bad("index of a list", sharded("[]"), FormatError, "index.json")
bad("index of nothing", sharded(""), FormatError, "JSON")
bad("index without a map", sharded({}), FormatError, "weight_map")
bad("index with a map of numbers", sharded({"weight_map": {"w": 3}}), FormatError, "weight_map")
bad("index that leaves its folder", sharded({"weight_map": {"w": "../../etc/passwd"}}), FormatError, "beside")
bad("index by a whole path", sharded({"weight_map": {"w": "/etc/x.safetensors"}}), FormatError, "beside")
bad("index that leaves its folder by a shard", sharded({"weight_map": {"w": "../a.safetensors"}}), FormatError, "beside")
bad("index with a null", sharded({"weight_map": {"w": "a\0.safetensors"}}), FormatError, "beside")
bad("index of pickles", sharded({"weight_map": {"w": "a.bin"}}), FormatError, "pickle")
bad("index of shards that are not there", sharded({"weight_map": {"w": "a.safetensors"}}), FileError, "not there")
bad("index of a tensor that is not there", sharded({"weight_map": {"v": "a.safetensors"}}, a=ONE), FormatError, "not where")
bad("index of a tensor in two shards", sharded({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}, a=header({"w": entry(), "x": entry(offsets=(8, 16))}, bytes(16)), b=header({"w": entry(), "y": entry(offsets=(8, 16))}, bytes(16))), FormatError, "two shards")
bad("index with another size", sharded({"weight_map": {"w": "a.safetensors"}, "metadata": {"total_size": 9}}, a=ONE), FormatError, "9")
bad("index with a size of text", sharded({"weight_map": {"w": "a.safetensors"}, "metadata": {"total_size": "8"}}, a=ONE), FormatError, "total_size")
bad("index of a shard that is cut", sharded({"weight_map": {"w": "a.safetensors"}}, a=ONE[:-3]), FormatError, "a.safetensors")
# ---- adapters
bad("adapter of another kind", adapted({"peft_type": "IA3"}), FormatError, "IA3")
bad("adapter of rank 0", adapted({"r": 0}), FormatError, "rank")
bad("adapter of a rank of text", adapted({"r": "8"}), FormatError, "rank")
bad("adapter of another rank", adapted({"r": 5}), FormatError, "rank 5")
bad("adapter with a scale of text", adapted({"lora_alpha": "big"}), FormatError, "lora_alpha")
bad("adapter with a dropout of 7", adapted({"lora_dropout": 7}), (FormatError, ArgumentError), "7")
bad("adapter with directions", adapted({"use_dora": True}), FormatError, "use_dora")
bad("adapter started otherwise", adapted({"init_lora_weights": "pissa"}), FormatError, "pissa")
bad("adapter without matrices", adapted(**{"adapter_model.safetensors": ONE}), FormatError, "lora_A")
bad("adapter without a configuration", adapted(**{"adapter_config.json": None}), FileError, "adapter_config.json")
bad("adapter that is cut short", adapted(**{"adapter_model.safetensors": ONE[:-1]}), FormatError, "adapter_model")
bad("adapter of one matrix twice", adapted(**{"adapter_model.safetensors": header({"base_model.model.a.lora_A.weight": entry(), "a.lora_A.weight": entry(offsets=(8, 16))}, bytes(16))}), FormatError, "two tensors")
bad("merged by another rank", lambda m: load.merged({"q.weight": np.eye(2), "q.lora_A.weight": np.ones((1, 2)), "q.lora_B.weight": np.ones((2, 1))}, nn.LoRA(rank=3))["q.weight"], DarnerError, "rank")
# ---- saving
bad("saved with a configuration that is no JSON", written(table={**LLAMA, "x": {1, 2}}), ArgumentError, "JSON")
bad("saved with weights of objects", written(weights={"w": np.array([None])}), DarnerError, "w")
bad("saved in shards of nothing", written(max_shard=0), ArgumentError, "0")
bad("saved in shards of nonsense", written(max_shard="lots"), ArgumentError, "lots")
bad("saved as another type", written(dtype="f33"), DarnerError, "f33")
bad("saved in a folder that cannot be", written(folder="/proc/nothing/here"), FileError, "/proc")
bad("saved over a file", lambda m: load.save(m.whole / "config.json", LLAMA, llama_weights()), FileError, "config.json")
# ---- tokenizers and templates
bad("tokenizer that is not there", lambda m: Tokenizer.from_folder(m.folder / "nothing"), DarnerError, "tokenizer.json")
bad("tokenizer's settings cut short", told(**{"tokenizer_config.json": "{"}), FormatError, "tokenizer_config.json")
bad("chat without a template", chat(None), ArgumentError, "template")
# ---- generation
bad("text of a folder that writes none", lambda m: text.load(m.folder / "nothing"), DarnerError, "nothing")
bad("text of unknown characters", lambda m: text.generate(m.whole, "ÄÖÜ", max_new_tokens=1, device="reference"), ArgumentError, "vocabulary")
bad("text of no tokens", lambda m: text.generate(m.whole, "abc", max_new_tokens=0, device="reference"), ArgumentError, "max_new_tokens")
bad("text of a prompt that is empty", lambda m: text.generate(m.whole, "", max_new_tokens=1, device="reference"), ArgumentError, "prompt")
bad("text of tokens beyond the vocabulary", lambda m: text.generate(m.whole, [0, 99], max_new_tokens=1, device="reference"), ArgumentError, "99")
bad("name of the hub that is none", lambda m: load.folder("no spaces in names"), DarnerError, "no spaces in names")
bad("weights by a wrong name", lambda m: load.weights(m.whole)["nothing"], UnknownNameError, "nothing")
bad("folder by a number", lambda m: load.pretrained(3), DarnerError, "3")
bad("layers below 0", config(num_hidden_layers=-1), DarnerError, "num_hidden_layers")
bad("layers of text", config(num_hidden_layers="two"), DarnerError, "num_hidden_layers")
bad("layers of a half", config(num_hidden_layers=1.5), DarnerError, "num_hidden_layers")
bad("layers without number", of(num_hidden_layers=10**9), DarnerError, "num_hidden_layers")
bad("heads of 0", config(num_attention_heads=0), DarnerError, "num_attention_heads")
bad("activation that is a number", of(hidden_act=7), DarnerError, "hidden_act")
bad("rotation of text", of(rope_theta="big"), DarnerError, "rope_theta")
bad("rotation stretched by a number", of(rope_scaling=3.0), DarnerError, "rope_scaling")
bad("rotation stretched without a factor", of(rope_scaling={"rope_type": "linear"}), DarnerError, "factor")
bad("rotation stretched by text", of(rope_scaling={"rope_type": "linear", "factor": "two"}), DarnerError, "factor")
bad("norm's epsilon of text", of(rms_norm_eps="small"), DarnerError, "rms_norm_eps")
bad("architectures of a number", model(model_type="llama", architectures=3), DarnerError, "architectures")
bad("labels of a number", model(model_type="vit", id2label=3), DarnerError, "id2label")
bad("parts of a model of text", model(model_type="clip", text_config="x"), DarnerError, "text_config")
bad("parts of a model of a list", model(model_type="smolvlm", text_config=[1]), DarnerError, "text_config")
bad("configuration of a list", lambda m: models.from_config([1]), DarnerError, "configuration")
bad("configuration of text", lambda m: models.from_config("llama"), DarnerError, "configuration")
bad("configuration of None", lambda m: models.from_config(None), DarnerError, "configuration")
bad("architecture by a number", lambda m: models.architecture(3), DarnerError, "3")
bad("index with a size without end", sharded('{"weight_map": {"w": "a.safetensors"}, "metadata": {"total_size": Infinity}}', a=ONE), FormatError, "total_size")
bad("index with a size that is none", sharded('{"weight_map": {"w": "a.safetensors"}, "metadata": {"total_size": NaN}}', a=ONE), FormatError, "total_size")
bad("adapter with a scale without end", adapted({"lora_alpha": 10**400}), FormatError, "lora_alpha")
bad("tokenizer's templates without names", told(**{"tokenizer_config.json": '{"chat_template": [3]}'}), (FormatError, ArgumentError), "template")
bad("tokenizer's ends of text", told(**{"generation_config.json": '{"eos_token_id": ["x"]}'}), FormatError, "eos_token_id")
bad("tokenizer's template of bytes", told(**{"chat_template.jinja": "{% for %}"}), FormatError, "template")
bad("chat by a template that ends too soon", chat("{% for m in messages %}"), FormatError, "template")
bad("chat by a template of nonsense", chat("{{ 1 + }}"), FormatError, "template")
bad("chat by a template that refuses", chat("{{ raise_exception('roles must alternate') }}"), DarnerError, "roles must alternate")
bad("chat by a template that divides by 0", chat("{{ 1 // 0 }}"), DarnerError, "template")
bad("chat by a template that breaks out", chat("{{ ''.__class__.__mro__ }}"), DarnerError, "template")
bad("chat by a template that imports", chat("{% import 'os' as os %}{{ os }}"), DarnerError, "template")
bad("chat by a template that includes a file", chat("{% include '/etc/passwd' %}"), DarnerError, "template")
bad("chat by a template without end", chat("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), DarnerError, "template")
bad("chat of what is not there", chat("{{ messages[9].content.strip() }}"), DarnerError, "template")
bad("chat of a number", chat("{{ messages[0]['content'] }}", messages=3), ArgumentError, "messages")
bad("text of a prompt that is a number", lambda m: text.generate(m.whole, 3.5, max_new_tokens=1, device="reference"), ArgumentError, "prompt")
bad("text with a temperature of words", lambda m: text.generate(m.whole, "abc", temperature="hot"), ArgumentError, "temperature")
# fmt: on
