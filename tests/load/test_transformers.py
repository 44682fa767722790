"""Folders of ``transformers``: read, matched, written back, and loaded by it with the same results."""

import ml_dtypes
import numpy as np
import pytest
import torch
import transformers

from darner import load
from darner.graph.types import TensorType

pytestmark = pytest.mark.slow  # the first model of each architecture takes seconds to import

TYPES = {
    "f32": (torch.float32, np.dtype(np.float32)),
    "f16": (torch.float16, np.dtype(np.float16)),
    "bf16": (torch.bfloat16, np.dtype(ml_dtypes.bfloat16)),
    "f64": (torch.float64, np.dtype(np.float64)),
}
SIZES = {"vocab_size": 48, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}


def llama(**options):
    config = transformers.LlamaConfig(
        **SIZES, intermediate_size=24, num_key_value_heads=2, **options
    )
    return transformers.LlamaForCausalLM(config)


def tied_llama():
    return llama(tie_word_embeddings=True)


def bert():
    config = transformers.BertConfig(**SIZES, intermediate_size=24, max_position_embeddings=20)
    return transformers.BertModel(config)


def gpt2():
    config = transformers.GPT2Config(vocab_size=48, n_positions=20, n_embd=16, n_layer=3, n_head=4)
    return transformers.GPT2LMHeadModel(config)


FACTS = {
    llama: ("model.", {}),
    tied_llama: ("model.", {"lm_head.weight": "model.embed_tokens.weight"}),
    bert: ("bert.", {}),
    gpt2: ("transformer.", {"lm_head.weight": "transformer.wte.weight"}),
}
"""Of each architecture the prefix and the tied names, as a model of darner's says them."""


def made(build, dtype="f32"):
    torch.manual_seed(0)
    return build().to(TYPES[dtype][0]).eval()


def outputs(model):
    tokens = torch.arange(14).reshape(2, 7)
    with torch.no_grad():
        found = model(tokens)
    return (found.logits if "logits" in found else found.last_hidden_state).float().numpy()


def wanted(model, dtype):
    """The types of a model's parameters; tied ones are there once."""
    names = dict(model.named_parameters())
    return {name: TensorType.new(tuple(value.shape), dtype) for name, value in names.items()}


def as_numpy(tensor, dtype):
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().view(bits).numpy().view(TYPES[dtype][1])


@pytest.mark.parametrize("shard", ["5GB", "6KB"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("build", FACTS, ids=lambda build: build.__name__)
def test_there_and_back_again(tmp_path, build, dtype, shard):
    model = made(build, dtype)
    prefix, tied = FACTS[build]
    model.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    weights = load.weights(tmp_path / "theirs")
    assert (len(weights.files) > 1) == (shard == "6KB")
    types = wanted(model, dtype)
    found = load.match(weights, types, prefix=prefix, tied=tied)
    assert list(found.sources) == list(types)
    state = model.state_dict()
    for name, source in found.sources.items():
        assert weights.info(source).dtype == TYPES[dtype][1]
        assert (weights[source] == as_numpy(state[name], dtype)).all()

    parameters = {name: weights[source] for name, source in found.sources.items()}
    config = load.config(tmp_path / "theirs")
    load.save(tmp_path / "ours", config, parameters, tied=tied, max_shard=shard)
    assert load.config(tmp_path / "ours") == config
    assert sorted(load.weights(tmp_path / "ours")) == sorted(weights)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert again.dtype == TYPES[dtype][0]
    assert (outputs(again) == outputs(model)).all()


@pytest.mark.parametrize("build", FACTS, ids=lambda build: build.__name__)
def test_names_of_the_bare_model_fill_the_whole_and_the_other_way_round(tmp_path, build):
    model = made(build)
    prefix, tied = FACTS[build]
    model.base_model.save_pretrained(tmp_path / "bare")
    bare = load.weights(tmp_path / "bare")
    assert not any(name.startswith(prefix) for name in bare)
    types = {f"{prefix}{name}": type_ for name, type_ in wanted(model.base_model, "f32").items()}
    found = load.match(bare, types, prefix=prefix, tied=tied)
    assert found.sources == {f"{prefix}{name}": name for name in bare} | found.sources
    whole = {f"{prefix}{name}": bare[name] for name in bare}
    assert load.match(whole, wanted(model.base_model, "f32"), prefix=prefix).fits()


def test_a_config_in_another_type_than_the_weights_does_not_round_them(tmp_path):
    model = made(llama, "bf16")
    model.save_pretrained(tmp_path / "theirs")
    weights = load.weights(tmp_path / "theirs")
    wide = {name: weights[name].astype(np.float32) + np.float32(1e-5) for name in weights}
    load.save(tmp_path / "ours", load.config(tmp_path / "theirs"), wide)
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.dtype == torch.float32
    found = again.state_dict()["model.norm.weight"].numpy()
    assert (found == wide["model.norm.weight"]).all()


def test_another_model_is_told_apart_in_a_few_lines(tmp_path):
    made(gpt2).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(load.MismatchError) as caught:
        load.match(tmp_path / "gpt2", wanted(made(llama), "f32"), prefix="model.")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"the weights of '{tmp_path / 'gpt2'}' do not fit:"
    assert "  model.layers.{0..2}.self_attn.q_proj.weight (3)" in str(caught.value)
    assert "  transformer.h.{0..2}.attn.c_attn.weight (3)" in str(caught.value)
    assert len(lines) < 45
