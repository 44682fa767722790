"""SmolVLM against transformers: images among words."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

import darner
from darner import models
from darner.models import smolvlm
from darner.text import Generator
from tests.models import parity

IMAGE = 58
TEXT = {
    "model_type": "llama",
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
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "image_size": 25,
    "patch_size": 6,
}
SIZES = {"batch": 2, "length": 14, "images": 2}
PLACES = ((2, 3, 4, 5, 8, 9, 10, 11), (0, 1, 3, 4, 5, 6, 7, 13))


def peer(tied=False, vision=None):
    config = SmolVLMConfig(
        text_config=dict(TEXT),
        vision_config={**VISION, **(vision or {})},
        scale_factor=2,
        image_token_id=IMAGE,
        tie_word_embeddings=tied,
    )
    hf_model = parity.build(SmolVLMForConditionalGeneration, config)
    for part in (hf_model.model.text_model, hf_model.model.vision_model):
        part.config._attn_implementation = "eager"
    return hf_model


def texts(length=14, images=2):
    """Two texts; the image tokens of the first stand together, those of the second do not."""
    rng = np.random.default_rng(4)
    tokens = rng.integers(1, IMAGE, (2, length + 1))
    tokens[1, 9] = 0  # padding, which does not learn
    for row, places in enumerate(PLACES):
        tokens[row, list(places[: 4 * images])] = IMAGE
    labels = tokens[:, 1:].copy()
    labels[labels == IMAGE] = -100
    pixels = rng.normal(size=(2 * images, 3, 25, 25))
    return {"tokens": tokens[:, :-1], "labels": labels, "pixels": pixels}


def seen(hf_model, given):
    """What transformers gives; its images have an axis of their own."""
    tokens, pixels = given["tokens"], given["pixels"]
    return hf_model(input_ids=tokens, pixel_values=pixels.unflatten(0, (len(tokens), -1)))


def loss(hf_model, given):
    logits = seen(hf_model, given).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), given["labels"].flatten())


@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_those_of_transformers(tied):
    found = peer(tied)
    parity.check_logits(found, parity.model_of(found), texts(), sizes=SIZES, forward=seen)


def test_gradients_are_those_of_transformers():
    found = peer()
    parity.check_gradients(found, parity.model_of(found), texts(), sizes=SIZES, loss=loss)


def test_gradients_of_a_tied_table_are_those_of_transformers():
    found = peer(tied=True)
    parity.check_gradients(found, parity.model_of(found), texts(), sizes=SIZES, loss=loss)


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_what_is_written(tied, tmp_path):
    found = peer(tied)
    model = parity.model_of(found)
    assert isinstance(model, smolvlm.SmolVLM)
    parity.check_saved(found, model, texts(), tmp_path, sizes=SIZES, forward=seen)


def features(hf_model, pixels):
    """What transformers makes of images, (images, tokens, width)."""
    with torch.no_grad():
        found = hf_model.get_image_features(pixels[None]).pooler_output[0]
    return found.unflatten(0, (len(pixels), -1)).numpy()


def vision_session(model, weights, images):
    session = darner.build_inference_session(model.vision_graph(images=images))
    for name in session.parameters():
        session.set_parameter(name, weights[name])
    return session


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_features_of_images_are_those_of_transformers(dtype):
    theirs, given = peer(), {"pixels": texts()["pixels"]}
    model = replace(parity.model_of(theirs), dtype=dtype)
    with parity.precision(dtype):
        twin = parity.in_precision(theirs, dtype)
        wanted = features(twin, parity.tensors(given, dtype)["pixels"])
    with vision_session(model, parity.weights_of(theirs), 4) as session:
        found = session.run(parity.arrays(given, dtype))["features"]
    parity.assert_close(found, wanted, parity.TOLERANCES[dtype], "features")


def owner_of(theirs, **sizes):
    model = parity.model_of(theirs)
    owner = darner.build_inference_session(model.inference_graph(**sizes))
    parity.copy_weights(owner, parity.weights_of(theirs), model)
    return model, owner


@pytest.mark.slow
def test_64_greedy_tokens_from_the_cache_are_those_of_recomputation_and_of_transformers():
    theirs = peer()
    model, owner = owner_of(theirs, batch=2, length=78, images=2)
    given = parity.arrays(texts(), "f32")
    prompts, pixels = given["tokens"], given["pixels"]
    generator = Generator(model, owner)
    found = generator.generate(prompts.tolist(), max_new_tokens=64, pixels=pixels)
    with torch.no_grad():
        wanted = theirs.generate(
            input_ids=torch.tensor(prompts, dtype=torch.long),
            pixel_values=torch.from_numpy(pixels).unflatten(0, (2, 2)),
            attention_mask=torch.ones(prompts.shape, dtype=torch.long),
            max_new_tokens=64,
            do_sample=False,
        )[:, 14:].tolist()
    assert [one.tokens for one in found] == wanted
    whole = np.zeros((2, 78), np.int32)
    whole[:, :14] = prompts
    for place in range(14, 78):
        logits = owner.run({"tokens": whole, "pixels": pixels})["logits"]
        whole[:, place] = logits[:, place - 1].argmax(-1)
    assert whole[:, 14:].tolist() == wanted
    plain = np.array([[42, 54, 3], [7, 9, 11]])
    blind = generator.generate(plain.tolist(), max_new_tokens=4)
    assert [one.tokens for one in blind] == generated(theirs, plain, 4)
    again = generator.generate(prompts.tolist(), max_new_tokens=8, pixels=pixels)
    assert [one.tokens for one in again] == [row[:8] for row in wanted]


def generated(theirs, prompts, count):
    with torch.no_grad():
        found = theirs.generate(
            input_ids=torch.tensor(prompts, dtype=torch.long),
            attention_mask=torch.ones(prompts.shape, dtype=torch.long),
            max_new_tokens=count,
            do_sample=False,
        )
    return found[:, prompts.shape[1] :].tolist()


def test_prompts_with_different_numbers_of_images_and_lengths_are_read_as_each_alone():
    """The second has one image, and the second of its places is not looked at, whatever is there."""
    model, owner = owner_of(peer(), batch=1, length=16, images=1)
    given = parity.arrays(texts(), "f32")
    first = given["tokens"][0].tolist()
    second = [7, *[IMAGE] * 4, 9, 10]
    generator = Generator(model, owner)
    both = generator.generate([first, second], max_new_tokens=5, pixels=given["pixels"])
    alone = [
        generator.generate(first, max_new_tokens=5, pixels=given["pixels"][:2]),
        generator.generate(second, max_new_tokens=5, pixels=given["pixels"][2:3]),
    ]
    assert both == alone
    other = generator.generate(second, max_new_tokens=5, pixels=given["pixels"][:1])
    assert other != alone[1]


def test_a_prompt_read_with_features_gives_what_it_gives_with_pixels():
    model, owner = owner_of(peer(), batch=2, length=14, images=2)
    given = parity.arrays(texts(), "f32")
    wanted = owner.run({name: given[name] for name in ("tokens", "pixels")})["logits"][:, -1]
    vision = darner.build_inference_session(model.vision_graph(images=4), share=owner)
    made = vision.run({"pixels": given["pixels"]})["features"]
    assert made.shape == (4, model.config.image_tokens, 32)
    graph = model.cached_graph(batch=2, length=14, cache=32, images=2, encoded=True)
    prefill = darner.build_inference_session(graph, share=owner)
    row = {"position": np.zeros(1, np.int32), "last": np.array([13], np.int32)}
    found = prefill.run({"tokens": given["tokens"], "features": made, **row})["logits"]
    parity.assert_close(found, wanted, 1e-4, "logits")


def test_image_tokens_without_an_image_are_words():
    _, owner = owner_of(peer(), batch=1, length=8, images=1)
    tokens = np.array([[3, *[IMAGE] * 5, 4, 5]], np.int32)
    given = parity.arrays(texts(), "f32")["pixels"][:1]
    before = owner.run({"tokens": tokens, "pixels": given})["logits"]
    table = owner.read_param("model.text_model.embed_tokens.weight").copy()
    table[IMAGE] += 1.0
    owner.set_parameter("model.text_model.embed_tokens.weight", table)
    after = owner.run({"tokens": tokens, "pixels": given})["logits"]
    assert np.array_equal(before[0, :5], after[0, :5])
    assert np.abs(before[0, 5] - after[0, 5]).max() > 1e-3


def test_mistakes_are_named():
    model, owner = owner_of(peer(), batch=1, length=8, images=1)
    generator = Generator(model, owner)
    with pytest.raises(
        darner.ArgumentError, match="prompt 0 has 3 tokens of images; 1 images take 4"
    ):
        generator.generate([1, *[IMAGE] * 3], pixels=np.zeros((1, 3, 25, 25), np.float32))
    with pytest.raises(
        darner.ArgumentError, match="3 images are not as many for each of 2 prompts"
    ):
        generator.generate([[1], [2]], pixels=np.zeros((3, 3, 25, 25), np.float32))
    config = {"model_type": "smolvlm", "vision_config": VISION, "text_config": TEXT}
    with pytest.raises(darner.ArgumentError, match="4 patches in a row cannot be joined by 3"):
        models.from_config({**config, "scale_factor": 3})
    with pytest.raises(darner.ArgumentError, match="a Llama or one of its kin, not 'gpt2'"):
        models.from_config({**config, "text_config": {"model_type": "gpt2"}})
    with pytest.raises(darner.ArgumentError, match="needs text_config"):
        models.from_config({"model_type": "smolvlm"})
    with pytest.raises(darner.ArgumentError, match="square, not of 4 x 5 patches"):
        models.from_config({**config, "vision_config": {**VISION, "image_size": [24, 30]}})


def test_parameters_of_the_real_sizes():
    """SmolVLM2-500M, by the sizes of its configuration."""
    text = {"vocab_size": 49280, "hidden_size": 960, "intermediate_size": 2560}
    text |= {"num_hidden_layers": 32, "num_attention_heads": 15, "num_key_value_heads": 5}
    vision = {"hidden_size": 768, "num_attention_heads": 12, "image_size": 512, "patch_size": 16}
    config = {"model_type": "smolvlm", "text_config": text, "vision_config": vision}
    model = models.from_config({**config, "scale_factor": 4, "image_token_id": 49190})
    assert model.config.image_tokens == 64
    graph = model.inference_graph(batch=1, length=100)
    assert sum(node.type.size for node in graph.parameters.values()) == 507_482_304
