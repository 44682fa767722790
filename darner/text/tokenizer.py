"""Tokenizers of model folders: ``tokenizer.json`` through the ``tokenizers`` package, and chat templates through Jinja."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..data.vocabulary import decoded, encoded, read_tokenizer
from ..graph.errors import ArgumentError, FormatError
from ..io.reading import read_json, read_text, shown
from ..load.texts import CONFIG, GENERATION
from .chat import MOST_TEMPLATE, render

TEMPLATE_FILE = "chat_template.jinja"
SETTINGS_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a model folder.

    Attributes:
        inner: the tokenizer of the ``tokenizers`` package.
        specials: special tokens by their role (``bos_token``, ``eos_token``, ``pad_token``), as text.
        template: of chats, in Jinja; None where the model has none.
        ends: tokens that end a text.
        template_file: where the template is from, for errors.
    """

    inner: Any
    specials: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    ends: frozenset[int] = frozenset()
    template_file: str = ""

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder that has ``tokenizer.json``."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not os.path.lexists(path):
            raise ArgumentError(
                f"there is no tokenizer.json in {folder}",
                hint="save the tokenizer with transformers once: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        inner = read_tokenizer(path)
        settings = _read(folder / SETTINGS_FILE)
        specials = {**_specials(_read(folder / "special_tokens_map.json")), **_specials(settings)}
        template, file = _template(folder, settings)
        return cls(inner, specials, template, _ends(folder, inner, specials), file)

    def __len__(self) -> int:
        return int(self.inner.get_vocab_size())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; ``special`` adds those that the model puts around one."""
        return encoded(self.inner, text, special)

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, without special ones unless asked."""
        return decoded(self.inner, tokens, special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        reply: bool = True,
        tools: Sequence[Any] | None = None,
        **variables: Any,
    ) -> str:
        """Messages (``{"role": "user", "content": "..."}``) as the one text the model was trained on.

        ``reply`` ends it where the model's answer begins. Special tokens are in the text: encode it with ``special=False``.

        Raises:
            ChatTemplateError: the template refuses the messages, is damaged, or does not end.
        """
        if self.template is None:
            raise ArgumentError(
                "this model has no chat template", hint="it continues text: generate() does that"
            )
        listed = isinstance(messages, Sequence) and not isinstance(messages, str)
        if not listed or not all(isinstance(one, Mapping) for one in messages):
            raise ArgumentError(
                "messages are a list of tables, each with a role and a content",
                hint='[{"role": "user", "content": "Hello"}]',
            )
        values = {
            **self.specials,
            **variables,
            "messages": list(messages),
            "tools": tools,
            "add_generation_prompt": reply,
        }
        return render(self.template, values, self.template_file)


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if os.path.lexists(path) else {}


def _specials(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of a file, which writes them as texts or as records with one."""
    found = {}
    for role, value in settings.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if role.endswith("_token") and isinstance(text, str):
            found[role] = text
    return found


def _template(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, str]:
    """The template of chats, and the file that it is in."""
    path = folder / TEMPLATE_FILE
    if os.path.lexists(path):
        return read_text(path, most=4 * MOST_TEMPLATE, what="a chat template"), os.fspath(path)
    path = folder / SETTINGS_FILE
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        if not all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in found):
            raise FormatError(f"'{path}' has a chat_template that is no list of named ones")
        named = {one["name"]: one.get("template") for one in found}
        found = named.get("default", next(iter(named.values()), None))
    if found is not None and not isinstance(found, str):
        raise FormatError(f"'{path}' has the chat_template {shown(found)}, which is no text")
    return found, os.fspath(path)


def stated_ends(folder: Path) -> frozenset[int]:
    """The tokens that end a text, by what a folder says of generation, or else of the model."""
    model = _read(folder / CONFIG)
    size = model.get("vocab_size")
    size = size if isinstance(size, int) and not isinstance(size, bool) else 1 << 31
    for name, settings in ((GENERATION, _read(folder / GENERATION)), (CONFIG, model)):
        found = settings.get("eos_token_id")
        tokens = found if isinstance(found, list) else [] if found is None else [found]
        for token in tokens:
            if type(token) is not int or not 0 <= token < size:
                raise FormatError(
                    f"'{folder / name}' has the eos_token_id {shown(found)}, and a token is from 0 to {size - 1:,}"
                )
        if tokens:
            return frozenset(tokens)
    return frozenset()


def _ends(folder: Path, inner: Any, specials: Mapping[str, str]) -> frozenset[int]:
    """What ends a text, by what the folder says of generation, of the model, and of the tokenizer."""
    stated = stated_ends(folder)
    if stated:
        return stated
    token = inner.token_to_id(specials["eos_token"]) if "eos_token" in specials else None
    return frozenset() if token is None else frozenset([token])
