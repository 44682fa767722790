"""Texts from the cache path: the same as from the whole text computed anew, and as transformers writes."""

import numpy as np
import pytest
import torch
import transformers

import darner
from darner import ArgumentError, models
from darner.text import Generator, Sampling
from darner.text.generation import bucket

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


class Letters:
    """A vocabulary of 97 characters."""

    def encode(self, text):
        return [ord(letter) - 32 for letter in text]

    def decode(self, tokens):
        return "".join(chr(token + 32) for token in tokens)


@pytest.fixture(scope="module")
def made():
    torch.manual_seed(2)
    config = transformers.LlamaConfig(**SIZES)
    peer = transformers.LlamaForCausalLM(config).eval()
    for value in peer.parameters():  # larger, so that texts are not one token repeated
        value.data.mul_(3.0)
    model = models.from_config(config.to_dict())
    owner = darner.build_inference_session(model.inference_graph(batch=1, length=96))
    for name, value in peer.state_dict().items():
        owner.set_parameter(name, value.numpy())
    return peer, model, owner


def continued(peer, prompts, count):
    """Greedy tokens of transformers, from a batch padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.zeros((len(prompts), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    with torch.no_grad():
        found = peer.generate(ids, attention_mask=mask, max_new_tokens=count, do_sample=False)
    return found[:, longest:].tolist()


def recomputed(owner, prompt, count):
    """Greedy tokens, with the whole text computed anew for each."""
    text = list(prompt)
    for _ in range(count):
        padded = np.zeros((1, 96), np.int32)
        padded[0, : len(text)] = text
        text.append(int(owner.run({"tokens": padded})["logits"][0, len(text) - 1].argmax()))
    return text[len(prompt) :]


def test_64_tokens_are_those_of_recomputation_and_of_transformers(made):
    peer, model, owner = made
    prompt = [5, 17, 80, 3, 3, 41, 9]
    found = Generator(model, owner).generate(prompt, max_new_tokens=64)
    assert found.tokens == recomputed(owner, prompt, 64)
    assert found.tokens == continued(peer, [prompt], 64)[0]
    assert found.reason == "length"
    assert len(set(found.tokens)) > 5


def test_a_batch_of_different_lengths_is_as_each_text_alone(made):
    peer, model, owner = made
    prompts = [[5, 17, 80, 3, 3, 41, 9], [1], [60, 61, 62, 60], list(range(1, 20))]
    generator = Generator(model, owner)
    found = [one.tokens for one in generator.generate(prompts, max_new_tokens=30)]
    assert found == continued(peer, prompts, 30)
    assert found == [generator.generate(one, max_new_tokens=30).tokens for one in prompts]


def test_prompts_of_every_length_around_a_bucket_give_the_same_text(made):
    _, model, owner = made
    generator = Generator(model, owner)
    for length in (1, 2, 15, 16, 17, 24, 25):
        prompt = [(7 * i) % 97 for i in range(length)]
        found = generator.generate(prompt, max_new_tokens=4).tokens
        assert found == recomputed(owner, prompt, 4), length


def test_a_seed_gives_the_same_text_again_and_another_gives_another(made):
    _, model, owner = made
    generator = Generator(model, owner)

    def text(seed):
        sampling = Sampling(temperature=1.5, top_k=40, seed=seed)
        return generator.generate([5, 6, 7], max_new_tokens=20, sampling=sampling).tokens

    assert text(1) == text(1)
    assert text(1) != text(2)


def test_a_text_ends_at_a_token_that_ends_texts_and_others_go_on(made):
    _, model, owner = made
    plain = Generator(model, owner)
    prompts = [[5, 17, 80], [1, 2, 3]]
    whole = [one.tokens for one in plain.generate(prompts, max_new_tokens=12)]
    end = whole[0][5]
    ending = Generator(model, owner, ends=frozenset([end]))
    found = ending.generate(prompts, max_new_tokens=12)
    for one, all_of_it in zip(found, whole, strict=True):
        cut = all_of_it.index(end) if end in all_of_it else 12
        assert one.tokens == all_of_it[:cut]
        assert one.reason == ("stop" if cut < 12 else "length")


def test_a_stop_string_ends_the_text_before_it_and_never_shows(made):
    _, model, owner = made
    generator = Generator(model, owner, Letters())
    whole = generator.generate("hello", max_new_tokens=20).text
    stop = whole[7:10]
    place = whole.index(stop)
    found = generator.generate("hello", max_new_tokens=20, stop=stop)
    assert (found.text, found.reason) == (whole[:place], "stop")
    pieces = list(generator.stream("hello", max_new_tokens=20, stop=[stop, "never this"]))
    assert "".join(pieces) == whole[:place]


def test_a_stream_is_the_text_in_pieces(made):
    _, model, owner = made
    generator = Generator(model, owner, Letters())
    pieces = list(generator.stream("hello", max_new_tokens=15))
    assert "".join(pieces) == generator.generate("hello", max_new_tokens=15).text
    assert len(pieces) == 15


def test_pieces_wait_for_characters_that_take_several_tokens(made):
    _, model, owner = made

    class Bytes:
        def encode(self, text):
            return list(text.encode())

        def decode(self, tokens):
            return bytes(0xC3 if token % 2 else 0xA9 for token in tokens).decode(errors="replace")

    pieces = list(Generator(model, owner, Bytes()).stream([1, 2], max_new_tokens=12))
    assert all(not piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces[:-1])


def test_the_text_ends_where_the_model_has_no_more_positions(made):
    _, model, owner = made
    generator = Generator(model, owner, limit=40)
    found = generator.generate([3] * 30, max_new_tokens=50)
    assert (len(found.tokens), found.reason) == (10, "cache")
    assert found.tokens == recomputed(owner, [3] * 30, 10)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "prompt 0 has no tokens"),
        ([5, 97], "prompt 0 has the token 97; the vocabulary has 97"),
        ([1] * 128, "prompt 0 has 128 tokens, and the model takes 128"),
        ("text", "a prompt of text needs a vocabulary"),
    ],
)
def test_a_prompt_that_cannot_be_is_refused(made, prompt, words):
    _, model, owner = made
    with pytest.raises(ArgumentError, match=words):
        Generator(model, owner).generate(prompt, max_new_tokens=3)


def test_learning_changes_what_is_written(made):
    _, model, _ = made
    training = darner.build_session(
        model.training_graph(batch=1, length=8), optimizer=darner.optim.Adam(1e-2), seed=1
    )
    tokens = np.array([[1, 2, 3, 4, 1, 2, 3, 4]], np.int32)
    labels = np.roll(tokens, -1, axis=1)
    generator = Generator(model, training)
    generator.generate([1, 2], max_new_tokens=6)
    for _ in range(60):
        training.run({"tokens": tokens, "labels": labels})
    assert generator.generate([1, 2], max_new_tokens=6).tokens == [3, 4, 1, 2, 3, 4]
    generator.close()


def test_buckets_are_never_shorter_and_at_most_half_as_long_again():
    for length in range(1, 3000):
        assert length <= bucket(length) <= max(16, 1.5 * length)


@pytest.mark.parametrize("precision", ["bf16", "f16"])
def test_texts_in_a_lower_precision_are_those_of_recomputation_in_it(made, precision):
    _, model, owner = made
    prompt, options = [5, 17, 80, 3, 3, 41, 9], {"precision": precision}
    found = Generator(model, owner, options=options).generate(prompt, max_new_tokens=12)
    graph = model.inference_graph(batch=1, length=96)
    with darner.build_inference_session(graph, share=owner, **options) as wide:
        assert found.tokens == recomputed(wide, prompt, 12)
