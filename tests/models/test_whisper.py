"""Whisper beside transformers: logits, gradients, texts, files."""

import numpy as np
import pytest
import torch
import transformers

import darner
from darner import ShapeError
from darner.text import Generator

from . import parity

AT = {"batch": 2, "length": 9}


def peer():
    config = transformers.WhisperConfig(
        vocab_size=61,
        num_mel_bins=6,
        d_model=32,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=44,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=52,
        max_source_positions=20,
        max_target_positions=80,
        scale_embedding=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        begin_suppress_tokens=None,
    )
    return parity.build(transformers.WhisperForConditionalGeneration, config)


def inputs():
    rng = np.random.default_rng(6)
    tokens = rng.integers(1, 61, (2, 10))
    tokens[1, 4] = 0
    return {
        "features": rng.standard_normal((2, 6, 40)),
        "tokens": tokens[:, :-1],
        "labels": tokens[:, 1:],
    }


def forward(theirs, given):
    return theirs(input_features=given["features"], decoder_input_ids=given["tokens"])


def loss(theirs, given):
    for weight in theirs.model.encoder.embed_positions.parameters():
        weight.grad = torch.zeros_like(weight)  # it is not trained
    logits = forward(theirs, given).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, -2), given["labels"].flatten())


def test_whisper_is_that_of_transformers(tmp_path):
    theirs = peer()
    model = parity.model_of(theirs)
    parity.check_logits(theirs, model, inputs(), sizes=AT, forward=forward)
    parity.check_gradients(theirs, model, inputs(), sizes=AT, loss=loss)
    parity.check_saved(theirs, model, inputs(), tmp_path, sizes=AT, forward=forward)


def test_64_tokens_of_two_sounds_are_those_of_recomputation_with_transformers():
    theirs = peer()
    model = parity.model_of(theirs)
    given = inputs()
    whole = darner.build_inference_session(model.inference_graph(batch=2, length=4))
    parity.copy_weights(whole, parity.weights_of(theirs), model)
    encoder = darner.build_inference_session(model.encoder_graph(batch=2), share=whole)
    encoder.run({"features": given["features"].astype(np.float32)})
    prompts = given["tokens"][:, :5].tolist()
    wanted = torch.tensor(prompts)
    with torch.no_grad():
        for _ in range(64):
            tensors = {"features": torch.tensor(given["features"]).float(), "tokens": wanted}
            wanted = torch.cat([wanted, forward(theirs, tensors).logits[:, -1:].argmax(-1)], 1)
    found = Generator(model, [whole, encoder]).generate(prompts, max_new_tokens=64)
    assert [one.tokens for one in found] == wanted[:, 5:].tolist()


def test_positions_of_sound_start_as_sines_and_do_not_learn():
    model = parity.model_of(peer())
    graph = model.training_graph(**AT)
    session = darner.build_session(graph, optimizer=darner.optim.SGD(0.1))
    name = "model.encoder.embed_positions.weight"
    before = session.read_param(name)
    step = np.log(10000.0) / 15
    angles = np.arange(20)[:, None] * np.exp(-step * np.arange(16))
    wanted = np.concatenate([np.sin(angles), np.cos(angles)], 1)
    np.testing.assert_allclose(before, wanted, atol=1e-6)
    session.run(parity.arrays(inputs(), "f32"))
    assert np.array_equal(session.read_param(name), before)


def test_a_text_longer_than_its_positions_is_refused():
    model = parity.model_of(peer())
    with pytest.raises(ShapeError, match="has 80 positions, and the text takes 81"):
        model.inference_graph(batch=1, length=81)
