"""Text as numbers and back: a vocabulary of characters, and one of pieces of words.

>>> from darner import data
>>> vocabulary = data.CharVocabulary.from_text("hello world")
>>> tokens = vocabulary.encode("hello")
>>> tokens, vocabulary.decode(tokens)
(array([3, 2, 4, 4, 5], dtype=int32), 'hello')
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..graph.arrays import as_array
from ..graph.data import Array
from ..graph.errors import ArgumentError, FormatError, optional
from ..io.atomic import Path, write_atomically
from ..io.reading import MOST_JSON, parse_json, read_file, read_text, shown

MOST_TOKENIZER = 256 << 20
"""Bytes of a ``tokenizer.json``; that of a quarter of a million tokens has 33 million."""


@runtime_checkable
class Vocabulary(Protocol):
    """Whatever turns text into tokens and back."""

    def __len__(self) -> int:
        """How many tokens there are."""
        ...

    def encode(self, text: str) -> Any:
        """The tokens of a text: an array or a list of integers."""
        ...

    def decode(self, tokens: Any) -> str:
        """The text of tokens."""
        ...


class CharVocabulary:
    """One token for each character, numbered in the order given.

    >>> vocabulary = CharVocabulary("abc")
    >>> vocabulary.encode("cab!")
    Traceback (most recent call last):
    darner.graph.errors.ArgumentError: the vocabulary of 3 characters has no '!' (line 1, column 4)
    """

    def __init__(self, characters: str) -> None:
        if not isinstance(characters, str):
            raise ArgumentError(
                f"the characters of a vocabulary are a text, got {shown(characters)}"
            )
        if not characters:
            raise ArgumentError("a vocabulary has at least one character")
        codes = _codes(characters)
        self._order = np.argsort(codes, kind="stable").astype(np.int32)
        self._sorted = codes[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if twice.size:
            raise ArgumentError(
                f"the characters of a vocabulary differ, but {chr(self._sorted[twice[0]])!r} is there twice",
                hint="from_text() takes each character of a text once",
            )
        self.characters = characters
        self._codes = codes

    @classmethod
    def from_text(cls, text: str) -> CharVocabulary:
        """The vocabulary of all characters of a text, in the order of Unicode."""
        return cls("".join(map(chr, np.unique(_codes(text)).tolist())))

    def __len__(self) -> int:
        """How many characters there are."""
        return len(self.characters)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharVocabulary) and self.characters == other.characters

    def __hash__(self) -> int:
        return hash(self.characters)

    def __repr__(self) -> str:
        return f"CharVocabulary({self.characters!r})"

    def encode(self, text: str) -> Array:
        """The tokens of a text (i32), one a character."""
        if not isinstance(text, str):
            raise ArgumentError(f"a vocabulary encodes a text, got {type(text).__name__}")
        codes = _codes(text)
        place = np.searchsorted(self._sorted, codes).clip(max=len(self) - 1)
        unknown = np.flatnonzero(self._sorted[place] != codes)
        if unknown.size:
            at = int(unknown[0])
            line = text.count("\n", 0, at) + 1
            column = at - text.rfind("\n", 0, at)
            raise ArgumentError(
                f"the vocabulary of {len(self)} characters has no {text[at]!r} (line {line}, column {column})"
            )
        tokens: Array = self._order[place]
        return tokens

    def decode(self, tokens: Any) -> str:
        """The text of tokens: one, or a row of them."""
        found = _as_tokens(tokens)
        outside = np.flatnonzero((found < 0) | (found >= len(self)))
        if outside.size:
            at = int(outside[0])
            raise ArgumentError(
                f"token {found[at]} at position {at} is outside the vocabulary of {len(self)} characters"
            )
        return self._codes[found].tobytes().decode("utf-32-le", "surrogatepass")

    def save(self, path: Path) -> None:
        """Write it to a JSON file."""
        content = {"format": "darner.characters", "characters": self.characters}
        # Escaped, so that the file holds any character, in whatever encoding it is read.
        write_atomically(path, [json.dumps(content, indent=1).encode() + b"\n"])

    @classmethod
    def load(cls, path: Path) -> CharVocabulary:
        """Read it from a file that ``save`` wrote."""
        name = f"'{os.fspath(path)}'"
        data = read_file(path, most=MOST_JSON, what="a vocabulary of characters")
        content = parse_json(data, name, halves=True)
        characters = content.get("characters") if isinstance(content, dict) else None
        if not isinstance(characters, str) or content.get("format") != "darner.characters":
            raise FormatError(f"{name} is not a vocabulary of characters")
        try:
            return cls(characters)
        except ArgumentError as error:
            raise FormatError(f"{name} is not a vocabulary of characters: {error.rule}") from None


class SubwordVocabulary:
    """The vocabulary of a tokenizer of the ``tokenizers`` package (extra ``text``), such as a ``tokenizer.json``.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, or the path of its JSON file, or of a folder that has a ``tokenizer.json``.
        special: whether ``encode`` adds the tokens that the tokenizer puts around a text, and ``decode`` shows them.
    """

    def __init__(self, tokenizer: Any, *, special: bool = False) -> None:
        is_path = isinstance(tokenizer, str | os.PathLike)
        self.tokenizer = read_tokenizer(tokenizer) if is_path else tokenizer
        self.special = special

    def __len__(self) -> int:
        """How many tokens there are."""
        return int(self.tokenizer.get_vocab_size())

    def encode(self, text: str) -> Array:
        """The tokens of a text (i32)."""
        return np.array(encoded(self.tokenizer, text, self.special), np.int32)

    def decode(self, tokens: Any) -> str:
        """The text of tokens."""
        return decoded(self.tokenizer, _as_tokens(tokens), self.special)


def read_tokenizer(path: str | os.PathLike[str]) -> Any:
    """The tokenizer of a JSON file, or of a folder that has a ``tokenizer.json``."""
    tokenizers = optional("tokenizers", "text", "a tokenizer")
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else os.fspath(path)
    content = read_text(file, most=MOST_TOKENIZER, what="a tokenizer")
    with _tokenizing(f"'{file}' is not a tokenizer"):
        return tokenizers.Tokenizer.from_str(content)


def encoded(tokenizer: Any, text: str, special: bool) -> list[int]:
    """The tokens of a text, by a tokenizer of the package; ``special`` adds those around it."""
    if not isinstance(text, str):
        raise ArgumentError(f"a tokenizer encodes a text, got {shown(text)}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ArgumentError(f"the text is not valid Unicode: {error}") from None
    with _tokenizing("the tokenizer cannot encode this text"):
        return list(tokenizer.encode(text, add_special_tokens=special).ids)


def decoded(tokenizer: Any, tokens: Any, special: bool) -> str:
    """The text of tokens, by a tokenizer of the package; ``special`` shows special ones."""
    found = _as_tokens(tokens).tolist()
    wrong = [token for token in found if not 0 <= token < 1 << 32]
    if wrong:
        raise ArgumentError(f"there is no token {wrong[0]}")
    with _tokenizing("the tokenizer cannot decode these tokens"):
        return str(tokenizer.decode(found, skip_special_tokens=not special))


@contextmanager
def _tokenizing(what: str) -> Iterator[None]:
    """Turn whatever the package raises into an error that says what was done."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # where its code in Rust gives up, it is no Exception
        raise FormatError(f"{what}: {' '.join(str(error).split())[:300]}") from error


def _codes(text: str) -> Array:
    """The code points of a text; those that no text should have (lone surrogates) are characters too."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _as_tokens(tokens: Any) -> Array:
    found, _ = as_array(tokens, "tokens", ArgumentError)
    if found.size and found.dtype.kind not in "iu":
        raise ArgumentError(f"tokens are whole numbers, got {found.dtype}")
    return found.reshape(-1).astype(np.int64)
