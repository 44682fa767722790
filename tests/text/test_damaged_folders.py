"""What a folder says of its tokenizer and of generation, damaged in every way: errors of darner's own, which name the file."""

import json
import math
import os

import numpy as np
import pytest

from darner import ArgumentError, DarnerError, FormatError, data, load
from darner.io.atomic import FileError
from darner.text import Sampling, Tokenizer, sampling_of
from darner.text.tokenizer import stated_ends

tokenizers = pytest.importorskip("tokenizers")

PLAIN = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2}, "unk_token": "?"},
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.json").write_text(json.dumps(PLAIN))
    return tmp_path


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", ["hot", -1, math.nan, math.inf, True, [], {}, 10**400], ids=repr)
@pytest.mark.parametrize("sampled", [True, False])
def test_numbers_of_generation_are_checked(tmp_path, name, value, sampled):
    table = {name: value, "do_sample": sampled}
    (tmp_path / "generation_config.json").write_text(json.dumps(table))
    with pytest.raises(
        FormatError, match=rf"generation_config.json' has a wrong value: {name} is .*, got"
    ):
        sampling_of(tmp_path)
    with pytest.raises(ArgumentError, match=f"{name} is "):
        Sampling(**{name: value})


@pytest.mark.parametrize("name", ["max_length", "max_new_tokens", "num_beams"])
@pytest.mark.parametrize("value", [-1, 1.5, "x", True, math.nan, [], 10**400], ids=repr)
def test_lengths_of_generation_are_checked(tmp_path, name, value):
    (tmp_path / "generation_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(FormatError, match=rf"generation_config.json' has {name}=.*no number of"):
        load.generation_config(tmp_path)


def test_whether_tokens_are_drawn_is_true_or_false(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"do_sample": "yes"}')
    with pytest.raises(
        FormatError, match=r"generation_config.json' has a wrong value: do_sample is"
    ):
        sampling_of(tmp_path)
    with pytest.raises(ArgumentError, match=r"seed is a whole number, got 1\.5"):
        Sampling(seed=1.5)


@pytest.mark.parametrize("value", [-1, 64, 10**12, "2", 1.5, True, [1, "x"], [None], {}], ids=repr)
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_tokens_that_end_texts_are_in_the_vocabulary(tmp_path, name, value):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 64}))
    path = tmp_path / name
    table = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**table, "eos_token_id": value}))
    with pytest.raises(FormatError, match=rf"{name}' has the eos_token_id .* from 0 to 63"):
        stated_ends(tmp_path)
    path.write_text(json.dumps({**table, "eos_token_id": [3, 5]}))
    assert stated_ends(tmp_path) == {3, 5}


def test_damage_of_a_tokenizer_is_told(folder):
    """Bytes changed at random: it is read, or refused by an error of darner's own."""
    path, rng = folder / "tokenizer.json", np.random.default_rng(0)
    whole, refused = path.read_bytes(), 0
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), 2):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            made = Tokenizer.from_folder(folder)
            made.decode(made.encode("a b"))
        except DarnerError as error:
            refused += "tokenizer" in str(error)
    assert refused > 50


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"type": "Nothing"}},
        {"model": None},
        {"model": []},
        {"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "?"}},
        {"model": {"type": "BPE", "vocab": {}, "merges": [["a", "b"]]}},
        {"model": {"type": "Unigram", "vocab": [["a", "x"]]}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "////////////"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}},
        {"version": "9"},
        {"added_tokens": [{"id": 2**40, "content": "x"}]},
    ],
    ids=repr,
)
def test_a_tokenizer_that_its_package_refuses_is_named(folder, changes, capfd):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**PLAIN, **changes}))
    with pytest.raises(FormatError, match=r"tokenizer.json' is not a tokenizer: ") as caught:
        Tokenizer.from_folder(folder)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_gives_up_inside_its_package_is_an_error(folder, capfd):
    """Code in Rust that stops is no Exception in Python."""
    table = {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8A"}
    (folder / "tokenizer.json").write_text(json.dumps({**PLAIN, "normalizer": table}))
    with pytest.raises(FormatError, match="tokenizer"):
        Tokenizer.from_folder(folder).encode("abcdefgh")


def test_files_that_are_no_files_are_refused(folder):
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(FileError, match="it is not a regular file"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text(json.dumps(PLAIN))
    for name in ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        (folder / name).symlink_to("/dev/zero")
        with pytest.raises(FileError, match=name):
            Tokenizer.from_folder(folder)
        (folder / name).unlink()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer_config.json", b"[1]", "holds a JSON list"),
        ("tokenizer_config.json", b"{", "is not JSON"),
        ("tokenizer_config.json", b'{"chat_template": 3}', "the chat_template 3, which is no text"),
        ("tokenizer_config.json", b'{"chat_template": [3]}', "no list of named ones"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": []}]}', "no list of named ones"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": 1}]}', "no text"),
        ("special_tokens_map.json", b"\xff", "no text in UTF-8"),
        ("chat_template.jinja", b"\xff", "no text in UTF-8"),
        ("chat_template.jinja", b"x" * 500_000, "a chat template has at most"),
    ],
)  # fmt: skip
def test_what_is_wrong_beside_a_tokenizer_is_told(folder, name, text, message):
    (folder / name).write_bytes(text)
    with pytest.raises(FormatError, match=f"{name}' .*{message}"):
        Tokenizer.from_folder(folder)


def test_texts_and_tokens_that_are_none_are_refused(folder):
    made = Tokenizer.from_folder(folder)
    subwords = data.SubwordVocabulary(folder)
    for text in (3, None, b"a", ["a"], "\ud800"):
        for one in (made, subwords):
            with pytest.raises(ArgumentError, match="text"):
                one.encode(text)
    for tokens in ([-1], [2**40], [1.5], ["a"]):
        for one in (made, subwords):
            with pytest.raises(ArgumentError, match="token"):
                one.decode(tokens)
    assert made.decode([99]) == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"characters": "aba"}, "'a' is there twice"),
        ({"characters": ""}, "at least one character"),
        ({"characters": 3}, "is not a vocabulary of characters"),
        ({"characters": ["a", "b"]}, "is not a vocabulary of characters"),
        ({"format": []}, "is not a vocabulary of characters"),
    ],
)
def test_a_vocabulary_of_characters_that_is_none_is_told(tmp_path, content, message):
    whole = {"format": "darner.characters", "characters": "ab"}
    path = tmp_path / "vocabulary.json"
    path.write_text(json.dumps({**whole, **content}))
    with pytest.raises(FormatError, match=rf"vocabulary.json' is not .*{message}|{message}"):
        data.CharVocabulary.load(path)
    path.write_text('{"format": "darner.characters", "characters": "a\\ud800"}')
    assert len(data.CharVocabulary.load(path)) == 2
