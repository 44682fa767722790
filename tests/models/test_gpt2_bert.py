"""GPT-2 and BERT beside transformers: logits, gradients, texts, files."""

import numpy as np
import pytest
import torch
import transformers

import darner
from darner import ArgumentError, ShapeError, models
from darner.text import Generator

from . import parity

AT = {"batch": 2, "length": 11}
OFF = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def gpt2(**changes):
    config = transformers.GPT2Config(
        vocab_size=61,
        n_positions=96,
        n_embd=32,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **{**OFF, **changes},
    )
    return parity.build(transformers.GPT2LMHeadModel, config)


def texts():
    tokens = np.random.default_rng(4).integers(0, 61, (2, 12))
    return {"tokens": tokens[:, :-1], "labels": tokens[:, 1:]}


@pytest.mark.parametrize("changes", [{}, {"n_inner": 50, "scale_attn_by_inverse_layer_idx": True}])
def test_gpt2_is_that_of_transformers(changes, tmp_path):
    theirs = gpt2(**changes)
    model = parity.model_of(theirs)
    parity.check_logits(theirs, model, texts(), sizes=AT)
    parity.check_gradients(theirs, model, texts(), sizes=AT)
    parity.check_saved(theirs, model, texts(), tmp_path, sizes=AT)


def test_gpt2_writes_what_transformers_writes():
    theirs = gpt2()
    model = parity.model_of(theirs)
    owner = darner.build_inference_session(model.inference_graph(batch=1, length=8))
    parity.copy_weights(owner, parity.weights_of(theirs), model)
    prompts = texts()["tokens"].tolist()
    found = Generator(model, owner).generate(prompts, max_new_tokens=64)
    with torch.no_grad():
        wanted = theirs.generate(
            torch.tensor(prompts),
            attention_mask=torch.ones((2, 11), dtype=torch.long),
            max_new_tokens=64,
            do_sample=False,
        )
    assert [one.tokens for one in found] == wanted[:, 11:].tolist()


def test_gpt2_without_biases_has_none_and_its_last_matrices_start_smaller():
    model = models.from_config(
        {
            "model_type": "gpt2",
            "vocab_size": 61,
            "n_embd": 32,
            "n_layer": 8,
            "n_head": 4,
            "bias": False,
        }
    )
    graph = model.training_graph(batch=1, length=8)
    assert not [name for name in graph.parameters if name.endswith(".bias")]
    starts = {name: leaf.attrs["init"] for name, leaf in graph.parameters.items()}
    assert starts["transformer.h.0.attn.c_attn.weight"] == "normal(0.02)"
    assert starts["transformer.h.3.mlp.c_proj.weight"] == "normal(0.005)"


def test_gpt2_refuses_texts_longer_than_its_positions():
    model = models.from_config({"model_type": "gpt2", "n_positions": 16})
    with pytest.raises(ShapeError, match="has 16 positions, and the text takes 17"):
        model.inference_graph(batch=1, length=17)


def bert(kind):
    config = transformers.BertConfig(
        vocab_size=61,
        hidden_size=32,
        intermediate_size=44,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    return parity.build(getattr(transformers, kind), config)


def pages(labels):
    rng = np.random.default_rng(5)
    mask = np.ones((2, 11), np.int64)
    mask[1, 7:] = 0
    return {
        "tokens": rng.integers(0, 61, (2, 11)),
        "types": rng.integers(0, 2, (2, 11)),
        "mask": mask,
        "labels": labels,
    }


def run_bert(theirs, given):
    return theirs(given["tokens"], attention_mask=given["mask"], token_type_ids=given["types"])


def hidden_pooled_and_mean(theirs, given):
    found = run_bert(theirs, given)
    weights = given["mask"][..., None].to(found.last_hidden_state.dtype)
    mean = (found.last_hidden_state * weights).sum(1) / weights.sum(1)
    return {
        "hidden": found.last_hidden_state,
        "pooled": found.pooler_output,
        "embedding": torch.nn.functional.normalize(mean, dim=-1),
    }


def test_bert_gives_embeddings_of_texts(tmp_path):
    theirs = bert("BertModel")
    model = parity.model_of(theirs)
    given = pages(np.zeros(2, np.int64))
    outputs = {"outputs": ("embedding", "hidden", "pooled"), "forward": hidden_pooled_and_mean}
    parity.check_logits(theirs, model, given, sizes=AT, **outputs)
    parity.check_saved(theirs, model, given, tmp_path, sizes=AT, **outputs)
    with pytest.raises(ArgumentError, match="a bare BERT has no loss"):
        model.training_graph(batch=1, length=8)


@pytest.mark.parametrize(
    ("kind", "labels"),
    [
        ("BertForSequenceClassification", np.array([2, 0])),
        ("BertForMaskedLM", np.where(np.arange(22).reshape(2, 11) % 3, -100, 7)),
    ],
)
def test_bert_with_a_head_is_that_of_transformers(kind, labels, tmp_path):
    theirs = bert(kind)
    model = parity.model_of(theirs)
    given = pages(labels)

    def loss(hf_model, tensors):
        logits = run_bert(hf_model, tensors).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, -2), tensors["labels"].flatten())

    parity.check_logits(theirs, model, given, sizes=AT, forward=run_bert)
    parity.check_gradients(theirs, model, given, sizes=AT, loss=loss)
    parity.check_saved(theirs, model, given, tmp_path, sizes=AT, forward=run_bert)
