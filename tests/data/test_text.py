"""Vocabularies and texts."""

import gzip
import json
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from darner import ArgumentError, FormatError, MissingPackageError, data

ANY = st.text(st.characters(exclude_categories=()), max_size=40)
"""Any text, lone surrogates included."""


@given(ANY.filter(bool), st.data())
def test_every_text_of_the_vocabulary_goes_there_and_back(text, draw):
    vocabulary = data.CharVocabulary.from_text(text)
    assert vocabulary.characters == "".join(sorted(set(text)))
    tokens = vocabulary.encode(text)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [vocabulary.characters.index(character) for character in text]
    assert vocabulary.decode(tokens) == text
    mixed = "".join(draw.draw(st.permutations(sorted(set(text)))))
    assert data.CharVocabulary(mixed).encode(text).tolist() == [mixed.index(each) for each in text]


@given(ANY.filter(bool))
def test_a_vocabulary_goes_through_its_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("vocabulary") / "characters.json"
    vocabulary = data.CharVocabulary.from_text(text)
    vocabulary.save(path)
    assert data.CharVocabulary.load(path) == vocabulary
    assert json.loads(path.read_text())["characters"] == vocabulary.characters


def test_empty_texts_are_texts():
    vocabulary = data.CharVocabulary("ab")
    assert vocabulary.encode("").shape == (0,)
    assert vocabulary.decode([]) == ""
    assert vocabulary.decode(np.array(1)) == "b"
    assert len(vocabulary) == 2


def test_what_a_vocabulary_does_not_know_is_told():
    vocabulary = data.CharVocabulary.from_text("abc\n")
    with pytest.raises(ArgumentError, match=r"4 characters has no 'ä' \(line 3, column 2\)"):
        vocabulary.encode("abc\nab\naäb?")
    with pytest.raises(ArgumentError, match="token 4 at position 2 is outside the vocabulary of 4"):
        vocabulary.decode([0, 1, 4])
    with pytest.raises(ArgumentError, match="token -1 at position 0"):
        vocabulary.decode([-1])
    with pytest.raises(ArgumentError, match="whole numbers, got float64"):
        vocabulary.decode([0.5])
    with pytest.raises(ArgumentError, match="'b' is there twice"):
        data.CharVocabulary("abcb")
    with pytest.raises(ArgumentError, match="at least one character"):
        data.CharVocabulary.from_text("")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a vocabulary of characters"),
        ('{"characters": "ab"}', "is not a vocabulary of characters"),
        ('{"characters": 7, "format": "darner.characters"}', "is not a vocabulary of characters"),
    ],
)
def test_files_that_are_no_vocabulary_are_told(tmp_path, content, message):
    (tmp_path / "some.json").write_text(content)
    with pytest.raises(FormatError, match=f"some.json' {message}"):
        data.CharVocabulary.load(tmp_path / "some.json")
    with pytest.raises(OSError, match=r"cannot read '.*none.json'"):
        data.CharVocabulary.load(tmp_path / "none.json")


@pytest.fixture
def tokenizer():
    import tokenizers

    words = {"[UNK]": 0, "[BOS]": 1, "to": 2, "be": 3, "or": 4, "not": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.add_special_tokens(["[BOS]"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[BOS] $A", special_tokens=[("[BOS]", 1)]
    )
    return made


def test_a_tokenizer_has_the_same_methods(tokenizer, tmp_path):
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for given_as in (tokenizer, tmp_path / "tokenizer.json", str(tmp_path)):
        vocabulary = data.SubwordVocabulary(given_as)
        assert isinstance(vocabulary, data.Vocabulary)
        tokens = vocabulary.encode("to be or not to be")
        assert tokens.dtype == np.int32
        assert tokens.tolist() == [2, 3, 4, 5, 2, 3]
        assert vocabulary.decode(tokens) == "to be or not to be"
        assert vocabulary.decode([1, 2]) == "to"
        assert len(vocabulary) == 6
    special = data.SubwordVocabulary(tokenizer, special=True)
    assert special.encode("be").tolist() == [1, 3]
    assert special.decode([1, 3]) == "[BOS] be"


def test_tokenizers_that_cannot_be_read_are_told(tmp_path, monkeypatch):
    (tmp_path / "some.json").write_text("{}")
    with pytest.raises(FormatError, match=r"some.json' is not a tokenizer"):
        data.SubwordVocabulary(tmp_path / "some.json")
    with pytest.raises(OSError, match=r"cannot read '.*none.json'"):
        data.SubwordVocabulary(tmp_path / "none.json")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        MissingPackageError, match=r"takes the package 'tokenizers'.*darner\[text\]"
    ):
        data.SubwordVocabulary(tmp_path / "some.json")


def test_shakespeare_comes_with_darner(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("darner.data.places.CHECKOUT", tmp_path / "elsewhere")
    text = data.shakespeare()
    assert len(text) == 1_115_394
    assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.\n")
    assert len(data.CharVocabulary.from_text(text)) == 65


def test_shakespeare_from_elsewhere_and_where_it_was_looked_for(tmp_path):
    (tmp_path / "tinyshakespeare.txt").write_text("To be, ünd", encoding="utf-8")
    (tmp_path / "other.gz").write_bytes(gzip.compress(b"or not"))
    assert data.shakespeare(tmp_path) == "To be, ünd"
    assert data.shakespeare(tmp_path / "other.gz") == "or not"
    (tmp_path / "latin").write_bytes(b"\xfcnd")
    with pytest.raises(FormatError, match="latin' is no text in UTF-8"):
        data.read_text(tmp_path / "latin")
    with pytest.raises(OSError, match=r"cannot read '.*none'"):
        data.shakespeare(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"empty/tinyshakespeare.txt.gz', .*comes with darner"
    ):
        data.shakespeare(tmp_path / "empty")
