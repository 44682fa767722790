"""Writing text: a session that reads the prompt, one that adds a token at a time, and the cache they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..data.vocabulary import Vocabulary
from ..graph.data import Array
from ..graph.errors import ArgumentError
from ..graph.integers import round_up
from ..models.causal import CausalLM
from ..session import Session, build_inference_session
from .sampling import GREEDY, Sampling

STEP_OF_CACHE = 256
"""Caches are as long as a multiple of it, so that texts of similar length use the same sessions."""
LEAST_BUCKET = 16
"""Prompts are padded to a power of two times 1 or 1.5, from here on."""


@dataclass(frozen=True)
class Completion:
    """What was written after a prompt.

    Attributes:
        tokens: new ones, without the one that ended the text.
        text: of these, where there is a vocabulary; without the stop string.
        reason: ``"stop"`` (a token or string that ends texts), ``"length"``, or ``"cache"`` (no room left).
    """

    tokens: list[int]
    text: str
    reason: str


def bucket(length: int) -> int:
    """The length to which a prompt is padded: at most half as long again.

    >>> [bucket(n) for n in (1, 17, 25, 100)]
    [16, 24, 32, 128]
    """
    size = LEAST_BUCKET
    while size < length:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@dataclass
class Generator:
    """A language model ready to write: sessions are built when first needed, and kept.

    Attributes:
        model: the architecture.
        owner: a session that has its parameters, which all others use; or several, each of which has a part of them (an
            encoder has the states of what it read).
        vocabulary: to read and write text; without it, prompts are tokens.
        ends: tokens that end a text.
        limit: tokens of prompt and answer together; the model's own limit when left out.
        options: of the sessions (``threads``, ``device``, ``precision``).
    """

    model: CausalLM
    owner: Session | Sequence[Session]
    vocabulary: Vocabulary | None = None
    ends: frozenset[int] = frozenset()
    limit: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    _sessions: dict[tuple[int, int, bool], dict[tuple[int, int], Session]] = field(
        default_factory=dict, repr=False
    )

    # ------------------------------------------------------------- texts

    def generate(
        self,
        prompts: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 128,
        sampling: Sampling = GREEDY,
        stop: str | Sequence[str] = (),
        on_step: Callable[[int], None] | None = None,
        pixels: Array | None = None,
    ) -> Any:
        """What follows a prompt (a ``Completion``), or several at once (a list of them).

        ``on_step`` is called with the number of tokens so far after each. ``pixels`` are those of the prompts' images, for a
        model that sees: as many for each prompt, one prompt after the other.
        """
        if not isinstance(prompts, str) and not hasattr(prompts, "__len__"):
            raise ArgumentError(
                f"a prompt is a text or a row of tokens, got {prompts!r}",
                hint="or a list of prompts",
            )
        many = not isinstance(prompts, str) and bool(len(prompts)) and not _is_number(prompts[0])
        given: list[Any] = list(prompts) if many else [prompts]
        tokens = [self._tokens(prompt) for prompt in given]
        writing = [_Written(self, stop) for _ in tokens]
        steps = self.tokens(tokens, max_new_tokens=max_new_tokens, sampling=sampling, pixels=pixels)
        for count, new in enumerate(steps, 1):
            for one, token in zip(writing, new, strict=True):
                one.add(int(token))
            if on_step is not None:
                on_step(count)
            if all(one.reason for one in writing):
                break
        asked = max(len(one) for one in tokens) + max_new_tokens
        reason = "length" if asked <= self._most else "cache"
        found = [one.finished(reason) for one in writing]
        return found if many else found[0]

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        max_new_tokens: int = 128,
        sampling: Sampling = GREEDY,
        stop: str | Sequence[str] = (),
        on_step: Callable[[int], None] | None = None,
        pixels: Array | None = None,
    ) -> Iterator[str]:
        """The text that follows a prompt, in pieces as they become certain.

        A piece is held back while it may be the beginning of a stop string, or of a character that takes several tokens.
        ``on_step`` is called with the number of tokens so far after each.
        """
        if self.vocabulary is None:
            raise ArgumentError("text is streamed with a vocabulary; tokens() gives tokens")
        written = _Written(self, stop)
        shown = 0
        steps = self.tokens(
            [self._tokens(prompt)], max_new_tokens=max_new_tokens, sampling=sampling, pixels=pixels
        )
        for count, new in enumerate(steps, 1):
            written.add(int(new[0]))
            if on_step is not None:
                on_step(count)
            sure = written.certain()
            if len(sure) > shown:
                yield sure[shown:]
                shown = len(sure)
            if written.reason:
                return
        rest = written.finished("length").text
        if len(rest) > shown:
            yield rest[shown:]

    # ------------------------------------------------------------- tokens

    def tokens(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 128,
        sampling: Sampling = GREEDY,
        pixels: Array | None = None,
    ) -> Iterator[Array]:
        """The next token of each text, (batch,), then the one after it, and so on.

        It goes on after a text has ended: who reads it knows when to stop.
        """
        texts = [[int(token) for token in prompt] for prompt in prompts]
        longest, room, padded, cache, size, sessions = self._arranged(texts, max_new_tokens)
        images = self._images(texts, pixels)
        start = np.array([longest - len(text) for text in texts], np.int32)
        inputs: dict[str, Array] = {"start": start} if padded else {}
        rows = np.zeros((len(texts), size), np.int32)
        for row, text, begin in zip(rows, texts, start, strict=True):
            row[begin:longest] = text
        inputs |= {"tokens": rows, "position": np.zeros(1, np.int32)}
        if size > 1:
            inputs["last"] = np.array([longest - 1], np.int32)
        if pixels is not None:
            inputs["pixels"] = pixels
        reading = self._session(sessions, size, len(texts), cache, padded, images)
        scores = reading.run(inputs, copy=False)
        decode = (
            self._session(sessions, 1, len(texts), cache, padded) if room > longest + 1 else None
        )
        position, new = np.zeros(1, np.int32), np.zeros((len(texts), 1), np.int32)
        following = {"start": start} if padded else {}
        following |= {"tokens": new, "position": position}
        for step in range(room - longest):
            chosen = sampling.choose(scores["logits"], texts, step)
            yield chosen
            if step + 1 == room - longest or decode is None:
                return
            for text, token in zip(texts, chosen, strict=True):
                text.append(int(token))
            new[:, 0] = chosen
            position[0] = longest + step
            scores = decode.run(following, copy=False)

    def prepare(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int = 128) -> None:
        """Build and compile the sessions that texts like these need, so that writing starts at once."""
        longest, room, padded, cache, size, group = self._arranged(prompts, max_new_tokens)
        for length in (size, 1) if room > longest + 1 else (size,):
            self._session(group, length, len(prompts), cache, padded).compile()

    def close(self) -> None:
        """Close the sessions that were built; the owner stays open."""
        for group in self._sessions.values():
            for session in group.values():
                session.close()
        self._sessions.clear()

    def __enter__(self) -> Generator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------- sessions

    @property
    def _most(self) -> int:
        config = self.model.config
        own = getattr(config, "max_position_embeddings", None) or getattr(
            config, "n_positions", None
        )
        limits = [limit for limit in (self.limit, own) if limit]
        return min(limits) if limits else 2**31

    def _arranged(
        self, texts: Sequence[Sequence[int]], max_new_tokens: int
    ) -> tuple[int, int, bool, int, int, dict[tuple[int, int], Session]]:
        """The longest text, the room it gets, whether others are padded, the cache, the bucket, and the sessions."""
        self._check(texts, max_new_tokens)
        longest = max(len(text) for text in texts)
        room = min(longest + max_new_tokens, self._most)
        padded = any(len(text) != longest for text in texts)
        sessions, cache = self._group(len(texts), longest, room, padded)
        return longest, room, padded, cache, min(bucket(longest), cache), sessions

    def _group(
        self, batch: int, longest: int, room: int, padded: bool
    ) -> tuple[dict[tuple[int, int], Session], int]:
        """Sessions with a cache that is long enough."""
        needed = max(room, min(bucket(longest), self._most))
        for (count, cache, pads), found in self._sessions.items():
            if count == batch and cache >= needed and (pads == padded):
                return found, cache
        cache = min(round_up(needed, STEP_OF_CACHE), max(self._most, needed))
        return self._sessions.setdefault((batch, cache, padded), {}), cache

    def _session(
        self,
        group: dict[tuple[int, int], Session],
        length: int,
        batch: int,
        cache: int,
        padded: bool,
        images: int = 0,
    ) -> Session:
        key = (length, images)
        if key not in group:
            rest = {"images": images} if images else {}
            graph = self.model.cached_graph(
                batch=batch, length=length, cache=cache, padded=padded, **rest
            )
            owners = [self.owner] if isinstance(self.owner, Session) else [*self.owner]
            # The caches are the group's; parameters that only some graphs have are the owners'.
            sources = [*owners, *list(group.values())[:1]]
            group[key] = build_inference_session(graph, share=sources, **self.options)
        return group[key]

    # ------------------------------------------------------------- checks

    def _tokens(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, str):
            return [int(token) for token in prompt]
        if self.vocabulary is None:
            raise ArgumentError("a prompt of text needs a vocabulary; give tokens")
        return list(self.vocabulary.encode(prompt))

    def _images(self, texts: list[list[int]], pixels: Array | None) -> int:
        """How many images each text has."""
        check = getattr(self.model, "check_images", None)
        if check is None:
            if pixels is not None:
                raise ArgumentError(f"a '{self.model.config.model_type}' sees no images")
            return 0
        count = 0 if pixels is None else len(pixels)
        if count % len(texts):
            raise ArgumentError(f"{count} images are not as many for each of {len(texts)} prompts")
        check(texts, count // len(texts))
        return count // len(texts)

    def _check(self, texts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
        if not texts:
            raise ArgumentError("there is no prompt")
        if max_new_tokens < 1:
            raise ArgumentError(f"max_new_tokens is at least 1, got {max_new_tokens}")
        size = int(self.model.config.vocab_size)
        for index, text in enumerate(texts):
            if not text:
                raise ArgumentError(
                    f"prompt {index} has no tokens", hint="begin with the token that begins texts"
                )
            wrong = [token for token in text if not 0 <= token < size]
            if wrong:
                raise ArgumentError(
                    f"prompt {index} has the token {wrong[0]}; the vocabulary has {size}"
                )
            if len(text) >= self._most:
                raise ArgumentError(
                    f"prompt {index} has {len(text)} tokens, and the model takes {self._most} with the answer",
                    hint="shorten the prompt",
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer)


class _Written:
    """A text while it is written."""

    def __init__(self, generator: Generator, stop: str | Sequence[str]) -> None:
        self.tokens: list[int] = []
        self.reason = ""
        self._ends = generator.ends
        self._vocabulary = generator.vocabulary
        self._stops = [stop] if isinstance(stop, str) else list(stop)
        if "" in self._stops:
            raise ArgumentError("a stop string has at least one character")
        if self._stops and self._vocabulary is None:
            raise ArgumentError("stop strings need a vocabulary")
        self._text = ""

    def add(self, token: int) -> None:
        """Take the next token, unless the text has ended."""
        if self.reason:
            return
        if token in self._ends:
            self.reason = "stop"
            return
        self.tokens.append(token)
        if self._vocabulary is None:
            return
        self._text = self._vocabulary.decode(self.tokens)
        for stop in self._stops:
            place = self._text.find(stop)
            if place >= 0:
                self._text, self.reason = self._text[:place], "stop"

    def certain(self) -> str:
        """The part of the text that more tokens will not change."""
        if self.reason:
            return self._text
        held = len(self._text) - len(self._text.rstrip("\N{REPLACEMENT CHARACTER}"))
        for stop in self._stops:
            for length in range(len(stop) - 1, 0, -1):
                if self._text.endswith(stop[:length]):
                    held = max(held, length)
                    break
        return self._text[: len(self._text) - held]

    def finished(self, reason: str) -> Completion:
        """The text as it is now."""
        return Completion(self.tokens, self._text, self.reason or reason)
