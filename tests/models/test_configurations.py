"""Configurations of others: every field that is not what it may be is named at once, before anything is built."""

import json
import math
import os
import time
from dataclasses import fields

import pytest

import darner
from darner import ArgumentError, DarnerError, load, models
from darner.io.atomic import FileError
from darner.models.fields import RANGES
from darner.models.rope import KINDS, NEEDED, check_rope, make_rope

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TOWER = {**SIZES, "image_size": 16, "patch_size": 8}
CONFIGS = {
    "llama": SIZES,
    "mistral": SIZES,
    "qwen2": SIZES,
    "qwen3": {**SIZES, "head_dim": 8},
    "phi3": SIZES,
    "gemma2": {**SIZES, "head_dim": 8},
    "gemma3_text": {**SIZES, "head_dim": 8},
    "gpt2": {"vocab_size": 64, "n_positions": 200, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "bert": SIZES,
    "vit": TOWER,
    "clip": {"text_config": SIZES, "vision_config": TOWER, "projection_dim": 16},
    "whisper": {
        "vocab_size": 64,
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48,
        "decoder_ffn_dim": 48,
    },
    "smolvlm": {"text_config": SIZES, "vision_config": TOWER, "image_token_id": 63},
    "smolvla": {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "num_vlm_layers": 2,
    },
    "resnet": {"hidden_sizes": [8, 16], "depths": [1, 2], "embedding_size": 8},
    "UNet2DConditionModel": {
        "block_out_channels": [32, 64],
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"],
        "cross_attention_dim": 24,
        "attention_head_dim": 4,
        "norm_num_groups": 8,
        "layers_per_block": 1,
        "sample_size": 8,
    },
}
WRONG = [
    *(0, -1, 10**9, 10**12, 10**400, -(10**400), 1.5, 1e308, math.nan, math.inf, -math.inf),
    *(True, None, "hot", "", [], [0], [1.5], ["x"], [None], {}, {"a": 1}, [[1]], [1] * 1000),
]


def made(kind, table):
    return models.from_config({"model_type": kind, **table})


def names(kind):
    config = made(kind, CONFIGS[kind]).config
    return [one.name for one in fields(config) if one.name != "extra"]


EVERY = [(kind, name) for kind in CONFIGS for name in names(kind)]


@pytest.mark.parametrize(("kind", "name"), EVERY, ids=lambda value: value)
def test_any_value_of_any_field_builds_a_graph_or_is_refused_at_once(kind, name):
    """Whatever is in a file: a model, or an error of darner's own, soon. A model is as small as it says."""
    for value in WRONG:
        begun, message = time.process_time(), ""
        try:
            model = made(kind, {**CONFIGS[kind], name: value})
            count = model.config.parameter_count
            if count < 10**7 and model.config.layers < 100:
                model.inference_graph()
        except DarnerError as error:
            message = str(error)
        assert "\n" not in message
        assert len(message) < 500
        assert time.process_time() - begun < 3


@pytest.mark.parametrize("kind", CONFIGS)
def test_parameters_are_counted_before_they_are_made(kind):
    model = made(kind, CONFIGS[kind])
    graphs = [model.inference_graph()]
    if kind == "smolvla":
        graphs.append(model.prefix_graph())
    leaves = {name: leaf for graph in graphs for name, leaf in graph.parameters.items()}
    found = sum(leaf.type.size for leaf in leaves.values())
    assert model.config.layers <= len(leaves)
    assert 0.3 * found < model.config.parameter_count < 1.3 * found


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        ("llama", "num_hidden_layers", 10**9, "is a whole number from 1 to 4,096, got 1000000000"),
        ("llama", "vocab_size", 10**12, "from 1 to 2,147,483,647, got 1000000000000"),
        ("llama", "num_attention_heads", 0, "from 1 to 65,536, got 0"),
        ("llama", "hidden_size", -8, "got -8"),
        ("llama", "hidden_size", 32.0, r"a whole number .*, got 32\.0"),
        ("llama", "hidden_size", "32", "got '32'"),
        ("llama", "hidden_size", None, "got None"),
        ("llama", "hidden_size", True, "got True"),
        ("llama", "hidden_size", 10**200, "got a number of 665 bits"),
        ("llama", "head_dim", "x", "from 1 to 65,536 or null, got 'x'"),
        ("llama", "rms_norm_eps", math.nan, "a number from 0 to 1, got nan"),
        ("llama", "attention_dropout", 1.0, r"a number from 0 to below 1, got 1\.0"),
        ("llama", "tie_word_embeddings", "no", "true or false, got 'no'"),
        ("llama", "hidden_act", 3, "a text, got 3"),
        (
            "llama",
            "layer_types",
            ["full"] * 2,
            "'full_attention' or 'sliding_attention', got 'full'",
        ),
        ("llama", "layer_types", ["full_attention"], "has 1 kinds, for 2 layers"),
        ("llama", "layer_types", [1], "a list, each a text or null"),
        ("gemma2", "attn_logit_softcapping", 0.0, r"a number above 0 or null, got 0\.0"),
        ("llama", "initializer_range", math.inf, "a number of at least 0, got inf"),
        ("vit", "image_size", [224], "a list of 2, each .*, got"),
        ("resnet", "depths", [1, 10**9], "a list, each a whole number from 1 to 4,096"),
        ("llama", "rope_parameters", 3, "is a table, got 3"),
        ("llama", "rope_scaling", "x", "is a table, got 'x'"),
        ("clip", "text_config", [1], "is a table, got"),
        ("bert", "id2label", 3, "is a table, got 3"),
    ],
)
def test_a_field_is_named_with_what_it_was_and_what_it_may_be(kind, name, value, message):
    with pytest.raises(ArgumentError, match=f"^{name} .*{message}"):
        made(kind, {**CONFIGS[kind], name: value})


