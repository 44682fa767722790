"""Sentence embeddings: texts as directions, by a BERT; what means the same points the same way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..graph.data import Array
from ..graph.errors import ArgumentError
from ..io.reading import naming
from ..load import Pretrained, config, folder, weights
from ..load.texts import CONFIG
from ..models.bert import Bert
from ..session import Session, build_inference_session
from .generation import bucket
from .tokenizer import Tokenizer

MOST = 32
"""Texts that are computed together."""


@dataclass
class Embedder:
    """A BERT ready to embed texts: sessions are built when first needed, and kept.

    Attributes:
        model: the architecture.
        owner: a session that has its parameters, which all others use.
        tokenizer: of its folder.
        options: of the sessions (``threads``, ``device``, ``precision``).
    """

    model: Bert
    owner: Session
    tokenizer: Tokenizer
    options: dict[str, Any] = field(default_factory=dict)
    _sessions: dict[tuple[int, int], Session] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, path_or_id: str | os.PathLike[str], **session_options: Any) -> Embedder:
        """The encoder of a folder, or of a name of the hub, whatever head it was saved with."""
        place = folder(path_or_id)
        said = config(place)
        if said["model_type"] != "bert":
            raise ArgumentError(
                f"'{os.fspath(path_or_id)}' is a {said['model_type']}; texts are embedded by a bert"
            )
        tokenizer = Tokenizer.from_folder(place)
        # Some are saved with the padding and the lengths of their training, which are not ours.
        tokenizer.inner.no_padding()
        tokenizer.inner.no_truncation()
        with naming(place / CONFIG):
            model = Bert.from_config(said)
        found = Pretrained(model, weights(place), place, said)
        graph = model.embedding_graph(batch=1, length=1)
        owner = found.session(graph, mode="infer", **session_options)
        return cls(model, owner, tokenizer, dict(session_options))

    def embed(self, texts: Sequence[str], *, truncate: bool = False) -> Array:
        """The embedding of each text, (texts, width) of length 1: their products are cosines.

        Texts of similar length are computed together; each gives what it would alone.

        Args:
            texts: any number of them.
            truncate: cut a text that has more tokens than the model has positions, which is an error otherwise.
        """
        tokens = [self._tokens(i, text, truncate) for i, text in enumerate(texts)]
        found = np.zeros((len(texts), self.model.config.hidden_size), np.float32)
        for size, members in self._batches([len(one) for one in tokens]):
            # As few sizes as there can be: each has a session of its own.
            rows = 1 << (len(members) - 1).bit_length()
            ids = np.zeros((rows, size), np.int32)
            mask = np.zeros((rows, size), np.int32)
            mask[:, 0] = 1  # rows that fill up look at something, too
            for row, i in enumerate(members):
                ids[row, : len(tokens[i])] = tokens[i]
                mask[row, : len(tokens[i])] = 1
            inputs = {"tokens": ids, "mask": mask, "types": np.zeros_like(ids)}
            found[members] = self._session(rows, size).run(inputs)["embedding"][: len(members)]
        return found

    def close(self) -> None:
        """Close all sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()
        self.owner.close()

    def _tokens(self, index: int, text: str, truncate: bool) -> list[int]:
        tokens = self.tokenizer.encode(text)
        most = int(self.model.config.max_position_embeddings)
        if not tokens:
            raise ArgumentError(f"text {index} has no tokens")
        if len(tokens) <= most:
            return tokens
        if not truncate:
            raise ArgumentError(
                f"text {index} has {len(tokens)} tokens, and the model takes {most}",
                hint="split it, or cut it with truncate",
            )
        around = self.tokenizer.inner.num_special_tokens_to_add(False)
        # The token that ends a text stays at its end.
        return tokens[: most - 1] + tokens[-1:] if around else tokens[:most]

    def _batches(self, lengths: list[int]) -> Iterator[tuple[int, list[int]]]:
        """The padded length, and which texts have it, few enough at a time."""
        most = int(self.model.config.max_position_embeddings)
        groups: dict[int, list[int]] = {}
        for i, length in enumerate(lengths):
            groups.setdefault(min(bucket(length), most), []).append(i)
        for size, members in sorted(groups.items()):
            for start in range(0, len(members), MOST):
                yield size, members[start : start + MOST]

    def _session(self, rows: int, size: int) -> Session:
        key = (rows, size)
        if key not in self._sessions:
            graph = self.model.embedding_graph(batch=rows, length=size)
            self._sessions[key] = build_inference_session(graph, share=self.owner, **self.options)
        return self._sessions[key]
