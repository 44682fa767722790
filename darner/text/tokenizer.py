"""Tokenizers of model folders: ``tokenizer.json`` through the ``tokenizers`` package, and chat templates through Jinja."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from ..data.vocabulary import read_tokenizer, tokens_of
from ..graph.errors import ArgumentError, DarnerError, FormatError, optional
from ..session.atomic import FileError

TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class Tokenizer:
    """The tokenizer of a model folder.

    Attributes:
        inner: the tokenizer of the ``tokenizers`` package.
        specials: special tokens by their role (``bos_token``, ``eos_token``, ``pad_token``), as text.
        template: of chats, in Jinja; None where the model has none.
        ends: tokens that end a text.
    """

    inner: Any
    specials: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    ends: frozenset[int] = frozenset()

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer of a folder that has ``tokenizer.json``."""
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ArgumentError(
                f"there is no tokenizer.json in {folder}",
                hint="save the tokenizer with transformers once: AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            )
        inner = read_tokenizer(path)
        settings = _read(folder / "tokenizer_config.json")
        specials = {**_specials(_read(folder / "special_tokens_map.json")), **_specials(settings)}
        return cls(inner, specials, _template(folder, settings), _ends(folder, inner, specials))

    def __len__(self) -> int:
        return int(self.inner.get_vocab_size())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; ``special`` adds those that the model puts around one."""
        return list(tokens_of(self.inner, text, special))

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of tokens, without special ones unless asked."""
        found = self.inner.decode([int(token) for token in tokens], skip_special_tokens=not special)
        return str(found)

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
        """
        if self.template is None:
            raise ArgumentError(
                "this model has no chat template", hint="it continues text: generate() does that"
            )
        environment = _environment()
        try:
            template = environment.from_string(self.template)
            found = template.render(
                messages=list(messages),
                tools=tools,
                add_generation_prompt=reply,
                **self.specials,
                **variables,
            )
        except Exception as error:  # a template is a program, and may raise whatever a program does
            raise _template_error(error) from error
        return str(found)


def _template_error(error: Exception) -> DarnerError:
    """What a template raised: its own words where it refuses messages, else that it is at fault."""
    from jinja2.exceptions import TemplateError, TemplateSyntaxError

    if isinstance(error, MessagesRefusedError):
        return ArgumentError(f"the chat template takes no such messages: {error}")
    place = f", line {error.lineno}" if isinstance(error, TemplateSyntaxError) else ""
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return FormatError(
        f"the model's chat template does not work{place}: {kind}{error}",
        hint=f"it is {TEMPLATE_FILE} of the model's folder, or in its tokenizer_config.json",
    )


class MessagesRefusedError(ValueError):
    """A template called ``raise_exception``: it was made for other messages."""


def _environment() -> Any:
    """Jinja as chat templates expect it: nothing of the machine can be reached."""
    optional("jinja2", "text", "a chat template")
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> None:
        raise MessagesRefusedError(message)

    def tojson(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return made


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes().decode())
    except OSError as error:
        raise FileError.of("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"'{path}' is no JSON: {error}") from error
    return found if isinstance(found, dict) else {}


def _specials(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of a file, which writes them as texts or as records with one."""
    found = {}
    for role, value in settings.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if role.endswith("_token") and isinstance(text, str):
            found[role] = text
    return found


def _template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    path = folder / TEMPLATE_FILE
    if path.is_file():
        try:
            return path.read_bytes().decode()
        except OSError as error:
            raise FileError.of("read", path, error) from error
        except UnicodeDecodeError as error:
            raise FormatError(f"'{path}' is no text in UTF-8: {error}") from error
    found = settings.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default", next(iter(named.values()), None))
    return found if isinstance(found, str) else None


def stated_ends(folder: Path) -> frozenset[int]:
    """The tokens that end a text, by what a folder says of generation, or else of the model."""
    for name in ("generation_config.json", "config.json"):
        found = _read(folder / name).get("eos_token_id")
        tokens = found if isinstance(found, list) else [] if found is None else [found]
        if not all(isinstance(one, int) and not isinstance(one, bool) for one in tokens):
            raise FormatError(
                f"'{folder / name}' has {found!r} for eos_token_id, which is a token's number, or several"
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