def test_every_name_of_the_table_is_a_field_of_some_architecture():
    known = {name for kind in CONFIGS for name in names(kind)}
    for part in ("text_config", "vision_config"):
        for kind in ("clip", "smolvlm"):
            config = getattr(made(kind, CONFIGS[kind]).config, part)
            known |= {one.name for one in fields(config)}
    known |= {one.name for one in fields(models.diffusion.NoiseSchedule)}
    known |= {one.name for one in fields(models.bert.BertConfig)}
    assert set(RANGES) <= known


def test_a_model_larger_than_memory_is_refused_with_figures():
    huge = {**SIZES, "hidden_size": 2**20, "intermediate_size": 2**20, "num_hidden_layers": 500}
    message = (
        r"asks for about [\d,]+ parameters, [\d,]+ TB in f32, and this machine has .*B of memory"
    )
    with pytest.raises(ArgumentError, match=message):
        made("llama", huge)
    assert models.from_config({"model_type": "llama", **huge}, limited=False).config.layers == 500


# --------------------------------------------------------------------------- folders


@pytest.fixture
def folder(tmp_path):
    model = made("llama", SIZES)
    with model_session(model) as session:
        load.save(tmp_path, {"model_type": "llama", **SIZES}, session.parameters())
    return tmp_path


def model_session(model):
    return darner.build_inference_session(model.inference_graph(length=4), device="reference")


def rewrite(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is a whole number from 1 to 4,096"),
        ({"num_hidden_layers": 4000}, "it asks for 4,000 layers, but there are 21 tensors in"),
        (
            {"intermediate_size": 10**6},
            r"it asks for about 192,\d+,\d+ parameters, but there are [\d,]+",
        ),
        ({"hidden_size": None}, "hidden_size is a whole number"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor of rope_type 'linear' is"),
        ({"model_type": ["llama"]}, "has the model_type"),
        ({"model_type": "lama"}, "there is no architecture 'lama'"),
    ],
)
def test_a_configuration_that_is_not_of_its_weights_is_refused_with_its_file(
    folder, changes, message
):
    rewrite(folder, **changes)
    begun = time.process_time()
    with pytest.raises(DarnerError, match=rf"^'{folder}/config.json'.*{message}"):
        load.pretrained(folder)
    assert time.process_time() - begun < 3


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "zero", "folder", "hole"])
def test_files_of_a_folder_that_are_no_files_are_refused(folder, name, kind):
    path = folder / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(10 << 30)
    with pytest.raises(DarnerError, match=name) as caught:
        load.pretrained(folder)
    assert kind == "hole" or isinstance(caught.value, FileError)


# --------------------------------------------------------------------------- rotary positions

GOOD = {
    "default": {},
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128,
    },
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 128,
        "attention_factor": 1.1,
    },
    "yarn": {
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "attention_factor": 1.0,
        "original_max_position_embeddings": 128,
    },
}
COMMON = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0}


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_rotary_positions_is_checked(kind):
    whole = {"rope_type": kind, **COMMON, **GOOD[kind]}
    sizes = {"max_positions": 256, "limit": 200}
    assert make_rope(whole, 16, **sizes).head_dim == 16
    for name in [*COMMON, *GOOD[kind]]:
        wrong = [-1, math.nan, math.inf, "2", True, [], {}, 10**400, [0.0] * 8, ["x"] * 8]
        for value in wrong if name.startswith("mscale") else [0, *wrong]:
            with pytest.raises(ArgumentError, match=name.split("_")[0]):
                check_rope({**whole, name: value}, 16)
        needed = name in ("rope_theta", *NEEDED[kind])
        lacking = {key: value for key, value in whole.items() if key != name}
        for table in (lacking, {**whole, name: None}):
            if needed:
                with pytest.raises(ArgumentError, match=f"rope_type '{kind}' needs {name}"):
                    make_rope(table, 16, **sizes)
            else:
                assert make_rope(table, 16, **sizes).head_dim == 16


@pytest.mark.parametrize(
    ("parameters", "head_dim", "message"),
    [
        ({"rope_type": 3}, 16, "there is no rope_type 3"),
        ({"rope_type": ["yarn"]}, 16, "there is no rope_type"),
        ({"partial_rotary_factor": 0.1}, 16, "but 1 of its 16 turn"),
        ({"partial_rotary_factor": 0.2}, 16, "but 3 of its 16 turn"),
        ({}, 1, "but 1 of its 1 turn"),
        ({"rope_type": "dynamic", "factor": 2}, 2, "but 2 of its 2 turn"),
        (
            {"rope_type": "dynamic", "factor": 0.5},
            16,
            "factor of rope_type 'dynamic' is a number of at least 1",
        ),
        (
            {"rope_type": "yarn", "rope_theta": 1.0},
            16,
            "rope_theta of rope_type 'yarn' is a number above 1",
        ),
        (
            {**GOOD["llama3"], "rope_type": "llama3", "low_freq_factor": 4.0},
            16,
            "low_freq_factor is below",
        ),
        (
            {**GOOD["longrope"], "rope_type": "longrope"},
            32,
            "short_factor|long_factor is a list of 16",
        ),
    ],
)
def test_rotary_positions_that_cannot_be_are_refused(parameters, head_dim, message):
    with pytest.raises(ArgumentError, match=message):
        check_rope({**COMMON, **parameters}, head_dim)
