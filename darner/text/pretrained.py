"""Text from the folder of a model, or from a name of the hub, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..data.vocabulary import CharVocabulary
from ..graph.errors import ArgumentError, FormatError
from ..io.reading import shown
from ..load import generation_config, pretrained
from ..load.texts import GENERATION
from ..models.causal import CausalLM
from ..session import Session
from .generation import Generator
from .sampling import GREEDY, Sampling
from .tokenizer import Tokenizer, stated_ends

CHARACTERS = "vocabulary.json"
"""The vocabulary of a model of characters, beside its weights."""
_SAMPLING = tuple(field.name for field in fields(Sampling))
_WRITING = ("max_new_tokens", "sampling", "stop", "on_step")


def load(
    path_or_id: str | os.PathLike[str], *, dtype: str = "f32", **session_options: Any
) -> Generator:
    """A language model that is ready to write, from its folder or its name on the hub.

    Its vocabulary is the folder's ``tokenizer.json`` (a ``Tokenizer``), or else the characters of ``vocabulary.json``; where there
    is neither, prompts are tokens. What ends a text is what the folder says.

    The generator's ``owner`` has the weights, and is never run itself; their memory goes back to the system when a session that
    writes keeps them in the order of its kernels. ``closing(generator)`` frees all of it.

    Args:
        path_or_id: see ``load.folder``.
        dtype: of weights and arithmetic; narrower types round the weights.
        session_options: of the sessions: ``threads``, ``device``, ``precision``.
    """
    found = pretrained(path_or_id, dtype=dtype, allow_rounding=dtype in ("bf16", "f16"))
    if not isinstance(found.model, CausalLM):
        raise ArgumentError(
            f"'{os.fspath(path_or_id)}' is a {found.config['model_type']}, which writes no text"
        )
    vocabulary = vocabulary_of(found.folder)
    ends = vocabulary.ends if isinstance(vocabulary, Tokenizer) else stated_ends(found.folder)
    # Never run: a graph of one token is enough to have every parameter.
    owner = found.inference_session(batch=1, length=1, **session_options)
    return Generator(found.model, owner, vocabulary, ends, options=dict(session_options))


def vocabulary_of(folder: str | os.PathLike[str]) -> Any:
    """The vocabulary of a model's folder: its tokenizer, its characters, or None where it has neither."""
    folder = Path(folder)
    if os.path.lexists(folder / "tokenizer.json"):
        return Tokenizer.from_folder(folder)
    if os.path.lexists(folder / CHARACTERS):
        return CharVocabulary.load(folder / CHARACTERS)
    return None


def sampling_of(folder: str | os.PathLike[str], **changes: Any) -> Sampling:
    """How a model's folder says that tokens are drawn (``generation_config.json``), with changes.

    Without ``do_sample`` the largest score is taken, unless a change only makes sense where tokens are drawn.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sampling_of(folder), sampling_of(folder, top_k=5).temperature
    (Sampling(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0, seed=0), 1.0)
    """
    settings = generation_config(folder)
    stated = {
        name: settings[name]
        for name in _SAMPLING
        if name != "seed" and settings.get(name) is not None
    }
    # What is said is checked even where it is not used: else it would be when somebody draws.
    try:
        drawn = Sampling(**stated)
    except ArgumentError as error:
        raise _wrong(folder, error.rule) from error
    draws_said = settings.get("do_sample")
    if draws_said is not None and not isinstance(draws_said, bool):
        raise _wrong(folder, f"do_sample is true or false, got {shown(draws_said)}")
    if draws_said:
        return replace(drawn, **changes)
    penalty = {name: stated[name] for name in ("repetition_penalty",) if name in stated}
    draws = any(name in changes for name in ("top_k", "top_p", "min_p"))
    return replace(GREEDY, **{**penalty, **({"temperature": 1.0} if draws else {}), **changes})


def _wrong(folder: str | os.PathLike[str], what: str) -> FormatError:
    return FormatError(
        f"'{Path(folder) / GENERATION}' has a wrong value: {what}", hint="correct it"
    )


@contextmanager
def closing(generator: Generator) -> Iterator[Generator]:
    """At the end the generator's sessions are closed, and those that have its weights."""
    with ExitStack() as closed:
        owners = generator.owner
        for owner in [owners] if isinstance(owners, Session) else owners:
            closed.callback(owner.close)
        closed.callback(generator.close)
        yield generator


def generate(model: Generator | str | os.PathLike[str], prompts: Any, **options: Any) -> Any:
    """What follows a prompt, or several: ``text.generate("HuggingFaceTB/SmolLM2-135M", "Once", temperature=0.7)``.

    Args:
        model: a ``Generator``, or what ``text.load`` takes; that is loaded for this call alone.
        prompts: as for ``Generator.generate``.
        options: those of ``Generator.generate`` and of ``Sampling``; the others are those of ``text.load``.
    """
    with _opened(model, options) as (generator, writing):
        return generator.generate(prompts, **writing)


def stream(model: Generator | str | os.PathLike[str], prompt: Any, **options: Any) -> Iterator[str]:
    """The text that follows a prompt, in pieces; arguments as for ``generate``."""
    with _opened(model, options) as (generator, writing):
        yield from generator.stream(prompt, **writing)


@contextmanager
def _opened(
    model: Generator | str | os.PathLike[str], options: dict[str, Any]
) -> Iterator[tuple[Generator, dict[str, Any]]]:
    writing = {name: options[name] for name in _WRITING if name in options}
    drawing = {name: options[name] for name in _SAMPLING if name in options}
    others = {name: options[name] for name in options if name not in {**writing, **drawing}}
    if drawing:
        writing["sampling"] = replace(writing.get("sampling", Sampling()), **drawing)
    if not isinstance(model, Generator):
        with closing(load(model, **others)) as generator:
            yield generator, writing
        return
    if others:
        raise ArgumentError(
            f"a Generator is made already, and takes no '{next(iter(others))}'",
            hint="give it to text.load",
        )
    yield model, writing
