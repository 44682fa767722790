"""A model with the weights of its folder."""

from __future__ import annotations

import inspect
import os
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from glob import escape
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

from ..graph.errors import ArgumentError, nearest
from ..graph.graph import Graph
from ..io.reading import naming
from ..session.builders import build
from ..session.config import SessionConfig
from ..session.initialise import rule_for
from ..session.session import Session
from .files import Weights, weights
from .hub import folder as find_folder
from .loading import ADAPTED, learned_states, match_graph, said, write
from .matching import Patterns, unused
from .saving import save as save_folder
from .texts import CONFIG
from .texts import config as read_config

COPIED = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "*.model",
    "*processor_config.json",
)
"""What a saved model takes along from the folder it came from."""
_BUILDING = {*(field.name for field in fields(SessionConfig)), "config", "share", "plan_file"}


@dataclass(frozen=True)
class Pretrained:
    """A model, and the weights it starts with; ``load.pretrained`` makes one.

    Attributes:
        model: the architecture, which makes graphs.
        weights: the tensors of the folder; they are read when a session is made.
        folder: where they are.
        config: what ``config.json`` says.
        allow_rounding: whether weights may be rounded to the model's element type.
        strict: whether weights that the model has no use for, and those that it lacks, are faults.
    """

    model: Any
    weights: Weights
    folder: Path
    config: Mapping[str, Any]
    allow_rounding: bool = False
    strict: bool = True

    def training_session(self, **options: Any) -> Session:
        """A session that trains: ``training_session(batch=8, length=512, optimizer=optim.AdamW(1e-4))``.

        Options that a ``SessionConfig`` has are the session's (and ``share``, ``plan_file``); the others are sizes of the graph.
        """
        return self._made(self.model.training_graph, {**options, "mode": "train"})

    def inference_session(self, **options: Any) -> Session:
        """A session that computes the model's results; options as for ``training_session``."""
        return self._made(self.model.inference_graph, {**options, "mode": "infer"})

    def session(self, graph: Graph, **options: Any) -> Session:
        """A session of another graph of the model, or of a part of it, with the weights in it.

        Tensors that the graph has no use for are no fault. ``mode="infer"`` makes a session without gradients. With
        ``share=session`` what that session has stays as it is there, and only the rest is loaded.
        """
        return self._filled(graph, options, {**said(self.model), "ignored": ("*",)})

    def _filled(self, graph: Graph, options: dict[str, Any], names: dict[str, Any]) -> Session:
        share = options.get("share")
        skipped = {*share.parameters(), *share.state()} if isinstance(share, Session) else ()
        found = match_graph(
            graph,
            self.weights,
            **names,
            skipped=skipped,
            allow_rounding=self.allow_rounding,
            strict=self.strict,
        )
        rule = options.get("init", getattr(options.get("config"), "init", None))
        filled = {*found.sources, *skipped}
        starts: dict[str, Any] = {
            escape(name): rule_for(name, rule, leaf.attrs["init"])
            for name, leaf in graph.parameters.items()
            if name not in filled
        }
        # What is filled need not be made up first.
        session = build(graph, **{**options, "init": {**starts, "*": None}})
        try:
            write(session, self.weights, found)
        except BaseException:
            session.close()
            raise
        return session

    def _made(self, make: Callable[..., Graph], options: dict[str, Any]) -> Session:
        sizes = {name: options.pop(name) for name in list(options) if name not in _BUILDING}
        taken = inspect.signature(make)
        kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        known = [name for name, one in taken.parameters.items() if one.kind not in kinds]
        called = f"{make.__name__} of {type(self.model).__name__}"
        # A method that takes any keyword passes over those it does not know; a misspelt one must not be.
        strange = [name for name in sizes if known and name not in known]
        if strange:
            hint = nearest(strange[0], [*known, *sorted(_BUILDING)])
            raise ArgumentError(f"neither a session nor {called} takes '{strange[0]}'", hint=hint)
        try:
            taken.bind(**sizes)
        except TypeError as error:
            raise ArgumentError(f"{called}: {error}") from None
        return self._filled(make(**sizes), options, said(self.model))

    def save(self, folder: str | os.PathLike[str], session: Session, **options: Any) -> list[Path]:
        """Save what a session has learned as a folder like the one it came from, tokenizer included.

        ``options`` are those of ``load.save`` (``dtype``, ``max_shard``, ``extra_files``).
        """
        graph = session.graph
        changes = Patterns(ADAPTED)
        adapted = [name for name in graph.parameters if name in changes]
        if adapted:
            raise ArgumentError(
                f"the session has low-rank changes ('{adapted[0]}' and {len(adapted) - 1} more), which the model's own "
                "folder has no place for",
                hint="save them with load.save_adapter, or the sum with load.save(folder, config, load.merged(session, lora))",
            )
        lost = unused(self.weights, [*graph.parameters, *graph.states], **said(self.model))
        if lost and self.strict:
            raise ArgumentError(
                f"the session has only a part of the model: {len(lost)} tensors of '{self.folder}' are not in it, "
                f"such as '{lost[0]}', and would be lost",
                hint="save a session of the whole model",
            )
        states = session.state()
        kept = {name: states[name] for name in learned_states(graph)}
        values: Mapping[str, Any] = ChainMap(kept, session.parameters())
        extra = [Path(path) for path in options.pop("extra_files", ())]
        target = Path(folder).expanduser()
        if not (target.is_dir() and target.samefile(self.folder)):
            extra += [path for path in sorted(self.folder.iterdir()) if _is_copied(path)]
        tied = getattr(self.model, "tied", {})
        return save_folder(target, self.config, values, tied=tied, extra_files=extra, **options)


def _is_copied(path: Path) -> bool:
    return path.is_file() and path.name in Patterns(COPIED)


def pretrained(
    path_or_id: str | os.PathLike[str],
    *,
    revision: str | None = None,
    dtype: str = "f32",
    linear: Any = None,
    allow_rounding: bool = False,
    strict: bool = True,
) -> Pretrained:
    """The model of a folder, or of a name of the HuggingFace hub, with its weights.

    Args:
        path_or_id: see ``load.folder``.
        revision: a branch, tag or commit of the hub's.
        dtype: the element type of parameters and arithmetic.
        linear: what makes the matrices: ``nn.LoRA(...).linear`` for low-rank changes, which start as they are declared.
        allow_rounding: whether f32 weights may become bf16 ones, and the like.
        strict: whether weights that the model has no use for, and those that it lacks, are faults.
    """
    folder = find_folder(path_or_id, revision)
    config = read_config(folder)
    options = {} if linear is None else {"linear": linear}
    models = import_module("..models", __package__)  # late: whoever loads weights alone needs none
    stored = weights(folder)
    with naming(folder / CONFIG):
        model = models.from_config(config, dtype=dtype, **options)
        if strict and isinstance(model.config, models.Config):
            _check_size(model.config, stored)
    return Pretrained(model, stored, folder, config, allow_rounding, strict)


def _check_size(config: Any, stored: Weights) -> None:
    """Refuse a configuration of a model far larger than its weights, before a graph of it is made."""
    count = sum(prod(stored.info(name).shape) for name in stored)
    if config.layers > len(stored):
        raise ArgumentError(
            f"it asks for {config.layers:,} layers, but there are {len(stored):,} tensors in '{stored.path}'",
            hint="it is of another model, or damaged",
        )
    if config.parameter_count > 4 * count:
        raise ArgumentError(
            f"it asks for about {config.parameter_count:,} parameters, but there are {count:,} in '{stored.path}'",
            hint="it is of another model, or damaged",
        )
