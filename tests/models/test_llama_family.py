"""Llama and its kin beside transformers: logits, gradients, texts, files."""

import numpy as np
import pytest
import torch
import transformers

import darner
from darner import ArgumentError, models
from darner.text import Generator

from . import parity

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 24,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
    "original_max_position_embeddings": 96,
}
CASES = {
    "llama": ("Llama", {}),
    "llama tied, biases": (
        "Llama",
        {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "yarn": ("Llama", {"rope_parameters": YARN}),
    "linear rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "dynamic rope": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": 5}),
    "mistral without window": ("Mistral", {"sliding_window": None}),
    "qwen2": (
        "Qwen2",
        {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 4},
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "phi3": ("Phi3", {"original_max_position_embeddings": 96}),
    "phi3 longrope": (
        "Phi3",
        {
            "original_max_position_embeddings": 96,
            "max_position_embeddings": 192,
            "rope_parameters": LONGROPE,
        },
    ),
    "gemma2": ("Gemma2", {"head_dim": 8, "query_pre_attn_scalar": 16, "sliding_window": 4}),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 16,
            "sliding_window": 4,
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
}
ONE_OF_EACH = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3"]


def peer(case):
    name, changes = CASES[case]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**{**SIZES, **changes})
    return parity.build(getattr(transformers, f"{name}ForCausalLM"), config)


def texts(batch=2, length=11):
    rng = np.random.default_rng(4)
    tokens = rng.integers(0, 61, (batch, length + 1))
    tokens[1, 3] = 0  # padding, which does not learn
    labels = tokens[:, 1:].copy()
    labels[0, 2] = -100
    return {"tokens": tokens[:, :-1], "labels": labels}


AT = {"batch": 2, "length": 11}


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(case):
    found = peer(case)
    parity.check_logits(found, parity.model_of(found), texts(), sizes=AT)


@pytest.mark.parametrize("case", [*ONE_OF_EACH, "llama tied, biases"])
def test_gradients_are_those_of_transformers(case):
    found = peer(case)
    parity.check_gradients(found, parity.model_of(found), texts(), sizes=AT)


@pytest.mark.parametrize("case", CASES)
def test_transformers_reads_what_is_written(case, tmp_path):
    found = peer(case)
    parity.check_saved(found, parity.model_of(found), texts(), tmp_path, sizes=AT)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*ONE_OF_EACH, "llama3 rope"])
def test_64_greedy_tokens_from_the_cache_are_those_of_recomputation_and_of_transformers(case):
    theirs = peer(case)
    model = parity.model_of(theirs)
    owner = darner.build_inference_session(model.inference_graph(batch=2, length=72))
    parity.copy_weights(owner, parity.weights_of(theirs), model)
    prompts = texts(2, 7)["tokens"]
    found = Generator(model, owner).generate(prompts.tolist(), max_new_tokens=64)
    with torch.no_grad():
        wanted = theirs.generate(
            torch.tensor(prompts),
            attention_mask=torch.ones(prompts.shape, dtype=torch.long),
            max_new_tokens=64,
            do_sample=False,
        )[:, 7:].tolist()
    assert [one.tokens for one in found] == wanted
    whole = np.zeros((2, 72), np.int32)
    whole[:, :7] = prompts
    for place in range(7, 71):
        logits = owner.run({"tokens": whole})["logits"]
        whole[:, place] = logits[:, place - 1].argmax(-1)
    assert whole[:, 7:71].tolist() == wanted


def test_a_longrope_text_longer_than_those_of_training_has_the_long_factors():
    config = {**SIZES, "model_type": "phi3", "rope_parameters": LONGROPE}
    config |= {"original_max_position_embeddings": 96, "max_position_embeddings": 192}
    model = models.from_config(config)
    short, long = model.rope(0, 96).frequencies, model.rope(0, 97).frequencies
    ratios = np.array(short) / np.array(long)
    wanted = np.array(LONGROPE["long_factor"]) / np.array(LONGROPE["short_factor"])
    np.testing.assert_allclose(ratios, wanted)


def test_older_spellings_of_rotary_positions_mean_the_same():
    newer = models.from_config({**SIZES, "model_type": "llama", "rope_parameters": LLAMA3})
    scaling = {k: v for k, v in LLAMA3.items() if k != "rope_theta"}
    scaling["type"] = scaling.pop("rope_type")
    older = models.from_config(
        {**SIZES, "model_type": "llama", "rope_theta": 5e5, "rope_scaling": scaling}
    )
    assert older.config == newer.config
    plain = models.from_config({**SIZES, "model_type": "llama", "rope_theta": 777.0})
    assert plain.rope(0, 8).theta == 777.0


def test_gemma3_has_a_window_in_five_layers_of_six_and_slow_rotations_in_the_sixth():
    model = models.from_config({**SIZES, "model_type": "gemma3_text", "num_hidden_layers": 12})
    assert [i for i in range(12) if model.config.window(i) is None] == [5, 11]
    assert [model.rope(i, 8).theta for i in (4, 5)] == [1e4, 1e6]


def test_what_a_configuration_lacks_or_gets_wrong_is_named():
    with pytest.raises(ArgumentError, match="needs hidden_size, num_attention_heads"):
        models.from_config(
            {
                "model_type": "llama",
                "vocab_size": 5,
                "intermediate_size": 4,
                "num_hidden_layers": 1,
            }
        )
    with pytest.raises(ArgumentError, match="there is no architecture 'lama'"):
        models.from_config({"model_type": "lama"})
    with pytest.raises(ArgumentError, match="no model_type"):
        models.from_config({})
    with pytest.raises(ArgumentError, match="there is no rope_type 'yarm'"):
        models.from_config(
            {**SIZES, "model_type": "llama", "rope_parameters": {"rope_type": "yarm"}}
        )


@pytest.mark.parametrize("kind", ["inference_graph", "training_graph", "cached_graph"])
def test_a_misspelt_size_is_refused(kind):
    model = models.from_config({**SIZES, "model_type": "llama"})
    with pytest.raises(ArgumentError, match="a graph of Llama takes no 'lenght'"):
        getattr(model, kind)(batch=1, lenght=4)


def test_attention_dropout_is_in_training_and_not_in_inference():
    config = {**SIZES, "model_type": "llama", "attention_dropout": 0.5}
    dropping, plain = (
        models.from_config(config),
        models.from_config({**config, "attention_dropout": 0.0}),
    )
    data = parity.arrays(texts(), "f32")
    losses = {}
    for name, model in (("dropping", dropping), ("plain", plain)):
        session = darner.build_session(model.training_graph(**AT), seed=3)
        losses[name] = [float(session.run(data)["loss"][0]) for _ in range(2)]
    assert losses["plain"][0] == losses["plain"][1]
    assert losses["dropping"][0] != losses["dropping"][1]
    results = []
    for model in (dropping, plain):
        session = darner.build_inference_session(model.inference_graph(**AT), seed=3)
        results.append(session.run({"tokens": data["tokens"]})["logits"])
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-5)
